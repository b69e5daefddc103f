"""Building blocks of the Triton kernels of signed attention: addresses, masks, scores, sinh and cosh, dropout.

Kernels take named tuples, whose tensors are pointers in compiled code.
"""

from typing import Any, NamedTuple

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError(
        'implementation="fused" needs Triton, which comes with torch for CUDA on Linux (pip install triton); '
        'use "auto" without it.'
    ) from error

LN2 = tl.constexpr(0.6931471805599453)
LOG2_E = tl.constexpr(1.4426950408889634)
SERIES_BELOW = tl.constexpr(0.7)  # |t| below which 2^t - 2^-t would cancel in fp32
# Precisions of matrix products, the last for bf16 in the interpreter, which cannot multiply it.
TF32, TF32X3, WIDE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
PHILOX_ROUNDS = tl.constexpr(7)  # passes all tests of randomness (Salmon et al. 2011)
SCANNED = tl.constexpr(1024)  # entries of a mask that a program reads at once


class Rows(NamedTuple):
    """A tensor `[batch, heads, rows, size]` whose last dimension is dense, and its other strides."""

    pointer: Any
    per_example: int
    per_head: int
    per_row: int


class Pairs(NamedTuple):
    """A mask or a bias `[batch, heads, queries, keys]` like `Rows`, with a stride of 0 where it is broadcast."""

    pointer: Any
    per_example: int
    per_head: int
    per_row: int


class Problem(NamedTuple):
    """The arguments of one call that all kernels share."""

    query: Rows
    key: Rows
    value: Rows
    keep: Pairs | None  # as bytes
    bias: Pairs | None  # in base e
    shifts: Any  # None, or [heads], added to the scores, in base e
    seed: Any  # of dropout; None without it
    heads: int
    groups: int  # heads that share a key head
    queries: int
    keys: int
    scale: float  # of the products, for scores in base 2
    cap: float | None  # in base 2
    dropout: float | None
    window: int | None


class Code(NamedTuple):
    """What compiled code depends on apart from the types of its arguments."""

    head_size: int
    value_size: int
    head_pad: int  # powers of two
    value_pad: int
    exact: bool  # fp32
    levelled: bool  # whether a forward pass scales sinh and cosh by the largest score
    causal: bool
    per_key: bool  # all queries of a head have the same mask row
    unit: int  # all strides of `Rows` are multiples of it
    wide: bool  # whether strides need 64 bits
    precision: int  # of matrix products, such as TF32; Triton 3.6 takes no text in a tuple
    rows: int = 0  # queries of a block; before tiling, set only for the decode kernel
    columns: int = 0  # keys of a block


class Matrix(NamedTuple):
    """One head of one example of a tensor."""

    pointer: Any
    stride: Any


class Head(NamedTuple):
    """One head of one example. Triton 3.6 returns no None from a function, so kernels make this tuple themselves."""

    problem: Problem
    example: Any
    index: Any  # of the head; also a block of heads [rows, 1]
    keep_index: Any  # of the head in the mask
    query: Matrix
    key: Matrix
    value: Matrix
    shift: Any  # in base 2; 0 without shifts
    seed: Any  # 0 without dropout


class Reach(NamedTuple):
    """A range of keys or queries, `first` to `last`; from `whole` to `partial` no pair is masked."""

    first: Any
    whole: Any
    partial: Any
    last: Any


@triton.jit
def in_units(stride, UNIT: tl.constexpr):
    """A stride that is a multiple of UNIT, in a form that says so to the compiler."""
    return stride // UNIT * UNIT


@triton.jit
def matrix_of(tensor, example, head, UNIT: tl.constexpr):
    """One head of one example of `Rows` or, with a UNIT of 1, of `Pairs`."""
    offset = tl.cast(example, tl.int64) * in_units(tensor.per_example, UNIT)
    offset += tl.cast(head, tl.int64) * in_units(tensor.per_head, UNIT)
    return Matrix(tensor.pointer + offset, in_units(tensor.per_row, UNIT))


@triton.jit
def states_of(problem, example, h, key_head, UNIT: tl.constexpr):
    """Query, key, value, shift and seed of a head, or of a block of heads `[rows, 1]` that share a key head."""
    query = matrix_of(problem.query, example, h, UNIT)
    key = matrix_of(problem.key, example, key_head, UNIT)
    value = matrix_of(problem.value, example, key_head, UNIT)
    shift = 0.0
    if problem.shifts is not None:
        shift = tl.load(problem.shifts + h) * LOG2_E
    seed = 0
    if problem.seed is not None:  # one for each head and example
        seed = tl.load(problem.seed) + example * problem.heads + h
    return query, key, value, shift, seed


@triton.jit
def mask_of(head):
    return matrix_of(head.problem.keep, head.example, head.keep_index, 1)


