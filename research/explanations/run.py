"""Which explanation should one trust? Methods x models x tasks, by people and by the model itself.

    python -m research.conversions.run sst2 agreement fashion --data-dir DIR --model MINILM \\
        --only softmax encoder --seeds 3
    python -m research.explanations.run --data-dir DIR
    python -m research.explanations.run --data-dir DIR --methods chefer    # a method that is new

DIR holds the data of the models, sst_trees and movie_rationales. Every method scores the tokens of the same
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

A model whose rows are there, with the same weights, is not measured again.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from scipy.stats import kendalltau, spearmanr
from sklearn.metrics import average_precision_score
from torch import Tensor
from tqdm import tqdm

from hf_bidir.common.files import sha256
from hf_bidir.explain import METHODS, token_scores
from hf_bidir.explain.forward import reads_images
from hf_bidir.explain.request import methods_of
from research.explanations.tasks import TASKS, Explained, add_options, examples_of, load, models
from research.faithfulness import area, f_fidelity, prediction_curve, randomised_stages, tuned_on_masks
from research.faithfulness.masked_fidelity import SIZES, Masks
from research.runs import command_line, run_grid

Scored = Sequence[tuple[Explained, Tensor]]
STEPS = [share / 10 for share in range(11)]
RANDOM = "random"  # a method of random scores
RANDOMISATIONS = 3  # sets of random weights


def timed_scores(model, examples: Sequence[Explained], method: str) -> tuple[list[Tensor], dict[str, float]]:
    """Scores `[length]` for the predicted class of every example, and medians of the time.

    The ratio to a forward pass right after it is more stable than the seconds on a busy machine.
    """
    scores, seconds, forwards = [], [], []
    for explained in examples:
        start = time.perf_counter()
        scores.append(scores_of(model, explained, method, explained.predicted))
        middle = time.perf_counter()
        with torch.no_grad():
            model(**explained.example.inputs)
        seconds.append(middle - start)
        forwards.append((middle - start) / (time.perf_counter() - middle))
    return scores, {"seconds": statistics.median(seconds), "forward_passes": statistics.median(forwards)}


def scores_of(model, explained: Explained, method: str, target: int) -> Tensor:
    """Support for a class, `[length]`; magnitudes are the same for every class."""
    if method == RANDOM:
        text = " ".join(explained.example.tokens).encode()
        return torch.randn(len(explained.example.token_of_piece), generator=torch.Generator().manual_seed(crc32(text)))
    explains = METHODS[method].explains_output
    return token_scores(model, explained.example.inputs, method, target if explains else None)[0]


def by_word(explained: Explained, scores: Tensor, method: str) -> np.ndarray:
    """Scores of the words or patches, without special tokens."""
    additive = method == RANDOM or METHODS[method].additive
    return explained.example.by_token(scores, additive).numpy()[~np.array(explained.example.special)]


def agreement(scored: Scored, method: str) -> dict[str, float | None]:
    """Human sign and tau of words with labels from -2 to 2, from scores for the class "positive"."""
    pairs = [
        (explained.words, by_word(explained, scores, method)) for explained, scores in scored if explained.words.any()
    ]
    return human_sign(pairs) | {"tau": mean_tau(pairs)} if pairs else {}


def human_sign(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    """The share of polar words, of all sentences together, whose score has the label's sign; that of a constant."""
    labels, scores = (np.concatenate(part) for part in zip(*pairs, strict=True))
    polar = labels != 0
    return {
        "human_sign": float(np.mean(np.sign(scores[polar]) == np.sign(labels[polar]))),
        "always_positive": float(np.mean(labels[polar] > 0)),
    }


