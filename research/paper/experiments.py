"""The experiments of the TanhMax paper under a fair protocol, one YAML file each; the compared variants; settings."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from hf_bidir.common.errors import InputError, did_you_mean
from hf_bidir.modeling.activations import register_attn_activation

KINDS = ("recurrent", "bert", "images")  # scripts of research.runs.TRAINING
FOLDER = Path(__file__).with_name("recipes")
RATE_SEEDS = 3
EXTENSIONS = 2  # of a grid of learning rates, at most
GRADED_BY_PEOPLE = {"sst": "sst_trees/test.parquet"}  # experiment -> file with human grades of words in its test texts
QUICK_ROWS = {
    "recurrent": {"train": 1500, "validation": 500, "test": 1000},
    "bert": {"train": 200, "validation": 100, "test": 200},
    "images": {"train": 1500, "validation": 500, "test": 1000},
}
QUICK_OPTIONS: dict[str, dict[str, Any]] = {
    "recurrent": {},
    "bert": {"num_train_epochs": 2},
    "images": {"num_train_epochs": 3},
}


def mean_pooling(scores: Tensor, keep: Tensor | None = None, dim: int = -1) -> Tensor:
    """The same coefficient for every key, independent of the scores."""
    keep = torch.ones_like(scores, dtype=torch.bool) if keep is None else keep.expand_as(scores)
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
TEXTS = ("synthetic", "synthetic-additive", "sst", "20news", "20news-bydate", "imdb", "agnews")
GROUPS = {
    "texts": TEXTS,
    "vit": ("vit-fashion-mnist", "vit-cifar10"),
    "multilayer": ("multilayer-bert", "multilayer-bert-short"),
}
GROUPS["all"] = (*TEXTS, *GROUPS["vit"], *GROUPS["multilayer"])


@dataclass(frozen=True)
class Experiment:
    """One data set with one architecture.

    Attributes:
        name, title: the file name without suffix, and the name in tables.
        recipe: options of the training script, the same for every variant.
        learning_rates: the grid; validation data select one per variant.
        kind: the model: "recurrent" (the paper's model; one attention layer), "bert" or "images".
        variants: names of the compared variants.
        rows: the maximum rows per split, unless all are asked for.
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

    @property
    def only_in_folder(self) -> bool:
        """Whether the data are neither generated nor on the Hub."""
        return not self.synthetic and self.hub is None

    def source_files(self, data_dir: Path) -> dict[str, Path]:
        """The files of a data folder that the experiment needs, by split; none if its data are generated."""
        if self.synthetic:
            return {}
        return {split: data_dir / str(self.folder) / file for split, file in self.files.items()}


def read_experiments(names: list[str], folder: Path = FOLDER) -> list[Experiment]:
    """Read experiments by name; InputError for an unknown name or an invalid file."""
    known = [*sorted(path.stem for path in folder.glob("*.yaml")), *GROUPS]
    found = []
    for name in names:
        if not (folder / f"{name}.yaml").is_file():
            choices = f"choose one of: {', '.join(known)}.{did_you_mean(name, known)}"
            raise InputError(f"unknown experiment {name!r}; {choices}")
        try:
            content = yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
            found.append(Experiment(name=name, **content))
        except (TypeError, yaml.YAMLError) as error:
            raise InputError(f"{folder.name}/{name}.yaml is not a valid experiment: {error}") from error
        if (kind := found[-1].kind) not in KINDS:
            raise InputError(
                f"expected kind in {folder.name}/{name}.yaml to be one of {', '.join(KINDS)}; got {kind!r}"
            )
    return found


def experiment_names(asked: list[str]) -> list[str]:
    """The experiments of the given names, with groups expanded, each once."""
    return list(dict.fromkeys(name for one in asked for name in GROUPS.get(one, (one,))))


@dataclass(frozen=True)
class Amount:
    """The numbers of examples and draws.

    Attributes:
        texts, draws, attacked, training_texts: for models with one attention layer: test texts, draws of random
            coefficients, texts with an adversary, and training texts for the orientation.
        images, deep_texts, deep_draws: the same for deep models.
    """

    texts: int = 400
    draws: int = 100
    attacked: int = 64
    training_texts: int = 512
    images: int = 200
    deep_texts: int = 200
    deep_draws: int = 20


QUICK = Amount(texts=64, draws=20, attacked=8, training_texts=128, images=32, deep_texts=8, deep_draws=5)


@dataclass(frozen=True)
class Settings:
    """Settings of a run of the experiments.

    Attributes:
        root: the output folder of runs and report.
        data_dir: a folder with a sub-folder per data set; None downloads from the Hub.
        seeds: the number of seeds, counted from 0.
        quick: use little data and one learning rate.
        jobs: the number of processes.
        as_published: also run the paper's own protocol.
        all_rows: use all rows of the image and BERT experiments, which otherwise sample some.
    """

    root: Path
    data_dir: Path | None = None
    seeds: int = 5
    quick: bool = False
    jobs: int = 2
    as_published: bool = False
    all_rows: bool = False

    @property
    def amount(self) -> Amount:
        return QUICK if self.quick else Amount()

    @property
    def rate_seeds(self) -> int:
        """The number of seeds that select the learning rate."""
        return 1 if self.quick else min(self.seeds, RATE_SEEDS)

    @property
    def command(self) -> str:
        """The options that reproduce the report, without names of experiments and folders."""
        options = {
            "--data-dir DATA": self.data_dir, "--quick": self.quick,
            "--as-published": self.as_published, "--all-rows": self.all_rows, f"--seeds {self.seeds}": True,
        }  # fmt: skip
        return " ".join(option for option, given in options.items() if given)

    def learning_rates(self, experiment: Experiment) -> list[float]:
        """The learning rates to try."""
        rates = experiment.learning_rates
        return [rates[len(rates) // 2]] if self.quick else rates

    def rows_of(self, experiment: Experiment) -> dict[str, int]:
        """The maximum rows by split; empty if all are used."""
        if self.quick:
            return QUICK_ROWS[experiment.kind]
        return {} if self.all_rows else experiment.rows

    def graded(self, experiment: Experiment) -> Path | None:
        """The file with human grades of the words of an experiment, or None."""
        file = self.data_dir and self.data_dir / GRADED_BY_PEOPLE.get(experiment.name, "")
        return file if file and file.is_file() else None
