"""One run of a Trainer in an output folder: started or resumed, trained, evaluated, saved and recorded."""

import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_utils import IntervalStrategy, SaveStrategy
from transformers.utils.logging import disable_progress_bar

from hf_bidir.checkpoints.centring import centre_attention
from hf_bidir.checkpoints.kinds import kind_of
from hf_bidir.checkpoints.signing import unsigned
from hf_bidir.common.card import rounded
from hf_bidir.common.errors import InputError
from hf_bidir.common.files import PREVIOUS, read_json, write_json
from hf_bidir.finetune.arguments import RunArguments, ScheduleArguments, SourceArguments
from hf_bidir.finetune.data.splits import Splits
from hf_bidir.finetune.log_entries import AttentionLog
from hf_bidir.finetune.metrics import HEADLINES
from hf_bidir.finetune.record import (
    CURVE,
    RECORD,
    RESULTS,
    begin_record,
    checkpoint_to_resume,
    circumstances,
    clear_run,
    ending,
    locked,
    save_loss_curve,
    size,
)
from hf_bidir.finetune.schedule import check_resumed_schedule, schedule_for
from hf_bidir.modeling.activations import WITH_NEGATIVE_MASS
from hf_bidir.modeling.configuration_bidir import PREFIX, is_softmax

logger = logging.getLogger(__name__)

CENTRING_EXAMPLES = 256
STAYS_SOFTMAX = (
    "The negative mass is 0 and stays 0, so signed attention equals softmax; --negative_mass_until raises it during "
    "training, and --attn_negative_mass sets it at once. What a stock checkpoint becomes is saved as a stock one."
)
BASE_IS_SOFTMAX = "The negative mass of the base model is 0: its attention equals softmax, and an adapter keeps it."
SMALL_MODEL, FEW_THREADS = 5_000_000, 2  # parameters; on idle cores two threads are faster than one

# options of the duration of training or the choice of the checkpoint, which turn off `set_scratch_duration`
DURATION = {
    *("num_train_epochs", "max_steps", "early_stopping_patience"),
    *("eval_strategy", "save_strategy", "load_best_model_at_end"),
}
MOST_EPOCHS = {"image-classification": 100, "text-classification": 30, "text2text-generation": 30}
PATIENCE = {"image-classification": 10, "text-classification": 5, "text2text-generation": 5}
FEWEST_STEPS = 20  # between evaluations; a small data set has several epochs between them

SHOWN = ("loss", *HEADLINES)
NEXT = {
    "text-classification": 'hf-bidir explain {folder} "a text of your own"',
    "image-classification": "hf-bidir explain {folder} IMAGE",
    "text-generation": 'hf-bidir explain {folder} "the beginning of a text"',
    "text2text-generation": 'hf-bidir explain {folder} "a source of your own"',
}
FINE_TUNE = "python training/{script}.py --model_name_or_path {folder} --train_file TRAIN --output_dir ANOTHER_FOLDER"


