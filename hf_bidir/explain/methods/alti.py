"""ALTI: the share of every token in the output of an attention with its skip connection and norm."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hf_bidir.checkpoints.layer_hooks import observed_layers
from hf_bidir.checkpoints.linear_maps import parameter_of
from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.modeling.activations import upcast
from hf_bidir.modeling.signed_layers import signed_layers

from ..forward import ForwardCache, forward_pass, sequence_length
from ..request import Request
from .attention import attention_rollout, from_source, layers_up_to
from .contributions import output_maps, transformed_values

QUERIES = 16  # rows whose transformed vectors are in memory at a time


def alti(cache: ForwardCache, request: Request) -> Tensor:
    """The product of the `token_shares` up to the requested layer, at the position that the output is read from."""
    shares = [layer.unsqueeze(1) for layer in token_shares(cache)]
    layers = layers_up_to(shares, cache, request)
    return from_source(attention_rollout(layers, cache.keep, residual=0), cache, request)


@torch.no_grad()
def token_shares(cache: ForwardCache) -> tuple[Tensor, ...]:
    """Token-to-token shares of every attention block (ALTI, Ferrando et al. 2022, equations 9 and 10).

    The output of attention i with its skip connection, and in a post-norm model with its norm, is the sum of vectors
    `T_i(x_j)` and biases, where the norm has a constant scale. The share of token j is `max(0, ‖y_i‖₁ - ‖y_i -
    T_i(x_j)‖₁)`, divided by the sum over j. Invariant under sign flips of heads.

    Returns:
        `[batch, queries, keys]` for each run of a layer, in order; rows sum to 1, or are 0 where no token adds
        anything.

    Raises:
        ValueError: something between attention and skip connection, such as a gate or a norm.
    """
    coefficients, blocks = _recorded(cache)
    sequence_length(cache.model, cache.inputs, coefficients)
    return tuple(map(_shares, coefficients, blocks))


@dataclass
class _Block:
    """One run of an attention with its skip connection and the next norm."""

    layer: nn.Module
    output: nn.Module  # the map of the context
    value: Tensor
    added: Tensor  # the output of the attention, `[batch, length, hidden]`
    states: list[Tensor]  # what the layer attends over, and the inputs of the norms since the last attention
    total: Any = None  # the input of the next norm
    norm: Any = None

    @property
    def residual(self) -> Tensor:
        """What the skip connection carries: the first state in a post-norm model, else the input of its norm."""
        for state in self.states if self.norm else ():
            fits = state.shape == self.added.shape == self.total.shape
            if fits and torch.allclose(state + self.added, self.total, 1e-3, 1e-4):
                return state
        raise ValueError(
            f"alti needs attention that a skip connection adds to the hidden states before the next norm; around the "
            f"{type(self.layer).__name__} there is something else. Use contributions instead."
        )


def _recorded(cache: ForwardCache) -> tuple[list[Tensor], list[_Block]]:
    """The coefficients of the layers, and as many blocks, from the order in which norms and attentions run."""
    outputs = output_maps(cache)
    blocks: list[_Block] = []
    states: list[Tensor] = []

    def before_norm(norm: nn.Module, args: tuple, kwargs: dict) -> None:
        if blocks and blocks[-1].norm is None:
            blocks[-1].total = args[0]
            blocks[-1].norm = norm
        states.append(args[0])

    def before_layer(layer: nn.Module, args: tuple, kwargs: dict) -> None:
        states.insert(0, [*args, *kwargs.values()][0])

    def after_attention(layer: nn.Module, key: Tensor, value: Tensor, context: Tensor) -> None:
        output = outputs[layer] or nn.Identity()
        added = output(context.flatten(2))
        blocks.append(_Block(layer, output, value, added, list(states)))
        states.clear()

    norms = [module for module in cache.model.modules() if "Norm" in type(module).__name__]
    with (
        hooked(norms, before=before_norm),
        hooked(signed_layers(cache.model), before=before_layer),
        observed_layers(cache.model, after_attention),
    ):
        coefficients = forward_pass(cache.model, cache.inputs).coefficients
    return coefficients, blocks


def _shares(coefficients: Tensor, block: _Block) -> Tensor:
    """`[batch, queries, keys]` from coefficients `[batch, heads, queries, keys]`."""
    residual = block.residual
    post_norm = residual is block.states[0]
    vectors = transformed_values(block.output, block.value, coefficients.shape[1])
    parts_of_shares = []
    for queries in torch.arange(coefficients.shape[2]).split(QUERIES):
        parts = torch.einsum("bhqk,bhko->bqko", upcast(coefficients[:, :, queries]), vectors)
        parts[:, torch.arange(len(queries)), queries] += upcast(residual[:, queries])
        whole = upcast(block.total[:, queries]).unsqueeze(2)
        if post_norm:
            parts = _normed_parts(block.norm, parts, whole)
            whole = upcast(block.norm(whole.to(block.value.dtype)))
        without = (whole - parts).abs().sum(-1)
        parts_of_shares.append((whole.abs().sum(-1) - without).clamp_min(0))
    shares = torch.cat(parts_of_shares, 1)
    total = shares.sum(-1, keepdim=True)
    return shares / total.clamp_min(torch.finfo(shares.dtype).tiny)


def _normed_parts(norm: nn.Module, parts: Tensor, total: Tensor) -> Tensor:
    """The layer norm of each part, with the scale of the total."""
    if not isinstance(norm, nn.LayerNorm):
        raise ValueError(
            f"alti knows layer norm after attention, got {type(norm).__name__}; use contributions instead."
        )
    variance = total.var(-1, keepdim=True, correction=0)
    scale = (variance + norm.eps).rsqrt()
    weight = parameter_of(norm, "weight")
    centred = (parts - parts.mean(-1, keepdim=True)) * scale
    return centred if weight is None else centred * upcast(weight)
