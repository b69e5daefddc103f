"""How the paper trains deep models: classes and masked words together, and images changed by timm."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from timm.data import create_transform
from timm.data.random_erasing import RandomErasing
from torch import Tensor, nn
from torch.nn import functional as F

from hf_bidir.common.images import open_image
from hf_bidir.finetune.data.image_data import ImageCollator, batch_generator
from hf_bidir.finetune.data.text_data import MaskingCollator
from hf_bidir.finetune.trainer import SignedTrainer

MASKED_WORDS = "masked_words"
SIZE = 224  # required by timm; without cropping it only bounds translations in pixels, which RandAugment does not use


def trainer_of(given: dict[str, Any]) -> partial | None:
    """The trainer for the options of this file, which are taken out of `given`; None without any."""
    weight = given.pop("masked_lm_weight", None)
    policy, erase = given.pop("augment", None), given.pop("erase", 0.0)
    if weight:
        return partial(JointTrainer, masked_lm_weight=weight)
    return partial(TimmTrainer, policy=policy, erase=erase) if policy or erase else None


@dataclass
class JointCollator(MaskingCollator):
    """Masks labelled texts: `labels` are the classes, `masked_words` the masked tokens to predict."""

    def __call__(self, examples: list[dict]) -> dict:
        batch = super().__call__([{k: v for k, v in example.items() if k != "label"} for example in examples])
        words = batch["labels"]
        classes = words.new_tensor([example["label"] for example in examples])
        return {**batch, "labels": classes, MASKED_WORDS: words}


class JointTrainer(SignedTrainer):
    """Trains a classifier that also predicts masked words, a joint task as in BERT's pre-training (Devlin et al. 2019).

    The output layer for words is the tied embedding (Press and Wolf 2017), so the classifier gets no
    further weights. The loss is that of the classes plus `masked_lm_weight` times that of the words.
    """

    def __init__(self, *, masked_lm_weight: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data_collator = JointCollator(kwargs["processing_class"])
        self.masked_lm_weight = masked_lm_weight

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], return_outputs: bool = False, **kwargs: Any
    ) -> Any:
        words = inputs.pop(MASKED_WORDS, None)
        if words is None:  # an evaluation
            return super().compute_loss(model, inputs, return_outputs, **kwargs)
        loss, outputs = super().compute_loss(model, inputs | {"output_hidden_states": True}, True, **kwargs)
        embedding = self.accelerator.unwrap_model(model).get_input_embeddings().weight
        masked = words != -100
        if masked.any():
            logits = outputs.hidden_states[-1][masked] @ embedding.T
            loss = loss + self.masked_lm_weight * F.cross_entropy(logits, words[masked])
        return (loss, outputs) if return_outputs else loss


class TimmTrainer(SignedTrainer):
    """Trains on images changed by a policy of timm, such as rand-m6-n2 (RandAugment, Cubuk et al. 2020), with
    rectangles erased at random (Zhong et al. 2020)."""

    def __init__(self, *, policy: str | None, erase: float, data_collator: ImageCollator, **kwargs: Any) -> None:
        super().__init__(data_collator=TimmCollator(data_collator, policy, erase), **kwargs)


class TimmCollator:
    """Batches of `collator`, changed the same way for the same batch."""

    def __init__(self, collator: ImageCollator, policy: str | None, erase: float) -> None:
        self.collator, self.policy = collator, policy
        options = {"is_training": True, "color_jitter": None, "separate": True}
        _, self.change, _ = create_transform(SIZE, auto_augment=policy, **options)
        self.erasing = RandomErasing(erase, device="cpu")

    def __call__(self, examples: Sequence[dict]) -> dict[str, Tensor]:
        images = [open_image(example["image"], self.collator.mode) for example in examples]
        generator = batch_generator(image.tobytes() for image in images)
        images = [self.collator.augmented(image, generator) for image in images]
        if self.policy:
            images = self._changed(images, generator)
        changed = [example | {"image": image} for example, image in zip(examples, images, strict=True)]
        batch = ImageCollator(self.collator.processor, mode=self.collator.mode)(changed)
        with seeded(generator):
            batch["pixel_values"] = self.erasing(batch["pixel_values"])
        return batch

    def _changed(self, images: list[Image], generator: torch.Generator) -> list[Image]:
        with seeded(generator):
            return [self.change(image) for image in images]


@contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    """Seed the global generators that timm uses from `generator`, and restore their states afterwards."""
    before, seed = (random.getstate(), np.random.get_state()), int(torch.randint(2**31, (), generator=generator))
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
