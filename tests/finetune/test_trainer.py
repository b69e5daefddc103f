import torch
from torch.utils.data import Dataset
from transformers import TrainingArguments

from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification
from hf_bidir.finetune.arguments import RunArguments
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


class Sentences(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"input_ids": torch.arange(index, index + 4), "labels": torch.tensor(index % 2)}


def learning_run(folder, **options):
    torch.manual_seed(0)
    config = BidirBertConfig(attn_negative_mass=0.1, attn_learn_negative_mass=True, initializer_range=0.5, **SHAPE)
    args = RunArguments(output_dir=str(folder), use_cpu=True, max_steps=6, save_strategy="steps", save_steps=3,
                        eval_strategy="no", load_best_model_at_end=False, disable_tqdm=True, **options)  # fmt: skip
    model = BidirBertForSequenceClassification(config)
    return FinetuneTrainer(model=model, args=args, train_dataset=Sentences())


def test_a_learned_negative_mass_has_its_own_learning_rate_and_no_weight_decay(tmp_path):
    trainer = learning_run(tmp_path, negative_mass_learning_rate=0.5, learning_rate=1e-9, weight_decay=0.1)
    before = trainer.model.bert.encoder.layer[0].attention.self.negative_mass_logit.detach().clone()
    trainer.train()
    after = trainer.model.bert.encoder.layer[0].attention.self.negative_mass_logit.detach()
    assert (after - before).abs() > 0.5
    group = next(g for g in trainer.optimizer.param_groups if g["initial_lr"] == 0.5)
    assert (len(group["params"]), group["weight_decay"]) == (1, 0)
    assert sum(len(g["params"]) for g in trainer.optimizer.param_groups) == len(list(trainer.model.parameters()))


def test_a_learned_negative_mass_is_logged_and_resumes(tmp_path):
    whole = learning_run(tmp_path / "whole", negative_mass_learning_rate=0.5, logging_steps=1)
    whole.train()
    logged = [entry["negative_mass"] for entry in whole.state.log_history]
    assert len(set(logged)) > 3
    resumed = learning_run(tmp_path / "resumed", negative_mass_learning_rate=0.5)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole/checkpoint-3"))
    for name, weight in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[name], weight, msg=name)
