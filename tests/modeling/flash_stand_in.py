"""Stand-ins for the flash attention packages, whose kernels need a GPU: their signatures, results and backward passes.

Like the kernels, the backward pass trusts the output and the log-sum-exps that were saved: it computes `e^(s - lse)`.
"""

from contextlib import contextmanager
from unittest import mock

import torch
from torch.nn import functional as F
from transformers import modeling_flash_attention_utils as flash_utils


def scores_of(q, k, options):
    """Scores `[heads, queries, keys]`, -inf where a query may not attend, and the derivative of their softcap."""
    scale, softcap = options["softmax_scale"], options.get("softcap") or 0.0
    scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(q.shape[1] // k.shape[1], 1)) * scale
    factor = torch.ones_like(scores)
    if softcap:
        scores = softcap * (scores / softcap).tanh()
        factor = 1 - (scores / softcap) ** 2
    left, right = (-1 if x is None else x for x in options.get("window_size", (-1, -1)))
    right = 0 if options["causal"] else right
    distance = torch.arange(k.shape[0]) - torch.arange(k.shape[0] - q.shape[0], k.shape[0])[:, None]
    dropped = ((left >= 0) & (distance < -left)) | ((right >= 0) & (distance > right))
    return scores.masked_fill(dropped, -torch.inf), factor


def examples(options, q, k):
    """The slices of queries and keys of each packed example."""
    starts = options.get("cu_seqlens_q", [0, q.shape[0]]), options.get("cu_seqlens_k", [0, k.shape[0]])
    starts = [list(map(int, s)) for s in starts]
    return [tuple(slice(s[i], s[i + 1]) for s in starts) for i in range(len(starts[0]) - 1)]


def forward(q, k, v, options):
    if q.dim() == 4:
        return tuple(map(torch.stack, zip(*(forward(*x, options) for x in zip(q, k, v, strict=True)), strict=True)))
    out, lse = q.new_zeros(*q.shape[:2], v.shape[2]), q.new_zeros(q.shape[1], q.shape[0])
    for rows, columns in examples(options, q, k):
        scores = scores_of(q[rows], k[columns], options)[0]
        lse[:, rows] = torch.where(scores.isneginf().all(-1), torch.inf, scores.logsumexp(-1))
        values = v[columns].repeat_interleave(q.shape[1] // k.shape[1], 1)
        out[rows] = torch.einsum("hqk,khd->qhd", (scores - lse[:, rows, None]).exp(), values)
    return out, lse


def backward(grad, q, k, v, out, lse, options):
    if q.dim() == 4:
        each = zip(grad, q, k, v, out, lse, strict=True)
        return tuple(map(torch.stack, zip(*(backward(*x, options) for x in each), strict=True)))
    gradients = [torch.zeros_like(x) for x in (q, k, v)]
    group = q.shape[1] // k.shape[1]
    for rows, columns in examples(options, q, k):
        scores, factor = scores_of(q[rows], k[columns], options)
        p = (scores - lse[:, rows, None]).exp()
        values, keys = (x[columns].repeat_interleave(group, 1) for x in (v, k))
        change = torch.einsum("qhd,khd->hqk", grad[rows], values) - (grad[rows] * out[rows]).sum(-1).T[..., None]
        ds = p * change * factor * options["softmax_scale"]
        gradients[0][rows] = torch.einsum("hqk,khd->qhd", ds, keys)
        for gradient, full in (
            (gradients[1], torch.einsum("hqk,qhd->khd", ds, q[rows])),
            (gradients[2], torch.einsum("hqk,qhd->khd", p, grad[rows])),
        ):
            gradient[columns] = full.unflatten(1, (-1, group)).sum(2)
    return tuple(gradients)


class FlashAttnFunc(torch.autograd.Function):
    """Saves like FlashAttention-2: padded to a multiple of 8, output and log-sum-exps behind query, key and value."""

    @staticmethod
    def forward(ctx, q, k, v, options, outputs):
        width, padding = q.shape[-1], (0, -q.shape[-1] % 8)
        padded = [F.pad(x, padding) for x in (q, k, v)]
        out, lse = forward(*padded, options)
        ctx.save_for_backward(*padded, out, lse, torch.zeros(2))
        ctx.options, ctx.width = options, width
        return (out[..., :width], lse, None)[:outputs]

    @staticmethod
    def backward(ctx, grad, *others):
        assert all(other is None for other in others), "the gradient of log-sum-exps is ignored"
        q, k, v, out, lse, state = ctx.saved_tensors
        assert lse.is_contiguous()
        assert (out.shape, state.shape) == (q.shape, (2,))
        found = backward(F.pad(grad, (0, -ctx.width % 8)), q, k, v, out, lse, ctx.options)
        return (*(x[..., : ctx.width] for x in found), None, None)


def attended(q, k, v, options, outputs, returned):
    options["softmax_scale"] = options["softmax_scale"] or q.shape[-1] ** -0.5
    found = FlashAttnFunc.apply(q, k, v, options, outputs)
    return found if returned else found[0]


# The public functions that transformers looks for, of FlashAttention 2 (3 returns one output less) and 4; `locals()` is
# read before anything else, and so holds the arguments.
OPTIONS = ("softmax_scale", "causal", "window_size", "softcap", "cu_seqlens_q", "cu_seqlens_k")


def options_of(arguments):
    return {name: arguments[name] for name in OPTIONS if name in arguments}


def flash_2(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, deterministic=False,
    return_attn_probs=False,
):  # fmt: skip
    return attended(q, k, v, options_of(locals()), 3, return_attn_probs)


def varlen_2(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, deterministic=False, return_attn_probs=False, block_table=None,
):  # fmt: skip
    return attended(q, k, v, options_of(locals()), 3, return_attn_probs)


def kvcache_2(
    q, k_cache, v_cache, k=None, v=None, cache_seqlens=None, block_table=None, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, return_softmax_lse=False,
):  # fmt: skip
    """One query per sequence; its key and value are written behind those that the pages of the block table hold."""
    found = []
    for row, (length, pages) in enumerate(zip(cache_seqlens.tolist(), block_table.tolist(), strict=True)):
        page, place = pages[length // k_cache.shape[1]], length % k_cache.shape[1]
        k_cache[page, place], v_cache[page, place] = k[row, 0], v[row, 0]
        keys, values = (x[pages].flatten(0, 1)[: length + 1] for x in (k_cache, v_cache))
        found.append(forward(q[row], keys, values, {"softmax_scale": softmax_scale, "causal": causal}))
    out, lse = map(torch.stack, zip(*found, strict=True))
    return (out, lse) if return_softmax_lse else out


def flash_4(
    q, k, v, softmax_scale=None, causal=False, window_size=(None, None), softcap=0.0, deterministic=False,
    return_lse=False,
):  # fmt: skip
    return attended(q, k, v, options_of(locals()), 2, returned=True)  # a pair in any case


def varlen_4(
    q, k, v, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, softmax_scale=None,
    causal=False, window_size=(None, None), softcap=0.0, deterministic=False, return_lse=False,
):  # fmt: skip
    return attended(q, k, v, options_of(locals()), 2, returned=True)


KERNELS = {
    "flash_attention_2": (flash_2, varlen_2, kvcache_2),
    "flash_attention_4": (flash_4, varlen_4, None),
}


@contextmanager
def installed(name="flash_attention_2", kernels=None):
    """transformers with these functions as the flash attention `name`, as after its own lazy import."""
    flash, varlen, kvcache = kernels or KERNELS[name]
    process = flash_utils._lazy_define_process_function
    with mock.patch.multiple(
        flash_utils,
        _loaded_implementation=name,
        _flash_fn=flash,
        _flash_varlen_fn=varlen,
        _flash_with_kvcache_fn=kvcache,
        _pad_fn=flash_utils._pad_input,
        _unpad_fn=flash_utils._unpad_input,
        _process_flash_kwargs_fn=process(varlen),
        _process_with_kvcache_kwargs_fn=process(kvcache) if kvcache else dict,
    ):
        yield
