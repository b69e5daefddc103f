"""Measures of trained classifiers: how attention relates to predictions, gradients, deletion and human labels."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pandas as pd
import torch
from captum.attr import InputXGradient
from datasets import Dataset
from torch import Tensor
from transformers import BaseImageProcessor, PreTrainedModel, PreTrainedTokenizerBase

from hf_bidir.checkpoints.layer_hooks import in_evaluation, negative_share
from hf_bidir.explain import ForwardCache, Request, erasure, read_text, token_scores
from hf_bidir.explain.forward import keep_mask_of
from hf_bidir.explain.inputs.parts import segmented
from hf_bidir.explain.methods.contributions import coefficients_and_gradients
from hf_bidir.explain.methods.gradients import InputFunction
from hf_bidir.finetune.data.image_data import ImageCollator
from research.faithfulness import (
    comprehensiveness,
    kendall_tau,
    kept_rows,
    permuted,
    prediction_changes,
    randomised,
    sign_agreement,
    sufficiency,
)
from research.faithfulness.deletion import before_patches
from research.paper.data import sample

POSITIVE, NEGATIVE = 1, 0  # classes; the explained margin is the logit of the first minus that of the second
NEUTRAL_GRADE = 2  # of a word by people, on the scale 0 to 4
TEXTS, DRAWS, TRAINING_TEXTS, DEEP = 400, 100, 512, 200  # test texts, random draws; for the orientation; deep models
BATCH, DEEP_BATCH = 64, 50
Processor: TypeAlias = PreTrainedTokenizerBase | BaseImageProcessor
Numbers: TypeAlias = dict[str, list[float]]


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
    """A text classifier with one attention layer, one query and two classes.

    `sign` orients its coefficients: times it, a positive coefficient supports the positive class.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    sign: float = 1.0

    def batches(self, texts: Sequence[str]) -> Iterator[dict[str, Tensor]]:
        """Model inputs of the texts, truncated and padded, `BATCH` at a time."""
        limit = self.model.config.max_position_embeddings
        options = {"padding": True, "truncation": True, "max_length": limit, "return_tensors": "pt"}
        for start in range(0, len(texts), BATCH):
            yield dict(self.tokenizer(list(texts[start : start + BATCH]), **options))

    def scores(self, inputs: dict[str, Tensor]) -> Scores:
        """Scores, oriented coefficients and slopes of the margin between the two classes."""
        recorded: list[Tensor] = []
        score = self.model.rnn.attention.score
        hook = score.register_forward_hook(lambda *call: recorded.append(call[-1].detach()))
        try:
            cache = ForwardCache(self.model, inputs)
            (coefficients,), (towards,) = coefficients_and_gradients(cache, Request(target=POSITIVE))
            _, (away,) = coefficients_and_gradients(cache, Request(target=NEGATIVE))
        finally:
            hook.remove()
        slopes = self.sign * (towards - away)[:, 0, 0]
        keep = inputs["attention_mask"].bool()
        return Scores(keep, recorded[0][:, 0], self.sign * coefficients[:, 0, 0], slopes)

    def orientation(self, texts: Sequence[str]) -> tuple[float, float]:
        """The orientation `g = sign Σ |a| u` over training texts: with it, `g a > 0` supports the positive class.

        Returns:
            g, 1 or -1; and the share of `Σ |a u|` in which u has this sign, in [0.5, 1].
        """
        pull = total = 0.0
        for inputs in self.batches(texts):
            batch = self.scores(inputs)
            weighted = batch.coefficients.abs() * batch.slopes * batch.keep
            pull, total = pull + weighted.sum().item(), total + weighted.abs().sum().item()
        return (1.0 if pull >= 0 else -1.0), 0.5 + 0.5 * abs(pull) / max(total, 1e-30)

    def words(self, texts: Sequence[str]) -> pd.DataFrame:
        """The score and the coefficient `a` of every occurrence of a word, which is the index."""
        parts = []
        for inputs in self.batches(texts):
            batch = self.scores(inputs)
            words = self.tokenizer.convert_ids_to_tokens(inputs["input_ids"][batch.keep])
            columns = {"score": batch.scores[batch.keep], "a": batch.coefficients[batch.keep]}
            parts.append(pd.DataFrame({name: x.tolist() for name, x in columns.items()}, index=words))
        return pd.concat(parts)


def measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    splits: dict[str, Dataset],
    human: Dataset | None,
    polar: bool,
) -> dict[str, float]:
    """All measures of one model, means over texts; those that are undefined are left out.

    Args:
        model, tokenizer: a text classifier with one attention layer and two classes.
        splits: "train" and "test", with the column `text`; labels are not used.
        human: sentences with the columns `tokens` and `token_labels` (0 to 4, 2 is neutral), or None.
        polar: whether words that begin with "pos" and "neg" are polar, and others neutral.
    """
    sign, share = Classifier(model, tokenizer).orientation(sample(splits["train"], TRAINING_TEXTS)["text"][:])
    oriented = Classifier(model, tokenizer, sign)
    batches = list(oriented.batches(sample(splits["test"], TEXTS)["text"][:]))
    numbers: Numbers = defaultdict(list)
    for inputs in batches:
        parts = rankings(oriented, inputs) | erasures(oriented, inputs) | median_changes(model, inputs)
        for name, values in parts.items():
            numbers[name] += values
    if human is not None:
        numbers |= people(oriented, sample(human, TEXTS))
    measures = {"orientation": sign, "orientation_share": share, "negative_share": negative_share(model, batches)}
    measures |= {name: float(np.nanmean(values)) for name, values in numbers.items() if np.isfinite(values).any()}
    return measures | (polar_separation(oriented.words(splits["test"]["text"][:])) if polar else {})


def rankings(classifier: Classifier, inputs: dict[str, Tensor]) -> Numbers:
    """Kendall's tau of coefficients and contributions with gradients, deletion and zeroing, by text."""
    batch, taus = classifier.scores(inputs), {}
    for name, margin in effects(classifier.model, inputs).items():
        pairs = {
            "a": (batch.coefficients, margin),
            "|a|": (batch.coefficients.abs(), margin.abs()),
            "au": (batch.contributions, margin),
        }
        for kind, (scores, effect) in pairs.items():
            pair = kept_rows(scores, batch.keep), kept_rows(effect, batch.keep)
            taus[f"tau_{kind}_{name}"] = kendall_tau(*pair).tolist()
    return taus


