"""Backends of signed layers by attn_implementation, which this file enters in modeling/signed_layers.py: "fused", flash
and flex attention, functions of users."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface, masking_utils
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging

from hf_bidir.kernels.fused_path import fused_obstacle
from hf_bidir.modeling.attention_call import MASKED
from hf_bidir.modeling.eager_attention import grouped_matmul
from hf_bidir.modeling.signed_layers import (
    BACKENDS,
    OTHER_BACKENDS,
    PACKED,
    Backend,
    LayerCall,
    attend_by,
    is_causal,
)

logger = logging.get_logger(__name__)

Attended = tuple[Tensor, Tensor | None]
SDPA_MASK = ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]
WITHOUT_FLEX = ("cpu",)  # devices where compiled flex attention has no gradients and returns no log-sum-exps
PADDING_ONLY = getattr(masking_utils, "bidirectional_mask_function", None)
ENDS_OF_EXAMPLES = "cu_seq_lens_q"


def _unsigned_layer(module: Any, *args: Any, **kwargs: Any) -> None:
    raise ValueError(
        f'attn_implementation="fused" needs a signed layer, and {type(module).__name__} is not signed; use "sdpa".'
    )


def _fused_mask(*args: Any, mask_function: Any = PADDING_ONLY, **kwargs: Any) -> Tensor | None:
    """As for SDPA, but a padding mask is `[batch, 1, 1, keys]`: one row for all queries lets the kernel skip blocks."""
    mask = SDPA_MASK(*args, mask_function=mask_function, **kwargs)
    return mask[:, :, :1] if mask is not None and mask_function is PADDING_ONLY else mask


def _other_backend(name: str) -> Backend | None:
    function = ALL_ATTENTION_FUNCTIONS.get(name)
    on_hub = function is None and "/" in name and "flash" in name  # a kernel that may not be loaded yet
    if on_hub or function is ALL_ATTENTION_FUNCTIONS["flash_attention_2"]:
        return Backend(_attend_like_flash, computes=PACKED)
    if function is ALL_ATTENTION_FUNCTIONS["flex_attention"]:
        return Backend(_attend_by_flex)
    if function is None or getattr(function, "__module__", "").startswith("transformers."):
        return None
    return Backend(_attend_by_user)


def _attend_like_flash(call: LayerCall) -> Attended:
    """TanhMax for what transformers gives to flash attention: padding masks `[batch, keys]`, and examples packed
    without padding."""
    starts = _starts_of_examples(call)
    if starts is not None:
        return _attend_examples(call, starts), None
    mask = call.mask
    if mask is not None and mask.dim() == 2:
        mask = _whole_mask(call)
    return attend_by("auto", call._replace(mask=mask))


def _starts_of_examples(call: LayerCall) -> Tensor | None:
    """0, then where each packed example ends; None if the call has none."""
    starts = call.options.get(ENDS_OF_EXAMPLES)
    positions = call.options.get("position_ids")
    one_length = call.query.shape[2] == call.key.shape[2]
    if starts is None and one_length and positions is not None and positions.shape[:-1] == (1,):
        starts = (positions.flatten() == 0).nonzero().flatten()
        starts = None if len(starts) < 2 else F.pad(starts, (0, 1), value=positions.numel())
    if starts is not None and (call.coefficients or call.keep is not None or not one_length):
        raise ValueError(
            f'attn_implementation="{call.plan.backend}" computes packed examples without coefficients, changes of the '
            "mask, and keys of a cache; pad the examples."
        )
    return starts


def _attend_examples(call: LayerCall, starts: Tensor) -> Tensor:
    """The context of packed examples, each padded to the length of the longest one."""
    lengths = starts.diff()
    example = torch.repeat_interleave(lengths)
    place = torch.arange(len(example), device=starts.device) - starts[example]

    def padded(x: Tensor) -> Tensor:
        rows = x.new_zeros(len(lengths), int(lengths.max()), x.shape[1], x.shape[3])
        rows[example, place] = x[0].transpose(0, 1)[: len(example)]
        return rows.transpose(1, 2)

    query = padded(call.query)
    key = padded(call.key)
    value = padded(call.value)
    keep = torch.arange(query.shape[2], device=starts.device) < lengths[:, None]
    options = {name: option for name, option in call.options.items() if name not in (ENDS_OF_EXAMPLES, "position_ids")}
    contexts, _ = _attend_like_flash(call._replace(query=query, key=key, value=value, mask=keep, options=options))
    context = contexts[example, place]
    return F.pad(context, (0, 0, 0, 0, 0, call.query.shape[2] - len(context)))[None]


def _whole_mask(call: LayerCall) -> Tensor:
    """The padding mask `[batch, keys]` of flash attention with causality and a sliding window, as a keep-mask."""
    queries = call.query.shape[2]
    keys = call.key.shape[2]
    mask = call.mask
    keep = F.pad(mask.bool(), (0, keys - mask.shape[1]))[:, None, None]
    # the last query is at the last key that the mask knows; a static cache has more
    rows = torch.arange(mask.shape[1] - queries, mask.shape[1], device=mask.device)[:, None]
    distance = rows - torch.arange(keys, device=mask.device)
    if is_causal(call):
        keep = keep & (distance >= 0)
    if (window := call.options.get("sliding_window")) is not None:
        keep = keep & (distance.abs() < window)
    return keep


def _attend_by_flex(call: LayerCall) -> Attended:
    """TanhMax by two calls of flex attention, or what that does not compute by another exact path."""
    obstacle = _flex_obstacle(call)
    if obstacle is None:
        from hf_bidir.kernels.flex_attention import flex_tanhmax

        return flex_tanhmax(call), None
    if not torch.compiler.is_compiling():
        logger.warning_once(f"signed attention: flex attention does not compute {obstacle}; another exact path does.")
    mask = call.mask
    if mask is not None and not isinstance(mask, Tensor):
        from torch.nn.attention.flex_attention import create_mask

        lengths = call.query.shape[2], call.key.shape[2]
        mask = create_mask(mask.mask_mod, *mask.shape[:2], *lengths, call.query.device)
    return attend_by("auto", call._replace(mask=mask, options=call.options | {"is_causal": False}))


def _flex_obstacle(call: LayerCall) -> str | None:
    """What flex attention does not compute."""
    plan, options = call.plan, call.options
    obstacles = {
        "coefficients": call.coefficients,
        "a change of the mask": call.keep is not None,
        "attn_window": plan.window is not None,
        "dropout": call.layer.training and options.get("dropout"),
        f"attn_activation {plan.activation}": plan.activation != "tanhmax",
        "sinks": options.get("s_aux") is not None,
        "a position bias": options.get("position_bias") is not None,
        "a mask that is a tensor": isinstance(call.mask, Tensor),
        f"calls on {call.query.device.type}": call.query.device.type in WITHOUT_FLEX,
    }
    return next((name for name, present in obstacles.items() if present), None)


def _attend_by_user(call: LayerCall) -> Attended:
    """What a function that a user registered returns, at λ = 0, with changes of its coefficients or its mask.

    Without the keys that a change drops, a query may have none left; its context is then 0.

    Raises:
        ValueError: a signed layer; or changed coefficients of a function that returns none, or others than its context
            is computed by.
    """
    plan = call.plan
    mask = call.mask
    name = call.plan.backend
    if plan.window is not None or (plan.activation != "softmax" and plan.negative_mass != 0):
        raise ValueError(
            f'attn_implementation="{name}" computes attention of its own, which cannot be signed in addition; set '
            "attn_negative_mass=0 to explain it as it is."
        )
    if call.keep is not None:
        if mask is None:
            raise ValueError(f'attn_implementation="{name}" gets no mask here, so no key can be dropped from it.')
        dropped = torch.finfo(mask.dtype).min if mask.is_floating_point() else False
        mask = mask.masked_fill(~call.keep, dropped)
    function = ALL_ATTENTION_FUNCTIONS[name]
    context, coefficients = function(call.layer, call.query, call.key, call.value, mask, **call.options)
    if call.keep is not None:
        has_key = (mask > MASKED if mask.is_floating_point() else mask.bool()).any(-1, keepdim=True)
        context = context.masked_fill(~has_key.transpose(1, 2), 0)
    if call.coefficients and not _agree(coefficients, call.value, context):
        returned = "none" if coefficients is None else "others"
        raise ValueError(
            f"explanations need the coefficients [batch, heads, queries, keys] whose product with the values is the "
            f'context; attn_implementation="{name}" returns {returned}.'
        )
    return context, coefficients


def _agree(coefficients: Tensor | None, value: Tensor, context: Tensor) -> bool:
    if coefficients is None:
        return False
    product = grouped_matmul(coefficients, value).transpose(1, 2)
    return torch.allclose(product, context, rtol=1e-2, atol=1e-2 * context.abs().max().item())


BACKENDS["fused"] = Backend(partial(attend_by, "fused"), obstacle=fused_obstacle)
OTHER_BACKENDS.append(_other_backend)
# transformers rejects unknown names, and omits the mask for backends without a registered mask function
AttentionInterface.register("fused", _unsigned_layer)
AttentionMaskInterface.register("fused", _fused_mask)