def mean_tau(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> float | None:
    """Kendall's tau-b, mean over sentences whose labels vary, 0 where the scores do not; None without any."""
    taus = [kendalltau(labels, scores).statistic for labels, scores in pairs if np.ptp(labels) > 0]
    return float(np.mean(np.nan_to_num(taus))) if taus else None


def rationales(scored: Scored, method: str) -> dict[str, float]:
    """Mean area under the precision-recall curve against marked words; that of random scores is the marked share."""
    areas = [
        average_precision_score(explained.words, by_word(explained, scores, method)) for explained, scores in scored
    ]
    return {
        "auprc": float(np.mean(areas)),
        "marked": float(np.mean([explained.words.mean() for explained, _ in scored])),
    }


def deletion_and_insertion(model, scored: Scored) -> dict[str, float]:
    """Mean areas under both curves of the predicted class's probability."""
    areas: dict[str, list[float]] = {"deletion": [], "insertion": []}
    for explained, scores in scored:
        for how, values in areas.items():
            inputs, special = explained.example.inputs, explained.special_pieces
            values.append(area(prediction_curve(model, inputs, scores[None], STEPS, how, special)).item())
    return {how: float(np.mean(values)) for how, values in areas.items()}


def fidelity(model, training: list[dict[str, Tensor]], masks: Masks) -> Callable[[Scored], dict[str, float | None]]:
    """F-Fidelity of scores, on one copy of the model that is tuned on masked inputs."""
    tuned = tuned_on_masks(model, training, replacement=masks.replacement)

    def measured(scored: Scored) -> dict[str, float | None]:
        falls = []
        for explained, scores in scored:
            target, special = torch.tensor([explained.predicted]), explained.special_pieces
            pair = f_fidelity(tuned, explained.example.inputs, scores[None], target, masks, special)
            falls.append(torch.stack(pair)[:, 0])
        plus, minus = torch.stack(falls).nanmean(0).tolist()  # texts too short for a mask have none
        return {"ffid_plus": plus, "ffid_minus": minus}

    return measured


def randomised(model, examples: Sequence[Explained], methods: Sequence[str]) -> dict[str, dict[str, float]]:
    """By method, the Spearman correlation of scores with those of random weights, and its magnitude, both means."""
    correlations: dict[str, list[float]] = defaultdict(list)
    for seed in range(RANDOMISATIONS):
        *_, (_, random) = randomised_stages(model, seed)
        for method in methods:
            for explained in examples:
                pair = [
                    by_word(explained, scores_of(each, explained, method, explained.predicted), method)
                    for each in (model, random)
                ]
                if all(np.ptp(side) > 0 for side in pair):
                    correlations[method].append(spearmanr(*pair).statistic)
    return {
        method: {"random_rho": float(np.mean(rhos)), "random_abs": float(np.mean(np.abs(rhos)))}
        for method, rhos in correlations.items()
    }


FILE = Path(__file__).with_name("results") / "explanations.csv"
KEY = ("task", "model", "seed", "method", "half")
COUNTS = {"sst2": 100, "agreement": 24, "movies": 20, "fashion": 40}  # examples of the test split
FAITHFUL, SANE = {"sst2": 24}, 5  # fewer of them for curves and F-Fidelity; those for random weights
LEFT_OUT = {"movies": ("flow",)}  # its time grows with the cube of the length
MASK_STEPS, MASK_BATCH = 60, 16  # of the tuning for F-Fidelity
MASKS = {True: (SIZES, 10), False: ((0.1, 0.3, 0.5), 8)}  # sizes and draws of F-Fidelity, of images or texts
HALVES = ("choice", "report")


def main() -> None:
    parser = command_line(__doc__)
    add_options(parser)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), help="by default all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folders, trials = {}, []
    for task in options.tasks:
        for name, seed, folder in models(options, task):
            folders[task, name, seed] = folder
            weights = sha256(folder / "model.safetensors")[:8]
            trial = {"task": task, "model": name, "seed": seed, "weights": weights}
            trials += [trial | {"method": method} for method in options.methods] if options.methods else [trial]

    def run(
        task: str, model: str, seed: int, weights: str, method: str | None = None
    ) -> tuple[list[dict[str, Any]], list[Path]]:
        people = [options.data_dir / "sst_trees/test.parquet"] if task == "sst2" else []
        files = [TASKS[task].file(options.data_dir, split) for split in ("test", "train")]
        return measured(task, folders[task, model, seed], options, method), [*people, *files]

    run_grid(FILE, trials, run, KEY)


