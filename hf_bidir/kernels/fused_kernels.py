"""TanhMax attention in Triton, without storing coefficients.

Each row stores its context and one number, the base-2 logarithm of its normaliser. From that number the backward pass
recomputes the coefficients block by block (Dao 2023, FlashAttention-2, with `sinh` in place of `exp` for the values and
`cosh` in the normaliser). Scores are in base 2, `t = (query · key * scaling + shift) * log2(e)`, because the hardware
computes `2^x`.
"""

from typing import Any, NamedTuple

from .fused_blocks import (
    LN2,
    Head,
    Pairs,
    Reach,
    Rows,
    capped,
    columns_in_reach,
    dropout_keep,
    hyperbolic,
    kept_extent,
    kept_pairs,
    load_rows,
    mask_of,
    matmul,
    matrix_of,
    part_of,
    restore_digits,
    rounded,
    row_of,
    rows_in_reach,
    states_of,
    store_rows,
    tl,  # imported there with a helpful error if Triton is missing
    triton,
    unscaled_hyperbolic,
    with_terms,
)

MOST_SPLITS = tl.constexpr(32)  # into which `decode_kernel` divides the keys
FEW_KEYS = tl.constexpr(32)  # keys per block in the second pass, which must not need more registers than the first
# Without a level, sinh and cosh of a row fit into fp32 up to here, together with the products with its values.
LARGEST_TOTAL = tl.constexpr(2.0**100)
LARGEST_SUM = tl.constexpr(2.0**120)


class Result(NamedTuple):
    """The context, and per row `[batch, heads, queries]` log2(sum 2 cosh), infinite for a row without kept
    keys."""

    context: Rows
    normaliser: Any


class QueryGradients(NamedTuple):
    """What `query_gradient_kernel` computes; `delta` and `shift` have one number for each row."""

    query: Rows
    delta: Any  # rowsum(dO ∘ O)
    shift: Any  # None if it is not needed
    bias: Pairs | None


class KeyGradients(NamedTuple):
    key: Rows
    value: Rows


