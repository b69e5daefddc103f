"""What is measured of a trained text classifier: how its attention relates to its answers, to gradients, to people."""

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
from hf_bidir.explain.contributions import coefficients_and_gradients
from hf_bidir.explain.signs import negative_share
from hf_bidir.faithfulness import (
    adversarial_attention,
    answer_changes,
    comprehensiveness,
    kendall_tau,
    kept_rows,
    permuted,
    randomised,
    sign_agreement,
    sufficiency,
)
from hf_bidir.paper.data import sample

POSITIVE, NEGATIVE = 1, 0  # classes; what is explained is the logit of the first minus that of the second
EFFECTS = {"gradient": gradient_times_input, "erasure": partial(erasure, progress=False, chunk_size=512)}
BATCH = 64
WORD_SUMS = ("count", "score", "coefficient", "squared coefficient")  # coefficients are oriented


@dataclass(frozen=True)
class Amount:
    """How much of everything is measured.

    Attributes:
        texts, draws, attacked, training_texts: of models with one attention layer: test texts, draws of random
            coefficients, adversaries, and training texts for the orientation.
        images, deep_texts, deep_draws: of deep models.
    """

    texts: int = 400
    draws: int = 100
    attacked: int = 64
    training_texts: int = 512
    images: int = 200
    deep_texts: int = 48
    deep_draws: int = 20


QUICK = Amount(texts=64, draws=20, attacked=8, training_texts=128, images=32, deep_texts=8, deep_draws=5)


@dataclass(frozen=True)
class Scores:
    """Of one batch: a row per text, a column per token; padding is where `keep` is False."""

    keep: Tensor
    scores: Tensor  # before the activation
    coefficients: Tensor
    slopes: Tensor  # u = ∂y/∂a

    @property
    def contributions(self) -> Tensor:
        return self.coefficients * self.slopes


def batches(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], limit: int) -> Iterator[dict[str, Tensor]]:
    """The texts as the model reads them, cut at `limit` tokens, padded, `BATCH` at a time."""
    for start in range(0, len(texts), BATCH):
        part = list(texts[start : start + BATCH])
        yield dict(tokenizer(part, padding=True, truncation=True, max_length=limit, return_tensors="pt"))


def scores_of(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Scores:
    """Scores, coefficients and slopes of the margin between the two classes, `[batch, length]` each.

    Args:
        model: with one attention layer and one query.
        inputs: what it takes, a batch.
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
    """`g = sign Σ |a| u` over training texts, by which a coefficient's sign means for or against; and its share.

    Returns:
        g, 1 or -1; and the share of `Σ |a u|` in which u has that sign, in [0.5, 1].
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
    """Everything that the report shows of one model.

    Args:
        model, tokenizer: of a text classifier with one attention layer and two classes.
        splits: "train" and "test", with the column `text`; labels are not read.
        human: sentences with the columns `tokens` and `token_labels` (0 to 4, 2 is neutral), or None.
        amount: how much.
        limit: tokens of a text.
        polar_words: whether it is known which words are positive or negative; then those of all test texts count.

    Returns:
        Numbers, and lists of one number per text for those that have a distribution.
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
    """Kendall's tau of coefficients and contributions with gradients and with renormalised deletion; ERASER."""
    rows = defaultdict(list)
    for inputs in batches(tokenizer, texts, limit):
        found = scores_of(model, inputs)
        kept = {name: kept_rows(_margin(model, inputs, effect), found.keep) for name, effect in EFFECTS.items()}
        a, contribution = sign * found.coefficients, found.contributions
        for name, other in kept.items():
            sizes = [np.abs(row) for row in other]
            rows[f"tau_a_{name}"] += kendall_tau(kept_rows(a, found.keep), other).tolist()
            rows[f"tau_|a|_{name}"] += kendall_tau(kept_rows(a.abs(), found.keep), sizes).tolist()
            rows[f"tau_au_{name}"] += kendall_tau(kept_rows(contribution, found.keep), other).tolist()
        predicted = model(**inputs).logits.argmax(-1)
        towards = torch.where(predicted == POSITIVE, 1.0, -1.0)[:, None]
        for name, ranked in (("au", contribution * towards), ("|a|", a.abs())):
            rows[f"comprehensiveness_{name}"] += comprehensiveness(model, inputs, ranked, progress=False).tolist()
            rows[f"sufficiency_{name}"] += sufficiency(model, inputs, ranked, progress=False).tolist()
    return dict(rows)


def _margin(model: PreTrainedModel, inputs: dict[str, Tensor], effect: Callable[..., Tensor]) -> Tensor:
    """An effect on the logit of the one class minus that on the other's."""
    return (effect(model, inputs, POSITIVE) - effect(model, inputs, NEGATIVE)).detach()


def _interventions(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], amount: Amount, limit: int
) -> dict[str, Any]:
    rows, every = defaultdict(list), list(batches(tokenizer, texts, limit))
    for inputs in every:
        for name, changes in median_changes(model, inputs, amount.draws).items():
            rows[name] += changes
    for inputs in batches(tokenizer, texts[: amount.attacked], limit):
        rows["adversary"] += adversarial_attention(model, inputs, progress=False).divergence.tolist()
    return dict(rows) | {"negative_share": negative_share(model, every)}


def median_changes(model: PreTrainedModel, inputs: dict[str, Tensor], draws: int) -> dict[str, list[float]]:
    """By name of what is done to the coefficients, how far the answer to every example moves: the median over draws, of
    an even number of draws the lower one."""
    ways = {"permutation": permuted, "randomisation": randomised}
    changes = {name: answer_changes(model, inputs, way, draws=draws, progress=False) for name, way in ways.items()}
    return {name: drawn.median(0).values.tolist() for name, drawn in changes.items()}


def _words(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], sign: float, limit: int
) -> dict[str, list[float]]:
    """Of every word, the sums of `WORD_SUMS` over its occurrences."""
    sums = defaultdict(lambda: np.zeros(len(WORD_SUMS)))
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
    """Do signs agree with what people say of words out of context? Per sentence; words that the model does not know
    are left out."""
    rows = defaultdict(list)
    for row in sample(human, amount.texts):
        example = read_text(tokenizer, row["tokens"], limit)
        if example.truncated or example.tokens != row["tokens"]:
            continue
        found = scores_of(model, example.inputs)
        unknown = example.inputs["input_ids"][0] == tokenizer.unk_token_id
        known = (example.by_token((~unknown).float()) > 0).numpy()
        polarity = (np.array(row["token_labels"]) - 2)[known]
        if not polarity.any():
            continue
        for name, pieces in (("a", sign * found.coefficients[0]), ("au", found.contributions[0])):
            values = example.by_token(pieces).numpy()[known]
            rows[f"human_sign_{name}"] += sign_agreement([values], [polarity]).tolist()
            rows[f"human_tau_{name}"] += kendall_tau([values], [polarity]).tolist()
        rows["human_positive"].append(float((polarity[polarity != 0] > 0).mean()))
    return dict(rows)
