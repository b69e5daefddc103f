"""Train the models whose explanations are measured, with softmax and with TanhMax, and evaluate them.

    python benchmarks/explained_models.py --data-dir DIR --model MINILM

MINILM is sentence-transformers/all-MiniLM-L6-v2 or a folder with its weights. For each task and seed, MiniLM is
fine-tuned with softmax (training/recipes/sst2-minilm-softmax.yaml); the result is converted to TanhMax and healed on
the texts of the task without their labels (sst2-minilm-healed.yaml), as `hf-bidir convert --heal` does. DIR holds the
folders sst2 and sva_linzen with {train,validation,test}.parquet. Models go to runs/explained; a
finished one is not trained again. Rows go to benchmarks/results/explained_models.csv, per model: test accuracy, the
share of negative coefficients, the accuracy without them, and the number of heads with a consistent sign.
"""

import argparse
from pathlib import Path
from typing import Any

import pandas as pd
from explained import MODELS, SEEDS, TASKS, add_options, folder_of, load, orient, sample
from measure import KEEP_LAST, RESULTS, save_run, train_once

from hf_bidir.cli.recipe import read_recipe
from hf_bidir.common.runs import PAIR, check_runs, comparisons, has_run, markdown, spread
from hf_bidir.common.statistics import TESTED, Comparison
from hf_bidir.explain.orient import CONSISTENT
from hf_bidir.finetune.tasks.distillation import distillation
from hf_bidir.finetune.tasks.text_classification import text_classification
from hf_bidir.hub.evaluation import evaluate_checkpoint

NAME, KEY = "explained_models", ("task", "model", "seed")
RECIPES = Path(__file__).resolve().parent.parent / "training/recipes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--model", required=True, help="the softmax MiniLM, a folder or a name on the Hub")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    options = parser.parse_args()
    for task in options.tasks:
        for seed in range(options.seeds):
            for name in MODELS:
                folder = trained(task, name, seed, options)
                row = {"task": task, "model": name, "seed": seed}
                if not has_run(RESULTS / f"{NAME}.csv", **row):
                    row |= measured(task, folder, options.data_dir)
                    save_run(NAME, KEY, row, TASKS[task].file(options.data_dir, "test"))
                    print(row, flush=True)


def trained(task: str, name: str, seed: int, options: argparse.Namespace) -> Path:
    """The folder of a model, which is trained unless it is finished."""
    folder, data = folder_of(options.runs, task, name, seed), TASKS[task]
    files = {f"{split}_file": data.file(options.data_dir, split) for split in ("train", "validation")}
    given = files | {"text_column": data.text, "seed": seed}
    if name == "softmax":
        recipe = read_recipe(text_classification.options, RECIPES / "sst2-minilm-softmax.yaml") | KEEP_LAST
        recipe |= {"class_names": list(data.classes), "model_name_or_path": options.model}
        train_once(text_classification, recipe | given, folder)
    else:
        recipe = read_recipe(distillation.options, RECIPES / "sst2-minilm-healed.yaml") | KEEP_LAST
        softmax = folder_of(options.runs, task, "softmax", seed)
        train_once(distillation, recipe | {"model_name_or_path": softmax} | given, folder)
    return folder


def measured(task: str, folder: Path, data_dir: Path) -> dict[str, Any]:
    """The metrics of a row."""
    data = TASKS[task]
    found = evaluate_checkpoint(folder, str(data.file(data_dir, "test")), column=data.text)
    texts = [row[data.text] for row in sample(data.file(data_dir, "train"), 256)]
    share = orient(*load(folder), texts, target=1)
    return {
        "accuracy": found.scores["accuracy"],
        "negative_share": found.negative_share,
        "accuracy_without_negatives": found.accuracy_without_negatives,
        "consistent_heads": None if share is None else int((share >= CONSISTENT).sum()),
        "heads": None if share is None else share.numel(),
    }


def compared(runs: pd.DataFrame) -> dict[str, Comparison]:
    """The accuracy of TanhMax minus that of softmax in points, by task; corrected together."""
    tests = comparisons(runs, ("task",), "model", PAIR, {"accuracy": 100})
    return {task: one for (task, _), one in tests.items()}


def table(runs: pd.DataFrame) -> str:
    """The table of benchmarks/results/explained_models.md."""
    check_runs(runs, ("task", "model"), SEEDS)
    tests, rows = compared(runs), []
    for (task, name), found in runs.groupby(["task", "model"], sort=False):
        signs = [spread(found, "negative_share", 100, 0), spread(found, "accuracy_without_negatives", 100)]
        heads = found["consistent_heads"].dropna()
        counts = ", ".join(f"{count:.0f}" for count in heads) + f" of {found['heads'].max():.0f}" if len(heads) else ""
        tested = tests[task].cells() if name == "tanhmax" else ["", "", ""]
        rows.append(
            [TASKS[task].title, MODELS[name], str(len(found)), spread(found, "accuracy", 100), *tested, *signs, counts]
        )
    header = ["task", "model", "seeds", "accuracy", *TESTED, "negative, %", "without negatives", "consistent heads"]
    return markdown(header, rows)


if __name__ == "__main__":
    main()
