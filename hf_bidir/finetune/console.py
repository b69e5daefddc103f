"""What a run prints: a line per evaluation, and a summary at the end."""

from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import (
    PreTrainedModel,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import has_length
from transformers.utils import logging

from hf_bidir.checkpoints.kinds import kind_of
from hf_bidir.common.statistics import rounded
from hf_bidir.finetune.metrics import HEADLINES

SHOWN = ("loss", *HEADLINES)
LONG_EVALUATION = 3.0  # seconds
NEXT = {
    "text-classification": 'hf-bidir explain {folder} "a text of your own"',
    "image-classification": "hf-bidir explain {folder} IMAGE",
    "text-generation": 'hf-bidir explain {folder} "the beginning of a text"',
    "text2text-generation": 'hf-bidir explain {folder} "a source of your own"',
}
FINE_TUNE = "python training/{script}.py --model_name_or_path {folder} --train_file TRAIN --output_dir ANOTHER_FOLDER"


class EvaluationLines(TrainerCallback):
    """Prints a line per evaluation during training, or per epoch where there is no evaluation.

    The line has the epoch, the last logged training loss, the validation metrics, the learning rate, and `λ` where a
    schedule changes it. Only the main process prints.
    """

    def __init__(self) -> None:
        self.latest: dict[str, float] = {}
        self.training = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.training = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.training = False

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float],
        **kwargs: Any,
    ) -> None:
        self.latest |= logs

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._print(state)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if args.eval_strategy == "no":
            self._print(state)

    def _print(self, state: TrainerState) -> None:
        if self.training and state.is_world_process_zero:
            tqdm.write(evaluation_line(state.epoch or 0.0, self.latest))


class QuietProgress(ProgressCallback):
    """The Trainer's progress bars, without the logged dictionaries, and without one for saving.

    That of an evaluation appears after `LONG_EVALUATION` seconds.
    """

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        pass

    def on_prediction_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        eval_dataloader: DataLoader | None = None,
        **kwargs: Any,
    ) -> None:
        countable = eval_dataloader is not None and has_length(eval_dataloader)
        if countable and state.is_world_process_zero and self.prediction_bar is None:  # type: ignore[has-type]
            self.prediction_bar = tqdm(
                total=len(eval_dataloader),  # type: ignore[arg-type]
                desc="evaluation",
                leave=False,
                dynamic_ncols=True,
                delay=LONG_EVALUATION,
            )
        super().on_prediction_step(args, state, control, eval_dataloader=eval_dataloader, **kwargs)

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.shows_saving = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        super().on_train_begin(*args, **kwargs)

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        super().on_train_end(*args, **kwargs)
        if self.shows_saving:
            logging.enable_progress_bar()


def print_lines(trainer: Trainer) -> None:
    """Let a Trainer print a line per evaluation in place of every logged dictionary."""
    trainer.remove_callback(PrinterCallback)
    if trainer.pop_callback(ProgressCallback):
        trainer.add_callback(QuietProgress)
    trainer.add_callback(EvaluationLines)


def evaluation_line(epoch: float, logs: dict[str, float]) -> str:
    """The line for the latest value of each logged quantity."""
    metrics = [(f"eval_{name}", f"validation {name.replace('_', ' ')}") for name in SHOWN]
    shown = [("loss", "train loss"), *metrics, ("learning_rate", "learning rate"), ("negative_mass", "λ")]
    values = [f"{label} {logs[key]:.4g}" for key, label in shown if logs.get(key) is not None]
    return f"epoch {epoch:.4g}: {', '.join(values)}"


def summary(folder: Path, results: dict[str, Any], task: str, model: PreTrainedModel) -> str:
    """Where the checkpoint is, its metrics on the test split (or else on validation), and the next command to try."""
    split = "test" if "test_loss" in results else "eval"
    found = {name: results.get(f"{split}_{name}") for name in SHOWN}
    metrics = ", ".join(
        f"{name.replace('_', ' ')} {rounded(value)}" for name, value in found.items() if value is not None
    )
    healed = task == "distillation"
    if healed:
        task = kind_of(model).task
    script = "image_classification" if model.main_input_name == "pixel_values" else "text_classification"
    command = NEXT.get(task, FINE_TUNE).format(folder=folder, script=script)
    if healed and task in NEXT:  # healing has no labels
        measure = "perplexity" if task == "text-generation" else "accuracy"
        command += (
            f"\n      hf-bidir evaluate {folder} --data FILE    # {measure}, and the same without negative coefficients"
        )
    return (
        f"\nFinished. Checkpoint: {folder}\n{'Test' if split == 'test' else 'Validation'}: {metrics}\nNext: {command}"
    )
