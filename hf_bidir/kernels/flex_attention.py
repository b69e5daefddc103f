"""TanhMax and balanced attention by two calls of torch's flex attention, for `q` and for `-q`.

With `o±` and `l±` the outputs and log-sum-exps of the two calls, `log λ` added to `l-`, and `L = log(e^l+ + e^l-)`,
TanhMax is `e^(l+ - L) o+ - e^(l- - L) o-`. The log-sum-exps are differentiable, so autograd does the backward pass.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

from hf_bidir.modeling.activations import compute_dtype, upcast
from hf_bidir.modeling.attention_call import per_head
from hf_bidir.modeling.signed_layers import LayerCall

LSE: dict[str, Any] = (
    {"return_aux": torch_flex.AuxRequest(lse=True)} if hasattr(torch_flex, "AuxRequest") else {"return_lse": True}
)


def flex_tanhmax(call: LayerCall) -> Tensor:
    """The context `[batch, queries, heads, value_dim]` of a layer, with a mask that is None or a `BlockMask`."""
    toward, away = (_softmax(call, query) for query in (call.query, -call.query))
    mass = per_head(call.plan.negative_mass, call.query)
    if call.plan.activation == "balanced":
        half = mass / 2 if isinstance(mass, float) else mass.view(-1, 1) / 2
        context = (1 - half) * upcast(toward[0]) - half * upcast(away[0])
        return context.to(call.value.dtype)
    dtype = compute_dtype(call.query.dtype)
    log_mass = math.log(mass) if isinstance(mass, float) else mass.flatten().to(dtype).log()
    return merged(toward, away, log_mass, call.options.get("s_aux")).contiguous()


def _softmax(call: LayerCall, query: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax attention `[batch, queries, heads, value_dim]` and its log-sum-exps `[batch, queries, heads]`."""
    key, value, heads, softcap = call.key, call.value, query.shape[1], call.options.get("softcap")
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
    return context.transpose(1, 2), getattr(extra, "lse", extra).transpose(1, 2)


def _flex_attention(query: Tensor) -> Callable:
    """torch's function, compiled once; as it is inside another graph, and on a CPU, where the compiled one returns no
    log-sum-exps."""
    plain = torch.compiler.is_compiling() or query.device.type == "cpu"
    return torch_flex.flex_attention if plain else _compiled()


@cache
def _compiled() -> Callable:
    return torch.compile(torch_flex.flex_attention, dynamic=False)


def _capped(softcap: float, score: Tensor, *index: Tensor) -> Tensor:
    return softcap * torch.tanh(score / softcap)


def merged(
    toward: tuple[Tensor, Tensor], away: tuple[Tensor, Tensor], log_mass: float | Tensor, sinks: Tensor | None
) -> Tensor:
    """The context of TanhMax from the outputs `[..., heads, value_dim]` and log-sum-exps `[..., heads]` of softmax
    attention for the query and for its negative.

    A row without kept keys has the output 0 and an infinite log-sum-exp. `log_mass` is `log λ`, a number or `[heads]`.
    """
    empty = ~toward[1].isfinite()
    plus, minus = toward[1].masked_fill(empty, 0), away[1].masked_fill(empty, 0) + log_mass
    terms = [plus, minus]
    if sinks is not None:
        sinks = sinks.to(plus)
        terms += [sinks.expand_as(plus), (log_mass - sinks).expand_as(plus)]
    joint = torch.stack(terms).logsumexp(0)
    rising, falling = ((term - joint).exp().unsqueeze(-1) for term in (plus, minus))
    return (upcast(toward[0]) * rising - upcast(away[0]) * falling).to(toward[0].dtype)
