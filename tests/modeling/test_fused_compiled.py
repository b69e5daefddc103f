"""The kernels as a GPU would get them: compiled for it, which needs none. The interpreter forgives more."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SHARED_86 = 99 * 1024  # bytes of shared memory of a block at most, on compute capability 8.6: the least of all
COMPILE = """
import json, sys
from fused_instructions import KERNELS, compiled, resources
arch, cases = int(sys.argv[1]), json.loads(sys.argv[2])
for case in cases:
    size = case.pop("size", 64 * 32)
    for kernel in KERNELS:
        for config in kernel.configs:
            if config.kwargs["BLOCK_M"] * config.kwargs["BLOCK_N"] == size:
                print(resources(compiled(kernel, config, arch=arch, **case)).shared)
"""


def shared_memory(arch: int, cases: list[dict]) -> list[int]:
    """Bytes that every kernel takes in every case, in every configuration of its size; fails where one does not
    compile."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(arch), json.dumps(cases)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(BENCHMARKS), "TRITON_INTERPRET": "0"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


def test_every_option_compiles_for_hopper():
    cases = [
        {"given": ["keep", "bounds", "shift"]},
        {"given": ["keep", "seed"], "dtype": "fp16", "head_dim": 40, "value_dim": 80},
        {"given": ["query_starts", "key_starts", "window"], "causal": True},
        {"size": 128 * 128, "given": ["keep", "shift"]},
        {"signed": False},
        {"ones": ["heads", "longest", "query_rows", "key_rows"], "given": ["keep", "bounds", "window"]},
    ]
    # tilings of 64 x 32: one, and two for keys and values; of 128 x 128: two, forward
    assert len(shared_memory(90, cases)) == 4 * (len(cases) - 1) + 2


def test_the_smallest_blocks_fit_everywhere_even_where_heads_are_largest():
    needed = shared_memory(
        86, [{"size": 32 * 32, "head_dim": 256}, {"size": 32 * 16, "head_dim": 256, "dtype": "fp32"}]
    )
    assert max(needed) <= SHARED_86
