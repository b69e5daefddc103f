import torch
from transformers import TrainingArguments

from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification
from hf_bidir.finetune.trainer import FinetuneTrainer

SHAPE = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}


def new_model(negative_mass):
    config = BidirBertConfig(attn_negative_mass=negative_mass, initializer_range=0.5, **SHAPE)
    return BidirBertForSequenceClassification(config).eval()


def test_loaded_weights_come_with_the_negative_mass_they_were_trained_with(tmp_path):
    saved, model = new_model(0.25), new_model(1.0)
    saved.save_pretrained(tmp_path / "checkpoint-1")
    trainer = FinetuneTrainer(model=model, args=TrainingArguments(str(tmp_path), use_cpu=True, report_to="none"))
    trainer._load_from_checkpoint(str(tmp_path / "checkpoint-1"))
    assert model.config.attn_negative_mass == 0.25
    ids = torch.arange(1, 9)[None]
    torch.testing.assert_close(model(ids).logits, saved(ids).logits)
