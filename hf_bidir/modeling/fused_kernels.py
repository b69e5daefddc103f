"""Signed attention in Triton, without storing coefficients.

Each row stores its context and one number, the base-2 logarithm of its normaliser. From that number the backward pass
recomputes the coefficients block by block (Dao 2023, FlashAttention-2, with `sinh` in place of `exp` for the values and
`cosh` in the normaliser). Scores are in base 2, `t = (query · key * scaling + shift) * log2(e)`, because the hardware
computes `2^x`.
"""

from .attention_inputs import INTERPRETED
from .fused_blocks import (
    LINEAR_BELOW,
    LN2,
    columns_in_reach,
    dropout_keep,
    extent,
    hyperbolic,
    kept_pairs,
    load_rows,
    matmul,
    offset,
    program_block,
    restore_digits,
    rounded,
    rows_in_reach,
    scores_of,
    store_rows,
    tl,  # imported there with a helpful error if Triton is missing
    triton,
)

FEW_KEYS = tl.constexpr(32)  # keys per block in the second pass, which must not need more registers than the first


def tuned(*configs: tuple):
    """Autotune a kernel over tilings (queries, keys, warps, stages)."""
    # Triton itself adds to the key which of the optional tensors are given.
    key = ["HEAD_PAD", "VALUE_PAD", "SIGNED", "CAUSAL", "length_class"]
    if INTERPRETED:
        return triton.autotune([triton.Config({"BLOCK_M": 16, "BLOCK_N": 16})], key)
    configs = [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=warps, num_stages=stages)
        for m, n, warps, stages in configs
    ]
    return triton.autotune(configs, key, prune_configs_by={"early_config_prune": _sensible})


def _sensible(configs, arguments, EXACT: bool, **_):
    """Keep small blocks for fp32, whose three tf32 products need more registers, and large ones for half precision."""
    sizes = [config.kwargs["BLOCK_M"] * config.kwargs["BLOCK_N"] for config in configs]
    return [c for c, size in zip(configs, sizes, strict=True) if (size <= 64 * 32 if EXACT else size >= 32 * 32)]


