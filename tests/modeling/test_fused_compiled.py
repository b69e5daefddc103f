"""The kernels as a GPU would get them: compiled for it, which needs none. The interpreter forgives more."""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

pytest.importorskip("triton")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MAIN = ("forward", "query_gradient", "key_value_gradient")
COMPILE = """
import json, sys
from fused_instructions import compiled
for case in json.loads(sys.argv[1]):
    print(compiled(**case).metadata.shared // 1024)
"""


def shared_memory(cases: list[dict]) -> list[int]:
    """KiB of shared memory of every case; fails where one does not compile."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, json.dumps(cases)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(BENCHMARKS), "TRITON_INTERPRET": "0"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


@pytest.mark.parametrize("name", MAIN)
def test_every_option_compiles_for_hopper(name):
    cases = [
        {"given": ["keep", "shifts", "grad_shift"], "PER_KEY": True},
        {"given": ["keep", "seed"], "dtype": "fp16", "head_dim": 40, "value_dim": 80},
        {"given": ["query_starts", "key_starts", "window"], "CAUSAL": True},
        {"given": ["bias", "grad_bias", "cap"]},
        {"SIGNED": False, "LEVELLED": True, "UNIT": 1},
        {"dtype": "fp32"},
    ]
    shared_memory([{"name": name, "tiling": [64, 32, 4, 2], **case} for case in cases])


def test_every_option_of_decoding_compiles_for_hopper():
    cases = [
        {"given": ["keep", "shifts"], "PER_KEY": True},
        {"given": ["keep", "bias", "cap"], "dtype": "fp16"},
        {"SIGNED": False, "LEVELLED": True, "dtype": "fp32"},
    ]
    cases = [{"name": "decode", "tiling": [16, 64, 4, 3], **case} for case in cases]
    shared_memory([*cases, {"name": "merge", "tiling": [0, 0, 4, 1]}])


@pytest.mark.parametrize(
    ("architecture", "capability", "limit"), [("ampere", 80, 163), ("ada", 86, 99), ("hopper", 90, 227)]
)
def test_every_tiling_of_the_table_compiles_and_fits_its_architecture(architecture, capability, limit):
    from hf_bidir.modeling.fused_tilings import TILINGS

    entries = [*product(MAIN, ("tanhmax",), (256,)), *product(MAIN[:1], ("softmax",), (128,))]
    cases = [
        {
            "name": name, "tiling": TILINGS[f"{architecture} {name} {mode} {size}"], "arch": capability,
            "head_dim": size, "SIGNED": mode == "tanhmax",
        }
        for name, mode, size in entries
    ]  # fmt: skip
    for case, needed in zip(cases, shared_memory(cases), strict=True):
        assert needed <= limit, case


def test_the_smallest_blocks_fit_everywhere_even_where_heads_are_largest():
    cases = [{"name": name, "arch": 86, "head_dim": 256, "dtype": "fp32", "given": ["bias"]} for name in MAIN]
    assert max(shared_memory([{**case, "tiling": [16, 16, 4, 1]} for case in cases])) <= 99
