"""Every explanation under one name and one signature: a signed or unsigned number per token."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.common.errors import did_you_mean
from hf_bidir.explain.attentions import combine_heads, read_position, token_positions
from hf_bidir.explain.contributions import contributions, value_weighted
from hf_bidir.explain.erasure import erasure
from hf_bidir.explain.flow import attention_flow
from hf_bidir.explain.gradients import gradient_times_input, integrated_gradients
from hf_bidir.explain.readout import Target, check_position
from hf_bidir.explain.rollout import attention_rollout
from hf_bidir.explain.running import (
    attends_between_tokens,
    keep_mask_of,
    prepared_inputs,
    record_coefficients,
    sequence_length,
)


@dataclass(frozen=True)
class Request:
    """What to explain: a batch, a target, and which layer and head; None is all of them, or the method's default."""

    model: PreTrainedModel
    inputs: Mapping[str, Tensor]
    target: Target = None
    position: int | Tensor | None = None
    layer: int | None = None
    head: int | None = None


@dataclass(frozen=True)
class Method:
    """A way to give each token a number: what it is, its unit, and what it needs."""

    what: str
    unit: str
    scores: Callable[[Request], Tensor]
    layers: Literal["all", "last", "up to the last", None] = None  # by default; None: it cannot be asked for one
    signed: bool = True
    additive: bool = True  # the pieces of a word add up to what the word has
    oriented: bool = False  # at λ = 1 it means something only after `orient_heads`
    between_tokens: bool = False  # it needs attention from every token to every token

    def caption(self, layer: int | None = None, head: int | None = None) -> str:
        """What it is, and of which layers and heads."""
        if self.layers is None:
            return self.what
        where = {
            "all": "all layers" if layer is None else f"layer {layer}",
            "last": "last layer" if layer is None else f"layer {layer}",
            "up to the last": "through all layers" if layer is None else f"through layers 0 to {layer}",
        }[self.layers]
        return f"{self.what}; {where}, {'all heads' if head is None else f'head {head}'}"


