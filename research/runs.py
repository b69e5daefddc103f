"""What all studies share: a grid of runs that become rows of a csv file, and the calls of the training scripts."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tqdm import tqdm
from transformers import DataCollatorWithPadding

from benchmarks.measure import ROOT, save_runs, train_once
from benchmarks.runs import has_run
from hf_bidir.cli.recipe import read_recipe
from hf_bidir.finetune.folder import is_finished, read_record
from hf_bidir.finetune.tasks.causal_lm import causal_lm
from hf_bidir.finetune.tasks.distillation import distillation
from hf_bidir.finetune.tasks.image_classification import image_classification
from hf_bidir.finetune.tasks.recurrent_classification import recurrent_classification
from hf_bidir.finetune.tasks.seq2seq import seq2seq
from hf_bidir.finetune.tasks.text_classification import text_classification

__all__ = ["ROOT", "command_line", "grid", "is_finished", "read_record", "recipe", "run_grid", "train"]

TRAINING = {
    "recurrent": recurrent_classification,
    "bert": text_classification,
    "images": image_classification,
    "seq2seq": seq2seq,
    "causal_lm": causal_lm,
    "distill": distillation,
}


def command_line(description: str | None) -> argparse.ArgumentParser:
    """A parser that shows the docstring of a study as it is written."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def grid(**columns: Iterable[Any]) -> list[dict[str, Any]]:
    """Every combination of the values of some columns; the last one changes fastest."""
    return [dict(zip(columns, values, strict=True)) for values in product(*columns.values())]


def run_grid(
    file: Path,
    trials: Iterable[Mapping[str, Any]],
    run: Callable[..., tuple[Mapping[str, Any] | list[Mapping[str, Any]], Iterable[Path]]],
    key: Sequence[str] = (),
) -> None:
    """Run every trial that has no row, and save what it finds at once: an interrupted grid goes on where it was.

    Args:
        file: the csv file.
        trials: the columns that identify a run and their values, "seed" among them; they may depend on earlier rows.
        run: takes a trial; returns the numbers of one row, or of several, and the data files that it read.
        key: the columns that identify a row; by default those of a trial.
    """
    for trial in tqdm(trials, unit="run"):
        if not has_run(file, **trial):
            found, data = run(**trial)
            rows = [{**trial, **row} for row in (found if isinstance(found, list) else [found])]
            save_runs(file, key or list(trial), rows, *data)


def recipe(kind: str, name: str) -> dict[str, Any]:
    """The options in training/recipes/NAME.yaml of a script of `TRAINING`."""
    return read_recipe(TRAINING[kind].options, ROOT / f"training/recipes/{name}.yaml")


def train(kind: str, given: Mapping[str, Any], folder: Path, trainer: type | None = None) -> dict[str, Any]:
    """The results of a run in `folder`, which is trained unless it is finished.

    Args:
        kind: a script of `TRAINING`.
        given: its options.
        folder: the output folder.
        trainer: another class of trainer, for "distill" and for "bert" without masked words.
    """
    task = TRAINING[kind]
    if trainer is None:
        return train_once(task, given, folder)
    if kind == "distill":
        place, seam = "hf_bidir.finetune.tasks.distillation.DistillationTrainer", trainer
    else:
        place = "hf_bidir.finetune.tasks.text_classification._collators"
        seam = lambda _, tokenizer: {"collator": DataCollatorWithPadding(tokenizer), "trainer_class": trainer}  # noqa: E731
    with patch(place, seam):
        return train_once(task, given, folder)
