import math
import re

import pytest
import torch
from datasets import Dataset
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments, trainer_utils

from hf_bidir import (
    BidirBertConfig,
    BidirBertForSequenceClassification,
    BidirRnnConfig,
    BidirRnnForSequenceClassification,
    signed,
)
from hf_bidir.common.errors import InputError
from hf_bidir.finetune.run import EvaluationLines
from hf_bidir.finetune.trainer import CausalTrainer, SignedTrainer
from tests.tiny_models import stock_model

SHAPE = {
    "vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


def new_model(negative_mass):
    config = BidirBertConfig(attn_negative_mass=negative_mass, initializer_range=0.5, **SHAPE)
    return BidirBertForSequenceClassification(config).eval()


def test_loaded_weights_come_with_the_negative_mass_they_were_trained_with(tmp_path):
    saved, model = new_model(0.25), new_model(1.0)
    saved.save_pretrained(tmp_path / "checkpoint-1")
    trainer = SignedTrainer(model=model, args=TrainingArguments(str(tmp_path), use_cpu=True, report_to="none"))
    trainer._load_from_checkpoint(str(tmp_path / "checkpoint-1"))
    assert model.config.attn_negative_mass == 0.25
    ids = torch.arange(1, 9)[None]
    torch.testing.assert_close(model(ids).logits, saved(ids).logits)


class ScriptedEvaluations(TrainerCallback):
    """Replaces the metrics of each evaluation by the given pairs of accuracy and loss."""

    def __init__(self, scores):
        self.scores = iter(scores)

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        metrics["eval_accuracy"], metrics["eval_loss"] = next(self.scores)
        state.log_history[-1].update(metrics)


@pytest.mark.parametrize("stopping", [True, False], ids=["early stopping", "fine-tuning"])
@pytest.mark.parametrize(
    ("scores", "best_step"),
    [
        ([(0.5, 0.9), (1.0, 0.6), (1.0, 0.4), (1.0, 0.5)], 3),
        ([(0.5, 0.9), (1.0, 0.6), (0.5, 0.1), (1.0, 0.7)], 2),
    ],
)
def test_the_lower_loss_of_equally_accurate_checkpoints_is_kept(tmp_path, scores, best_step, stopping):
    rows = Dataset.from_list([{"input_ids": [1, 2], "labels": 0}] * 2)
    args = TrainingArguments(
        str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True, num_train_epochs=4, eval_strategy="epoch",
        save_strategy="epoch", load_best_model_at_end=True, metric_for_best_model="accuracy",
    )  # fmt: skip
    callbacks = [ScriptedEvaluations(scores), *([EarlyStoppingCallback(3)] * stopping)]
    args.typed = {} if stopping else {"model_name_or_path": "a checkpoint"}
    trainer = SignedTrainer(model=new_model(1.0), args=args, train_dataset=rows, eval_dataset=rows, callbacks=callbacks)
    trainer.train()
    assert trainer.state.best_model_checkpoint.endswith(f"checkpoint-{best_step}")


def test_shares_of_the_steps_are_no_difference_from_a_checkpoint_s_numbers_of_steps(tmp_path, monkeypatch):
    reported = []
    monkeypatch.setattr(trainer_utils.logger, "warning_once", reported.append)
    rows = Dataset.from_list([{"input_ids": [1, 2], "labels": 0}] * 40)
    args = TrainingArguments(
        str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True, per_device_train_batch_size=2, max_steps=10,
        logging_steps=0.2, eval_steps=0.5, save_steps=0.5, eval_strategy="steps",
    )  # fmt: skip
    more = {"args": args, "train_dataset": rows, "eval_dataset": rows}
    SignedTrainer(model=new_model(1.0), **more).train()
    SignedTrainer(model=new_model(1.0), **more).train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert not reported
    assert (args.logging_steps, args.eval_steps, args.save_steps) == (0.2, 0.5, 0.5)


def examples(count):
    return Dataset.from_list([{"input_ids": [1 + row % 9, 2], "labels": row % 2} for row in range(count)])


def trainer_of(folder, rows, callbacks=(), **options):
    args = TrainingArguments(str(folder), use_cpu=True, report_to="none", disable_tqdm=True, **options)
    torch.manual_seed(0)
    more = {"train_dataset": rows, "eval_dataset": rows, "callbacks": list(callbacks)}
    return SignedTrainer(model=new_model(1.0), args=args, **more)


def test_rows_that_fill_no_batch_are_dropped_in_training_alone(tmp_path):
    sizes = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 16}
    trainer = trainer_of(tmp_path, examples(10), dataloader_drop_last=True, **sizes)
    loaders = trainer.get_train_dataloader(), trainer.get_eval_dataloader(), trainer.get_test_dataloader(examples(5))
    assert [sum(len(batch["labels"]) for batch in loader) for loader in loaders] == [8, 10, 5]
    assert trainer.args.dataloader_drop_last


