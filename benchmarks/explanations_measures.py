"""The measures of benchmarks/explanations.py: what people say, curves, F-Fidelity, random weights."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from explained import Explained
from scipy.stats import kendalltau, spearmanr
from sklearn.metrics import average_precision_score
from torch import Tensor

from hf_bidir.explain import METHODS, token_scores
from hf_bidir.explain.running import blocks
from hf_bidir.faithfulness import area, f_fidelity, prediction_curve, randomised_stages, tuned_on_masks

Scored = Sequence[tuple[Explained, Tensor]]
STEPS = [share / 10 for share in range(11)]


def timed_scores(model, examples: Sequence[Explained], method: str) -> tuple[list[Tensor], dict[str, float]]:
    """Scores `[length]` for the predicted class of every example, and medians of the time.

    The ratio to a forward pass right after it is more stable than the seconds on a busy machine.
    """
    scores, seconds, forwards = [], [], []
    for one in examples:
        start = time.perf_counter()
        scores.append(scores_of(model, one, method))
        middle = time.perf_counter()
        with torch.no_grad():
            model(**one.example.inputs)
        seconds.append(middle - start)
        forwards.append((middle - start) / (time.perf_counter() - middle))
    return scores, {"seconds": statistics.median(seconds), "forward_passes": statistics.median(forwards)}


def scores_of(model, one: Explained, method: str) -> Tensor:
    """Support for the predicted class; heads are oriented towards class 1, in tasks of two classes."""
    oriented = METHODS[method].oriented
    found = token_scores(model, one.example.inputs, method, one.predicted if METHODS[method].explains_output else None)[
        0
    ]
    return -found if oriented and one.predicted == 0 else found


def by_word(one: Explained, scores: Tensor, method_adds: bool = True) -> np.ndarray:
    """Scores of the words or patches, without special tokens."""
    return one.example.by_token(scores, method_adds).numpy()[~np.array(one.example.special)]


def agreement(scored: Scored) -> dict[str, float | None]:
    """Human sign and tau of words with labels from -2 to 2; scores are turned towards "positive"."""
    pairs = [
        (one.words, by_word(one, scores) * (1 if one.predicted == 1 else -1))
        for one, scores in scored
        if one.words is not None and one.words.any()
    ]
    return human_sign(pairs) | {"tau": mean_tau(pairs)}


def human_sign(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    """The share of polar words, of all sentences together, whose score has the label's sign; that of a constant."""
    labels, scores = (np.concatenate(part) for part in zip(*pairs, strict=True))
    polar = labels != 0
    return {
        "human_sign": float(np.mean(np.sign(scores[polar]) == np.sign(labels[polar]))),
        "always_positive": float(np.mean(labels[polar] > 0)),
    }


def mean_tau(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> float | None:
    """Kendall's tau-b, mean over sentences in which both vary; None if there are none."""
    taus = np.array([kendalltau(labels, scores).statistic for labels, scores in pairs])
    return None if np.isnan(taus).all() else float(np.nanmean(taus))


def rationales(scored: Scored) -> dict[str, float]:
    """Mean area under the precision-recall curve against marked words; scores are turned towards the true class."""
    areas = [
        average_precision_score(one.words, by_word(one, scores) * (1 if one.predicted == one.label else -1))
        for one, scores in scored
        if one.words is not None and one.words.any()
    ]
    return {"auprc": float(np.mean(areas))}


def deletion_and_insertion(model, scored: Scored) -> dict[str, float]:
    """Mean areas under both curves of the predicted class's probability."""
    found: dict[str, list[float]] = {"deletion": [], "insertion": []}
    for one, scores in scored:
        for how, areas in found.items():
            options = {"target": torch.tensor([one.predicted]), "special": one.special_pieces, "progress": False}
            curve = prediction_curve(model, one.example.inputs, scores[None], STEPS, how, **options)
            areas.append(area(curve).item())
    return {how: float(np.mean(areas)) for how, areas in found.items()}


def fidelity(model, processor, training: list[dict[str, Tensor]]) -> Callable[[Scored], dict[str, float]]:
    """F-Fidelity of scores, on one copy of the model that is tuned on masked inputs."""
    mask = getattr(processor, "mask_token_id", None)
    tuned = tuned_on_masks(model, training, replacement=mask)

    def measured(scored: Scored) -> dict[str, float]:
        found = []
        for one, scores in scored:
            options = {"target": torch.tensor([one.predicted]), "replacement": mask, "draws": 3, "progress": False}
            found.append(torch.stack(f_fidelity(tuned, one.example.inputs, scores[None], **options))[:, 0])
        plus, minus = torch.stack(found).mean(0).tolist()
        return {"ffid_plus": plus, "ffid_minus": minus}

    return measured


def randomised(model, scored: Mapping[str, Scored]) -> dict[str, dict[str, float | None]]:
    """By method, the mean Spearman correlation of scores with those of random weights, for three amounts of them."""
    half = f"block {len(blocks(model)) // 2}"
    names = {"head": "random_head", half: "random_half", "embeddings": "random_all"}
    found: dict[str, dict[str, float | None]] = {method: {} for method in scored}
    for stage, random in randomised_stages(model):
        for method, examples in scored.items() if stage in names else ():
            pairs = [(by_word(one, scores), by_word(one, scores_of(random, one, method))) for one, scores in examples]
            correlations = [spearmanr(*pair).statistic for pair in pairs if all(np.ptp(side) > 0 for side in pair)]
            found[method][names[stage]] = float(np.nanmean(correlations)) if correlations else None
    return found
