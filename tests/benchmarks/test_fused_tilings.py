"""benchmarks/fused_tilings.py: which tiling it chooses, and what it writes into the table of tilings."""

import json
import shutil
from pathlib import Path

import benchmarks.fused_tilings
from hf_bidir.kernels.fused_launch import TILINGS_FILE, candidates, tilings


def test_a_measured_tiling_replaces_its_entry_and_nothing_else(tmp_path):
    file = Path(shutil.copy(TILINGS_FILE, tmp_path))
    for entry in ("hopper forward 64", "10.0 forward 64"):
        benchmarks.fused_tilings.write_entry(file, entry, (32, 16, 2, 5))
    written = {entry: tuple(tiling) for entry, tiling in json.loads(file.read_text()).items()}
    assert written == tilings() | dict.fromkeys(("hopper forward 64", "10.0 forward 64"), (32, 16, 2, 5))


def test_the_fastest_tiling_ran_at_every_length():
    one, two, three = (64, 32, 4, 2), (64, 64, 4, 2), (128, 64, 8, 2)
    times = [{one: 1.0, two: 1.2, three: 0.1}, {one: 4.0, two: 3.0}]
    assert benchmarks.fused_tilings.fastest(times) == two


def test_only_the_named_kernel_gets_another_tiling_for_a_while():
    from hf_bidir.kernels import fused_launch

    code = fused_launch.Code(64, 64, 64, 64, *[False] * 4, 8, False, 0, rows=16)
    decode, merge = (candidates(name, code, "hopper") for name in ("decode", "merge"))
    with benchmarks.fused_tilings.only_tiling("merge", (32, 16, 2, 5)):
        assert fused_launch.candidates("merge", code, "hopper") == ((32, 16, 2, 5),)
        assert fused_launch.candidates("decode", code, "hopper") == decode
    assert fused_launch.candidates("merge", code, "hopper") == merge
