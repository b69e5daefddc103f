"""TanhMax attention computed in pieces that stay in the processor's cache, with a backward pass of its own.

The plain path writes and reads the whole `[batch, heads, queries, keys]` score tensor once per elementary operation.
Here each piece goes from scores to context before the next one is begun. Memory beyond inputs and outputs is
therefore one piece, and the keys that padding drops at the end of an example are not computed at all.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

# Scores in one piece: 1 MiB of fp32, the second-level cache of a core. On other devices it only bounds the memory.
CPU_PIECE, DEVICE_PIECE = 2**18, 2**26

# While every |score| is below this, neither e^s nor a row's sum of cosh(s) leaves the range of fp32.
SAFE_SCORE = 40.0

Piece = tuple[tuple[slice, slice, slice], tuple[slice, slice, slice]]


def chunked_tanhmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keep: Tensor | None = None,
    *,
    shift: Tensor | None = None,
    scaling: float,
    dropout: float = 0.0,
) -> Tensor:
    """TanhMax attention of `query` over `key` and `value`, differentiable once in all three and in `shift`.

    Args:
        query: `[batch, heads, queries, head_dim]`; `key` and `value` have `keys` in place of `queries`.
        keep: boolean, `[batch or 1, heads or 1, queries or 1, keys]`, True = attend.
        shift: `[heads, 1, 1]`, added to the scaled scores (`score_shift` of the negative mass), or None.
        scaling: factor on `query @ key^T`.
        dropout: probability in [0, 1) that a coefficient is set to 0, the others growing by `1 / (1 - dropout)`.

    Returns:
        The context, `[batch, heads, queries, head_dim]`, in the dtype of `query`; computed in fp32 or fp64.
    """
    factor = None if keep is None else keep.to(torch.promote_types(query.dtype, torch.float32))
    needs_grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (query, key, value, shift))
    # Up to this length the coefficients take no more memory than query, key, value and context do together, and
    # keeping them spares the backward pass one of its five matrix products and all of its exponentials.
    store = needs_grad and key.shape[2] <= 4 * key.shape[3]
    seed = int(torch.randint(2**62, ())) if dropout > 0 else 0
    return _ChunkedTanhMax.apply(query, key, value, shift, factor, scaling, dropout, seed, store)


class _ChunkedTanhMax(torch.autograd.Function):
    """Forward and backward by pieces: `dS = c ∘ dA - a rowsum(dO ∘ O)`, where `c = cosh(s) / sum cosh(s)`."""

    @staticmethod
    def forward(ctx, query, key, value, shift, factor, scaling, dropout, seed, store):
        batch, heads, queries, _ = query.shape
        # Laid out as [batch, queries, heads, head_dim], so that a model's merging of the heads needs no copy.
        context = query.new_empty(batch, queries, heads, value.shape[3]).transpose(1, 2)
        stored = []
        with torch.autocast(query.device.type, enabled=False):
            for index, (rows, columns) in enumerate(_pieces(query, key, factor)):
                coefficients, floor = _coefficients(query, key, shift, factor, scaling, rows, columns)
                if store:
                    stored += [coefficients, floor]
                if dropout > 0:
                    coefficients = coefficients * _dropout_factors(coefficients, dropout, seed + index)
                context[rows] = coefficients @ _upcast(value[columns])
        ctx.save_for_backward(query, key, value, shift, factor, context, *stored)
        ctx.scaling, ctx.dropout, ctx.seed = scaling, dropout, seed
        return context

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_context):
        query, key, value, shift, factor, context, *stored = ctx.saved_tensors
        grad_query, grad_key, grad_value = (torch.zeros_like(t) for t in (query, key, value))
        grad_shift = None if shift is None else torch.zeros_like(shift)
        with torch.autocast(query.device.type, enabled=False):
            for index, (rows, columns) in enumerate(_pieces(query, key, factor)):
                if stored:
                    coefficients, floor = stored[2 * index : 2 * index + 2]
                else:
                    coefficients, floor = _coefficients(query, key, shift, factor, ctx.scaling, rows, columns)
                grad_output = _upcast(grad_context[rows])
                grad_coefficients = grad_output @ _upcast(value[columns]).mT
                applied = coefficients
                if ctx.dropout > 0:
                    dropout_factors = _dropout_factors(coefficients, ctx.dropout, ctx.seed + index)
                    applied = coefficients * dropout_factors
                    grad_coefficients.mul_(dropout_factors)
                grad_value[columns] += applied.mT @ grad_output
                # c from a, since cosh^2 = 1 + sinh^2: no exponential is needed again.
                grad_scores = torch.addcmul(floor.square(), coefficients, coefficients).sqrt_().mul_(grad_coefficients)
                if factor is not None:
                    grad_scores.mul_(_factor_of(factor, query, rows, columns))
                grad_scores.sub_(coefficients * (grad_output * _upcast(context[rows])).sum(-1, keepdim=True))
                if shift is not None:
                    grad_shift[rows[1]] += grad_scores.sum((0, 2, 3)).view(-1, 1, 1)
                grad_scores.mul_(ctx.scaling)
                grad_query[rows] += grad_scores @ _upcast(key[columns])
                grad_key[columns] += grad_scores.mT @ _upcast(query[rows])
        return grad_query, grad_key, grad_value, grad_shift, None, None, None, None, None


def _coefficients(query, key, shift, factor, scaling, rows, columns) -> tuple[Tensor, Tensor]:
    """One piece's coefficients, and `1 / sum cosh(s)` per row, both `[..., queries, keys or 1]`."""
    scores = (_upcast(query[rows]) * scaling) @ _upcast(key[columns]).mT
    if shift is not None:
        scores += shift[rows[1]]
    if factor is not None:
        factor = _factor_of(factor, query, rows, columns)
    peak = None
    if _all_safe(scores):
        positive = scores.exp_()
        negative = positive.reciprocal()
    else:
        if factor is not None:
            scores = scores.masked_fill(factor == 0, 0)
        peak = scores.abs().amax(-1, keepdim=True)
        negative = (-peak - scores).exp_()
        positive = scores.sub_(peak).exp_()
    if factor is not None:
        positive.mul_(factor)
        negative.mul_(factor)
    total = positive.sum(-1, keepdim=True).add_(negative.sum(-1, keepdim=True))
    if factor is not None:
        total.masked_fill_(total == 0, torch.inf)
    inverse = total.reciprocal_()
    floor = 2 * inverse if peak is None else 2 * inverse * (-peak).exp()
    return positive.sub_(negative).mul_(inverse), floor


