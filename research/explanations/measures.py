"""The measures of research/explanations/run.py: what people say, curves, F-Fidelity, random weights."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from zlib import crc32

import numpy as np
import torch
from scipy.stats import kendalltau, spearmanr
from sklearn.metrics import average_precision_score
from torch import Tensor

from hf_bidir.explain import METHODS, token_scores
from hf_bidir.explain.record import reads_images
from research.explanations.tasks import Explained
from research.faithfulness import area, f_fidelity, prediction_curve, randomised_stages, tuned_on_masks

Scored = Sequence[tuple[Explained, Tensor]]
STEPS = [share / 10 for share in range(11)]
RANDOM = "random"  # a method of random scores
RANDOMISATIONS = 3  # sets of random weights


def timed_scores(model, examples: Sequence[Explained], method: str) -> tuple[list[Tensor], dict[str, float]]:
    """Scores `[length]` for the predicted class of every example, and medians of the time.

    The ratio to a forward pass right after it is more stable than the seconds on a busy machine.
    """
    scores, seconds, forwards = [], [], []
    for one in examples:
        start = time.perf_counter()
        scores.append(scores_of(model, one, method, one.predicted))
        middle = time.perf_counter()
        with torch.no_grad():
            model(**one.example.inputs)
        seconds.append(middle - start)
        forwards.append((middle - start) / (time.perf_counter() - middle))
    return scores, {"seconds": statistics.median(seconds), "forward_passes": statistics.median(forwards)}


def scores_of(model, one: Explained, method: str, target: int) -> Tensor:
    """Support for a class, `[length]`; magnitudes are the same for every class."""
    if method == RANDOM:
        text = " ".join(one.example.tokens).encode()
        return torch.randn(len(one.example.token_of_piece), generator=torch.Generator().manual_seed(crc32(text)))
    explains = METHODS[method].explains_output
    found = token_scores(model, one.example.inputs, method, target if explains else None)[0]
    # heads of texts are oriented towards class 1, those of images towards the predicted class
    return -found if METHODS[method].oriented and target == 0 and not reads_images(model) else found


def by_word(one: Explained, scores: Tensor, method: str) -> np.ndarray:
    """Scores of the words or patches, without special tokens."""
    additive = method == RANDOM or METHODS[method].additive
    return one.example.by_token(scores, additive).numpy()[~np.array(one.example.special)]


def agreement(scored: Scored, method: str) -> dict[str, float | None]:
    """Human sign and tau of words with labels from -2 to 2, from scores for the class "positive"."""
    pairs = [(one.words, by_word(one, scores, method)) for one, scores in scored if one.words.any()]
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
    areas = [average_precision_score(one.words, by_word(one, scores, method)) for one, scores in scored]
    return {"auprc": float(np.mean(areas)), "marked": float(np.mean([one.words.mean() for one, _ in scored]))}


def deletion_and_insertion(model, scored: Scored) -> dict[str, float]:
    """Mean areas under both curves of the predicted class's probability."""
    found: dict[str, list[float]] = {"deletion": [], "insertion": []}
    for one, scores in scored:
        for how, areas in found.items():
            options = {"target": torch.tensor([one.predicted]), "special": one.special_pieces, "progress": False}
            curve = prediction_curve(model, one.example.inputs, scores[None], STEPS, how, **options)
            areas.append(area(curve).item())
    return {how: float(np.mean(areas)) for how, areas in found.items()}


def fidelity(
    model, training: list[dict[str, Tensor]], replacement: int | None, sizes: Sequence[float], draws: int
) -> Callable[[Scored], dict[str, float | None]]:
    """F-Fidelity of scores, on one copy of the model that is tuned on masked inputs."""
    tuned = tuned_on_masks(model, training, replacement=replacement)

    def measured(scored: Scored) -> dict[str, float | None]:
        found = []
        for one, scores in scored:
            options = {"target": torch.tensor([one.predicted]), "special": one.special_pieces, "progress": False}
            options |= {"replacement": replacement, "sizes": sizes, "draws": draws}
            found.append(torch.stack(f_fidelity(tuned, one.example.inputs, scores[None], **options))[:, 0])
        plus, minus = torch.stack(found).nanmean(0).tolist()  # texts too short for a mask have none
        return {"ffid_plus": plus, "ffid_minus": minus}

    return measured


def randomised(model, examples: Sequence[Explained], methods: Sequence[str]) -> dict[str, dict[str, float]]:
    """By method, the Spearman correlation of scores with those of random weights, and its magnitude, both means."""
    found: dict[str, list[float]] = defaultdict(list)
    for seed in range(RANDOMISATIONS):
        *_, (_, random) = randomised_stages(model, seed)
        for method in methods:
            for one in examples:
                pair = [by_word(one, scores_of(each, one, method, one.predicted), method) for each in (model, random)]
                if all(np.ptp(side) > 0 for side in pair):
                    found[method].append(spearmanr(*pair).statistic)
    return {
        method: {"random_rho": float(np.mean(rhos)), "random_abs": float(np.mean(np.abs(rhos)))}
        for method, rhos in found.items()
    }
