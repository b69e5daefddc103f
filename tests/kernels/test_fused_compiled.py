"""The kernels as a GPU would get them: compiled for it, which needs none. The interpreter forgives more."""

import json
from itertools import product
from pathlib import Path

import pytest

from tests.processes import run_python

pytest.importorskip("triton")

from hf_bidir.kernels.fused_tilings import TILINGS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MAIN = ("forward", "query_gradient", "key_value_gradient")
COMPILE = """
import json, sys
from fused_instructions import compiled
for case in json.loads(sys.argv[1]):
    print(compiled(**case).metadata.shared // 1024)
"""
SHARED = {"ampere": (80, 163), "ada": (86, 99), "hopper": (90, 227)}  # compute capability, KiB of shared memory
OPTIONS = [
    {"given": ["keep", "shifts", "grad_shift"], "PER_KEY": True},
    {"given": ["keep", "seed"], "dtype": "fp16", "head_dim": 40, "value_dim": 80},
    {"given": ["query_starts", "key_starts", "window"], "CAUSAL": True},
    {"given": ["bias", "grad_bias", "cap"]},
    {"SIGNED": False, "LEVELLED": True, "UNIT": 1},
    {"dtype": "fp32"},
]
DECODING = [
    {"given": ["keep", "shifts"], "PER_KEY": True},
    {"given": ["keep", "bias", "cap"], "dtype": "fp16"},
    {"SIGNED": False, "LEVELLED": True, "dtype": "fp32"},
]


def cases() -> list[tuple[dict, int]]:
    """What is compiled, with the shared memory that there is for it."""
    hopper = [{"name": name, "tiling": [64, 32, 4, 2], **options} for name, options in product(MAIN, OPTIONS)]
    hopper += [{"name": "decode", "tiling": [16, 64, 4, 3], **options} for options in DECODING]
    found = [(case, SHARED["hopper"][1]) for case in [*hopper, {"name": "merge", "tiling": [0, 0, 4, 1]}]]
    for architecture, (capability, limit) in SHARED.items():
        for name, mode, size in [*product(MAIN, ("tanhmax",), (256,)), ("forward", "softmax", 128)]:
            tiling = TILINGS[f"{architecture} {name} {mode} {size}"]
            case = {"name": name, "tiling": tiling, "head_dim": size, "SIGNED": mode == "tanhmax", "arch": capability}
            found.append((case, limit))
    for name in MAIN:  # the smallest blocks, where heads are largest
        case = {"name": name, "arch": 86, "head_dim": 256, "dtype": "fp32", "given": ["bias"], "tiling": [16, 16, 4, 1]}
        found.append((case, SHARED["ada"][1]))
    return found


def test_every_option_and_tiling_compiles_and_fits_its_architecture():
    compiled = json.dumps([case for case, _ in cases()])
    printed = run_python(COMPILE, compiled, fresh=True, PYTHONPATH=str(BENCHMARKS), TRITON_INTERPRET="0")
    for (case, limit), needed in zip(cases(), map(int, printed.split()), strict=True):
        assert needed <= limit, case
