"""Signed contributions of input tokens to an output through attention, invariant under sign flips of heads."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hf_bidir.checkpoints.linear_maps import weight_of
from hf_bidir.checkpoints.projections import projections
from hf_bidir.modeling.activations import upcast

from ..forward import ForwardCache, forward_pass, sequence_length
from ..readout import readout_of
from ..request import Request
from .attention import from_source, layers_up_to


def contributions(cache: ForwardCache, request: Request) -> Tensor:
    """`Σ a_ij · ∂y/∂a_ij` of key j, `[batch, keys]`, summed over queries, and over the requested layers and heads.

    Positive where the token supports the target, negative where it opposes it. At `λ = 1` negating the keys and values
    of a head flips both `a_ij` and `∂y/∂a_ij`, but not their product. It is the first-order effect of scaling the
    coefficient, and exact for a single layer with a linear readout. In higher layers a key is the hidden state at that
    position, which already mixes in other tokens.

    Raises:
        ValueError: an unknown target, a head without one `y` per example, layers that do not attend over the same
            tokens.
    """
    layers = layers_up_to(edge_contributions(cache, request), cache, request, pooled=True)
    if request.layer is not None:
        layers = layers[-1:]
    by_layer = [layer.sum((1, 2)) for layer in layers]
    return torch.stack(by_layer).sum(0)


def head_contributions(cache: ForwardCache, request: Request) -> Tensor:
    """The contributions of every layer and head, `[batch, layers, heads, keys]`."""
    edges = edge_contributions(cache, request)
    sequence_length(cache.model, cache.inputs, edges, pooled=True)
    return torch.stack([layer.sum(2) for layer in edges], dim=1)


def edge_contributions(cache: ForwardCache, request: Request) -> tuple[Tensor, ...]:
    """`a_ij · ∂y/∂a_ij` of every layer, `[batch, heads, queries, keys]`; errors as in `contributions`."""
    pairs = zip(*coefficients_and_gradients(cache, request), strict=True)
    return tuple(upcast(coefficients) * upcast(gradient) for coefficients, gradient in pairs)


def coefficients_and_gradients(cache: ForwardCache, request: Request) -> tuple[list[Tensor], list[Tensor]]:
    """`a` and `∂y/∂a` of every run of a layer, `[batch, heads, queries, keys]`; 0 where `a` does not affect `y`."""
    with torch.inference_mode(False), torch.enable_grad():
        outputs, coefficients, _ = forward_pass(cache.model, cache.inputs)
        y = readout_of(cache, request, outputs)(outputs)
        gradients = torch.autograd.grad(y.sum(), coefficients, materialize_grads=True)
    return [layer.detach() for layer in coefficients], list(gradients)


@torch.no_grad()
def gradient_rollout(edges: Sequence[Tensor]) -> Tensor:
    """The relevance of every token for y minus that for -y.

    Chefer, Gur, Wolf 2021 ("Generic Attention-model Explainability"), equations 5 and 6, once with the gradients of y
    and once with those of -y. The relevance for y is the product `Π_l (I + Ā_l)` from the top layer down, where `Ā_l`
    is the mean over heads of the positive part of `a · ∂y/∂a`. For -y the negative parts take their place.
    `a · ∂y/∂a` does not change where the sign of a head flips.

    Args:
        edges: `a · ∂y/∂a` per layer, from the bottom up, `[batch, heads, length, length]`.

    Returns:
        `[batch, queries, keys]`, queries in the top layer and keys in the input; 0 where no path contributes.
    """
    supporting = opposing = torch.eye(edges[0].shape[-1]).to(edges[0])
    for layer in edges:
        supporting = supporting + layer.clamp_min(0).mean(1) @ supporting
        opposing = opposing + (-layer).clamp_min(0).mean(1) @ opposing
    return supporting - opposing


def chefer(cache: ForwardCache, request: Request) -> Tensor:
    """`gradient_rollout` of the layers up to the requested one, at the position that the output is read from."""
    edges = layers_up_to(edge_contributions(cache, request), cache, request)
    return from_source(gradient_rollout(edges), cache, request)


@torch.no_grad()
def value_weighted(cache: ForwardCache) -> tuple[Tensor, ...]:
    """`‖a_ij v_j W_o‖` of every layer, `[batch, heads, queries, keys]`: norm of the vector that key j adds to query i.

    Kobayashi et al. 2020 ("Attention is Not Only a Weight"), equation 3. Never negative, and invariant
    under sign flips of heads. Layers come in the order in which they run.

    Raises:
        ValueError: another module between an attention and its output projection.
    """
    outputs = output_maps(cache)
    weighted = []
    for coefficients, (layer, value) in zip(cache.coefficients, cache.values, strict=True):
        if outputs[layer] is None:
            raise ValueError(
                f"{type(layer).__name__} has another module between attention and output projection, so ‖a v W_o‖ is "
                "not what a key adds to a query; use contributions instead."
            )
        vectors = transformed_values(outputs[layer], value, coefficients.shape[1])
        norms = vectors.norm(dim=-1).unsqueeze(2)  # [batch, heads, 1, keys]
        weighted.append(upcast(coefficients).abs() * norms)
    return tuple(weighted)


def output_maps(cache: ForwardCache) -> dict[nn.Module, nn.Module | None]:
    """The map that each layer applies directly to its context, if there is one."""
    first = {name: rows[:1] for name, rows in cache.inputs.items()}
    return {maps.layer: maps.output for maps in projections(cache.model, first)}


def transformed_values(output: nn.Module, values: Tensor, heads: int) -> Tensor:
    """`v_j W_o` of each head, `[batch, heads, keys, hidden]`, from values `[batch, key heads, keys, head_dim]`."""
    weight = upcast(weight_of(output)).unflatten(1, (heads, -1))
    by_head = upcast(values).repeat_interleave(heads // values.shape[1], 1)
    return torch.einsum("bhkd,ohd->bhko", by_head, weight)


def values(cache: ForwardCache, request: Request) -> Tensor:
    """`‖a_ij v_j W_o‖` of the query that the output is read from, `[batch, keys]`, in the requested or last layer."""
    norms = layers_up_to(value_weighted(cache), cache, request)[-1]
    return from_source(norms.sum(1), cache, request)
