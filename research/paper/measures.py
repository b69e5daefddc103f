"""Measures of trained classifiers: how attention relates to predictions, gradients, deletion and human labels."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import BaseImageProcessor, PreTrainedModel, PreTrainedTokenizerBase

from hf_bidir.checkpoints.layer_hooks import negative_share
from hf_bidir.explain import ForwardCache, Request, erasure, read_text, token_scores
from hf_bidir.explain.forward import keep_mask_of
from hf_bidir.explain.inputs.parts import segmented
from hf_bidir.explain.methods.contributions import coefficients_and_gradients
from hf_bidir.explain.request import Target
from hf_bidir.finetune.data.image_data import ImageCollator
from research.faithfulness import (
    adversarial_attention,
    comprehensiveness,
    kendall_tau,
    kept_rows,
    permuted,
    prediction_changes,
    prediction_curve,
    randomised,
    sign_agreement,
    sufficiency,
)
from research.faithfulness.deletion import before_patches
from research.paper.data import sample
from research.paper.experiments import Amount
from research.paper.gradients import grad_cam, gradient_times_input

POSITIVE, NEGATIVE = 1, 0  # classes; the explained margin is the logit of the first minus that of the second
NEUTRAL_GRADE = 2  # of a word by people, on the scale 0 to 4


def erased(model: PreTrainedModel, inputs: dict[str, Tensor], target: Target = None, rescale: bool = True) -> Tensor:
    """The effect of erasing each token, `[batch, length]`."""
    return erasure(ForwardCache(model, inputs), Request(target=target), rescale=rescale, chunk_size=512)


EFFECTS: dict[str, Callable[..., Tensor]] = {
    "gradient": gradient_times_input,
    "erasure": erased,
    "zeroing": partial(erased, rescale=False),
}
BATCH = 64
WORD_SUMS = ("count", "score", "coefficient", "squared coefficient")  # coefficients are oriented


@dataclass(frozen=True)
class Scores:
    """The scores of one batch, `[texts, tokens]`; `keep` is False for padding."""

    keep: Tensor
    scores: Tensor  # before the activation
    coefficients: Tensor
    slopes: Tensor  # u = ∂y/∂a

    @property
    def contributions(self) -> Tensor:
        """`a · ∂y/∂a` of every token."""
        return self.coefficients * self.slopes


@dataclass(frozen=True)
class Classifier:
    """A text classifier with one attention layer, one query and two classes."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def limit(self) -> int:
        """Maximum tokens per text."""
        return self.model.config.max_position_embeddings

    def batches(self, texts: Sequence[str]) -> Iterator[dict[str, Tensor]]:
        """Model inputs of the texts, truncated and padded, `BATCH` at a time."""
        for start in range(0, len(texts), BATCH):
            part = list(texts[start : start + BATCH])
            options = {"padding": True, "truncation": True, "max_length": self.limit, "return_tensors": "pt"}
            yield dict(self.tokenizer(part, **options))

    def scores(self, inputs: dict[str, Tensor]) -> Scores:
        """Scores, coefficients and slopes of the margin between the two classes."""
        recorded: list[Tensor] = []
        score = self.model.rnn.attention.score
        hook = score.register_forward_hook(lambda *call: recorded.append(call[-1].detach()))
        try:
            cache = ForwardCache(self.model, inputs)
            (coefficients,), (towards,) = coefficients_and_gradients(cache, Request(target=POSITIVE))
            _, (away,) = coefficients_and_gradients(cache, Request(target=NEGATIVE))
        finally:
            hook.remove()
        keep = inputs["attention_mask"].bool()
        return Scores(keep, recorded[0][:, 0], coefficients[:, 0, 0], (towards - away)[:, 0, 0])

    def orientation(self, texts: Sequence[str]) -> tuple[float, float]:
        """The orientation `g = sign Σ |a| u` over training texts: with it, `g a > 0` supports the positive class.

        Returns:
            g, 1 or -1; and the share of `Σ |a u|` in which u has this sign, in [0.5, 1].
        """
        pull = total = 0.0
        for inputs in self.batches(texts):
            found = self.scores(inputs)
            weighted = found.coefficients.abs() * found.slopes * found.keep
            pull, total = pull + weighted.sum().item(), total + weighted.abs().sum().item()
        return (1.0 if pull >= 0 else -1.0), 0.5 + 0.5 * abs(pull) / max(total, 1e-30)


def measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    splits: dict[str, Dataset],
    human: Dataset | None,
    amount: Amount,
    polar_words: bool,
) -> dict[str, Any]:
    """All measures of one model in the report: numbers, or a list with one number per text.

    Args:
        model, tokenizer: a text classifier with one attention layer and two classes.
        splits: "train" and "test", with the column `text`; labels are not used.
        human: sentences with the columns `tokens` and `token_labels` (0 to 4, 2 is neutral), or None.
        amount: the numbers of examples and draws.
        polar_words: whether to collect statistics of every word in all test texts.
    """
    one = Classifier(model, tokenizer)
    test = sample(splits["test"], amount.texts)["text"][:]
    sign, share = one.orientation(sample(splits["train"], amount.training_texts)["text"][:])
    found = {"orientation": sign, "orientation_share": share}
    found |= _rankings(one, test, sign) | _interventions(one, test, amount)
    if polar_words:
        found["words"] = _words(one, splits["test"]["text"][:], sign)
    if human is not None:
        found |= _people(one, sample(human, amount.texts), sign)
    return found


def _rankings(one: Classifier, texts: Sequence[str], sign: float) -> dict[str, Any]:
    """Kendall's tau of coefficients and contributions with gradients, deletion and zeroing; ERASER."""
    rows: dict[str, list] = defaultdict(list)
    for inputs in one.batches(texts):
        found = one.scores(inputs)
        a, contribution = sign * found.coefficients, found.contributions
        for name, effect in EFFECTS.items():
            margin = effect(one.model, inputs, POSITIVE) - effect(one.model, inputs, NEGATIVE)
            for kind, scores, other in (("a", a, margin), ("|a|", a.abs(), margin.abs()), ("au", contribution, margin)):
                taus = kendall_tau(kept_rows(scores, found.keep), kept_rows(other, found.keep))
                rows[f"tau_{kind}_{name}"] += taus.tolist()
        predicted = one.model(**inputs).logits.argmax(-1)
        towards = torch.where(predicted == POSITIVE, 1.0, -1.0)[:, None]
        for name, ranked in (("au", contribution * towards), ("|a|", a.abs())):
            rows[f"comprehensiveness_{name}"] += comprehensiveness(one.model, inputs, ranked, progress=False).tolist()
            rows[f"sufficiency_{name}"] += sufficiency(one.model, inputs, ranked, progress=False).tolist()
    return dict(rows)


def _interventions(one: Classifier, texts: Sequence[str], amount: Amount) -> dict[str, Any]:
    rows: dict[str, list] = defaultdict(list)
    every = list(one.batches(texts))
    for inputs in every:
        for name, changes in median_changes(one.model, inputs, amount.draws).items():
            rows[name] += changes
    for inputs in one.batches(texts[: amount.attacked]):
        rows["adversary"] += adversarial_attention(one.model, inputs, progress=False).divergence.tolist()
    return dict(rows) | {"negative_share": negative_share(one.model, every)}


def median_changes(model: PreTrainedModel, inputs: dict[str, Tensor], draws: int) -> dict[str, list[float]]:
    """The median change of each example's prediction under permuted and randomised coefficients, by intervention; the
    lower median of an even number of draws."""
    ways = {"permutation": permuted, "randomisation": randomised}
    changes = {name: prediction_changes(model, inputs, way, draws=draws, progress=False) for name, way in ways.items()}
    return {name: drawn.median(0).values.tolist() for name, drawn in changes.items()}


def _words(one: Classifier, texts: Sequence[str], sign: float) -> dict[str, list[float]]:
    """The sums of `WORD_SUMS` over all occurrences of each word."""
    sums: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(len(WORD_SUMS)))
    for inputs in one.batches(texts):
        found = one.scores(inputs)
        words = one.tokenizer.convert_ids_to_tokens(inputs["input_ids"][found.keep])
        scores, coefficients = found.scores[found.keep].tolist(), (sign * found.coefficients[found.keep]).tolist()
        for word, score, a in zip(words, scores, coefficients, strict=True):
            sums[word] += (1, score, a, a * a)
    return {word: values.tolist() for word, values in sums.items()}


def _people(one: Classifier, human: Dataset, sign: float) -> dict[str, Any]:
    """Agreement of signs with human grades of words out of context, per sentence, without words unknown to the
    model."""
    rows: dict[str, list] = defaultdict(list)
    for row in human:
        example = read_text(one.tokenizer, segmented(" ".join(row["tokens"]), row["tokens"]), one.limit)
        if example.truncated or example.tokens != row["tokens"]:
            continue
        found = one.scores(example.inputs)
        unknown = example.inputs["input_ids"][0] == one.tokenizer.unk_token_id
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


CHANCE = "random"
OF_IMAGES = "grad-cam"
RANKINGS = ("contributions", "gradient", OF_IMAGES, "rollout", "attention", CHANCE)
SIGNED = ("contributions", "gradient")
SHARES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
DEEP_BATCH = 50
Processor: TypeAlias = PreTrainedTokenizerBase | BaseImageProcessor


