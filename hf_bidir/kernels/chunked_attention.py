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


def chunked_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keep: Tensor | None,
    call: AttentionCall,
) -> Tensor:
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
    masked: slice  # of these keys
    factor: Tensor | None  # 0 for every masked pair of them, else 1


class _Chunked(torch.autograd.Function):
    """Forward and backward in pieces: `dS = c ∘ dA - a rowsum(dO ∘ O)`, where `c = cosh(s) / sum cosh(s)`.

    The normaliser is applied to the products of `sinh` and `cosh`, which are smaller than `sinh` and `cosh` themselves.
    """

    @staticmethod
    def forward(ctx, query, key, value, shift, plan):
        problem = _Problem(query, key, shift, plan)
        batch, heads, queries, _ = query.shape
        # The memory layout is [batch, queries, heads, value_dim], so that merging the heads needs no copy.
        context = query.new_empty(batch, queries, heads, value.shape[3]).transpose(1, 2)
        inverse = query.new_empty(batch, heads, queries, 1, dtype=problem.dtype)
        contexts = problem.grouped(context)
        inverses = problem.grouped(inverse)
        ctx.plain = []  # by piece
        for index, piece in enumerate(problem.pieces()):
            scores = problem.scores(piece)
            plain = _is_plain(scores)
            sinh, cosh = problem.hyperbolic(scores, piece, plain)
            total = cosh.sum(-1, keepdim=True)
            if plan.keep is not None:
                total.masked_fill_(total == 0, torch.inf)
            of_piece = total.reciprocal_()
            if plan.call.dropout > 0:
                sinh.mul_(problem.dropout_factors(sinh, index))
            mixed = (sinh @ value[piece.of_keys].to(problem.dtype)).mul_(of_piece)
            contexts[piece.of_queries] = problem.by_group(mixed)
            inverses[piece.of_queries] = problem.by_group(of_piece)
            ctx.plain.append(plain)
        ctx.save_for_backward(query, key, value, shift, context, inverse)
        ctx.plan = plan
        return context

    @staticmethod
    def backward(ctx, grad_context):
        refuse_second_derivatives()
        with torch.autocast(grad_context.device.type, enabled=False):
            return *_gradients(ctx, grad_context), None