@triton.jit
def forward_kernel(problem, result, code: tl.constexpr):
    """The context and the normaliser of one block of queries, of one head of one example."""
    blocks = tl.cdiv(problem.queries, code.rows)
    sequence = tl.program_id(0) // blocks
    first_row = tl.program_id(0) % blocks * code.rows
    example = sequence // problem.heads
    h = sequence % problem.heads
    query, key, value, shift, seed = states_of(problem, example, h, h // problem.groups, code.unit)
    head = Head(problem, example, h, h, query, key, value, shift, seed)
    reach = columns_in_reach(head, first_row, code)
    q = load_rows(head.query, first_row, problem.queries, code.rows, code.head_size, code.head_pad)
    rows = first_row + tl.arange(0, code.rows)
    log_total, summed = attend_block(q, head, rows, reach, code)
    if problem.seed is not None:
        summed *= 1 / (1 - problem.dropout)
    context = matrix_of(result.context, example, h, code.unit)
    store_rows(context, summed, first_row, problem.queries, code.value_size, code.precision)
    normaliser = result.normaliser + row_of(problem, example, h)
    tl.store(normaliser + rows, log_total, mask=rows < problem.queries)


@triton.jit
def attend_block(q, head, rows, reach, code: tl.constexpr):
    """The logarithm of the normaliser and the context of every row `[rows]`, over the keys in reach."""
    total, peak, summed = summed_over_keys(q, head, rows, reach, code, False)
    if not code.levelled:  # comparisons with NaN are False
        fits = (total < LARGEST_TOTAL) & (tl.sum(tl.abs(summed), 1) < LARGEST_SUM)
        if tl.max(((fits == 0) & (rows < head.problem.queries)).to(tl.int32), 0) > 0:
            all_masked = Reach(reach.first, reach.first, reach.first, reach.last)
            total, peak, summed = summed_over_keys(q, head, rows, all_masked, code, True)
    # beyond 2^31 the rounding error of the level exceeds the range of an exponent
    total = tl.where(peak < 2147483648.0, total, float("nan"))
    empty = total == 0
    total = tl.where(empty, 1.0, total)
    log_total = tl.where(empty, float("inf"), peak + tl.log2(total))
    return log_total, summed * (1 / total)[:, None]


@triton.jit
def summed_over_keys(q, head, rows, reach, code: tl.constexpr, AGAIN: tl.constexpr):
    """Per row: the sum of cosh, its level, and the sum of sinh times values.

    The level is the largest |score| so far; both sums are scaled by `2^-level`. Where `code` has none, it stays 0: sums
    need no rescaling and exponentials no maximum, and a row whose sums leave the range of fp32 is found by their
    values. The second pass, AGAIN, has a level.
    """
    ROWS: tl.constexpr = code.rows
    VALUE_PAD: tl.constexpr = code.value_pad
    LEVELLED: tl.constexpr = code.levelled or AGAIN
    COLUMNS: tl.constexpr = FEW_KEYS if AGAIN else code.columns
    FIRST_PART: tl.constexpr = 2 if AGAIN else (0 if head.problem.window is not None else 1)
    total = tl.zeros([ROWS], tl.float32)
    peak = tl.zeros([ROWS], tl.float32)
    summed = tl.zeros([ROWS, VALUE_PAD], tl.float32)
    for part in tl.static_range(FIRST_PART, 3):
        begin, end = part_of(reach, part)
        for column in range(begin, end, COLUMNS):
            k = load_rows(head.key, column, head.problem.keys, COLUMNS, code.head_size, code.head_pad)
            products = matmul(q, tl.trans(k), code.precision)
            places = rows[:, None], (column + tl.arange(0, COLUMNS))[None, :]
            t, unit = scores_of(products, head, places, LEVELLED)
            if part != 1:
                kept = kept_pairs(head, rows[:, None], (column + tl.arange(0, COLUMNS))[None, :], code)
                if LEVELLED:
                    t = tl.where(kept, t, 0.0)
            if LEVELLED:
                level = tl.maximum(peak, tl.max(tl.abs(t), 1) * unit)
                t *= unit  # after the maximum, so that it is fused with the subtraction of the level
                sinh, cosh = hyperbolic(t, level[:, None])
                if code.exact:
                    sinh = restore_digits(sinh, t, level[:, None])
                fading = tl.exp2(peak - level)
                total = total * fading
                summed = summed * fading[:, None]
                peak = level
            else:
                sinh, cosh = unscaled_hyperbolic(t)
                if part != 1:
                    sinh = tl.where(kept, sinh, 0.0)
            if part != 1:
                cosh = tl.where(kept, cosh, 0.0)
            total += tl.sum(cosh, 1)
            if head.problem.seed is not None:
                sinh = tl.where(dropout_keep(head, rows, column, COLUMNS), sinh, 0.0)
            v = load_rows(head.value, column, head.problem.keys, COLUMNS, code.value_size, code.value_pad)
            summed += matmul(rounded(sinh, v.dtype, code.precision), v, code.precision)
    return total, peak, summed


@triton.jit
def scores_of(products, head, places, LEVELLED: tl.constexpr):
    """The scores in base 2 up to a factor, and the factor; with a level it is left for later where nothing is added."""
    rows, columns = places
    t = products
    unit = head.problem.scale
    cap = head.problem.cap
    if head.problem.shifts is not None or head.problem.bias is not None or cap is not None or not LEVELLED:
        t, unit = t * unit, 1.0
    if cap is not None:
        t = capped(t, cap)
    return with_terms(t, head, rows, columns), unit


@triton.jit
def coefficients_of(products, head, places, level, code: tl.constexpr, MASKED: tl.constexpr):
    """Of a block of products: the scores in base 2, the coefficients `a`, `c = cosh / sum cosh`, and the slope of the
    cap. `places` are the rows and the columns; they and the level broadcast to the block."""
    rows, columns = places
    t = products * head.problem.scale
    cap = head.problem.cap
    slope = 1.0
    if cap is not None:
        t = capped(t, cap)
        slope = 1 - (t / cap) * (t / cap)
    t = with_terms(t, head, rows, columns)
    if MASKED:
        kept = kept_pairs(head, rows, columns, code)
        t = tl.where(kept, t, 0.0)
    a, c = hyperbolic(t, level)
    if MASKED:
        c = tl.where(kept, c, 0.0)
    return t, a, c, slope


@triton.jit
def query_gradient_kernel(problem, upstream, result, gradients, code: tl.constexpr):
    """The gradient of one block of queries and of their bias; also `delta = rowsum(dO ∘ O)` and, per row, the gradient
    of the shift. Examples that share a bias add up their gradients."""
    ROWS: tl.constexpr = code.rows
    HEAD_PAD: tl.constexpr = code.head_pad
    blocks = tl.cdiv(problem.queries, code.rows)
    sequence = tl.program_id(0) // blocks
    first_row = tl.program_id(0) % blocks * code.rows
    example = sequence // problem.heads
    h = sequence % problem.heads
    query, key, value, shift, seed = states_of(problem, example, h, h // problem.groups, code.unit)
    head = Head(problem, example, h, h, query, key, value, shift, seed)
    reach = columns_in_reach(head, first_row, code)
    rows = first_row + tl.arange(0, code.rows)
    inside = rows < problem.queries
    places = row_of(problem, example, h) + rows
    q = load_rows(head.query, first_row, problem.queries, code.rows, code.head_size, code.head_pad)
    grad_context = matrix_of(upstream, example, h, code.unit)
    g = load_rows(grad_context, first_row, problem.queries, code.rows, code.value_size, code.value_pad)
    context = matrix_of(result.context, example, h, code.unit)
    o = load_rows(context, first_row, problem.queries, code.rows, code.value_size, code.value_pad)
    delta = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    level = tl.load(result.normaliser + places, mask=inside, other=float("inf"))
    tl.store(gradients.delta + places, delta, mask=inside)
    summed = tl.zeros([ROWS, HEAD_PAD], tl.float32)
    shifted = tl.zeros([ROWS], tl.float32)
    for part in tl.static_range(0 if problem.window is not None else 1, 3):
        begin, end = part_of(reach, part)
        for column in range(begin, end, code.columns):
            columns = column + tl.arange(0, code.columns)
            k = load_rows(head.key, column, problem.keys, code.columns, code.head_size, code.head_pad)
            v = load_rows(head.value, column, problem.keys, code.columns, code.value_size, code.value_pad)
            products = matmul(q, tl.trans(k), code.precision)
            pairs = rows[:, None], columns[None, :]
            _, a, c, slope = coefficients_of(products, head, pairs, level[:, None], code, part != 1)
            grad_a = matmul(g, tl.trans(v), code.precision)
            if problem.seed is not None:
                survives = dropout_keep(head, rows, column, code.columns)
                grad_a = tl.where(survives, grad_a * (1 / (1 - problem.dropout)), 0.0)
            grad_t = c * grad_a - a * delta[:, None]
            if gradients.shift is not None:
                shifted += tl.sum(grad_t, 1)
            if gradients.bias is not None:
                grad_bias = matrix_of(gradients.bias, example, h, 1)
                pointers = grad_bias.pointer + rows[:, None].to(tl.int64) * grad_bias.stride + columns[None, :]
                tl.atomic_add(pointers, grad_t, mask=inside[:, None] & (columns[None, :] < problem.keys))
            if problem.cap is not None:
                grad_t *= slope
            summed += matmul(rounded(grad_t, k.dtype, code.precision), k, code.precision)
    grad_query = matrix_of(gradients.query, example, h, code.unit)
    summed *= problem.scale * LN2
    store_rows(grad_query, summed, first_row, problem.queries, code.head_size, code.precision)
    if gradients.shift is not None:
        tl.store(gradients.shift + places, shifted, mask=inside)


@triton.jit
def key_value_gradient_kernel(problem, upstream, normaliser, delta, gradients, code: tl.constexpr):
    """The gradients of one block of keys and values, summed over the heads that share them.

    Blocks of scores are `[keys, queries]`, so that no product is transposed.
    """
    COLUMNS: tl.constexpr = code.columns
    HEAD_PAD: tl.constexpr = code.head_pad
    VALUE_PAD: tl.constexpr = code.value_pad
    blocks = tl.cdiv(problem.keys, code.columns)
    key_heads = problem.heads // problem.groups
    sequence = tl.program_id(0) // blocks
    first_column = tl.program_id(0) % blocks * code.columns
    example = sequence // key_heads
    key_head = sequence % key_heads
    columns = first_column + tl.arange(0, code.columns)[:, None]
    key = matrix_of(problem.key, example, key_head, code.unit)
    value = matrix_of(problem.value, example, key_head, code.unit)
    k = load_rows(key, first_column, problem.keys, code.columns, code.head_size, code.head_pad)
    v = load_rows(value, first_column, problem.keys, code.columns, code.value_size, code.value_pad)
    for_key = tl.zeros([COLUMNS, HEAD_PAD], tl.float32)
    for_value = tl.zeros([COLUMNS, VALUE_PAD], tl.float32)
    for group in range(problem.groups):
        h = key_head * problem.groups + group
        query, key, value, shift, seed = states_of(problem, example, h, key_head, code.unit)
        head = Head(problem, example, h, h, query, key, value, shift, seed)
        places = row_of(problem, example, h)
        grad_context = matrix_of(upstream, example, h, code.unit)
        reach = rows_in_reach(head, first_column, code)
        for part in tl.static_range(3):
            begin, end = part_of(reach, part)
            for row in range(begin, end, code.rows):
                rows = row + tl.arange(0, code.rows)
                inside = rows < problem.queries
                q = load_rows(head.query, row, problem.queries, code.rows, code.head_size, code.head_pad)
                g = load_rows(grad_context, row, problem.queries, code.rows, code.value_size, code.value_pad)
                # 2^-inf = 0 for rows after the last one
                level = tl.load(normaliser + places + rows, mask=inside, other=float("inf"))[None, :]
                d = tl.load(delta + places + rows, mask=inside, other=0.0)[None, :]
                products = matmul(k, tl.trans(q), code.precision)
                pairs = rows[None, :], columns
                t, a, c, slope = coefficients_of(products, head, pairs, level, code, part != 1)
                if code.exact:
                    a = restore_digits(a, t, level)
                grad_a = matmul(v, tl.trans(g), code.precision)
                applied = a
                if problem.seed is not None:
                    survives = tl.trans(dropout_keep(head, rows, first_column, code.columns))
                    grad_a = tl.where(survives, grad_a * (1 / (1 - problem.dropout)), 0.0)
                    applied = tl.where(survives, a * (1 / (1 - problem.dropout)), 0.0)
                for_value += matmul(rounded(applied, g.dtype, code.precision), g, code.precision)
                grad_t = c * grad_a - a * d
                if problem.cap is not None:
                    grad_t *= slope
                for_key += matmul(rounded(grad_t, q.dtype, code.precision), q, code.precision)
    for_key *= problem.scale * LN2
    grad_key = matrix_of(gradients.key, example, key_head, code.unit)
    grad_value = matrix_of(gradients.value, example, key_head, code.unit)
    store_rows(grad_key, for_key, first_column, problem.keys, code.head_size, code.precision)
    store_rows(grad_value, for_value, first_column, problem.keys, code.value_size, code.precision)


@triton.jit
def decode_kernel(problem, result, splits, span, code: tl.constexpr):
    """The context of one or a few queries, as in decoding, over `span` keys; parts are `[splits * batch, ...]`.

    Too few queries to keep a GPU busy, so their keys are split among programs; `merge_kernel` merges the parts by the
    logarithms of their normalisers (Dao et al. 2023, "Flash-Decoding"). The heads that share keys are rows of one
    block, so that keys are read once.
    """
    key_heads = problem.heads // problem.groups
    groups = problem.groups
    split = tl.program_id(0) % splits
    sequence = tl.program_id(0) // splits
    example = sequence // key_heads
    key_head = sequence % key_heads
    place = tl.arange(0, code.rows)
    valid = place < groups * problem.queries
    h = key_head * groups + tl.where(valid, place // problem.queries, 0)
    rows = tl.where(valid, place % problem.queries, problem.queries)
    query, key, value, shift, seed = states_of(problem, example, h[:, None], key_head, code.unit)
    keep_index = 0 if code.per_key else h[:, None]
    head = Head(problem, example, h[:, None], keep_index, query, key, value, shift, seed)
    first = split * span
    partial = problem.keys
    last = problem.keys
    if code.per_key:
        partial, last = kept_extent(mask_of(head), problem.keys)
    elif problem.keep is not None:
        partial = 0
    last = tl.minimum(last, first + span)
    partial = tl.maximum(tl.minimum(partial, last) // code.columns * code.columns, first)
    sizes = tl.arange(0, code.head_pad)[None, :]
    pointers = head.query.pointer + rows[:, None] * head.query.stride + sizes
    q = tl.load(pointers, mask=valid[:, None] & (sizes < code.head_size), other=0.0)
    log_total, summed = attend_block(q, head, rows, Reach(first, first, partial, last), code)
    batch = tl.num_programs(0) // (splits * key_heads)
    part = tl.cast(split, tl.int64) * batch + example
    context = matrix_of(result.context, part, h[:, None], code.unit)
    sizes = tl.arange(0, code.value_pad)[None, :]
    pointers = context.pointer + rows[:, None] * context.stride + sizes
    summed = rounded(summed, result.context.pointer.dtype.element_ty, code.precision)
    tl.store(pointers, summed, mask=valid[:, None] & (sizes < code.value_size))
    tl.store(result.normaliser + row_of(problem, part, h) + rows, log_total, mask=valid)


@triton.jit
def merge_kernel(problem, parts, result, splits, code: tl.constexpr):
    """The context and normaliser of one query of one head from those of its parts, `MOST_SPLITS` at most."""
    row, queries = tl.program_id(0), problem.queries
    query = row % queries
    h = row // queries % problem.heads
    example = row // (problem.heads * queries)
    split = tl.arange(0, MOST_SPLITS)
    size = tl.arange(0, code.value_pad)
    part = tl.cast(split, tl.int64) * (tl.num_programs(0) // (problem.heads * queries)) + example
    places = parts.normaliser + row_of(problem, part, h) + query
    log_total = tl.load(places, mask=split < splits, other=float("inf"))
    level = tl.where(log_total == float("inf"), -float("inf"), log_total)
    highest = tl.max(level, 0)
    highest = tl.where(highest == -float("inf"), 0.0, highest)
    weight = tl.exp2(level - highest)
    total = tl.sum(weight, 0)
    context = matrix_of(parts.context, part, h, code.unit)
    pointers = (context.pointer + query * context.stride)[:, None] + size[None, :]
    block = tl.load(pointers, mask=(split < splits)[:, None] & (size < code.value_size)[None, :], other=0.0)
    summed = tl.sum(block * weight[:, None], 0) / tl.where(total == 0, 1.0, total)
    context = matrix_of(result.context, example, h, code.unit)
    summed = rounded(summed, result.context.pointer.dtype.element_ty, code.precision)
    tl.store(context.pointer + query * context.stride + size, summed, mask=size < code.value_size)
    tl.store(result.normaliser + row, tl.where(total == 0, float("inf"), highest + tl.log2(total)))
