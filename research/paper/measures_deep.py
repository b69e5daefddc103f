"""Measures of deep classifiers of texts or images: the faithfulness of their explanations."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import BaseImageProcessor, PreTrainedModel, PreTrainedTokenizerBase

from hf_bidir.explain import token_scores
from hf_bidir.explain.methods import METHODS, methods_of
from hf_bidir.explain.record import keep_mask_of
from hf_bidir.explain.signs import negative_share
from hf_bidir.finetune.data.image_data import ImageCollator
from research.faithfulness import kendall_tau, kept_rows, prediction_curve
from research.faithfulness.deletion import before_patches
from research.paper.data import sample
from research.paper.experiments import Amount
from research.paper.measures import median_changes

CHANCE = "random"
# methods of explain, of which a model is ranked by those that it supports, and a random one
RANKINGS = ("contributions", "gradient", "grad-cam", "rollout", "attention", CHANCE)
SHARES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
BATCH = 50
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
    methods = [name for name in RANKINGS if name in methods_of(model)]
    every = list(batches(processor, test, amount, max_length))
    for index, inputs in enumerate(every):
        target = model(**inputs).logits.argmax(-1)
        scores = {name: token_scores(model, inputs, name, target).detach() for name in methods}
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


def taus_with(effect: Tensor, scores: dict[str, Tensor], keep: Tensor) -> dict[str, list[float]]:
    """Kendall's tau per example: "tau_X" of signed scores X with the effects of erasure, "tau_|X|" of magnitudes."""
    effects, magnitudes = kept_rows(effect, keep), kept_rows(effect.abs(), keep)
    found = {}
    for name in ("contributions", "gradient", "attention"):
        if METHODS[name].signed:
            found[f"tau_{name}"] = kendall_tau(kept_rows(scores[name], keep), effects).tolist()
        found[f"tau_|{name}|"] = kendall_tau(kept_rows(scores[name].abs(), keep), magnitudes).tolist()
    return found


def batches(processor: Processor, test: Dataset, amount: Amount, max_length: int | None) -> Iterator[dict[str, Tensor]]:
    """Model inputs of the sampled test examples, padded, `BATCH` at a time."""
    images = "image" in test.column_names
    chosen = sample(test, amount.images if images else amount.deep_texts)
    for start in range(0, len(chosen), BATCH):
        part = chosen.select(range(start, min(start + BATCH, len(chosen))))
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
