"""benchmarks/fused_tilings.py: which tiling it chooses, and what it writes into the table of tilings."""

import inspect

import pytest

import benchmarks.fused_tilings
from hf_bidir.kernels import fused_tilings

ENTRY = "hopper forward tanhmax 64"


def test_a_measured_tiling_replaces_its_entry_and_nothing_else():
    text = inspect.getsource(fused_tilings)
    new = benchmarks.fused_tilings.rewritten(text, {ENTRY: (32, 16, 2, 5)})
    variables = {"__file__": fused_tilings.__file__}
    exec(new, variables)
    assert variables["TILINGS"] == fused_tilings.TILINGS | {ENTRY: (32, 16, 2, 5)}
    with pytest.raises(ValueError, match='expected one entry "volta forward tanhmax 64"'):
        benchmarks.fused_tilings.rewritten(text, {"volta forward tanhmax 64": (32, 16, 2, 5)})


def test_the_fastest_tiling_ran_at_every_length():
    one, two, three = (64, 32, 4, 2), (64, 64, 4, 2), (128, 64, 8, 2)
    times = [{one: 1.0, two: 1.2, three: 0.1}, {one: 4.0, two: 3.0}]
    assert benchmarks.fused_tilings.fastest(times) == two


def test_only_the_named_kernel_gets_another_tiling_for_a_while():
    from hf_bidir.kernels import fused_launch

    decode = fused_launch.candidates("decode", (16,), "hopper")
    with benchmarks.fused_tilings.only_tiling("merge", (32, 16, 2, 5)):
        assert fused_launch.candidates("merge", (), "hopper") == ((32, 16, 2, 5),)
        assert fused_launch.candidates("decode", (16,), "hopper") == decode
    assert fused_launch.candidates("merge", (), "hopper") == ((0, 0, 4, 1),)
