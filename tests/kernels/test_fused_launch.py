"""How kernels are compiled and launched: a tiling for every GPU."""

from itertools import product

import pytest
import torch

pytest.importorskip("triton")

from triton.runtime.errors import OutOfResources

from hf_bidir.kernels import fused_launch
from hf_bidir.kernels.fused_blocks import Code, Problem, Rows
from hf_bidir.kernels.fused_launch import ARCHITECTURES

CODE = Code(64, 64, 64, 64, False, False, False, False, 8, False, 0)
ROWS = Rows(torch.zeros(1), 1, 1, 1)
ARGUMENTS = (Problem(ROWS, ROWS, ROWS, *[None] * 12),)


class Compiled:
    """Stands in for a compiled kernel, of which blocks of 128 queries do not fit."""

    def __init__(self, rows):
        self.rows = rows

    def __getitem__(self, grid):
        if self.rows == 128:
            raise OutOfResources(300_000, 232_448, "shared memory")
        return self


@pytest.fixture
def tried(monkeypatch):
    """The rows of the blocks for which a kernel is compiled as on a Hopper GPU, though there may be none."""
    rows = []

    def built(name, arguments, code, tiling):
        rows.append(code.rows)
        return Compiled(code.rows)

    monkeypatch.setattr(fused_launch, "INTERPRETED", False)
    monkeypatch.setattr(fused_launch, "_gpu", lambda device: "hopper")
    monkeypatch.setattr(fused_launch, "built", built)
    return rows


def test_every_architecture_has_a_tiling_for_every_kernel_and_head_dimension(monkeypatch):
    monkeypatch.setattr(fused_launch, "INTERPRETED", False)
    names = ("forward", "query_gradient", "key_value_gradient")
    architectures = {*ARCHITECTURES, "13.7"}
    for name, architecture, size in product(names, architectures, (16, 64, 128, 256)):
        best, *smaller = fused_launch.candidates(name, CODE._replace(head_pad=size), architecture)
        assert best[0] * best[1] >= smaller[-1][0] * smaller[-1][1]


def test_a_tiling_that_does_not_fit_gives_way_to_a_smaller_one(tried):
    ready = fused_launch._compiled("forward", ARGUMENTS, CODE)
    assert tried == [128, 64]
    assert ready.code.rows == 64


def test_a_gpu_on_which_no_tiling_fits_is_told_to_use_another_path(tried, monkeypatch):
    monkeypatch.setattr(fused_launch, "candidates", lambda *_: ((128, 64, 4, 2),))
    with pytest.raises(ValueError, match=r"no tiling of the forward kernel fits this GPU: .*shared memory"):
        fused_launch._compiled("forward", ARGUMENTS, CODE)
