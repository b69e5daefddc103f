"""Masked language modelling, alone or jointly with classification of the same texts."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase

from hf_bidir.finetune.data.image_data import batch_generator
from hf_bidir.finetune.trainer import SignedTrainer

MASKED_WORDS = "masked_words"


@dataclass
class MaskingCollator:
    """Masks random tokens; the same batch always gets the same masks, so evaluations are comparable."""

    tokenizer: PreTrainedTokenizerBase
    mask_share: float = 0.15

    def __call__(self, examples: list[dict]) -> dict:
        masking = DataCollatorForLanguageModeling(self.tokenizer, mlm_probability=self.mask_share)
        seed = batch_generator(bytes(str(example["input_ids"]), "ascii") for example in examples).initial_seed()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the accelerators too
            return masking(examples)


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
