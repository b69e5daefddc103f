"""What a Trainer logs about signed attention, in TensorBoard's own files."""

import math

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.integrations import TensorBoardCallback
from transformers.utils import logging

from hf_bidir import AttentionLog, BidirRnnConfig, BidirRnnForSeq2SeqLM, NegativeMassSchedule, signed
from hf_bidir.finetune import log_entries
from hf_bidir.finetune.log_entries import FEW, measured
from hf_bidir.finetune.trainer import SignedTrainer
from tests.tiny_models import inputs_of, stock_model, word_tokenizer

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


def shown(model, batch):
    """The share and the largest state according to what the model returns, at tokens that are not padding."""
    model.eval().set_attn_implementation("eager")
    with torch.no_grad():
        outputs = model(**batch, output_attentions=True, output_hidden_states=True)
    masks = {"encoder_": "attention_mask", "decoder_": "decoder_attention_mask"}
    masks |= {"": "attention_mask", "cross_": "decoder_attention_mask"}
    coefficients, states = [], []
    for kind, mask in masks.items():
        keep = batch.get(mask)
        rows = lambda value, keep=keep: value.flatten(0, 1) if keep is None else value[keep.bool()]  # noqa: E731
        layers = getattr(outputs, f"{kind}attentions", None) or ()
        coefficients += [rows(layer.movedim(2, 1)).flatten() for layer in layers]
        states += [rows(state) for state in getattr(outputs, f"{kind}hidden_states", None) or ()]
    largest = {"largest_activation": pytest.approx(max(state.abs().max().item() for state in states), rel=1e-4)}
    if not hasattr(model.config, "attn_activation"):
        return largest
    large = torch.cat(coefficients)[torch.cat(coefficients).abs() > 1e-3]
    return largest | {"negative_share": pytest.approx((large < 0).float().mean().item(), rel=1e-4)}


def test_tensorboard_shows_mass_shift_share_of_negatives_and_largest_activation_with_every_logged_loss(
    tmp_path, events
):
    model = trained(tmp_path, [AttentionLog()], learning_rate=0.0, eval_strategy="steps", eval_steps=3).model
    expected = {
        "negative_mass": 0.625,
        "negative_mass_layer_0": 1.0,
        "negative_mass_layer_1": 0.25,
        "score_shift": math.log(4) / 4,
        **{name: value.expected for name, value in shown(model, BATCH).items()},
    }
    logged = events()
    assert set(logged["train/loss"]) == {2, 4}
    for name, value in expected.items():
        assert logged[f"train/{name}"] == pytest.approx(dict.fromkeys((2, 4), value), rel=1e-4), name


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


def test_measuring_costs_two_forward_passes_per_logged_loss_and_leaves_the_training_as_it_was(tmp_path):
    weights, calls = [], []

    class Counting(SignedTrainer):
        def __init__(self, **options):
            options["model"].register_forward_hook(lambda *_: calls.append(len(weights)))
            super().__init__(**options)

    for callbacks in ([], [AttentionLog()]):  # the losses of steps 2 and 4 are logged
        schedule = NegativeMassSchedule(end=0.5)
        weights.append(trained(tmp_path, [schedule, *callbacks], Counting, report_to="none").model.state_dict())
    torch.testing.assert_close(*weights, atol=0, rtol=0)  # with dropout
    assert calls.count(1) == calls.count(0) + 4


def with_padded_targets(family):
    """A batch whose sources and targets have one length and other padding."""
    batch = inputs_of(family)
    keep = batch["attention_mask"].flip(0)
    return batch | {"decoder_input_ids": batch["input_ids"].flip(0), "decoder_attention_mask": keep}


@pytest.mark.parametrize("family", ["bert", "vit", "llama", "bart", "t5"])
def test_every_kind_of_model_is_measured_at_what_is_no_padding(family):
    model, batch = signed(stock_model(family)), inputs_of(family)
    assert measured(model, batch) == shown(model, batch)


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_a_decoder_is_measured_with_its_own_mask(family):
    model, batch = signed(stock_model(family)), with_padded_targets(family)
    assert measured(model, batch) == shown(model, batch)
    del batch["decoder_attention_mask"]  # then the mask of the encoder, of the same shape, does not count
    assert measured(model, batch) == shown(model, batch)


