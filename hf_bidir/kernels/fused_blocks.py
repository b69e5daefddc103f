"""Building blocks of the Triton kernels of signed attention: addresses, masks, scores, sinh and cosh, dropout."""

import inspect
from collections.abc import Callable
from typing import Any

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError(
        'implementation="fused" needs Triton, which comes with torch for CUDA on Linux (pip install triton); '
        'use "auto" without it.'
    ) from error

LN2, LOG2_E = tl.constexpr(0.6931471805599453), tl.constexpr(1.4426950408889634)
# Limits of |t| below which 2^t - 2^-t would cancel. For half precision sinh(s) = s suffices there, exact to 4e-5, as is
# the difference above the limit; fp32 uses four terms of the series, exact to 1e-8.
LINEAR_BELOW, SERIES_BELOW = tl.constexpr(0.0144), tl.constexpr(0.7)
PHILOX_ROUNDS = tl.constexpr(7)  # passes all tests of randomness (Salmon et al. 2011)
# matrices, which begin at addresses that are multiples of 16 if UNIT is above 1
ALIGNED = ("query", "key", "value", "context", "grad_context", "grad_query", "grad_key", "grad_value")
SCANNED = tl.constexpr(1024)  # entries of a mask or of normalisers that a program reads at once


def kernel(function: Callable) -> Any:
    """Compile a function without specialising on the values of numbers.

    Compiled code then depends only on constexprs, the types of arguments (of an integer also its width), which
    arguments are None, and whether the addresses of `ALIGNED` tensors are multiples of 16 bytes. `UNIT` says what the
    strides are multiples of.
    """
    parameters = inspect.signature(function).parameters.values()
    others = [p.name for p in parameters if p.annotation is not tl.constexpr and p.name not in ALIGNED]
    return triton.jit(function, do_not_specialize=others)


@triton.jit
def program_block(longest, BLOCK: tl.constexpr):
    """The index of a program's head, counted over all examples, and the first row of its block."""
    blocks = tl.cdiv(longest, BLOCK)
    return tl.program_id(0) // blocks, tl.program_id(0) % blocks * BLOCK


@triton.jit
def extent(starts, b, length):
    """An example's batch index, first row and length; packed examples are consecutive rows of batch index 0.

    Invalid starts are clamped, so that no access is outside the tensor.
    """
    if starts is not None:
        first = tl.minimum(tl.maximum(tl.load(starts + b), 0), length)
        return 0, first, tl.minimum(tl.maximum(tl.load(starts + b + 1), first), length) - first
    return b, 0, length


@triton.jit
def offset(base, z, h, row, stride_z, stride_h, stride_n):
    """A pointer or offset advanced to one row of one head, in 64 bits."""
    return base + (
        tl.cast(z, tl.int64) * stride_z + tl.cast(h, tl.int64) * stride_h + tl.cast(row, tl.int64) * stride_n
    )


@triton.jit
def of_head(base, z, h, row, stride_z, stride_h, stride_n, UNIT: tl.constexpr):
    """The pointer to one row of one head."""
    return offset(base, z, h, row, in_units(stride_z, UNIT), in_units(stride_h, UNIT), in_units(stride_n, UNIT))


@triton.jit
def in_units(stride, UNIT: tl.constexpr):
    """A stride that is a multiple of UNIT, in a form that says so to the compiler."""
    return stride // UNIT * UNIT


@triton.jit
def of_output(base, z, h, row, rows, heads, WIDTH: tl.constexpr):
    """The pointer to one row of one head of an output, whose layout is `[batch, rows, heads, WIDTH]`."""
    return base + ((tl.cast(z, tl.int64) * rows + row) * heads + h) * WIDTH


@triton.jit
def load_rows(base, first, stride, limit, ROWS: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr):
    """`[ROWS, PAD]` of a matrix with dense rows; 0 outside its `limit` rows and `WIDTH` columns."""
    rows, columns = tl.arange(0, ROWS)[:, None], tl.arange(0, PAD)[None, :]
    inside = first + rows < limit
    if PAD != WIDTH:
        inside = inside & (columns < WIDTH)
    return tl.load(base + tl.cast(first, tl.int64) * stride + rows * stride + columns, mask=inside, other=0.0)


