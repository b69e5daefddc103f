"""One run of a Trainer in an output folder: started or resumed, trained, evaluated, saved and recorded."""

import logging
import math
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import EarlyStoppingCallback, PreTrainedModel, Trainer

from hf_bidir.checkpoints.centring import centre_attention
from hf_bidir.checkpoints.signing import unsigned
from hf_bidir.common.errors import as_input_error
from hf_bidir.common.files import PREVIOUS, RECORD, read_json, write_json
from hf_bidir.modeling.activations import WITH_NEGATIVE_MASS
from hf_bidir.modeling.configuration_bidir import PREFIX, is_softmax

from .arguments import ScheduleArguments, SourceArguments
from .data.checks import note
from .data.splits import Splits
from .output_folder import checkpoint_to_resume, clear_run
from .record import FEW, FINISHED, RESULTS, begin_record, size
from .schedule import schedule_for

logger = logging.getLogger(__name__)

CENTRING_EXAMPLES = 256
STAYS_SOFTMAX = (
    "The negative mass is 0 and stays 0, so signed attention equals softmax; --negative_mass_until raises it during "
    "training, and --attn_negative_mass sets it at once. A stock checkpoint is then saved as a stock checkpoint."
)


class Run:
    """A run of a Trainer in `args.output_dir`.

        trainer = SignedTrainer(model=model, args=args, train_dataset=splits.train, eval_dataset=splits.validation)
        results = Run(trainer, "text-classification", data, splits, schedule).train_and_save()

    Args:
        trainer: with `RunArguments`; its evaluation data are the validation split.
        task: the pipeline's name, for the record.
        data: the options that name the splits.
        splits: of these, the test split is evaluated once after training.
        schedule: the options of a negative mass schedule.

    Attributes:
        record: the content of run.json.

    Raises:
        InputError: the schedule cannot be used.
    """

    def __init__(
        self,
        trainer: Trainer,
        task: str,
        data: SourceArguments,
        splits: Splits,
        schedule: ScheduleArguments | None = None,
    ) -> None:
        self.trainer, self.args, self.splits = trainer, trainer.args, splits
        self.model: PreTrainedModel = trainer.model
        self.folder = Path(self.args.output_dir)
        self.record = begin_record(task, data, splits, self.model, self.args)
        self.schedule = schedule_for(schedule, self.model.config) if schedule else None
        if self.schedule:
            trainer.add_callback(self.schedule)
        if self.args.early_stopping_patience and self.args.eval_strategy != "no":
            trainer.add_callback(EarlyStoppingCallback(self.args.early_stopping_patience))

    def train_and_save(self, *, centre: bool = False) -> dict[str, Any]:
        """Train, evaluate on validation and test, and save everything in the output folder.

        It then holds the best checkpoint with its tokenizer or image processor and its model code, all_results.json,
        and last run.json, which marks the run as finished. A stock checkpoint that stayed softmax is saved as a stock
        one, without code.

        Args:
            centre: whether the weights are those of a softmax model, to be centred if they get negative mass. Models
                whose attention has a single query for the whole text are never centred.

        Returns:
            The content of all_results.json: `eval_*` (validation), `test_*`, `epoch` and run times.

        Raises:
            InputError: the folder cannot be used or holds another run; see `checkpoint_to_resume`.
        """
        with as_input_error("cannot use the output folder: ", OSError, ValueError):
            checkpoint = checkpoint_to_resume(self.args, self.record)
            PartialState().wait_for_everyone()  # until all processes have checked the folder
            if self.args.should_save:
                if self.args.overwrite_output_dir:
                    clear_run(self.folder)
                write_json(self.folder / RECORD, self.record)
        if checkpoint:
            logger.warning("Continuing from %s.", checkpoint)
        elif centre:
            self._centre()
        self._train(checkpoint)
        results = self._evaluate()
        self.trainer.save_model()
        if self.args.should_save:
            self._finish(results)
        PartialState().wait_for_everyone()
        return results

    def _centre(self) -> None:
        """Centre the attention of weights that have or get negative mass."""
        between_tokens = getattr(self.model, "attends_between_tokens", True)
        if self._stays_softmax() or not between_tokens or self.model.config.attn_activation not in WITH_NEGATIVE_MASS:
            return
        train = self.splits.train.shuffle(seed=self.args.seed)
        sample = train.select(range(min(CENTRING_EXAMPLES, len(train))))
        try:
            centre_attention(self.model, self.trainer.get_eval_dataloader(sample))
        except ValueError as error:  # a model without biases, such as Llama, cannot be centred
            logger.warning("Training starts without centring, further from the softmax model: %s", error)

    def _stays_softmax(self) -> bool:
        return self.schedule is None and is_softmax(self.model.config)

    def _train(self, checkpoint: str | None) -> None:
        if self._stays_softmax() and self.model.config.attn_activation in WITH_NEGATIVE_MASS:
            logger.warning(STAYS_SOFTMAX)
        # the config of a checkpoint names the class that it was saved as
        saved_as = self.model.config.architectures or [PREFIX]
        was_stock = not any(name.startswith(PREFIX) for name in saved_as)
        done = self.trainer.train(resume_from_checkpoint=checkpoint)
        best = self.trainer.state.best_model_checkpoint if self.args.load_best_model_at_end else None
        self.record |= {
            "best_checkpoint": best and Path(best).name,
            "resumed_from": checkpoint and Path(checkpoint).name,
            "duration_seconds": done.metrics["train_runtime"],
        }
        if was_stock and is_softmax(self.model.config) and not (self.args.fsdp or self.args.deepspeed):
            unsigned(self.model)

    def _evaluate(self) -> dict[str, Any]:
        """Metrics on validation and test."""
        self.trainer.remove_callback(EarlyStoppingCallback)  # training is over
        results = self.trainer.evaluate(metric_key_prefix="eval")
        if self.splits.test is not None:
            results |= self.trainer.evaluate(self.splits.test, metric_key_prefix="test")
        self.trainer.log_metrics("all", results)
        if (rows := len(self.splits.validation)) < FEW:
            note(self.splits.notes, f"The metrics of validation are over {rows} examples, too few to rely on.")
        # JSON has neither NaN nor infinity
        infinite = [key for key, value in results.items() if not math.isfinite(value)]
        return results | dict.fromkeys(infinite)

    def _finish(self, results: dict[str, Any]) -> None:
        """Save earlier records, the metrics, and last the record, which marks a finished run."""
        source = self.args.typed.get("model_name_or_path")
        if source and Path(source, RECORD).is_file():
            write_json(self.folder / PREVIOUS, read_json(Path(source, RECORD)))
        write_json(self.folder / RESULTS, results)
        # the Trainer sets special tokens in the configs, which an adapter's record has
        self.record |= size(self.model) | {"status": FINISHED}
        write_json(self.folder / RECORD, self.record)
