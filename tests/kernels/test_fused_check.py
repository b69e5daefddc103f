"""The kernel is compared with the plain path before "auto" uses it."""

import re

import pytest
import torch

from hf_bidir.kernels import fused_check
from hf_bidir.kernels.fused_check import Kind, difference_from_eager
from hf_bidir.kernels.fused_path import fused_obstacle

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = pytest.mark.skipif(fused_obstacle() is not None, reason=str(fused_obstacle()))


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(fused_check, "LENGTH", 24)


@pytest.mark.parametrize(("dtype", "sizes"), [(torch.float16, (40, 16)), (torch.bfloat16, (32, 32))])
def test_the_kernels_match_the_eager_path(dtype, sizes):
    from hf_bidir.kernels.fused_attention import fused_attention

    assert difference_from_eager(fused_attention, Kind(DEVICE, dtype, *sizes)) is None


def without_mask(query, key, value, keep, call):
    from hf_bidir.kernels.fused_attention import fused_attention

    return fused_attention(query, key, value, None, call)


def wrong_key_gradient(query, key, value, keep, call):
    from hf_bidir.kernels.fused_attention import fused_attention

    halved = key / 2 + key.detach() / 2  # the same keys, with half of their gradient
    return fused_attention(query, halved, value, keep, call)


def does_not_compile(query, key, value, keep, call):
    raise RuntimeError("ptxas: unknown architecture\nand a long log")


@pytest.mark.parametrize(
    ("attend", "named"),
    [
        (without_mask, "its output differs from the eager path by"),
        (wrong_key_gradient, "its key gradient differs from the eager path by 50.0%"),
        (does_not_compile, r"failed with RuntimeError .*unknown architecture"),
    ],
)
def test_a_kernel_that_differs_is_named_with_its_difference(attend, named):
    with torch.no_grad():  # as while a model is evaluated
        found = difference_from_eager(attend, Kind(DEVICE, torch.float16, 32, 32))
    assert re.search(named, found or "no difference")