def _all_safe(scores: Tensor) -> bool:
    """Whether one exponential and its reciprocal are enough; asking a GPU would cost more than it saves."""
    if scores.device.type != "cpu":
        return False
    low, high = torch.aminmax(scores)
    return bool(low > -SAFE_SCORE) and bool(high < SAFE_SCORE)


def _dropout_factors(coefficients: Tensor, dropout: float, seed: int) -> Tensor:
    """0 with probability `dropout`, else `1 / (1 - dropout)`; the same seed gives the same factors again."""
    generator = torch.Generator(coefficients.device).manual_seed(seed)
    return torch.empty_like(coefficients).bernoulli_(1 - dropout, generator=generator).div_(1 - dropout)


def _pieces(query: Tensor, key: Tensor, factor: Tensor | None) -> Iterator[Piece]:
    """Slices (examples, heads, queries) and (examples, heads, keys) that together cover all scores once."""
    (batch, heads, queries), keys = query.shape[:3], key.shape[2]
    budget = CPU_PIECE if query.device.type == "cpu" else DEVICE_PIECE
    examples = max(1, min(batch, budget // max(1, heads * queries * keys)))
    piece_heads = max(1, min(heads, budget // max(1, queries * keys)))
    piece_queries = queries if piece_heads > 1 else max(1, min(queries, budget // max(1, keys)))
    stops = _last_kept(factor, batch, keys)
    for b in range(0, batch, examples):
        stop = max(stops[b : b + examples])
        for h in range(0, heads, piece_heads):
            for q in range(0, queries, piece_queries):
                block = (slice(b, b + examples), slice(h, h + piece_heads))
                yield (*block, slice(q, q + piece_queries)), (*block, slice(0, stop))


def _last_kept(factor: Tensor | None, batch: int, keys: int) -> list[int]:
    """Per example, how many keys remain when those that no query keeps are cut off at the end; at least 1."""
    if factor is None or factor.device.type != "cpu":
        return [keys] * batch
    used = (factor != 0).flatten(1, 2).any(1).expand(batch, keys)
    return (used * torch.arange(1, keys + 1)).amax(-1).clamp_min(1).tolist()


def _factor_of(factor: Tensor, query: Tensor, rows, columns) -> Tensor:
    """The part of the keep-mask's factors that belongs to one piece, without copying what is broadcast."""
    return factor.expand(*query.shape[:3], -1)[rows][..., columns[2]]


def _upcast(x: Tensor) -> Tensor:
    """fp16 and bf16 as fp32; fp32 and fp64 as they are."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
