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

from hf_bidir.kernels.eager_gradients import eager_gradients, needs_eager_gradients
from hf_bidir.modeling.attention_call import AttentionCall

# Scores per piece. On a CPU they take 1 MiB in fp32, so that the few tensors of a piece fit into a core's caches; a
# piece has at least one head per thread. On other devices the number only bounds the memory.
CPU_PIECE, DEVICE_PIECE = 2**18, 2**26
# Queries per piece: more multiply faster, fewer skip more keys with causality, a window or a mask.
ROWS, BAND_ROWS = 256, 128

# Scores are kept in base 2: torch computes 2^x several times as fast as e^x on some processors.
LOG2_E = math.log2(math.e)
EVERY = slice(None)

# The power series of sinh and cosh below are exact for |score| < SMALL_SCORE. For |score| < SAFE_SCORE, neither e^s nor
# a row's sum of cosh(s) overflows fp32.
SMALL_SCORE, SAFE_SCORE = {torch.float32: 0.5, torch.float64: 0.1}, 40.0


class Piece(NamedTuple):
    """Examples, key heads, queries and keys that are computed at once."""

    of_queries: tuple[slice, slice, slice, slice]  # index into a tensor [batch, key heads, groups, queries, ...]
    of_keys: tuple[slice, slice, slice]  # index into a tensor [batch, key heads, keys, ...]
    factors: list[tuple[slice, Tensor]]  # by parts of the keys, a factor 0 for every masked pair


def chunked_attention(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, call: AttentionCall) -> Tensor:
    """TanhMax attention of checked inputs, as in `bidir_attention`; computed in fp32 or fp64.

    Derivatives beyond the first take the eager path, in memory quadratic in the length.
    """
    if torch.is_autocast_enabled(query.device.type):
        with torch.autocast(query.device.type, enabled=False):
            return chunked_attention(query, key, value, keep, call)
    seed = int(torch.randint(2**62, ())) if call.dropout > 0 else 0
    mass = call.negative_mass
    shift = None if type(mass) is float and mass == 1 else call.shift(query)
    return _Chunked.apply(query, key, value, shift, keep, call, seed, torch.get_num_threads())


class _Chunked(torch.autograd.Function):
    """Forward and backward in pieces: `dS = c ∘ dA - a rowsum(dO ∘ O)`, where `c = cosh(s) / sum cosh(s)`.

    The normaliser is applied to the products of `sinh` and `cosh`, which are smaller than `sinh` and `cosh` themselves.
    """

    @staticmethod
    def forward(ctx, query, key, value, shift, keep, call, seed, threads):
        problem = _Problem(query, key, shift, keep, call, threads)
        batch, heads, groups, queries, _ = problem.query.shape
        # The memory layout is [batch, queries, heads, value_dim], so that merging the heads needs no copy.
        context = query.new_empty(batch, queries, heads, groups, value.shape[3])
        contexts = context.permute(0, 2, 3, 1, 4)
        inverses = query.new_empty(batch, heads, groups, queries, 1, dtype=problem.dtype)
        modes = []
        for index, piece in enumerate(problem.pieces()):
            sinh, cosh, mode = problem.hyperbolic(piece)
            total = cosh.sum(-1, keepdim=True)
            if keep is not None:
                total.masked_fill_(total == 0, torch.inf)
            total = total.reciprocal_()
            if call.dropout > 0:
                sinh = sinh.mul_(_dropout_factors(sinh, call.dropout, seed + index))
            mixed = (sinh @ value[piece.of_keys].to(problem.dtype)).mul_(total)
            contexts[piece.of_queries] = mixed.view(*mixed.shape[:2], groups, -1, mixed.shape[3])
            inverses[piece.of_queries] = total.view(*total.shape[:2], groups, -1, 1)
            modes.append(mode)
        context, inverse = context.flatten(2, 3).transpose(1, 2), inverses.flatten(1, 2)
        ctx.save_for_backward(query, key, value, shift, keep, context, inverse)
        ctx.call, ctx.seed, ctx.threads, ctx.modes = call, seed, threads, modes
        return context

    @staticmethod
    def backward(ctx, grad_context):
        query, key, value, shift, keep, context, inverse = ctx.saved_tensors
        if torch.is_autocast_enabled(query.device.type):
            with torch.autocast(query.device.type, enabled=False):
                return _Chunked.backward(ctx, grad_context)
        call, problem = ctx.call, _Problem(query, key, shift, keep, ctx.call, ctx.threads)
        if needs_eager_gradients(grad_context):
            factors = problem.dropout_factors(ctx.seed) if call.dropout > 0 else None
            gradients = eager_gradients((query, key, value), shift, keep, call, grad_context, factors)
            return *gradients, None, None, None, None
        batch, heads, groups, queries, _ = problem.query.shape
        grouped, dtype = (batch, heads, groups, queries, -1), problem.dtype
        # Each query is in the pieces of one block, a key in any number of blocks, so gradients of keys are summed. The
        # sums are [..., size, keys]: the products added to them then need no transposed copy of a piece.
        grad_key = key.new_zeros(batch, heads, key.shape[3], key.shape[2], dtype=dtype)
        grad_value = value.new_zeros(batch, heads, value.shape[3], value.shape[2], dtype=dtype)
        grad_query = torch.empty_like(query)
        grad_shift = None if shift is None else torch.zeros_like(shift)
        grad_context = grad_context * inverse
        deltas = (grad_context * context).sum(-1, keepdim=True).view(grouped)
        grad_contexts, grad_queries = grad_context.view(grouped), grad_query.view(grouped)
        for index, piece in enumerate(problem.pieces()):
            sinh, cosh, _ = problem.hyperbolic(piece, ctx.modes[index])
            grad_output = grad_contexts[piece.of_queries].flatten(2, 3)
            grad_coefficients = grad_output @ value[piece.of_keys].to(dtype).mT
            applied = sinh
            if call.dropout > 0:
                factors = _dropout_factors(sinh, call.dropout, ctx.seed + index)
                applied = sinh * factors
                grad_coefficients.mul_(factors)
            _accumulate(grad_value, piece, grad_output, applied)
            grad_scores = cosh.mul_(grad_coefficients)
            grad_scores.addcmul_(sinh, deltas[piece.of_queries].flatten(2, 3), value=-1)
            if shift is not None:
                summed = grad_scores.unflatten(2, (groups, -1)).sum((0, 3, 4))
                grad_shift.view(-1, groups)[piece.of_keys[1]] += summed
            scaled = (grad_scores @ key[piece.of_keys].to(dtype)).mul_(call.scaling)
            grad_queries[piece.of_queries] = scaled.view(*scaled.shape[:2], groups, -1, scaled.shape[3])
            scaled_queries = problem.query[piece.of_queries].to(dtype).flatten(2, 3) * call.scaling
            _accumulate(grad_key, piece, scaled_queries, grad_scores)
        grad_key, grad_value = grad_key.mT.to(key.dtype), grad_value.mT.to(value.dtype)
        return grad_query, grad_key, grad_value, grad_shift, None, None, None, None


