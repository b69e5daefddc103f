"""CardCallback: the record of a user's own Trainer for the card."""

import json
import socket

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from hf_bidir import signed
from hf_bidir.hub import CardCallback, build_model_card
from tests.tiny_models import stock_model


def trainer_in(folder, *callbacks):
    """The stock Trainer with the callback, on ten rows of noise."""
    torch.manual_seed(0)
    rows = [{"input_ids": torch.randint(8, (4,)), "labels": torch.tensor(row % 2)} for row in range(10)]
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=4, learning_rate=0.5, eval_strategy="steps", eval_steps=1, save_steps=1,
        load_best_model_at_end=True, report_to="none", seed=3, use_cpu=True, logging_steps=1,
    )  # fmt: skip
    return Trainer(
        signed(stock_model("bert")), arguments, train_dataset=rows, eval_dataset=rows[:6],
        compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())},
        callbacks=[CardCallback(data={"train": "someone/reviews"}, notes=["Ten rows."]), *callbacks],
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a stock Trainer with the callback: trained, tested and saved; its trainer, and the test numbers."""
    folder = tmp_path_factory.mktemp("runs") / "own"
    trainer = trainer_in(folder)
    trainer.train()
    numbers = trainer.evaluate(trainer.train_dataset[6:], metric_key_prefix="test")
    trainer.save_model()
    return folder, trainer, numbers


def test_the_card_has_the_numbers_of_the_test_split_and_names_nothing_that_was_not_given(trained):
    card = build_model_card(trained[0]).data
    result = card.eval_results[0]
    assert (result.metric_name, result.metric_value) == ("accuracy", trained[2]["test_accuracy"])
    assert (card.base_model, card.license) == (None, None)


def test_validation_numbers_are_those_of_the_best_checkpoint(trained):
    losses = [entry["eval_loss"] for entry in trained[1].state.log_history if "eval_loss" in entry]
    assert losses[-1] != min(losses), "the last step must not be the best one for this test to mean something"
    assert json.loads((trained[0] / "all_results.json").read_text())["eval_loss"] == min(losses)


def test_the_record_has_what_the_trainer_knows_and_no_path_of_this_machine(trained):
    text = (trained[0] / "run.json").read_text()
    record = json.loads(text)
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
    assert str(trained[0].parent) not in text
    assert socket.gethostname() not in text


def test_a_training_that_breaks_off_leaves_no_numbers(tmp_path):
    class Broken(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer_in(tmp_path, Broken()).train()
    assert not (tmp_path / "all_results.json").exists()
