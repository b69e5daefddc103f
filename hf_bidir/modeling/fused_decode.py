"""Signed attention of one or a few queries over many keys, as in decoding: the keys are split among programs.

The programs of a head's queries each attend to a part of the keys, because there are too few queries to keep a GPU
busy. A second kernel merges the parts by the logarithms of their normalisers (Dao et al. 2023, "Flash-Decoding"). The
heads that share keys are rows of one block, so that keys are read once.
"""

from .fused_blocks import kept_extent, kernel, of_head, offset, rounded, shift_of, tl
from .fused_kernels import attend_block

MOST_SPLITS = tl.constexpr(32)


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
    """The context of all queries that share a key head over `span` keys: `[splits, batch, queries, heads, VALUE]`."""
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
