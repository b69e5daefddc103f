"""TanhMax attention computed in pieces that fit into the processor's cache, with its own backward pass.

The eager path stores and loads the whole `[batch, heads, queries, keys]` score tensor once per elementary operation.
Here each piece is computed from scores to context before the next one starts, forward and backward. Memory beyond
inputs and outputs is therefore linear in the length. Keys to which no query of a piece attends (beyond the diagonal,
outside the window, padding at either end) are skipped, and grouped key heads are not repeated.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .activations import compute_dtype, upcast
from .attention_call import AttentionCall
from .eager_attention import eager_gradients, needs_eager_gradients

# Scores per piece. On a CPU they take 1 MiB in fp32, so that the few tensors of a piece fit into a core's caches; a
# piece has at least one head per thread. On other devices the number only bounds the memory.
CPU_PIECE, DEVICE_PIECE = 2**18, 2**26
# Queries per piece: more multiply faster, fewer skip more keys with causality, a window or a mask.
ROWS, BAND_ROWS = 256, 128

# Scores are kept in base 2: torch computes 2^x several times as fast as e^x on some processors.
LOG2_E = math.log2(math.e)

# The power series of sinh and cosh below are exact for |score| < SMALL_SCORE. For |score| < SAFE_SCORE, neither e^s nor
# a row's sum of cosh(s) overflows fp32.
SMALL_SCORE, SAFE_SCORE = {torch.float32: 0.5, torch.float64: 0.1}, 40.0


class Piece(NamedTuple):
    """Slices of examples, key heads, queries and keys, and by parts of the columns a factor 0 for every masked pair."""

    examples: slice
    heads: slice
    rows: slice
    columns: slice
    factors: list[tuple[slice, Tensor]]

    @property
    def of_queries(self) -> tuple[slice, ...]:
        """Index into a tensor `[batch, key heads, groups, queries, ...]`."""
        return self.examples, self.heads, slice(None), self.rows

    @property
    def of_keys(self) -> tuple[slice, ...]:
        """Index into a tensor `[batch, key heads, keys, ...]`."""
        return self.examples, self.heads, self.columns


def chunked_attention(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, call: AttentionCall) -> Tensor:
    """TanhMax attention, differentiable in query, key, value and the shift of the scores.

    Derivatives beyond the first take the eager path, in memory quadratic in the length.

    Args:
        query: `[batch, heads, queries, head_dim]`; `key` and `value` have `keys` in place of `queries`, and may have
            fewer heads.
        keep: boolean, `[batch or 1, heads or 1, queries or 1, keys]`, True = attend.

    Returns:
        The context, `[batch, heads, queries, value_dim]`, in the dtype of `query`; computed in fp32 or fp64.
    """
    seed = int(torch.randint(2**62, ())) if call.dropout > 0 else 0
    shift = call.shift(query)
    return _Chunked.apply(query, key, value, shift, keep, call, seed, torch.get_num_threads())


class _Chunked(torch.autograd.Function):
    """Forward and backward in pieces: `dS = c ∘ dA - a rowsum(dO ∘ O)`, where `c = cosh(s) / sum cosh(s)`.

    The normaliser is applied to the products of `sinh` and `cosh`, which are smaller than `sinh` and `cosh` themselves.
    """

    @staticmethod
    def forward(ctx, query, key, value, shift, keep, call, seed, threads):
        problem = _Problem(query, key, shift, keep, call, threads)
        # The memory layout is [batch, queries, heads, value_dim], so that merging the heads needs no copy.
        context = query.new_empty(*query.shape[:3:2], query.shape[1], value.shape[3]).transpose(1, 2)
        inverse = query.new_empty(*query.shape[:3], 1, dtype=problem.dtype)
        contexts, inverses, modes = problem.by_group(context), problem.by_group(inverse), []
        with torch.autocast(query.device.type, enabled=False):
            for index, piece in enumerate(problem.pieces()):
                sinh, cosh, mode = problem.hyperbolic(piece)
                total = cosh.sum(-1, keepdim=True)
                if problem.keep is not None:
                    total.masked_fill_(total == 0, torch.inf)
                total = total.reciprocal_()
                if call.dropout > 0:
                    sinh = sinh.mul_(_dropout_factors(sinh, call.dropout, seed + index))
                mixed = (sinh @ upcast(value[piece.of_keys])).mul_(total)
                contexts[piece.of_queries] = mixed.unflatten(2, (problem.groups, -1))
                inverses[piece.of_queries] = total.unflatten(2, (problem.groups, -1))
                modes.append(mode)
        ctx.save_for_backward(query, key, value, shift, keep, context, inverse)
        ctx.call, ctx.seed, ctx.threads, ctx.modes = call, seed, threads, modes
        return context

    @staticmethod
    def backward(ctx, grad_context):
        query, key, value, shift, keep, context, inverse = ctx.saved_tensors
        call, problem = ctx.call, _Problem(query, key, shift, keep, ctx.call, ctx.threads)
        if needs_eager_gradients(grad_context):
            factors = problem.dropout_factors(ctx.seed) if call.dropout > 0 else None
            gradients = eager_gradients((query, key, value), shift, keep, call, grad_context, factors)
            return *gradients, None, None, None, None
        # Each query is in the pieces of one block, a key in any number of blocks, so gradients of keys are summed. The
        # sums are [..., size, keys]: the products added to them then need no transposed copy of a piece.
        grad_query, grad_key, grad_value = torch.empty_like(query), problem.key_sums(key), problem.key_sums(value)
        grad_shift = None if shift is None else torch.zeros_like(shift)
        with torch.autocast(query.device.type, enabled=False):
            grad_context = grad_context * inverse
            delta = problem.by_group((grad_context * context).sum(-1, keepdim=True))
            grad_contexts, grad_queries = problem.by_group(grad_context), problem.by_group(grad_query)
            for index, piece in enumerate(problem.pieces()):
                sinh, cosh, _ = problem.hyperbolic(piece, ctx.modes[index])
                grad_output = grad_contexts[piece.of_queries].flatten(2, 3)
                grad_coefficients = grad_output @ upcast(value[piece.of_keys]).mT
                applied = sinh
                if call.dropout > 0:
                    factors = _dropout_factors(sinh, call.dropout, ctx.seed + index)
                    applied = sinh * factors
                    grad_coefficients.mul_(factors)
                _accumulate(grad_value, piece, grad_output, applied)
                grad_scores = cosh.mul_(grad_coefficients)
                grad_scores.addcmul_(sinh, delta[piece.of_queries].flatten(2, 3), value=-1)
                if shift is not None:
                    summed = grad_scores.unflatten(2, (problem.groups, -1)).sum((0, 3, 4))
                    grad_shift.view(-1, problem.groups)[piece.heads] += summed
                scaled = grad_scores @ upcast(key[piece.of_keys])
                grad_queries[piece.of_queries] = scaled.mul_(call.scaling).unflatten(2, (problem.groups, -1))
                _accumulate(grad_key, piece, problem.scaled_queries(piece), grad_scores)
        grad_key, grad_value = grad_key.mT.to(key.dtype), grad_value.mT.to(value.dtype)
        return grad_query, grad_key, grad_value, grad_shift, None, None, None, None


class _Problem:
    """Computations shared by forward and backward: the pieces, and sinh and cosh of a piece's scores.

    Both passes need the same number of threads, because it determines the pieces.
    """

    def __init__(self, query, key, shift, keep, call: AttentionCall, threads: int):
        self.groups = query.shape[1] // key.shape[1]
        self.query, self.key, self.call = self.by_group(query), key, call
        self.shift = None if shift is None else shift.view(-1, self.groups, 1, 1)
        self.keep = keep if keep is None else keep.unsqueeze(2) if keep.shape[1] == 1 else self.by_group(keep)
        self.on_cpu = query.device.type == "cpu"
        self.threads = min(key.shape[1], threads) if self.on_cpu else 1
        self.dtype = compute_dtype(query.dtype)

    def by_group(self, x: Tensor) -> Tensor:
        """View `[batch, heads, ...]` as `[batch, key heads, groups, ...]`."""
        return x.unflatten(1, (-1, self.groups))

    def key_sums(self, x: Tensor) -> Tensor:
        """Zeros `[batch, key heads, size, keys]` in which the gradient of keys or values `x` is summed."""
        return x.new_zeros(*x.shape[:2], x.shape[3], x.shape[2], dtype=self.dtype)

    def pieces(self) -> Iterator[Piece]:
        """Pieces that together cover all unmasked pairs."""
        (batch, heads, groups, queries), keys = self.query.shape[:4], self.key.shape[2]
        budget = (CPU_PIECE if self.on_cpu else DEVICE_PIECE) // groups
        keys_differ = self.call.banded or (self.keep is not None and self.keep.shape[3] > 1)
        piece_rows = min(queries, BAND_ROWS if keys_differ else ROWS, max(1, 2 * budget // keys))
        for first in range(0, queries, piece_rows):
            rows = slice(first, min(first + piece_rows, queries))
            columns = self.call.reach(rows, keys)
            pairs = (rows.stop - rows.start) * (columns.stop - columns.start)
            piece_heads = heads if budget >= pairs * heads else self.heads_per_piece(budget // pairs)
            examples = max(1, min(batch, budget // (pairs * heads)))
            factors = self.band_factors(rows, columns) if self.keep is None else []
            for b in range(0, batch, examples):
                for h in range(0, heads, piece_heads):
                    piece = Piece(slice(b, b + examples), slice(h, h + piece_heads), rows, columns, factors)
                    yield piece if self.keep is None else self.masked(piece, self.keep)

    def dropout_factors(self, seed: int) -> Tensor:
        """The factors of all pieces, `[batch, heads, queries, keys]`."""
        factors = self.query.new_zeros(*self.query.shape[:4], self.key.shape[2], dtype=self.dtype)
        for index, piece in enumerate(self.pieces()):
            own = factors[piece.of_queries][..., piece.columns]
            own.copy_(_dropout_factors(own.flatten(2, 3), self.call.dropout, seed + index).unflatten(2, own.shape[2:4]))
        return factors.flatten(1, 2)

    def heads_per_piece(self, fitting: int) -> int:
        """The most heads that fit, a multiple of the threads: two threads take as long for three heads as for four."""
        return max(fitting - fitting % self.threads, self.threads)

    def band_factors(self, rows: slice, columns: slice) -> list[tuple[slice, Tensor]]:
        bands = self.call.partial_bands(rows, columns, self.key.device)
        return [(part, band.to(self.dtype)) for part, band in bands]

    def masked(self, piece: Piece, keep: Tensor) -> Piece:
        """The piece with its mask as factors, and without the keys before the first and after the last kept one."""
        examples, heads, rows, columns, _ = piece
        indices = zip((examples, heads, slice(None), rows, columns), keep.shape, strict=True)
        keep = keep[tuple(index if size > 1 else slice(None) for index, size in indices)]
        if self.on_cpu:  # on a GPU, inspecting the mask would force a synchronisation
            used = keep.flatten(0, 3).any(0).nonzero().flatten()[[0, -1]].tolist() if keep.any() else [0, 0]
            keep, first = keep[..., used[0] : used[1] + 1], columns.start
            columns = slice(first + used[0], first + used[1] + 1)
        if self.on_cpu and keep.all():
            return Piece(examples, heads, rows, columns, self.band_factors(rows, columns))
        band = self.call.band(rows, columns, self.key.device)
        mask = keep if band is None else keep & band
        return Piece(examples, heads, rows, columns, [(slice(None), mask.to(self.dtype))])

    def scaled_queries(self, piece: Piece) -> Tensor:
        """`[examples, key heads, groups * rows, head_dim]`."""
        return upcast(self.query[piece.of_queries]).flatten(2, 3) * self.call.scaling

    def hyperbolic(self, piece: Piece, mode: str | None = None) -> tuple[Tensor, Tensor, str]:
        """sinh and cosh of the scores, `[examples, key heads, groups * rows, columns]`, and the mode; 0 where masked.

        sinh and cosh are scaled by one number per row, which depends on the mode; the mode is chosen unless given.
        """
        scores = (self.scaled_queries(piece) * LOG2_E) @ upcast(self.key[piece.of_keys]).mT
        by_group = scores.unflatten(2, (self.groups, -1))
        if self.shift is not None:
            by_group += self.shift[piece.heads] * LOG2_E
        for columns, factor in piece.factors:
            by_group[..., columns].mul_(factor)  # sinh(0) = 0: drops the pair without changing the row's largest score
        mode = _mode(scores) if mode is None else mode
        sinh, cosh = _hyperbolic(scores, mode)
        for columns, factor in piece.factors:
            cosh.unflatten(2, (self.groups, -1))[..., columns].mul_(factor)
        return sinh, cosh, mode


def _accumulate(sums: Tensor, piece: Piece, rows: Tensor, pairs: Tensor) -> None:
    """Add `rows^T pairs` to the sums of a piece's keys. A piece of several examples always has all heads."""
    own = sums[piece.examples, piece.heads]
    own.view(-1, *own.shape[2:])[..., piece.columns].baddbmm_(rows.flatten(0, 1).mT, pairs.flatten(0, 1))


