"""What a Trainer logs about signed attention, in TensorBoard's own files."""

import math

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import Trainer, TrainingArguments
from transformers.integrations import TensorBoardCallback
from transformers.utils import logging

from hf_bidir import AttentionLog, BidirRnnConfig, BidirRnnForSeq2SeqLM, NegativeMassSchedule, signed
from hf_bidir.explain.signs import negative_share
from hf_bidir.finetune.log_entries import FEW, measured
from hf_bidir.finetune.trainer import SignedTrainer
from tests.tiny_models import inputs_of, stock_model

BATCH = inputs_of("bert")
ROWS = [{name: value[row] for name, value in BATCH.items()} | {"labels": row % 2} for row in range(3)]


def trained(folder, callbacks, trainer=SignedTrainer, **options):
    args = TrainingArguments(
        str(folder), per_device_train_batch_size=3, use_cpu=True, disable_tqdm=True, save_strategy="no",
        **{"max_steps": 4, "logging_steps": 2, "report_to": "tensorboard", **options},
    )  # fmt: skip
    model = signed(stock_model("bert"), negative_mass=[1.0, 0.25])
    run = trainer(model=model, args=args, train_dataset=ROWS, eval_dataset=ROWS, callbacks=callbacks)
    run.train()
    return run


@pytest.fixture
def events(tmp_path, monkeypatch):
    """Reads the values that TensorBoard shows, by name and step."""
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))

    def read():
        found = EventAccumulator(str(tmp_path / "events")).Reload()
        return {name: {one.step: one.value for one in found.Scalars(name)} for name in found.Tags()["scalars"]}

    return read


def largest_state(model, batch):
    states = model.eval()(**batch, output_hidden_states=True).hidden_states
    return max(state[batch["attention_mask"].bool()].abs().max().item() for state in states)


def test_tensorboard_shows_mass_shift_share_of_negatives_and_largest_activation_with_every_logged_loss(
    tmp_path, events
):
    model = trained(tmp_path, [AttentionLog()], learning_rate=0.0, eval_strategy="steps", eval_steps=3).model
    expected = {
        "negative_mass": 0.625,
        "negative_mass_layer_0": 1.0,
        "negative_mass_layer_1": 0.25,
        "score_shift": math.log(4) / 4,
        "negative_share": negative_share(model.eval(), [BATCH]),
        "largest_activation": largest_state(model, BATCH),
    }
    shown = events()
    assert set(shown["train/loss"]) == {2, 4}
    for name, value in expected.items():
        assert shown[f"train/{name}"] == pytest.approx(dict.fromkeys((2, 4), value), rel=1e-5), name


@pytest.mark.parametrize("trainer", [Trainer, SignedTrainer])
def test_a_logger_after_the_callback_gets_its_entries_from_any_trainer(trainer, tmp_path, events):
    trained(tmp_path, [AttentionLog(), TensorBoardCallback()], trainer, report_to="none")
    assert set(events()["train/negative_share"]) == {2, 4}


def test_a_plain_trainer_whose_loggers_come_first_warns_and_keeps_the_entries_in_its_history(
    tmp_path, events, monkeypatch
):
    warnings = []
    monkeypatch.setattr(logging.get_logger("hf_bidir.finetune.log_entries"), "warning_once", warnings.append)
    run = trained(tmp_path, [AttentionLog()], Trainer, max_steps=2)
    assert "negative_share" in run.state.log_history[0]
    assert "train/negative_share" not in events()
    assert "callbacks=[AttentionLog(), TensorBoardCallback()]" in warnings[0]


def test_measuring_costs_a_forward_pass_per_logged_loss_and_leaves_the_training_as_it_was(tmp_path):
    weights, calls = [], []

    class Counting(SignedTrainer):
        def __init__(self, **options):
            options["model"].register_forward_hook(lambda *_: calls.append(len(weights)))
            super().__init__(**options)

    for callbacks in ([], [AttentionLog()]):  # the losses of steps 2 and 4 are logged
        schedule = NegativeMassSchedule(end=0.5)
        weights.append(trained(tmp_path, [schedule, *callbacks], Counting, report_to="none").model.state_dict())
    torch.testing.assert_close(*weights, atol=0, rtol=0)  # with dropout
    assert calls.count(1) == calls.count(0) + 2


@pytest.mark.parametrize("family", ["vit", "llama", "bart", "t5"])
def test_every_kind_of_model_is_measured(family):
    model, batch = signed(stock_model(family)), inputs_of(family)
    found = measured(model, (), batch)
    assert found["negative_share"] == pytest.approx(negative_share(model, [batch]))
    assert found["largest_activation"] > 0


def test_a_model_without_signed_attention_is_measured_by_its_largest_activation_alone():
    model = stock_model("bert")
    assert measured(model, (), BATCH) == {"largest_activation": pytest.approx(largest_state(model, BATCH))}
    fields = {"encoder": "gru", "attn_scope": "none", "attn_score": "dot", "decoder_style": "luong"}
    translator = BidirRnnForSeq2SeqLM(BidirRnnConfig(vocab_size=60, **fields))
    assert "negative_share" not in measured(translator, (), inputs_of("t5"))


def test_only_the_first_examples_of_a_batch_are_measured():
    many = {name: value.repeat(FEW, 1) for name, value in BATCH.items()}
    rows = []
    model = signed(stock_model("bert"))
    model.register_forward_hook(lambda model, args, outputs: rows.append(len(outputs.logits)))
    measured(model, (), many)
    measured(model, (), many | {"position_ids": torch.arange(9)[None]})  # which has no row per example
    assert rows == [FEW, 3 * FEW]
