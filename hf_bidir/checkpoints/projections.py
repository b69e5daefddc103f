"""Finds the linear maps that compute the keys and values of every head, and the one applied to the context.

Model families name and fuse their projections in dozens of ways, so they are found by gradients in one forward pass: a
feature of a linear map belongs to a head if the head's keys or values depend on it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_bidir.checkpoints.examples import example_inputs
from hf_bidir.checkpoints.layer_hooks import in_evaluation, observed_layers
from hf_bidir.checkpoints.linear_maps import linear_maps
from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.modeling.signed_layers import signed_layers


@dataclass(frozen=True)
class Features:
    """Some of the outputs of a linear map."""

    linear: nn.Module  # the map; `weight_of` reads its weight
    indices: Tensor  # which outputs, [features]
    direct: bool  # keys or values equal these outputs; False if something, such as rotary positions, is in between


@dataclass(frozen=True)
class Projections:
    """The linear maps around one attention layer: for every key head the features that it depends on."""

    layer: nn.Module
    key: list[list[Features]] = field(default_factory=list)
    value: list[list[Features]] = field(default_factory=list)
    output: nn.Module | None = None  # the map applied directly to the merged context
    heads: int = 0  # of queries; each key head serves an equal group of them, in order


def projections(model: PreTrainedModel, inputs: Mapping[str, Tensor] | None = None) -> list[Projections]:
    """The projections of every signed layer, in order; the model runs once, on `example_inputs` by default."""
    probe = _Probe(model)
    watching = hooked(dict.fromkeys(linear_maps(model)), before=probe.before, after=probe.after)
    with in_evaluation(model), torch.inference_mode(False), torch.enable_grad():  # noqa: SIM117
        with watching, observed_layers(model, probe.observe):
            model(**(example_inputs(model) if inputs is None else inputs))
    return [probe.found.get(layer, Projections(layer)) for layer in signed_layers(model)]


def largest_change(before: Iterable[Tensor], after: Iterable[Tensor]) -> float:
    """The largest change of any output, relative to its largest magnitude before; NaN if any change is NaN."""
    tiny = torch.finfo(torch.float32).tiny  # avoids 0 / 0 for outputs that are all 0
    changes = [
        (now - was).abs().max() / was.abs().max().clamp_min(tiny) for was, now in zip(before, after, strict=True)
    ]
    return torch.stack(changes).max().item()


class _Probe:
    """Cuts the graph at every linear map, so that gradients lead from keys and values only to the closest maps."""

    def __init__(self, model: PreTrainedModel):
        self.recent: list[tuple[nn.Module, Tensor]] = []  # maps that ran since the last attention, and their outputs
        self.found: dict[nn.Module, Projections] = {}
        self.waiting: tuple[nn.Module, Tensor] | None = None  # a layer whose output map is not yet found

    def before(self, linear: nn.Module, args: tuple, kwargs: dict) -> None:
        if self.waiting is None or not args:
            return
        layer, context = self.waiting
        if args[0].numel() == context.numel() and torch.equal(args[0].flatten(), context.flatten()):
            self.found[layer], self.waiting = replace(self.found[layer], output=linear), None

    def after(self, linear: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> Tensor:
        leaf = output.detach().requires_grad_()
        self.recent.append((linear, leaf))
        return leaf.clone()  # which DeBERTa changes in place

    def observe(self, layer: nn.Module, key: Tensor, value: Tensor, context: Tensor) -> None:
        if layer not in self.found:  # a layer that is run again has the same maps
            keys, values = (
                [self._features(states[:, head]) for head in range(states.shape[1])] for states in (key, value)
            )
            self.found[layer] = Projections(layer, keys, values, heads=context.shape[2])
            self.waiting = layer, context.detach()
        self.recent = []

    def _features(self, states: Tensor) -> list[Features]:
        """The features that `[batch, length, head_dim]` depends on."""
        if not states.requires_grad or not self.recent:
            return []
        weighted = (states * torch.randn_like(states)).sum()
        gradients = torch.autograd.grad(
            weighted, [leaf for _, leaf in self.recent], allow_unused=True, retain_graph=True
        )
        found = []
        for (linear, leaf), gradient in zip(self.recent, gradients, strict=True):
            if gradient is not None and (used := gradient.flatten(0, -2).abs().amax(0) > 0).any():
                indices = used.nonzero().flatten()
                outputs = leaf[..., indices]
                direct = outputs.numel() == states.numel() and torch.equal(outputs.flatten(), states.flatten())
                found.append(Features(linear, indices, direct))
        return found
