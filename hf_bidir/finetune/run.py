"""One run of the Trainer: start or resume, train, evaluate, and save the folder."""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate import PartialState
from datasets import Dataset
from transformers import EarlyStoppingCallback, PreTrainedModel, Trainer, TrainerCallback

from hf_bidir.checkpoints.centring import centre_attention
from hf_bidir.checkpoints.convert import is_softmax
from hf_bidir.common.files import write_json
from hf_bidir.finetune.arguments import RunArguments, ScheduleArguments
from hf_bidir.finetune.console import print_lines, summary
from hf_bidir.finetune.curves import save_loss_curve
from hf_bidir.finetune.data.arguments import DataArguments, UnlabelledDataArguments
from hf_bidir.finetune.data.splits import Splits
from hf_bidir.finetune.folder import CURVE, RECORD, RESULTS, checkpoint_to_resume, clear_run
from hf_bidir.finetune.metrics import classification_metrics, predicted_classes
from hf_bidir.finetune.record import begin_record, ending, keep_previous_record, size
from hf_bidir.finetune.schedule_options import build_schedule, check_checkpoint_schedule
from hf_bidir.finetune.schedules import NegativeMassSchedule
from hf_bidir.finetune.scratch import set_scratch_duration
from hf_bidir.finetune.threads import suitable_threads
from hf_bidir.finetune.trainer import FinetuneTrainer
from hf_bidir.modeling.activations import WITH_NEGATIVE_MASS

logger = logging.getLogger(__name__)

CENTRING_EXAMPLES = 256
STAYS_SOFTMAX = (
    "The negative mass is 0 and stays 0, so signed attention equals softmax; --negative_mass_until raises it during "
    "training, and --attn_negative_mass sets it at once."
)
BASE_IS_SOFTMAX = "The negative mass of the base model is 0: its attention equals softmax, and an adapter keeps it."


def finetune(
    model: PreTrainedModel,
    splits: Splits,
    *,
    task: str,
    args: RunArguments,
    data: DataArguments | UnlabelledDataArguments,
    given: dict[str, Any],
    processing_class: Any,
    collator: Callable,
    eval_collator: Callable | None = None,
    schedule: ScheduleArguments | None = None,
    centre: bool = False,
    trainer_class: Callable[..., FinetuneTrainer] = FinetuneTrainer,
    extra_record: Callable[[PreTrainedModel], dict[str, Any]] = lambda _: {},
    **trainer_options: Any,
) -> dict[str, Any]:
    """Train, evaluate on validation and test, and save everything in `args.output_dir`.

    The folder then holds the best checkpoint with its tokenizer or image processor and its model code,
    all_results.json, run.json and loss_curve.png. A run that was interrupted in this folder is continued. A new model
    trains until validation stops improving unless an option says how long (see `set_scratch_duration`).

    Args:
        model: takes the batches of `collator`, and has the classes of `splits`.
        splits: tokenized or decodable examples.
        task: the pipeline's name, for the record.
        args, data, given: the options of the run and of the data, and all options that the user gave, by name.
        processing_class: the tokenizer or image processor to save beside the model.
        collator: makes training batches.
        eval_collator: makes evaluation batches if they differ (no augmentation).
        schedule: how the negative mass changes; None keeps it.
        centre: whether the weights are those of a softmax model, to be centred if they get negative mass. Models
            whose attention has a single query for the whole text are never centred.
        trainer_class, trainer_options: another Trainer, and its arguments; the default computes metrics of classes.
        extra_record: returns further entries of the record, from the trained model.

    Returns:
        The content of all_results.json: `eval_*` (validation), `test_*`, `train_loss`, `epoch` and run times.

    Raises:
        InputError: the output folder is in use (see `checkpoint_to_resume`), or the schedule differs from the
            checkpoint's.
    """
    started, folder = time.monotonic(), Path(args.output_dir)
    chosen = [name for name, one in given.items() if one is not None]
    if note := set_scratch_duration(args, task, chosen, len(splits.train)):
        logger.warning(note)
        splits.notes.append(note)
    with suitable_threads(model, args):
        mass_schedule = build_schedule(schedule, model.config)
        record = begin_record(task, given, data, splits, model, args)
        checkpoint = _begin_folder(record, args, given, mass_schedule)
        trainer = trainer_class(
            model=model,
            args=args,
            train_dataset=splits.train,
            eval_dataset=splits.validation,
            processing_class=processing_class,
            data_collator=collator,
            eval_collator=eval_collator,
            callbacks=_callbacks(args, mass_schedule),
            **(trainer_options or _classification_options(splits.names)),
        )
        print_lines(trainer)
        _prepare_attention(trainer, splits.train, mass_schedule, centre and not checkpoint)
        trainer.train(resume_from_checkpoint=checkpoint)
        results = _evaluate(trainer, splits)
        _warn_if_constant(splits, results)
        trainer.save_model()
        if args.should_save:
            # the Trainer sets special tokens in the configs, which an adapter's record has
            record |= size(model) | extra_record(model)
            record |= ending(trainer.state, args, checkpoint, time.monotonic() - started)
            keep_previous_record(given.get("model_name_or_path"), folder)
            _finish_folder(folder, record, results, trainer.state.log_history)
            print(summary(folder, results, task, model))
    PartialState().wait_for_everyone()
    return results