def measured(task: str, folder: Path, options: argparse.Namespace, only: str | None = None) -> list[dict[str, Any]]:
    """The rows of a model, two for each method, or for one only."""
    model, processor = load(folder)
    training = list(training_batches(task, model, processor, options.data_dir))
    examples = list(examples_of(task, model, processor, options.data_dir, COUNTS[task]))
    fidelity_of = fidelity(model, training, Masks(replacement_of(task, processor), *MASKS[reads_images(model)]))
    rows = []
    methods = [name for name in methods_of(model) if name not in LEFT_OUT.get(task, ())]
    methods = [name for name in methods if only in (None, name)]
    for method in tqdm(methods if only else [*methods, RANDOM], desc=folder.name):
        few = examples[: FAITHFUL.get(task)]
        predicted, seconds = timed_scores(model, few, method)
        known = {(id(explained), explained.predicted): scores for explained, scores in zip(few, predicted, strict=True)}

        def support(explained: Explained, target: int) -> Tensor:
            scores = known.get((id(explained), target))  # noqa: B023
            return scores_of(model, explained, method, target) if scores is None else scores  # noqa: B023

        for half, name in enumerate(HALVES):
            row = {"method": method, "half": name} | seconds | of_people(task, examples[half::2], method, support)
            scored = list(zip(few[half::2], predicted[half::2], strict=True))
            rows.append(row | deletion_and_insertion(model, scored) | fidelity_of(scored))
    sane = randomised(model, examples[:SANE], methods)
    return [row | sane.get(row["method"], {}) for row in rows]


def of_people(
    task: str, examples: list[Explained], method: str, support: Callable[[Explained, int], Tensor]
) -> Mapping[str, float | None]:
    """Agreement with people, where a task has their labels; `support(example, target)` are scores."""
    if task == "sst2":
        signed = method == RANDOM or METHODS[method].explains_output
        scored = [(explained, support(explained, 1)) for explained in examples] if signed else []
        return agreement(scored, method)
    if task == "movies":
        return rationales([(explained, support(explained, explained.label)) for explained in examples], method)
    return {}


def replacement_of(task: str, processor: Any) -> int | None:
    """The token that masks a word piece; in agreement [MASK] already stands for the verb."""
    return getattr(processor, "unk_token_id" if task == "agreement" else "mask_token_id", None)


def training_batches(task: str, model, processor, data_dir: Path) -> Iterator[dict[str, Tensor]]:
    """Batches of training data, with labels and special tokens, for the tuning of F-Fidelity."""
    trained_on = TASKS[task].trained_on or task
    rows = examples_of(trained_on, model, processor, data_dir, MASK_STEPS * MASK_BATCH, "train")
    while batch := list(islice(rows, MASK_BATCH)):
        inputs = [{name: value[0] for name, value in explained.example.inputs.items()} for explained in batch]
        if reads_images(model):
            stacked = {"pixel_values": torch.stack([explained["pixel_values"] for explained in inputs])}
            special = torch.cat([explained.special_pieces for explained in batch])
        else:
            stacked = dict(processor.pad(inputs, return_tensors="pt"))
            length = stacked["input_ids"].shape[1]
            pieces = [explained.special_pieces for explained in batch]
            special = torch.cat([torch.nn.functional.pad(x, (0, length - x.shape[1]), value=True) for x in pieces])
        yield stacked | {"labels": torch.tensor([explained.label for explained in batch]), "special": special}


if __name__ == "__main__":
    main()
