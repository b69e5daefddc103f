"""A cell of the report: one variant of one experiment, trained with one rate and seed, measured, and saved as a row."""

import contextlib
import math
import shutil
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.runs import DATA, SEED, VERSIONS, data_version, libraries, read_runs, where
from hf_bidir.common.errors import InputError
from hf_bidir.common.files import read_json, replacing, write_json
from hf_bidir.explain import load_checkpoint
from hf_bidir.finetune.data.sources import read_table
from research.paper.data import removed_rows
from research.paper.deep_training import trainer_of
from research.paper.experiments import QUICK_OPTIONS, VARIANTS, Experiment, Settings
from research.paper.measures import WORD_SUMS, measure, measure_deep
from research.runs import is_finished, read_record, train

MEASURES, FAILURE, LOG = "measures.json", "failure.txt", "log.txt"


@dataclass(frozen=True)
class Cell:
    """One training run and its folder; a variant is a name in `VARIANTS`, `root` the folder of all cells."""

    experiment: Experiment
    variant: str
    learning_rate: float
    seed: int
    root: Path

    @property
    def folder(self) -> Path:
        """The folder of the run, its measures and its log."""
        return self.root / self.experiment.name / self.variant / f"lr{self.learning_rate:g}-seed{self.seed}"

    @property
    def run(self) -> Path:
        """The output folder of the training."""
        return self.folder / "run"

    @property
    def trained(self) -> bool:
        """Whether the run is finished."""
        return is_finished(self.run)

    @property
    def results(self) -> dict[str, float]:
        """The scores of the finished run; empty before."""
        return read_json(self.run / "all_results.json") if self.trained else {}

    @property
    def measures(self) -> dict[str, Any]:
        """The results of `measure` or `measure_deep`, None in place of NaN; empty before."""
        return read_json(self.folder / MEASURES)

    def train(self, files: dict[str, Path], settings: Settings) -> None:
        """Train the cell unless it is trained; an error is saved in its folder and not raised."""
        given = self.experiment.recipe | VARIANTS[self.variant] | {f"{name}_file": file for name, file in files.items()}
        given |= {"learning_rate": self.learning_rate, "seed": self.seed}
        given |= QUICK_OPTIONS[self.experiment.kind] if settings.quick else {}
        if not self.trained:
            trainer = trainer_of(given)
            keeping_failures(self.folder, lambda: train(self.experiment.kind, given, self.run, trainer))
        if self.trained:  # the checkpoints that only resuming needs
            for checkpoint in self.run.glob("checkpoint-*"):
                shutil.rmtree(checkpoint)

    def measure(self, files: dict[str, Path], settings: Settings) -> None:
        """Measure a trained cell unless it is measured; errors as in `train`."""

        def work() -> None:
            model, processor = load_checkpoint(self.run)
            model.requires_grad_(False)
            splits, amount = {name: read_table(str(file)) for name, file in files.items()}, settings.amount
            if self.experiment.deep:
                found = measure_deep(model, processor, splits["test"], amount, self.experiment.recipe.get("max_length"))
            else:
                graded = settings.graded(self.experiment)
                people = None if graded is None else read_table(str(graded))
                polar_words = people is not None or self.experiment.synthetic is not None
                found = measure(model, processor, splits, people, amount, polar_words)
            write_json(self.folder / MEASURES, _without_nan(found))

        if self.trained and not self.measures:
            keeping_failures(self.folder, work)


