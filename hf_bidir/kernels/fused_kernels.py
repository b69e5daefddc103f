"""Signed attention in Triton, without storing coefficients.

Each row stores its context and one number, the base-2 logarithm of its normaliser. From that number the backward pass
recomputes the coefficients block by block (Dao 2023, FlashAttention-2, with `sinh` in place of `exp` for the values and
`cosh` in the normaliser). Scores are in base 2, `t = (query · key * scaling + shift) * log2(e)`, because the hardware
computes `2^x`.

Arguments that all kernels have: `keep` and `bias` have dense last dimensions; with `PER_KEY`, all queries of a head
have the same mask row. `shifts` has one shift per head in base e, `shift` is one for all in base 2. Strides are
multiples of `UNIT`, except those of keep and bias.
"""

from hf_bidir.kernels.fused_blocks import (
    LINEAR_BELOW,
    LN2,
    capped,
    columns_in_reach,
    dropout_keep,
    extent,
    has_small_rows,
    hyperbolic,
    in_units,
    kept_extent,
    kept_pairs,
    kernel,
    load_rows,
    matmul,
    of_head,
    of_output,
    offset,
    program_block,
    restore_digits,
    rounded,
    rows_in_reach,
    shift_of,
    store_rows,
    tl,  # imported there with a helpful error if Triton is missing
    triton,
    unscaled_hyperbolic,
    with_terms,
)

MOST_SPLITS = tl.constexpr(32)  # into which `decode_kernel` divides the keys
FEW_KEYS = tl.constexpr(32)  # keys per block in the second pass, which must not need more registers than the first
# Without a level, sinh and cosh of a row fit into fp32 up to here, together with the products with its values.
LARGEST_TOTAL, LARGEST_SUM = tl.constexpr(2.0**100), tl.constexpr(2.0**120)
# 2 cosh of scores below LINEAR_BELOW, with a margin for rounding in their sum
SMALL_MEAN = tl.constexpr(2.00012)


