"""The experiments of the TanhMax paper under a fair protocol, one YAML file each, and the variants that all compare."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from hf_bidir.common.errors import InputError, did_you_mean
from hf_bidir.modeling.activations import register_attn_activation

KINDS = ("recurrent", "bert", "images")
FOLDER = Path(__file__).with_name("recipes")


@dataclass(frozen=True)
class Experiment:
    """One data set with one architecture.

    Attributes:
        name: of its file.
        title: as tables name it.
        recipe: options of the training script, the same for every variant.
        learning_rates: the grid; each variant takes the one that validation data prefer, with the first seed.
        kind: what is trained: "recurrent" (the paper's model; one attention layer), "bert" or "images".
        variants: which ones are compared.
        rows, seeds: where there is no GPU, how many rows of a split are used, and how many seeds at most.
        synthetic: the name of a synthetic set, or None.
        hub, folder, files: the data set on the Hub, and where a data folder has it: sub-folder, and file by split.
        keep_labels: labels to keep, in their new order; None keeps all.
        class_names: names of the classes.
        validation_share: of the training rows, where there is no validation split.
        as_published: sizes of the embedding and of queries, and Adadelta's learning rate, for the paper's own protocol;
            empty where that is not re-created.
        published: the paper's numbers by variant.
    """

    name: str
    title: str
    recipe: dict[str, Any]
    learning_rates: list[float]
    kind: str = "recurrent"
    variants: list[str] = field(default_factory=lambda: list(VARIANTS))
    rows: dict[str, int] = field(default_factory=dict)
    seeds: int | None = None
    synthetic: str | None = None
    hub: str | None = None
    folder: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    keep_labels: list[int] | None = None
    class_names: list[str] | None = None
    validation_share: float = 0.1
    as_published: dict[str, Any] = field(default_factory=dict)
    published: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def deep(self) -> bool:
        """Whether the model has attention from token to token, in many layers."""
        return self.kind != "recurrent"


def read_experiments(names: list[str], folder: Path = FOLDER, minilm: Path | None = None) -> list[Experiment]:
    """The experiments of these names; those that start from a checkpoint start from `minilm` instead, if it is given.

    Raises:
        InputError: there is no such file, or it has an unknown entry or lacks one.
    """
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    found = []
    for name in names:
        if name not in known:
            raise InputError(
                f"there is no experiment {name!r}; choose among {', '.join([*known, *GROUPS])}."
                f"{did_you_mean(name, [*known, *GROUPS])}"
            )
        try:
            content = yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
            experiment = Experiment(name=name, **content)
        except (TypeError, yaml.YAMLError) as error:
            raise InputError(f"{folder.name}/{name}.yaml cannot be read as an experiment: {error}") from error
        if experiment.kind not in KINDS:
            raise InputError(
                f"expected kind in {folder.name}/{name}.yaml to be one of {', '.join(KINDS)}; got {experiment.kind!r}"
            )
        if minilm and "model_name_or_path" in experiment.recipe:
            experiment.recipe["model_name_or_path"] = str(minilm)
        found.append(experiment)
    return found


def mean_pooling(scores: Tensor, keep: Tensor | None = None, dim: int = -1) -> Tensor:
    """The same coefficient for every key, whatever the scores: attention that does not attend."""
    keep = torch.ones_like(scores, dtype=torch.bool) if keep is None else keep.expand_as(scores)
    # the scores take part, so that what asks for their gradient gets 0 and no error
    return keep.to(scores.dtype) / keep.sum(dim, keepdim=True).clamp_min(1) + 0 * scores


register_attn_activation("mean", mean_pooling)

# by name, the options that make them; all else is equal
VARIANTS: dict[str, dict[str, Any]] = {
    "softmax": {"attn_activation": "softmax"},
    "λ=0.25": {"attn_activation": "tanhmax", "attn_negative_mass": 0.25},
    "λ=0.5": {"attn_activation": "tanhmax", "attn_negative_mass": 0.5},
    "λ=0.75": {"attn_activation": "tanhmax", "attn_negative_mass": 0.75},
    "tanhmax": {"attn_activation": "tanhmax", "attn_negative_mass": 1.0},
    "tanh": {"attn_activation": "tanh"},
    "mean": {"attn_activation": "mean"},
}
TEXTS = ("synthetic", "synthetic-additive", "sst", "20news", "imdb", "agnews")
GROUPS = {
    "texts": TEXTS,
    "vit": ("vit-fashion-mnist", "vit-cifar10"),
    "multilayer": ("multilayer-bert", "multilayer-minilm"),
}
GROUPS["all"] = (*TEXTS, *GROUPS["vit"], *GROUPS["multilayer"])


def experiment_names(asked: list[str]) -> list[str]:
    """The experiments that are asked for, by their own names or by those of groups, each once."""
    return list(dict.fromkeys(name for one in asked for name in GROUPS.get(one, (one,))))


def only_in_folders(experiments: list[Experiment]) -> list[Experiment]:
    """Those whose data is neither made here nor on the Hub."""
    return [one for one in experiments if not one.synthetic and one.hub is None]
