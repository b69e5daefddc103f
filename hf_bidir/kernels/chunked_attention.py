"""TanhMax attention computed in pieces that fit into the processor's cache, with its own backward pass.

The eager path stores and loads the whole `[batch, heads, queries, keys]` score tensor once per elementary operation.
Here each piece is computed from scores to context before the next one starts, forward and backward. Memory beyond
inputs and outputs is therefore linear in the length. Keys to which no query of a piece attends (beyond the diagonal,
outside the window, padding at either end) are skipped, and grouped key heads are not repeated.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hf_bidir.modeling.activations import compute_dtype
from hf_bidir.modeling.attention_call import AttentionCall

# Scores per piece. On a CPU they take 1 MiB in fp32, so that the few tensors of a piece fit into a core's caches; a
# piece has at least one head per thread. On other devices the number only bounds the memory.
CPU_PIECE, DEVICE_PIECE = 2**18, 2**26
# Queries per piece: more multiply faster, fewer skip more keys with causality, a window or a mask.
ROWS, BAND_ROWS = 256, 128
LOG2_E = math.log2(math.e)  # torch computes 2^x several times as fast as e^x on some processors
SMALL_SCORE = 0.5  # below it, e^s - e^-s cancels
SAFE_SCORE = 40.0  # below it, neither e^s nor a row's sum of cosh(s) overflows fp32
EVERY = slice(None)


def chunked_attention(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, call: AttentionCall) -> Tensor:
    """TanhMax attention of checked inputs, as in `bidir_attention`; computed in fp32 or fp64, differentiable once."""
    seed = int(torch.randint(2**62, ())) if call.dropout > 0 else 0
    plan = Plan(keep, call, seed, torch.get_num_threads())
    with torch.autocast(query.device.type, enabled=False):
        return _Chunked.apply(query, key, value, call.shift(query), plan)


def refuse_second_derivatives() -> None:
    """Raise RuntimeError in a backward pass with `create_graph=True`."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "this implementation of signed attention has first derivatives only, and create_graph=True asks for "
            'second ones; use implementation="eager", or in a model attn_implementation="eager".'
        )


@dataclass(frozen=True)
class Plan:
    """What forward and backward need besides tensors with gradients; the number of threads determines the pieces."""

    keep: Tensor | None
    call: AttentionCall
    seed: int
    threads: int


class Piece(NamedTuple):
    """Examples, key heads, queries and keys that are computed at once."""

    of_queries: tuple[slice, slice, slice, slice]  # index into a tensor [batch, key heads, groups, queries, ...]
    of_keys: tuple[slice, slice, slice]  # index into a tensor [batch, key heads, keys, ...]
    factors: list[tuple[slice, Tensor]]  # by parts of the keys, a factor 0 for every masked pair


class _Chunked(torch.autograd.Function):
    """Forward and backward in pieces: `dS = c ∘ dA - a rowsum(dO ∘ O)`, where `c = cosh(s) / sum cosh(s)`.

    The normaliser is applied to the products of `sinh` and `cosh`, which are smaller than `sinh` and `cosh` themselves.
    """

    @staticmethod
    def forward(ctx, query, key, value, shift, plan):
        problem = _Problem(query, key, shift, plan)
        batch, heads, groups, queries, _ = problem.query.shape
        # The memory layout is [batch, queries, heads, value_dim], so that merging the heads needs no copy.
        context = query.new_empty(batch, queries, heads, groups, value.shape[3])
        contexts = context.permute(0, 2, 3, 1, 4)
        inverses = query.new_empty(batch, heads, groups, queries, 1, dtype=problem.dtype)
        modes = []
        for index, piece in enumerate(problem.pieces()):
            sinh, cosh, mode = problem.hyperbolic(piece)
            total = cosh.sum(-1, keepdim=True)
            if plan.keep is not None:
                total.masked_fill_(total == 0, torch.inf)
            inverse = total.reciprocal_()
            if plan.call.dropout > 0:
                sinh.mul_(problem.dropout_factors(sinh, index))
            mixed = (sinh @ value[piece.of_keys].to(problem.dtype)).mul_(inverse)
            contexts[piece.of_queries] = problem.by_group(mixed)
            inverses[piece.of_queries] = problem.by_group(inverse)
            modes.append(mode)
        context = context.flatten(2, 3).transpose(1, 2)
        ctx.save_for_backward(query, key, value, shift, context, inverses.flatten(1, 2))
        ctx.plan, ctx.modes = plan, modes
        return context

    @staticmethod
    def backward(ctx, grad_context):
        refuse_second_derivatives()
        with torch.autocast(grad_context.device.type, enabled=False):
            return *_gradients(ctx, grad_context), None