@kernel
def forward_kernel(
    query, key, value, context, normaliser, keep, bias, shifts, seed, query_starts, key_starts,
    stride_qz, stride_qh, stride_qn, stride_kz, stride_kh, stride_kn, stride_vz, stride_vh, stride_vn,
    stride_mz, stride_mh, stride_mm, stride_bz, stride_bh, stride_bm,
    heads, groups, longest, query_rows, key_rows, scale, shift, cap, dropout, window,
    HEAD: tl.constexpr, VALUE: tl.constexpr, HEAD_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    SIGNED: tl.constexpr, EXACT: tl.constexpr, LEVELLED: tl.constexpr, CAUSAL: tl.constexpr, PER_KEY: tl.constexpr,
    SHIFTED: tl.constexpr, UNIT: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The context and the normaliser of one block of queries, of one head of one example."""
    sequence, first_row = program_block(longest, BLOCK_M)
    h = sequence % heads
    z, query_start, queries = extent(query_starts, sequence // heads, query_rows)
    _, key_start, keys = extent(key_starts, sequence // heads, key_rows)
    if first_row >= queries:
        return
    query = of_head(query, z, h, query_start, stride_qz, stride_qh, stride_qn, UNIT)
    key = of_head(key, z, h // groups, key_start, stride_kz, stride_kh, stride_kn, UNIT)
    value = of_head(value, z, h // groups, key_start, stride_vz, stride_vh, stride_vn, UNIT)
    context = of_output(context, z, h, query_start, query_rows, heads, VALUE)
    normaliser = offset(normaliser, z, h, query_start, heads * query_rows, query_rows, 1)
    if keep is not None:
        keep = offset(keep, z, h, 0, stride_mz, stride_mh, 0)
    if bias is not None:
        bias = offset(bias, z, h, 0, stride_bz, stride_bh, 0)
    if seed is not None:
        seed = tl.load(seed) + sequence  # one seed per head and example
    shift = shift_of(shifts, shift, h)
    first, whole, partial, last = columns_in_reach(keep, first_row, keys, window, PER_KEY, CAUSAL, BLOCK_M, BLOCK_N)
    rows = first_row + tl.arange(0, BLOCK_M)
    q = load_rows(query, first_row, in_units(stride_qn, UNIT), queries, BLOCK_M, HEAD, HEAD_PAD)
    log_total, summed = attend_block(
        q, key, value, keep, bias, seed, rows, stride_kn, stride_vn, stride_mm, stride_bm, first_row, queries, keys,
        first, whole, partial, last, scale, shift, cap, dropout, window, HEAD, VALUE, HEAD_PAD, VALUE_PAD, SIGNED,
        EXACT, LEVELLED, CAUSAL, PER_KEY, SHIFTED, UNIT, PRECISION, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    if seed is not None:
        summed *= 1 / (1 - dropout)
    store_rows(context, summed, first_row, heads * VALUE, queries, BLOCK_M, VALUE, VALUE_PAD, PRECISION)
    tl.store(normaliser + rows, log_total, mask=rows < queries)


@triton.jit
def attend_block(
    q, key, value, keep, bias, seed, rows, stride_kn, stride_vn, stride_mm, stride_bm, first_row, queries, keys,
    first, whole, partial, last, scale, shift, cap, dropout, window,
    HEAD: tl.constexpr, VALUE: tl.constexpr, HEAD_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    SIGNED: tl.constexpr, EXACT: tl.constexpr, LEVELLED: tl.constexpr, CAUSAL: tl.constexpr, PER_KEY: tl.constexpr,
    SHIFTED: tl.constexpr, UNIT: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The logarithm of the normaliser and the context of every row `[BLOCK_M]`, over the keys `first` to `last`.

    The logarithm is negative for a row of only small scores and infinite for a row without kept keys.
    """
    total, peak, summed, count = summed_over_keys(
        q, key, value, keep, bias, seed, rows, stride_kn, stride_vn, stride_mm, stride_bm, first_row, queries, keys,
        first, whole, partial, last, scale, shift, cap, dropout, window, HEAD, VALUE, HEAD_PAD, VALUE_PAD, SIGNED,
        EXACT, LEVELLED, CAUSAL, PER_KEY, SHIFTED, UNIT, PRECISION, BLOCK_M, BLOCK_N,
        0 if window is not None else 1, EXACT,
    )  # fmt: skip
    if SIGNED and not EXACT:
        # Rare. A second pass for these rows is cheaper than more work in every first pass.
        if LEVELLED:
            again = (peak > 0) & (peak < LINEAR_BELOW)
        else:  # comparisons with NaN are False
            fits = (total < LARGEST_TOTAL) & (tl.sum(tl.abs(summed), 1) < LARGEST_SUM)
            again = (count > 0) & ((total < count * SMALL_MEAN) | (fits == 0))
        if tl.max((again & (rows < queries)).to(tl.int32), 0) > 0:
            total, peak, summed, count = summed_over_keys(
                q, key, value, keep, bias, seed, rows, stride_kn, stride_vn, stride_mm, stride_bm, first_row, queries,
                keys, first, first, first, last, scale, shift, cap, dropout, window, HEAD, VALUE, HEAD_PAD, VALUE_PAD,
                SIGNED, EXACT, True, CAUSAL, PER_KEY, SHIFTED, UNIT, PRECISION, BLOCK_M, FEW_KEYS, 2, True,
            )  # fmt: skip
    if SIGNED:  # beyond 2^31 the rounding error of the level exceeds the range of an exponent
        total = tl.where(peak < 2147483648.0, total, float("nan"))
    empty = total == 0
    total = tl.where(empty, 1.0, total)
    log_total = tl.where(empty, float("inf"), peak + tl.log2(total))
    if SIGNED and not EXACT:  # at least 1, since 2 cosh is at least 2, so the sign can mark rows of small scores
        log_total = tl.where((peak > 0) & (peak < LINEAR_BELOW), -log_total, log_total)
    return log_total, summed * (1 / total)[:, None]


@triton.jit
def summed_over_keys(
    q, key, value, keep, bias, seed, rows, stride_kn, stride_vn, stride_mm, stride_bm, first_row, queries, keys,
    first, whole, partial, last, scale, shift, cap, dropout, window,
    HEAD: tl.constexpr, VALUE: tl.constexpr, HEAD_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    SIGNED: tl.constexpr, EXACT: tl.constexpr, LEVELLED: tl.constexpr, CAUSAL: tl.constexpr, PER_KEY: tl.constexpr,
    SHIFTED: tl.constexpr, UNIT: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    FIRST_PART: tl.constexpr, CAREFUL: tl.constexpr,
):  # fmt: skip
    """Per row: the sum of cosh, its level, the sum of sinh times values, and the number of kept keys (unless LEVELLED).

    The level is the largest |score| so far; both sums are scaled by `2^-level`. Without LEVELLED it stays 0: sums need
    no rescaling and exponentials no maximum, and a row whose sums leave the range of fp32 is found by their values.
    """
    total, peak = tl.zeros([BLOCK_M], tl.float32), tl.zeros([BLOCK_M], tl.float32)
    count = tl.zeros([BLOCK_M], tl.float32)
    if not SIGNED:
        peak += float("-inf")
    summed = tl.zeros([BLOCK_M, VALUE_PAD], tl.float32)
    # Three parts: keys cut by the window; keys without any masked pair, which need no mask; keys cut by the end, the
    # padding, the diagonal or the window.
    for part in tl.static_range(FIRST_PART, 3):
        begin = first if part == 0 else (whole if part == 1 else partial)
        end = whole if part == 0 else (partial if part == 1 else last)
        for column in range(begin, end, BLOCK_N):
            columns = column + tl.arange(0, BLOCK_N)
            k = load_rows(key, column, in_units(stride_kn, UNIT), keys, BLOCK_N, HEAD, HEAD_PAD)
            t, unit = matmul(q, tl.trans(k), PRECISION), scale
            if SHIFTED or bias is not None or cap is not None or not LEVELLED:
                t, unit = t * scale, 1.0
            if cap is not None:
                t = capped(t, cap)
            t = with_terms(t, bias, rows[:, None], columns[None, :], queries, keys, stride_bm, shift, SHIFTED)
            if part != 1:
                kept = kept_pairs(
                    keep, rows[:, None], columns[None, :], queries, keys, stride_mm, window, PER_KEY, CAUSAL
                )
            if LEVELLED:
                if part != 1:
                    t = tl.where(kept, t, 0.0 if SIGNED else float("-inf"))
                higher = tl.maximum(peak, tl.max(tl.abs(t) if SIGNED else t, 1) * unit)
                # A softmax row without keys so far has no peak, and 2^(-inf - -inf) would be NaN.
                level = higher if SIGNED else tl.where(higher == float("-inf"), 0.0, higher)
                t *= unit  # after the maximum, so that it is fused with the subtraction of the level
                sinh, cosh = hyperbolic(t, level[:, None], SIGNED)
                if SIGNED and CAREFUL:
                    sinh = restore_digits(sinh, cosh, t, level[:, None], (level < LINEAR_BELOW)[:, None], EXACT)
                fading = tl.exp2(peak - level)
                total, summed = total * fading, summed * fading[:, None]
                peak = higher
            else:
                sinh, cosh = unscaled_hyperbolic(t)
                if part != 1:
                    sinh = tl.where(kept, sinh, 0.0)
                    count += tl.sum(kept.to(tl.float32), 1)
                else:
                    count += BLOCK_N
            if part != 1 and SIGNED:
                cosh = tl.where(kept, cosh, 0.0)
            total += tl.sum(cosh, 1)
            if seed is not None:
                sinh = tl.where(dropout_keep(seed, first_row, column, keys, dropout, BLOCK_M, BLOCK_N), sinh, 0.0)
            v = load_rows(value, column, in_units(stride_vn, UNIT), keys, BLOCK_N, VALUE, VALUE_PAD)
            summed += matmul(rounded(sinh, v.dtype, PRECISION), v, PRECISION)
    return total, peak, summed, count


@kernel
def query_gradient_kernel(
    query, key, value, context, grad_context, grad_query, normaliser, delta, grad_shift, grad_bias,
    keep, bias, shifts, seed, query_starts, key_starts,
    stride_qz, stride_qh, stride_qn, stride_kz, stride_kh, stride_kn, stride_vz, stride_vh, stride_vn,
    stride_gz, stride_gh, stride_gn, stride_mz, stride_mh, stride_mm, stride_bz, stride_bh, stride_bm,
    stride_dz, stride_dh, stride_dm,
    heads, groups, longest, query_rows, key_rows, scale, shift, cap, dropout, window,
    HEAD: tl.constexpr, VALUE: tl.constexpr, HEAD_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    SIGNED: tl.constexpr, EXACT: tl.constexpr, LEVELLED: tl.constexpr, CAUSAL: tl.constexpr, PER_KEY: tl.constexpr,
    SHIFTED: tl.constexpr, UNIT: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The gradient of one block of queries and of their bias; also `delta = rowsum(dO ∘ O)` and, per row, the gradient
    of the shift. Examples that share a bias add up their gradients."""
    sequence, first_row = program_block(longest, BLOCK_M)
    h = sequence % heads
    z, query_start, queries = extent(query_starts, sequence // heads, query_rows)
    _, key_start, keys = extent(key_starts, sequence // heads, key_rows)
    if first_row >= queries:
        return
    query = of_head(query, z, h, query_start, stride_qz, stride_qh, stride_qn, UNIT)
    key = of_head(key, z, h // groups, key_start, stride_kz, stride_kh, stride_kn, UNIT)
    value = of_head(value, z, h // groups, key_start, stride_vz, stride_vh, stride_vn, UNIT)
    grad_context = of_head(grad_context, z, h, query_start, stride_gz, stride_gh, stride_gn, UNIT)
    context = of_output(context, z, h, query_start, query_rows, heads, VALUE)
    grad_query = of_output(grad_query, z, h, query_start, query_rows, heads, HEAD)
    if keep is not None:
        keep = offset(keep, z, h, 0, stride_mz, stride_mh, 0)
    if bias is not None:
        bias = offset(bias, z, h, 0, stride_bz, stride_bh, 0)
    if grad_bias is not None:
        grad_bias = offset(grad_bias, z, h, 0, stride_dz, stride_dh, 0)
    if seed is not None:
        seed = tl.load(seed) + sequence  # one seed per head and example
    shift = shift_of(shifts, shift, h)
    first, whole, partial, last = columns_in_reach(keep, first_row, keys, window, PER_KEY, CAUSAL, BLOCK_M, BLOCK_N)
    rows = first_row + tl.arange(0, BLOCK_M)
    row_offsets = offset(rows, z, h, query_start, heads * query_rows, query_rows, 1)
    q = load_rows(query, first_row, in_units(stride_qn, UNIT), queries, BLOCK_M, HEAD, HEAD_PAD)
    g = load_rows(grad_context, first_row, in_units(stride_gn, UNIT), queries, BLOCK_M, VALUE, VALUE_PAD)
    o = load_rows(context, first_row, heads * VALUE, queries, BLOCK_M, VALUE, VALUE_PAD)
    d = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    log_total = tl.load(normaliser + row_offsets, mask=rows < queries, other=float("inf"))
    level = tl.abs(log_total) if SIGNED else log_total
    tl.store(delta + row_offsets, d, mask=rows < queries)
    summed, shifted = tl.zeros([BLOCK_M, HEAD_PAD], tl.float32), tl.zeros([BLOCK_M], tl.float32)
    for part in tl.static_range(0 if window is not None else 1, 3):
        begin = first if part == 0 else (whole if part == 1 else partial)
        end = whole if part == 0 else (partial if part == 1 else last)
        for column in range(begin, end, BLOCK_N):
            columns = column + tl.arange(0, BLOCK_N)
            k = load_rows(key, column, in_units(stride_kn, UNIT), keys, BLOCK_N, HEAD, HEAD_PAD)
            v = load_rows(value, column, in_units(stride_vn, UNIT), keys, BLOCK_N, VALUE, VALUE_PAD)
            t = matmul(q, tl.trans(k), PRECISION) * scale
            if cap is not None:
                t = capped(t, cap)
                slope = 1 - (t / cap) * (t / cap)
            t = with_terms(t, bias, rows[:, None], columns[None, :], queries, keys, stride_bm, shift, SHIFTED)
            if part != 1:
                kept = kept_pairs(
                    keep, rows[:, None], columns[None, :], queries, keys, stride_mm, window, PER_KEY, CAUSAL
                )
                t = tl.where(kept, t, 0.0 if SIGNED else float("-inf"))
            a, c = hyperbolic(t, level[:, None], SIGNED)
            if part != 1 and SIGNED:
                c = tl.where(kept, c, 0.0)
            grad_a = matmul(g, tl.trans(v), PRECISION)
            if seed is not None:
                survives = dropout_keep(seed, first_row, column, keys, dropout, BLOCK_M, BLOCK_N)
                grad_a = tl.where(survives, grad_a * (1 / (1 - dropout)), 0.0)
            grad_t = c * grad_a - a * d[:, None]
            if grad_shift is not None:
                shifted += tl.sum(grad_t, 1)
            if grad_bias is not None:
                inside = (rows[:, None] < queries) & (columns[None, :] < keys)
                pointers = grad_bias + rows[:, None].to(tl.int64) * stride_dm + columns[None, :]
                tl.atomic_add(pointers, grad_t, mask=inside)
            if cap is not None:
                grad_t *= slope
            summed += matmul(rounded(grad_t, k.dtype, PRECISION), k, PRECISION)
    store_rows(grad_query, summed * (scale * LN2), first_row, heads * HEAD, queries, BLOCK_M, HEAD, HEAD_PAD, PRECISION)
    if grad_shift is not None:
        tl.store(grad_shift + row_offsets, shifted, mask=rows < queries)


@kernel
def key_value_gradient_kernel(
    query, key, value, grad_context, grad_key, grad_value, normaliser, delta,
    keep, bias, shifts, seed, query_starts, key_starts,
    stride_qz, stride_qh, stride_qn, stride_kz, stride_kh, stride_kn, stride_vz, stride_vh, stride_vn,
    stride_gz, stride_gh, stride_gn, stride_mz, stride_mh, stride_mm, stride_bz, stride_bh, stride_bm,
    heads, groups, longest, query_rows, key_rows, scale, shift, cap, dropout, window,
    HEAD: tl.constexpr, VALUE: tl.constexpr, HEAD_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    SIGNED: tl.constexpr, EXACT: tl.constexpr, LEVELLED: tl.constexpr, CAUSAL: tl.constexpr, PER_KEY: tl.constexpr,
    SHIFTED: tl.constexpr, UNIT: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The gradients of one block of keys and values, summed over the heads that share them.

    Blocks of scores are `[keys, queries]`, so that no product is transposed.
    """
    key_heads = heads // groups
    sequence, first_column = program_block(longest, BLOCK_N)
    key_head, example = sequence % key_heads, sequence // key_heads
    z, query_start, queries = extent(query_starts, example, query_rows)
    _, key_start, keys = extent(key_starts, example, key_rows)
    if first_column >= keys:
        return
    key = of_head(key, z, key_head, key_start, stride_kz, stride_kh, stride_kn, UNIT)
    value = of_head(value, z, key_head, key_start, stride_vz, stride_vh, stride_vn, UNIT)
    grad_key = of_output(grad_key, z, key_head, key_start, key_rows, key_heads, HEAD)
    grad_value = of_output(grad_value, z, key_head, key_start, key_rows, key_heads, VALUE)
    columns = first_column + tl.arange(0, BLOCK_N)[:, None]
    k = load_rows(key, first_column, in_units(stride_kn, UNIT), keys, BLOCK_N, HEAD, HEAD_PAD)
    v = load_rows(value, first_column, in_units(stride_vn, UNIT), keys, BLOCK_N, VALUE, VALUE_PAD)
    for_key = tl.zeros([BLOCK_N, HEAD_PAD], tl.float32)
    for_value = tl.zeros([BLOCK_N, VALUE_PAD], tl.float32)
    for group in range(groups):
        h = key_head * groups + group
        head_query = of_head(query, z, h, query_start, stride_qz, stride_qh, stride_qn, UNIT)
        head_grad = of_head(grad_context, z, h, query_start, stride_gz, stride_gh, stride_gn, UNIT)
        row_offset = offset(0, z, h, query_start, heads * query_rows, query_rows, 1)
        head_keep, head_bias, head_seed = keep, bias, seed
        if keep is not None:
            head_keep = offset(keep, z, h, 0, stride_mz, stride_mh, 0)
        if bias is not None:
            head_bias = offset(bias, z, h, 0, stride_bz, stride_bh, 0)
        if seed is not None:
            head_seed = tl.load(seed) + example * heads + h  # one seed per head and example
        head_shift = shift_of(shifts, shift, h)
        careful = SIGNED and EXACT
        if SIGNED and not EXACT:
            careful = has_small_rows(normaliser + row_offset, queries)
        first, whole, partial, last = rows_in_reach(
            head_keep, first_column, queries, keys, window, PER_KEY, CAUSAL, BLOCK_M, BLOCK_N
        )
        for part in tl.static_range(3):
            begin = first if part == 0 else (whole if part == 1 else partial)
            end = whole if part == 0 else (partial if part == 1 else last)
            for row in range(begin, end, BLOCK_M):
                rows = row + tl.arange(0, BLOCK_M)
                q = load_rows(head_query, row, in_units(stride_qn, UNIT), queries, BLOCK_M, HEAD, HEAD_PAD)
                g = load_rows(head_grad, row, in_units(stride_gn, UNIT), queries, BLOCK_M, VALUE, VALUE_PAD)
                # 2^-inf = 0 for rows after the last one
                log_total = tl.load(normaliser + row_offset + rows, mask=rows < queries, other=float("inf"))
                level = tl.abs(log_total) if SIGNED else log_total
                d = tl.load(delta + row_offset + rows, mask=rows < queries, other=0.0)
                t = matmul(k, tl.trans(q), PRECISION) * scale
                if cap is not None:
                    t = capped(t, cap)
                    slope = 1 - (t / cap) * (t / cap)
                t = with_terms(t, head_bias, rows[None, :], columns, queries, keys, stride_bm, head_shift, SHIFTED)
                if part != 1:
                    kept = kept_pairs(
                        head_keep, rows[None, :], columns, queries, keys, stride_mm, window, PER_KEY, CAUSAL
                    )
                    t = tl.where(kept, t, 0.0 if SIGNED else float("-inf"))
                a, c = hyperbolic(t, level[None, :], SIGNED)
                if careful:
                    a = restore_digits(a, c, t, level[None, :], (log_total < 0)[None, :], EXACT)
                if part != 1 and SIGNED:
                    c = tl.where(kept, c, 0.0)
                grad_a = matmul(v, tl.trans(g), PRECISION)
                applied = a
                if seed is not None:
                    survives = tl.trans(dropout_keep(head_seed, row, first_column, keys, dropout, BLOCK_M, BLOCK_N))
                    grad_a = tl.where(survives, grad_a * (1 / (1 - dropout)), 0.0)
                    applied = tl.where(survives, a * (1 / (1 - dropout)), 0.0)
                for_value += matmul(rounded(applied, g.dtype, PRECISION), g, PRECISION)
                grad_t = c * grad_a - a * d[None, :]
                if cap is not None:
                    grad_t *= slope
                for_key += matmul(rounded(grad_t, q.dtype, PRECISION), q, PRECISION)
    grad_key_stride, grad_value_stride = key_heads * HEAD, key_heads * VALUE
    store_rows(
        grad_key, for_key * (scale * LN2), first_column, grad_key_stride, keys, BLOCK_N, HEAD, HEAD_PAD, PRECISION
    )
    store_rows(grad_value, for_value, first_column, grad_value_stride, keys, BLOCK_N, VALUE, VALUE_PAD, PRECISION)


@kernel
def decode_kernel(
    query, key, value, context, normaliser, keep, bias, shifts,
    stride_qz, stride_qh, stride_qn, stride_kz, stride_kh, stride_kn, stride_vz, stride_vh, stride_vn,
    stride_mz, stride_mh, stride_mm, stride_bz, stride_bh, stride_bm,
    heads, groups, splits, span, queries, keys, scale, shift, cap,
    HEAD: tl.constexpr, VALUE: tl.constexpr, HEAD_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    SIGNED: tl.constexpr, EXACT: tl.constexpr, LEVELLED: tl.constexpr, CAUSAL: tl.constexpr, PER_KEY: tl.constexpr,
    SHIFTED: tl.constexpr, UNIT: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The context of one or a few queries, as in decoding, over `span` keys: `[splits, batch, queries, heads, VALUE]`.

    Too few queries to keep a GPU busy, so their keys are split among programs; `merge_kernel` merges the parts by the
    logarithms of their normalisers (Dao et al. 2023, "Flash-Decoding"). The heads that share keys are rows of one
    block, so that keys are read once.
    """
    key_heads = heads // groups
    split, sequence = tl.program_id(0) % splits, tl.program_id(0) // splits
    z, key_head = sequence // key_heads, sequence % key_heads
    r = tl.arange(0, BLOCK_M)
    valid = r < groups * queries
    h = key_head * groups + tl.where(valid, r // queries, 0)
    rows = tl.where(valid, r % queries, queries)
    key = of_head(key, z, key_head, 0, stride_kz, stride_kh, stride_kn, UNIT)
    value = of_head(value, z, key_head, 0, stride_vz, stride_vh, stride_vn, UNIT)
    first = split * span
    partial, last = keys, keys
    if PER_KEY:
        keep = offset(keep, z, 0, 0, stride_mz, 0, 0)
        partial, last = kept_extent(keep, keys)
    elif keep is not None:
        keep, partial = offset(keep, z, h, 0, stride_mz, stride_mh, 0)[:, None], 0
    if bias is not None:
        bias = offset(bias, z, h, 0, stride_bz, stride_bh, 0)[:, None]
    last = tl.minimum(last, first + span)
    partial = tl.maximum(tl.minimum(partial, last) // BLOCK_N * BLOCK_N, first)
    shift = shift_of(shifts, shift, h)
    if shifts is not None:
        shift = shift[:, None]
    d = tl.arange(0, HEAD_PAD)[None, :]
    pointers = of_head(query, z, h, rows, stride_qz, stride_qh, stride_qn, UNIT)[:, None] + d
    q = tl.load(pointers, mask=valid[:, None] & (d < HEAD), other=0.0)
    log_total, summed = attend_block(
        q, key, value, keep, bias, None, rows, stride_kn, stride_vn, stride_mm, stride_bm, 0, queries, keys,
        first, first, partial, last, scale, shift, cap, 0.0, None, HEAD, VALUE, HEAD_PAD, VALUE_PAD, SIGNED, EXACT,
        LEVELLED, CAUSAL, PER_KEY, SHIFTED, UNIT, PRECISION, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    batch = tl.num_programs(0) // (splits * key_heads)
    example = tl.cast(split, tl.int64) * batch + z
    d = tl.arange(0, VALUE_PAD)[None, :]
    pointers = context + ((example * queries + rows) * heads + h)[:, None] * VALUE + d
    tl.store(pointers, rounded(summed, context.dtype.element_ty, PRECISION), mask=valid[:, None] & (d < VALUE))
    tl.store(normaliser + (example * heads + h) * queries + rows, log_total, mask=valid)


@kernel
def merge_kernel(
    parts, log_totals, context, normaliser, heads, splits, queries,
    VALUE: tl.constexpr, VALUE_PAD: tl.constexpr, SIGNED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The context and normaliser of one query of one head from those of its parts, `MOST_SPLITS` at most."""
    programs, at = tl.num_programs(0), tl.program_id(0)
    query, z, h = at % queries, at // (heads * queries), at // queries % heads
    s, d = tl.arange(0, MOST_SPLITS), tl.arange(0, VALUE_PAD)
    log_total = tl.load(log_totals + tl.cast(s, tl.int64) * programs + at, mask=s < splits, other=float("inf"))
    empty = log_total == float("inf")
    level = tl.where(empty, -float("inf"), tl.abs(log_total) if SIGNED else log_total)
    highest = tl.max(level, 0)
    highest = tl.where(highest == -float("inf"), 0.0, highest)
    weight = tl.exp2(level - highest)
    total = tl.sum(weight, 0)
    row = (tl.cast(z, tl.int64) * queries + query) * heads + h
    pointers = parts + (tl.cast(s, tl.int64)[:, None] * programs + row) * VALUE + d[None, :]
    part = tl.load(pointers, mask=(s < splits)[:, None] & (d < VALUE)[None, :], other=0.0)
    summed = tl.sum(part * weight[:, None], 0) / tl.where(total == 0, 1.0, total)
    tl.store(context + row * VALUE + d, rounded(summed, context.dtype.element_ty, PRECISION), mask=d < VALUE)
    joint = tl.where(total == 0, float("inf"), highest + tl.log2(total))
    if SIGNED:  # a row is marked as one of only small scores if all of its parts are
        largest = tl.max(tl.where(empty, -float("inf"), log_total), 0)
        joint = tl.where((largest < 0) & (total != 0), -joint, joint)
    tl.store(normaliser + at, joint)
