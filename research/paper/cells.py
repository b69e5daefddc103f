"""A cell of the report: one variant of one experiment, trained with one learning rate and seed, and measured."""

import contextlib
import math
import shutil
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_bidir.common.files import read_json, write_json
from hf_bidir.explain import load_checkpoint
from hf_bidir.finetune.data.sources import read_table
from research.paper.experiments import VARIANTS, Experiment
from research.paper.measures import Amount, measure
from research.paper.measures_deep import measure_deep
from research.runs import is_finished, train

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

    def train(self, files: dict[str, Path], overrides: dict[str, Any] | None = None) -> None:
        """Train the cell unless it is trained; an error is saved in its folder and not raised."""
        given = self.experiment.recipe | VARIANTS[self.variant] | {f"{name}_file": file for name, file in files.items()}
        given |= {"learning_rate": self.learning_rate, "seed": self.seed} | (overrides or {})
        if not self.trained:
            keeping_failures(self.folder, lambda: train(self.experiment.kind, given, self.run))
        if self.trained:  # the checkpoints that only resuming needs
            for checkpoint in self.run.glob("checkpoint-*"):
                shutil.rmtree(checkpoint)

    def measure(self, files: dict[str, Path], graded: Path | None, amount: Amount) -> None:
        """Measure a trained cell unless it is measured; errors as in `train`."""
        if self.trained and not self.measures:
            keeping_failures(self.folder, lambda: self._measure(files, graded, amount))

    def _measure(self, files: dict[str, Path], graded: Path | None, amount: Amount) -> None:
        model, processor = load_checkpoint(self.run)
        model.requires_grad_(False)
        splits = {name: read_table(str(file)) for name, file in files.items()}
        if self.experiment.deep:
            found = measure_deep(model, processor, splits["test"], amount, self.experiment.recipe.get("max_length"))
        else:
            people = None if graded is None else read_table(str(graded))
            polar_words = people is not None or self.experiment.synthetic is not None
            found = measure(model, processor, splits, people, amount, polar_words)
        write_json(self.folder / MEASURES, _without_nan(found))


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