def _prepare_attention(
    trainer: FinetuneTrainer, train: Dataset, schedule: NegativeMassSchedule | None, centre: bool
) -> None:
    """Centre weights that get negative mass, if asked to; warn where TanhMax never gets any."""
    model = trainer.model
    if model.config.attn_activation not in WITH_NEGATIVE_MASS:
        return
    if schedule is None and is_softmax(model.config):
        logger.warning(BASE_IS_SOFTMAX if hasattr(model, "peft_config") else STAYS_SOFTMAX)
    elif centre and getattr(model, "attends_between_tokens", True):
        _centre(trainer, train)


def _centre(trainer: FinetuneTrainer, train: Dataset) -> None:
    sample = train.shuffle(seed=trainer.args.seed).select(range(min(CENTRING_EXAMPLES, len(train))))
    try:
        centre_attention(trainer.model, trainer.get_eval_dataloader(sample))
    except ValueError as error:  # a model without biases, such as Llama, cannot be centred
        logger.warning("Training starts without centring, so it starts further from the softmax model: %s", error)
    else:
        logger.info("Centred keys and values over %s training examples.", len(sample))


def _callbacks(args: RunArguments, schedule: TrainerCallback | None) -> list[TrainerCallback]:
    stopping = [EarlyStoppingCallback(args.early_stopping_patience)] if args.early_stopping_patience else []
    return stopping + ([schedule] if schedule else [])


def _classification_options(names: list[str]) -> dict[str, Any]:
    return {
        "compute_metrics": classification_metrics(names),
        "preprocess_logits_for_metrics": predicted_classes,
    }


def _evaluate(trainer: Trainer, splits: Splits) -> dict[str, Any]:
    """Metrics on validation and test, and the last logged training loss."""
    trainer.remove_callback(EarlyStoppingCallback)  # training is over; it would look for eval_* among test_*
    results = trainer.evaluate(metric_key_prefix="eval")
    if splits.test is not None:
        results |= trainer.evaluate(splits.test, metric_key_prefix="test")
    # the Trainer's own train_loss counts the steps before a resume but not their losses
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    results |= {"epoch": trainer.state.epoch, "train_loss": losses[-1] if losses else None}
    # JSON has neither NaN nor infinity
    return {key: None if isinstance(one, float) and not math.isfinite(one) else one for key, one in results.items()}


def _warn_if_constant(splits: Splits, results: dict[str, Any]) -> None:
    """Warn about a classifier that is not more accurate than always predicting the largest class."""
    if not splits.names or "eval_accuracy" not in results:
        return
    counts = Counter(splits.validation["label"])
    largest, rows = max(counts.values()), len(splits.validation)
    if results["eval_accuracy"] <= largest / rows:
        note = (
            f"The validation accuracy, {results['eval_accuracy']:.4f}, is not above that of always predicting the "
            f"largest class ({largest} of {rows} rows)."
        )
        splits.notes.append(note)  # for the model card
        logger.warning("%s Train longer (--num_train_epochs), with another --learning_rate, or on more data.", note)


def _begin_folder(
    record: dict[str, Any], args: RunArguments, given: dict[str, Any], schedule: NegativeMassSchedule | None
) -> str | None:
    """Save the record of a new run, and return the checkpoint to continue from, if there is one."""
    checkpoint = checkpoint_to_resume(args, record, given.get("model_name_or_path"))
    check_checkpoint_schedule(schedule, checkpoint)
    PartialState().wait_for_everyone()  # all processes check the folder before one changes it
    if args.should_save:
        folder = Path(args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        if args.overwrite_output_dir:
            clear_run(folder)
        write_json(folder / RECORD, record)
    if checkpoint:
        logger.warning("Continuing from %s.", checkpoint)
    return checkpoint


def _finish_folder(
    folder: Path, record: dict[str, Any], results: dict[str, Any], log_history: list[dict[str, Any]]
) -> None:
    """Save the metrics and the loss curve, and last the record, which marks the run as finished."""
    write_json(folder / RESULTS, results)
    save_loss_curve(log_history, folder / CURVE, title=folder.name)
    write_json(folder / RECORD, record)
