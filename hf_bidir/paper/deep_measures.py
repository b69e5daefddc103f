"""What is measured of a classifier of many layers, for texts or images: what its explanations are worth."""

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.explain import token_scores
from hf_bidir.explain.running import keep_mask_of, patch_grid
from hf_bidir.faithfulness import answer_changes, answer_curve, kendall_tau, kept_rows, permuted, randomised
from hf_bidir.finetune.image_data import ImageCollator
from hf_bidir.paper.measures import Amount, negative_share_or_nan

CHANCE = "random"
RANKINGS = ("contributions", "gradient", "rollout", "attention", CHANCE)  # methods of hf_bidir.explain, and chance
SHARES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
BATCH = 50


def measure_deep(
    model: PreTrainedModel, processor, test: Dataset, amount: Amount, max_length: int | None
) -> dict[str, Any]:
    """Everything that the report shows of one model.

    Args:
        model, processor: of a text or image classifier, a BERT or a ViT.
        test: with the column `text` or `image`; labels are not read.
        amount: how much.
        max_length: tokens of a text; None for images.

    Returns:
        Numbers; lists of one number per example for those that have a distribution; and "curves", by way and ranking
        the mean probability of the answer at every share of `SHARES`.
    """
    rows, curves = defaultdict(list), defaultdict(list)
    every = list(batches(processor, test, amount, max_length))
    for index, inputs in enumerate(every):
        special = special_tokens(model, inputs)
        target = model(**inputs).logits.argmax(-1)
        scores = {name: token_scores(model, inputs, name, target).detach() for name in RANKINGS if name != CHANCE}
        scores[CHANCE] = torch.from_numpy(np.random.default_rng(index).random(special.shape, dtype=np.float32))
        for name, ranked in scores.items():
            for how in ("deletion", "insertion"):
                options = {"target": target, "special": special, "progress": False}
                curve = answer_curve(model, inputs, ranked, SHARES, how, **options)
                curves[f"{how} {name}"].append(curve)
                rows[f"{how}_{name}"] += torch.trapezoid(curve, torch.tensor(SHARES), dim=0).div(SHARES[-1]).tolist()
        effect = token_scores(model, inputs, "erasure", target)
        keep = keep_mask_of(inputs, effect.shape[-1]) & ~special
        for name in ("contributions", "gradient", "attention"):
            rows[f"tau_{name}"] += kendall_tau(kept_rows(scores[name], keep), kept_rows(effect, keep)).tolist()
        for name, change in (("permutation", permuted), ("randomisation", randomised)):
            changes = answer_changes(model, inputs, change, draws=amount.deep_draws, progress=False)
            rows[name] += changes.median(0).values.tolist()
    means = {name: torch.cat(parts, 1).mean(1).tolist() for name, parts in curves.items()}
    return dict(rows) | {"curves": means, "negative_share": negative_share_or_nan(model, every)}


def batches(processor, test: Dataset, amount: Amount, max_length: int | None) -> Iterator[dict[str, Tensor]]:
    """The test examples that are measured, as the model reads them, padded, `BATCH` at a time."""
    wanted = amount.images if max_length is None else amount.deep_texts
    chosen = test.shuffle(seed=0).select(range(min(wanted, len(test))))
    for start in range(0, len(chosen), BATCH):
        part = chosen.select(range(start, min(start + BATCH, len(chosen))))
        if max_length is None:
            yield {"pixel_values": ImageCollator(processor)(list(part))["pixel_values"]}
        else:
            options = {"padding": True, "truncation": True, "max_length": max_length, "return_token_type_ids": False}
            yield dict(processor(part["text"][:], return_tensors="pt", **options))


def special_tokens(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    """Which tokens are neither words nor patches, boolean `[batch, length]`: the first and the last of a text, and what
    stands before the patches of an image."""
    if "pixel_values" in inputs:
        length = token_scores(model, inputs, "attention").shape[-1]
        leading = length - math.prod(patch_grid(model, inputs["pixel_values"]))
        return (torch.arange(length) < leading).expand(len(inputs["pixel_values"]), -1)
    positions, lengths = torch.arange(inputs["input_ids"].shape[1]), inputs["attention_mask"].sum(1, keepdim=True)
    return (positions == 0) | (positions == lengths - 1)
