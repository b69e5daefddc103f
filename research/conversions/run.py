"""Which conversions of a softmax checkpoint keep its predictions, and which keep negative coefficients that matter?

    python -m research.conversions.run sst2 --data-dir DATA --model MINILM
    python -m research.conversions.run sst2 --data-dir DATA --model MINILM --only softmax signs tanhmax \\
        --texts 500 1500 6920 --seeds 3

MINILM is sentence-transformers/all-MiniLM-L6-v2 or a folder with its weights. DATA has a folder for each data set, as
research/paper/README.md describes. A run fine-tunes MiniLM with softmax on all training texts, converts and heals it as
`hf-bidir convert SOFTMAX FOLDER --heal TEXTS` does, on all or on a sample of them, and measures it on test data; the
variant encoder fine-tunes a healed encoder instead. For images small ViTs are trained from scratch. Tasks and variants
are those of recipes/. Models go to runs/explained, where the other studies find them; a finished one is not trained
again. A run becomes a row of results/conversions.csv, and one that has a row is not repeated. Then `make tables` makes
the tables.

Per run: how often the healed model predicts the class of its softmax model; the accuracy, without negative coefficients
too, and the recall of each class; the share of negative coefficients; and the minutes of healing.
"""

import argparse
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.measure import KEEP_LAST
from hf_bidir.finetune.data.sources import read_table
from hf_bidir.hub.evaluate import Evaluation, evaluate_checkpoint
from research.paper.data import SPLITS
from research.runs import ROOT, RUNS, command_line, read_record, recipe, run_grid, train

FILE = Path(__file__).with_name("results") / "conversions.csv"
RECIPES = Path(__file__).with_name("recipes")
SOFTMAX, ENCODER = "softmax", "encoder"  # the variants that are not healed
ALL = 0  # in place of a number of texts: every one
LENGTH = 64  # tokens of a text, in the recipe of fine-tuning


@dataclass(frozen=True)
class Data:
    """A task of recipes/tasks.yaml, which says what the fields are."""

    title: str
    detail: str
    folder: str
    files: tuple[str | None, ...] = tuple(f"{split}.parquet" for split in SPLITS)
    text: str | None = "text"
    recipes: dict[str, str] = field(default_factory=lambda: dict.fromkeys((SOFTMAX, ENCODER), "sst2-minilm-full"))
    rows: dict[str, int] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def split(self, name: str, data_dir: Path, runs: Path, texts: int = ALL) -> Path | None:
        """The file of a split, if there is one; samples, of `texts` rows if given, are written to `runs` once."""
        if (file := self.files[SPLITS.index(name)]) is None:
            return None
        source = data_dir / self.folder / file
        count = texts or self.rows.get(name)
        if not count:
            return source
        sample = runs / f"data/{self.folder}-{name}-{count}.parquet"
        if not sample.is_file():
            sample.parent.mkdir(parents=True, exist_ok=True)
            rows = read_table(str(source)).shuffle(seed=0)
            # validation and training rows may come from one file: one takes the end, the other the beginning
            start = len(rows) - count if name == "validation" else 0
            rows.select(range(start, start + count)).to_parquet(str(sample))
        return sample


@dataclass(frozen=True)
class Variant:
    """A conversion of recipes/variants.yaml, which says what the fields are."""

    what: str
    heal: dict[str, Any] | None = None
    start: str | None = None


def _read(name: str, kind: type) -> dict[str, Any]:
    content = yaml.safe_load((RECIPES / f"{name}.yaml").read_text(encoding="utf-8"))
    return {name: kind(**fields) for name, fields in content.items()}


TASKS: dict[str, Data] = _read("tasks", Data)
VARIANTS: dict[str, Variant] = _read("variants", Variant)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("tasks", nargs="+", choices=list(TASKS), metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--data-dir", type=Path, required=True, help="holds a folder for each data set")
    parser.add_argument("--model", required=True, help="the softmax MiniLM, a folder or a name on the Hub")
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--texts", nargs="+", type=int, default=[ALL], help="numbers of texts of healing; 0: all")
    parser.add_argument("--seeds", type=int, default=1, help="each of a fine-tuning and a healing")
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the models: TASK-softmax-SEED")
    options = parser.parse_args()
    trials = [
        {"task": task, "variant": name, "texts": texts, "seed": seed}
        for task in options.tasks
        for seed in range(options.seeds)
        for name in options.only
        for texts in (options.texts if VARIANTS[name].heal is not None else [ALL])
    ]
    run_grid(FILE, trials, partial(measured, options))


def measured(
    options: argparse.Namespace, task: str, variant: str, texts: int, seed: int
) -> tuple[dict[str, Any], list[Path]]:
    """Fine-tune, convert, heal and measure; finished parts are reused."""
    data, chosen = TASKS[task], VARIANTS[variant]
    files = {f"{name}_file": data.split(name, options.data_dir, options.runs) for name in SPLITS}
    test = files.pop("test_file")
    folder = fine_tuned(options, task, chosen.start, seed, files)
    reading = {"text_column": data.text, "max_length": data.options.get("max_length", LENGTH)} if data.text else {}
    evaluated = partial(evaluate_checkpoint, data=str(test), **reading)
    if chosen.heal is None:
        return scores(evaluated(folder)), [files["train_file"], test]
    softmax, folder = folder, options.runs / f"{task}-{variant}-{texts or 'all'}-{seed}"
    texts_file = data.split("train", options.data_dir, options.runs, texts)
    settings = {"model_name_or_path": softmax, "train_file": texts_file, "text_column": data.text, "seed": seed}
    train("distill", settings | chosen.heal, folder)
    healed = evaluated(folder)
    numbers = {
        "agreement": agreement(healed, evaluated(softmax)),
        "minutes": read_record(folder)["duration_seconds"] / 60,
    }
    return scores(healed) | numbers, [texts_file, test]


def fine_tuned(
    options: argparse.Namespace, task: str, start: str | None, seed: int, files: dict[str, Path | None]
) -> Path:
    """The folder of a softmax model, or of a signed one; trained unless it is finished."""
    data, variant = TASKS[task], ENCODER if start else SOFTMAX
    settings = recipe(data.recipes[variant]) | KEEP_LAST | files | {"seed": seed} | data.options
    folder = options.runs / f"{task}-{variant}-{seed}"
    if data.text is None:
        train("images", settings, folder)
        return folder
    model = ROOT / "model_cards" / start if start else options.model
    settings |= {"model_name_or_path": model, "text_column": data.text}
    if start:
        del settings["attn_activation"]  # that of the encoder
    train("bert", settings, folder)
    return folder


def scores(evaluation: Evaluation) -> dict[str, Any]:
    """The metrics of a row that one model has."""
    metrics = {name: value for name, value in evaluation.scores.items() if name != "macro_f1"}
    signs = {"negative_share": evaluation.negative_share, "accuracy_without_negatives": evaluation.without_negatives}
    return metrics | signs


def agreement(student: Evaluation, teacher: Evaluation) -> float:
    """How often two models predict the same class."""
    classes, expected = (model.predictions.output.predictions[0] for model in (student, teacher))
    return np.mean(classes == expected)


if __name__ == "__main__":
    main()
