"""Backends of signed layers by attn_implementation, which this file enters in modeling/signed_layers.py: faster ones
for the names there, and "fused", flash and flex attention, functions of users."""

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import AttentionInterface, masking_utils
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging

from hf_bidir.kernels.fused_path import fused_obstacle
from hf_bidir.kernels.packed_attention import Packed, packed_examples
from hf_bidir.modeling.activations import WITH_NEGATIVE_MASS
from hf_bidir.modeling.attention_call import (
    MASKED,
    AttentionCall,
    attention_call,
    keep_and_bias,
)
from hf_bidir.modeling.eager_attention import grouped_matmul
from hf_bidir.modeling.signed_layers import (
    BACKENDS,
    BUILT_IN,
    OTHER_BACKENDS,
    PACKED,
    Backend,
    LayerCall,
    attend_by,
    is_causal,
)

logger = logging.get_logger(__name__)

Found = TypeVar("Found")
Attended = tuple[Tensor, Tensor | None]
_FOUND: Any = WeakTensorKeyDictionary()  # of masks: their version, and what was found
SDPA_MASK = ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]
MASK_ROWS = 256  # rows of a mask that are compared at a time
WITHOUT_FLEX = ("cpu",)  # devices where compiled flex attention has no gradients and returns no log-sum-exps
PADDING_ONLY = getattr(masking_utils, "bidirectional_mask_function", None)


def is_captured(x: Tensor) -> bool:
    """Whether operations are captured as a graph, which must not depend on the values of a tensor."""
    capturing = x.is_cuda and torch.cuda.is_current_stream_capturing()
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or capturing


def _unsigned_layer(module: Any, *args: Any, **kwargs: Any) -> None:
    raise ValueError(
        f'attn_implementation="fused" needs a signed layer, and {type(module).__name__} is not signed; use "sdpa".'
    )


def _fused_mask(*args: Any, mask_function: Callable = PADDING_ONLY, **kwargs: Any) -> Tensor | None:
    """As for SDPA, but a padding mask is `[batch, 1, 1, keys]`: one row for all queries lets the kernel skip blocks."""
    mask = SDPA_MASK(*args, mask_function=mask_function, **kwargs)
    return mask[:, :, :1] if mask is not None and mask_function is PADDING_ONLY else mask


def _attend(implementation: str, call: LayerCall) -> Attended:
    """As `attend_by`; masks are inspected once for all layers, and one that is just a sliding window becomes that, so
    that keys outside it are skipped."""
    plan, mask, sliding = call.plan, call.mask, call.options.get("sliding_window")
    heads = call.query.shape[1]
    if isinstance(plan.negative_mass, list) and len(plan.negative_mass) != heads:
        plan = plan._replace(negative_mass=_held(call.layer, plan.negative_mass, heads))
        call = call._replace(plan=plan)
    if mask is None or implementation == "eager" or call.options.get("position_bias") is not None:
        return attend_by(implementation, call)
    bias = None
    if mask.dtype != torch.bool:
        mask, bias = remembered(mask, "parts", lambda: keep_and_bias(call.mask, omit_zero_bias=True))
        call = call._replace(mask=mask, options=call.options | {"position_bias": bias})
    signed = plan.activation == "tanhmax" and plan.negative_mass != 0
    skips = signed and bias is None and plan.window is None and not call.coefficients
    if sliding and skips and is_sliding_window(mask, sliding):
        window = plan._replace(window=sliding - 1)
        call = call._replace(mask=None, options=call.options | {"is_causal": True}, plan=window)
    return attend_by(implementation, call)