class Run:
    """A run in `args.output_dir`.

    When made it locks the folder until it is trained, and changes nothing else: it refuses a folder that another
    process, another run or other files occupy, and finds the checkpoint of an interrupted run. A new model trains until
    validation stops improving, unless an option says how long (`set_scratch_duration`).

        run = Run("text-classification", model, splits, data, args, schedule)
        results = run.train(SignedTrainer, processing_class=tokenizer, data_collator=collator)

    Args:
        task: the pipeline's name, for the record.
        data, args, schedule: the options; those that the user gave (`args.typed`) are recorded.

    Attributes:
        callbacks: of the Trainer: early stopping, the schedule, `AttentionLog` if there are loggers, and a line per
            evaluation.
        checkpoint: the folder that the run continues from, or None.
        record: the content of run.json.

    Raises:
        InputError: the output folder is in use (see `locked` and `checkpoint_to_resume`), the schedule cannot be used
            or differs from the checkpoint's, or the training rows fill no batch.
    """

    def __init__(
        self,
        task: str,
        model: PreTrainedModel,
        splits: Splits,
        data: SourceArguments,
        args: RunArguments,
        schedule: ScheduleArguments | None = None,
    ) -> None:
        self.task, self.model, self.splits, self.args = task, model, splits, args
        if note := set_scratch_duration(args, task, len(splits.train)):
            splits.note(note)
        rows, least = len(splits.train), args.train_batch_size * args.world_size
        if args.dataloader_drop_last and rows < least:
            raise InputError(
                f"expected at least {least} training rows with --dataloader_drop_last, which fill a batch; got {rows}. "
                "Choose a smaller --per_device_train_batch_size"
            )
        self.schedule = schedule_for(schedule, model.config) if schedule else None
        self.record = begin_record(task, data, splits, model, args, schedule)
        with ExitStack() as lock:
            if args.process_index == 0:
                lock.enter_context(locked(Path(args.output_dir)))
            self.checkpoint = checkpoint_to_resume(args, self.record)
            if self.checkpoint:
                check_resumed_schedule(self.schedule, self.checkpoint)
            self.lock = lock.pop_all()
        # the config of a checkpoint names the class that it was saved as
        names = model.config.architectures or []
        self.from_stock = bool(names) and not any(name.startswith(PREFIX) for name in names)
        patience = args.early_stopping_patience
        stopping: list[TrainerCallback] = [EarlyStoppingCallback(patience)] if patience else []
        logged = [AttentionLog()] if args.report_to else []
        self.callbacks = stopping + ([self.schedule] if self.schedule else []) + logged + [EvaluationLines()]

    def train(
        self,
        trainer_class: Callable[..., Trainer],
        *,
        centre: bool = False,
        extra_record: Callable[[PreTrainedModel], dict[str, Any]] | None = None,
        card: Callable[[str], Path] | None = None,
        picture: Callable[[str, dict[str, Any]], None] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Train, evaluate on validation and test, and save everything in `args.output_dir`.

        The folder then holds the best checkpoint with its tokenizer or image processor and its model code,
        all_results.json, run.json and loss_curve.png. A stock checkpoint that stayed softmax is saved as a stock one,
        without code.

        Args:
            trainer_class: a Trainer.
            centre: whether the weights are those of a softmax model, to be centred if they get negative mass. Models
                whose attention has a single query for the whole text are never centred.
            extra_record: further entries of the record, from the trained model.
            card: writes the model card of the finished folder, `hf_bidir.hub.card.write_card`.
            picture: draws a row of the validation split for that card, `hf_bidir.hub.card_picture.draw_example`.
            options: of the Trainer, beside model, arguments, data sets and callbacks.

        Returns:
            The content of all_results.json: `eval_*` (validation), `test_*`, `train_loss`, `epoch` and run times.
        """
        sets = {"train_dataset": self.splits.train, "eval_dataset": self.splits.validation}
        trainer = trainer_class(model=self.model, args=self.args, callbacks=self.callbacks, **sets, **options)
        started, model = time.monotonic(), trainer.model
        with self.lock, suitable_threads(model, self.args):
            self._begin()
            disable_progress_bar()  # of saving and loading weights, between the lines of epochs
            trainer.remove_callback(PrinterCallback)
            if trainer.pop_callback(ProgressCallback):
                trainer.add_callback(QuietProgress)
            self._prepare_attention(trainer, centre and not self.checkpoint)
            trainer.train(resume_from_checkpoint=self.checkpoint)
            if self.from_stock and is_softmax(model.config) and not (self.args.fsdp or self.args.deepspeed):
                unsigned(model)
            results = self._evaluate(trainer)
            trainer.save_model()
            if self.args.should_save:
                # the Trainer sets special tokens in the configs, which an adapter's record has
                self.record |= size(model) | (extra_record(model) if extra_record else {})
                self.record |= ending(trainer.state, self.args, self.checkpoint, time.monotonic() - started)
                self._finish(results, trainer.state.log_history)
                print(summary(Path(self.args.output_dir), results, self.task, model))
        PartialState().wait_for_everyone()
        if picture and self.args.should_save:
            picture(self.args.output_dir, self.splits.validation[0])
        if card and self.args.should_save:
            print(f"Model card: {card(self.args.output_dir)}")
        return results

    def _begin(self) -> None:
        """Save the record of a run that starts, after all processes have checked the folder."""
        PartialState().wait_for_everyone()
        self.record |= circumstances(self.args)
        if self.args.should_save:
            folder = Path(self.args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            if self.args.overwrite_output_dir:
                clear_run(folder)
            write_json(folder / RECORD, self.record)
        if self.checkpoint:
            logger.warning("Continuing from %s.", self.checkpoint)

    def _prepare_attention(self, trainer: Trainer, centre: bool) -> None:
        """Centre weights that get negative mass, if asked to; warn where TanhMax never gets any."""
        model, train = trainer.model, self.splits.train
        if model.config.attn_activation not in WITH_NEGATIVE_MASS:
            return
        if self.schedule is None and is_softmax(model.config):
            logger.warning(BASE_IS_SOFTMAX if hasattr(model, "peft_config") else STAYS_SOFTMAX)
        elif centre and getattr(model, "attends_between_tokens", True):
            sample: Dataset = train.shuffle(seed=self.args.seed).select(range(min(CENTRING_EXAMPLES, len(train))))
            try:
                centre_attention(model, trainer.get_eval_dataloader(sample))
            except ValueError as error:  # a model without biases, such as Llama, cannot be centred
                logger.warning("Training starts without centring, further from the softmax model: %s", error)

    def _evaluate(self, trainer: Trainer) -> dict[str, Any]:
        """Metrics on validation and test, and the training loss of the last epoch."""
        for callback in (EarlyStoppingCallback, EvaluationLines):  # of training, which is over
            trainer.remove_callback(callback)
        results = trainer.evaluate(metric_key_prefix="eval")
        if self.splits.test is not None:
            results |= trainer.evaluate(self.splits.test, metric_key_prefix="test")
        # the Trainer's own train_loss counts the steps before a resume but not their losses
        results |= {"epoch": trainer.state.epoch, "train_loss": recent_loss(trainer.state.log_history)}
        self._note_majority(results)
        # JSON has neither NaN nor infinity
        infinite = [key for key, value in results.items() if isinstance(value, float) and not math.isfinite(value)]
        return results | dict.fromkeys(infinite)

    def _note_majority(self, results: dict[str, Any]) -> None:
        """Note if a classifier is not more accurate than always predicting the most frequent class."""
        if not self.splits.names or "eval_accuracy" not in results:
            return
        counts, rows = Counter(self.splits.validation["label"]), len(self.splits.validation)
        if results["eval_accuracy"] <= max(counts.values()) / rows:
            self.splits.note(
                f"The validation accuracy, {results['eval_accuracy']:.4f}, is not above that of always predicting the "
                f"most frequent class ({max(counts.values())} of {rows} rows)."
            )
            logger.warning("Train longer (--num_train_epochs), with another --learning_rate, or on more data.")

    def _finish(self, results: dict[str, Any], log_history: list[dict[str, Any]]) -> None:
        """Save the metrics, the loss curve and earlier records, and last the record, which marks a finished run."""
        folder, source = Path(self.args.output_dir), self.args.typed.get("model_name_or_path")
        if source and Path(source, RECORD).is_file():
            write_json(folder / PREVIOUS, read_json(Path(source, RECORD)))
        write_json(folder / RESULTS, results)
        save_loss_curve(log_history, folder / CURVE, title=folder.name)
        write_json(folder / RECORD, self.record)


def set_scratch_duration(args: RunArguments, task: str, examples: int) -> str | None:
    """Let a new model train until validation stops improving, unless an option says how long to train.

    It is evaluated after every epoch, and on small data sets after every `FEWEST_STEPS` steps: a few steps per
    evaluation would end training before it has begun. The learning rate then stays at its peak after the warm-up: a
    rate that falls over all epochs would not have fallen when training stops early.

    Args:
        args: changed in place.
        task: the pipeline's name.
        examples: the number of training examples.

    Returns:
        What was decided, in a sentence; None if nothing was.
    """
    typed = {name for name, value in args.typed.items() if value is not None}
    if "model_name_or_path" in typed or DURATION & typed or task not in MOST_EPOCHS:
        return None
    most, patience, rounds = MOST_EPOCHS[task], PATIENCE[task], "epochs"
    args.num_train_epochs, args.early_stopping_patience = most, patience
    per_step = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    if (steps := math.ceil(examples / per_step)) < FEWEST_STEPS:
        rounds = f"evaluations, one every {FEWEST_STEPS} steps,"
        args.num_train_epochs = math.ceil(most * FEWEST_STEPS / steps)
        args.eval_strategy, args.save_strategy = IntervalStrategy.STEPS, SaveStrategy.STEPS
        args.eval_steps = args.save_steps = FEWEST_STEPS
    if "lr_scheduler_type" not in typed:
        args.lr_scheduler_type = type(args.lr_scheduler_type)("constant_with_warmup")
    if not {"warmup_ratio", "warmup_steps"} & typed:
        args.warmup_steps = 1 / most
    if "logging_steps" not in typed:
        args.logging_steps = 0.5 / most  # two per epoch
    return (
        f"Training stops after {patience} {rounds} without a better validation {args.metric_for_best_model}, and "
        f"after {args.num_train_epochs:.0f} epochs at the latest; --num_train_epochs trains for a fixed time instead."
    )


@contextmanager
def suitable_threads(model: PreTrainedModel, args: TrainingArguments) -> Iterator[None]:
    """Compute with at most two CPU threads if the model is small: synchronising many takes longer than its operations.

    OMP_NUM_THREADS, if set, and a GPU take precedence. The number of threads is restored at the end.
    """
    before, parameters = torch.get_num_threads(), model.num_parameters()
    on_cpu = args.device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ
    if parameters < SMALL_MODEL and before > FEW_THREADS and on_cpu:
        torch.set_num_threads(FEW_THREADS)
        said = "Using %d of %d CPU threads for a model of %s parameters; OMP_NUM_THREADS overrides it."
        logger.warning(said, FEW_THREADS, before, f"{parameters:,}")
    try:
        yield
    finally:
        torch.set_num_threads(before)


class QuietProgress(ProgressCallback):
    """The Trainer's progress bars, one at a time, without the logged dictionaries."""

    def on_prediction_step(self, *args: Any, **kwargs: Any) -> None:
        if self.training_bar is None:
            super().on_prediction_step(*args, **kwargs)

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        pass


class EvaluationLines(TrainerCallback):
    """Prints a line per evaluation during training, or per epoch where there is no evaluation.

    The line has the epoch, `recent_loss`, the validation metrics, the learning rate, and `λ` where a schedule changes
    it. The loss is logged for each line, so that it is the mean of all steps. Only the main process prints.
    """

    def __init__(self) -> None:
        self.latest: dict[str, float] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **kwargs: Any) -> None:
        self.latest |= logs

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_log |= control.should_evaluate

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_log |= control.should_evaluate or args.eval_strategy == "no"

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step and state.is_world_process_zero:  # not before training
            logs = self.latest | {"loss": recent_loss(state.log_history)}
            tqdm.write(evaluation_line(state.epoch or 0.0, logs))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.eval_strategy == "no" and self.latest:  # the loss of the epoch before is logged by now
            self.on_evaluate(args, state, control)

    on_train_end = on_epoch_begin


