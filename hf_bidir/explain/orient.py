"""Orientation: fix the arbitrary overall sign of each head so that positive coefficients support the target."""

import hashlib
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain
from operator import add
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedModel

from hf_bidir.checkpoints.kinds import example_inputs
from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.checkpoints.linear_maps import is_plain, weight_of
from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.checkpoints.projections import Projections, largest_change, projections
from hf_bidir.checkpoints.reading import check_full_precision
from hf_bidir.explain.inputs.sentences import transformer_of
from hf_bidir.explain.methods.contributions import coefficients_and_gradients
from hf_bidir.explain.record import attention_config, check_bidir
from hf_bidir.explain.target import Position, Target
from hf_bidir.modeling.activations import WITH_NEGATIVE_MASS, get_attn_activation
from hf_bidir.modeling.configuration_bidir import all_masses
from hf_bidir.modeling.signed_layers import signed_layers

CONSISTENT = 0.6  # smallest share of one sign at which a head counts as consistent
NAMED = 8  # heads in a warning
TOLERANCE = 1e-4  # relative change of outputs allowed after a flip
PREDICTED = "predicted class"  # orientation without a fixed target


def orient_heads(
    model: PreTrainedModel,
    dataloader: Iterable[Mapping[str, Tensor]],
    target: Target = None,
    *,
    position: Position = None,
    progress: bool = True,
) -> Tensor:
    """Negate `W_k` and `W_v` of whole heads in place, so that positive coefficients support the target on average.

    At `λ = 1` negating the keys and values of a head negates its coefficients and leaves the output unchanged, so raw
    signs are arbitrary. With `u_ij = ∂y/∂a_ij`, a head is flipped if `Σ |a_ij| u_ij < 0` over the data. Heads with the
    same keys or values, such as the query heads of one key head, flip together, by their sum.

    The target is recorded in `model.config.attn_oriented`, which `save_pretrained` saves; `oriented_towards(model)`
    reads it as long as no weight has changed.

    Args:
        model: a bidir model with TanhMax at `λ = 1`, or another odd activation.
        dataloader: batches of model inputs; labels are ignored. Use training data.
        target, position: as in `contributions`. With a fixed class, such as "positive", + supports that class; with
            None, the class predicted for each example.

    Returns:
        `[layers, heads]` in the order of `signed_layers(model)`: how consistent the signs are, in [0, 1]. It is the
        part of `Σ |a_ij u_ij|` where `u` has the sign of the orientation: 1 if every + supports the target, 0.5 if
        signs carry no information, below 0.5 if the other heads of its group decided. NaN for a head without effect on
        the target. Warns of the heads below 0.6.

    Raises:
        ValueError: heads cannot be flipped (`λ < 1`, softmax, quantised weights, or a function between projection and
            score that is not odd), or no batch. The weights are left unchanged.
    """
    check_full_precision(model.config, type(model).__name__, "oriented")
    _check_free_signs(model)
    sums = [
        _support(model, batch, target, position)
        for batch in tqdm(dataloader, desc="orient heads", unit="batch", leave=False, delay=1, disable=not progress)
    ]
    if not sums:
        raise ValueError("expected at least one batch to orient the heads by, got none.")
    pull, total = torch.stack(sums).sum(0)
    found = projections(model)
    groups = _groups(found).to(pull.device)
    flipped = (pull.new_zeros(groups.max() + 1).index_add(0, groups.flatten(), pull.flatten()) < 0)[groups]
    _flip(model, found, flipped)
    share = (0.5 + 0.5 * torch.where(flipped, -pull, pull) / total).float()
    _warn_of_mixed_heads(share)
    record_orientation(model, target, (share >= CONSISTENT).float().mean().item())
    return share


def flip_heads(model: PreTrainedModel, flipped: Tensor) -> None:
    """Negate keys and values, weights and biases, of the heads where `flipped` `[layers, heads]` is True, in place.

    At `λ = 1` this negates their coefficients and changes no output.

    Raises:
        ValueError: a wrong shape or type, only some heads of a group, and as in `orient_heads`.
    """
    _check_free_signs(model)
    found = projections(model)
    groups = _groups(found)
    if flipped.shape != groups.shape or flipped.dtype != torch.bool:
        raise ValueError(
            f"expected a boolean [layers, heads] = {tuple(groups.shape)}, got {tuple(flipped.shape)} of "
            f"{flipped.dtype}."
        )
    for group in groups.unique():
        together = (groups == group).to(flipped.device)
        if len(flipped[together].unique()) > 1:
            heads = ", ".join(f"layer {layer} head {head}" for layer, head in together.nonzero().tolist())
            raise ValueError(f"{heads} share keys or values and must be flipped together; got only some of them.")
    _flip(model, found, flipped)


