"""Building blocks of the Triton kernels of signed attention: masks, sinh and cosh, dropout, loads and stores."""

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError(
        'implementation="fused" needs Triton, which comes with torch for CUDA on Linux (pip install triton); '
        'use "auto" without it.'
    ) from error

LN2 = tl.constexpr(0.6931471805599453)
# Limits of |t| below which 2^t - 2^-t would cancel. For half precision sinh(s) = s suffices there, exact to 4e-5, as is
# the difference above the limit; fp32 uses four terms of the series, exact to 1e-8.
LINEAR_BELOW, SERIES_BELOW = tl.constexpr(0.0144), tl.constexpr(0.7)
PHILOX_ROUNDS = tl.constexpr(7)  # passes all tests of randomness (Salmon et al. 2011)


@triton.jit
def hyperbolic(t, level, SIGNED: tl.constexpr):
    """`2 sinh` and `2 cosh` of scores in base 2, both scaled by `2^-level`; for softmax `2^(t - level)` twice."""
    rising = tl.exp2(t - level)
    if not SIGNED:
        return rising, rising
    falling = tl.exp2(-t - level)
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
def columns_in_reach(
    keep, bounds, first_row, keys, window, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """The keys `first` to `last` in reach of a block of queries; from `whole` to `partial` no pair is masked."""
    first, whole, partial, last = 0, 0, keys, keys
    if bounds is not None:
        partial, last = tl.load(bounds), tl.load(bounds + 1)
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
    keep, bounds, first_column, queries, keys, window, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr,
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
    if bounds is not None:
        whole = tl.where(first_column + BLOCK_N <= tl.load(bounds), whole, end)
        last = tl.where(first_column < tl.load(bounds + 1), last, 0)
    elif keep is not None:
        whole = end
    whole = tl.minimum(whole, last)
    return first, whole, tl.maximum(tl.minimum(partial, last), whole), last


@triton.jit
def kept_pairs(
    keep, bounds, first_row, first_column, queries, keys, stride_m, stride_n, window,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Which pairs of a block are not masked, `[BLOCK_M, BLOCK_N]`."""
    rows = first_row + tl.arange(0, BLOCK_M)[:, None]
    columns = first_column + tl.arange(0, BLOCK_N)[None, :]
    kept = (rows >= 0) & (columns < keys)
    if bounds is not None:  # the same keys for all queries
        kept = kept & (tl.load(keep + columns.to(tl.int64) * stride_n, mask=columns < keys, other=0) != 0)
    elif keep is not None:
        inside = (rows < queries) & (columns < keys)
        kept = kept & (
            tl.load(keep + rows.to(tl.int64) * stride_m + columns.to(tl.int64) * stride_n, mask=inside, other=0) != 0
        )
    if CAUSAL:
        kept = kept & (columns <= rows)
    if window is not None:
        kept = kept & (columns - rows <= window) & (rows - columns <= window)
    return kept


@triton.jit
def dropout_keep(seed, first_row, first_column, keys, dropout, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Which coefficients of a block dropout keeps, independent of the block sizes; four random numbers per draw."""
    rows = first_row + tl.arange(0, BLOCK_M)[:, None]
    fours = first_column // 4 + tl.arange(0, BLOCK_N // 4)[None, :]
    a, b, c, d = tl.rand4x(seed, rows * tl.cdiv(keys, 4) + fours, PHILOX_ROUNDS)
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [BLOCK_M, BLOCK_N]) >= dropout


@triton.jit
def scores_of(a, b, scale, shift, h, PRECISION: tl.constexpr):
    """The scores of a block in base 2, with the shift of the head."""
    t = matmul(a, b, PRECISION) * scale
    if shift is not None:
        t += tl.load(shift + h)
    return t


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