class _Problem:
    """Computations shared by forward and backward: the pieces, and sinh and cosh of a piece's scores.

    Both passes need the same number of threads, because it determines the pieces.
    """

    def __init__(self, query, key, shift, keep, call: AttentionCall, threads: int):
        (batch, heads, queries, size), key_heads = query.shape, key.shape[1]
        self.groups, self.call, self.banded, self.key = heads // key_heads, call, call.banded, key
        self.query = query.view(batch, key_heads, self.groups, queries, size)
        self.shift = None if shift is None else shift.view(-1, self.groups, 1, 1)
        self.keep = keep
        if keep is not None:
            self.keep = keep.unsqueeze(2) if keep.shape[1] == 1 else keep.unflatten(1, (-1, self.groups))
        self.on_cpu = query.device.type == "cpu"
        self.threads = min(key_heads, threads) if self.on_cpu else 1
        self.dtype = torch.promote_types(query.dtype, torch.float32)

    def pieces(self) -> Iterator[Piece]:
        """Pieces that together cover all unmasked pairs."""
        (batch, heads, groups, queries), keys, call = self.query.shape[:4], self.key.shape[2], self.call
        budget = (CPU_PIECE if self.on_cpu else DEVICE_PIECE) // groups
        keys_differ = self.banded or (self.keep is not None and self.keep.shape[3] > 1)
        piece_rows = min(queries, BAND_ROWS if keys_differ else ROWS, max(1, 2 * budget // keys))
        for first in range(0, queries, piece_rows):
            rows = slice(first, min(first + piece_rows, queries))
            in_reach = reach(call, rows, keys) if self.banded else slice(0, keys)
            pairs = (rows.stop - rows.start) * (in_reach.stop - in_reach.start)
            piece_heads = heads if budget >= pairs * heads else self.heads_per_piece(budget // pairs)
            examples = max(1, min(batch, budget // (pairs * heads)))
            columns, factors = in_reach, []
            if self.banded and self.keep is None:
                factors = self.band_factors(rows, in_reach)
            for b in range(0, batch, examples):
                for h in range(0, heads, piece_heads):
                    part = slice(b, b + examples), slice(h, h + piece_heads)
                    if self.keep is not None:
                        columns, factors = self.masked(self.keep, *part, rows, in_reach)
                    yield Piece((*part, EVERY, rows), (*part, columns), factors)

    def dropout_factors(self, seed: int) -> Tensor:
        """The factors of all pieces, `[batch, heads, queries, keys]`."""
        factors = self.query.new_zeros(*self.query.shape[:4], self.key.shape[2], dtype=self.dtype)
        for index, piece in enumerate(self.pieces()):
            own = factors[piece.of_queries][..., piece.of_keys[2]]
            own.copy_(_dropout_factors(own.flatten(2, 3), self.call.dropout, seed + index).unflatten(2, own.shape[2:4]))
        return factors.flatten(1, 2)

    def heads_per_piece(self, fitting: int) -> int:
        """The most heads that fit, a multiple of the threads: two threads take as long for three heads as for four."""
        return max(fitting - fitting % self.threads, self.threads)

    def band_factors(self, rows: slice, columns: slice) -> list[tuple[slice, Tensor]]:
        bands = partial_bands(self.call, rows, columns, self.key.device)
        return [(part, band.to(self.dtype)) for part, band in bands]

    def masked(
        self, keep: Tensor, examples: slice, heads: slice, rows: slice, columns: slice
    ) -> tuple[slice, list[tuple[slice, Tensor]]]:
        """The columns without those before the first and after the last kept key, and the mask as factors."""
        keep = keep[
            examples if keep.shape[0] > 1 else EVERY, heads if keep.shape[1] > 1 else EVERY, :,
            rows if keep.shape[3] > 1 else EVERY, columns,
        ]  # fmt: skip
        call = self.call
        if self.on_cpu:  # on a GPU, inspecting the mask would force a synchronisation
            used = keep.flatten(0, 3).any(0).nonzero().flatten()[[0, -1]].tolist() if keep.any() else [0, 0]
            keep, first = keep[..., used[0] : used[1] + 1], columns.start
            columns = slice(first + used[0], first + used[1] + 1)
            if keep.all():
                return columns, self.band_factors(rows, columns) if self.banded else []
        if self.banded:
            band = call.band(rows, columns, self.key.device)
            keep = keep if band is None else keep & band
        return columns, [(EVERY, keep.to(self.dtype))]

    def hyperbolic(self, piece: Piece, mode: str | None = None) -> tuple[Tensor, Tensor, str]:
        """sinh and cosh of the scores, `[examples, key heads, groups * rows, columns]`, and the mode; 0 where masked.

        sinh and cosh are scaled by one number per row, which depends on the mode; the mode is chosen unless given.
        """
        queries = self.query[piece.of_queries].to(self.dtype).flatten(2, 3)
        scores = (queries * (self.call.scaling * LOG2_E)) @ self.key[piece.of_keys].to(self.dtype).mT
        grouped = (*scores.shape[:2], self.groups, -1, scores.shape[3])
        by_group = scores.view(grouped)
        if self.shift is not None:
            by_group += self.shift[piece.of_keys[1]] * LOG2_E
        for columns, factor in piece.factors:
            by_group[..., columns].mul_(factor)  # sinh(0) = 0: drops the pair without changing the row's largest score
        mode = _mode(scores) if mode is None else mode
        sinh, cosh = _hyperbolic(scores, mode)
        for columns, factor in piece.factors:
            cosh.view(grouped)[..., columns].mul_(factor)
        return sinh, cosh, mode


def _accumulate(sums: Tensor, piece: Piece, rows: Tensor, pairs: Tensor) -> None:
    """Add `rows^T pairs` to the sums of a piece's keys. A piece of several examples always has all heads."""
    examples, heads, columns = piece.of_keys
    own = sums[examples, heads]
    own.view(-1, *own.shape[2:])[..., columns].baddbmm_(rows.flatten(0, 1).mT, pairs.flatten(0, 1))


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


def partial_bands(
    call: AttentionCall, rows: slice, columns: slice, device: torch.device
) -> Iterator[tuple[slice, Tensor]]:
    """The parts of `columns`, relative to its start, in which `band` drops a pair, each with its band."""
    if not call.banded:
        return
    # no pair is dropped between `first` and `last`; both may lie outside the columns if a mask leaves only a few
    first = columns.start if call.window is None else max(columns.start, rows.stop - 1 - call.window)
    first = min(first, columns.stop)
    last = min(columns.stop, rows.start + 1 if call.causal else rows.start + 1 + (call.window or 0))
    for part in (slice(columns.start, first), slice(max(first, last), columns.stop)):
        if part.start < part.stop and (band := call.band(rows, part, device)) is not None:
            shifted = slice(part.start - columns.start, part.stop - columns.start)
            yield shifted, band


def reach(call: AttentionCall, rows: slice, keys: int) -> slice:
    """The keys that at least one of these queries may attend to."""
    first = 0 if call.window is None else max(0, rows.start - call.window)
    last = keys if call.window is None else min(keys, rows.stop + call.window)
    return slice(first, min(last, rows.stop) if call.causal else last)
