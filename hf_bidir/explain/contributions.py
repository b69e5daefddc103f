"""What each input token adds to an output through attention: signed, and free of the gauge."""

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.explain.readout import Target, choose_readout
from hf_bidir.explain.running import prepared_inputs, record_coefficients
from hf_bidir.projections import projections


def contributions(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    target: Target = None,
    *,
    position: int | Tensor | None = None,
) -> Tensor:
    """`Σ_i a_ij · ∂y/∂a_ij`: what key j adds to `y` in each layer and head, over all queries i.

    Positive for what speaks for the target, negative for what speaks against it. At `λ = 1` the signs of keys and
    values of a head may be swapped together, which flips `a_ij` and `∂y/∂a_ij` both, so their product needs no oriented
    heads. It is the first-order effect of scaling the coefficient; in a single layer with a linear readout it is exact.

    Args:
        model: a bidir model, on any attention backend. `load_checkpoint` reads softmax checkpoints as such.
        inputs: what the model takes, a batch; padding gets zeros.
        target: what `y` is: the logit of a class, by number or name, one for all or one number per example. None
            takes the class predicted for each. A model without a head is explained along its own hidden state.
        position: for heads that answer per token, which token's answer; for models without a head, 0.

    Returns:
        `[batch, layers, heads, keys]`. `.sum((1, 2))` is one number per token. The keys of higher layers are positions:
        what a token has become there, with what it has taken from others.

    Raises:
        ValueError: no input, a target that does not exist, a head whose outputs are not one `y` per example.
    """
    edges = edge_contributions(model, inputs, target, position=position)
    return torch.stack([layer.sum(2) for layer in edges], dim=1)


def edge_contributions(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    target: Target = None,
    *,
    position: int | Tensor | None = None,
) -> tuple[Tensor, ...]:
    """`a_ij · ∂y/∂a_ij` of every layer, `[batch, heads, queries, keys]`; arguments and errors as in `contributions`."""
    coefficients, gradients = coefficients_and_gradients(model, inputs, target, position)
    return tuple(_precise(a) * _precise(g) for a, g in zip(coefficients, gradients, strict=True))


def coefficients_and_gradients(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], target: Target, position: int | Tensor | None
) -> tuple[list[Tensor], list[Tensor]]:
    """`a` and `∂y/∂a` of every layer, `[batch, heads, queries, keys]` each; arguments and errors as in `contributions`.

    Coefficients that do not reach y, such as those of padding, have a gradient of 0.
    """
    with torch.inference_mode(False), torch.enable_grad():
        outputs, coefficients = record_coefficients(model, prepared_inputs(model, inputs))
        score = choose_readout(model, outputs, target, position)(outputs)
        gradients = torch.autograd.grad(score.sum(), coefficients, materialize_grads=True)
    return [a.detach() for a in coefficients], list(gradients)


def _precise(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


@torch.no_grad()
def value_weighted(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """`‖a_ij v_j W_o‖` of every layer, `[batch, heads, queries, keys]`: the size of what query i takes from key j.

    Kobayashi et al. 2020 ("Attention is Not Only a Weight"), equation 3. Never negative, and gauge-invariant.
    """
    inputs = prepared_inputs(model, inputs)
    values: list[Tensor] = []
    layers = list(projections(model))
    hooks = [value.register_forward_hook(lambda *call: values.append(call[-1])) for _, value, _ in layers]
    try:
        _, coefficients = record_coefficients(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(
        _precise(a).abs() * _transformed_norms(v, output.weight, heads=a.shape[1]).unsqueeze(2)
        for a, v, (_, _, output) in zip(coefficients, values, layers, strict=True)
    )


def _transformed_norms(values: Tensor, weight: Tensor, heads: int) -> Tensor:
    """`‖v_j W_o‖` `[batch, heads, keys]` from values `[batch, keys, heads * d]` and `W_o` `[hidden, heads * d]`."""
    # with W = Q R, ‖W v‖ = ‖R v‖: as many numbers as the head has, instead of as many as the model's hidden size
    triangle = torch.linalg.qr(_precise(weight).unflatten(1, (heads, -1)).movedim(1, 0), mode="r").R
    by_head = _precise(values).unflatten(-1, (heads, -1)).transpose(1, 2)
    return (by_head @ triangle.mT).norm(dim=-1)


def pooled_contributions(coefficients: Tensor, values: Tensor, weight: Tensor) -> Tensor:
    """`a_i (v_i · w)`: the exact share of each token in `y`, where one attention layer pools and a linear map reads.

    For recurrent and pooling models, whose output is `y = (Σ_i a_i v_i) · w + b`; the shares sum to `y - b`.

    Args:
        coefficients: `[batch, length]`, or `[batch, queries, length]`.
        values: `[batch, length, hidden]`.
        weight: `[hidden]`, the row of the classifier that makes `y`, or `[batch, hidden]`, a row per example.

    Returns:
        The shape of `coefficients`. Gauge-invariant: the signs of `a_i` and `v_i` may be swapped together.
    """
    if values.dim() != 3 or coefficients.dim() not in (2, 3) or coefficients.shape[-1] != values.shape[1]:
        raise ValueError(
            "expected coefficients [batch, length] or [batch, queries, length] and values [batch, length, hidden], got "
            f"{tuple(coefficients.shape)} and {tuple(values.shape)}."
        )
    readout = torch.einsum("blh,bh->bl", values, weight.expand(len(values), -1))
    return coefficients * (readout if coefficients.dim() == 2 else readout.unsqueeze(1))
