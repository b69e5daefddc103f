"""The kernel against the formula. `make kernel` first; or set KERNEL to a repository on the Hub."""

import os
from pathlib import Path

import pytest
import torch

import kernels

FOLDER = Path(__file__).parents[1]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16] if DEVICE == "cuda" else [torch.float32]


@pytest.fixture(scope="module")
def kernel():
    if name := os.environ.get("KERNEL"):
        return kernels.get_kernel(name, version=1, trust_remote_code=True)
    return kernels.get_local_kernel(FOLDER, backend=None if DEVICE == "cuda" else "cpu")


def tanhmax(query, key, value, keep):
    """The formula of the paper in float64."""
    query, key, value = query.double(), key.double(), value.double()
    scores = query @ key.mT * query.shape[-1] ** -0.5
    sinh, cosh = scores.sinh() * keep, scores.cosh() * keep
    return sinh @ value / cosh.sum(-1, keepdim=True)


@pytest.mark.kernels_ci
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_context_and_gradients_are_those_of_the_formula(kernel, dtype, head_dim):
    torch.manual_seed(0)
    inputs = [torch.randn(2, 3, 70, head_dim, device=DEVICE, dtype=dtype, requires_grad=True) for _ in range(3)]
    keep = torch.ones(2, 1, 1, 70, device=DEVICE, dtype=torch.bool)
    keep[1, ..., 50:] = False
    weight = torch.randn(2, 3, 70, head_dim, device=DEVICE)
    found = []
    for attend in (lambda *x: kernel.bidir_attention(*x)[0], tanhmax):
        context = attend(*inputs, keep)
        found.append([context, *torch.autograd.grad((context * weight).sum(), inputs)])
    tolerance = 4 * torch.finfo(dtype).eps if dtype != torch.float32 else 1e-5
    for got, exact in zip(*found, strict=True):
        assert (got.double() - exact.double()).norm() <= tolerance * exact.double().norm()


@pytest.mark.kernels_ci
def test_a_causal_query_does_not_see_later_keys(kernel):
    query, key, value = torch.randn(3, 1, 2, 20, 32, device=DEVICE)
    changed = value.clone()
    changed[:, :, 10:] = 7.0
    before, after = (kernel.bidir_attention(query, key, x, causal=True)[0] for x in (value, changed))
    torch.testing.assert_close(before[:, :, :10], after[:, :, :10])
    assert not torch.allclose(before[:, :, 10:], after[:, :, 10:])