def effects(model: PreTrainedModel, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The effect of each token on the margin, `[texts, tokens]`: input times gradient, deletion, and zeroing."""

    def erased(target: int, rescale: bool) -> Tensor:
        return erasure(ForwardCache(model, inputs), Request(target=target), rescale=rescale, chunk_size=512)

    ways = {
        "gradient": lambda target: gradient_times_input(model, inputs, target),
        "erasure": lambda target: erased(target, rescale=True),
        "zeroing": lambda target: erased(target, rescale=False),
    }
    return {name: way(POSITIVE) - way(NEGATIVE) for name, way in ways.items()}


def gradient_times_input(model: PreTrainedModel, inputs: Mapping[str, Tensor], target: int) -> Tensor:
    """`x · ∂y/∂x`, summed over a token's word embedding, `[batch, length]`; by captum."""
    with torch.inference_mode(False), in_evaluation(model):
        function = InputFunction(ForwardCache(model, inputs), Request(target=target))
        start = function.start.clone().requires_grad_()
        return function.by_token(InputXGradient(function.score).attribute(start, additional_forward_args=function.rows))


def erasures(classifier: Classifier, inputs: dict[str, Tensor]) -> Numbers:
    """ERASER by the support of the prediction, `a·u`, and by the magnitude of `a`, by text."""
    batch = classifier.scores(inputs)
    predicted = classifier.model(**inputs).logits.argmax(-1)
    towards = torch.where(predicted == POSITIVE, 1.0, -1.0)[:, None]
    numbers = {}
    for name, ranked in (("au", batch.contributions * towards), ("|a|", batch.coefficients.abs())):
        for measured in (comprehensiveness, sufficiency):
            fall = measured(classifier.model, inputs, ranked)
            numbers[f"{measured.__name__}_{name}"] = fall.tolist()
    return numbers


def median_changes(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Numbers:
    """The median change of each text's prediction under permuted and randomised coefficients, by intervention; the
    lower median of an even number of draws."""
    ways = {"permutation": permuted, "randomisation": randomised}
    changes = {name: prediction_changes(model, inputs, way, DRAWS) for name, way in ways.items()}
    return {name: drawn.median(0).values.tolist() for name, drawn in changes.items()}


def people(classifier: Classifier, human: Dataset) -> Numbers:
    """Agreement of signs with human grades of words out of context, by sentence, without words unknown to the model."""
    numbers: Numbers = defaultdict(list)
    tokenizer, limit = classifier.tokenizer, classifier.model.config.max_position_embeddings
    for row in human:
        example = read_text(tokenizer, segmented(" ".join(row["tokens"]), row["tokens"]), limit)
        if example.truncated or example.tokens != row["tokens"]:
            continue
        scores = classifier.scores(example.inputs)
        unknown = example.inputs["input_ids"][0] == tokenizer.unk_token_id
        known = (example.by_token((~unknown).float()) > 0).numpy()
        polarity = (np.array(row["token_labels"]) - NEUTRAL_GRADE)[known]
        if not polarity.any():
            continue
        for name, pieces in (("a", scores.coefficients[0]), ("au", scores.contributions[0])):
            values = example.by_token(pieces).numpy()[known]
            numbers[f"human_sign_{name}"] += sign_agreement([values], [polarity]).tolist()
            numbers[f"human_tau_{name}"] += kendall_tau([values], [polarity]).tolist()
        numbers["human_positive"].append(float((polarity[polarity != 0] > 0).mean()))
    return numbers


def polar_separation(words: pd.DataFrame) -> dict[str, float]:
    """How far the coefficients of positive and of negative words lie from those of neutral words.

    The difference of means over occurrences, in standard deviations pooled over both kinds.
    """
    coefficients = {kind: words["a"][words.index.str.startswith(kind)] for kind in ("pos", "neg", "word")}
    neutral, distances = coefficients["word"], {}
    for name, kind in (("polar_positive", "pos"), ("polar_negative", "neg")):
        polar = coefficients[kind]
        deviation = ((polar.var(ddof=0) + neutral.var(ddof=0)) / 2) ** 0.5
        distances[name] = (polar.mean() - neutral.mean()) / max(deviation, 1e-12)
    return distances


def measure_deep(
    model: PreTrainedModel, processor: Processor, test: Dataset, max_length: int | None
) -> dict[str, float]:
    """Kendall's tau of contributions, and of attention of the last layer, with the effects of erasure.

    Args:
        model, processor: a text or image classifier, BERT or ViT, with its tokenizer or image processor.
        test: examples with the column `text` or `image`; labels are not used.
        max_length: maximum tokens per text; None means the model's maximum.
    """
    numbers: Numbers = defaultdict(list)
    batches = list(deep_batches(processor, test, max_length))
    for inputs in batches:
        target = model(**inputs).logits.argmax(-1)
        names = ("contributions", "attention", "erasure")
        scores = {name: token_scores(model, inputs, name, target).detach() for name in names}
        length = scores["erasure"].shape[-1]
        keep = keep_mask_of(inputs, length) & ~special_tokens(model, inputs, length)
        for name, taus in deep_taus(scores, keep).items():
            numbers[name] += taus
    means = {name: float(np.nanmean(values)) for name, values in numbers.items()}
    return means | {"negative_share": negative_share(model, batches)}


def deep_taus(scores: Mapping[str, Tensor], keep: Tensor) -> Numbers:
    """Kendall's tau per example with "erasure": "tau_X" of signed scores X, "tau_|X|" of magnitudes."""
    effects, magnitudes = (kept_rows(effect, keep) for effect in (scores["erasure"], scores["erasure"].abs()))
    taus = {"tau_contributions": kendall_tau(kept_rows(scores["contributions"], keep), effects).tolist()}
    for name in ("contributions", "attention"):  # attention has no sign here
        taus[f"tau_|{name}|"] = kendall_tau(kept_rows(scores[name].abs(), keep), magnitudes).tolist()
    return taus


def deep_batches(processor: Processor, test: Dataset, max_length: int | None) -> Iterator[dict[str, Tensor]]:
    """Model inputs of the sampled test examples, padded, `DEEP_BATCH` at a time."""
    chosen = sample(test, DEEP)
    options = {"padding": True, "truncation": True, "max_length": max_length, "return_token_type_ids": False}
    for start in range(0, len(chosen), DEEP_BATCH):
        part = chosen.select(range(start, min(start + DEEP_BATCH, len(chosen))))
        if "image" in test.column_names:
            yield {"pixel_values": ImageCollator(processor)(list(part))["pixel_values"]}
        else:
            yield dict(processor(part["text"][:], return_tensors="pt", **options))


def special_tokens(model: PreTrainedModel, inputs: dict[str, Tensor], length: int) -> Tensor:
    """Mask of the tokens that are neither words nor patches, boolean `[batch, length]`: the first and last token of a
    text, and the tokens before the patches of an image."""
    if "pixel_values" in inputs:
        return before_patches(model, inputs["pixel_values"], length)
    positions, lengths = torch.arange(length), inputs["attention_mask"].sum(1, keepdim=True)
    return (positions == 0) | (positions == lengths - 1)
