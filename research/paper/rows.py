"""The results of a run as files that a report is made from: a csv row per trained model, and the settings."""

from collections.abc import Iterable
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.runs import DATA, SEED, VERSIONS, add_runs, data_version, has_run, libraries, read_runs, where
from hf_bidir.common.errors import InputError
from hf_bidir.common.files import read_json, replacing, write_json
from hf_bidir.finetune.record import read_record
from research.paper.cells import FAILURE, Cell
from research.paper.data import removed_rows
from research.paper.experiments import Experiment
from research.paper.measures import WORD_SUMS
from research.paper.published import AsPublished, PublishedCell
from research.paper.settings import Settings

CELLS, PUBLISHED, SETTINGS = "cells.csv", "published.csv", "settings.json"
PUBLISHED_KEY = ("data", "activation", "epochs", "options", SEED)
RATE, CHOSEN, MACHINE = "rate", "chosen", "machine"
Chosen = dict[str, dict[str, list[Cell]]]  # experiment -> variant -> one cell per seed


def has_rows(experiment: Experiment, settings: Settings) -> bool:
    """Whether cells.csv has the selected models of every variant and seed, and nothing failed."""
    runs, earlier = read_runs(settings.root / CELLS), read_json(settings.root / SETTINGS).get("experiments", {})
    if runs.empty or earlier.get(experiment.name, {}).get("failures", True):
        return False
    found = where(runs[runs[CHOSEN]], data=experiment.name)[["variant", SEED]]
    return set(found.itertuples(index=False, name=None)) >= {*product(experiment.variants, range(settings.seeds))}


def has_published_row(cell: PublishedCell) -> bool:
    """Whether published.csv has the cell."""
    return has_run(cell.root / PUBLISHED, **published_key(cell))


def save_rows(experiments: list[Experiment], tried: Iterable[Cell], chosen: Chosen, settings: Settings) -> None:
    """Save cells.csv and settings.json in `settings.root`; rows of other experiments in the folder stay.

    Args:
        experiments: the experiments of this run.
        tried: the cells of all learning rates.
        chosen: those of the selected learning rate.
        settings: the settings of this run.
    """
    picked = {cell.folder for variants in chosen.values() for cells in variants.values() for cell in cells}
    cells = {cell.folder: cell for cell in [*tried, *(c for v in chosen.values() for cs in v.values() for c in cs)]}
    rows = [row_of(cell) | {CHOSEN: cell.folder in picked} for cell in cells.values() if cell.trained]
    kept = read_runs(settings.root / CELLS)
    kept = kept if kept.empty else kept[~kept["data"].isin([one.name for one in experiments])]
    found = pd.concat([frame for frame in (kept, pd.DataFrame(rows)) if not frame.empty] or [kept])
    with replacing(settings.root / CELLS) as temporary:
        found.to_csv(temporary, index=False)
    common = {
        "command": settings.command, "quick": settings.quick, "data_dir": settings.data_dir is not None,
        "rate_seeds": settings.rate_seeds, "amount": asdict(settings.amount),
    }  # fmt: skip
    before = read_json(settings.root / SETTINGS)
    own = {
        one.name: {
            "seeds": settings.seeds,
            "failures": failures(one, settings.root),
            "removed": removed_rows(settings.root / "data" / one.name / "test.parquet"),
        }
        for one in experiments
    }
    write_json(settings.root / SETTINGS, {**common, "experiments": before.get("experiments", {}) | own})


def save_published(cells: Iterable[PublishedCell], settings: Settings) -> None:
    """Add rows of the paper's own protocol to published.csv in `settings.root`."""
    if rows := [published_row(cell, found) for cell in cells if (found := cell.found)]:
        add_runs(settings.root / PUBLISHED, rows, PUBLISHED_KEY)


def check_settings(settings: Settings) -> None:
    """Refuse to add rows to a folder with rows of other settings.

    Raises:
        InputError: the amounts of measured examples, the seeds that select the learning rate, or --quick differ.
    """
    before = read_json(settings.root / SETTINGS)
    now = {"quick": settings.quick, "rate_seeds": settings.rate_seeds, "amount": asdict(settings.amount)}
    if changed := [name for name, value in now.items() if before and before[name] != value]:
        name = changed[0]
        raise InputError(
            f"{settings.root} has results with {name} {before[name]}; got {now[name]}. Pass another --output"
        )


def row_of(cell: Cell) -> dict[str, Any]:
    """The settings, sizes, scores and measures of a trained cell; measures are means over examples."""
    record = read_record(cell.run)
    sizes = {f"rows_{split}": part["rows"] for split, part in record["data"].items()}
    measures = {
        name: _mean(value) if isinstance(value, list) else value
        for name, value in cell.measures.items()
        if isinstance(value, list | float | int)
    }
    if cell.experiment.synthetic and "words" in cell.measures:
        measures |= polar_separation(cell.measures["words"])
    scores = {
        name: value for name, value in cell.results.items() if name.startswith(("eval_acc", "test_acc", "test_re"))
    }
    return {
        **{"data": cell.experiment.name, "variant": cell.variant, RATE: cell.learning_rate, SEED: cell.seed},
        **sizes, **scores, **measures, **_versions(record),
        MACHINE: ", ".join([record["hardware"]["cpu"], *record["hardware"]["gpus"]]),
    }  # fmt: skip


def published_row(cell: PublishedCell, found: AsPublished) -> dict[str, Any]:
    """The settings and accuracies of a cell of the paper's own protocol."""
    return published_key(cell) | asdict(found) | {VERSIONS: libraries(cell.versions)}


def published_key(cell: PublishedCell) -> dict[str, Any]:
    """The settings that identify a cell of the paper's own protocol."""
    options = ", ".join(f"{name} {value}" for name, value in cell.options.items())
    values = cell.experiment.name, cell.activation, cell.epochs, options, cell.seed
    return dict(zip(PUBLISHED_KEY, values, strict=True))


def polar_separation(words: dict[str, list[float]]) -> dict[str, float]:
    """How far the coefficients of positive and of negative words lie from those of neutral words.

    Args:
        words: the sums of `WORD_SUMS` of each word of a synthetic set.

    Returns:
        "polar_positive" and "polar_negative": the difference of mean oriented coefficients in standard deviations,
        pooled over both kinds of words; NaN if a kind of word does not occur.
    """
    kinds = {
        kind: [values for word, values in words.items() if word.startswith(kind)] for kind in ("pos", "neg", "word")
    }
    if not all(kinds.values()):
        return {"polar_positive": float("nan"), "polar_negative": float("nan")}
    sums = {kind: dict(zip(WORD_SUMS, np.sum(values, axis=0), strict=True)) for kind, values in kinds.items()}
    means = {kind: total["coefficient"] / total["count"] for kind, total in sums.items()}
    spreads = {
        kind: max(total["squared coefficient"] / total["count"] - means[kind] ** 2, 0.0) for kind, total in sums.items()
    }
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


def _versions(record: dict[str, Any]) -> dict[str, str]:
    hashes = [part["sha256"] for part in record["data"].values() if "sha256" in part]
    return {VERSIONS: libraries(record["versions"]), DATA: data_version(*hashes)}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
