"""Centring: a change of weights that softmax attention does not notice, and that brings TanhMax close to it.

Softmax ignores a constant added to all scores of a query, so the mean key may be subtracted from every key. Its
coefficients sum to 1, so the mean value may be subtracted from every value and added behind the attention. For small
centred scores, TanhMax is then what softmax attention does beyond averaging: `sinh(s_i) / Σ cosh(s_j) ≈ s_i / N`, and
`e^{s_i} / Σ e^{s_j} - 1/N ≈ (s_i - mean(s)) / N`.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_bidir.projections import projections


@torch.no_grad()
def centre_attention(model: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]]) -> None:
    """Subtract the mean key and the mean value of every head, over the tokens of `batches`, in place.

    Only biases change: `b_k -= mean(k)`, `b_v -= mean(v)`, `b_o += W_o mean(v)`. At `λ = 0` the model's outputs remain
    what they were, up to rounding (and, in training, up to dropout of coefficients).

    Args:
        model: a bidir model whose keys, values and output projections have biases.
        batches: what the model takes, on its device; the training scripts take 256 examples.

    Raises:
        ValueError: a projection has no bias, or there is no batch.
    """
    layers = list(projections(model))
    for layer in layers:
        if any(projection.bias is None for projection in layer):
            raise ValueError("centring changes the biases of keys, values and outputs; this model has none (qkv_bias).")
    means = _means(model, [projection for key, value, _ in layers for projection in (key, value)], batches)
    for key, value, output in layers:
        key.bias -= means[key]
        value.bias -= means[value]
        output.bias += output.weight @ means[value]


def _means(
    model: PreTrainedModel, projections: list[nn.Module], batches: Iterable[Mapping[str, Tensor]]
) -> dict[nn.Module, Tensor]:
    """The mean output of each projection, under softmax attention, over the tokens that are not padding."""
    sums, counts, keep = dict.fromkeys(projections, 0), dict.fromkeys(projections, 0), None

    def add(projection: nn.Module, _, output: Tensor) -> None:
        tokens = output.flatten(0, -2)
        tokens = tokens if keep is None else tokens[keep.flatten().bool()]
        sums[projection] = sums[projection] + tokens.sum(0)
        counts[projection] += len(tokens)

    hooks = [projection.register_forward_hook(add) for projection in projections]
    try:
        with _softmax_in_evaluation(model):
            for batch in batches:
                keep = batch.get("attention_mask")
                model(**batch)
    finally:
        for hook in hooks:
            hook.remove()
    if not all(counts.values()):
        raise ValueError("expected at least one batch to take the mean keys and values of; there was none.")
    return {projection: sums[projection] / counts[projection] for projection in projections}


@contextmanager
def _softmax_in_evaluation(model: PreTrainedModel) -> Iterator[None]:
    activation, training = model.config.attn_activation, model.training
    model.config.attn_activation = "softmax"
    model.eval()
    try:
        yield
    finally:
        model.config.attn_activation = activation
        model.train(training)
