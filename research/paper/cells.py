"""A cell of the report: one variant of one experiment, trained with one learning rate and seed, and measured."""

import contextlib
import math
import shutil
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset

from hf_bidir.common.files import read_json, write_json
from hf_bidir.explain import load_checkpoint
from hf_bidir.finetune.data.sources import read_table
from hf_bidir.finetune.record import RESULTS, is_finished
from research.paper.deep_measures import measure_deep
from research.paper.experiments import VARIANTS, Experiment
from research.paper.measures import Amount, measure
from training import image_classification, recurrent_classification, text_classification

MEASURES, FAILURE, LOG = "measures.json", "failure.txt", "log.txt"
TASKS = {
    "recurrent": recurrent_classification.main,
    "bert": text_classification.main,
    "images": image_classification.main,
}


@dataclass(frozen=True)
class Cell:
    """One training run and its folder.

    Attributes:
        experiment, variant, learning_rate, seed: identify the run; a variant is a name in `VARIANTS`.
        root: the folder of all cells.
    """

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
        return read_json(self.run / RESULTS) if self.trained else {}

    @property
    def measures(self) -> dict[str, Any]:
        """The results of `measure` or `measure_deep`, None in place of NaN; empty before."""
        return read_json(self.folder / MEASURES)


def train(cell: Cell, files: dict[str, Path], overrides: dict[str, Any] | None = None) -> None:
    """Train a cell unless it is trained; an error is saved in its folder and not raised.

    Args:
        cell: the cell.
        files: the data files by split.
        overrides: options that override those of the experiment.
    """
    if not cell.trained:
        keeping_failures(cell.folder, lambda: TASKS[cell.experiment.kind](_options(cell, files, overrides or {})))


def measure_cell(cell: Cell, files: dict[str, Path], human: Path | None, amount: Amount) -> None:
    """Measure a trained cell unless it is measured; errors as in `train`."""
    if not cell.trained or cell.measures:
        return

    def work() -> None:
        model, processor = load_checkpoint(cell.run)
        model.requires_grad_(False)
        splits = {name: read_table(str(file)) for name, file in files.items()}
        if cell.experiment.deep:
            found = measure_deep(model, processor, splits["test"], amount, cell.experiment.recipe.get("max_length"))
        else:
            people: Dataset | None = None if human is None else read_table(str(human))
            polar_words = people is not None or cell.experiment.synthetic is not None
            limit = model.config.max_position_embeddings
            found = measure(model, processor, splits, people, amount, limit, polar_words)
        write_json(cell.folder / MEASURES, _without_nan(found))

    keeping_failures(cell.folder, work)


def _options(cell: Cell, files: dict[str, Path], overrides: dict[str, Any]) -> dict[str, Any]:
    options = cell.experiment.recipe | VARIANTS[cell.variant] | {f"{name}_file": file for name, file in files.items()}
    options |= {"learning_rate": cell.learning_rate, "seed": cell.seed, "output_dir": cell.run, "disable_tqdm": True}
    return options | overrides


def keeping_failures(folder: Path, work: Callable[[], object]) -> None:
    """Run `work` with its output in log.txt of `folder`; an error is saved there as failure.txt and not raised."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FAILURE).unlink(missing_ok=True)
    with (
        (folder / LOG).open("a", encoding="utf-8") as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        try:
            work()
        except Exception as error:
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            (folder / FAILURE).write_text(f"{text}\n\n{traceback.format_exc()}", encoding="utf-8")


def drop_checkpoints(cell: Cell) -> None:
    """Remove the checkpoints that only resuming needs, if the run is finished."""
    if cell.trained:
        for checkpoint in cell.run.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)


def _without_nan(value: Any) -> Any:
    """A copy with None for NaN, which JSON lacks."""
    if isinstance(value, dict):
        return {key: _without_nan(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and math.isnan(value) else value
