"""benchmarks/fused_tilings.py: which tiling it chooses, and what it writes into the table of tilings."""

import json
import shutil
from pathlib import Path

from benchmarks.fused_tilings import fastest, only_tiling, write_entry
from hf_bidir.kernels import fused_launch


def test_a_measured_tiling_replaces_its_entry_and_nothing_else(tmp_path):
    file = Path(shutil.copy(fused_launch.TILINGS_FILE, tmp_path))
    tiling, measured = (32, 16, 2, 5), ("hopper forward 64", "10.0 forward 64")
    for entry in measured:
        write_entry(file, entry, tiling)
    written = {entry: tuple(sizes) for entry, sizes in json.loads(file.read_text()).items()}
    assert written == fused_launch.tilings() | dict.fromkeys(measured, tiling)


def test_the_fastest_tiling_ran_at_every_length():
    first, second, third = (64, 32, 4, 2), (64, 64, 4, 2), (128, 64, 8, 2)
    assert fastest([{first: 1.0, second: 1.2, third: 0.1}, {first: 4.0, second: 3.0}]) == second


def test_only_the_named_kernel_gets_another_tiling_for_a_while():
    code = fused_launch.Code(64, 64, 64, 64, *[False] * 4, 8, False, 0, rows=16)

    def tilings():
        return [fused_launch.candidates(name, code, "hopper") for name in ("decode", "merge")]

    decode, merge = tilings()
    with only_tiling("merge", (32, 16, 2, 5)):
        assert tilings() == [decode, ((32, 16, 2, 5),)]
    assert tilings() == [decode, merge]
