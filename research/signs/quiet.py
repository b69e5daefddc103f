"""Queries at which a head adds next to nothing: on which tokens its coefficients are, and whether they cancel."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from research.signs.observed import Layer, layers_of, share

SINK = 0.5  # of Σ|a|: more is attention to sinks


@dataclass(frozen=True)
class Text:
    """Token ids `[1, tokens]`, and which tokens are sinks and which are queries that count, boolean `[tokens]`."""

    ids: Tensor
    sinks: Tensor
    queries: Tensor


@torch.no_grad()
def read(model: PreTrainedModel, maps: list[Tensor], texts: Iterable[Text]) -> list[dict[str, Tensor]]:
    """By text, `[layers, heads, queries]` each, of the queries that count.

    context `[layers, heads, queries, head_dim]`; scale: the norm of the layer's input `[layers, queries]`; sinks: their
    part of Σ|a|; mass: Σ|a|; balance: |Σa| / Σ|a|; unsigned, permuted: the log of the factor by which the norm of the
    output grows with |a| in place of a, and with permuted signs.
    """
    reads = []
    for text in tqdm(texts, leave=False, unit="text"):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            outputs, layers = layers_of(model, {"input_ids": text.ids, "output_hidden_states": True})
            scales = [states[0, text.queries].norm(dim=-1) for states in outputs.hidden_states[: len(layers)]]
            parts = [_of_layer(layer, part, text) for layer, part in zip(layers, maps, strict=True)]
        reads.append({name: torch.stack([part[name] for part in parts]) for name in parts[0]})
        reads[-1]["scale"] = torch.stack(scales)
    return reads


def _of_layer(layer: Layer, output: Tensor, text: Text) -> dict[str, Tensor]:
    a = layer.coefficients[:, text.queries]
    mass = a.abs().sum(-1).clamp_min(1e-12)

    def size(coefficients: Tensor) -> Tensor:
        return (coefficients @ layer.values @ output).norm(dim=-1).clamp_min(1e-12)

    size_of_output = size(a)
    return {
        "context": a @ layer.values,
        "sinks": a[..., text.sinks].abs().sum(-1) / mass,
        "mass": mass,
        "balance": a.sum(-1).abs() / mass,
        "unsigned": (size(a.abs()) / size_of_output).log(),
        "permuted": (size(with_permuted_signs(a)) / size_of_output).log(),
    }


def with_permuted_signs(coefficients: Tensor) -> Tensor:
    """The magnitudes, with the signs of the other keys that have a coefficient other than 0, in a random order."""
    there = coefficients != 0
    places = there.int().argsort(dim=-1, descending=True, stable=True)  # of the coefficients that are there, in order
    shuffled = (torch.rand(coefficients.shape) - 2 * there).argsort(-1)
    signs = coefficients.sign().gather(-1, shuffled)
    return coefficients.abs() * torch.zeros_like(coefficients).scatter(-1, places, signs)


def rows_of(reads: dict[str, list[dict[str, Tensor]]], texts: list[Text], maps: dict[str, list[Tensor]]) -> list[dict]:
    """The rows of both models, "softmax" and "signed", chosen on the first half of the texts, counted on the other."""
    half = len(texts) // 2
    sizes = {model: relative_sizes(read, maps[model], half) for model, read in reads.items()}
    quartiles = torch.cat(sizes["softmax"][:half], -1).flatten(1).quantile(0.25, dim=1)[:, None, None]
    base = torch.tensor([text.sinks.double().mean() for text in texts[half:]])
    rows = [{"model": "tokens", "measure": "sinks", **share(base)}]
    for model, read in reads.items():
        counted, silent = read[half:], [size < quartiles for size in sizes[model][half:]]
        rows.append({"model": model, "measure": "quiet", **shares(silent, [torch.ones_like(x) for x in silent])})
        without = [part["sinks"] < SINK for part in counted]
        rows.append({"model": model, "reading": "quiet", "measure": "without a sink", **shares(without, silent)})
        for reading, where in (("quiet", silent), ("other", [~x for x in silent])):
            for measure in ("sinks", "mass", "balance", "unsigned", "permuted"):
                row = shares([part[measure] for part in counted], where)
                if measure in ("unsigned", "permuted"):
                    row |= {name: float(torch.tensor(row[name]).exp()) for name in ("value", "low", "high")}
                rows.append({"model": model, "reading": reading, "measure": measure, **row})
    return rows


def relative_sizes(read: list[dict[str, Tensor]], maps: list[Tensor], half: int) -> list[Tensor]:
    """The norm of each head's output, less its mean over the first half of the texts, relative to the layer's input;
    by text, `[layers, heads, queries]`."""
    mean = torch.cat([part["context"] for part in read[:half]], 2).mean(2, keepdim=True)
    return [((part["context"] - mean) @ torch.stack(maps)).norm(dim=-1) / part["scale"][:, None] for part in read]


def shares(values: list[Tensor], where: list[Tensor]) -> dict[str, float]:
    """The mean of values where a condition holds, by text; the interval is over texts."""
    sums = [
        torch.stack([(x * y).sum(dtype=torch.double), y.sum(dtype=torch.double)])
        for x, y in zip(values, where, strict=True)
    ]
    return share(*torch.stack(sums, 1))