def test_a_model_without_signed_attention_is_measured_by_its_largest_activation_alone():
    model = stock_model("bert")
    assert measured(model, BATCH) == shown(model, BATCH)
    fields = {"encoder": "gru", "attn_scope": "none", "attn_score": "dot", "decoder_style": "luong"}
    translator = BidirRnnForSeq2SeqLM(BidirRnnConfig(vocab_size=60, **fields))
    assert "negative_share" not in measured(translator, inputs_of("t5"))


def test_only_the_first_examples_of_a_batch_are_measured():
    many = {name: value.repeat(FEW, 1) for name, value in BATCH.items()}
    rows = []
    model = signed(stock_model("bert"))
    model.register_forward_hook(lambda model, args, outputs: rows.append(len(outputs.logits)))
    measured(model, many)
    measured(model, many | {"position_ids": torch.arange(9)[None]})  # which has no row per example
    assert rows == [1, FEW, 3 * FEW, 3 * FEW]


@pytest.mark.parametrize("family", ["llama", "bart"])
def test_as_many_examples_are_measured_as_their_coefficients_fit(family, monkeypatch):
    model, batch, rows = signed(stock_model(family)), inputs_of(family), []
    model.register_forward_hook(lambda model, args, outputs: rows.append(len(outputs.logits)))
    monkeypatch.setattr(log_entries, "MOST", 2 * 4 * 9 * 9)  # of two examples in four heads
    first = {name: value[:2] for name, value in batch.items()}
    assert measured(model, batch) == shown(model, first)
    monkeypatch.setattr(log_entries, "MOST", 4 * 9 * 9 - 1)
    assert measured(model, batch).keys() == {"largest_activation"}
    assert rows == [1, 2, 2, 1, 1]


def test_arguments_by_position_are_measured_as_those_by_name():
    log, model = AttentionLog(), signed(stock_model("bert"))
    log.on_train_begin(None, None, None, model)
    model(BATCH["input_ids"], BATCH["attention_mask"])
    found = log.entries(model, {"loss": 1.0})
    assert {name: found[name] for name in ("largest_activation", "negative_share")} == shown(model, BATCH)


def test_a_sentence_transformer_is_measured_by_its_encoder(tmp_path):
    for part in (signed(stock_model("bert").bert), word_tokenizer()):
        part.save_pretrained(tmp_path / "signed")
    model = SentenceTransformer(modules=[Transformer(str(tmp_path / "signed")), Pooling(32)], device="cpu")
    rows = Dataset.from_dict({"anchor": ["a good film", "bad"], "positive": ["a good example .", "this is bad"]})
    options = {"max_steps": 1, "logging_steps": 1, "learning_rate": 0.0, "use_cpu": True, "save_strategy": "no"}
    args = SentenceTransformerTrainingArguments(tmp_path / "run", **options, report_to="none")
    loss = MultipleNegativesRankingLoss(model)
    trainer = SentenceTransformerTrainer(model, args, rows, loss=loss, callbacks=[AttentionLog()])
    with torch.enable_grad():
        trainer.train()
    found = trainer.state.log_history[0]
    batches = [word_tokenizer()(rows["positive"][::step], padding=True, return_tensors="pt") for step in (1, -1)]
    assert {name: found[name] for name in ("largest_activation", "negative_share")} in [
        shown(model[0].auto_model, batch)
        for batch in batches  # in whichever order
    ]


def test_an_error_in_training_releases_the_model_and_the_batch(tmp_path):
    class Failing(TrainerCallback):
        def on_step_end(self, *_, **__):
            raise RuntimeError("stop")

    log = AttentionLog()
    model = signed(stock_model("bert"))
    args = TrainingArguments(str(tmp_path), max_steps=2, use_cpu=True, report_to="none")
    with pytest.raises(RuntimeError, match="stop"):
        SignedTrainer(model=model, args=args, train_dataset=ROWS, callbacks=[log, Failing()]).train()
    assert log.call is None
    model(**BATCH)
    assert log.call is None


def test_a_training_after_a_failed_one_of_any_trainer_watches_its_own_model_alone():
    log, first, second = AttentionLog(), stock_model("bert"), stock_model("bert")
    log.on_train_begin(None, None, None, first)
    first(**BATCH)
    log.on_train_begin(None, None, None, second)
    first(**BATCH)
    assert log.call is None


def test_the_call_of_a_replica_is_not_kept():
    log, model = AttentionLog(), stock_model("bert")
    log.on_train_begin(None, None, None, model)
    model._replicate_for_data_parallel()(**BATCH)
    assert log.call is None
    model(**BATCH)
    assert log.call is not None
