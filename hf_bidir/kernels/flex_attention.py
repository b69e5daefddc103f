"""TanhMax by two calls of torch's flex attention, for `q` and for `-q`.

With `o±` and `l±` the outputs and log-sum-exps of the two calls, and `log λ` added to `l-`, TanhMax is
`σ(l+ - l-) o+ - σ(l- - l+) o-`. The log-sum-exps are differentiable, so autograd does the backward pass.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

from hf_bidir.modeling.activations import upcast
from hf_bidir.modeling.attention_call import per_head
from hf_bidir.modeling.signed_layers import LayerCall

LSE: dict[str, Any] = (
    {"return_aux": torch_flex.AuxRequest(lse=True)} if hasattr(torch_flex, "AuxRequest") else {"return_lse": True}
)


def flex_tanhmax(call: LayerCall) -> Tensor:
    """The context `[batch, queries, heads, value_dim]` of a layer, with a mask that is None or a `BlockMask`."""
    toward, rising = _softmax(call, call.query)
    away, falling = _softmax(call, -call.query)
    mass = per_head(call.plan.negative_mass, call.query)
    log_mass = math.log(mass) if isinstance(mass, float) else mass.flatten().to(rising).log()
    # a row without kept keys has outputs of 0 and infinite log-sum-exps
    difference = (rising - falling - log_mass).masked_fill(~rising.isfinite(), 0).unsqueeze(-1)
    context = upcast(toward) * difference.sigmoid() - upcast(away) * (-difference).sigmoid()
    return context.to(toward.dtype).contiguous()


def _softmax(call: LayerCall, query: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax attention `[batch, queries, heads, value_dim]` and its log-sum-exps `[batch, queries, heads]`."""
    key = call.key
    value = call.value
    heads = query.shape[1]
    softcap = call.options.get("softcap")
    if heads & (heads - 1):  # the kernel groups heads only if their number is a power of two
        key, value = (x.repeat_interleave(heads // x.shape[1], 1) for x in (key, value))
    context, extra = _flex_attention(query)(
        query,
        key,
        value,
        score_mod=partial(_capped, softcap) if softcap else None,
        block_mask=call.mask,
        scale=call.options.get("scaling"),
        enable_gqa=key.shape[1] != heads,
        kernel_options=call.options.get("kernel_options"),
        **LSE,
    )
    return context.transpose(1, 2), upcast(getattr(extra, "lse", extra)).transpose(1, 2)


def _flex_attention(query: Tensor) -> Callable:
    """torch's function, compiled once; as it is inside another graph, and on a CPU, where the compiled one returns no
    log-sum-exps."""
    if torch.compiler.is_compiling() or query.device.type == "cpu":
        return torch_flex.flex_attention
    return _compiled()


@cache
def _compiled() -> Callable:
    return torch.compile(torch_flex.flex_attention, dynamic=False)


def _capped(softcap: float, score: Tensor, *index: Tensor) -> Tensor:
    return softcap * torch.tanh(score / softcap)
