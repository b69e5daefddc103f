"""Measures of a trained text classifier: how its attention relates to predictions, gradients and human labels."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_bidir.explain import erasure, gradient_times_input, read_text
from hf_bidir.explain.methods.contributions import coefficients_and_gradients
from hf_bidir.explain.signs import negative_share
from research.faithfulness import (
    adversarial_attention,
    comprehensiveness,
    kendall_tau,
    kept_rows,
    permuted,
    prediction_changes,
    randomised,
    sign_agreement,
    sufficiency,
)
from research.paper.data import sample
from research.paper.polarity import NEUTRAL_GRADE

POSITIVE, NEGATIVE = 1, 0  # classes; the explained margin is the logit of the first minus that of the second
EFFECTS: dict[str, Callable[..., Tensor]] = {
    "gradient": gradient_times_input,
    "erasure": partial(erasure, progress=False, chunk_size=512),
    "zeroing": partial(erasure, how="zero", progress=False, chunk_size=512),
}
BATCH = 64
WORD_SUMS = ("count", "score", "coefficient", "squared coefficient")  # coefficients are oriented


@dataclass(frozen=True)
class Amount:
    """The numbers of examples and draws.

    Attributes:
        texts, draws, attacked, training_texts: for models with one attention layer: test texts, draws of random
            coefficients, texts with an adversary, and training texts for the orientation.
        images, deep_texts, deep_draws: the same for deep models.
    """

    texts: int = 400
    draws: int = 100
    attacked: int = 64
    training_texts: int = 512
    images: int = 200
    deep_texts: int = 200
    deep_draws: int = 20


QUICK = Amount(texts=64, draws=20, attacked=8, training_texts=128, images=32, deep_texts=8, deep_draws=5)


@dataclass(frozen=True)
class Scores:
    """The scores of one batch, `[texts, tokens]`; `keep` is False for padding."""

    keep: Tensor
    scores: Tensor  # before the activation
    coefficients: Tensor
    slopes: Tensor  # u = ∂y/∂a

    @property
    def contributions(self) -> Tensor:
        """`a · ∂y/∂a` of every token, `[batch, keys]`."""
        return self.coefficients * self.slopes


def batches(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], limit: int) -> Iterator[dict[str, Tensor]]:
    """Model inputs of the texts, truncated to `limit` tokens, padded, `BATCH` at a time."""
    for start in range(0, len(texts), BATCH):
        part = list(texts[start : start + BATCH])
        yield dict(tokenizer(part, padding=True, truncation=True, max_length=limit, return_tensors="pt"))


def scores_of(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Scores:
    """Scores, coefficients and slopes of the margin between the two classes, `[batch, length]` each.

    Args:
        model: a classifier with one attention layer and one query.
        inputs: a batch of model inputs.
    """
    recorded: list[Tensor] = []
    hook = model.rnn.attention.score.register_forward_hook(lambda *call: recorded.append(call[-1].detach()))
    try:
        (coefficients,), (towards,) = coefficients_and_gradients(model, inputs, POSITIVE, None)
        _, (away,) = coefficients_and_gradients(model, inputs, NEGATIVE, None)
    finally:
        hook.remove()
    keep = inputs["attention_mask"].bool()
    return Scores(keep, recorded[0][:, 0], coefficients[:, 0, 0], (towards - away)[:, 0, 0])


def orientation(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], limit: int
) -> tuple[float, float]:
    """The orientation `g = sign Σ |a| u` over training texts: with it, `g a > 0` supports the positive class.

    Returns:
        g, 1 or -1; and the share of `Σ |a u|` in which u has this sign, in [0.5, 1].
    """
    pull = total = 0.0
    for inputs in batches(tokenizer, texts, limit):
        found = scores_of(model, inputs)
        weighted = found.coefficients.abs() * found.slopes * found.keep
        pull, total = pull + weighted.sum().item(), total + weighted.abs().sum().item()
    return (1.0 if pull >= 0 else -1.0), 0.5 + 0.5 * abs(pull) / max(total, 1e-30)


def measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    splits: dict[str, Dataset],
    human: Dataset | None,
    amount: Amount,
    limit: int,
    polar_words: bool,
) -> dict[str, Any]:
    """All measures of one model in the report.

    Args:
        model, tokenizer: a text classifier with one attention layer and two classes.
        splits: "train" and "test", with the column `text`; labels are not used.
        human: sentences with the columns `tokens` and `token_labels` (0 to 4, 2 is neutral), or None.
        amount: the numbers of examples and draws.
        limit: maximum tokens per text.
        polar_words: whether to collect statistics of every word in all test texts.

    Returns:
        Numbers, or a list with one number per text.
    """
    test = sample(splits["test"], amount.texts)["text"][:]
    sign, share = orientation(model, tokenizer, sample(splits["train"], amount.training_texts)["text"][:], limit)
    found: dict[str, Any] = {"orientation": sign, "orientation_share": share}
    found |= _rankings(model, tokenizer, test, sign, limit)
    found |= _interventions(model, tokenizer, test, amount, limit)
    if polar_words:
        found["words"] = _words(model, tokenizer, splits["test"]["text"][:], sign, limit)
    if human is not None:
        found |= _people(model, tokenizer, human, sign, amount, limit)
    return found


def _rankings(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], sign: float, limit: int
) -> dict[str, Any]:
    """Kendall's tau of coefficients and contributions with gradients, deletion and zeroing; ERASER."""
    rows: dict[str, list] = defaultdict(list)
    for inputs in batches(tokenizer, texts, limit):
        found = scores_of(model, inputs)
        kept = {name: kept_rows(_margin(model, inputs, effect), found.keep) for name, effect in EFFECTS.items()}
        a, contribution = sign * found.coefficients, found.contributions
        for name, other in kept.items():
            magnitudes = [np.abs(row) for row in other]
            rows[f"tau_a_{name}"] += kendall_tau(kept_rows(a, found.keep), other).tolist()
            rows[f"tau_|a|_{name}"] += kendall_tau(kept_rows(a.abs(), found.keep), magnitudes).tolist()
            rows[f"tau_au_{name}"] += kendall_tau(kept_rows(contribution, found.keep), other).tolist()
        predicted = model(**inputs).logits.argmax(-1)
        towards = torch.where(predicted == POSITIVE, 1.0, -1.0)[:, None]
        for name, ranked in (("au", contribution * towards), ("|a|", a.abs())):
            rows[f"comprehensiveness_{name}"] += comprehensiveness(model, inputs, ranked, progress=False).tolist()
            rows[f"sufficiency_{name}"] += sufficiency(model, inputs, ranked, progress=False).tolist()
    return dict(rows)


