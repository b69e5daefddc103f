"""Inputs, masks and comparisons for the tests of the Triton kernels."""

from dataclasses import replace

import pytest
import torch

from hf_bidir import bidir_attention
from hf_bidir.modeling.attention_call import attention_call
from hf_bidir.modeling.eager_attention import eager_attention

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


def with_gradients(context, inputs):
    upstream = torch.randn(context.shape, generator=torch.Generator().manual_seed(2)).to(DEVICE, context.dtype)
    return [context.detach(), *torch.autograd.grad(context, inputs, upstream)]


def compared(inputs, keep=None, causal=False, window=None, bias=None, **options):
    """Context and gradients of the kernel, of the eager path, and of the eager path in float64.

    Causality and window are for queries and keys of any numbers.
    """
    call = replace(attention_call(*inputs[:2], **options), causal=causal, window=window)
    inputs = inputs if bias is None else [*inputs, bias]
    dtype = inputs[0].dtype
    results = []
    for attend, precision in ((fused_attention, dtype), (eager_attention, dtype), (eager_attention, torch.float64)):
        copies = [x.detach().to(precision).requires_grad_() for x in inputs]
        of_path = call if bias is None else replace(call, bias=copies[3])
        context = attend(*copies[:3], keep, of_path)
        results.append(with_gradients(context if attend is fused_attention else context[0], copies))
    return results


def fused(*inputs, **options):
    """The context of detached inputs."""
    return bidir_attention(*(x.detach() for x in inputs), implementation="fused", **options)[0]


def distance(tensors, gold):
    return [(t.double() - g).norm().item() for t, g in zip(tensors, gold, strict=True)]


def assert_as_exact(got, plainly, gold, relative=None):
    """At most twice the eager path's distance from gold.

    A few numbers may come out of the plain path exact by luck, hence the units in the last place on top; where all
    numbers are small, a `relative` share of them.
    """
    dtype = got[0].dtype
    share = 1e-5 if dtype == torch.float32 else 0.1 * torch.finfo(dtype).eps
    for ours, theirs, exact in zip(distance(got, gold), distance(plainly, gold), gold, strict=True):
        size = exact.norm().item()
        room = relative * size if relative else share * (size + 1)
        assert ours <= 2 * theirs + room


def assert_exact(inputs, keep=None, **options):
    assert_as_exact(*compared(inputs, keep, **options))