def remembered(mask: Tensor, what: Hashable, find: Callable[[], Found]) -> Found:
    """`find()`, computed once for all layers that get the same mask, because inspecting a mask makes the CPU wait for
    the GPU.

    It is computed anew after a write that torch counts (not `mask.data[...] = `), and in every call where torch counts
    none or records operations: in graphs, in inference mode, and for a mask with a gradient.
    """
    if is_captured(mask) or torch.is_inference_mode_enabled() or mask.is_inference() or mask.requires_grad:
        return find()
    known: dict[Hashable, Found]
    version, known = _FOUND.get(mask, (None, {}))
    if version != mask._version:
        known = {}
        _FOUND[mask] = mask._version, known
    if what not in known:
        known[what] = find()
    return known[what]


def _held(layer: nn.Module, masses: list[float], heads: int) -> list[float]:
    """The masses of the heads of this process, one of those among which tensor parallelism divides the weights."""
    for weight in layer.parameters():
        for axis, placement in enumerate(getattr(weight, "placements", ())):  # of a DTensor
            if placement.is_shard() and weight.device_mesh.size(axis) * heads == len(masses):
                rank = weight.device_mesh.get_local_rank(axis)
                return masses[rank * heads : (rank + 1) * heads]
    return masses  # an error says that they do not fit


def is_sliding_window(keep: Tensor | None, sliding: int) -> bool:
    """Whether a mask keeps exactly the keys `i - sliding < j <= i` of each query `i`, as it does without padding."""
    if keep is None or keep.shape[2] != keep.shape[3] or sliding < 2 or is_captured(keep):
        return False
    return remembered(keep, sliding, lambda: _is_band(keep, sliding))


def _is_band(keep: Tensor, sliding: int) -> bool:
    length, call = keep.shape[2], AttentionCall(causal=True, window=sliding - 1)
    blocks = (slice(first, min(first + MASK_ROWS, length)) for first in range(0, length, MASK_ROWS))
    bands = ((rows, call.band(rows, slice(0, length), keep.device)) for rows in blocks)
    return all(band is not None and bool((keep[:, :, rows] == band).all()) for rows, band in bands)


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
    """TanhMax where transformers would call flash attention: by the fused kernel, which keeps packed examples apart."""
    packed = _packed_examples(call)
    if packed is not None:
        return _attend_packed(call, packed), None
    keep = call.mask if call.mask is None or call.mask.dim() == 4 else _whole_mask(call)
    return _attend("auto", call._replace(mask=keep))


def _packed_examples(call: LayerCall) -> Packed | None:
    """The boundaries of examples without padding; None if the call has none."""
    options, positions = call.options, call.options.get("position_ids")
    if options.get("cu_seq_lens_q") is not None:
        starts = options["cu_seq_lens_q"], options["cu_seq_lens_k"]
        lengths = options.get("max_length_q"), options.get("max_length_k")
        return packed_examples(call.query, call.key, *starts, *lengths)
    if positions is None or call.query.shape[0] > 1 or call.query.shape[2] != call.key.shape[2] or positions.dim() > 2:
        return None
    starts = remembered(positions, "starts", lambda: (positions.flatten() == 0).nonzero().flatten().int())
    if len(starts) < 2:
        return None
    starts = F.pad(starts, (0, 1), value=call.key.shape[2])
    return packed_examples(call.query, call.key, starts)


def _attend_packed(call: LayerCall, packed: Packed) -> Tensor:
    """The context of packed examples; ValueError for what only a mask could keep apart."""
    plan, options = call.plan, call.options
    needs = {
        "coefficients": call.coefficients,
        "a change of the mask": call.keep is not None,
        "attn_window": plan.window is not None,
        f"attn_activation {plan.activation}": plan.activation not in ("tanhmax", "softmax"),
        "a position bias": options.get("position_bias") is not None,
        "sinks": options.get("s_aux") is not None,
    }
    if need := next(filter(needs.get, needs), None):
        raise ValueError(
            f'attn_implementation="{plan.backend}" keeps packed examples apart inside its kernel, which does not '
            f"compute {need}; pad the examples."
        )
    from hf_bidir.kernels.fused_attention import fused_attention

    window = options.get("sliding_window")
    attention = attention_call(
        call.query,
        call.key,
        plan.activation,
        plan.negative_mass,
        scaling=options.get("scaling"),
        dropout=options.get("dropout") or 0.0 if call.layer.training else 0.0,
        causal=is_causal(call),
        window=None if window is None else window - 1,
        softcap=options.get("softcap"),
    )
    return fused_attention(call.query, call.key, call.value, None, attention, packed).transpose(1, 2)