def _margin(model: PreTrainedModel, inputs: dict[str, Tensor], effect: Callable[..., Tensor]) -> Tensor:
    """The effect on the logit of the positive class minus that on the negative one."""
    return (effect(model, inputs, POSITIVE) - effect(model, inputs, NEGATIVE)).detach()


def _interventions(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], amount: Amount, limit: int
) -> dict[str, Any]:
    rows: dict[str, list] = defaultdict(list)
    every = list(batches(tokenizer, texts, limit))
    for inputs in every:
        for name, changes in median_changes(model, inputs, amount.draws).items():
            rows[name] += changes
    for inputs in batches(tokenizer, texts[: amount.attacked], limit):
        rows["adversary"] += adversarial_attention(model, inputs, progress=False).divergence.tolist()
    return dict(rows) | {"negative_share": negative_share(model, every)}


def median_changes(model: PreTrainedModel, inputs: dict[str, Tensor], draws: int) -> dict[str, list[float]]:
    """The median change of each example's prediction under permuted and randomised coefficients, by intervention; the
    lower median of an even number of draws."""
    ways = {"permutation": permuted, "randomisation": randomised}
    changes = {name: prediction_changes(model, inputs, way, draws=draws, progress=False) for name, way in ways.items()}
    return {name: drawn.median(0).values.tolist() for name, drawn in changes.items()}


def _words(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], sign: float, limit: int
) -> dict[str, list[float]]:
    """The sums of `WORD_SUMS` over all occurrences of each word."""
    sums: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(len(WORD_SUMS)))
    for inputs in batches(tokenizer, texts, limit):
        found = scores_of(model, inputs)
        for row, kept in enumerate(found.keep):
            words = tokenizer.convert_ids_to_tokens(inputs["input_ids"][row][kept])
            scores, coefficients = found.scores[row][kept].tolist(), (sign * found.coefficients[row][kept]).tolist()
            for word, score, a in zip(words, scores, coefficients, strict=True):
                sums[word] += (1, score, a, a * a)
    return {word: values.tolist() for word, values in sums.items()}


def _people(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, human: Dataset, sign: float, amount: Amount, limit: int
) -> dict[str, Any]:
    """Agreement of signs with human grades of words out of context, per sentence, without words unknown to the
    model."""
    rows: dict[str, list] = defaultdict(list)
    for row in sample(human, amount.texts):
        example = read_text(tokenizer, row["tokens"], limit)
        if example.truncated or example.tokens != row["tokens"]:
            continue
        found = scores_of(model, example.inputs)
        unknown = example.inputs["input_ids"][0] == tokenizer.unk_token_id
        known = (example.by_token((~unknown).float()) > 0).numpy()
        polarity = (np.array(row["token_labels"]) - NEUTRAL_GRADE)[known]
        if not polarity.any():
            continue
        for name, pieces in (("a", sign * found.coefficients[0]), ("au", found.contributions[0])):
            values = example.by_token(pieces).numpy()[known]
            rows[f"human_sign_{name}"] += sign_agreement([values], [polarity]).tolist()
            rows[f"human_tau_{name}"] += kendall_tau([values], [polarity]).tolist()
        rows["human_positive"].append(float((polarity[polarity != 0] > 0).mean()))
    return dict(rows)
