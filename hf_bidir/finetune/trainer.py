"""Trainers for signed models."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader
from transformers import EarlyStoppingCallback, Seq2SeqTrainer, Trainer, TrainerCallback
from transformers.trainer_utils import EvalLoopOutput

from hf_bidir.checkpoints.adapters import ADAPTER_WEIGHTS
from hf_bidir.checkpoints.kinds import divides_by_all_labels
from hf_bidir.checkpoints.reading import complete_model
from hf_bidir.common.errors import InputError
from hf_bidir.common.extras import extra
from hf_bidir.finetune.log_entries import LogEntries
from hf_bidir.finetune.schedule import NegativeMassSchedule

with extra("train"):
    from datasets import Dataset

Callback = TypeVar("Callback", bound=TrainerCallback)
LARGEST_LOSS = 700.0  # larger losses overflow exp


class SignedTrainer(Trainer):
    """A Trainer that loads its checkpoints by `from_pretrained`, supports a negative mass schedule, and accepts a
    separate collator for evaluation.

    Since transformers 5.17 the keys of a saved ViT are not those of the ViT in memory. `from_pretrained`
    translates them; the Trainer's own `load_state_dict(..., strict=False)` finds no encoder and only warns:
    resuming and loading the best checkpoint would leave the weights unchanged.

    The Trainer of transformers 5.24 expects of every forward with `**kwargs` that it divides its loss by the number of
    labels in all processes and accumulated batches. Many heads, such as that of BERT, return the mean of their own
    batch instead; their losses and gradients would be added up. Here they are averaged.

    Args:
        eval_collator: makes evaluation batches; None uses `data_collator` for them too.
    """

    data_collator: Callable
    label_smoother: Any

    def __init__(self, *, eval_collator: Callable | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        sharded = getattr(self, "is_distributed_loading_by_transformers", False)  # not in older versions
        if sharded and self.args.load_best_model_at_end:
            raise InputError(
                "a model that transformers has sharded (distributed_config) cannot load its best checkpoint; set "
                "load_best_model_at_end to false"
            )
        model = self.accelerator.unwrap_model(self.model)
        model = model.get_base_model() if hasattr(model, "peft_config") else model
        if not divides_by_all_labels(model):
            self.model_accepts_loss_kwargs = False
        if self.label_smoother and getattr(model.config, "attn_selection", None) == "hard":
            raise InputError(
                "label_smoothing_factor replaces the loss by which hard selection learns; leave out one of the two"
            )
        self.train_collator = self.data_collator
        self.eval_collator = eval_collator or self.data_collator

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers."""
        try:
            return super().train(*args, **kwargs)
        finally:
            for callback in self._log_entries():
                callback.release()

    def _init_training_state(self, max_steps: int, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """As in transformers.

        On resume transformers compares `logging_steps` with the checkpoint's number of steps, and reports a share as a
        difference; shares are replaced by numbers for the duration of the call.
        """
        given = {name: getattr(self.args, name) for name in ("logging_steps", "eval_steps", "save_steps")}
        shares = {name: share for name, share in given.items() if share is not None and share < 1}
        try:
            for name, share in shares.items():
                setattr(self.args, name, math.ceil(max_steps * share))
            return super()._init_training_state(max_steps, *args, **kwargs)
        finally:
            for name, share in shares.items():
                setattr(self.args, name, share)

    def get_train_dataloader(self) -> DataLoader:
        self.data_collator = self.train_collator
        return super().get_train_dataloader()

    def get_eval_dataloader(self, eval_dataset: Dataset | str | None = None) -> DataLoader:
        """Every row of the data set, also with `dataloader_drop_last`, which is for training."""
        self.data_collator = self.eval_collator
        # with persistent workers the Trainer keeps the loader of one data set, and returns it for every later one
        self.__dict__.pop("_eval_dataloaders", None)
        drops_last, self.args.dataloader_drop_last = self.args.dataloader_drop_last, False
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.args.dataloader_drop_last = drops_last

    def get_test_dataloader(self, test_dataset: Dataset) -> DataLoader:
        return self.get_eval_dataloader(test_dataset)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """As in transformers; losses are those of the model, because smoothing of labels is for training."""
        smoother, self.label_smoother = self.label_smoother, None
        try:
            return super().evaluation_loop(*args, **kwargs)
        finally:
            self.label_smoother = smoother

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if not math.isfinite(logs.get("loss", 0.0)):
            raise InputError(
                f"the training loss became {logs['loss']} before step {self.state.global_step}, and the weights may be "
                "invalid too; choose a smaller --learning_rate, a longer --warmup_ratio or a smaller --max_grad_norm"
            )
        logs = dict(logs)  # the metrics that `evaluate` returns
        for callback in self._log_entries():
            callback.add(self.model, logs)  # before loggers such as TensorBoard get the entry
        super().log(logs, *args, **kwargs)

    def _log_entries(self) -> list[LogEntries]:
        return [callback for callback in self.callback_handler.callbacks if isinstance(callback, LogEntries)]

    def _callback(self, kind: type[Callback]) -> Callback | None:
        return next((callback for callback in self.callback_handler.callbacks if isinstance(callback, kind)), None)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        # Before a schedule ends, a checkpoint is closer to softmax than requested.
        if (schedule := self._callback(NegativeMassSchedule)) and not schedule.has_arrived(self.state):
            return False
        try:
            better = super()._determine_best_metric(metrics, trial)
        except KeyError as error:  # an unknown metric, of which transformers lists the known ones
            raise InputError(error.args[0]) from error
        return better or self._breaks_tie(metrics)

    def _breaks_tie(self, metrics: dict[str, float]) -> bool:
        """With early stopping, and for a fine-tuned checkpoint, let the lower loss decide between equal scores: on a
        small data set the first perfect score comes long before the model is certain of its predictions."""
        name = f"eval_{(self.args.metric_for_best_model or 'loss').removeprefix('eval_')}"
        fine_tuned = getattr(self.args, "typed", {}).get("model_name_or_path")
        if not (fine_tuned or self._callback(EarlyStoppingCallback)) or metrics.get(name) != self.state.best_metric:
            return False
        best_step = self.state.best_global_step
        best = next(log for log in self.state.log_history if log["step"] == best_step and "eval_loss" in log)
        if metrics["eval_loss"] >= best["eval_loss"]:
            return False
        self.state.best_global_step = self.state.global_step
        return True

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        super()._save(output_dir, state_dict)
        # An unused pickle of all options, tokens included; run.json is the record.
        Path(output_dir or self.args.output_dir, "training_args.bin").unlink(missing_ok=True)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:  # their checkpoints keep the names in memory
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        else:
            self._load_weights(resume_from_checkpoint)

    def _load_best_model(self) -> None:
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            super()._load_best_model()
        else:
            self._load_weights(self.state.best_model_checkpoint)

    def _load_weights(self, checkpoint: str) -> None:
        model = self.accelerator.unwrap_model(self.model)
        if hasattr(model, "peft_config"):
            from peft import set_peft_model_state_dict

            set_peft_model_state_dict(model, load_file(Path(checkpoint, ADAPTER_WEIGHTS)))
            return
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


class SignedSeq2SeqTrainer(SignedTrainer, Seq2SeqTrainer):
    """`SignedTrainer` for generative models: it evaluates generated text."""
