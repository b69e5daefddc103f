"""CardCallback: the record of a user's own Trainer for the card."""

import json
import socket

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification
from hf_bidir.hub import CardCallback, build_model_card


def trainer_in(folder, *callbacks):
    """The stock Trainer with the callback, on ten rows of noise."""
    torch.manual_seed(0)
    config = BidirBertConfig(
        vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8,
        id2label={0: "bad", 1: "good"}, label2id={"bad": 0, "good": 1},
    )  # fmt: skip
    rows = [{"input_ids": torch.randint(8, (4,)), "labels": torch.tensor(row % 2)} for row in range(10)]
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=4, learning_rate=0.5, eval_strategy="steps", eval_steps=1, save_steps=1,
        load_best_model_at_end=True, report_to="none", seed=3, use_cpu=True, logging_steps=1,
    )  # fmt: skip
    return Trainer(
        BidirBertForSequenceClassification(config), arguments, train_dataset=rows, eval_dataset=rows[:6],
        compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())},
        callbacks=[CardCallback(data={"train": "someone/reviews"}, notes=["Ten rows."]), *callbacks],
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a stock Trainer with the callback: trained, tested and saved."""
    folder = tmp_path_factory.mktemp("runs") / "own"
    trainer = trainer_in(folder)
    trainer.train()
    trainer.evaluated = trainer.evaluate(trainer.train_dataset[6:], metric_key_prefix="test")
    trainer.save_model()
    return folder, trainer


def read(folder, name):
    return json.loads((folder / name).read_text(encoding="utf-8"))


def test_the_card_has_the_numbers_of_the_test_split(folder):
    folder, trainer = folder
    result = build_model_card(folder).data.eval_results[0]
    assert (result.metric_name, result.metric_value) == ("accuracy", trainer.evaluated["test_accuracy"])


def test_validation_numbers_are_those_of_the_best_checkpoint(folder):
    folder, trainer = folder
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert losses[-1] != min(losses), "the last step must not be the best one for this test to mean something"
    assert read(folder, "all_results.json")["eval_loss"] == min(losses)


def test_the_record_has_what_the_trainer_knows(folder):
    record = read(folder[0], "run.json")
    assert (record["status"], record["seed"], record["notes"]) == ("finished", 3, ["Ten rows."])
    assert record["recipe"]["learning_rate"] == 0.5
    assert "weight_decay" not in record["recipe"]  # left at its default
    assert record["data"] == {
        "train": {"source": "someone/reviews", "rows": 10},
        "validation": {"source": "not named", "rows": 6},
        "test": {"source": "not named", "rows": 4},
    }
    assert record["hardware"]["cores"] >= 1
    assert record["duration_seconds"] > 0


def test_no_path_of_this_machine_is_recorded(folder):
    record = (folder[0] / "run.json").read_text()
    assert str(folder[0].parent) not in record
    assert socket.gethostname() not in record


def test_a_training_that_breaks_off_leaves_no_numbers(tmp_path):
    class Broken(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer_in(tmp_path, Broken()).train()
    assert not (tmp_path / "all_results.json").exists()


def test_only_a_base_model_that_was_named_is_one(folder):
    assert build_model_card(folder[0]).data.base_model is None
    assert build_model_card(folder[0]).data.license is None