def measure_deep(
    model: PreTrainedModel, processor: Processor, test: Dataset, amount: Amount, max_length: int | None
) -> dict[str, Any]:
    """All measures of one model in the report: numbers, or a list with one number per example.

    Areas under curves are divided by the largest share, so they are mean probabilities. "curves" has, by curve and
    ranking, the mean probability of the predicted class at every share of `SHARES`.

    Args:
        model, processor: a text or image classifier, BERT or ViT, with its tokenizer or image processor.
        test: examples with the column `text` or `image`; labels are not used.
        amount: the numbers of examples and draws.
        max_length: maximum tokens per text; None means the model's maximum.
    """
    rows: dict[str, list] = defaultdict(list)
    curves: dict[str, list] = defaultdict(list)
    methods = [name for name in RANKINGS if name != CHANCE and (name != OF_IMAGES or "image" in test.column_names)]
    every = list(batches(processor, test, amount, max_length))
    for index, inputs in enumerate(every):
        target = model(**inputs).logits.argmax(-1)
        scores = {name: scores_of(model, inputs, name, target) for name in methods}
        special = special_tokens(model, inputs, scores["attention"].shape[-1])
        scores[CHANCE] = torch.from_numpy(np.random.default_rng(index).random(special.shape, dtype=np.float32))
        for name, ranked in scores.items():
            for how in ("deletion", "insertion"):
                options = {"target": target, "special": special, "progress": False}
                curve = prediction_curve(model, inputs, ranked, SHARES, how, **options)
                curves[f"{how} {name}"].append(curve)
                rows[f"{how}_{name}"] += torch.trapezoid(curve, torch.tensor(SHARES), dim=0).div(SHARES[-1]).tolist()
        effect = token_scores(model, inputs, "erasure", target)
        keep = keep_mask_of(inputs, effect.shape[-1]) & ~special
        for name, taus in taus_with(effect, scores, keep).items():
            rows[name] += taus
        for name, changes in median_changes(model, inputs, amount.deep_draws).items():
            rows[name] += changes
    means = {name: torch.cat(parts, 1).mean(1).tolist() for name, parts in curves.items()}
    return dict(rows) | {"curves": means, "negative_share": negative_share(model, every)}


def scores_of(model: PreTrainedModel, inputs: dict[str, Tensor], ranking: str, target: Tensor) -> Tensor:
    """The scores of one of `RANKINGS` but the random one, `[batch, length]`."""
    own = {"gradient": gradient_times_input, OF_IMAGES: grad_cam}
    method = own.get(ranking, partial(token_scores, method=ranking))
    return method(model, inputs, target=target).detach()


def taus_with(effect: Tensor, scores: dict[str, Tensor], keep: Tensor) -> dict[str, list[float]]:
    """Kendall's tau per example: "tau_X" of signed scores X with the effects of erasure, "tau_|X|" of magnitudes."""
    effects, magnitudes = kept_rows(effect, keep), kept_rows(effect.abs(), keep)
    found = {}
    for name in (*SIGNED, "attention"):
        if name in SIGNED:
            found[f"tau_{name}"] = kendall_tau(kept_rows(scores[name], keep), effects).tolist()
        found[f"tau_|{name}|"] = kendall_tau(kept_rows(scores[name].abs(), keep), magnitudes).tolist()
    return found


def batches(processor: Processor, test: Dataset, amount: Amount, max_length: int | None) -> Iterator[dict[str, Tensor]]:
    """Model inputs of the sampled test examples, padded, `DEEP_BATCH` at a time."""
    images = "image" in test.column_names
    chosen = sample(test, amount.images if images else amount.deep_texts)
    for start in range(0, len(chosen), DEEP_BATCH):
        part = chosen.select(range(start, min(start + DEEP_BATCH, len(chosen))))
        if images:
            yield {"pixel_values": ImageCollator(processor)(list(part))["pixel_values"]}
        else:
            options = {"padding": True, "truncation": True, "max_length": max_length, "return_token_type_ids": False}
            yield dict(processor(part["text"][:], return_tensors="pt", **options))


def special_tokens(model: PreTrainedModel, inputs: dict[str, Tensor], length: int) -> Tensor:
    """Mask of the tokens that are neither words nor patches, boolean `[batch, length]`: the first and last token of a
    text, and the tokens before the patches of an image."""
    if "pixel_values" in inputs:
        return before_patches(model, inputs["pixel_values"], length)
    positions, lengths = torch.arange(length), inputs["attention_mask"].sum(1, keepdim=True)
    return (positions == 0) | (positions == lengths - 1)
