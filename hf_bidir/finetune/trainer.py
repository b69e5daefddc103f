"""Trainers for signed models."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer
from transformers.trainer_utils import EvalLoopOutput

from hf_bidir.checkpoints.kinds import divides_by_all_labels
from hf_bidir.checkpoints.reading import complete_model
from hf_bidir.common.errors import InputError

LARGEST_LOSS = 700.0  # larger losses overflow exp


class SignedTrainer(Trainer):
    """A Trainer that loads its checkpoints by `from_pretrained`, and accepts a separate collator for evaluation.

    Since transformers 5.17 the keys of a saved ViT are not those of the ViT in memory. `from_pretrained` translates
    them; the Trainer's own `load_state_dict(..., strict=False)` finds no encoder and only warns: resuming and loading
    the best checkpoint would leave the weights unchanged.

    The Trainer of transformers 5.24 expects of every forward with `**kwargs` that it divides its loss by the number of
    labels in all processes and accumulated batches. Many heads, such as that of BERT, return the mean of their own
    batch instead; their losses and gradients would be added up. Here they are averaged.

    Its log has λ (`negative_mass`) beside each loss.

    Args:
        eval_collator: makes evaluation batches; None uses `data_collator` for them too.
    """

    data_collator: Callable
    label_smoother: Any

    def __init__(self, *, eval_collator: Callable | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.eval_collator = eval_collator or self.data_collator
        model = self.accelerator.unwrap_model(self.model)
        model = model.get_base_model() if hasattr(model, "peft_config") else model
        if self.label_smoother and getattr(model.config, "attn_selection", None) == "hard":
            raise InputError(
                "label_smoothing_factor replaces the loss by which hard selection learns; leave out one of the two"
            )
        if not divides_by_all_labels(model):
            self.model_accepts_loss_kwargs = False

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """As in transformers, with `eval_collator`."""
        train_collator, self.data_collator = self.data_collator, self.eval_collator
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.data_collator = train_collator

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        return self.get_eval_dataloader(test_dataset)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """As in transformers; losses are those of the model, because smoothing of labels is for training."""
        smoother, self.label_smoother = self.label_smoother, None
        try:
            return super().evaluation_loop(*args, **kwargs)
        finally:
            self.label_smoother = smoother

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As in transformers, with λ beside each loss.

        Raises:
            InputError: the training loss is not finite.
        """
        loss = logs.get("loss", 0.0)
        if not math.isfinite(loss):
            raise InputError(
                f"the training loss became {loss} before step {self.state.global_step}, and the weights may be "
                "invalid too; choose a smaller --learning_rate, a longer --warmup_ratio or a smaller --max_grad_norm"
            )
        negative_mass = getattr(self.accelerator.unwrap_model(self.model).config, "attn_negative_mass", None)
        if "loss" in logs and isinstance(negative_mass, int | float):
            logs["negative_mass"] = float(negative_mass)
        return super().log(logs, *args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As in transformers, without its unused pickle of all options, which has tokens too."""
        super().save_model(output_dir, _internal_call)
        Path(output_dir or self.args.output_dir, "training_args.bin").unlink(missing_ok=True)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if self._keeps_names():
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        else:
            self._load_weights(resume_from_checkpoint)

    def _load_best_model(self) -> None:
        if self._keeps_names():
            super()._load_best_model()
        else:
            self._load_weights(self.state.best_model_checkpoint)

    def _keeps_names(self) -> bool:
        """Whether saved weights have their names in memory: of adapters, FSDP, DeepSpeed and sharded models."""
        adapted = hasattr(self.model, "peft_config")
        sharded = getattr(self, "is_distributed_loading_by_transformers", False)  # not in older versions
        return adapted or sharded or self.is_fsdp_enabled or self.is_deepspeed_enabled

    def _load_weights(self, checkpoint: str) -> None:
        model = self.accelerator.unwrap_model(self.model)
        saved = complete_model(type(model), checkpoint)
        model.load_state_dict(saved.state_dict())
        # restore the negative mass of these weights, which a schedule may have changed since
        model.config.attn_negative_mass = saved.config.attn_negative_mass


class CausalTrainer(SignedTrainer):
    """`SignedTrainer` whose evaluation adds the perplexity: e to the mean loss per token."""

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        loss = output.metrics[f"{metric_key_prefix}_loss"]
        output.metrics[f"{metric_key_prefix}_perplexity"] = math.exp(loss) if loss < LARGEST_LOSS else math.inf
        return output
