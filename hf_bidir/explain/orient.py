"""Orientation: each TanhMax head in that one of its two equal forms in which a positive coefficient means "for"."""

import warnings
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from hf_bidir.explain.contributions import coefficients_and_gradients
from hf_bidir.explain.readout import Target
from hf_bidir.explain.running import check_bidir
from hf_bidir.modeling.activations import get_attn_activation
from hf_bidir.modeling.configuration_bidir import head_negative_masses
from hf_bidir.projections import projections

CONSISTENT = 0.6  # a head with a smaller share of one sign has none of its own


def orient_heads(
    model: PreTrainedModel,
    dataloader: Iterable[Mapping[str, Tensor]],
    target: Target = None,
    *,
    position: int | Tensor | None = None,
    progress: bool = True,
) -> Tensor:
    """Flip `W_k` and `W_v` of whole heads, in place, so that positive coefficients support the target on average.

    At `λ = 1` a head whose keys and values are both negated computes the same output from coefficients of the other
    sign, so the sign of a raw coefficient means nothing. With `u_ij = ∂y/∂a_ij`, what the value of key j does for the
    target, a head is flipped where `Σ |a_ij| u_ij < 0` over the data. Outputs do not change.

    Args:
        model: a bidir model with TanhMax at `λ = 1`, or another odd activation.
        dataloader: batches of what the model takes; labels are ignored. Use training data.
        target, position: as in `contributions`. With a fixed class, such as "positive", a sign then speaks for or
            against that class; with None, for or against the class predicted for each example.
        progress: show a progress bar.

    Returns:
        `[layers, heads]`: the share of one sign, in [0.5, 1]: of all that a head's coefficients move the target by,
        `Σ |a_ij u_ij|`, the part where `u` has the sign that the head was oriented by. At 1 every coefficient's sign
        can be read, at 0.5 none. NaN for a head that does not reach the target. Warns with the heads below 0.6.

    Raises:
        ValueError: the signs are not free (`λ < 1`, softmax), or there is no batch.
    """
    _check_free_signs(model)
    sums = [
        _support(model, batch, target, position)
        for batch in tqdm(dataloader, desc="orient heads", unit="batch", leave=False, delay=1, disable=not progress)
    ]
    if not sums:
        raise ValueError("expected at least one batch to orient the heads by; there was none.")
    pull, total = torch.stack(sums).sum(0)
    _flip(model, pull < 0)
    share = (0.5 + 0.5 * pull.abs() / total).float()
    _warn_of_mixed_heads(share)
    return share


def flip_heads(model: PreTrainedModel, flipped: Tensor) -> None:
    """Negate keys and values, weights and biases, of the heads where `flipped` `[layers, heads]` is True, in place.

    At `λ = 1` this changes the sign of their coefficients, and no output.
    """
    _check_free_signs(model)
    expected = (model.config.num_hidden_layers, model.config.num_attention_heads)
    if tuple(flipped.shape) != expected or flipped.dtype != torch.bool:
        raise ValueError(
            f"expected a boolean [layers, heads] = {expected}, got {tuple(flipped.shape)} of {flipped.dtype}."
        )
    _flip(model, flipped)


@torch.no_grad()
def _flip(model: PreTrainedModel, flipped: Tensor) -> None:
    for (key, value, _), heads in zip(projections(model), flipped, strict=True):
        signs = 1 - 2 * heads.to(key.weight)
        for parameter in (key.weight, key.bias, value.weight, value.bias):
            if parameter is not None:
                by_head = parameter.unflatten(0, (len(heads), -1))
                by_head.mul_(signs.view(-1, *[1] * (by_head.dim() - 1)))


def _support(model, batch, target, position) -> Tensor:
    """`[2, layers, heads]`: the sums of `|a| u` and of `|a u|`."""
    coefficients, gradients = coefficients_and_gradients(model, batch, target, position)
    sums = []
    for coefficient, support in zip(coefficients, gradients, strict=True):  # u is 0 where a query is padding
        pull = (coefficient.abs() * support).double()
        sums.append(torch.stack([pull.sum((0, 2, 3)), pull.abs().sum((0, 2, 3))]))
    return torch.stack(sums, 1)


def signs_are_free(model: PreTrainedModel) -> bool:
    """Whether heads can be flipped without changing outputs: TanhMax at `λ = 1` throughout, or an odd activation."""
    config = model.config
    if config.attn_activation == "tanhmax":
        masses = {mass for layer in range(config.num_hidden_layers) for mass in head_negative_masses(config, layer)}
        return masses == {1.0} and not config.attn_learn_negative_mass
    scores = torch.linspace(-3, 3, 7)
    activation = get_attn_activation(config.attn_activation)
    return torch.equal(activation(-scores, None), -activation(scores, None))


def _check_free_signs(model: PreTrainedModel) -> None:
    check_bidir(model)
    config = model.config
    if not signs_are_free(model):
        raise ValueError(
            "only where λ = 1 in every head can heads be flipped without changing outputs; this model has "
            f"attn_activation={config.attn_activation!r}, attn_negative_mass={config.attn_negative_mass!r}. Its signs "
            "are fixed already, or there are none (softmax)."
        )


def _warn_of_mixed_heads(share: Tensor) -> None:
    mixed = [f"layer {layer} head {head} ({share[layer, head]:.2f})" for layer, head in (share < CONSISTENT).nonzero()]
    if mixed:
        warnings.warn(
            f"no consistent sign in {len(mixed)} of {share.numel()} heads: {', '.join(mixed)}. Their raw coefficients "
            "speak for the target about as often as against it; read contributions instead.",
            stacklevel=3,
        )
