"""One run of the Trainer, from the first step or from where it stopped, to the finished folder."""

import logging
import math
import time
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
from hf_bidir.finetune.curves import save_loss_curve
from hf_bidir.finetune.data.arguments import DataArguments
from hf_bidir.finetune.data.splits import Splits
from hf_bidir.finetune.folder import CURVE, RECORD, RESULTS, checkpoint_to_resume, clear_run
from hf_bidir.finetune.metrics import classification_metrics, headline, predicted_classes
from hf_bidir.finetune.record import begin_record, ending, keep_previous_record
from hf_bidir.finetune.schedule_options import build_schedule, check_checkpoint_schedule
from hf_bidir.finetune.schedules import NegativeMassSchedule
from hf_bidir.finetune.trainer import FinetuneTrainer

logger = logging.getLogger(__name__)

CENTRING_EXAMPLES = 256
STAYS_SOFTMAX = (
    "The negative mass is 0 and stays there, where signed attention equals softmax; --negative_mass_until raises it "
    "during training, and --attn_negative_mass sets it at once."
)


def finetune(
    model: PreTrainedModel,
    splits: Splits,
    *,
    task: str,
    args: RunArguments,
    data: DataArguments,
    given: dict[str, Any],
    processing_class: Any,
    collator: Callable,
    eval_collator: Callable | None = None,
    schedule: ScheduleArguments | None = None,
    centre: bool = False,
    trainer_class: Callable[..., FinetuneTrainer] = FinetuneTrainer,
    afterwards: Callable[[PreTrainedModel], dict[str, Any]] = lambda _: {},
    **trainer_options: Any,
) -> dict[str, Any]:
    """Train, evaluate on validation and test, and write everything to `args.output_dir`.

    The folder then holds the best checkpoint with its tokenizer or image processor and its model code,
    all_results.json, run.json and loss_curve.png. An interrupted run in it is continued.

    Args:
        model: takes what `collator` returns, and has the classes of `splits`.
        splits: tokenized or decodable examples.
        task: the pipeline's name, for the record.
        args, data, given: the run's and the data's options, and all that were given, by name.
        processing_class: the tokenizer or image processor to save beside the model.
        collator: makes a training batch of examples.
        eval_collator: makes an evaluation batch, if that is another thing (no augmentation).
        schedule: how the negative mass moves; None leaves it.
        centre: the weights are those of a softmax model, and are centred if they get negative mass; not where one
            query reads the whole text.
        trainer_class, trainer_options: another Trainer, and what it takes; without options, the metrics of classes.
        afterwards: makes what the record gets of the finished model, beside its numbers.

    Returns:
        What all_results.json holds: `eval_*` (validation), `test_*`, `train_loss`, `epoch` and run times.

    Raises:
        InputError: the output folder is in use (see `checkpoint_to_resume`), or the schedule is not that of the
            checkpoint.
    """
    started, folder = time.monotonic(), Path(args.output_dir)
    moving = build_schedule(schedule, model.config)
    record = begin_record(task, given, data, splits, model, args)
    checkpoint = _begin_folder(record, args, given, moving)
    trainer = trainer_class(
        model=model,
        args=args,
        train_dataset=splits.train,
        eval_dataset=splits.validation,
        processing_class=processing_class,
        data_collator=collator,
        eval_collator=eval_collator,
        callbacks=_callbacks(args, moving),
        **(trainer_options or _classification(splits.names)),
    )
    gets_negative_mass = moving is not None or not is_softmax(model.config)
    if model.config.attn_activation == "tanhmax" and not gets_negative_mass:
        logger.warning(STAYS_SOFTMAX)
    centre = centre and getattr(model, "attends_between_tokens", True)
    if model.config.attn_activation == "tanhmax" and gets_negative_mass and centre and not checkpoint:
        _centre(trainer, splits.train, args)
    trainer.train(resume_from_checkpoint=checkpoint)
    results = _evaluate(trainer, splits)
    trainer.save_model()
    if args.should_save:
        write_json(folder / RESULTS, results)
        record |= ending(trainer.state, args, checkpoint, time.monotonic() - started) | afterwards(model)
        keep_previous_record(given.get("model_name_or_path"), folder)
        _finish_folder(folder, record, trainer.state.log_history)
        print(f"\nFinished {folder}: {headline(results)}.")
    PartialState().wait_for_everyone()
    return results


def _centre(trainer: FinetuneTrainer, train: Dataset, args: RunArguments) -> None:
    sample = train.shuffle(seed=args.seed).select(range(min(CENTRING_EXAMPLES, len(train))))
    try:
        centre_attention(trainer.model, trainer.get_eval_dataloader(sample))
    except ValueError as error:  # such as a model without biases, and none of Llama's has any
        logger.warning("The run starts without centring, which would have brought it nearer to softmax: %s", error)
    else:
        logger.info("Centred keys and values over %s training examples.", len(sample))


def _callbacks(args: RunArguments, schedule: TrainerCallback | None) -> list[TrainerCallback]:
    stopping = [EarlyStoppingCallback(args.early_stopping_patience)] if args.early_stopping_patience else []
    return stopping + ([schedule] if schedule else [])


def _classification(names: list[str]) -> dict[str, Any]:
    return {
        "compute_metrics": classification_metrics(names),
        "preprocess_logits_for_metrics": predicted_classes,
    }


def _evaluate(trainer: Trainer, splits: Splits) -> dict[str, Any]:
    """Validation and test numbers of the model as it is now, and the last training loss that was logged."""
    results = trainer.evaluate(metric_key_prefix="eval")
    if splits.test is not None:
        results |= trainer.evaluate(splits.test, metric_key_prefix="test")
    # the Trainer's own train_loss counts the steps before a resume but not their losses
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    results |= {"epoch": trainer.state.epoch, "train_loss": losses[-1] if losses else None}
    # JSON has neither NaN nor infinity
    return {key: None if isinstance(one, float) and not math.isfinite(one) else one for key, one in results.items()}


def _begin_folder(
    record: dict[str, Any], args: RunArguments, given: dict[str, Any], schedule: NegativeMassSchedule | None
) -> str | None:
    """Write the record of a run that begins, and return the checkpoint to continue from, if there is one."""
    checkpoint = checkpoint_to_resume(args, record, given.get("model_name_or_path"))
    check_checkpoint_schedule(schedule, checkpoint)
    PartialState().wait_for_everyone()  # everyone has judged the folder before one writes to it
    if args.should_save:
        folder = Path(args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        if args.overwrite_output_dir:
            clear_run(folder)
        write_json(folder / RECORD, record)
    if checkpoint:
        logger.warning("Continuing from %s.", checkpoint)
    return checkpoint


def _finish_folder(folder: Path, record: dict[str, Any], log_history: list[dict[str, Any]]) -> None:
    """Draw the losses; the record, which says "finished", comes last."""
    save_loss_curve(log_history, folder / CURVE, title=folder.name)
    write_json(folder / RECORD, record)
