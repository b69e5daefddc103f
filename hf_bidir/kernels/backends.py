"""Backends of signed layers by attn_implementation, which this file enters in modeling/signed_layers.py: "fused", and
what computes in place of flash and flex attention."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface, masking_utils
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_bidir.modeling.signed_layers import BACKENDS, OTHER_BACKENDS, PACKED, Backend, LayerCall, attend_by, is_causal

from .fused_path import fused_obstacle

Attended = tuple[Tensor, Tensor | None]
SDPA_MASK = ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]
PADDING_ONLY = getattr(masking_utils, "bidirectional_mask_function", None)


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
        return Backend(_attend_like_flex)
    return None


def _attend_like_flash(call: LayerCall) -> Attended:
    """TanhMax for what transformers gives to flash attention: padding masks `[batch, keys]`, and examples packed
    without padding."""
    starts = _starts_of_examples(call)
    return _attend_padded(call) if starts is None else (_attend_examples(call, starts), None)


def _attend_padded(call: LayerCall) -> Attended:
    is_padding = call.mask is not None and call.mask.dim() == 2
    return attend_by("auto", call._replace(mask=_whole_mask(call)) if is_padding else call)


def _starts_of_examples(call: LayerCall) -> Tensor | None:
    """0, then where each packed example ends; None if the call has none."""
    starts = call.options.get("cu_seq_lens_q")
    positions = call.options.get("position_ids")
    one_length = call.query.shape[2] == call.key.shape[2]
    if starts is None and one_length and positions is not None and positions.shape[:-1] == (1,):
        starts = (positions.flatten() == 0).nonzero().flatten()
        starts = None if len(starts) < 2 else F.pad(starts, (0, 1), value=positions.numel())
    if starts is not None and (call.coefficients or not one_length):
        raise ValueError(
            f'attn_implementation="{call.plan.backend}" computes packed examples without coefficients and keys of a '
            "cache; pad the examples."
        )
    return starts


def _attend_examples(call: LayerCall, starts: Tensor) -> Tensor:
    """The context of packed examples, each padded to the length of the longest one."""
    counts = starts.diff()
    lengths = counts.tolist()

    def padded(x: Tensor) -> Tensor:
        examples = x[0].transpose(0, 1).split(lengths)
        return pad_sequence(examples, batch_first=True).transpose(1, 2)

    query = padded(call.query)
    keep = torch.arange(query.shape[2], device=starts.device) < counts[:, None]
    key, value = padded(call.key), padded(call.value)
    contexts, _ = _attend_padded(call._replace(query=query, key=key, value=value, mask=keep))
    return contexts[keep][None]


def _whole_mask(call: LayerCall) -> Tensor:
    """The padding mask `[batch, keys]` of flash attention with causality and a sliding window, as a keep-mask."""
    queries = call.query.shape[2]
    keys = call.key.shape[2]
    known = call.mask.shape[1]  # the last query is at the last key that the mask knows; a static cache has more
    keep = F.pad(call.mask.bool(), (0, keys - known))[:, None, None]
    rows = torch.arange(known - queries, known, device=keep.device)[:, None]
    distance = rows - torch.arange(keys, device=keep.device)
    if is_causal(call):
        keep = keep & (distance >= 0)
    if (window := call.options.get("sliding_window")) is not None:
        keep = keep & (distance.abs() < window)
    return keep


def _attend_like_flex(call: LayerCall) -> Attended:
    """The attention of a layer that gets a block mask of torch's flex attention, or no mask."""
    mask = call.mask
    if mask is not None and not isinstance(mask, Tensor):
        from torch.nn.attention.flex_attention import create_mask

        if not hasattr(mask, "keep"):  # the layers of a forward pass share the block mask
            batch, heads, *_ = mask.shape
            lengths = call.query.shape[2], call.key.shape[2]
            mask.keep = create_mask(mask.mask_mod, batch, heads, *lengths, call.query.device)
        mask = mask.keep
    return attend_by("auto", call._replace(mask=mask, options=call.options | {"is_causal": False}))


BACKENDS["fused"] = Backend(partial(attend_by, "fused"), obstacle=fused_obstacle)
OTHER_BACKENDS.append(_other_backend)
# transformers rejects unknown names, and omits the mask for backends without a registered mask function
AttentionInterface.register("fused", _unsigned_layer)
AttentionMaskInterface.register("fused", _fused_mask)