def _mode(scores: Tensor) -> str:
    """The cheapest mode of `_hyperbolic` that is exact for the largest score of a piece.

    On a GPU always "shifted": synchronising to get the largest score would cost more.
    """
    if scores.device.type != "cpu":
        return "shifted"
    low, high = torch.aminmax(scores)
    largest = max(-low.item(), high.item()) / LOG2_E
    if largest < SMALL_SCORE[scores.dtype]:
        return "series"
    return "plain" if largest < SAFE_SCORE else "shifted"  # also for NaN, which compares as False


def _hyperbolic(scores: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """sinh and cosh of scores in base 2, both scaled by one number per row. Overwrites the scores.

    "series" is a power series for small scores, where `e^s - e^-s` would cancel; "plain" one exponential and its
    reciprocal; "shifted" divides by the row's largest exponential, for scores whose exponentials could overflow.
    """
    if mode == "plain":
        positive = scores.exp2_()
        negative = positive.reciprocal()
        sinh = positive.sub_(negative)  # in place, so that no third tensor is allocated
        return sinh, torch.add(sinh, negative, alpha=2, out=negative)
    scores.div_(LOG2_E)
    if mode == "series":
        square = scores.square()
        sinh, cosh = 1 + square / 72, 1 + square / 56
        for sinh_divisor, cosh_divisor in ((42, 30), (20, 12), (6, 2)):
            sinh, cosh = sinh.mul_(square).div_(sinh_divisor).add_(1), cosh.mul_(square).div_(cosh_divisor).add_(1)
        return sinh.mul_(scores), cosh
    magnitude = scores.abs()
    weight = (magnitude - magnitude.amax(-1, keepdim=True)).exp_()
    decay = magnitude.mul_(-2).expm1_()
    return torch.copysign(weight * decay, scores), decay.add_(2).mul_(weight)


def _dropout_factors(coefficients: Tensor, dropout: float, seed: int) -> Tensor:
    """0 with probability `dropout`, else `1 / (1 - dropout)`; determined by the seed."""
    generator = torch.Generator(coefficients.device).manual_seed(seed)
    return torch.empty_like(coefficients).bernoulli_(1 - dropout, generator=generator).div_(1 - dropout)