def _gradients(ctx, grad_context: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of query, key, value and shift."""
    query, key, value, shift, context, inverse = ctx.saved_tensors
    call = ctx.plan.call
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
        sinh, cosh = problem.hyperbolic(problem.scores(piece), piece, ctx.plain[index])
        grad_output = grad_contexts[piece.of_queries].flatten(2, 3)
        grad_coefficients = grad_output @ value[piece.of_keys].to(problem.dtype).mT
        applied = sinh
        if call.dropout > 0:
            factors = problem.dropout_factors(sinh, index)
            applied = sinh * factors
            grad_coefficients.mul_(factors)
        _accumulate(grad_value, piece, grad_output, applied)
        grad_scores = cosh.mul_(grad_coefficients)
        grad_scores.addcmul_(sinh, deltas[piece.of_queries].flatten(2, 3), value=-1)
        if grad_shift is not None:
            summed = problem.by_group(grad_scores).sum((0, 3, 4))
            grad_shift.view(-1, problem.groups)[piece.of_keys[1]] += summed
        scaled = (grad_scores @ key[piece.of_keys].to(problem.dtype)).mul_(call.scaling)
        grad_queries[piece.of_queries] = problem.by_group(scaled)
        _accumulate(grad_key, piece, problem.rows(piece) * call.scaling, grad_scores)
    return grad_query, grad_key.mT.to(key.dtype), grad_value.mT.to(value.dtype), grad_shift


def _accumulate(sums: Tensor, piece: Piece, rows: Tensor, pairs: Tensor) -> None:
    """Add `rows^T pairs` to the sums of a piece's keys. A piece of several examples always has all heads."""
    examples, heads, columns = piece.of_keys
    part = sums[examples, heads]
    part = part.view(-1, *part.shape[2:])[..., columns]
    part.baddbmm_(rows.flatten(0, 1).mT, pairs.flatten(0, 1))


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
        self.dtype = compute_dtype(query.dtype)

    def grouped(self, x: Tensor) -> Tensor:
        """`[batch, heads, ...]` as `[batch, key heads, groups, ...]`."""
        return x.view(x.shape[0], -1, self.groups, *x.shape[2:])

    def by_group(self, x: Tensor) -> Tensor:
        """`[examples, key heads, groups * rows, ...]` of a piece as `[examples, key heads, groups, rows, ...]`."""
        return x.view(*x.shape[:2], self.groups, -1, x.shape[3])

    def pieces(self) -> Iterator[Piece]:
        """Pieces that together cover all unmasked pairs."""
        batch, heads, _, queries, _ = self.query.shape
        keys = self.key.shape[2]
        budget = (CPU_PIECE if self.on_cpu else DEVICE_PIECE) // self.groups
        keys_differ = self.call.banded or (self.keep is not None and self.keep.shape[3] > 1)
        piece_rows = min(queries, BAND_ROWS if keys_differ else ROWS, max(1, 2 * budget // keys))
        for first in range(0, queries, piece_rows):
            rows = slice(first, min(first + piece_rows, queries))
            columns = reach(self.call, rows, keys)
            band = self.band(rows, columns) if self.keep is None else (EVERY, None)
            scores = (rows.stop - first) * (columns.stop - columns.start)
            examples, piece_heads = self.fitting(budget // scores)
            for b in range(0, batch, examples):
                for h in range(0, heads, piece_heads):
                    part = slice(b, b + examples), slice(h, h + piece_heads)
                    kept, mask = columns, band
                    if self.keep is not None:
                        kept, mask = self.masked(self.keep, (*part, EVERY, rows, columns))
                    yield Piece((*part, EVERY, rows), (*part, kept), *mask)

    def fitting(self, count: int) -> tuple[int, int]:
        """The examples and heads of a piece in which `count` heads fit: all heads, or heads of one example."""
        heads = self.key.shape[1]
        threads = min(heads, self.plan.threads) if self.on_cpu else 1
        if count >= heads:
            return count // heads, heads
        return 1, max(count - count % threads, threads)  # two threads take as long for three heads as for four

    def masked(
        self,
        keep: Tensor,
        index: tuple[slice, ...],
    ) -> tuple[slice, tuple[slice, Tensor | None]]:
        """The columns without those before the first and after the last kept key, and the mask as a factor.

        Args:
            index: of a piece in `[batch, key heads, groups, queries, keys]`.
        """
        rows, columns = index[3:]
        sizes = zip(index, keep.shape, strict=True)
        keep = keep[tuple(part if size > 1 else EVERY for part, size in sizes)]
        if self.on_cpu:  # on a GPU, inspecting the mask would force a synchronisation
            by_key = keep.flatten(0, 3).any(0)
            used = by_key.nonzero().flatten().tolist() or [0]
            keep = keep[..., used[0] : used[-1] + 1]
            columns = slice(columns.start + used[0], columns.start + used[-1] + 1)
            if keep.all():
                return columns, self.band(rows, columns)
        band = self.call.band(rows, columns, self.key.device)
        keep = keep if band is None else keep & band
        return columns, (EVERY, keep.to(self.dtype))

    def band(self, rows: slice, columns: slice) -> tuple[slice, Tensor | None]:
        """The part of `columns`, relative to its start, in which causality or the window drops a pair; and a factor."""
        first = columns.start
        if self.call.window is None:  # up to the diagonal, causality drops no pair
            first = max(first, rows.start + 1)
        if first >= columns.stop:
            return EVERY, None
        band = self.call.band(rows, slice(first, columns.stop), self.key.device)
        if band is None:
            return EVERY, None
        return slice(first - columns.start, None), band.to(self.dtype)

    def rows(self, piece: Piece) -> Tensor:
        """The queries of a piece, `[examples, key heads, groups * rows, head_dim]`."""
        return self.query[piece.of_queries].to(self.dtype).flatten(2, 3)

    def scores(self, piece: Piece) -> Tensor:
        """Scores in base 2, `[examples, key heads, groups * rows, columns]`; 0 where masked."""
        keys = self.key[piece.of_keys].to(self.dtype)
        scores = (self.rows(piece) * (self.call.scaling * LOG2_E)) @ keys.mT
        if self.shift is not None:
            self.by_group(scores).add_(self.shift[piece.of_keys[1]] * LOG2_E)
        self.mask(scores, piece)  # sinh(0) = 0: drops the pair without changing the row's largest score
        return scores

    def mask(self, x: Tensor, piece: Piece) -> None:
        """Set masked pairs to 0."""
        if piece.factor is not None:
            self.by_group(x)[..., piece.masked].mul_(piece.factor)

    def hyperbolic(
        self,
        scores: Tensor,
        piece: Piece,
        plain: bool,
    ) -> tuple[Tensor, Tensor]:
        """sinh and cosh of scores, both scaled by one number per row; 0 where masked. Overwrites the scores."""
        sinh, cosh = _plain_hyperbolic(scores) if plain else _hyperbolic(scores)
        self.mask(cosh, piece)
        return sinh, cosh

    def dropout_factors(self, coefficients: Tensor, index: int) -> Tensor:
        """0 with the probability of dropout, else `1 / (1 - dropout)`, for the coefficients of a piece."""
        generator = torch.Generator(coefficients.device).manual_seed(self.plan.seed + index)
        kept = 1 - self.call.dropout
        return torch.empty_like(coefficients).bernoulli_(kept, generator=generator).div_(kept)


def _is_plain(scores: Tensor) -> bool:
    """Whether `_plain_hyperbolic` is exact for a piece: if its largest score is neither small nor could overflow.

    On a GPU never: synchronising to get the largest score would cost more.
    """
    if scores.device.type != "cpu":
        return False
    low, high = torch.aminmax(scores)
    return SMALL_SCORE <= max(-low.item(), high.item()) / LOG2_E < SAFE_SCORE


def _plain_hyperbolic(scores: Tensor) -> tuple[Tensor, Tensor]:
    """`2 sinh` and `2 cosh` of scores in base 2, by one exponential and its reciprocal. Overwrites the scores."""
    positive = scores.exp2_()
    negative = positive.reciprocal()
    sinh = positive.sub_(negative)  # in place, so that no third tensor is allocated
    return sinh, torch.add(sinh, negative, alpha=2, out=negative)


def _hyperbolic(scores: Tensor) -> tuple[Tensor, Tensor]:
    """sinh and cosh of scores in base 2, divided by half of the row's largest exponential. Overwrites the scores."""
    scores.div_(LOG2_E)
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