@triton.jit
def row_of(problem, example, head):
    """The index of a head's first row in a dense tensor `[batch, heads, queries]`."""
    return (tl.cast(example, tl.int64) * problem.heads + head) * problem.queries


@triton.jit
def load_rows(matrix, first, limit, ROWS: tl.constexpr, SIZE: tl.constexpr, PAD: tl.constexpr):
    """`[ROWS, PAD]` of a matrix; 0 outside its `limit` rows and SIZE columns."""
    rows = tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, PAD)[None, :]
    inside = first + rows < limit
    if PAD != SIZE:
        inside = inside & (columns < SIZE)
    start = matrix.pointer + tl.cast(first, tl.int64) * matrix.stride
    return tl.load(start + rows * matrix.stride + columns, mask=inside, other=0.0)


@triton.jit
def store_rows(matrix, block, first, limit, SIZE: tl.constexpr, PRECISION: tl.constexpr):
    rows = tl.arange(0, block.shape[0])[:, None]
    columns = tl.arange(0, block.shape[1])[None, :]
    inside = (first + rows < limit) & (columns < SIZE)
    start = matrix.pointer + tl.cast(first, tl.int64) * matrix.stride
    block = rounded(block, matrix.pointer.dtype.element_ty, PRECISION)
    tl.store(start + rows * matrix.stride + columns, block, mask=inside)


@triton.jit
def rounded(x, DTYPE: tl.constexpr, PRECISION: tl.constexpr):
    """fp32 rounded to a narrower type, ties to even; the interpreter alone would truncate to bf16."""
    if PRECISION == WIDE:
        bits = x.to(tl.uint32, bitcast=True)
        x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).to(tl.float32, bitcast=True)
    return x.to(DTYPE)


@triton.jit
def matmul(a, b, PRECISION: tl.constexpr):
    """A matrix product on the tensor cores, summed in fp32; the interpreter cannot multiply bf16."""
    if PRECISION == WIDE:
        product = tl.dot(a.to(tl.float32), b.to(tl.float32))
    elif PRECISION == TF32X3:
        product = tl.dot(a, b, input_precision="tf32x3")
    else:
        product = tl.dot(a, b, input_precision="tf32")
    return product


@triton.jit
def kept_extent(keep, keys):
    """Of a mask with one entry per key: the index of the first dropped key, and one past the last kept one."""
    whole, last = keys, 0
    for first in range(0, keys, SCANNED):
        columns = first + tl.arange(0, SCANNED)
        kept = tl.load(keep.pointer + columns, mask=columns < keys, other=0) != 0
        whole = tl.minimum(whole, tl.min(tl.where(kept, keys, columns), 0))
        last = tl.maximum(last, tl.max(tl.where(kept, columns + 1, 0), 0))
    return whole, last