# On an H200 each large tiling with 3 stages was the fastest in some case of benchmarks/fused_tilings.py, or within 2 %
# of it. Those with 2 stages and the small ones are for GPUs with less shared memory, large heads, and fp32.
@tuned(
    (128, 128, 8, 3), (128, 128, 8, 2), (64, 128, 4, 3), (128, 64, 8, 3), (128, 64, 4, 3), (64, 64, 4, 3),
    (64, 32, 4, 2), (32, 32, 4, 1), (16, 32, 4, 1),
)  # fmt: skip
@triton.jit(do_not_specialize=["length_class"])
def forward_kernel(
    query, key, value, context, normaliser, keep, bounds, shift, seed, query_starts, key_starts,
    stride_qz, stride_qh, stride_qn, stride_kz, stride_kh, stride_kn, stride_vz, stride_vh, stride_vn,
    stride_cz, stride_ch, stride_cn, stride_mz, stride_mh, stride_mm, stride_mn, stride_bz, stride_bh,
    heads, groups, longest, length_class, query_rows, key_rows, scale, dropout, survival, window,
    HEAD: tl.constexpr, VALUE: tl.constexpr, HEAD_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    SIGNED: tl.constexpr, EXACT: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The context and the normaliser of one block of queries, of one head of one example."""
    sequence, first_row = program_block(longest, BLOCK_M)
    h = sequence % heads
    z, query_start, queries = extent(query_starts, sequence // heads, query_rows)
    _, key_start, keys = extent(key_starts, sequence // heads, key_rows)
    if first_row >= queries:
        return
    query = offset(query, z, h, query_start, stride_qz, stride_qh, stride_qn)
    key = offset(key, z, h // groups, key_start, stride_kz, stride_kh, stride_kn)
    value = offset(value, z, h // groups, key_start, stride_vz, stride_vh, stride_vn)
    context = offset(context, z, h, query_start, stride_cz, stride_ch, stride_cn)
    normaliser = offset(normaliser, z, h, query_start, heads * query_rows, query_rows, 1)
    if keep is not None:
        keep = offset(keep, z, h, 0, stride_mz, stride_mh, 0)
    if bounds is not None:
        bounds = offset(bounds, z, h, 0, stride_bz, stride_bh, 0)
    first, whole, partial, last = columns_in_reach(keep, bounds, first_row, keys, window, CAUSAL, BLOCK_M, BLOCK_N)
    if seed is not None:
        seed = tl.load(seed) + sequence  # one seed per head and example
    q = load_rows(query, first_row, stride_qn, queries, BLOCK_M, HEAD, HEAD_PAD)
    total, peak, summed = attend_block(
        q, key, value, keep, bounds, shift, seed, stride_kn, stride_vn, stride_mm, stride_mn, h, first_row, queries,
        keys, first, whole, partial, last, scale, dropout, window, HEAD, VALUE, HEAD_PAD, VALUE_PAD, SIGNED, EXACT,
        CAUSAL, PRECISION, BLOCK_M, BLOCK_N, 0 if window is not None else 1, EXACT,
    )  # fmt: skip
    rows = first_row + tl.arange(0, BLOCK_M)
    if SIGNED and not EXACT:
        # Rare with more than a few keys. A second pass for these rows is cheaper than more work in every first pass.
        small = (rows < queries) & (peak > 0) & (peak < LINEAR_BELOW)
        if tl.max(small.to(tl.int32), 0) > 0:
            total, peak, summed = attend_block(
                q, key, value, keep, bounds, shift, seed, stride_kn, stride_vn, stride_mm, stride_mn, h, first_row,
                queries, keys, first, first, first, last, scale, dropout, window, HEAD, VALUE, HEAD_PAD, VALUE_PAD,
                SIGNED, EXACT, CAUSAL, PRECISION, BLOCK_M, FEW_KEYS, 2, True,
            )  # fmt: skip
    if SIGNED:  # beyond 2^31 the rounding error of the level exceeds the range of an exponent
        total = tl.where(peak < 2147483648.0, total, float("nan"))
    empty = total == 0
    total = tl.where(empty, 1.0, total)
    summed *= (survival / total)[:, None]
    store_rows(context, summed, first_row, stride_cn, queries, BLOCK_M, VALUE, VALUE_PAD, PRECISION)
    log_total = tl.where(empty, float("inf"), peak + tl.log2(total))
    if SIGNED and not EXACT:  # at least 1, since 2 cosh is at least 2, so the sign can mark rows of small scores
        log_total = tl.where(small, -log_total, log_total)
    tl.store(normaliser + rows, log_total, mask=rows < queries)


@triton.jit
def attend_block(
    q, key, value, keep, bounds, shift, seed, stride_kn, stride_vn, stride_mm, stride_mn, h, first_row, queries,
    keys, first, whole, partial, last, scale, dropout, window,
    HEAD: tl.constexpr, VALUE: tl.constexpr, HEAD_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    SIGNED: tl.constexpr, EXACT: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    FIRST_PART: tl.constexpr, CAREFUL: tl.constexpr,
):  # fmt: skip
    """The normaliser of every row, its level, and the sum of sinh times values, over all keys in reach."""
    total, peak = tl.zeros([BLOCK_M], tl.float32), tl.zeros([BLOCK_M], tl.float32)
    if not SIGNED:
        peak += float("-inf")
    summed = tl.zeros([BLOCK_M, VALUE_PAD], tl.float32)
    # Three parts: keys cut by the window; keys without any masked pair, which need no mask; keys cut by the end, the
    # padding, the diagonal or the window.
    for part in tl.static_range(FIRST_PART, 3):
        begin = first if part == 0 else (whole if part == 1 else partial)
        end = whole if part == 0 else (partial if part == 1 else last)
        for column in range(begin, end, BLOCK_N):
            k = load_rows(key, column, stride_kn, keys, BLOCK_N, HEAD, HEAD_PAD)
            t, unit = matmul(q, tl.trans(k), PRECISION), scale
            if shift is not None:
                t, unit = t * scale + tl.load(shift + h), 1.0
            if part != 1:
                kept = kept_pairs(
                    keep, bounds, first_row, column, queries, keys, stride_mm, stride_mn, window, CAUSAL,
                    BLOCK_M, BLOCK_N,
                )  # fmt: skip
                t = tl.where(kept, t, 0.0 if SIGNED else float("-inf"))
            higher = tl.maximum(peak, tl.max(tl.abs(t) if SIGNED else t, 1) * unit)
            # A softmax row without keys so far has no peak, and 2^(-inf - -inf) would be NaN.
            level = higher if SIGNED else tl.where(higher == float("-inf"), 0.0, higher)
            t *= unit  # after the maximum, so that it is fused with the subtraction of the level
            sinh, cosh = hyperbolic(t, level[:, None], SIGNED)
            if SIGNED and CAREFUL:
                sinh = restore_digits(sinh, cosh, t, level[:, None], (level < LINEAR_BELOW)[:, None], EXACT)
            if part != 1 and SIGNED:
                cosh = tl.where(kept, cosh, 0.0)
            fading = tl.exp2(peak - level)
            total = total * fading + tl.sum(cosh, 1)
            if seed is not None:
                sinh = tl.where(dropout_keep(seed, first_row, column, keys, dropout, BLOCK_M, BLOCK_N), sinh, 0.0)
            v = load_rows(value, column, stride_vn, keys, BLOCK_N, VALUE, VALUE_PAD)
            summed = summed * fading[:, None] + matmul(rounded(sinh, v.dtype, PRECISION), v, PRECISION)
            peak = higher
    return total, peak, summed


@tuned((128, 64, 8, 3), (64, 64, 4, 3), (64, 64, 4, 2), (64, 32, 4, 2), (32, 32, 4, 1), (16, 32, 4, 1))
@triton.jit(do_not_specialize=["length_class"])
def query_gradient_kernel(
    query, key, value, context, grad_context, grad_query, normaliser, delta, grad_shift, keep, bounds, shift, seed,
    query_starts, key_starts,
    stride_qz, stride_qh, stride_qn, stride_kz, stride_kh, stride_kn, stride_vz, stride_vh, stride_vn,
    stride_cz, stride_ch, stride_cn, stride_gz, stride_gh, stride_gn, stride_dz, stride_dh, stride_dn,
    stride_mz, stride_mh, stride_mm, stride_mn, stride_bz, stride_bh,
    heads, groups, longest, length_class, query_rows, key_rows, scale, dropout, survival, window,
    HEAD: tl.constexpr, VALUE: tl.constexpr, HEAD_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    SIGNED: tl.constexpr, EXACT: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The gradient of one block of queries; also `delta = rowsum(dO ∘ O)` and the gradient of the shift per row."""
    sequence, first_row = program_block(longest, BLOCK_M)
    h = sequence % heads
    z, query_start, queries = extent(query_starts, sequence // heads, query_rows)
    _, key_start, keys = extent(key_starts, sequence // heads, key_rows)
    if first_row >= queries:
        return
    query = offset(query, z, h, query_start, stride_qz, stride_qh, stride_qn)
    key = offset(key, z, h // groups, key_start, stride_kz, stride_kh, stride_kn)
    value = offset(value, z, h // groups, key_start, stride_vz, stride_vh, stride_vn)
    context = offset(context, z, h, query_start, stride_cz, stride_ch, stride_cn)
    grad_context = offset(grad_context, z, h, query_start, stride_gz, stride_gh, stride_gn)
    grad_query = offset(grad_query, z, h, query_start, stride_dz, stride_dh, stride_dn)
    if keep is not None:
        keep = offset(keep, z, h, 0, stride_mz, stride_mh, 0)
    if bounds is not None:
        bounds = offset(bounds, z, h, 0, stride_bz, stride_bh, 0)
    first, whole, partial, last = columns_in_reach(keep, bounds, first_row, keys, window, CAUSAL, BLOCK_M, BLOCK_N)
    if seed is not None:
        seed = tl.load(seed) + sequence  # one seed per head and example
    rows = first_row + tl.arange(0, BLOCK_M)
    row_offsets = offset(rows, z, h, query_start, heads * query_rows, query_rows, 1)
    q = load_rows(query, first_row, stride_qn, queries, BLOCK_M, HEAD, HEAD_PAD)
    g = load_rows(grad_context, first_row, stride_gn, queries, BLOCK_M, VALUE, VALUE_PAD)
    o = load_rows(context, first_row, stride_cn, queries, BLOCK_M, VALUE, VALUE_PAD)
    d = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    log_total = tl.load(normaliser + row_offsets, mask=rows < queries, other=float("inf"))
    level = tl.abs(log_total) if SIGNED else log_total
    tl.store(delta + row_offsets, d, mask=rows < queries)
    summed, shifted = tl.zeros([BLOCK_M, HEAD_PAD], tl.float32), tl.zeros([BLOCK_M], tl.float32)
    for part in tl.static_range(0 if window is not None else 1, 3):
        begin = first if part == 0 else (whole if part == 1 else partial)
        end = whole if part == 0 else (partial if part == 1 else last)
        for column in range(begin, end, BLOCK_N):
            k = load_rows(key, column, stride_kn, keys, BLOCK_N, HEAD, HEAD_PAD)
            v = load_rows(value, column, stride_vn, keys, BLOCK_N, VALUE, VALUE_PAD)
            t = scores_of(q, tl.trans(k), scale, shift, h, PRECISION)
            if part != 1:
                kept = kept_pairs(
                    keep, bounds, first_row, column, queries, keys, stride_mm, stride_mn, window, CAUSAL,
                    BLOCK_M, BLOCK_N,
                )  # fmt: skip
                t = tl.where(kept, t, 0.0 if SIGNED else float("-inf"))
            a, c = hyperbolic(t, level[:, None], SIGNED)
            if part != 1 and SIGNED:
                c = tl.where(kept, c, 0.0)
            grad_a = matmul(g, tl.trans(v), PRECISION)
            if seed is not None:
                survives = dropout_keep(seed, first_row, column, keys, dropout, BLOCK_M, BLOCK_N)
                grad_a = tl.where(survives, grad_a * survival, 0.0)
            grad_t = c * grad_a - a * d[:, None]
            if shift is not None:
                shifted += tl.sum(grad_t, 1)
            summed += matmul(rounded(grad_t, k.dtype, PRECISION), k, PRECISION)
    store_rows(grad_query, summed * (scale * LN2), first_row, stride_dn, queries, BLOCK_M, HEAD, HEAD_PAD, PRECISION)
    if shift is not None:
        tl.store(grad_shift + row_offsets, shifted, mask=rows < queries)


@tuned((64, 128, 8, 3), (32, 128, 4, 3), (64, 64, 4, 3), (32, 64, 4, 3), (32, 64, 4, 2), (32, 32, 4, 1), (32, 16, 4, 1))
@triton.jit(do_not_specialize=["length_class"])
def key_value_gradient_kernel(
    query, key, value, grad_context, grad_key, grad_value, normaliser, delta, small, keep, bounds, shift, seed,
    query_starts, key_starts,
    stride_qz, stride_qh, stride_qn, stride_kz, stride_kh, stride_kn, stride_vz, stride_vh, stride_vn,
    stride_gz, stride_gh, stride_gn, stride_dz, stride_dh, stride_dn, stride_ez, stride_eh, stride_en,
    stride_mz, stride_mh, stride_mm, stride_mn, stride_bz, stride_bh,
    heads, groups, longest, length_class, query_rows, key_rows, scale, dropout, survival, window,
    HEAD: tl.constexpr, VALUE: tl.constexpr, HEAD_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    SIGNED: tl.constexpr, EXACT: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The gradients of one block of keys and values, summed over the heads that share them.

    Blocks of scores are `[keys, queries]`, so that no product is transposed.
    """
    sequence, first_column = program_block(longest, BLOCK_N)
    key_head, example = sequence % (heads // groups), sequence // (heads // groups)
    z, query_start, queries = extent(query_starts, example, query_rows)
    _, key_start, keys = extent(key_starts, example, key_rows)
    if first_column >= keys:
        return
    key = offset(key, z, key_head, key_start, stride_kz, stride_kh, stride_kn)
    value = offset(value, z, key_head, key_start, stride_vz, stride_vh, stride_vn)
    grad_key = offset(grad_key, z, key_head, key_start, stride_dz, stride_dh, stride_dn)
    grad_value = offset(grad_value, z, key_head, key_start, stride_ez, stride_eh, stride_en)
    k = load_rows(key, first_column, stride_kn, keys, BLOCK_N, HEAD, HEAD_PAD)
    v = load_rows(value, first_column, stride_vn, keys, BLOCK_N, VALUE, VALUE_PAD)
    for_key = tl.zeros([BLOCK_N, HEAD_PAD], tl.float32)
    for_value = tl.zeros([BLOCK_N, VALUE_PAD], tl.float32)
    for group in range(groups):
        h = key_head * groups + group
        head_query = offset(query, z, h, query_start, stride_qz, stride_qh, stride_qn)
        head_grad = offset(grad_context, z, h, query_start, stride_gz, stride_gh, stride_gn)
        head_keep, head_bounds, head_seed = keep, bounds, seed
        if keep is not None:
            head_keep = offset(keep, z, h, 0, stride_mz, stride_mh, 0)
        if bounds is not None:
            head_bounds = offset(bounds, z, h, 0, stride_bz, stride_bh, 0)
        if seed is not None:
            head_seed = tl.load(seed) + example * heads + h  # one seed per head and example
        careful = SIGNED and EXACT
        if small is not None:  # half precision and TanhMax: whether the head has rows of only small scores
            careful = tl.load(small + z * heads + h) != 0
        first, whole, partial, last = rows_in_reach(
            head_keep, head_bounds, first_column, queries, keys, window, CAUSAL, BLOCK_M, BLOCK_N
        )
        for part in tl.static_range(3):
            begin = first if part == 0 else (whole if part == 1 else partial)
            end = whole if part == 0 else (partial if part == 1 else last)
            for row in range(begin, end, BLOCK_M):
                rows = row + tl.arange(0, BLOCK_M)
                row_offsets = offset(rows, z, h, query_start, heads * query_rows, query_rows, 1)
                q = load_rows(head_query, row, stride_qn, queries, BLOCK_M, HEAD, HEAD_PAD)
                g = load_rows(head_grad, row, stride_gn, queries, BLOCK_M, VALUE, VALUE_PAD)
                # 2^-inf = 0 for rows after the last one
                log_total = tl.load(normaliser + row_offsets, mask=rows < queries, other=float("inf"))
                level = tl.abs(log_total) if SIGNED else log_total
                d = tl.load(delta + row_offsets, mask=rows < queries, other=0.0)
                t = scores_of(k, tl.trans(q), scale, shift, h, PRECISION)
                if part != 1:
                    kept = kept_pairs(
                        head_keep, head_bounds, row, first_column, queries, keys, stride_mm, stride_mn, window, CAUSAL,
                        BLOCK_M, BLOCK_N,
                    )  # fmt: skip
                    kept = tl.trans(kept)
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
                    grad_a = tl.where(survives, grad_a * survival, 0.0)
                    applied = tl.where(survives, a * survival, 0.0)
                for_value += matmul(rounded(applied, g.dtype, PRECISION), g, PRECISION)
                grad_t = c * grad_a - a * d[None, :]
                for_key += matmul(rounded(grad_t, q.dtype, PRECISION), q, PRECISION)
    store_rows(grad_key, for_key * (scale * LN2), first_column, stride_dn, keys, BLOCK_N, HEAD, HEAD_PAD, PRECISION)
    store_rows(grad_value, for_value, first_column, stride_en, keys, BLOCK_N, VALUE, VALUE_PAD, PRECISION)
