"""A Trainer callback that records the run for its card."""

import time
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_bidir.common.files import write_json
from hf_bidir.finetune import record
from hf_bidir.finetune.output_folder import MAY_CHANGE

NOT_RECORDED = MAY_CHANGE | {"logging_dir", "resume_from_checkpoint"}  # its default contains the machine's name
SPLITS = {"test_": "test", "eval_": "validation"}  # by the prefix of the metrics


class CardCallback(TrainerCallback):
    """Writes run.json and all_results.json into `args.output_dir`, for `build_model_card`.

    For your own `Trainer`; the training scripts write the same files themselves. The numbers belong to the model at the
    end of training: those of `trainer.evaluate` and `trainer.predict` (with `metric_key_prefix="test"`) after it, or
    else those of the last evaluation, or of the best one with `load_best_model_at_end`.

        trainer = Trainer(model, args, ..., callbacks=[CardCallback(data={"train": "someone/reviews"})])
        trainer.train()
        trainer.evaluate(test, metric_key_prefix="test")
        trainer.save_model()
        build_model_card(args.output_dir).save(f"{args.output_dir}/README.md")

    Args:
        data: where "train", "validation" and "test" come from, preferably a data set's name on the Hub.
        notes: sentences about the data.
        base_model: the Hub's name of the checkpoint that the weights came from.
    """

    def __init__(
        self, data: dict[str, str] | None = None, notes: list[str] | None = None, base_model: str | None = None
    ):
        self.data, self.notes, self.base_model = data or {}, notes or [], base_model
        self.record: dict[str, Any] = {}
        self.results: dict[str, Any] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        self.started, self.resumed = time.monotonic(), args.resume_from_checkpoint if state.global_step else None
        base, self.results = {"base_model": self.base_model} if self.base_model else {}, {}
        self.record = {
            "status": "running",
            "seed": args.seed,
            "recipe": record.publishable(_changed(args) | base),
            "started_from": record.HUB if base else None,  # the Trainer does not know where the weights came from
            "data": {},
            "notes": self.notes,
            "label_names": list(given["model"].config.id2label.values()),
            **record.size(given["model"]),
            **record.circumstances(args),
        }
        self._note_data("train", given.get("train_dataloader"))

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        for prefix, split in SPLITS.items():
            if any(name.startswith(prefix) for name in given["metrics"]):
                self._note_data(split, given.get("eval_dataloader"))
        self.results |= given["metrics"]
        self._write(args, state)

    on_predict = on_evaluate

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.record |= record.ending(state, args, self.resumed, time.monotonic() - self.started)
        if args.load_best_model_at_end and state.best_metric is not None:
            name = f"eval_{args.metric_for_best_model.removeprefix('eval_')}"
            self.results |= next((entry for entry in state.log_history if entry.get(name) == state.best_metric), {})
        self._write(args, state)

    def _note_data(self, split: str, loader: DataLoader | None) -> None:
        if self.record and loader is not None:
            rows = {"rows": len(loader.dataset)} if hasattr(loader.dataset, "__len__") else {}
            self.record["data"][split] = {"source": self.data.get(split, "not named")} | rows

    def _write(self, args: TrainingArguments, state: TrainerState) -> None:
        if self.record.get("status") == record.FINISHED and state.is_world_process_zero:
            folder = Path(args.output_dir)
            write_json(folder / record.RESULTS, self.results)
            write_json(folder / record.RECORD, self.record)


def _changed(args: TrainingArguments) -> dict[str, Any]:
    """The arguments that differ from their defaults and may change a number; nested objects are left out."""
    # a second TrainingArguments to compare with would reset the Trainer's accelerator
    defaults = {field.name: field.default for field in fields(args) if field.name not in NOT_RECORDED}
    given = {name: value for name, value in args.to_dict().items() if name in defaults}
    plain = {name: value for name, value in given.items() if isinstance(value, bool | int | float | str)}
    return {name: value for name, value in plain.items() if value != (defaults[name] or type(value)())}