def recent_loss(log_history: list[dict[str, Any]]) -> float | None:
    """The mean training loss of the last epoch, or since the evaluation before if that is later; None without any.

    A logged loss is the mean since the one before, which may be of a single step.
    """
    losses = [entry for entry in log_history if "loss" in entry]
    if not losses:
        return None
    last = losses[-1]
    earlier = [entry for entry in log_history if entry["step"] < last["step"]]
    starts = [entry["step"] for entry in earlier if "eval_loss" in entry or entry["epoch"] <= last["epoch"] - 1]
    start = max(starts, default=0)
    recent = [entry for entry in losses if entry["step"] > start]
    steps = np.diff([start, *(entry["step"] for entry in recent)])
    return float(np.average([entry["loss"] for entry in recent], weights=steps))


def evaluation_line(epoch: float, logs: dict[str, float | None]) -> str:
    """A line with the latest value of each logged quantity."""
    metrics = [(f"eval_{name}", f"validation {name.replace('_', ' ')}") for name in SHOWN]
    shown = [("loss", "train loss"), *metrics, ("learning_rate", "learning rate"), ("negative_mass", "λ")]
    values = [f"{label} {logs[key]:.4g}" for key, label in shown if logs.get(key) is not None]
    return f"epoch {epoch:.4g}: {', '.join(values)}"


def summary(folder: Path, results: dict[str, Any], task: str, model: PreTrainedModel) -> str:
    """Where the checkpoint is, its metrics on the test split (or else on validation), and the next command to try."""
    split = "test" if "test_loss" in results else "eval"
    values = {name.replace("_", " "): results.get(f"{split}_{name}") for name in SHOWN}
    metrics = ", ".join(f"{name} {rounded(value)}" for name, value in values.items() if value is not None)
    healed = task == "distillation"
    task = kind_of(model).task if healed else task
    script = "image_classification" if model.main_input_name == "pixel_values" else "text_classification"
    command = NEXT.get(task, FINE_TUNE).format(folder=folder, script=script)
    if healed and task in NEXT:  # healing has no labels
        measure = "perplexity" if task == "text-generation" else "accuracy"
        evaluate = f"hf-bidir evaluate {folder} --data FILE    # {measure}, and the same without negative coefficients"
        command += f"\n      {evaluate}"
    title = "Test" if split == "test" else "Validation"
    return f"\nFinished. Checkpoint: {folder}\n{title}: {metrics}\nNext: {command}"
