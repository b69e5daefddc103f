import math
from contextlib import nullcontext

import pytest
import torch
from datasets import Dataset
from transformers import TrainingArguments

from hf_bidir import BidirRnnConfig, BidirRnnForSequenceClassification
from hf_bidir.common.errors import InputError
from hf_bidir.finetune.trainer import CausalTrainer, SignedTrainer
from tests.tiny_models import signed_model


def test_loaded_weights_come_with_the_negative_mass_they_were_trained_with(tmp_path):
    saved, model = signed_model("bert", 0.25, initializer_range=0.5), signed_model("bert")
    saved.save_pretrained(tmp_path / "checkpoint-1")
    trainer = SignedTrainer(model=model, args=TrainingArguments(str(tmp_path), use_cpu=True, report_to="none"))
    trainer._load_from_checkpoint(str(tmp_path / "checkpoint-1"))
    assert model.config.attn_negative_mass == 0.25
    ids = torch.arange(1, 9)[None]
    torch.testing.assert_close(model(ids).logits, saved(ids).logits)


@pytest.mark.parametrize(
    "kind", ["is_fsdp_enabled", "is_deepspeed_enabled", "is_distributed_loading_by_transformers", None]
)
def test_sharded_weights_and_adapters_are_loaded_as_the_trainer_saved_them(kind, tmp_path):
    trainer = trainer_of(tmp_path, examples(1))
    assert not trainer._keeps_names()
    setattr(trainer if kind else trainer.model, kind or "peft_config", True)
    assert trainer._keeps_names()


def examples(count):
    return Dataset.from_list([{"input_ids": [1 + row % 9, 2], "labels": row % 2} for row in range(count)])


def trainer_of(folder, rows, eval_collator=None, **options):
    args = TrainingArguments(str(folder), use_cpu=True, report_to="none", disable_tqdm=True, **options)
    data = {"train_dataset": rows, "eval_dataset": rows, "eval_collator": eval_collator}
    return SignedTrainer(model=signed_model("bert"), args=args, **data)


def test_evaluation_has_a_collator_of_its_own(tmp_path):
    def count(rows):
        return {"count": torch.tensor(len(rows))}

    trainer = trainer_of(tmp_path, examples(10), count, per_device_train_batch_size=4, per_device_eval_batch_size=4)
    loaders = trainer.get_eval_dataloader(), trainer.get_test_dataloader(examples(5))
    assert [[int(batch["count"]) for batch in loader] for loader in loaders] == [[4, 4, 2], [4, 1]]
    assert "count" not in next(iter(trainer.get_train_dataloader()))


def test_a_perplexity_is_that_of_the_loss_without_label_smoothing(tmp_path):
    model = signed_model("llama")
    ids = torch.randint(3, 60, (4, 7), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": row, "labels": row} for row in ids]
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", label_smoothing_factor=0.4)
    trainer = CausalTrainer(model=model, args=args, eval_dataset=rows)
    measured, loss = trainer.evaluate(), model(ids, labels=ids).loss.item()
    assert measured["eval_loss"] == pytest.approx(loss)
    assert measured["eval_perplexity"] == pytest.approx(math.exp(loss))
    smoothed = trainer.compute_loss(model, {"input_ids": ids, "labels": ids.clone()})
    assert smoothed.item() != pytest.approx(loss, rel=0.01)


def test_a_loss_that_is_no_number_stops_the_run(tmp_path):
    trainer = trainer_of(tmp_path, examples(4), logging_nan_inf_filter=False, logging_steps=1)
    torch.nn.init.constant_(trainer.model.classifier.bias, math.nan)
    with pytest.raises(InputError, match="the training loss became nan before step 1"):
        trainer.train()


@pytest.mark.parametrize(("selection", "smoothing"), [("hard", 0.1), ("hard", 0.0), ("soft", 0.1)])
def test_labels_are_not_smoothed_where_selection_learns_by_the_loss_of_the_model(selection, smoothing, tmp_path):
    model = BidirRnnForSequenceClassification(BidirRnnConfig(vocab_size=20, attn_selection=selection))
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", label_smoothing_factor=smoothing)
    refused = pytest.raises(InputError, match="label_smoothing_factor")
    with refused if selection == "hard" and smoothing else nullcontext():
        SignedTrainer(model=model, args=args)