def token_scores(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    method: str = "contributions",
    target: Target = None,
    *,
    position: int | Tensor | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> Tensor:
    """One number per token by any method of `METHODS`, `[batch, length]`.

    Args:
        model, inputs, target, position: as in `contributions`. Attention, values, rollout and flow explain no target
            and ignore it; they start at the position, by default the first token, or the last one where no token sees a
            later one.
        layer: for contributions, values and attention, that layer alone (attention and values: the last by default);
            for rollout and flow, the layers up to it.
        head: that head alone, instead of all of them together.

    Raises:
        ValueError: an unknown method, layer or head, or one of these where the method has none.
    """
    check_method(method, layer, head)
    inputs = prepared_inputs(model, inputs)
    if method not in methods_of(model):
        raise ValueError(
            f"{method} follows attention from token to token; {type(model).__name__} has none, choose one of "
            f"{', '.join(methods_of(model))}."
        )
    check_position(model, position)
    return METHODS[method].scores(Request(model, inputs, target, position, layer, head))


def methods_of(model: PreTrainedModel) -> list[str]:
    """The methods that a model can be explained by: all, or those that need no attention from token to token.

    What an encoder-decoder writes is explained by `align`, which has contributions.
    """
    if model.config.is_encoder_decoder:
        return ["contributions"]
    between_tokens = attends_between_tokens(model)
    return [name for name, method in METHODS.items() if between_tokens or not method.between_tokens]


def check_method(method: str, layer: int | None = None, head: int | None = None) -> None:
    """Raise ValueError for an unknown method, or one that cannot be asked for a layer or a head."""
    if method not in METHODS:
        raise ValueError(
            f"unknown method {method!r}; choose one of {', '.join(METHODS)}.{did_you_mean(method, list(METHODS))}"
        )
    if METHODS[method].layers is None and (layer is not None or head is not None):
        raise ValueError(f"{method} looks at the whole model; leave layer and head out, or choose another method.")


def _check_chosen(request: Request, layers: int, heads: int) -> None:
    for name, value, count in (("layer", request.layer, layers), ("head", request.head, heads)):
        if value is not None and not 0 <= value < count:
            raise ValueError(f"{name} {value} does not exist; there are 0 to {count - 1}.")


def _contributions(request: Request) -> Tensor:
    scores = contributions(request.model, request.inputs, request.target, position=request.position)
    _check_chosen(request, *scores.shape[1:3])
    layers = slice(None) if request.layer is None else slice(request.layer, request.layer + 1)
    heads = slice(None) if request.head is None else slice(request.head, request.head + 1)
    return scores[:, layers, heads].sum((1, 2))


def _values(request: Request) -> Tensor:
    norms = _chosen_layers(value_weighted(request.model, request.inputs), request)[-1]
    return _from_source(norms.sum(1) if request.head is None else norms[:, request.head], request)


def _attention(request: Request, signed: bool) -> Tensor:
    attention = _coefficients(request)[-1]
    return _from_source(combine_heads(attention, _heads(request), magnitude=not signed), request)


def _rollout(request: Request, signed: bool) -> Tensor:
    attentions = _coefficients(request)
    keep = keep_mask_of(request.inputs, attentions[0].shape[-1])
    mode = "signed" if signed else "magnitude"
    return _from_source(attention_rollout(attentions, keep, mode=mode, heads=_heads(request)), request)


def _flow(request: Request, signed: bool) -> Tensor:
    attentions = _coefficients(request)
    keep = keep_mask_of(request.inputs, attentions[0].shape[-1])
    source = _source(attentions[-1], keep, request)
    return attention_flow(attentions, keep, source, signed=signed, heads=_heads(request))


def _coefficients(request: Request) -> Sequence[Tensor]:
    """Of the layers up to the one that was asked for."""
    with torch.no_grad():
        return _chosen_layers(record_coefficients(request.model, request.inputs)[1], request)


def _chosen_layers(layers: Sequence[Tensor], request: Request) -> Sequence[Tensor]:
    """Of `[batch, heads, queries, keys]` per layer, those up to the one that was asked for."""
    sequence_length(request.model, request.inputs, layers)
    _check_chosen(request, len(layers), layers[0].shape[1])
    return layers if request.layer is None else layers[: request.layer + 1]


def _heads(request: Request) -> str | int:
    return "mean" if request.head is None else request.head


def _source(matrix: Tensor, keep: Tensor, request: Request) -> Tensor:
    """The position whose state is read, `[batch]`, of `[..., queries, keys]`."""
    return token_positions(read_position(matrix, keep) if request.position is None else request.position, keep)


def _from_source(matrix: Tensor, request: Request) -> Tensor:
    """The source's row of `[batch, queries, keys]`."""
    source = _source(matrix, keep_mask_of(request.inputs, matrix.shape[-1]), request)
    return matrix[torch.arange(len(matrix), device=matrix.device), source]


def _whole(function: Callable[..., Tensor], request: Request) -> Tensor:
    return function(request.model, request.inputs, request.target, position=request.position)


METHODS: dict[str, Method] = {
    "contributions": Method("contribution a · ∂y/∂a, summed over queries", "a · ∂y/∂a", _contributions, layers="all"),
    "erasure": Method(
        "fall of y when nobody attends to the token, other coefficients renormalised", "Δy", partial(_whole, erasure)
    ),
    "erasure-mask": Method(
        "fall of y when the token is masked like padding", "Δy", partial(_whole, partial(erasure, how="mask"))
    ),
    "erasure-token": Method(
        "fall of y when the token is taken from the input", "Δy", partial(_whole, partial(erasure, how="token"))
    ),
    "gradient": Method("input times gradient", "x · ∂y/∂x", partial(_whole, gradient_times_input)),
    "integrated-gradients": Method(
        "integrated gradients from padding, or an image of zeros", "part of y", partial(_whole, integrated_gradients)
    ),
    "signed-attention": Method(
        "coefficients a of the token that is read", "a", partial(_attention, signed=True), layers="last", oriented=True
    ),
    "signed-rollout": Method(
        "signed rollout",
        "rollout",
        partial(_rollout, signed=True),
        layers="up to the last",
        oriented=True,
        between_tokens=True,
    ),
    "signed-flow": Method(
        "signed maximum flow",
        "flow",
        partial(_flow, signed=True),
        layers="up to the last",
        oriented=True,
        additive=False,
        between_tokens=True,
    ),
    "attention": Method(
        "size |a| of the coefficients of the token that is read",
        "|a|",
        partial(_attention, signed=False),
        layers="last",
        signed=False,
    ),
    "rollout": Method(
        "rollout of |a|",
        "rollout",
        partial(_rollout, signed=False),
        layers="up to the last",
        signed=False,
        between_tokens=True,
    ),
    "flow": Method(
        "maximum flow through |a|",
        "flow",
        partial(_flow, signed=False),
        layers="up to the last",
        signed=False,
        additive=False,
        between_tokens=True,
    ),
    "values": Method(
        "size of the weighted values ‖a v W_o‖ of the token that is read",
        "‖a v W_o‖",
        _values,
        layers="last",
        signed=False,
        between_tokens=True,
    ),
}