@triton.jit
def store_rows(
    base, block, first, stride, limit, ROWS: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.arange(0, ROWS)[:, None], tl.arange(0, PAD)[None, :]
    inside = (first + rows < limit) & (columns < WIDTH)
    pointers = base + tl.cast(first, tl.int64) * stride + rows * stride + columns
    tl.store(pointers, rounded(block, base.dtype.element_ty, PRECISION), mask=inside)


@triton.jit
def rounded(x, DTYPE: tl.constexpr, PRECISION: tl.constexpr):
    """fp32 rounded to a narrower type, ties to even; the interpreter alone would truncate to bf16."""
    if PRECISION == "wide":
        bits = x.to(tl.uint32, bitcast=True)
        x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).to(tl.float32, bitcast=True)
    return x.to(DTYPE)


@triton.jit
def matmul(a, b, PRECISION: tl.constexpr):
    """A matrix product on the tensor cores, summed in fp32; the interpreter cannot multiply bf16."""
    if PRECISION == "wide":
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def kept_extent(keep, keys):
    """Of a mask with one entry per key: the index of the first dropped key, and one past the last kept one."""
    whole, last = keys, 0
    for first in range(0, keys, SCANNED):
        columns = first + tl.arange(0, SCANNED)
        kept = tl.load(keep + columns, mask=columns < keys, other=0) != 0
        whole = tl.minimum(whole, tl.min(tl.where(kept, keys, columns), 0))
        last = tl.maximum(last, tl.max(tl.where(kept, columns + 1, 0), 0))
    return whole, last


