"""Train the models whose explanations are measured, with softmax and with TanhMax, and evaluate them.

    python -m research.explanations.models --data-dir DIR --model MINILM

MINILM is sentence-transformers/all-MiniLM-L6-v2 or a folder with its weights. Three models for each task of texts and
each seed: *softmax*, MiniLM fine-tuned with softmax (training/recipes/sst2-minilm-full.yaml); *converted*, that
model converted to TanhMax and healed on the texts of the task without their labels, by the defaults of `hf-bidir
convert SOFTMAX FOLDER --heal TEXTS`; *TanhMax*, fine-tuned with TanhMax from a MiniLM that was healed once (minilm-
healed.yaml). The task fashion has small ViTs instead (fashion-mnist-small-*.yaml), trained from scratch.

DIR holds the folders sst2, sva_linzen, imdb and fashion_mnist. Models go to runs/explained; a
finished one is not trained again. Rows go to results/explained_models.csv, per model: test accuracy, the
share of negative coefficients, the accuracy without them, and the number of heads with a consistent sign.
"""

import argparse
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.measure import KEEP_LAST
from benchmarks.runs import check_runs, comparisons, markdown, spread
from benchmarks.seeds import TESTED
from hf_bidir.hub.evaluate import evaluate_checkpoint
from research.explanations.tasks import (
    CONVERTED,
    MODELS,
    SEEDS,
    TASKS,
    add_options,
    batches_of,
    folder_of,
    load,
    sample,
)
from research.runs import command_line, recipe, run_grid, train
from research.signs.orientation import CONSISTENT, sign_shares

FILE = Path(__file__).with_name("results") / "explained_models.csv"
KEY = ("task", "model", "seed")


def main() -> None:
    parser = command_line(__doc__)
    add_options(parser)
    parser.add_argument("--model", required=True, help="the softmax MiniLM, a folder or a name on the Hub")
    with_models = [name for name, task in TASKS.items() if task.trained_on is None]
    parser.add_argument("--tasks", nargs="+", choices=with_models, default=with_models)
    options = parser.parse_args()

    def trained_and_measured(task: str, model: str, seed: int) -> tuple[dict[str, Any], list[Path]]:
        evaluation = measured(task, trained(task, model, seed, options), options.data_dir)
        return evaluation, [TASKS[task].file(options.data_dir, "test")]

    trials = [
        {"task": task, "model": name, "seed": seed}
        for task, seed, name in product(options.tasks, range(options.seeds), MODELS)
    ]
    run_grid(FILE, trials, trained_and_measured)
    for trial in trials:  # the folders of models whose rows were there
        trained(*trial.values(), options)


def trained(task: str, name: str, seed: int, options: argparse.Namespace) -> Path:
    """The folder of a model, which is trained unless it is finished."""
    folder, data = folder_of(options.runs, task, name, seed), TASKS[task]
    settings = {"train_file": data.file(options.data_dir, "train"), "text_column": data.text, "seed": seed}
    if name == "converted":
        train("distill", settings | {"model_name_or_path": folder_of(options.runs, task, "softmax", seed)}, folder)
        return folder
    settings |= data.options | KEEP_LAST
    if data.text is None:
        train("images", recipe(f"fashion-mnist-small-{name}") | settings, folder)
        return folder
    start = {"class_names": list(data.classes), "model_name_or_path": options.model}
    if name == "tanhmax":
        start |= {"attn_activation": "tanhmax", "model_name_or_path": healed_minilm(options)}
    start["validation_file"] = data.file(options.data_dir, "validation")
    train("bert", recipe("sst2-minilm-full") | start | settings, folder)
    return folder


def healed_minilm(options: argparse.Namespace) -> Path:
    """MiniLM with TanhMax, healed on reviews and sentences; the same for all tasks and seeds."""
    folder, sst2 = options.runs / "minilm-healed", TASKS["sst2"]
    texts = [options.data_dir / "imdb/train.parquet", sst2.file(options.data_dir, "train")]
    settings = {"train_file": texts, "validation_file": sst2.file(options.data_dir, "validation")}
    settings["model_name_or_path"] = options.model
    train("distill", recipe("minilm-healed") | settings, folder)
    return folder


def measured(task: str, folder: Path, data_dir: Path) -> dict[str, Any]:
    """The metrics of a row."""
    data = TASKS[task]
    evaluation = evaluate_checkpoint(folder, str(data.file(data_dir, "test")), text_column=data.text)
    share = None
    if data.text is not None:
        texts = [row[data.text] for row in sample(data.file(data_dir, "train"), 256)]
        model, tokenizer = load(folder)
        share = sign_shares(model, batches_of(tokenizer, texts), target=1)
    return {
        "accuracy": evaluation.scores["accuracy"],
        "negative_share": evaluation.negative_share,
        "accuracy_without_negatives": evaluation.without_negatives,
        "consistent_heads": None if share is None else int((share >= CONSISTENT).sum()),
        "heads": None if share is None else share.numel(),
    }


def table(runs: pd.DataFrame) -> str:
    """One row for each model of a task; converted models are compared with softmax, in points, corrected together."""
    check_runs(runs, ("task", "model"), SEEDS)
    tests, rows = comparisons(runs, ("task",), "model", CONVERTED[::-1], {"accuracy": 100}), []
    for (task, name), seeds in runs.groupby(["task", "model"], sort=False):
        signs = [spread(seeds, "negative_share", 100, 0), spread(seeds, "accuracy_without_negatives", 100)]
        heads = seeds["consistent_heads"].dropna()
        counts = ", ".join(f"{count:.0f}" for count in heads) + f" of {seeds['heads'].max():.0f}" if len(heads) else ""
        tested = tests[task, "accuracy"].cells() if name == "converted" else [""] * len(TESTED)
        rows.append(
            [TASKS[task].title, MODELS[name], str(len(seeds)), spread(seeds, "accuracy", 100), *tested, *signs, counts]
        )
    header = ["task", "model", "seeds", "accuracy", *TESTED, "negative, %", "without negatives", "consistent heads"]
    return markdown(header, rows)


if __name__ == "__main__":
    main()
