"""Signed attention by two calls of a stock kernel, for `q` and for `-q`: flash attention of any version, and flex.

With `o±` and `l±` the outputs and log-sum-exps of the two calls, `log λ` added to `l-`, and `L = log(e^l+ + e^l-)`,
TanhMax is `e^(l+ - L) o+ - e^(l- - L) o-`. A flash kernel's own backward pass, called on `(q, o, L, do)` and on
`(-q, -o, L - log λ, -do)`, gives the two parts of its gradients, because the kernels recompute `e^(±s - L)`.
"""

import math
from collections.abc import Callable
from functools import cache, partial, reduce
from inspect import signature
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.nn.attention import flex_attention as torch_flex
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .activations import compute_dtype, upcast
from .attention_call import NegativeMass, per_head
from .compat import (
    compiled_flex_attention,
    flash_attention_forward,
    flash_with_kernels,
    flex_attention_forward,
    is_packed_sequence,
    lazy_import_flash_attention,
)

# the arguments by which flash functions return log-sum-exps; some return them always
LSE_ARGUMENTS = ("return_attn_probs", "return_lse", "return_softmax_lse")
LSE_OF_FLEX: dict[str, Any] = (
    {"return_aux": torch_flex.AuxRequest(lse=True)} if hasattr(torch_flex, "AuxRequest") else {"return_lse": True}
)


def stock_kernel(name: str) -> Callable:
    """transformers' own function of a kernel, callable for a signed layer."""
    return flex_attention_forward if _is_flex(name) else _flash(name, lambda kernel: kernel)


def kernel_attention(
    layer: nn.Module,
    name: str,
    activation: str,
    negative_mass: NegativeMass,
    states: tuple[Tensor, Tensor, Tensor],
    mask: Any,
    **options: Any,
) -> Tensor:
    """The context `[batch, queries, heads, value_dim]` of softmax, TanhMax or balanced attention by a stock kernel: of
    query, key, value, transformers' mask for this kernel, and options of the stock function, without dropout."""
    (query, key, value), stock = states, stock_kernel(name)
    mass = per_head(negative_mass, query) if activation != "softmax" else 0.0
    if isinstance(mass, float) and mass == 0:
        return stock(layer, *states, mask, **options)[0]
    if activation == "balanced":
        half = mass / 2 if isinstance(mass, float) else mass.view(-1, 1) / 2
        found = (stock(layer, signed, key, value, mask, **options)[0] for signed in (query, -query))
        toward, away = (upcast(context) for context in found)
        return ((1 - half) * toward - half * away).to(value.dtype)
    log_mass = math.log(mass) if isinstance(mass, float) else mass.flatten().to(compute_dtype(query.dtype)).log()
    sinks = options.pop("s_aux", None)
    if _is_flex(name):
        return _flex(layer, *states, mask, log_mass, sinks, **options)
    return _flash(name, partial(signed_kernel, log_mass=log_mass, sinks=sinks))(layer, *states, mask, **options)[0]


def why_not(name: str, query: Tensor, mask: Any, options: dict[str, Any]) -> str | None:
    """What of a call the kernel does not compute; None if it computes all."""
    if options.get("position_bias") is not None:
        return "a position bias"
    if _is_flex(name):
        if query.device.type == "cpu":
            return "gradients or log-sum-exps on a CPU"
        return "a mask that is a tensor" if isinstance(mask, Tensor) else None
    return None


def plain_mask(
    name: str, query: Tensor, key: Tensor, mask: Any, causal: bool, options: dict[str, Any]
) -> Tensor | None:
    """A kernel's mask, with causality and a sliding window, as `[batch or 1, heads or 1, queries, keys]` or None;
    ValueError for packed examples, which only the kernel keeps apart."""
    queries, keys, device = query.shape[2], key.shape[2], query.device
    if isinstance(mask, torch_flex.BlockMask):
        return torch_flex.create_mask(mask.mask_mod, mask.shape[0], mask.shape[1], queries, keys, device)
    if _is_flex(name) or (mask is not None and mask.dim() == 4):
        return mask
    if options.get("cu_seq_lens_q") is not None or is_packed_sequence(options.get("position_ids"), query.shape[0]):
        raise ValueError(
            f'attn_implementation="{name}" keeps packed examples apart inside its kernel, which gives no coefficients '
            "and applies no dropout, window or change to them; pad the examples, or leave these out."
        )
    length, window = keys if mask is None else mask.shape[1], options.get("sliding_window")
    # the last query is at the last key that the mask knows; a static cache has more
    distance = torch.arange(length - queries, length, device=device)[:, None] - torch.arange(keys, device=device)
    bands = [distance >= 0] if causal else []
    bands += [] if window is None else [distance.abs() < window]
    keep = [band[None, None] for band in bands]
    keep += [] if mask is None else [F.pad(mask.bool(), (0, keys - length))[:, None, None]]
    return reduce(torch.logical_and, keep) if keep else None


