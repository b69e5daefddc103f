"""All methods under one signature: a signed or unsigned number per token."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.common.errors import did_you_mean
from hf_bidir.explain.alti import alti
from hf_bidir.explain.attentions import combine_heads, read_position, token_positions
from hf_bidir.explain.contributions import contributions, value_weighted
from hf_bidir.explain.erasure import erasure
from hf_bidir.explain.flow import attention_flow
from hf_bidir.explain.gradients import grad_cam, gradient_times_input, integrated_gradients
from hf_bidir.explain.readout import Target, check_position
from hf_bidir.explain.relevance import integrated_relevance, relevance
from hf_bidir.explain.rollout import attention_rollout
from hf_bidir.explain.running import (
    attends_between_tokens,
    check_exists,
    keep_mask_of,
    prepared_inputs,
    reads_images,
    record_coefficients,
    sequence_length,
)
from hf_bidir.explain.smooth_grad import smooth_grad
from hf_bidir.explain.value_zeroing import value_zeroing

NO_PASS = "none"


@dataclass(frozen=True)
class Request:
    """A batch, a target, and a layer and head; None means all layers or heads, or the method's default."""

    model: PreTrainedModel
    inputs: Mapping[str, Tensor]
    target: Target = None
    position: int | Tensor | None = None
    layer: int | None = None
    head: int | None = None


@dataclass(frozen=True)
class Method:
    """A method of `token_scores`: description, unit, cost and requirements."""

    what: str
    unit: str
    cost: str  # passes through the model, n: tokens; beside a forward pass that finds y
    scores: Callable[[Request], Tensor]
    layers: Literal["all", "last", "up to the last", None] = None  # default; None: takes no layer or head
    signed: bool = True
    additive: bool = True  # a word's score is the sum of its pieces
    oriented: bool = False  # needs `orient_heads` at λ = 1
    between_tokens: bool = False  # needs attention from every token to every token
    of_patches: bool = False  # explains images alone
    by_head: bool = True  # a method that takes a layer takes a head as well

    @property
    def explains_output(self) -> bool:
        """Whether the scores are parts or changes of the output y, so that + means support."""
        return self.signed and not self.oriented

    @property
    def takes_head(self) -> bool:
        """Whether the scores of one layer and head can be chosen."""
        return self.layers is not None and self.by_head

    @property
    def how_to_read(self) -> str:
        """The meaning of + and −, and whether raw signs are comparable, without a full stop."""
        if self.explains_output:
            return "+ (red) supports y, − (blue) opposes it; the signs are comparable across tokens, layers and heads"
        if self.signed:
            return (
                "+ (red) and − (blue) are signs of coefficients, not support or opposition; at λ = 1 they are "
                "comparable across heads only after orient_heads"
            )
        return "the darker, the larger; there are no signs, so support and opposition look the same"

    def caption(self, layer: int | None = None, head: int | None = None) -> str:
        """The description, with layers and heads."""
        if self.layers is None:
            return self.what
        where = {
            "all": "all layers" if layer is None else f"layer {layer}",
            "last": "last layer" if layer is None else f"layer {layer}",
            "up to the last": "through all layers" if layer is None else f"through layers 0 to {layer}",
        }[self.layers]
        heads = "all heads" if head is None else f"head {head}"
        return f"{self.what}; {where}{f', {heads}' if self.by_head else ''}"


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
    """Scores of one method of `METHODS`, one per token, `[batch, length]`.

    Args:
        model, inputs, target, position: as in `contributions`. Attention, values, rollout and flow ignore the
            target. They start at the position, by default the first token, or the last one in causal attention.
        layer: contributions, values, attention and Grad-CAM use this layer alone (default except for contributions: the
            last); rollout and flow use the layers up to it.
        head: use this head alone; by default all.

    Raises:
        ValueError: an unknown method, layer or head, a layer or head for a method that takes none, or a method that
            the model does not support.
    """
    check_method(method, layer, head)
    inputs = prepared_inputs(model, inputs)
    if method not in methods_of(model):
        needed = "image patches" if METHODS[method].of_patches else "attention between tokens"
        raise ValueError(
            f"{method} needs {needed}, which {type(model).__name__} does not have; choose one of "
            f"{', '.join(methods_of(model))}."
        )
    check_position(model, position)
    return METHODS[method].scores(Request(model, inputs, target, position, layer, head))


