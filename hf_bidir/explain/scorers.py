"""Scores by layer and head, for the table of methods: `[batch, length]` from a request."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.explain.alti import alti
from hf_bidir.explain.attentions import combine_heads, read_position, token_positions
from hf_bidir.explain.contributions import contributions, value_weighted
from hf_bidir.explain.flow import attention_flow
from hf_bidir.explain.gradients import grad_cam
from hf_bidir.explain.readout import Target
from hf_bidir.explain.rollout import attention_rollout
from hf_bidir.explain.running import check_exists, keep_mask_of, recorded, sequence_length
from hf_bidir.explain.sentence_encoder import SentenceEncoder
from hf_bidir.explain.value_zeroing import value_zeroing


@dataclass(frozen=True)
class Request:
    """A batch, a target, and a layer and head; None means all layers or heads, or the method's default."""

    model: PreTrainedModel
    inputs: Mapping[str, Tensor]
    target: Target = None
    position: int | Tensor | None = None
    layer: int | None = None
    head: int | None = None


def _check_chosen(request: Request, layers: int, heads: int) -> None:
    check_exists("layer", request.layer, layers)
    check_exists("head", request.head, heads)


def by_contributions(request: Request) -> Tensor:
    scores = contributions(request.model, request.inputs, request.target, position=request.position)
    _check_chosen(request, *scores.shape[1:3])
    layers = slice(None) if request.layer is None else slice(request.layer, request.layer + 1)
    heads = slice(None) if request.head is None else slice(request.head, request.head + 1)
    return scores[:, layers, heads].sum((1, 2))


def by_values(request: Request) -> Tensor:
    norms = _chosen_layers(value_weighted(request.model, request.inputs), request)[-1]
    return _from_source(norms.sum(1) if request.head is None else norms[:, request.head], request)


def by_attention(request: Request, signed: bool) -> Tensor:
    attention = _coefficients(request)[-1]
    return _from_source(combine_heads(attention, _heads(request), magnitude=not signed), request)


def by_rollout(request: Request, signed: bool) -> Tensor:
    attentions = _coefficients(request)
    keep = keep_mask_of(request.inputs, attentions[0].shape[-1])
    mode: Literal["signed", "magnitude"] = "signed" if signed else "magnitude"
    return _from_source(attention_rollout(attentions, keep, mode=mode, heads=_heads(request)), request)


def by_flow(request: Request, signed: bool) -> Tensor:
    attentions = _coefficients(request)
    keep = keep_mask_of(request.inputs, attentions[0].shape[-1])
    source = _source(attentions[-1], keep, request)
    return attention_flow(attentions, keep, source, signed=signed, heads=_heads(request))


def _coefficients(request: Request) -> Sequence[Tensor]:
    """Coefficients of the layers up to the requested one."""
    with torch.no_grad():
        return _chosen_layers(recorded(request.model, request.inputs)[1], request)


def _chosen_layers(layers: Sequence[Tensor], request: Request) -> Sequence[Tensor]:
    """The layers, `[batch, heads, queries, keys]` each, up to the requested one."""
    sequence_length(request.model, request.inputs, layers)
    _check_chosen(request, len(layers), layers[0].shape[1])
    return layers if request.layer is None else layers[: request.layer + 1]


def _heads(request: Request) -> Literal["mean"] | int:
    return "mean" if request.head is None else request.head


def _source(matrix: Tensor, keep: Tensor, request: Request) -> Tensor:
    """The position that the output is read from, `[batch]`; of several that are pooled the one of largest share."""
    if isinstance(request.model, SentenceEncoder):
        return request.model.pooling_weights(keep).argmax(-1)
    return token_positions(read_position(matrix, keep) if request.position is None else request.position, keep)


def _from_source(matrix: Tensor, request: Request) -> Tensor:
    """The row of the source position in `[batch, queries, keys]`; the mean over the pooled ones, by their shares."""
    keep = keep_mask_of(request.inputs, matrix.shape[-1])
    if isinstance(request.model, SentenceEncoder):
        return (request.model.pooling_weights(keep).to(matrix).unsqueeze(1) @ matrix).squeeze(1)
    source = _source(matrix, keep, request)
    return matrix[torch.arange(len(matrix), device=matrix.device), source]


def by_whole(function: Callable[..., Tensor], request: Request) -> Tensor:
    return function(request.model, request.inputs, request.target, position=request.position)


def by_grad_cam(request: Request) -> Tensor:
    return by_whole(partial(grad_cam, layer=request.layer), request)


def by_value_zeroing(request: Request) -> Tensor:
    return _rolled_out(value_zeroing(request.model, request.inputs, layer=request.layer), request)


def by_alti(request: Request) -> Tensor:
    return _rolled_out(alti(request.model, request.inputs), request)


def _rolled_out(shares: Sequence[Tensor], request: Request) -> Tensor:
    """The row of the source position in the product of token-to-token shares, `[batch, queries, keys]` each."""
    layers = _chosen_layers([layer.unsqueeze(1) for layer in shares], request)
    keep = keep_mask_of(request.inputs, layers[0].shape[-1])
    return _from_source(attention_rollout(layers, keep, residual=0), request)
