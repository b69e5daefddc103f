"""Finds the linear maps that compute the keys and values of every head, and the one applied to the context.

Model families name and fuse their projections in dozens of ways, so they are found by gradients in one forward pass: a
feature of a linear map belongs to a head if the head's keys or values depend on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_bidir.modeling.signed_layers import signed_layers

from .examples import example_inputs
from .layer_hooks import in_evaluation, observed_layers
from .linear_maps import linear_maps
from .module_hooks import hooked


@dataclass(frozen=True)
class Features:
    """Some of the outputs of a linear map."""

    linear: nn.Module  # the map; `weight_of` reads its weight
    indices: Tensor  # which outputs, [features]
    direct: bool  # keys or values equal these outputs; False if something, such as rotary positions, is in between


@dataclass
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
    maps = dict.fromkeys(linear_maps(model))  # one may be in several places
    watching = hooked(maps, before=probe.before, after=probe.after)
    with in_evaluation(model), torch.inference_mode(False), torch.enable_grad():  # noqa: SIM117
        with watching, observed_layers(model, probe.observe):
            model(**(example_inputs(model) if inputs is None else inputs))
    return [probe.by_layer.get(layer, Projections(layer)) for layer in signed_layers(model)]


class _Probe:
    """Cuts the graph at every linear map, so that gradients lead from keys and values only to the closest maps."""

    def __init__(self, model: PreTrainedModel):
        self.recent: list[tuple[nn.Module, Tensor]] = []  # maps that ran since the last attention, and their outputs
        self.by_layer: dict[nn.Module, Projections] = {}
        self.waiting: tuple[nn.Module, Tensor] | None = None  # a layer whose output map is not yet found

    def before(self, linear: nn.Module, args: tuple, kwargs: dict) -> None:
        if self.waiting is None or not args:
            return
        layer, context = self.waiting
        if _equal(args[0], context):
            self.by_layer[layer].output = linear
            self.waiting = None

    def after(self, linear: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> Tensor:
        leaf = output.detach().requires_grad_()
        self.recent.append((linear, leaf))
        return leaf.clone()  # which DeBERTa changes in place

    def observe(self, layer: nn.Module, key: Tensor, value: Tensor, context: Tensor) -> None:
        if layer not in self.by_layer:  # a layer that is run again has the same maps
            keys = [self._features(head) for head in key.unbind(1)]
            values = [self._features(head) for head in value.unbind(1)]
            self.by_layer[layer] = Projections(layer, keys, values, heads=context.shape[2])
            self.waiting = layer, context.detach()
        self.recent = []

    def _features(self, states: Tensor) -> list[Features]:
        """The features that `[batch, length, head_dim]` depends on."""
        if not states.requires_grad or not self.recent:
            return []
        weighted = (states * torch.randn_like(states)).sum()
        leaves = [leaf for _, leaf in self.recent]
        gradients = torch.autograd.grad(weighted, leaves, materialize_grads=True, allow_unused=True, retain_graph=True)
        features = []
        for (linear, leaf), gradient in zip(self.recent, gradients, strict=True):
            largest = gradient.flatten(0, -2).abs().amax(0)
            indices = largest.nonzero().flatten()
            if len(indices):
                direct = _equal(leaf[..., indices], states)
                features.append(Features(linear, indices, direct))
        return features


def _equal(first: Tensor, second: Tensor) -> bool:
    return first.numel() == second.numel() and torch.equal(first.flatten(), second.flatten())
