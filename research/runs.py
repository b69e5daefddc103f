"""Shared by all studies: a grid of runs that become rows of a csv file, and the calls of the training scripts."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, command_line, recipe, run_grid, train_once
from hf_bidir.finetune.record import is_finished, read_record
from training import causal_lm, distill, image_classification, recurrent_classification, seq2seq, text_classification

__all__ = ["ROOT", "RUNS", "command_line", "grid", "is_finished", "read_record", "recipe", "run_grid", "train"]

RUNS = ROOT / "runs/explained"  # models that several studies read
TRAINING = {  # the training scripts, by the kind of model
    "recurrent": recurrent_classification,
    "bert": text_classification,
    "images": image_classification,
    "seq2seq": seq2seq,
    "causal_lm": causal_lm,
    "distill": distill,
}


def grid(**columns: Iterable[Any]) -> list[dict[str, Any]]:
    """Every combination of the values of some columns; the last one changes fastest."""
    return [dict(zip(columns, values, strict=True)) for values in product(*columns.values())]


def train(
    kind: str, options: Mapping[str, Any], folder: Path, trainer: Callable[..., Any] | None = None
) -> dict[str, Any]:
    """The results of a run in `folder`, which is trained unless it is finished.

    Args:
        kind: a script of `TRAINING`.
        options: of the script.
        folder: the output folder.
        trainer: another class of trainer, for "bert" and "images".
    """
    main = TRAINING[kind].main
    return train_once(partial(main, trainer_class=trainer) if trainer else main, options, folder)