def _gradients(ctx, grad_context: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of query, key, value and shift."""
    query, key, value, shift, context, inverse = ctx.saved_tensors
    plan = ctx.plan
    problem = _Problem(query, key, shift, ctx.plan)
    # Each query is in the pieces of one block, a key in any number of blocks, so gradients of keys are summed. The
    # sums are [..., size, keys]: the products added to them then need no transposed copy of a piece.
    grad_key = key.mT.new_zeros(key.mT.shape, dtype=problem.dtype)
    grad_value = value.mT.new_zeros(value.mT.shape, dtype=problem.dtype)
    grad_query = torch.empty_like(query)
    grad_shift = None if shift is None else torch.zeros_like(shift)
    grad_context = grad_context * inverse
    deltas = problem.grouped((grad_context * context).sum(-1, keepdim=True))
    grad_contexts = problem.grouped(grad_context)
    grad_queries = problem.grouped(grad_query)
    for index, piece in enumerate(problem.pieces()):
        sinh, cosh, _ = problem.hyperbolic(piece, ctx.modes[index])
        grad_output = grad_contexts[piece.of_queries].flatten(2, 3)
        grad_coefficients = grad_output @ value[piece.of_keys].to(problem.dtype).mT
        applied = sinh
        if plan.call.dropout > 0:
            factors = problem.dropout_factors(sinh, index)
            applied = sinh * factors
            grad_coefficients.mul_(factors)
        _accumulate(grad_value, piece, grad_output, applied)
        grad_scores = cosh.mul_(grad_coefficients)
        grad_scores.addcmul_(sinh, deltas[piece.of_queries].flatten(2, 3), value=-1)
        if grad_shift is not None:
            summed = problem.by_group(grad_scores).sum((0, 3, 4))
            grad_shift.view(-1, problem.groups)[piece.of_keys[1]] += summed
        scaled = (grad_scores @ key[piece.of_keys].to(problem.dtype)).mul_(plan.call.scaling)
        grad_queries[piece.of_queries] = problem.by_group(scaled)
        scaled_queries = problem.query[piece.of_queries].to(problem.dtype).flatten(2, 3) * plan.call.scaling
        _accumulate(grad_key, piece, scaled_queries, grad_scores)
    return grad_query, grad_key.mT.to(key.dtype), grad_value.mT.to(value.dtype), grad_shift


def _accumulate(sums: Tensor, piece: Piece, rows: Tensor, pairs: Tensor) -> None:
    """Add `rows^T pairs` to the sums of a piece's keys. A piece of several examples always has all heads."""
    examples, heads, columns = piece.of_keys
    part = sums[examples, heads]
    part.view(-1, *part.shape[2:])[..., columns].baddbmm_(rows.flatten(0, 1).mT, pairs.flatten(0, 1))


class _Problem:
    """Computations shared by forward and backward: the pieces, and sinh and cosh of a piece's scores."""

    def __init__(self, query: Tensor, key: Tensor, shift: Tensor | None, plan: Plan):
        self.groups = query.shape[1] // key.shape[1]
        self.plan = plan
        self.call = plan.call
        self.key = key
        self.query = self.grouped(query)
        self.shift = None if shift is None else shift.view(-1, self.groups, 1, 1)
        self.keep = plan.keep
        if self.keep is not None:
            self.keep = self.keep.unsqueeze(2) if self.keep.shape[1] == 1 else self.grouped(self.keep)
        self.on_cpu = query.device.type == "cpu"
        self.threads = min(key.shape[1], plan.threads) if self.on_cpu else 1
        self.dtype = compute_dtype(query.dtype)

    def grouped(self, x: Tensor) -> Tensor:
        """`[batch, heads, ...]` as `[batch, key heads, groups, ...]`."""
        return x.view(x.shape[0], -1, self.groups, *x.shape[2:])

    def by_group(self, x: Tensor) -> Tensor:
        """`[examples, key heads, groups * rows, ...]` of a piece as `[examples, key heads, groups, rows, ...]`."""
        return x.view(*x.shape[:2], self.groups, -1, x.shape[3])

    def pieces(self) -> Iterator[Piece]:
        """Pieces that together cover all unmasked pairs."""
        batch, heads, groups, queries, _ = self.query.shape
        keys, call = self.key.shape[2], self.call
        budget = (CPU_PIECE if self.on_cpu else DEVICE_PIECE) // groups
        keys_differ = call.banded or (self.keep is not None and self.keep.shape[3] > 1)
        piece_rows = min(queries, BAND_ROWS if keys_differ else ROWS, max(1, 2 * budget // keys))
        for first in range(0, queries, piece_rows):
            rows = slice(first, min(first + piece_rows, queries))
            columns = reach(call, rows, keys)
            pairs = (rows.stop - rows.start) * (columns.stop - columns.start)
            examples = budget // (pairs * heads)
            piece_heads = heads
            if examples == 0:  # two threads take as long for three heads as for four
                fitting = budget // pairs
                examples = 1
                piece_heads = max(fitting - fitting % self.threads, self.threads)
            band = self.band_factors(rows, columns) if self.keep is None else []
            for b in range(0, batch, examples):
                for h in range(0, heads, piece_heads):
                    part = slice(b, b + examples), slice(h, h + piece_heads)
                    kept, factors = columns, band
                    if self.keep is not None:
                        kept, factors = self.masked((*part, slice(0, groups), rows, columns))
                    yield Piece((*part, EVERY, rows), (*part, kept), factors)

    def masked(self, index: tuple[slice, ...]) -> tuple[slice, list[tuple[slice, Tensor]]]:
        """The columns without those before the first and after the last kept key, and the mask as factors.

        Args:
            index: of a piece in `[batch, key heads, groups, queries, keys]`.
        """
        rows, columns = index[3:]
        keep = self.keep
        for axis, part in enumerate(index):
            if keep.shape[axis] > 1:
                keep = keep.narrow(axis, part.start, min(part.stop, keep.shape[axis]) - part.start)
        if self.on_cpu:  # on a GPU, inspecting the mask would force a synchronisation
            used = keep.flatten(0, 3).any(0).nonzero().flatten().tolist() or [0]
            keep = keep[..., used[0] : used[-1] + 1]
            columns = slice(columns.start + used[0], columns.start + used[-1] + 1)
            if keep.all():
                return columns, self.band_factors(rows, columns)
        band = self.call.band(rows, columns, self.key.device)
        keep = keep if band is None else keep & band
        return columns, [(EVERY, keep.to(self.dtype))]

    def band_factors(self, rows: slice, columns: slice) -> list[tuple[slice, Tensor]]:
        """The part of `columns`, relative to its start, in which causality or the window drops a pair."""
        first = columns.start
        if self.call.window is None:  # up to the diagonal, causality drops no pair
            first = max(first, rows.start + 1)
        if not self.call.banded or first >= columns.stop:
            return []
        band = self.call.band(rows, slice(first, columns.stop), self.key.device)
        return [(slice(first - columns.start, None), band.to(self.dtype))]

    def hyperbolic(self, piece: Piece, mode: str | None = None) -> tuple[Tensor, Tensor, str]:
        """sinh and cosh of the scores, `[examples, key heads, groups * rows, columns]`, and the mode; 0 where masked.

        sinh and cosh are scaled by one number per row, which depends on the mode; the mode is chosen unless given.
        """
        queries = self.query[piece.of_queries].to(self.dtype).flatten(2, 3)
        scores = (queries * (self.call.scaling * LOG2_E)) @ self.key[piece.of_keys].to(self.dtype).mT
        by_group = self.by_group(scores)
        if self.shift is not None:
            by_group += self.shift[piece.of_keys[1]] * LOG2_E
        for columns, factor in piece.factors:
            by_group[..., columns].mul_(factor)  # sinh(0) = 0: drops the pair without changing the row's largest score
        mode = _mode(scores) if mode is None else mode
        sinh, cosh = _hyperbolic(scores, mode)
        for columns, factor in piece.factors:
            self.by_group(cosh)[..., columns].mul_(factor)
        return sinh, cosh, mode

    def dropout_factors(self, coefficients: Tensor, index: int) -> Tensor:
        """0 with the probability of dropout, else `1 / (1 - dropout)`, for the coefficients of a piece."""
        generator = torch.Generator(coefficients.device).manual_seed(self.plan.seed + index)
        kept = 1 - self.call.dropout
        return torch.empty_like(coefficients).bernoulli_(kept, generator=generator).div_(kept)


def _mode(scores: Tensor) -> str:
    """The cheapest mode of `_hyperbolic` that is exact for the largest score of a piece.

    On a GPU always "shifted": synchronising to get the largest score would cost more.
    """
    if scores.device.type != "cpu":
        return "shifted"
    low, high = torch.aminmax(scores)
    largest = max(-low.item(), high.item()) / LOG2_E
    if largest < SMALL_SCORE:
        return "small"
    return "plain" if largest < SAFE_SCORE else "shifted"  # also for NaN, which compares as False


def _hyperbolic(scores: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """sinh and cosh of scores in base 2, both scaled by one number per row. Overwrites the scores.

    "small" computes `e^s - 1`, where `e^s - e^-s` would cancel; "plain" one exponential and its reciprocal; "shifted"
    divides by the row's largest exponential, for scores whose exponentials could overflow.
    """
    if mode == "plain":
        positive = scores.exp2_()
        negative = positive.reciprocal()
        sinh = positive.sub_(negative)  # in place, so that no third tensor is allocated
        return sinh, torch.add(sinh, negative, alpha=2, out=negative)
    scores.div_(LOG2_E)
    if mode == "small":
        above_one = scores.expm1_()
        below_one = above_one / (above_one + 1)  # 1 - e^-s
        return (above_one + below_one).div_(2), above_one.sub_(below_one).div_(2).add_(1)
    magnitude = scores.abs()
    weight = (magnitude - magnitude.amax(-1, keepdim=True)).exp_()
    decay = magnitude.mul_(-2).expm1_()
    return torch.copysign(weight * decay, scores), decay.add_(2).mul_(weight)


def reach(call: AttentionCall, rows: slice, keys: int) -> slice:
    """The keys that at least one of these queries may attend to."""
    first, last = 0, keys
    if call.window is not None:
        first = max(0, rows.start - call.window)
        last = min(keys, rows.stop + call.window)
    return slice(first, min(last, rows.stop) if call.causal else last)
