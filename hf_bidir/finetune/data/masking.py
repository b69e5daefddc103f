"""Masked language modelling: alone, and beside the classification of the same texts."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase

from hf_bidir.finetune.randomness import batch_generator
from hf_bidir.finetune.trainer import FinetuneTrainer

MASKED_WORDS = "masked_words"


@dataclass
class MaskingCollator:
    """Masks tokens at random, the same ones whenever the same batch comes: so all evaluations mask alike."""

    tokenizer: PreTrainedTokenizerBase
    mask_share: float = 0.15

    def __call__(self, examples: list[dict]) -> dict:
        masking = DataCollatorForLanguageModeling(self.tokenizer, mlm_probability=self.mask_share, seed=0)
        masking.generator = batch_generator(bytes(str(example["input_ids"]), "ascii") for example in examples)
        return masking(examples)


@dataclass
class JointCollator(MaskingCollator):
    """The same for texts with a class: `labels` are classes, `masked_words` the words to guess."""

    def __call__(self, examples: list[dict]) -> dict:
        batch = super().__call__([{k: v for k, v in example.items() if k != "label"} for example in examples])
        words = batch["labels"]
        classes = words.new_tensor([example["label"] for example in examples])
        return {**batch, "labels": classes, MASKED_WORDS: words}


class JointTrainer(FinetuneTrainer):
    """Trains a classifier to guess masked words too, as BERT's pre-training has two tasks (Devlin et al. 2019).

    Words are guessed with the embedding itself as the last layer (Press and Wolf 2017), so that there are no weights
    but the classifier's. The loss is that of the classes plus `masked_lm_weight` times that of the words.
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
