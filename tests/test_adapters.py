"""LoRA adapters of `peft` on signed models: train, save, load onto a fresh model, merge."""

import json

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, Trainer, TrainingArguments

from hf_bidir import signed
from hf_bidir.checkpoints.reading import open_checkpoint
from hf_bidir.finetune.record import size
from hf_bidir.hub import build_model_card
from hf_bidir.modeling.signed_layers import signed_layers
from tests.tiny_models import inputs_of, logits_of, stock_model

KINDS = {
    "roberta": (AutoModelForSequenceClassification, "SEQ_CLS", ["query", "value"]),
    "llama": (AutoModelForCausalLM, "CAUSAL_LM", ["q_proj", "k_proj", "v_proj", "o_proj"]),
}


@pytest.fixture
def base(family, tmp_path):
    """The folder of a signed model."""
    signed(stock_model(family), [0.3, 1.0]).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def loaded(family, base):
    return KINDS[family][0].from_pretrained(base).eval()


def lora(family, **options):
    _, task, layers = KINDS[family]
    return peft.LoraConfig(task_type=task, target_modules=layers, r=4, **options)


@pytest.mark.parametrize("family", KINDS)
def test_an_adapter_learns_beside_its_base_and_computes_the_same_when_loaded_or_merged(family, base, tmp_path):
    torch.manual_seed(1)
    model, stock, inputs = (
        peft.get_peft_model(loaded(family, base), lora(family)),
        loaded(family, base),
        inputs_of(family),
    )
    tokens = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    labels = torch.tensor([0, 1, 0]) if family == "roberta" else tokens
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-2)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        losses.append(model(**inputs, labels=labels).loss)
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    with torch.no_grad(), model.eval().disable_adapter():
        torch.testing.assert_close(logits_of(model, inputs), logits_of(stock, inputs))
    expected = logits_of(model, inputs)
    assert (expected - logits_of(stock, inputs)).abs().max() > 1e-2
    model.save_pretrained(tmp_path / "adapter")
    auto = {"roberta": peft.AutoPeftModelForSequenceClassification, "llama": peft.AutoPeftModelForCausalLM}[family]
    for again in (
        peft.PeftModel.from_pretrained(stock, tmp_path / "adapter"),
        auto.from_pretrained(tmp_path / "adapter"),
    ):
        assert [layer.signed_index for layer in signed_layers(again)] == [0, 1]
        torch.testing.assert_close(logits_of(again.eval(), inputs), expected, rtol=0, atol=0)
    if family == "llama":
        greedy = {"max_new_tokens": 6, "do_sample": False}
        generated = [model.generate(tokens[:1], **greedy, use_cache=cached) for cached in (True, False)]
        assert torch.equal(*generated)
    merged = model.merge_and_unload()
    assert type(merged) is type(loaded(family, base))
    torch.testing.assert_close(logits_of(merged, inputs), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["roberta"])
def test_the_trainer_saves_an_adapter_alone_and_its_card_names_the_base(family, base, tmp_path):
    model = peft.get_peft_model(loaded(family, base), lora(family))
    inputs = inputs_of(family)
    rows = [
        {"input_ids": ids, "attention_mask": keep, "labels": label % 2}
        for label, (ids, keep) in enumerate(zip(inputs["input_ids"], inputs["attention_mask"], strict=True))
    ]
    options = {"max_steps": 3, "learning_rate": 0.1, "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    args = TrainingArguments(tmp_path / "run", **options)
    trainer = Trainer(model, args, train_dataset=rows)
    trainer.train()
    trainer.save_model()
    (tmp_path / "run/run.json").write_text(json.dumps(size(model)))
    assert not (tmp_path / "run" / "model.safetensors").exists()
    torch.testing.assert_close(
        logits_of(open_checkpoint(tmp_path / "run").model(), inputs), logits_of(model.eval(), inputs)
    )
    (tmp_path / "run/README.md").unlink()  # peft's own
    card = build_model_card(tmp_path / "run").text
    assert "LoRA adapter of rank 4" in card
    assert 'base = "../base"' in card
    signed(stock_model(family), negative_mass=0.2).save_pretrained(base)
    with pytest.raises(ValueError, match="another base model than"):
        open_checkpoint(tmp_path / "run").model()


def test_an_adapter_of_a_model_that_was_signed_in_memory_loads_once_that_model_is_saved(tmp_path):
    stock_model("roberta").save_pretrained(tmp_path / "stock")
    model = signed(KINDS["roberta"][0].from_pretrained(tmp_path / "stock"))
    model.save_pretrained(tmp_path / "signed")
    adapted = peft.get_peft_model(model, lora("roberta", init_lora_weights=False)).eval()
    adapted.save_pretrained(tmp_path / "adapter")
    assert "base" not in size(adapted)["adapter"]
    with pytest.raises(ValueError, match=r"is a stock roberta\. If it was signed in memory, save the signed model"):
        open_checkpoint(tmp_path / "adapter").model()
    config = tmp_path / "adapter/adapter_config.json"
    config.write_text(config.read_text().replace(str(tmp_path / "stock"), str(tmp_path / "signed")))
    (tmp_path / "adapter/run.json").write_text(json.dumps(size(adapted)))
    inputs = inputs_of("roberta")
    torch.testing.assert_close(
        logits_of(open_checkpoint(tmp_path / "adapter").model(), inputs), logits_of(adapted, inputs)
    )