def _whole_mask(call: LayerCall) -> Tensor:
    """The padding mask `[batch, keys]` of flash attention with causality and a sliding window, as a keep-mask."""
    queries, keys, mask = call.query.shape[2], call.key.shape[2], call.mask
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
    plan, options = call.plan, call.options
    obstacles = {
        "coefficients": call.coefficients,
        "a change of the mask": call.keep is not None,
        "attn_window": plan.window is not None,
        "dropout": call.layer.training and options.get("dropout"),
        f"attn_activation {plan.activation}": plan.activation not in WITH_NEGATIVE_MASS,
        "balanced attention with sinks": plan.activation == "balanced" and options.get("s_aux") is not None,
        "a position bias": options.get("position_bias") is not None,
        "a mask that is a tensor": isinstance(call.mask, Tensor),
        f"gradients on {call.query.device.type}": call.query.device.type in WITHOUT_FLEX,
    }
    reason = next(filter(obstacles.get, obstacles), None)
    if reason is None:
        from hf_bidir.kernels.flex_attention import flex_tanhmax

        return flex_tanhmax(call), None
    if not torch.compiler.is_compiling():
        logger.warning_once(f"signed attention: flex attention does not compute {reason}; another exact path does.")
    mask = call.mask
    if mask is not None and not isinstance(mask, Tensor):
        from torch.nn.attention.flex_attention import create_mask

        lengths = call.query.shape[2], call.key.shape[2]
        mask = create_mask(mask.mask_mod, *mask.shape[:2], *lengths, call.query.device)
    return _attend("auto", call._replace(mask=mask, options=options | {"is_causal": False}))


def _attend_by_user(call: LayerCall) -> Attended:
    """What a function that a user registered returns, at λ = 0, with changes of its coefficients or its mask.

    Without the keys that a change drops, a query may have none left; its context is then 0.

    Raises:
        ValueError: a signed layer; or changed coefficients of a function that returns none, or others than its context
            is computed by.
    """
    plan, mask, name = call.plan, call.mask, call.plan.backend
    if plan.window is not None or (plan.activation != "softmax" and plan.negative_mass != 0):
        raise ValueError(
            f'attn_implementation="{name}" computes attention of its own, which cannot be signed in addition; set '
            "attn_negative_mass=0 to explain it as it is."
        )
    has_key = None  # which queries have a key, [batch, heads or 1, queries, 1]
    if call.keep is not None:
        if mask is None:
            raise ValueError(f'attn_implementation="{name}" gets no mask here, so no key can be dropped from it.')
        dropped = torch.finfo(mask.dtype).min if mask.is_floating_point() else False
        mask = mask.masked_fill(~call.keep, dropped)
        has_key = (mask > MASKED if mask.is_floating_point() else mask.bool()).any(-1, keepdim=True)
    states = call.query, call.key, call.value
    context, coefficients = ALL_ATTENTION_FUNCTIONS[name](call.layer, *states, mask, **call.options)
    if has_key is not None:
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


for _name, _implementation in BUILT_IN.items():
    BACKENDS[_name] = Backend(partial(_attend, _implementation))
BACKENDS["fused"] = Backend(partial(_attend, "fused"), obstacle=fused_obstacle)
OTHER_BACKENDS.append(_other_backend)
# transformers rejects unknown names, and omits the mask for backends without a registered mask function
AttentionInterface.register("fused", _unsigned_layer)
AttentionMaskInterface.register("fused", _fused_mask)
