"""The kernels as a GPU would get them: compiled for it, which needs none. The interpreter forgives more."""

import json
from itertools import product
from pathlib import Path

import pytest

from tests.processes import run_python

pytest.importorskip("triton")

from hf_bidir.kernels.fused_launch import tilings

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MAIN = ("forward", "query_gradient", "key_value_gradient")
COMPILE = """
import json, sys
from fused_resources import compiled
for case in json.loads(sys.argv[1]):
    print(compiled(**case).metadata.shared // 1024)
"""
SHARED = {"ampere": (80, 163), "ada": (86, 99), "hopper": (90, 227)}  # compute capability, KiB of shared memory
OPTIONS = [
    {"given": ["keep", "shifts", "grad_shift"], "per_key": True},
    {"given": ["keep", "seed"], "dtype": "float16", "head_dim": 40, "value_size": 80, "value_pad": 128},
    {"given": ["window"], "causal": True, "wide": True},
    {"given": ["bias", "grad_bias", "cap"], "unit": 1},
    {"dtype": "float32"},
]
DECODING = [
    {"given": ["keep", "shifts"], "per_key": True},
    {"given": ["keep", "bias", "cap"], "dtype": "float16"},
]


def cases() -> list[tuple[dict, int]]:
    """What is compiled, with the shared memory that there is for it."""
    hopper = [{"name": name, "tiling": [64, 32, 4, 2], **options} for name, options in product(MAIN, OPTIONS)]
    hopper += [{"name": "decode", "tiling": [16, 64, 4, 3], **options} for options in DECODING]
    hopper.append({"name": "merge", "tiling": [0, 0, 4, 1]})
    found = [(case, SHARED["hopper"][1]) for case in hopper]
    for (architecture, (capability, limit)), name in product(SHARED.items(), MAIN):
        tiling = tilings()[f"{architecture} {name} 256"]
        found.append(({"name": name, "tiling": tiling, "head_dim": 256, "arch": capability}, limit))
    for name in MAIN:  # the smallest blocks, where heads are largest
        case = {"name": name, "arch": 86, "head_dim": 256, "dtype": "float32", "given": ["bias"]}
        found.append((case | {"tiling": [16, 16, 4, 1]}, SHARED["ada"][1]))
    return found


def test_every_option_and_tiling_compiles_and_fits_its_architecture():
    compiled = json.dumps([case for case, _ in cases()])
    printed = run_python(COMPILE, compiled, fresh=True, PYTHONPATH=str(BENCHMARKS), TRITON_INTERPRET="0")
    for (case, limit), needed in zip(cases(), map(int, printed.split()), strict=True):
        assert needed <= limit, case