def _groups(found: list[Projections]) -> Tensor:
    """Group index of each head, `[layers, heads]`; heads of a group share keys or values and flip together."""
    if len({layer.heads for layer in found}) > 1:
        raise ValueError(f"expected the same number of heads in every layer, got {[layer.heads for layer in found]}.")
    linear_maps = [maps for layer in found for maps in zip(layer.key, layer.value, strict=True)]
    if not linear_maps or not all(key and value for key, value in linear_maps):
        raise ValueError("only keys and values computed by linear maps can be flipped; this model has others.")
    owners = defaultdict(list)
    for head, maps in enumerate(linear_maps):
        for features in chain(*maps):
            if not is_plain(features.linear):
                raise ValueError(
                    f"heads are flipped in their weights, and a {type(features.linear).__name__} holds more than a "
                    "weight and a bias; merge the adapter first (model.merge_and_unload()), and quantise last."
                )
            for index in features.indices.tolist():
                owners[id(features.linear.weight), index].append(head)
    first, other = zip(*((heads[0], head) for heads in owners.values() for head in heads), strict=True)
    shared = coo_array((np.ones(len(first)), (first, other)), shape=(len(linear_maps),) * 2)
    groups = torch.from_numpy(connected_components(shared, directed=False)[1]).long().split([len(p.key) for p in found])
    return torch.stack([own.repeat_interleave(p.heads // len(p.key)) for own, p in zip(groups, found, strict=True)])


@torch.no_grad()
def _flip(model: PreTrainedModel, found: list[Projections], flipped: Tensor) -> None:
    """Flip heads, and undo it if that changes the outputs."""
    if not flipped.any():
        return
    before = _outputs(model)
    _negate(found, flipped)
    difference = largest_change(before, _outputs(model))
    if not difference <= max(TOLERANCE, torch.finfo(model.dtype).eps):
        _negate(found, flipped)
        raise ValueError(
            f"flipping heads changes the outputs of {type(model).__name__} by {difference:.1e}, so their signs are not "
            "arbitrary: a function between projection and score is not odd, such as a norm with a bias, or a bias is "
            "added to the scores. The weights are unchanged; use contributions, which need no orientation."
        )


@torch.no_grad()
def _negate(found: list[Projections], flipped: Tensor) -> None:
    rows: dict[int, tuple[Tensor, set[int]]] = {}  # each parameter once, also if several layers share it
    for layer, heads in zip(found, flipped, strict=True):
        for own, maps in zip(heads.reshape(len(layer.key), -1)[:, 0], map(add, layer.key, layer.value), strict=True):
            for features in maps if own else ():
                for parameter in (weight_of(features.linear), features.linear.bias):
                    if parameter is not None:
                        rows.setdefault(parameter.data_ptr(), (parameter, set()))[1].update(features.indices.tolist())
    for parameter, indices in rows.values():
        parameter[list(indices)] *= -1


def _outputs(model: PreTrainedModel) -> list[Tensor]:
    with in_evaluation(model):
        outputs = model(**example_inputs(model), return_dict=True)
    return [value for value in outputs.values() if isinstance(value, Tensor) and value.is_floating_point()]


def _support(model, batch, target, position) -> Tensor:
    """Sums of `|a| u` and of `|a u|` over the batch, `[2, layers, heads]`."""
    layers, calls = signed_layers(model), []
    with hooked(layers, before=lambda layer, *_: calls.append(layer)):
        coefficients, gradients = coefficients_and_gradients(model, batch, target, position)
    sums: dict[nn.Module, Any] = dict.fromkeys(layers, 0)
    for layer, coefficient, support in zip(calls, coefficients, gradients, strict=True):
        pull = (coefficient.abs() * support).double()  # 0 for queries at padding
        sums[layer] = sums[layer] + torch.stack([pull.sum((0, 2, 3)), pull.abs().sum((0, 2, 3))])
    return torch.stack(list(sums.values()), 1)


def signs_are_free(model: PreTrainedModel) -> bool:
    """Whether the activation allows flipping heads: `λ = 1` in all heads, or another odd activation."""
    config = attention_config(model)
    if config.attn_activation in WITH_NEGATIVE_MASS:
        return {*all_masses(config.attn_negative_mass)} == {1}
    scores = torch.linspace(-3, 3, 7)
    activation = get_attn_activation(config.attn_activation)
    return torch.equal(activation(-scores, None), -activation(scores, None))


def _check_free_signs(model: PreTrainedModel) -> None:
    check_bidir(model)
    if not signs_are_free(model):
        config = attention_config(model)
        raise ValueError(
            "heads can be flipped without changing outputs only where λ = 1 in every head or the activation is odd; "
            f"got attn_activation={config.attn_activation!r}, attn_negative_mass={config.attn_negative_mass!r}. "
            "Its signs are not arbitrary, so they need no orientation."
        )


def _warn_of_mixed_heads(share: Tensor) -> None:
    mixed = [f"layer {layer} head {head} ({share[layer, head]:.2f})" for layer, head in (share < CONSISTENT).nonzero()]
    if mixed:
        more = f" and {len(mixed) - NAMED} more" if len(mixed) > NAMED else ""
        warnings.warn(
            f"no consistent sign in {len(mixed)} of {share.numel()} heads: {', '.join(mixed[:NAMED])}{more}. Their raw "
            "coefficients support the target about as often as they oppose it; use contributions instead.",
            stacklevel=3,
        )


def record_orientation(model: PreTrainedModel, target: Target, consistent: float) -> None:
    """Write the target of `orient_heads` to `model.config.attn_oriented`, with the share of consistent heads."""
    names = getattr(model.config, "id2label", None) or {}
    named = PREDICTED if target is None else names.get(target, target) if isinstance(target, int) else target
    fields = {"target": str(named), "consistent": round(consistent, 3), "weights": fingerprint(model)}
    model.config.attn_oriented = fields


def oriented_towards(model: PreTrainedModel) -> str | None:
    """The target of the recorded orientation; None if there is none, or if any weight has changed since.

    Weights that were loaded in another precision have changed too.
    """
    recorded: dict[str, Any] | None = getattr(attention_config(model), "attn_oriented", None)
    if not recorded or recorded.get("weights") != fingerprint(model):
        return None
    return recorded["target"]


@torch.no_grad()
def fingerprint(model: nn.Module) -> str:
    """16 characters of a hash of the names and fp32 values of all weights; of a sentence encoder, its transformer's."""
    found = hashlib.sha256()
    for name, weight in sorted(transformer_of(model).named_parameters()):
        found.update(name.encode())
        found.update(weight.detach().float().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]
