"""The experiments of the TanhMax paper under a fair protocol, one YAML file each, and the compared variants."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from hf_bidir.modeling.activations import register_attn_activation

FOLDER = Path(__file__).with_name("recipes")


def mean_pooling(scores: Tensor, keep: Tensor | None = None, dim: int = -1) -> Tensor:
    """The same coefficient for every key, independent of the scores."""
    keep = (scores == scores) if keep is None else keep.expand_as(scores)
    # `0 * scores` makes the gradient with respect to the scores 0 instead of an error
    return keep.to(scores.dtype) / keep.sum(dim, keepdim=True).clamp_min(1) + 0 * scores


register_attn_activation("mean", mean_pooling)

# the options of each variant; everything else is equal
VARIANTS: dict[str, dict[str, Any]] = {
    "softmax": {"attn_activation": "softmax"},
    "λ=0.25": {"attn_activation": "tanhmax", "attn_negative_mass": 0.25},
    "λ=0.5": {"attn_activation": "tanhmax", "attn_negative_mass": 0.5},
    "λ=0.75": {"attn_activation": "tanhmax", "attn_negative_mass": 0.75},
    "tanhmax": {"attn_activation": "tanhmax", "attn_negative_mass": 1.0},
    "tanh": {"attn_activation": "tanh"},
    "mean": {"attn_activation": "mean"},
}
GROUPS = {
    "texts": ("synthetic", "synthetic-additive", "sst", "20news", "20news-bydate", "imdb", "agnews"),
    "vit": ("vit-fashion-mnist", "vit-cifar10"),
    "multilayer": ("multilayer-bert", "multilayer-bert-short"),
}
NAMES = tuple(name for names in GROUPS.values() for name in names)


@dataclass(frozen=True)
class Experiment:
    """One data set with one architecture.

    Attributes:
        name, title: the file name without suffix, and the name in tables.
        recipe: options of the training script, the same for every variant.
        learning_rates: the grid; validation data select one per variant.
        kind: the model: "recurrent" (the paper's model; one attention layer), "bert" or "images".
        variants: names of the compared variants.
        rows: the maximum rows per split.
        synthetic: the name of a synthetic set, or None.
        hub, folder, files: the data set on the Hub; its sub-folder in a data folder, and the file of each split there.
        keep_labels: labels to keep, in their new order; None keeps all.
        validation_share: share of the training rows held out if there is no validation split.
        as_published: options of `train_as_published` by activation; empty if that protocol is not reproduced.
        published_first_id: the id of the most frequent word in that protocol; padding is 0.
        published: the paper's numbers by variant.
    """

    name: str
    title: str
    recipe: dict[str, Any]
    learning_rates: list[float]
    kind: str = "recurrent"
    variants: list[str] = field(default_factory=lambda: list(VARIANTS))
    rows: dict[str, int] = field(default_factory=dict)
    synthetic: str | None = None
    hub: str | None = None
    folder: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    keep_labels: list[int] | None = None
    class_names: list[str] | None = None
    validation_share: float = 0.1
    as_published: dict[str, dict[str, Any]] = field(default_factory=dict)
    published_first_id: int = 1
    published: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def deep(self) -> bool:
        """Whether the model has several layers of attention between tokens."""
        return self.kind != "recurrent"


def read_experiments(names: list[str]) -> list[Experiment]:
    """The experiments of some names or groups."""
    chosen = dict.fromkeys(name for group in names for name in GROUPS.get(group, (group,)))
    files = {name: FOLDER / f"{name}.yaml" for name in chosen}
    return [Experiment(name, **yaml.safe_load(file.read_text(encoding="utf-8"))) for name, file in files.items()]
