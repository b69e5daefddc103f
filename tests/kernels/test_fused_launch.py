"""How kernels are compiled and launched: a tiling for every GPU, one line where compiling takes long."""

import logging
import time
from itertools import product

import pytest
import torch

pytest.importorskip("triton")

from triton.runtime.errors import OutOfResources

from hf_bidir.kernels import fused_launch
from hf_bidir.kernels.fused_launch import Variant
from hf_bidir.kernels.fused_tilings import ARCHITECTURES, OTHERS

VARIANT = Variant(64, 64, 64, 64, True, False, False, False, False, False, 8, "tf32")


class Compiled:
    """Stands in for a compiled kernel, of which blocks of 128 queries do not fit."""

    def __init__(self, rows):
        self.rows = rows

    def __getitem__(self, grid):
        if self.rows == 128:
            raise OutOfResources(300_000, 232_448, "shared memory")
        return self


class Kernel:
    def __init__(self):
        self.tried = []

    def warmup(self, *arguments, grid, **options):
        self.tried.append(arguments[-2])
        return Compiled(arguments[-2])


@pytest.fixture
def kernel(monkeypatch):
    """A kernel that is compiled as on a Hopper GPU, though there may be none."""
    stand_in = Kernel()
    monkeypatch.setattr(fused_launch, "INTERPRETED", False)
    monkeypatch.setattr(fused_launch, "_gpu", lambda device: "hopper")
    monkeypatch.setitem(fused_launch.KERNELS, "forward", stand_in)
    return stand_in


def test_every_architecture_has_a_tiling_for_every_kernel_mode_and_head_dimension(monkeypatch):
    monkeypatch.setattr(fused_launch, "INTERPRETED", False)
    names, architectures = ("forward", "query_gradient", "key_value_gradient"), {*ARCHITECTURES.values(), OTHERS}
    for name, architecture, signed, size in product(names, architectures, (True, False), (16, 64, 128, 256)):
        variant = VARIANT._replace(SIGNED=signed, HEAD_PAD=size)
        best, *smaller = fused_launch.candidates(name, variant, architecture)
        assert best[0] * best[1] >= smaller[-1][0] * smaller[-1][1]


def test_a_tiling_that_does_not_fit_gives_way_to_a_smaller_one(kernel):
    ready = fused_launch._compiled("forward", VARIANT, (torch.zeros(1),))
    assert kernel.tried == [128, 64]
    assert ready.rows == 64


def test_a_gpu_on_which_no_tiling_fits_is_told_to_use_another_path(kernel, monkeypatch):
    monkeypatch.setattr(fused_launch, "candidates", lambda *_: ((128, 64, 4, 2),))
    with pytest.raises(ValueError, match=r'no tiling of the forward kernel fits this GPU: .*use "eager"'):
        fused_launch._compiled("forward", VARIANT, (torch.zeros(1),))


def test_only_a_compilation_that_takes_long_is_announced(monkeypatch, caplog):
    for seconds in (0.01, 60):
        monkeypatch.setattr(fused_launch, "SILENT_SECONDS", seconds)
        with caplog.at_level(logging.WARNING), fused_launch._announced("forward"):
            time.sleep(0.1)
    assert caplog.text.count("compiling the forward kernel for this GPU") == 1


def test_a_gpu_without_tilings_uses_those_of_others_and_says_so(monkeypatch, caplog):
    monkeypatch.setattr(fused_launch, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (13, 7))
    with caplog.at_level(logging.WARNING):
        assert fused_launch._gpu(torch.device("cuda")) == OTHERS
    assert "no tilings for compute capability 13.7" in caplog.text
