"""Signed attention in Triton: one product with the keys, one with the values, and no coefficient that is stored.

A row keeps one number besides its context, the base-2 logarithm of its normaliser; from it the backward pass makes the
coefficients again, block by block (Dao 2023, FlashAttention-2, with `sinh` for `exp` in the product and `cosh` in the
sum). Scores are held in base 2, `t = (query · key * scaling + shift) * log2(e)`, since the hardware computes `2^x`.
"""

import os

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError(
        'implementation="fused" needs Triton, which comes with torch for CUDA on Linux (pip install triton); '
        '"auto" does without it.'
    ) from error

LN2 = tl.constexpr(0.6931471805599453)
# Of |t|: below it 2^t - 2^-t would cancel. Half precision needs no more than sinh(s) = s there, exact to 7e-5, as the
# difference is above it; fp32 gets four terms of the series, exact to 1e-8.
LINEAR_BELOW, SERIES_BELOW = tl.constexpr(0.0144), tl.constexpr(0.7)
PHILOX_ROUNDS = tl.constexpr(7)  # as many as Salmon et al. 2011 found to pass every test of randomness
# The kernels run without a GPU, slowly; Triton looks at the variable when it is imported.
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y")


def tuned(*sizes: tuple[int, int, int, int]):
    """A kernel with the fastest of these (queries, keys, warps, stages), tried when a kind of input first comes."""
    configs = [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=warps, num_stages=stages) for m, n, warps, stages in sizes
    ]
    # Which of the optional tensors are there is part of the key by itself.
    key = ["HEAD_PAD", "VALUE_PAD", "SIGNED", "CAUSAL", "length_class"]
    if INTERPRETED:
        return triton.autotune([triton.Config({"BLOCK_M": 16, "BLOCK_N": 16})], key)
    return triton.autotune(configs, key, prune_configs_by={"early_config_prune": _sensible})


def _sensible(configs, arguments, EXACT: bool, **_):
    """fp32 products are three of tf32, which hold more in registers: small blocks. Half precision needs large ones."""
    sizes = [config.kwargs["BLOCK_M"] * config.kwargs["BLOCK_N"] for config in configs]
    return [c for c, size in zip(configs, sizes, strict=True) if (size <= 64 * 32 if EXACT else size >= 32 * 32)]