def methods_of(model: PreTrainedModel) -> list[str]:
    """The methods available for a model: those of texts or of images, and those that its attention supports.

    Encoder-decoders are explained by `align`, which computes contributions.
    """
    if model.config.is_encoder_decoder:
        return ["contributions"]
    between_tokens, images = attends_between_tokens(model), reads_images(model)
    return [
        name
        for name, method in METHODS.items()
        if (between_tokens or not method.between_tokens) and (images or not method.of_patches)
    ]


def check_method(method: str, layer: int | None = None, head: int | None = None) -> None:
    """Raise ValueError for an unknown method, or a layer or head for a method that takes none."""
    if method not in METHODS:
        raise ValueError(
            f"unknown method {method!r}; choose one of {', '.join(METHODS)}.{did_you_mean(method, list(METHODS))}"
        )
    if METHODS[method].layers is None and (layer is not None or head is not None):
        raise ValueError(f"{method} covers the whole model; leave out layer and head, or choose another method.")
    if head is not None and not METHODS[method].takes_head:
        raise ValueError(f"{method} covers all heads of a layer; leave out head, or choose another method.")


def _check_chosen(request: Request, layers: int, heads: int) -> None:
    check_exists("layer", request.layer, layers)
    check_exists("head", request.head, heads)


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
    mode: Literal["signed", "magnitude"] = "signed" if signed else "magnitude"
    return _from_source(attention_rollout(attentions, keep, mode=mode, heads=_heads(request)), request)


def _flow(request: Request, signed: bool) -> Tensor:
    attentions = _coefficients(request)
    keep = keep_mask_of(request.inputs, attentions[0].shape[-1])
    source = _source(attentions[-1], keep, request)
    return attention_flow(attentions, keep, source, signed=signed, heads=_heads(request))


def _coefficients(request: Request) -> Sequence[Tensor]:
    """Coefficients of the layers up to the requested one."""
    with torch.no_grad():
        return _chosen_layers(record_coefficients(request.model, request.inputs)[1], request)


def _chosen_layers(layers: Sequence[Tensor], request: Request) -> Sequence[Tensor]:
    """The layers, `[batch, heads, queries, keys]` each, up to the requested one."""
    sequence_length(request.model, request.inputs, layers)
    _check_chosen(request, len(layers), layers[0].shape[1])
    return layers if request.layer is None else layers[: request.layer + 1]


def _heads(request: Request) -> Literal["mean"] | int:
    return "mean" if request.head is None else request.head


def _source(matrix: Tensor, keep: Tensor, request: Request) -> Tensor:
    """The position that the output is read from, `[batch]`."""
    return token_positions(read_position(matrix, keep) if request.position is None else request.position, keep)


def _from_source(matrix: Tensor, request: Request) -> Tensor:
    """The row of the source position in `[batch, queries, keys]`."""
    source = _source(matrix, keep_mask_of(request.inputs, matrix.shape[-1]), request)
    return matrix[torch.arange(len(matrix), device=matrix.device), source]


def _whole(function: Callable[..., Tensor], request: Request) -> Tensor:
    return function(request.model, request.inputs, request.target, position=request.position)


def _grad_cam(request: Request) -> Tensor:
    return _whole(partial(grad_cam, layer=request.layer), request)


def _value_zeroing(request: Request) -> Tensor:
    return _rolled_out(value_zeroing(request.model, request.inputs, layer=request.layer), request)


def _alti(request: Request) -> Tensor:
    return _rolled_out(alti(request.model, request.inputs), request)


def _rolled_out(shares: Sequence[Tensor], request: Request) -> Tensor:
    """The product of token-to-token shares, `[batch, queries, keys]` each, which include the skip connection."""
    layers = _chosen_layers([layer.unsqueeze(1) for layer in shares], request)
    keep = keep_mask_of(request.inputs, layers[0].shape[-1])
    return _from_source(attention_rollout(layers, keep, residual=0), request)


