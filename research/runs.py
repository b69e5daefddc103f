"""What all studies share: a grid of runs that become rows of a csv file, and the calls of the training scripts."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.measure import ROOT, save_runs, train_once
from benchmarks.runs import has_run
from hf_bidir.cli.script import read_recipe
from hf_bidir.finetune.record import is_finished, read_record
from training import causal_lm, distill, image_classification, recurrent_classification, seq2seq, text_classification

__all__ = ["ROOT", "command_line", "grid", "is_finished", "read_record", "recipe", "run_grid", "train"]

TRAINING = {  # the training scripts, by the kind of model
    "recurrent": recurrent_classification,
    "bert": text_classification,
    "images": image_classification,
    "seq2seq": seq2seq,
    "causal_lm": causal_lm,
    "distill": distill,
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


def recipe(name: str) -> dict[str, Any]:
    """The options in training/recipes/NAME.yaml."""
    return read_recipe(ROOT / f"training/recipes/{name}.yaml")


def train(kind: str, given: Mapping[str, Any], folder: Path, trainer: type | None = None) -> dict[str, Any]:
    """The results of a run in `folder`, which is trained unless it is finished.

    Args:
        kind: a script of `TRAINING`.
        given: its options.
        folder: the output folder.
        trainer: another class of trainer, for "distill" and for "bert" without masked words.
    """
    main = TRAINING[kind].main
    return train_once(partial(main, trainer_class=trainer) if trainer else main, given, folder)