def keeping_failures(folder: Path, work: Callable[[], object]) -> None:
    """Run `work` with its output in log.txt of `folder`; an error is saved there as failure.txt and not raised."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FAILURE).unlink(missing_ok=True)
    log = (folder / LOG).open("a", encoding="utf-8")
    with log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        try:
            work()
        except Exception as error:
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            (folder / FAILURE).write_text(f"{text}\n\n{traceback.format_exc()}", encoding="utf-8")


def _without_nan(value: Any) -> Any:
    """A copy with None for NaN, which JSON lacks."""
    if isinstance(value, dict):
        return {key: _without_nan(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and math.isnan(value) else value


CELLS, SETTINGS = "cells.csv", "settings.json"
RATE, CHOSEN, MACHINE = "rate", "chosen", "machine"
Chosen = dict[str, dict[str, list[Cell]]]  # experiment -> variant -> one cell per seed


def has_rows(experiment: Experiment, settings: Settings) -> bool:
    """Whether cells.csv has the selected models of every variant and seed, and nothing failed."""
    runs, earlier = read_runs(settings.root / CELLS), read_json(settings.root / SETTINGS).get("experiments", {})
    if runs.empty or earlier.get(experiment.name, {}).get("failures", True):
        return False
    found = where(runs[runs[CHOSEN]], data=experiment.name)[["variant", SEED]]
    return set(found.itertuples(index=False, name=None)) >= {*product(experiment.variants, range(settings.seeds))}


def save_rows(experiments: list[Experiment], tried: Iterable[Cell], chosen: Chosen, settings: Settings) -> None:
    """Save cells.csv and settings.json in `settings.root`; rows of other experiments in the folder stay.

    `tried` are the cells of all learning rates, `chosen` those of the selected one.
    """
    picked = {cell.folder: cell for variants in chosen.values() for cells in variants.values() for cell in cells}
    cells = {cell.folder: cell for cell in tried} | picked
    rows = [row_of(cell) | {CHOSEN: folder in picked} for folder, cell in cells.items() if cell.trained]
    kept = read_runs(settings.root / CELLS)
    kept = kept if kept.empty else kept[~kept["data"].isin([one.name for one in experiments])]
    found = pd.concat([frame for frame in (kept, pd.DataFrame(rows)) if not frame.empty] or [kept])
    with replacing(settings.root / CELLS) as temporary:
        found.to_csv(temporary, index=False)
    own = {
        one.name: {
            "seeds": settings.seeds,
            "failures": failures(one, settings.root),
            "removed": removed_rows(settings.root / "data" / one.name / "test.parquet"),
        }
        for one in experiments
    }
    before = read_json(settings.root / SETTINGS).get("experiments", {})
    common = {"command": settings.command, "data_dir": settings.data_dir is not None, **_fixed(settings)}
    write_json(settings.root / SETTINGS, common | {"experiments": before | own})


def _fixed(settings: Settings) -> dict[str, Any]:
    """The settings that all rows of a folder share."""
    return {"quick": settings.quick, "rate_seeds": settings.rate_seeds, "amount": asdict(settings.amount)}


def check_settings(settings: Settings) -> None:
    """Refuse to add rows to a folder with rows of other settings: an InputError names the first that differs."""
    before = read_json(settings.root / SETTINGS)
    for name, value in _fixed(settings).items() if before else ():
        if before[name] != value:
            raise InputError(
                f"{settings.root} has results with {name} {before[name]}; got {value}. Pass another --output"
            )


def row_of(cell: Cell) -> dict[str, Any]:
    """The settings, sizes, scores and measures of a trained cell; measures are means over examples."""
    record = read_record(cell.run)
    measures = {
        name: _mean(value) if isinstance(value, list) else value
        for name, value in cell.measures.items()
        if isinstance(value, list | float | int)
    }
    if cell.experiment.synthetic and "words" in cell.measures:
        measures |= polar_separation(cell.measures["words"])
    hashes = [part["sha256"] for part in record["data"].values() if "sha256" in part]
    return {
        **{"data": cell.experiment.name, "variant": cell.variant, RATE: cell.learning_rate, SEED: cell.seed},
        **{f"rows_{split}": part["rows"] for split, part in record["data"].items()},
        **{name: one for name, one in cell.results.items() if name.startswith(("eval_acc", "test_acc", "test_re"))},
        **measures,
        **{VERSIONS: libraries(record["versions"]), DATA: data_version(*hashes)},
        MACHINE: ", ".join([record["hardware"]["cpu"], *record["hardware"]["gpus"]]),
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def polar_separation(words: dict[str, list[float]]) -> dict[str, float]:
    """How far the coefficients of positive and of negative words lie from those of neutral words of a synthetic set.

    The difference of mean oriented coefficients in standard deviations, pooled over both kinds of words, from the
    sums of `WORD_SUMS` of each word; NaN if a kind of word does not occur.
    """
    kinds = {kind: [sums for word, sums in words.items() if word.startswith(kind)] for kind in ("pos", "neg", "word")}
    if not all(kinds.values()):
        return {"polar_positive": float("nan"), "polar_negative": float("nan")}
    means, spreads = {}, {}
    for kind, sums in kinds.items():
        total = dict(zip(WORD_SUMS, np.sum(sums, axis=0), strict=True))
        means[kind] = total["coefficient"] / total["count"]
        spreads[kind] = max(total["squared coefficient"] / total["count"] - means[kind] ** 2, 0.0)
    return {
        name: (means[kind] - means["word"]) / max(((spreads[kind] + spreads["word"]) / 2) ** 0.5, 1e-12)
        for name, kind in (("polar_positive", "pos"), ("polar_negative", "neg"))
    }


def failures(experiment: Experiment, root: Path) -> list[tuple[str, str]]:
    """Folder and error of every failed cell, at all learning rates."""
    files = [*root.glob(f"{experiment.name}/*/*/{FAILURE}"), *root.glob(f"as-published/{experiment.name}-*/{FAILURE}")]
    return [
        (file.parent.relative_to(root).as_posix(), file.read_text(encoding="utf-8").splitlines()[0])
        for file in sorted(files)
    ]