@triton.jit
def columns_in_reach(
    keep, first_row, keys, window, PER_KEY: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The keys `first` to `last` in reach of a block of queries; from `whole` to `partial` no pair is masked."""
    first, whole, partial, last = 0, 0, keys, keys
    if PER_KEY:
        partial, last = kept_extent(keep, keys)
    elif keep is not None:
        partial = 0
    if CAUSAL:
        partial, last = tl.minimum(partial, first_row + 1), tl.minimum(last, first_row + BLOCK_M)
    if window is not None:
        first = tl.maximum(first_row - window, 0) // BLOCK_N * BLOCK_N
        whole = tl.cdiv(tl.maximum(first_row + BLOCK_M - 1 - window, 0), BLOCK_N) * BLOCK_N
        partial, last = tl.minimum(partial, first_row + window + 1), tl.minimum(last, first_row + BLOCK_M + window)
        whole = tl.minimum(whole, tl.cdiv(tl.maximum(last, first), BLOCK_N) * BLOCK_N)
    partial = tl.maximum(partial // BLOCK_N * BLOCK_N, whole)
    return first, whole, partial, last


@triton.jit
def rows_in_reach(
    keep, first_column, queries, keys, window, PER_KEY: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The queries `first` to `last` in reach of a block of keys; from `whole` to `partial` no pair is masked."""
    first, whole, partial, last = 0, 0, queries, queries
    if CAUSAL:
        first, whole = first_column // BLOCK_M * BLOCK_M, first_column + BLOCK_N - 1
    if window is not None:
        first = tl.maximum(first, tl.maximum(first_column - window, 0) // BLOCK_M * BLOCK_M)
        whole = tl.maximum(whole, first_column + BLOCK_N - 1 - window)
        partial, last = first_column + window + 1, tl.minimum(last, first_column + BLOCK_N + window)
        partial = tl.where(partial < last, partial // BLOCK_M * BLOCK_M, last)
    end = tl.cdiv(tl.maximum(last, first), BLOCK_M) * BLOCK_M
    whole = tl.minimum(tl.maximum(tl.cdiv(whole, BLOCK_M) * BLOCK_M, first), end)
    if PER_KEY:
        columns = first_column + tl.arange(0, BLOCK_N)
        kept = tl.load(keep + columns, mask=columns < keys, other=0) != 0
        whole = tl.where(tl.min((kept | (columns >= keys)).to(tl.int32), 0) > 0, whole, end)
        last = tl.where(tl.max(kept.to(tl.int32), 0) > 0, last, 0)
    elif keep is not None:
        whole = end
    whole = tl.minimum(whole, last)
    return first, whole, tl.maximum(tl.minimum(partial, last), whole), last


@triton.jit
def kept_pairs(
    keep, rows, columns, queries, keys, stride, window, PER_KEY: tl.constexpr, CAUSAL: tl.constexpr
):  # fmt: skip
    """Which pairs are not masked; `rows` and `columns` broadcast to a block."""
    kept = (rows >= 0) & (columns < keys)  # the first is always true and broadcasts to the block
    if PER_KEY:
        kept = kept & (tl.load(keep + columns, mask=columns < keys, other=0) != 0)
    elif keep is not None:
        inside = (rows < queries) & (columns < keys)
        kept = kept & (tl.load(keep + rows.to(tl.int64) * stride + columns, mask=inside, other=0) != 0)
    if CAUSAL:
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
def with_terms(t, bias, rows, columns, queries, keys, stride, shift, SHIFTED: tl.constexpr):
    """Scores in base 2 with a bias, `[rows, columns]` in base e, and with the shift of the head."""
    if bias is not None:
        inside = (rows < queries) & (columns < keys)
        added = tl.load(bias + rows.to(tl.int64) * stride + columns, mask=inside, other=0.0)
        t += added.to(tl.float32) * LOG2_E
    if SHIFTED:
        t += shift
    return t


@triton.jit
def shift_of(shifts, shift, h):
    """The shift of a head in base 2: its entry in `shifts`, or the number for all heads."""
    if shifts is not None:
        shift = tl.load(shifts + h) * LOG2_E
    return shift


@triton.jit
def hyperbolic(t, level, SIGNED: tl.constexpr):
    """`2 sinh` and `2 cosh` of scores in base 2, both scaled by `2^-level`; for softmax `2^(t - level)` twice."""
    rising = tl.exp2(t - level)
    if not SIGNED:
        return rising, rising
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
def restore_digits(sinh, cosh, t, level, small, EXACT: tl.constexpr):
    """`sinh` with the digits that `2^t - 2^-t` loses near 0: in fp32 everywhere, else in rows of only `small` scores.

    Gradients of queries and keys do not need it, because in them cosh outweighs the loss.
    """
    if EXACT:
        square = t * t * (LN2 * LN2)
        series = t * (2 * LN2 * tl.exp2(-level)) * (1 + square / 6 * (1 + square / 20 * (1 + square / 42)))
        return tl.where(tl.abs(t) < SERIES_BELOW, series, sinh)
    return tl.where(small, t * (LN2 * cosh), sinh)  # tanh(s) = s


@triton.jit
def has_small_rows(log_totals, rows):
    """Whether a head has a row of only small scores, which a negative logarithm of its normaliser marks."""
    lowest = 1.0
    for first in range(0, rows, SCANNED):
        at = first + tl.arange(0, SCANNED)
        lowest = tl.minimum(lowest, tl.min(tl.load(log_totals + at, mask=at < rows, other=1.0), 0))
    return lowest < 0


@triton.jit
def dropout_keep(seed, first_row, first_column, keys, dropout, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Which coefficients of a block dropout keeps, independent of the block sizes; four random numbers per draw."""
    rows = first_row + tl.arange(0, BLOCK_M)[:, None]
    fours = first_column // 4 + tl.arange(0, BLOCK_N // 4)[None, :]
    a, b, c, d = tl.rand4x(seed, rows * tl.cdiv(keys, 4) + fours, PHILOX_ROUNDS)
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [BLOCK_M, BLOCK_N]) >= dropout