@triton.jit
def columns_in_reach(head, first_row, code: tl.constexpr):
    """The keys in reach of a block of queries."""
    window = head.problem.window
    keys = head.problem.keys
    end = first_row + code.rows
    first, whole, partial, last = 0, 0, keys, keys
    if code.per_key:
        partial, last = kept_extent(mask_of(head), keys)
    elif head.problem.keep is not None:
        partial = 0
    if code.causal:
        partial = tl.minimum(partial, first_row + 1)
        last = tl.minimum(last, end)
    if window is not None:
        first = tl.maximum(first_row - window, 0) // code.columns * code.columns
        whole = tl.cdiv(tl.maximum(end - 1 - window, 0), code.columns) * code.columns
        partial = tl.minimum(partial, first_row + window + 1)
        last = tl.minimum(last, end + window)
        whole = tl.minimum(whole, tl.cdiv(tl.maximum(last, first), code.columns) * code.columns)
    partial = tl.maximum(partial // code.columns * code.columns, whole)
    return Reach(first, whole, partial, last)


@triton.jit
def rows_in_reach(head, first_column, code: tl.constexpr):
    """The queries in reach of a block of keys."""
    window = head.problem.window
    queries = head.problem.queries
    keys = head.problem.keys
    first = 0
    whole = 0
    partial = queries
    last = queries
    end = first_column + code.columns
    if code.causal:
        first = first_column // code.rows * code.rows
        whole = end - 1
    if window is not None:
        first = tl.maximum(first, tl.maximum(first_column - window, 0) // code.rows * code.rows)
        whole = tl.maximum(whole, end - 1 - window)
        partial = first_column + window + 1
        last = tl.minimum(last, end + window)
        partial = tl.where(partial < last, partial // code.rows * code.rows, last)
    stop = tl.cdiv(tl.maximum(last, first), code.rows) * code.rows
    whole = tl.minimum(tl.maximum(tl.cdiv(whole, code.rows) * code.rows, first), stop)
    if code.per_key:
        columns = first_column + tl.arange(0, code.columns)
        kept = tl.load(mask_of(head).pointer + columns, mask=columns < keys, other=0) != 0
        whole = tl.where(tl.min((kept | (columns >= keys)).to(tl.int32), 0) > 0, whole, stop)
        last = tl.where(tl.max(kept.to(tl.int32), 0) > 0, last, 0)
    elif head.problem.keep is not None:
        whole = stop
    whole = tl.minimum(whole, last)
    return Reach(first, whole, tl.maximum(tl.minimum(partial, last), whole), last)


@triton.jit
def part_of(reach, PART: tl.constexpr):
    """Begin and end of 0: what is cut by the window, 1: whole blocks, 2: what is cut by anything."""
    begin = reach.first if PART == 0 else (reach.whole if PART == 1 else reach.partial)
    end = reach.whole if PART == 0 else (reach.partial if PART == 1 else reach.last)
    return begin, end


@triton.jit
def kept_pairs(head, rows, columns, code: tl.constexpr):
    """Which pairs are not masked; `rows` and `columns` broadcast to a block."""
    queries = head.problem.queries
    keys = head.problem.keys
    window = head.problem.window
    kept = (rows >= 0) & (columns < keys)  # the first is always true and broadcasts to the block
    if code.per_key:
        kept = kept & (tl.load(mask_of(head).pointer + columns, mask=columns < keys, other=0) != 0)
    elif head.problem.keep is not None:
        keep = mask_of(head)
        pointers = keep.pointer + rows.to(tl.int64) * keep.stride + columns
        kept = kept & (tl.load(pointers, mask=(rows < queries) & (columns < keys), other=0) != 0)
    if code.causal:
        kept = kept & (columns <= rows)
    if window is not None:
        kept = kept & (columns - rows <= window) & (rows - columns <= window)
    return kept


@triton.jit
def capped(t, cap):
    """`cap * tanh(t / cap)`, with all digits of small scores."""
    x = t / cap
    square = x * x
    series = x * (1 - square * (1 / 3 - square * (2 / 15 - square * (17 / 315 - square * (62 / 2835)))))
    return cap * tl.where(square < 0.04, series, 1 - 2 / (1 + tl.exp2(x * (2 * LOG2_E))))


@triton.jit
def with_terms(t, head, rows, columns):
    """Scores in base 2 with the bias and the shift of the head."""
    if head.problem.bias is not None:
        bias = matrix_of(head.problem.bias, head.example, head.index, 1)
        inside = (rows < head.problem.queries) & (columns < head.problem.keys)
        pointers = bias.pointer + rows.to(tl.int64) * bias.stride + columns
        t += tl.load(pointers, mask=inside, other=0.0).to(tl.float32) * LOG2_E
    if head.problem.shifts is not None:
        t += head.shift
    return t


@triton.jit
def hyperbolic(t, level):
    """`2 sinh` and `2 cosh` of scores in base 2, both scaled by `2^-level`."""
    rising = tl.exp2(t - level)
    falling = tl.exp2(-t - level)
    return rising - falling, rising + falling


@triton.jit
def unscaled_hyperbolic(t):
    """`2 sinh` and `2 cosh` with one exponential, whose reciprocal two steps of Newton find to 2.3e-6.

    Infinite or NaN in one of the two where |t| is 126 or more.
    """
    rising = tl.exp2(t)
    falling = (0x7EF3F000 - rising.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)
    falling = falling * (2.0015 - rising * falling)  # balances the error of the first guess, which is 0 to 12 %
    falling = falling + falling * (1.0 - rising * falling)
    return rising - falling, rising + falling


@triton.jit
def restore_digits(sinh, t, level):
    """`sinh` with the digits that `2^t - 2^-t` loses near 0, by four terms of the series, exact to 1e-8.

    Gradients of queries and keys do not need it, because in them cosh outweighs the loss.
    """
    square = t * t * (LN2 * LN2)
    series = t * (2 * LN2 * tl.exp2(-level)) * (1 + square / 6 * (1 + square / 20 * (1 + square / 42)))
    return tl.where(tl.abs(t) < SERIES_BELOW, series, sinh)


@triton.jit
def dropout_keep(head, rows, first_column, COLUMNS: tl.constexpr):
    """Which coefficients of a block dropout keeps, independent of the block sizes; four random numbers per draw."""
    fours = first_column // 4 + tl.arange(0, COLUMNS // 4)[None, :]
    counters = rows[:, None] * tl.cdiv(head.problem.keys, 4) + fours
    a, b, c, d = tl.rand4x(head.seed, counters, PHILOX_ROUNDS)
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [rows.shape[0], COLUMNS]) >= head.problem.dropout
