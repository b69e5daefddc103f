"""Which explanation should one trust? Methods x models x tasks, by people and by the model itself.

    python benchmarks/explained_models.py --data-dir DIR --model MINILM
    python benchmarks/explanations.py --data-dir DIR

DIR holds the data of explained_models.py and sst_trees. Every method scores the tokens of test examples for the
predicted class. Rows go to benchmarks/results/explanations.csv, one for each task, model, seed and method:

    human_sign, tau       SST-2: the share of polar words with the sign of their human label (sst_trees), and Kendall's
                          tau-b of score and label within a sentence
    auprc                 movie reviews, by the models of SST-2: area under the precision-recall curve against the
                          words that people marked
    deletion, insertion   area under the curve of the probability as tokens are deleted or inserted in order (Petsiuk
                          et al. 2018); word pieces are removed from the text, patches set to 0
    ffid_plus, ffid_minus F-Fidelity (Zheng et al. 2024), on a copy tuned on masked inputs
    random_head, _half, _all  Spearman correlation with the scores of the model whose weights are random in the head, in
                          the upper half as well, or everywhere (Adebayo et al. 2018)
    seconds, forward_passes   median time per example, one thread; and in units of a forward pass

A model whose rows are there is not measured again. Slow methods see the first --slow examples of the movie reviews.
"""

import argparse
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from explained import TASKS, Explained, add_options, examples_of, load, models, orient
from explanations_measures import agreement, deletion_and_insertion, fidelity, randomised, rationales, timed_scores
from measure import RESULTS, save_runs
from tqdm import tqdm

from hf_bidir.common.runs import has_run
from hf_bidir.explain.methods import methods_of
from hf_bidir.explain.running import reads_images

NAME, KEY = "explanations", ("task", "model", "seed", "method")
COUNTS = {"sst2": 150, "agreement": 40, "movies": 40, "fashion": 60}  # examples of the test split
FAITHFUL = {"sst2": 40, "agreement": 40, "movies": 15, "fashion": 60}  # the first of them, for curves and F-Fidelity
SANE = 8  # and for random weights
SLOW = {"erasure", "erasure-mask", "erasure-token", "integrated-gradients", "smoothgrad", "value-zeroing"}
SLOW |= {"flow", "signed-flow"}
LEFT_OUT = {"movies": {"erasure", "erasure-mask", "erasure-token", "flow", "signed-flow"}}  # minutes per document
ORIENTED = 256  # training examples that orient the heads
MASK_STEPS, MASK_BATCH = 60, 16  # of the tuning for F-Fidelity


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--slow", type=int, default=8, help="movie reviews for slow methods")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for task in options.tasks:
        for name, seed, folder in models(options, task):
            key = {"task": task, "model": name, "seed": seed}
            if not has_run(RESULTS / f"{NAME}.csv", **key):
                rows = measured(task, folder, options)
                save_runs(NAME, KEY, [key | row for row in rows], TASKS[task].file(options.data_dir, "test"))
                print(f"{task}, {name}, seed {seed}: {len(rows)} methods", flush=True)


def measured(task: str, folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of a model, one for each method."""
    model, processor = load(folder)
    training = list(training_batches(task, model, processor, options.data_dir))
    orient(model, training[: ORIENTED // MASK_BATCH], target=None if reads_images(model) else 1)
    examples = list(examples_of(task, model, processor, options.data_dir, COUNTS[task]))
    fidelity_of, few = fidelity(model, processor, training), FAITHFUL[task]
    scored, rows = {}, {}
    for method in tqdm([name for name in methods_of(model) if name not in LEFT_OUT.get(task, ())], desc=folder.name):
        count = options.slow if task == "movies" and method in SLOW else len(examples)
        scores, seconds = timed_scores(model, examples[:count], method)
        scored[method] = list(zip(examples, scores, strict=False))
        rows[method] = {"method": method, "examples": len(scores)} | seconds | people(task, scored[method])
        rows[method] |= deletion_and_insertion(model, scored[method][:few]) | fidelity_of(scored[method][:few])
    sane = randomised(model, {method: examples[:SANE] for method, examples in scored.items()})
    return [row | sane[method] for method, row in rows.items()]


def people(task: str, scored: list[tuple[Explained, torch.Tensor]]) -> Mapping[str, float | None]:
    """Agreement with people, where a task has their labels."""
    if task == "sst2":
        return agreement(scored)
    return rationales(scored) if task == "movies" else {}


def training_batches(task: str, model, processor, data_dir: Path) -> Iterator[dict[str, torch.Tensor]]:
    """Batches of the training split with labels, for the tuning of F-Fidelity."""
    rows = examples_of(task, model, processor, data_dir, MASK_STEPS * MASK_BATCH, "train")
    while batch := list(islice(rows, MASK_BATCH)):
        inputs = [{name: value[0] for name, value in one.example.inputs.items()} for one in batch]
        if reads_images(model):
            stacked = {"pixel_values": torch.stack([one["pixel_values"] for one in inputs])}
        else:
            stacked = dict(processor.pad(inputs, return_tensors="pt"))
        yield stacked | {"labels": torch.tensor([one.label for one in batch])}


if __name__ == "__main__":
    main()
