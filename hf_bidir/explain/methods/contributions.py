"""Signed contributions of input tokens to an output through attention, invariant under sign flips of heads."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.checkpoints.linear_maps import weight_of
from hf_bidir.checkpoints.projections import Projections, projections
from hf_bidir.explain.methods import Request
from hf_bidir.explain.methods.attention import chosen_layers, from_source
from hf_bidir.explain.record import Inputs, Record, check_exists, sequence_length
from hf_bidir.explain.target import Position, Target, choose_readout
from hf_bidir.modeling.activations import upcast


def contributions(
    model: PreTrainedModel, inputs: Inputs, target: Target = None, *, position: Position = None
) -> Tensor:
    """`Σ_i a_ij · ∂y/∂a_ij`: the contribution of key j to `y` in each layer and head, summed over queries i.

    Positive where the token supports the target, negative where it opposes it. At `λ = 1` negating the keys and values
    of a head flips both `a_ij` and `∂y/∂a_ij`, but not their product. It is the first-order effect of scaling the
    coefficient, and exact for a single layer with a linear readout.

    Args:
        model: a bidir model, on any attention backend. `load_checkpoint` loads softmax checkpoints as bidir models.
        inputs: a batch of model inputs; padding gets zeros.
        target: the class whose logit is `y`, by index or name: one for all examples, or one index per example. None
            selects the predicted class. For a model without a head, `y` projects its hidden state on itself.
        position: for heads with an output per token, the position to explain. For models without a head the default
            is the first token, or the last one in causal attention.

    Returns:
        `[batch, layers, heads, keys]`. `.sum((1, 2))` gives one number per token. In higher layers a key is the hidden
        state at that position, which already mixes in other tokens.

    Raises:
        ValueError: no input, an unknown target, a head without one `y` per example, layers that do not attend over
            the same tokens.
    """
    record = Record.of(model, inputs)
    edges = edge_contributions(record.model, record, target, position=position)
    sequence_length(record.model, record.inputs, edges, pooled=True)
    return torch.stack([layer.sum(2) for layer in edges], dim=1)


def by_contributions(request: Request) -> Tensor:
    record, target, position, layer, head = request
    scores = contributions(record.model, record, target, position=position)
    for dim, name, index in ((1, "layer", layer), (2, "head", head)):
        check_exists(name, index, scores.shape[dim])
        scores = scores if index is None else scores.narrow(dim, index, 1)
    return scores.sum((1, 2))


def edge_contributions(
    model: PreTrainedModel, inputs: Inputs, target: Target = None, *, position: Position = None
) -> tuple[Tensor, ...]:
    """`a_ij · ∂y/∂a_ij` of every layer, `[batch, heads, queries, keys]`; arguments and errors as in `contributions`."""
    coefficients, gradients = coefficients_and_gradients(model, inputs, target, position)
    return tuple(upcast(a) * upcast(g) for a, g in zip(coefficients, gradients, strict=True))


def coefficients_and_gradients(
    model: PreTrainedModel, inputs: Inputs, target: Target, position: Position
) -> tuple[list[Tensor], list[Tensor]]:
    """`a` and `∂y/∂a` of every run of a layer, `[batch, heads, queries, keys]`; 0 where `a` does not affect `y`."""
    with torch.inference_mode(False), torch.enable_grad():
        record = Record.of(model, inputs)
        outputs, coefficients = record.read()
        y = choose_readout(model, outputs, target, position, record.position)(outputs)
        gradients = record.gradients(y.sum())
    return [a.detach() for a in coefficients], list(gradients)


@torch.no_grad()
def value_weighted(model: PreTrainedModel, inputs: Inputs) -> tuple[Tensor, ...]:
    """`‖a_ij v_j W_o‖` of every layer, `[batch, heads, queries, keys]`: norm of the vector that key j adds to query i.

    Kobayashi et al. 2020 ("Attention is Not Only a Weight"), equation 3. Never negative, and invariant
    under sign flips of heads. Layers come in the order in which they run.

    Raises:
        ValueError: as in `contributions`; another module between an attention and its output projection.
    """
    record = Record.of(model, inputs)
    coefficients = record.coefficients
    first = {name: rows[:1] for name, rows in record.inputs.items()}
    maps = {found.layer: found for found in projections(model, first)}
    return tuple(
        upcast(a).abs() * _transformed_norms(maps[layer], value, heads=a.shape[1]).unsqueeze(2)
        for a, (layer, value) in zip(coefficients, record.values, strict=True)
    )


def by_values(request: Request) -> Tensor:
    norms = chosen_layers(value_weighted(request.record.model, request.record), request)[-1]
    return from_source(norms.sum(1) if request.head is None else norms[:, request.head], request)


def _transformed_norms(found: Projections, values: Tensor, heads: int) -> Tensor:
    """`‖v_j W_o‖` `[batch, heads, keys]` from values `[batch, key heads, keys, head_dim]`."""
    if found.output is None:
        raise ValueError(
            f"{type(found.layer).__name__} has another module between attention and output projection, so ‖a v W_o‖ is "
            "not what a key adds to a query; use contributions instead."
        )
    # with W = Q R, ‖W v‖ = ‖R v‖, and R v has the dimension of the head instead of the hidden size
    by_head_weight = upcast(weight_of(found.output)).unflatten(1, (heads, -1)).movedim(1, 0)
    triangle = torch.linalg.qr(by_head_weight, mode="r").R
    by_head = upcast(values).repeat_interleave(heads // values.shape[1], 1)
    return (by_head @ triangle.mT).norm(dim=-1)


def pooled_contributions(coefficients: Tensor, values: Tensor, weight: Tensor) -> Tensor:
    """`a_i (v_i · w)`: the exact share of each token in `y`, for one attention layer followed by a linear map.

    For models that pool by attention, whose output is `y = (Σ_i a_i v_i) · w + b`; the shares sum to `y - b`.

    Args:
        coefficients: `[batch, length]`, or `[batch, queries, length]`.
        values: `[batch, length, hidden]`.
        weight: the classifier row that computes `y`, `[hidden]`, or one row per example, `[batch, hidden]`.

    Returns:
        The shape of `coefficients`. Negating both `a_i` and `v_i` changes nothing.
    """
    if values.dim() != 3 or coefficients.dim() not in (2, 3) or coefficients.shape[-1] != values.shape[1]:
        raise ValueError(
            "expected coefficients [batch, length] or [batch, queries, length] and values [batch, length, hidden], got "
            f"{tuple(coefficients.shape)} and {tuple(values.shape)}."
        )
    readout = torch.einsum("blh,bh->bl", values, weight.expand(len(values), -1))
    return coefficients * (readout if coefficients.dim() == 2 else readout.unsqueeze(1))
