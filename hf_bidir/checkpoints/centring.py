"""Centring: a change of biases that leaves softmax attention unchanged and brings TanhMax closer to it.

Softmax ignores a constant added to all scores of a query, so the mean key may be subtracted from every key. Its
coefficients sum to 1, so the mean value may be subtracted from every value and added after the attention. For small
centred scores, TanhMax then approximates softmax minus the uniform average: `sinh(s_i) / Σ cosh(s_j) ≈ s_i / N`, and
`e^{s_i} / Σ e^{s_j} - 1/N ≈ (s_i - mean(s)) / N`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .examples import largest_difference, outputs_of
from .layer_hooks import at_tokens, in_evaluation, observed_layers
from .linear_maps import weight_of
from .projections import Features, Projections, projections
from .signing import softmax

TOLERANCE = 1e-3  # largest accepted relative change of softmax outputs
Move = tuple[Tensor, Tensor | slice, Tensor]  # a bias, the indices in it, and what is added to them


@torch.no_grad()
def centre_attention(model: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]]) -> None:
    """Subtract the mean key and the mean value of every head, over the tokens of `batches`, in place.

    Only biases change: `b_k -= mean(k)`, `b_v -= mean(v)`, `b_o += W_o mean(v)`. At `λ = 0` the model's outputs do not
    change, up to rounding (and, in training, up to dropout of coefficients). Keys can be centred if they have a bias
    and nothing, such as rotary positions, between projection and score; values, if value and output projections have
    biases and nothing is between them and the attention. Layers where only one of the two is possible get that one.

    Args:
        model: a bidir model.
        batches: inputs of the model, on its device; the training scripts use 256 examples.

    Raises:
        ValueError: nothing can be centred, there is no batch, or softmax outputs would change; weights are restored.
    """
    batches = list(batches)
    if not batches:
        raise ValueError("expected at least one batch, to compute mean keys and values; got none.")
    layers = projections(model, batches[0])
    if not any(_movable(layer.key) or _values_movable(layer) for layer in layers):
        raise ValueError(
            f"centring changes the biases of keys, or of values and outputs; the attention of {type(model).__name__} "
            "has none, or has something between them and its projections (rotary positions, a norm)."
        )
    means = _means(model, batches)
    moves: list[Move] = []
    for layer in layers:
        mean_key, mean_value = means[layer.layer]
        if _movable(layer.key):
            moves += _subtracted(mean_key, layer.key)
        if _values_movable(layer):
            moves += _subtracted(mean_value, layer.value)
            # a query head has the values of its key head
            context = mean_value.repeat_interleave(layer.heads // len(mean_value), 0).flatten()
            output: Any = layer.output  # a linear map, as `_values_movable` says
            change = weight_of(output).float() @ context
            moves.append((output.bias, slice(None), change))
    _move(model, moves, batches[0])


def _subtracted(mean: Tensor, heads: list[list[Features]]) -> list[Move]:
    """The moves that subtract the mean `[heads, head_dim]` from keys or values."""
    moves: list[Move] = []
    for head, (features,) in enumerate(heads):
        moves.append((features.linear.bias, features.indices, -mean[head]))
    return moves


def _movable(heads: list[list[Features]]) -> bool:
    """Whether the keys or values of all heads are direct outputs of maps with biases."""
    for maps in heads:
        if len(maps) != 1 or not maps[0].direct or not _biased(maps[0].linear):
            return False
    return bool(heads)


def _values_movable(layer: Projections) -> bool:
    return _movable(layer.value) and _biased(layer.output)


def _biased(linear: nn.Module | None) -> bool:
    return linear is not None and linear.bias is not None


def _move(model: PreTrainedModel, moves: list[Move], inputs: Mapping[str, Tensor]) -> None:
    """Change biases; restore them if that changes the softmax outputs for these inputs."""
    saved = [(bias, bias.clone()) for bias, _, _ in moves]
    with softmax(model), in_evaluation(model):
        before = outputs_of(model, inputs)
        for bias, indices, change in moves:
            bias[indices] += change.to(bias.dtype)
        difference = largest_difference(before, outputs_of(model, inputs), inputs)
    if not difference <= max(TOLERANCE, 10 * torch.finfo(model.dtype).eps):
        for bias, old in saved:
            bias.copy_(old)
        raise ValueError(
            f"centring changes the softmax outputs of {type(model).__name__} by {difference:.1e}: scores are capped, "
            "coefficients do not sum to 1, or layers share projections. The weights are as before; leave centring out."
        )


def _means(model: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]]) -> dict[nn.Module, Any]:
    """The mean key and value of every head and layer, `[key heads, head_dim]` each, under softmax attention.

    Padding is excluded in layers whose keys are the tokens of the attention mask.
    """
    sums: dict[nn.Module, Any] = {}
    keep = None

    def add(layer: nn.Module, key: Tensor, value: Tensor, context: Tensor) -> None:
        keys = at_tokens(key.transpose(1, 2), keep).float()
        values = at_tokens(value.transpose(1, 2), keep).float()
        key_sum, value_sum, count = sums.get(layer, (0, 0, 0))
        key_sum = key_sum + keys.sum(0)
        value_sum = value_sum + values.sum(0)
        sums[layer] = key_sum, value_sum, count + len(keys)

    with softmax(model), in_evaluation(model), observed_layers(model, add):
        for batch in batches:
            keep = batch.get("attention_mask")
            if keep is not None:
                keep = keep.flatten(0, -2)  # multiple choice has an extra dimension
            model(**batch)
    means = {}
    for layer, (key_sum, value_sum, count) in sums.items():
        means[layer] = key_sum / count, value_sum / count
    return means