@tuned(
    (128, 128, 8, 2), (128, 64, 8, 3), (128, 64, 4, 3), (64, 64, 4, 3), (64, 32, 4, 2), (32, 32, 4, 1), (16, 32, 4, 1)
)  # fmt: skip
@triton.jit(do_not_specialize=["length_class"])
def forward_kernel(
    query, key, value, context, normaliser, keep, bounds, shift, seed, query_starts, key_starts,
    stride_qz, stride_qh, stride_qn, stride_kz, stride_kh, stride_kn, stride_vz, stride_vh, stride_vn,
    stride_cz, stride_ch, stride_cn, stride_mz, stride_mh, stride_mm, stride_mn, stride_bz, stride_bh,
    heads, longest, length_class, query_rows, key_rows, scale, dropout, survival, window,
    HEAD: tl.constexpr, VALUE: tl.constexpr, HEAD_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    SIGNED: tl.constexpr, EXACT: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The context and the normaliser of one block of queries, of one head of one example."""
    place, first_row = _place(longest, BLOCK_M)
    h = place % heads
    z, query_start, queries = _example(query_starts, place // heads, query_rows)
    _, key_start, keys = _example(key_starts, place // heads, key_rows)
    if first_row >= queries:
        return
    query = _at(query, z, h, query_start, stride_qz, stride_qh, stride_qn)
    key = _at(key, z, h, key_start, stride_kz, stride_kh, stride_kn)
    value = _at(value, z, h, key_start, stride_vz, stride_vh, stride_vn)
    context = _at(context, z, h, query_start, stride_cz, stride_ch, stride_cn)
    normaliser = _at(normaliser, z, h, query_start, heads * query_rows, query_rows, 1)
    if keep is not None:
        keep = _at(keep, z, h, 0, stride_mz, stride_mh, 0)
    if bounds is not None:
        bounds = _at(bounds, z, h, 0, stride_bz, stride_bh, 0)
    first, whole, partial, last = _columns(keep, bounds, first_row, keys, window, CAUSAL, BLOCK_M, BLOCK_N)
    if seed is not None:
        seed = tl.load(seed) + place  # every head of every example has its own
    q = _load(query, first_row, stride_qn, queries, BLOCK_M, HEAD, HEAD_PAD)
    total, peak = tl.zeros([BLOCK_M], tl.float32), tl.zeros([BLOCK_M], tl.float32)
    if not SIGNED:
        peak += float("-inf")
    summed = tl.zeros([BLOCK_M, VALUE_PAD], tl.float32)
    # Blocks of keys that count as a whole need no mask; before them come those that the window cuts, after them
    # those that the end, the padding, the diagonal or the window cuts.
    for part in tl.static_range(0 if window is not None else 1, 3):
        begin = first if part == 0 else (whole if part == 1 else partial)
        end = whole if part == 0 else (partial if part == 1 else last)
        for column in range(begin, end, BLOCK_N):
            k = _load(key, column, stride_kn, keys, BLOCK_N, HEAD, HEAD_PAD)
            t = _scores(q, tl.trans(k), scale, shift, h, PRECISION)
            if part != 1:
                kept = _kept(
                    keep, bounds, first_row, column, queries, keys, stride_mm, stride_mn, window, CAUSAL,
                    BLOCK_M, BLOCK_N,
                )  # fmt: skip
                t = tl.where(kept, t, 0.0 if SIGNED else float("-inf"))
            higher = tl.maximum(peak, tl.max(tl.abs(t) if SIGNED else t, 1))
            # A row of softmax that has met no key has no peak, and 2^(-inf - -inf) would be NaN.
            level = higher if SIGNED else tl.where(higher == float("-inf"), 0.0, higher)
            sinh, cosh = _hyperbolic(t, level[:, None], (level < LINEAR_BELOW)[:, None], SIGNED, EXACT)
            if part != 1 and SIGNED:
                cosh = tl.where(kept, cosh, 0.0)
            fading = tl.exp2(peak - level)
            total = total * fading + tl.sum(cosh, 1)
            if seed is not None:
                sinh = tl.where(_survives(seed, first_row, column, keys, dropout, BLOCK_M, BLOCK_N), sinh, 0.0)
            v = _load(value, column, stride_vn, keys, BLOCK_N, VALUE, VALUE_PAD)
            summed = summed * fading[:, None] + _dot(_rounded(sinh, v.dtype, PRECISION), v, PRECISION)
            peak = higher
    rows = first_row + tl.arange(0, BLOCK_M)
    empty = total == 0
    total = tl.where(empty, 1.0, total)
    summed *= (survival / total)[:, None]
    _store(context, summed, first_row, stride_cn, queries, BLOCK_M, VALUE, VALUE_PAD, PRECISION)
    log_total = tl.where(empty, float("inf"), peak + tl.log2(total))
    if SIGNED:  # at least 1, since 2 cosh is at least 2: its sign is free to say that all scores of a row are small
        log_total = tl.where((peak < LINEAR_BELOW) & (log_total < float("inf")), -log_total, log_total)
    tl.store(normaliser + rows, log_total, mask=rows < queries)


@tuned((128, 64, 8, 2), (128, 32, 8, 2), (64, 64, 4, 2), (64, 32, 4, 2), (32, 32, 4, 1), (16, 32, 4, 1))
@triton.jit(do_not_specialize=["length_class"])
def query_gradient_kernel(
    query, key, value, context, grad_context, grad_query, normaliser, delta, grad_shift, keep, bounds, shift, seed,
    query_starts, key_starts,
    stride_qz, stride_qh, stride_qn, stride_kz, stride_kh, stride_kn, stride_vz, stride_vh, stride_vn,
    stride_cz, stride_ch, stride_cn, stride_gz, stride_gh, stride_gn, stride_dz, stride_dh, stride_dn,
    stride_mz, stride_mh, stride_mm, stride_mn, stride_bz, stride_bh,
    heads, longest, length_class, query_rows, key_rows, scale, dropout, survival, window,
    HEAD: tl.constexpr, VALUE: tl.constexpr, HEAD_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    SIGNED: tl.constexpr, EXACT: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The gradient of one block of queries; `delta = rowsum(dO ∘ O)` and the shift's gradient of every row besides."""
    place, first_row = _place(longest, BLOCK_M)
    h = place % heads
    z, query_start, queries = _example(query_starts, place // heads, query_rows)
    _, key_start, keys = _example(key_starts, place // heads, key_rows)
    if first_row >= queries:
        return
    query = _at(query, z, h, query_start, stride_qz, stride_qh, stride_qn)
    key = _at(key, z, h, key_start, stride_kz, stride_kh, stride_kn)
    value = _at(value, z, h, key_start, stride_vz, stride_vh, stride_vn)
    context = _at(context, z, h, query_start, stride_cz, stride_ch, stride_cn)
    grad_context = _at(grad_context, z, h, query_start, stride_gz, stride_gh, stride_gn)
    grad_query = _at(grad_query, z, h, query_start, stride_dz, stride_dh, stride_dn)
    if keep is not None:
        keep = _at(keep, z, h, 0, stride_mz, stride_mh, 0)
    if bounds is not None:
        bounds = _at(bounds, z, h, 0, stride_bz, stride_bh, 0)
    first, whole, partial, last = _columns(keep, bounds, first_row, keys, window, CAUSAL, BLOCK_M, BLOCK_N)
    if seed is not None:
        seed = tl.load(seed) + place  # every head of every example has its own
    rows = first_row + tl.arange(0, BLOCK_M)
    of_rows = _at(rows, z, h, query_start, heads * query_rows, query_rows, 1)
    q = _load(query, first_row, stride_qn, queries, BLOCK_M, HEAD, HEAD_PAD)
    g = _load(grad_context, first_row, stride_gn, queries, BLOCK_M, VALUE, VALUE_PAD)
    o = _load(context, first_row, stride_cn, queries, BLOCK_M, VALUE, VALUE_PAD)
    d = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    log_total = tl.load(normaliser + of_rows, mask=rows < queries, other=float("inf"))
    level = tl.abs(log_total) if SIGNED else log_total
    tl.store(delta + of_rows, d, mask=rows < queries)
    summed, shifted = tl.zeros([BLOCK_M, HEAD_PAD], tl.float32), tl.zeros([BLOCK_M], tl.float32)
    for part in tl.static_range(0 if window is not None else 1, 3):
        begin = first if part == 0 else (whole if part == 1 else partial)
        end = whole if part == 0 else (partial if part == 1 else last)
        for column in range(begin, end, BLOCK_N):
            k = _load(key, column, stride_kn, keys, BLOCK_N, HEAD, HEAD_PAD)
            v = _load(value, column, stride_vn, keys, BLOCK_N, VALUE, VALUE_PAD)
            t = _scores(q, tl.trans(k), scale, shift, h, PRECISION)
            if part != 1:
                kept = _kept(
                    keep, bounds, first_row, column, queries, keys, stride_mm, stride_mn, window, CAUSAL,
                    BLOCK_M, BLOCK_N,
                )  # fmt: skip
                t = tl.where(kept, t, 0.0 if SIGNED else float("-inf"))
            a, c = _hyperbolic(t, level[:, None], None, SIGNED, EXACT)
            if part != 1 and SIGNED:
                c = tl.where(kept, c, 0.0)
            grad_a = _dot(g, tl.trans(v), PRECISION)
            if seed is not None:
                survives = _survives(seed, first_row, column, keys, dropout, BLOCK_M, BLOCK_N)
                grad_a = tl.where(survives, grad_a * survival, 0.0)
            grad_t = c * grad_a - a * d[:, None]
            if shift is not None:
                shifted += tl.sum(grad_t, 1)
            summed += _dot(_rounded(grad_t, k.dtype, PRECISION), k, PRECISION)
    _store(grad_query, summed * (scale * LN2), first_row, stride_dn, queries, BLOCK_M, HEAD, HEAD_PAD, PRECISION)
    if shift is not None:
        tl.store(grad_shift + of_rows, shifted, mask=rows < queries)


@tuned((64, 128, 8, 2), (32, 128, 8, 2), (64, 64, 4, 2), (32, 64, 4, 2), (32, 32, 4, 1), (32, 16, 4, 1))
@triton.jit(do_not_specialize=["length_class"])
def key_value_gradient_kernel(
    query, key, value, grad_context, grad_key, grad_value, normaliser, delta, keep, bounds, shift, seed,
    query_starts, key_starts,
    stride_qz, stride_qh, stride_qn, stride_kz, stride_kh, stride_kn, stride_vz, stride_vh, stride_vn,
    stride_gz, stride_gh, stride_gn, stride_dz, stride_dh, stride_dn, stride_ez, stride_eh, stride_en,
    stride_mz, stride_mh, stride_mm, stride_mn, stride_bz, stride_bh,
    heads, longest, length_class, query_rows, key_rows, scale, dropout, survival, window,
    HEAD: tl.constexpr, VALUE: tl.constexpr, HEAD_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    SIGNED: tl.constexpr, EXACT: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The gradients of one block of keys and values; pieces are `[keys, queries]`, so that no product is transposed."""
    place, first_column = _place(longest, BLOCK_N)
    h = place % heads
    z, query_start, queries = _example(query_starts, place // heads, query_rows)
    _, key_start, keys = _example(key_starts, place // heads, key_rows)
    if first_column >= keys:
        return
    query = _at(query, z, h, query_start, stride_qz, stride_qh, stride_qn)
    key = _at(key, z, h, key_start, stride_kz, stride_kh, stride_kn)
    value = _at(value, z, h, key_start, stride_vz, stride_vh, stride_vn)
    grad_context = _at(grad_context, z, h, query_start, stride_gz, stride_gh, stride_gn)
    grad_key = _at(grad_key, z, h, key_start, stride_dz, stride_dh, stride_dn)
    grad_value = _at(grad_value, z, h, key_start, stride_ez, stride_eh, stride_en)
    if keep is not None:
        keep = _at(keep, z, h, 0, stride_mz, stride_mh, 0)
    if bounds is not None:
        bounds = _at(bounds, z, h, 0, stride_bz, stride_bh, 0)
    first, whole, partial, last = _rows(keep, bounds, first_column, queries, keys, window, CAUSAL, BLOCK_M, BLOCK_N)
    if seed is not None:
        seed = tl.load(seed) + place  # every head of every example has its own
    k = _load(key, first_column, stride_kn, keys, BLOCK_N, HEAD, HEAD_PAD)
    v = _load(value, first_column, stride_vn, keys, BLOCK_N, VALUE, VALUE_PAD)
    for_key = tl.zeros([BLOCK_N, HEAD_PAD], tl.float32)
    for_value = tl.zeros([BLOCK_N, VALUE_PAD], tl.float32)
    for part in tl.static_range(3):
        begin = first if part == 0 else (whole if part == 1 else partial)
        end = whole if part == 0 else (partial if part == 1 else last)
        for row in range(begin, end, BLOCK_M):
            rows = row + tl.arange(0, BLOCK_M)
            of_rows = _at(rows, z, h, query_start, heads * query_rows, query_rows, 1)
            q = _load(query, row, stride_qn, queries, BLOCK_M, HEAD, HEAD_PAD)
            g = _load(grad_context, row, stride_gn, queries, BLOCK_M, VALUE, VALUE_PAD)
            # 2^-inf: a row behind the last one counts for nothing.
            log_total = tl.load(normaliser + of_rows, mask=rows < queries, other=float("inf"))
            level = tl.abs(log_total) if SIGNED else log_total
            d = tl.load(delta + of_rows, mask=rows < queries, other=0.0)
            t = _scores(k, tl.trans(q), scale, shift, h, PRECISION)
            if part != 1:
                kept = _kept(
                    keep, bounds, row, first_column, queries, keys, stride_mm, stride_mn, window, CAUSAL,
                    BLOCK_M, BLOCK_N,
                )  # fmt: skip
                kept = tl.trans(kept)
                t = tl.where(kept, t, 0.0 if SIGNED else float("-inf"))
            a, c = _hyperbolic(t, level[None, :], (log_total < 0)[None, :], SIGNED, EXACT)
            if part != 1 and SIGNED:
                c = tl.where(kept, c, 0.0)
            grad_a = _dot(v, tl.trans(g), PRECISION)
            applied = a
            if seed is not None:
                survives = tl.trans(_survives(seed, row, first_column, keys, dropout, BLOCK_M, BLOCK_N))
                grad_a = tl.where(survives, grad_a * survival, 0.0)
                applied = tl.where(survives, a * survival, 0.0)
            for_value += _dot(_rounded(applied, g.dtype, PRECISION), g, PRECISION)
            grad_t = c * grad_a - a * d[None, :]
            for_key += _dot(_rounded(grad_t, q.dtype, PRECISION), q, PRECISION)
    _store(grad_key, for_key * (scale * LN2), first_column, stride_dn, keys, BLOCK_N, HEAD, HEAD_PAD, PRECISION)
    _store(grad_value, for_value, first_column, stride_en, keys, BLOCK_N, VALUE, VALUE_PAD, PRECISION)


@triton.jit
def _hyperbolic(t, level, small, SIGNED: tl.constexpr, EXACT: tl.constexpr):
    """`2 sinh` and `2 cosh` of scores in base 2, both times `2^-level`; for softmax `2^(t - level)` twice.

    `2^t - 2^-t` loses digits of sinh where t is small. `small` says in which rows all scores are; it is None where
    cosh outweighs the loss. fp32 looks at every score.
    """
    rising = tl.exp2(t - level)
    if not SIGNED:
        return rising, rising
    falling = tl.exp2(-t - level)
    sinh, cosh = rising - falling, rising + falling
    if small is not None:
        if EXACT:
            square = t * t * (LN2 * LN2)
            series = t * (2 * LN2 * tl.exp2(-level)) * (1 + square / 6 * (1 + square / 20 * (1 + square / 42)))
            sinh = tl.where(tl.abs(t) < SERIES_BELOW, series, sinh)
        else:  # tanh(s) = s
            sinh = tl.where(small, t * (LN2 * cosh), sinh)
    return sinh, cosh


@triton.jit
def _columns(
    keep, bounds, first_row, keys, window, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """For a block of queries: keys before the first and from the last on are out of reach; from `whole` to `partial`
    every key of every block counts."""
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
def _rows(
    keep, bounds, first_column, queries, keys, window, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """For a block of keys: the queries in reach, and from `whole` to `partial` those for which all its keys count."""
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
def _kept(
    keep, bounds, first_row, first_column, queries, keys, stride_m, stride_n, window,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Which pairs of a block count, `[BLOCK_M, BLOCK_N]`."""
    rows = first_row + tl.arange(0, BLOCK_M)[:, None]
    columns = first_column + tl.arange(0, BLOCK_N)[None, :]
    kept = (rows >= 0) & (columns < keys)
    if bounds is not None:  # the same keys for all queries
        kept = kept & (tl.load(keep + columns * stride_n, mask=columns < keys, other=0) != 0)
    elif keep is not None:
        inside = (rows < queries) & (columns < keys)
        kept = kept & (tl.load(keep + rows.to(tl.int64) * stride_m + columns * stride_n, mask=inside, other=0) != 0)
    if CAUSAL:
        kept = kept & (columns <= rows)
    if window is not None:
        kept = kept & (columns - rows <= window) & (rows - columns <= window)
    return kept


@triton.jit
def _survives(seed, first_row, first_column, keys, dropout, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Which coefficients of a block dropout leaves, by their place alone, whatever the blocks: four to a draw."""
    rows = first_row + tl.arange(0, BLOCK_M)[:, None]
    fours = first_column // 4 + tl.arange(0, BLOCK_N // 4)[None, :]
    a, b, c, d = tl.rand4x(seed, rows * tl.cdiv(keys, 4) + fours, PHILOX_ROUNDS)
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [BLOCK_M, BLOCK_N]) >= dropout


@triton.jit
def _scores(a, b, scale, shift, h, PRECISION: tl.constexpr):
    """The scores of a block in base 2, shifted by what belongs to the head."""
    t = _dot(a, b, PRECISION) * scale
    if shift is not None:
        t += tl.load(shift + h)
    return t


@triton.jit
def _place(longest, BLOCK: tl.constexpr):
    """Which head of which example a program works on, counted through, and where its block begins."""
    blocks = tl.cdiv(longest, BLOCK)
    return tl.program_id(0) // blocks, tl.program_id(0) % blocks * BLOCK


@triton.jit
def _example(starts, b, length):
    """An example's index, its first row and its length: packed examples follow one another in a single one.

    Whatever the starts say, nothing outside the tensor is touched.
    """
    if starts is not None:
        first = tl.minimum(tl.maximum(tl.load(starts + b), 0), length)
        return 0, first, tl.minimum(tl.maximum(tl.load(starts + b + 1), first), length) - first
    return b, 0, length


@triton.jit
def _at(base, z, h, row, stride_z, stride_h, stride_n):
    """A pointer, or an offset, moved to one row of one head; counted in 64 bits."""
    return base + (
        tl.cast(z, tl.int64) * stride_z + tl.cast(h, tl.int64) * stride_h + tl.cast(row, tl.int64) * stride_n
    )


@triton.jit
def _load(base, first, stride, limit, ROWS: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr):
    """`[ROWS, PAD]` of a matrix whose rows are dense, zero behind its `limit` rows and `WIDTH` columns."""
    rows, columns = tl.arange(0, ROWS)[:, None], tl.arange(0, PAD)[None, :]
    inside = first + rows < limit
    if PAD != WIDTH:
        inside = inside & (columns < WIDTH)
    return tl.load(base + tl.cast(first, tl.int64) * stride + rows * stride + columns, mask=inside, other=0.0)


@triton.jit
def _store(
    base, block, first, stride, limit, ROWS: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.arange(0, ROWS)[:, None], tl.arange(0, PAD)[None, :]
    inside = (first + rows < limit) & (columns < WIDTH)
    pointers = base + tl.cast(first, tl.int64) * stride + rows * stride + columns
    tl.store(pointers, _rounded(block, base.dtype.element_ty, PRECISION), mask=inside)


@triton.jit
def _rounded(x, DTYPE: tl.constexpr, PRECISION: tl.constexpr):
    """fp32 numbers in a narrower type, to the nearest, ties to even; the interpreter would cut bf16 off."""
    if PRECISION == "wide":
        bits = x.to(tl.uint32, bitcast=True)
        x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).to(tl.float32, bitcast=True)
    return x.to(DTYPE)


@triton.jit
def _dot(a, b, PRECISION: tl.constexpr):
    """A product on the tensor cores, summed in fp32; the interpreter cannot multiply bf16."""
    if PRECISION == "wide":
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    return tl.dot(a, b, input_precision=PRECISION)