METHODS: dict[str, Method] = {
    "attnlrp": Method(
        "AttnLRP: relevance for y, propagated backwards",
        "part of y",
        "1 backward",
        partial(_whole, relevance),
        between_tokens=True,
    ),
    "attnlrp-values": Method(
        "AttnLRP through the values alone, not through the scores",
        "part of y",
        "1 backward",
        partial(_whole, partial(relevance, through_scores=False)),
        between_tokens=True,
    ),
    "integrated-attnlrp": Method(
        "AttnLRP, integrated from padding, or from zeros for images",
        "part of y",
        "4 forward, 4 backward",
        partial(_whole, integrated_relevance),
        between_tokens=True,
    ),
    "contributions": Method(
        "contribution a · ∂y/∂a, summed over queries", "a · ∂y/∂a", "1 backward", _contributions, layers="all"
    ),
    "erasure": Method(
        "fall of y when no query attends to the token, other coefficients renormalised",
        "Δy",
        "n forward",
        partial(_whole, erasure),
    ),
    "erasure-mask": Method(
        "fall of y when the token is masked like padding",
        "Δy",
        "n forward",
        partial(_whole, partial(erasure, how="mask")),
    ),
    "erasure-token": Method(
        "fall of y when the token is removed from the input",
        "Δy",
        "n forward",
        partial(_whole, partial(erasure, how="token")),
    ),
    "gradient": Method("input times gradient", "x · ∂y/∂x", "1 backward", partial(_whole, gradient_times_input)),
    "smoothgrad": Method(
        "SmoothGrad: input times the mean gradient at noisy inputs",
        "x · mean ∂y/∂x",
        "25 forward, 25 backward",
        partial(_whole, smooth_grad),
    ),
    "integrated-gradients": Method(
        "integrated gradients from padding, or from zeros for images",
        "part of y",
        "50 forward, 50 backward",
        partial(_whole, integrated_gradients),
    ),
    "grad-cam": Method(
        "Grad-CAM: inputs x of the attention times the mean of ∂y/∂x over patches",
        "x · mean ∂y/∂x",
        "1 backward",
        _grad_cam,
        layers="last",
        of_patches=True,
        by_head=False,
    ),
    "signed-attention": Method(
        "coefficients a of the query read by the output",
        "a",
        NO_PASS,
        partial(_attention, signed=True),
        layers="last",
        oriented=True,
    ),
    "signed-rollout": Method(
        "signed rollout",
        "rollout",
        NO_PASS,
        partial(_rollout, signed=True),
        layers="up to the last",
        oriented=True,
        between_tokens=True,
    ),
    "signed-flow": Method(
        "signed maximum flow",
        "flow",
        NO_PASS,
        partial(_flow, signed=True),
        layers="up to the last",
        oriented=True,
        additive=False,
        between_tokens=True,
    ),
    "attention": Method(
        "magnitude |a| of the coefficients of the query read by the output",
        "|a|",
        NO_PASS,
        partial(_attention, signed=False),
        layers="last",
        signed=False,
    ),
    "rollout": Method(
        "rollout of |a|",
        "rollout",
        NO_PASS,
        partial(_rollout, signed=False),
        layers="up to the last",
        signed=False,
        between_tokens=True,
    ),
    "flow": Method(
        "maximum flow through |a|",
        "flow",
        NO_PASS,
        partial(_flow, signed=False),
        layers="up to the last",
        signed=False,
        additive=False,
        between_tokens=True,
    ),
    "values": Method(
        "norm ‖a v W_o‖ of the weighted values of the query read by the output",
        "‖a v W_o‖",
        NO_PASS,
        _values,
        layers="last",
        signed=False,
        between_tokens=True,
    ),
    "alti": Method(
        "ALTI: rollout of each token's share in attention, skip connection and norm",
        "share",
        NO_PASS,
        _alti,
        layers="up to the last",
        signed=False,
        between_tokens=True,
        by_head=False,
    ),
    "value-zeroing": Method(
        "value zeroing: rollout of the change of each block's output without the value",
        "share",
        "n forward",
        _value_zeroing,
        layers="up to the last",
        signed=False,
        between_tokens=True,
        by_head=False,
    ),
}
