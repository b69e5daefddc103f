import pytest
import torch
from datasets import Dataset
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments, trainer_utils

from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification
from hf_bidir.finetune.trainer import SignedTrainer

SHAPE = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}


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