def test_every_data_set_is_evaluated_on_its_own_rows_with_workers_that_stay(tmp_path):
    trainer = trainer_of(tmp_path, examples(10), dataloader_num_workers=1, dataloader_persistent_workers=True)
    loaders = [trainer.get_eval_dataloader(rows) for rows in (examples(3), None, examples(5))]
    assert [len(loader.dataset) for loader in loaders] == [3, 10, 5]


def test_a_perplexity_is_that_of_the_loss_without_label_smoothing(tmp_path):
    model = signed(stock_model("llama")).eval()
    ids = torch.randint(3, 60, (4, 7), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": row, "labels": row} for row in ids]
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", label_smoothing_factor=0.4)
    trainer = CausalTrainer(model=model, args=args, eval_dataset=rows)
    measured, loss = trainer.evaluate(), model(ids, labels=ids).loss.item()
    assert measured["eval_loss"] == pytest.approx(loss)
    assert measured["eval_perplexity"] == pytest.approx(math.exp(loss))
    smoothed = trainer.compute_loss(model, {"input_ids": ids, "labels": ids.clone()})
    assert smoothed.item() != pytest.approx(loss, rel=0.01)


@pytest.mark.parametrize(
    "when", [{"eval_strategy": "epoch"}, {"eval_strategy": "no"}], ids=["evaluated", "not evaluated"]
)
def test_the_line_of_an_epoch_has_the_mean_loss_of_its_steps(tmp_path, capsys, when):
    options = {"per_device_train_batch_size": 2, "num_train_epochs": 2, "learning_rate": 0.1, "save_strategy": "no"}
    logged = trainer_of(tmp_path, examples(9), logging_steps=1, **options)
    logged.train()
    losses = [entry["loss"] for entry in logged.state.log_history if "loss" in entry]
    means = [sum(losses[:5]) / 5, sum(losses[5:]) / 5]
    trainer_of(tmp_path, examples(9), [EvaluationLines()], logging_steps=4, **options, **when).train()
    printed = re.findall(r"^epoch (\d): train loss ([\d.]+)", capsys.readouterr().out, re.MULTILINE)
    assert [(int(epoch), float(loss)) for epoch, loss in printed] == [
        (1, pytest.approx(means[0], rel=1e-3)), (2, pytest.approx(means[1], rel=1e-3)),
    ]  # fmt: skip


def test_a_metric_that_nobody_measures_is_one_error_that_lists_those_that_are(tmp_path):
    options = {"eval_strategy": "epoch", "metric_for_best_model": "accuracie", "num_train_epochs": 1}
    with pytest.raises(InputError, match=r"accuracie.*eval_loss"):
        trainer_of(tmp_path, examples(4), save_strategy="epoch", load_best_model_at_end=True, **options).train()


def test_labels_are_not_smoothed_where_selection_learns_by_the_loss_of_the_model(tmp_path):
    config = BidirRnnConfig(vocab_size=20, attn_selection="hard", num_labels=2)
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", label_smoothing_factor=0.1)
    with pytest.raises(InputError, match="label_smoothing_factor"):
        SignedTrainer(model=BidirRnnForSequenceClassification(config), args=args)
