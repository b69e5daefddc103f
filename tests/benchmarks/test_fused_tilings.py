"""benchmarks/fused_tilings.py: what it writes into the table of tilings."""

import ast
import inspect

import pytest

from hf_bidir.modeling import fused_tilings

ENTRY = "hopper forward tanhmax 64"


@pytest.fixture
def text():
    return inspect.getsource(fused_tilings)


def table_of(text: str) -> dict:
    """TILINGS of a file with this text."""
    variables = {}
    exec(compile(ast.parse(text), "fused_tilings.py", "exec"), variables)
    return variables["TILINGS"]


def test_a_measured_tiling_replaces_its_entry_and_nothing_else(benchmark, text):
    new = benchmark("fused_tilings").rewritten(text, {ENTRY: (32, 16, 2, 5)})
    assert table_of(new) == fused_tilings.TILINGS | {ENTRY: (32, 16, 2, 5)}
    changed = [line for line in text.splitlines() if line not in new.splitlines()]
    assert len(changed) == 1
    assert ENTRY.rpartition(" ")[0] in changed[0]


def test_an_entry_that_the_table_does_not_have_is_an_error(benchmark, text):
    with pytest.raises(ValueError, match='expected one entry "volta forward tanhmax 64"'):
        benchmark("fused_tilings").rewritten(text, {"volta forward tanhmax 64": (32, 16, 2, 5)})


def test_the_fastest_tiling_ran_at_every_length(benchmark):
    one, two, three = (64, 32, 4, 2), (64, 64, 4, 2), (128, 64, 8, 2)
    times = [{one: 1.0, two: 1.2, three: 0.1}, {one: 4.0, two: 3.0}]
    assert benchmark("fused_tilings").fastest(times) == two


def test_only_the_named_kernel_gets_another_tiling(benchmark):
    from hf_bidir.modeling import fused_launch

    with benchmark("fused_tilings").only_tiling("forward", (32, 16, 2, 5)):
        assert fused_launch.candidates("forward", (), "hopper") == ((32, 16, 2, 5),)
        assert fused_launch.candidates("merge", (), "hopper") == ((0, 0, 4, 1),)
    assert fused_launch.candidates("merge", (), "hopper") == ((0, 0, 4, 1),)
