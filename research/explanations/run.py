"""Which explanation should one trust? Methods x models x tasks, by people and by the model itself.

    python -m research.explanations.models --data-dir DIR --model MINILM
    python -m research.explanations.run --data-dir DIR

DIR holds the data of models.py, sst_trees and movie_rationales. Every method scores the tokens of the same
test examples; "random" scores are a baseline. Rows go to results/explanations.csv, one for each task, model,
seed, method and half of the examples: one half chooses the default method ("choice"), the other reports it ("report").

    human_sign, tau       SST-2, for the class positive: the share of polar words with the sign of their human label
                          (sst_trees), and Kendall's tau-b of score and label within a sentence, 0 for constant scores
    auprc                 movie reviews, for the true class, by the models of SST-2: area under the precision-recall
                          curve against the words that people marked
    deletion, insertion   for the predicted class: area under the curve of its probability as tokens are deleted or
                          inserted in order (Petsiuk et al. 2018); word pieces are removed, patches set to 0
    ffid_plus, ffid_minus for the predicted class: F-Fidelity (Zheng et al. 2024), on a copy tuned on masked inputs
    random_rho, random_abs  Spearman correlation, and its magnitude, of the scores with those of the same model with
                          random weights (Adebayo et al. 2018, cascading to the embeddings; weights keep their own mean
                          and spread), mean over draws
    seconds, forward_passes   median time per example, one thread; and in units of a forward pass

Signed coefficients are left out where coefficients have no signs, and their oriented heads where weights are random. A
model whose rows are there, with the same weights, is not measured again.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from hf_bidir.common.files import sha256
from hf_bidir.explain import METHODS
from hf_bidir.explain.methods import methods_of
from hf_bidir.explain.orient import signs_are_free
from hf_bidir.explain.record import reads_images
from research.explanations.measures import (
    RANDOM,
    agreement,
    deletion_and_insertion,
    fidelity,
    randomised,
    rationales,
    scores_of,
    timed_scores,
)
from research.explanations.tasks import TASKS, Explained, add_options, examples_of, load, models, orient
from research.faithfulness.masked_fidelity import SIZES
from research.runs import command_line, run_grid

FILE = Path(__file__).with_name("results") / "explanations.csv"
KEY = ("task", "model", "seed", "method", "half")
COUNTS = {"sst2": 100, "agreement": 24, "movies": 20, "fashion": 40}  # examples of the test split
FAITHFUL, SANE = {"sst2": 24}, 5  # fewer of them for curves and F-Fidelity; those for random weights
LEFT_OUT = {"movies": ("flow", "signed-flow")}  # their time grows with the cube of the length
ORIENTED = 256  # training examples that orient the heads
MASK_STEPS, MASK_BATCH = 60, 16  # of the tuning for F-Fidelity
MASKS = {True: (SIZES, 10), False: ((0.1, 0.3, 0.5), 8)}  # sizes and draws of F-Fidelity, of images or texts
HALVES = ("choice", "report")


def main() -> None:
    parser = command_line(__doc__)
    add_options(parser)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    folders, trials = {}, []
    for task in options.tasks:
        for name, seed, folder in models(options, task):
            folders[task, name, seed] = folder
            weights = sha256(folder / "model.safetensors")[:8]
            trials.append({"task": task, "model": name, "seed": seed, "weights": weights})

    def run(task: str, model: str, seed: int, weights: str) -> tuple[list[dict[str, Any]], list[Path]]:
        people = [options.data_dir / "sst_trees/test.parquet"] if task == "sst2" else []
        files = [TASKS[task].file(options.data_dir, split) for split in ("test", "train")]
        return measured(task, folders[task, model, seed], options), [*people, *files]

    run_grid(FILE, trials, run, KEY)


def measured(task: str, folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of a model, two for each method."""
    model, processor = load(folder)
    training = list(training_batches(task, model, processor, options.data_dir))
    orient(model, training[: ORIENTED // MASK_BATCH], target=None if reads_images(model) else 1)
    examples = list(examples_of(task, model, processor, options.data_dir, COUNTS[task]))
    fidelity_of = fidelity(model, training, replacement_of(task, processor), *MASKS[reads_images(model)])
    free, rows = signs_are_free(model), []
    methods = [name for name in methods_of(model) if name not in LEFT_OUT.get(task, ())]
    methods = [name for name in methods if free or not METHODS[name].oriented]
    for method in tqdm([*methods, RANDOM], desc=folder.name):
        few = examples[: FAITHFUL.get(task)]
        predicted, seconds = timed_scores(model, few, method)
        known = {(id(one), one.predicted): scores for one, scores in zip(few, predicted, strict=True)}

        def support(one: Explained, target: int) -> Tensor:
            found = known.get((id(one), target))  # noqa: B023
            return scores_of(model, one, method, target) if found is None else found  # noqa: B023

        for half, name in enumerate(HALVES):
            row = {"method": method, "half": name} | seconds | of_people(task, examples[half::2], method, support)
            scored = list(zip(few[half::2], predicted[half::2], strict=True))
            rows.append(row | deletion_and_insertion(model, scored) | fidelity_of(scored))
    sane = randomised(model, examples[:SANE], [name for name in methods if not METHODS[name].oriented])
    return [row | sane.get(row["method"], {}) for row in rows]


def of_people(
    task: str, examples: list[Explained], method: str, support: Callable[[Explained, int], Tensor]
) -> Mapping[str, float | None]:
    """Agreement with people, where a task has their labels; `support(example, target)` are scores."""
    if task == "sst2":
        signed = method == RANDOM or METHODS[method].signed
        scored = [(one, support(one, 1)) for one in examples] if signed else []
        return agreement(scored, method)
    if task == "movies":
        return rationales([(one, support(one, one.label)) for one in examples], method)
    return {}


def replacement_of(task: str, processor: Any) -> int | None:
    """The token that masks a word piece; in agreement [MASK] already stands for the verb."""
    return getattr(processor, "unk_token_id" if task == "agreement" else "mask_token_id", None)


def training_batches(task: str, model, processor, data_dir: Path) -> Iterator[dict[str, Tensor]]:
    """Batches of training data, with labels and special tokens, for the tuning of F-Fidelity."""
    trained_on = TASKS[task].trained_on or task
    rows = examples_of(trained_on, model, processor, data_dir, MASK_STEPS * MASK_BATCH, "train")
    while batch := list(islice(rows, MASK_BATCH)):
        inputs = [{name: value[0] for name, value in one.example.inputs.items()} for one in batch]
        if reads_images(model):
            stacked = {"pixel_values": torch.stack([one["pixel_values"] for one in inputs])}
            special = torch.cat([one.special_pieces for one in batch])
        else:
            stacked = dict(processor.pad(inputs, return_tensors="pt"))
            length = stacked["input_ids"].shape[1]
            pieces = [one.special_pieces for one in batch]
            special = torch.cat([torch.nn.functional.pad(x, (0, length - x.shape[1]), value=True) for x in pieces])
        yield stacked | {"labels": torch.tensor([one.label for one in batch]), "special": special}


if __name__ == "__main__":
    main()