def merged(
    toward: tuple[Tensor, Tensor], away: tuple[Tensor, Tensor], log_mass: float | Tensor, sinks: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The context of TanhMax, and the joint log-sum-exp, from outputs `[..., heads, value_dim]` and log-sum-exps
    `[..., heads]` of softmax attention for the query and for its negative. A row without kept keys has the output 0 and
    an infinite log-sum-exp. `log_mass` is `log λ`, one number or `[heads]`."""
    empty = ~toward[1].isfinite()
    plus, minus = toward[1].masked_fill(empty, 0), away[1].masked_fill(empty, 0) + log_mass
    terms = [plus, minus]
    if sinks is not None:
        terms += [sinks.to(plus).expand_as(plus), (log_mass - sinks.to(plus)).expand_as(plus)]
    joint = torch.stack(terms).logsumexp(0)
    weights = ((term - joint).exp().unsqueeze(-1) for term in (plus, minus))
    context = upcast(toward[0]) * next(weights) - upcast(away[0]) * next(weights)
    return context.to(toward[0].dtype), torch.where(empty, toward[1], joint)


def _is_flex(name: str) -> bool:
    return ALL_ATTENTION_FUNCTIONS[name] is flex_attention_forward


def _flex(
    layer: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    log_mass: float | Tensor,
    sinks: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    kernel_options: dict | None = None,
    **others: Any,
) -> Tensor:
    """TanhMax by torch's flex attention, called as transformers calls it; autograd does the backward pass."""

    heads = query.shape[1]
    if heads & (heads - 1):  # as transformers: the kernel groups heads only if their number is a power of two
        key, value = (x.repeat_interleave(heads // x.shape[1], 1) for x in (key, value))
    on_cpu = query.device.type == "cpu"  # where the compiled kernel returns no log-sum-exps
    attend = torch_flex.flex_attention if on_cpu else partial(compiled_flex_attention, training=layer.training)
    options = {"score_mod": partial(_capped, softcap) if softcap else None, "block_mask": mask, "scale": scaling}
    options |= {"enable_gqa": key.shape[1] != heads, "kernel_options": kernel_options, **LSE_OF_FLEX}
    found = (attend(signed, key, value, **options) for signed in (query, -query))
    toward, away = ((x.transpose(1, 2), getattr(aux, "lse", aux).transpose(1, 2)) for x, aux in found)
    return merged(toward, away, log_mass, sinks)[0].contiguous()


def _capped(softcap: float, score: Tensor, *index: Tensor) -> Tensor:
    return softcap * torch.tanh(score / softcap)


def _flash(name: str, signed: Callable) -> Callable:
    """transformers' flash attention function, whose kernels are those of `name`, each replaced by `signed(kernel)`.

    It unpads, finds packed examples, and prepares the arguments that a kernel supports; none of it depends on signs.
    """

    def kernels(implementation: str, *args: Any, **kwargs: Any) -> tuple:
        (*found, pad, unpad), processors = lazy_import_flash_attention(name)
        return (*(kernel and signed(kernel) for kernel in found), pad, unpad), processors

    inner = _rebound(flash_with_kernels, lazy_import_flash_attention=kernels)
    return torch.compiler.disable(_rebound(flash_attention_forward, _flash_attention_forward=inner))


def _rebound(function: Any, **names: Any) -> Callable:
    """A copy of a function that finds these names instead of those of its module."""
    names = {**function.__globals__, **names}
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)


def signed_kernel(kernel: Callable, log_mass: float | Tensor, sinks: Tensor | None) -> Callable:
    """A flash attention function with the same arguments that computes TanhMax; ValueError in a call whose kernel
    returns no log-sum-exps, or lacks a backward pass that is needed."""
    returning = _returning_lse(kernel)

    def attend(query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Tensor:
        def call(*states: Tensor) -> tuple[Tensor, ...]:
            found = kernel(*states, *args, **options, **returning)
            expected = query.shape[:-1]
            if isinstance(found, tuple) and isinstance(found[1], Tensor) and found[1].mT.shape == expected:
                return found
            raise ValueError(
                f"{kernel.__module__}.{kernel.__qualname__} returns no log-sum-exps [heads, queries], which signed "
                'attention needs; use flash-attn 2.6 or later, or attn_implementation="sdpa".'
            )

        return TwoCalls.apply(call, query, key, value, log_mass, sinks)

    return attend


@cache
def _returning_lse(kernel: Callable) -> dict[str, bool]:
    """The argument with which a flash attention function returns log-sum-exps; empty if it has none."""
    return {name: True for name in LSE_ARGUMENTS if name in signature(kernel).parameters}


class TwoCalls(torch.autograd.Function):
    """TanhMax by a flash kernel. Its backward pass calls that of the kernel, in whatever version, on other outputs."""

    @staticmethod
    def forward(ctx, call, query, key, value, log_mass, sinks):
        wanted = any(ctx.needs_input_grad)
        states = [x.detach().requires_grad_(wanted) for x in (query, key, value)]
        # what checkpointing or offloading may change in saved tensors is for those of this function, saved below
        with torch.set_grad_enabled(wanted), saved_tensors_hooks(lambda x: x, lambda x: x):
            output, lse, *others = call(*states)
            node = output.grad_fn
        away, lse_away, *_ = call(-query, key, value)
        context, joint = merged((output.detach(), lse.detach().mT), (away, lse_away.mT), log_mass, sinks)
        if wanted:
            if not hasattr(node, "_forward_cls"):
                raise ValueError(
                    "this flash attention kernel has no backward pass, so it cannot train; "
                    'use attn_implementation="sdpa".'
                )
            saved = list(node.saved_tensors)
            ctx.places = [_place(saved, x) for x in (output, lse)]
            width = saved[ctx.places[0]].shape[-1]  # some kernels pad the head dimension
            saved[ctx.places[0]] = F.pad(context, (0, width - context.shape[-1]))
            saved[ctx.places[1]] = joint.mT.contiguous()
            ctx.save_for_backward(*(x if x is None else x.detach() for x in saved), sinks)
            ctx.log_mass, ctx.empty_gradients = log_mass, (None,) * (1 + len(others))
            ctx.kernel, ctx.attributes = node._forward_cls, vars(node) | {"needs_input_grad": node.needs_input_grad}
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        *saved, sinks = ctx.saved_tensors
        output, lse = ctx.places
        log_mass = ctx.log_mass.view(-1, 1) if isinstance(ctx.log_mass, Tensor) else ctx.log_mass

        def gradients(saved, grad):
            stand_in = SimpleNamespace(**ctx.attributes, saved_tensors=tuple(saved))
            return ctx.kernel.backward(stand_in, grad, *ctx.empty_gradients)[:3]

        toward = gradients(saved, grad)
        grad_sinks = None
        if sinks is not None:
            grad_sinks = _grad_sinks(grad, saved[output], saved[lse].mT, ctx.log_mass, sinks)
        empty = saved[lse].isinf()  # whose infinity is the kernel's own
        saved[0], saved[output] = -saved[0], -saved[output]
        saved[lse] = torch.where(empty, saved[lse], saved[lse] - log_mass)
        away = gradients(saved, -grad)
        return None, toward[0] - away[0], toward[1] + away[1], toward[2] + away[2], None, grad_sinks


def _place(saved: list[Tensor | None], x: Tensor) -> int:
    """Where `x`, or the tensor that it is a part of, is among the saved tensors of a kernel."""
    pointer = x.untyped_storage().data_ptr()
    return next(i for i, y in enumerate(saved) if y is not None and y.untyped_storage().data_ptr() == pointer)


def _grad_sinks(grad: Tensor, output: Tensor, joint: Tensor, log_mass: float | Tensor, sinks: Tensor) -> Tensor:
    """The gradient of the sinks, which enter the normaliser only: `-(do · o) (e^sink - λ e^-sink) / e^L`."""
    change = (upcast(grad) * upcast(output[..., : grad.shape[-1]])).sum(-1)
    sink = sinks.to(joint)
    share = (sink - joint).exp() - (log_mass - sink - joint).exp()
    return -(change * share.masked_fill(~joint.isfinite(), 0)).flatten(0, -2).sum(0).to(sinks.dtype)
