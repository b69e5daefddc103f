"""TanhMax attention computed in pieces that stay in the processor's cache, with a backward pass of its own.

The plain path writes and reads the whole `[batch, heads, queries, keys]` score tensor once per elementary operation.
Here each piece goes from scores to context before the next one is begun. Memory beyond inputs and outputs is
therefore linear in the length, and the keys that padding drops at the end of an example are not computed at all.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

# Scores in one piece. On a CPU 2 MiB of fp32, about what a core's caches hold; on other devices it only bounds
# the memory.
CPU_PIECE, DEVICE_PIECE = 2**19, 2**26

# While every |score| is below SMALL_SCORE, four terms of the power series of sinh are exact in fp32; while it is
# below SAFE_SCORE, neither e^s nor a row's sum of cosh(s) leaves the range of fp32.
SMALL_SCORE, SAFE_SCORE = 0.5, 40.0

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
    keep_factor = None if keep is None else keep.to(torch.promote_types(query.dtype, torch.float32))
    needs_grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (query, key, value, shift))
    # Up to this length the coefficients take at most twice the memory of query, key, value and context together, and
    # keeping them spares the backward pass one of its five matrix products and all of its exponentials.
    store = needs_grad and key.shape[2] <= 8 * key.shape[3]
    seed = int(torch.randint(2**62, ())) if dropout > 0 else 0
    return _ChunkedTanhMax.apply(query, key, value, shift, keep_factor, scaling, dropout, seed, store)


class _ChunkedTanhMax(torch.autograd.Function):
    """Forward and backward by pieces: `dS = c ∘ dA - a rowsum(dO ∘ O)`, where `c = cosh(s) / sum cosh(s)`."""

    @staticmethod
    def forward(ctx, query, key, value, shift, keep_factor, scaling, dropout, seed, store):
        batch, heads, queries, _ = query.shape
        # Laid out as [batch, queries, heads, head_dim], so that a model's merging of the heads needs no copy.
        context = query.new_empty(batch, queries, heads, value.shape[3]).transpose(1, 2)
        stored = []
        with torch.autocast(query.device.type, enabled=False):
            for index, (query_block, key_block) in enumerate(_pieces(query, key, keep_factor)):
                coefficients, inverse_normaliser = _coefficients(
                    query, key, shift, keep_factor, scaling, query_block, key_block
                )
                if store:
                    stored += [coefficients, inverse_normaliser]
                if dropout > 0:
                    coefficients = coefficients * _dropout_factors(coefficients, dropout, seed + index)
                context[query_block] = coefficients @ _upcast(value[key_block])
        ctx.save_for_backward(query, key, value, shift, keep_factor, context, *stored)
        ctx.scaling, ctx.dropout, ctx.seed = scaling, dropout, seed
        return context

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_context):
        query, key, value, shift, keep_factor, context, *stored = ctx.saved_tensors
        # Each query is visited once; a key once per block of queries, or never behind the last kept one.
        grad_query, grad_key, grad_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        grad_shift = None if shift is None else torch.zeros_like(shift)
        with torch.autocast(query.device.type, enabled=False):
            for index, (query_block, key_block) in enumerate(_pieces(query, key, keep_factor)):
                if stored:
                    coefficients, inverse_normaliser = stored[2 * index : 2 * index + 2]
                else:
                    coefficients, inverse_normaliser = _coefficients(
                        query, key, shift, keep_factor, ctx.scaling, query_block, key_block
                    )
                grad_output = _upcast(grad_context[query_block])
                grad_coefficients = grad_output @ _upcast(value[key_block]).mT
                applied = coefficients
                if ctx.dropout > 0:
                    dropout_factors = _dropout_factors(coefficients, ctx.dropout, ctx.seed + index)
                    applied = coefficients * dropout_factors
                    grad_coefficients.mul_(dropout_factors)
                accumulate = Tensor.add_ if query_block[2].start else Tensor.copy_
                accumulate(grad_value[key_block], applied.mT @ grad_output)
                # c from a, since cosh^2 = 1 + sinh^2: no exponential is needed again.
                grad_scores = (
                    torch.addcmul(inverse_normaliser.square(), coefficients, coefficients)
                    .sqrt_()
                    .mul_(grad_coefficients)
                )
                if keep_factor is not None:
                    grad_scores.mul_(_factor_of(keep_factor, query, query_block, key_block))
                grad_scores.sub_(coefficients * (grad_output * _upcast(context[query_block])).sum(-1, keepdim=True))
                if shift is not None:
                    grad_shift[query_block[1]] += grad_scores.sum((0, 2, 3)).view(-1, 1, 1)
                grad_scores.mul_(ctx.scaling)
                grad_query[query_block] = grad_scores @ _upcast(key[key_block])
                accumulate(grad_key[key_block], grad_scores.mT @ _upcast(query[query_block]))
        return grad_query, grad_key, grad_value, grad_shift, None, None, None, None, None


def _coefficients(query, key, shift, keep_factor, scaling, query_block, key_block) -> tuple[Tensor, Tensor]:
    """The coefficients `[..., queries, keys]` of one piece, and `1 / sum cosh(s)` per row, `[..., queries, 1]`."""
    scores = (_upcast(query[query_block]) * scaling) @ _upcast(key[key_block]).mT
    if shift is not None:
        scores += shift[query_block[1]]
    if keep_factor is not None:
        keep_factor = _factor_of(keep_factor, query, query_block, key_block)
        scores.mul_(keep_factor)  # sinh(0) = 0: dropped without touching the row's largest score
    sinh, cosh, one = _hyperbolic(scores)
    if keep_factor is not None:
        cosh.mul_(keep_factor)
    total = cosh.sum(-1, keepdim=True)
    if keep_factor is not None:
        total.masked_fill_(total == 0, torch.inf)
    inverse = total.reciprocal_()
    return sinh.mul_(inverse), one * inverse


def _hyperbolic(scores: Tensor) -> tuple[Tensor, Tensor, Tensor | float]:
    """`sinh`, `cosh` and 1 at the scores, all three multiplied by one number per row. Overwrites the scores.

    The largest score of a piece chooses the cheapest way that loses no digits: a power series where all are small
    (`e^s - e^-s` would cancel), one exponential and its reciprocal where none can overflow, else both exponentials
    relative to the row's largest. A GPU always takes the last way: asking it for the largest score would cost more.
    """
    largest = _largest(scores) if scores.device.type == "cpu" else torch.inf
    if largest < SMALL_SCORE:
        square = scores.square()
        series = 1 + square / 72
        for term in (42, 20, 6):
            series = series.mul_(square).div_(term).add_(1)
        sinh = scores.mul_(series)
        return sinh, sinh.square().add_(1).sqrt_(), 1.0
    if largest < SAFE_SCORE:
        positive = scores.exp_()
        negative = positive.reciprocal()
        return positive - negative, negative.add_(positive), 2.0
    magnitude = scores.abs()
    peak = magnitude.amax(-1, keepdim=True)
    weight = (magnitude - peak).exp_()
    decay = magnitude.mul_(-2).expm1_()
    return torch.copysign(weight * decay, scores), decay.add_(2).mul_(weight), 2 * (-peak).exp()


def _largest(scores: Tensor) -> float:
    """The largest absolute score; inf where one is NaN."""
    low, high = torch.aminmax(scores)
    largest = max(-low.item(), high.item())
    return largest if largest == largest else torch.inf


def _dropout_factors(coefficients: Tensor, dropout: float, seed: int) -> Tensor:
    """0 with probability `dropout`, else `1 / (1 - dropout)`; the same seed gives the same factors again."""
    generator = torch.Generator(coefficients.device).manual_seed(seed)
    return torch.empty_like(coefficients).bernoulli_(1 - dropout, generator=generator).div_(1 - dropout)


def _pieces(query: Tensor, key: Tensor, keep_factor: Tensor | None) -> Iterator[Piece]:
    """Slices (examples, heads, queries) and (examples, heads, keys) that together cover all scores once."""
    (batch, heads, queries), keys = query.shape[:3], key.shape[2]
    budget = CPU_PIECE if query.device.type == "cpu" else DEVICE_PIECE
    examples = max(1, min(batch, budget // max(1, heads * queries * keys)))
    piece_heads = max(1, min(heads, budget // max(1, queries * keys)))
    piece_queries = queries if piece_heads > 1 else max(1, min(queries, budget // max(1, keys)))
    stops = _last_kept(keep_factor, batch, keys)
    for b in range(0, batch, examples):
        stop = max(stops[b : b + examples])
        for h in range(0, heads, piece_heads):
            for q in range(0, queries, piece_queries):
                block = (slice(b, b + examples), slice(h, h + piece_heads))
                yield (*block, slice(q, q + piece_queries)), (*block, slice(0, stop))


def _last_kept(keep_factor: Tensor | None, batch: int, keys: int) -> list[int]:
    """Per example, how many keys remain when those that no query keeps are cut off at the end; at least 1."""
    if keep_factor is None or keep_factor.device.type != "cpu":
        return [keys] * batch
    used = (keep_factor != 0).flatten(1, 2).any(1).expand(batch, keys)
    return (used * torch.arange(1, keys + 1)).amax(-1).clamp_min(1).tolist()


def _factor_of(keep_factor: Tensor, query: Tensor, query_block, key_block) -> Tensor:
    """The part of the keep-mask's factors that belongs to one piece, without copying what is broadcast."""
    return keep_factor.expand(*query.shape[:3], -1)[query_block][..., key_block[2]]


def _upcast(x: Tensor) -> Tensor:
    """fp16 and bf16 as fp32; fp32 and fp64 as they are."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
