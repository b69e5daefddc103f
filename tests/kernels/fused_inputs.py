"""Inputs, masks and comparisons for the tests of the Triton kernels."""

from dataclasses import replace

import pytest
import torch

from hf_bidir import bidir_attention
from hf_bidir.modeling.attention_call import attention_call

pytest.importorskip("triton")

from hf_bidir.kernels.fused_attention import PART, fused_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = [torch.float16, torch.bfloat16]
MASKS = ["none", "padding", "padding on the left", "an empty example", "holes", "full"]


def projections(batch=2, heads=2, queries=20, keys=18, head_dim=16, value_dim=None, dtype=torch.float32, size=1.0):
    """Query, key and value as a model makes them: views of `[batch, length, heads, head_dim]`."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((queries, head_dim), (keys, head_dim), (keys, value_dim or head_dim))
    tensors = [size * torch.randn(batch, n, heads, d, generator=generator) for n, d in shapes]
    return [t.to(DEVICE, dtype).transpose(1, 2).detach().requires_grad_() for t in tensors]


KEYS = PART + 12  # two parts for the kernel of few queries, the second with a partial block


def grouped(queries=1, keys=KEYS, **options):
    """Four heads that share the keys of two."""
    query = projections(heads=4, queries=queries, keys=keys, **options)[0]
    return [query, *projections(heads=2, queries=queries, keys=keys, **options)[1:]]


def scaled(inputs, size):
    """The same inputs with the queries times a number or tensor."""
    query, *others = inputs
    return [(size * query).detach().requires_grad_(), *others]


def mask(kind: str, batch: int, heads: int, queries: int, keys: int):
    generator = torch.Generator().manual_seed(1)
    if kind == "none":
        return None
    if kind == "full":
        keep = torch.rand(batch, heads, queries, keys, generator=generator) > 0.4
    elif kind == "holes":
        keep = torch.rand(batch, 1, 1, keys, generator=generator) > 0.4
    else:
        lengths = [keys] + [0 if kind == "an empty example" else (keys + 1) // 2] * (batch - 1)
        keep = (torch.arange(keys) < torch.tensor(lengths).unsqueeze(1))[:, None, None]
    return (keep.flip(-1) if kind == "padding on the left" else keep).to(DEVICE)


def within_reach(keep, queries: int, keys: int, causal: bool, window: int | None):
    """The keep-mask of the plain path that says what the flags say."""
    offsets = torch.arange(queries, device=DEVICE)[:, None] - torch.arange(keys, device=DEVICE)
    reach = (offsets >= (0 if causal else -keys)) & (offsets.abs() <= (queries + keys if window is None else window))
    return reach[None, None] if keep is None else keep & reach


def attended(query, key, value, keep=None, causal=False, window=None, **options):
    """The kernel itself; its causality and window are for queries and keys of any numbers, as packed examples need."""
    call = replace(attention_call(query, key, **options), causal=causal, window=window)
    return fused_attention(query, key, value, keep, call)


def with_gradients(context, inputs):
    upstream = torch.randn(context.shape, generator=torch.Generator().manual_seed(2)).to(DEVICE, context.dtype)
    return [context.detach(), *torch.autograd.grad(context, inputs, upstream)]


def plain(inputs, keep=None, dtype=None, **options):
    """Context and gradients of the eager path from the same inputs, optionally in another `dtype`."""
    inputs = [t.detach().to(dtype or t.dtype).requires_grad_() for t in inputs]
    return with_gradients(bidir_attention(*inputs, keep, implementation="eager", **options)[0], inputs)


def fused(inputs, keep=None, **options):
    return with_gradients(bidir_attention(*inputs, keep, implementation="fused", **options)[0], inputs)


def assert_agree(inputs, keep=None, **options):
    """In fp32 the kernel gives what the eager path gives."""
    got = fused(inputs, keep, **options)
    expected = plain(inputs, keep, **options)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-5)


def distance(tensors, gold):
    return [(t.double() - g).norm().item() for t, g in zip(tensors, gold, strict=True)]


def assert_as_exact_as_the_plain_path(got, plainly, gold, relative=None):
    """Half precision: at most twice the eager path's distance from gold; fp32: nearly all digits.

    A few numbers may come out of the plain path exact by luck, hence the units in the last place on top; where all
    numbers are small, a `relative` share of them.
    """
    plain_distances = distance(plainly, gold) if plainly else [0] * len(gold)
    for ours, theirs, exact in zip(distance(got, gold), plain_distances, gold, strict=True):
        size = exact.norm().item()
        if got[0].dtype == torch.float32:
            assert ours <= 1e-5 * (size + 1)
        else:
            room = relative * size if relative else torch.finfo(got[0].dtype).eps * 0.1 * (size + 1)
            assert ours <= 2 * theirs + room


def assert_exact(inputs, keep=None, **options):
    gold = plain(inputs, keep, torch.float64, **options)
    assert_as_exact_as_the_plain_path(fused(inputs, keep, **options), plain(inputs, keep, **options), gold)
