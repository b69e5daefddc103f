"""LoRA adapters of `peft` on signed models: train, save, load onto a fresh model, merge."""

import json

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, Trainer, TrainingArguments

from hf_bidir import signed
from hf_bidir.checkpoints.reading import read_model
from hf_bidir.finetune.record import size
from hf_bidir.hub import CardCallback, build_model_card
from hf_bidir.modeling.signed_layers import signed_layers
from tests.tiny_models import inputs_of, logits_of, stock_model

KINDS = {
    "roberta": (AutoModelForSequenceClassification, "SEQ_CLS", ["query", "value"]),
    "llama": (AutoModelForCausalLM, "CAUSAL_LM", ["q_proj", "k_proj", "v_proj", "o_proj"]),
}
every_kind = pytest.mark.parametrize("family", KINDS)


@pytest.fixture
def base(family, tmp_path):
    """The folder of a signed model."""
    signed(stock_model(family), [0.3, 1.0]).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def loaded(family, base):
    return KINDS[family][0].from_pretrained(base)


def lora(family, **options):
    _, task, layers = KINDS[family]
    return peft.LoraConfig(task_type=task, target_modules=layers, r=4, **options)


def adapted(family, base):
    """A freshly loaded signed model with an adapter that has been trained for a few steps."""
    torch.manual_seed(1)
    model = peft.get_peft_model(loaded(family, base), lora(family, init_lora_weights=False))
    train(family, model)
    return model.eval()


def train(family, model):
    inputs = inputs_of(family)
    tokens = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    labels = torch.tensor([0, 1, 0]) if family == "roberta" else tokens
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-2)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        losses.append(model(**inputs, labels=labels).loss)
        losses[-1].backward()
        optimizer.step()
    return losses


@every_kind
def test_training_lowers_the_loss_of_a_signed_model_and_leaves_its_base_as_it_was(family, base):
    torch.manual_seed(1)
    model = peft.get_peft_model(loaded(family, base), lora(family))
    losses = train(family, model)
    assert losses[-1] < losses[0]
    assert len(signed_layers(model)) == 2
    inputs = inputs_of(family)
    with torch.no_grad(), model.eval().disable_adapter():
        torch.testing.assert_close(logits_of(model, inputs), logits_of(loaded(family, base), inputs))


@every_kind
def test_a_saved_adapter_loads_onto_a_fresh_signed_model_or_finds_it_itself(family, base, tmp_path):
    model, inputs = adapted(family, base), inputs_of(family)
    model.save_pretrained(tmp_path / "adapter")
    auto = {"roberta": peft.AutoPeftModelForSequenceClassification, "llama": peft.AutoPeftModelForCausalLM}[family]
    put_on = peft.PeftModel.from_pretrained(loaded(family, base), tmp_path / "adapter")
    for again in (put_on.eval(), auto.from_pretrained(tmp_path / "adapter").eval()):
        assert [layer.signed_index for layer in signed_layers(again)] == [0, 1]
        torch.testing.assert_close(logits_of(again, inputs), logits_of(model, inputs), rtol=0, atol=0)


@every_kind
def test_a_merged_model_equals_the_adapted_one(family, base):
    model, inputs = adapted(family, base), inputs_of(family)
    expected = model(**inputs).logits
    assert (logits_of(model, inputs) - logits_of(loaded(family, base), inputs)).abs().max() > 1e-2
    merged = model.merge_and_unload()
    assert type(merged) is type(loaded(family, base))
    torch.testing.assert_close(merged(**inputs).logits, expected, rtol=0, atol=1e-4)


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
    trainer = Trainer(model, args, train_dataset=rows, callbacks=[CardCallback()])
    trainer.train()
    trainer.evaluate(rows)
    trainer.save_model()
    assert not (tmp_path / "run" / "model.safetensors").exists()
    torch.testing.assert_close(logits_of(read_model(tmp_path / "run"), inputs), logits_of(model.eval(), inputs))
    (tmp_path / "run/README.md").unlink()  # peft's own
    card = build_model_card(tmp_path / "run").text
    assert "LoRA adapter of rank 4" in card
    assert 'base = "../base"' in card
    signed(stock_model(family), negative_mass=0.2).save_pretrained(base)
    with pytest.raises(ValueError, match="another base model than"):
        read_model(tmp_path / "run")


def test_an_adapter_of_a_model_that_was_signed_in_memory_loads_once_that_model_is_saved(tmp_path):
    stock_model("roberta").save_pretrained(tmp_path / "stock")
    model = signed(KINDS["roberta"][0].from_pretrained(tmp_path / "stock"))
    model.save_pretrained(tmp_path / "signed")
    adapted = peft.get_peft_model(model, lora("roberta", init_lora_weights=False)).eval()
    adapted.save_pretrained(tmp_path / "adapter")
    assert "base" not in size(adapted)["adapter"]  # so that a run with CardCallback is not stopped
    with pytest.raises(ValueError, match=r"is a stock roberta\. If it was signed in memory, save the signed model"):
        read_model(tmp_path / "adapter")
    config = tmp_path / "adapter/adapter_config.json"
    config.write_text(config.read_text().replace(str(tmp_path / "stock"), str(tmp_path / "signed")))
    (tmp_path / "adapter/run.json").write_text(json.dumps(size(adapted)))
    inputs = inputs_of("roberta")
    torch.testing.assert_close(logits_of(read_model(tmp_path / "adapter"), inputs), logits_of(adapted, inputs))


@pytest.mark.parametrize("family", ["llama"])
def test_an_adapted_causal_model_generates_the_same_with_and_without_a_cache(family, base):
    model = adapted(family, base)
    ids = inputs_of(family)["input_ids"][:1]
    greedy = {"max_new_tokens": 6, "do_sample": False}
    assert torch.equal(model.generate(ids, **greedy), model.generate(ids, **greedy, use_cache=False))
