"""Libraries that their users already use take a signed model as they take a stock one."""

import sys

import peft
import pytest
import torch
from datasets import Dataset
from nnsight import NNsight, save
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import (
    AutoModelForCausalLM,
    Trainer,
    TrainingArguments,
    WhisperFeatureExtractor,
    pipeline,
)

import hf_bidir
from hf_bidir.checkpoints.layer_hooks import edited_coefficients
from tests.processes import run_python
from tests.tiny_models import random_model, stock_model, word_tokenizer

MASSES = [0.5, [1.0, 0.0, 0.3, 0.6]]  # of two layers with four heads
IDS = torch.randint(3, 60, (2, 7), generator=torch.Generator().manual_seed(0))


def signed_model(family):
    """A signed model whose layers and heads have different negative masses."""
    return hf_bidir.signed(stock_model(family), MASSES)


def without_head_2(coefficients):
    edited = coefficients.clone()
    edited[:, 2] = 0
    return edited


WHISPER = {
    "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "vocab_size": 20, "num_mel_bins": 8, "d_model": 32, "max_source_positions": 50, "max_target_positions": 32,
}  # fmt: skip
ADAPTERS = {
    "dora": peft.LoraConfig(task_type="CAUSAL_LM", use_dora=True),
    "ia3": peft.IA3Config(task_type="CAUSAL_LM"),
    "prompt": peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "prefix": peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with torch.no_grad():
        yield


def test_a_trace_of_nnsight_reads_and_edits_the_coefficients_of_a_layer():
    model = signed_model("gpt2")
    expected = model(IDS, output_attentions=True)
    with edited_coefficients(model.transformer.h[1], without_head_2):
        edited = model(IDS).logits
    model.set_attn_implementation("eager")
    traced = NNsight(model)
    with traced.trace(IDS):
        coefficients = save(traced.transformer.h[0].attn.output[1])
        call = traced.transformer.h[1].attn.source.attention_interface_1
        (_, _, _, value, _), _ = call.inputs
        changed = without_head_2(call.output[1])
        call.output = ((changed @ value).transpose(1, 2), changed)
        logits = save(traced.output.logits)
    torch.testing.assert_close(coefficients, expected.attentions[0])
    torch.testing.assert_close(logits, edited)
    with edited_coefficients(model.transformer.h[1], without_head_2), traced.trace(IDS):
        logits = save(traced.output.logits)
    torch.testing.assert_close(logits, edited)


LIGER = """
import sys
from hf_bidir import signed
from transformers.integrations.liger import apply_liger_kernel  # which a Trainer calls with use_liger_kernel=True
from tests.tiny_models import stock_model

for model in (signed(stock_model("llama")), stock_model("llama")):  # in memory before Liger is imported
    apply_liger_kernel(model, None)
    print([name for name, module in model.named_modules() if "Liger" in module.extra_repr() + module._get_name()])
    print(model.forward.__qualname__)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Liger needs Triton")
def test_liger_replaces_in_a_signed_model_what_it_replaces_in_the_stock_one():
    signed, forward, *stock = run_python(LIGER, TRITON_INTERPRET="1").splitlines()
    assert [signed, forward] == stock
    assert "model.norm" in signed
    assert forward == "lce_forward"


def test_a_model_of_which_accelerate_keeps_a_layer_on_disk_computes_the_same(tmp_path):
    model = signed_model("llama")
    model.save_pretrained(tmp_path / "model")
    expected = model(IDS, output_attentions=True)
    places = dict.fromkeys(("model.embed_tokens", "model.layers.0", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    places["model.layers.1"] = "disk"
    placed = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", device_map=places, offload_folder=tmp_path / "disk"
    )
    assert placed.model.layers[1].self_attn.q_proj.weight.device.type == "meta"
    outputs = placed(IDS, output_attentions=True)
    assert torch.equal(outputs.logits, expected.logits)
    assert torch.equal(outputs.attentions[1], expected.attentions[1])
    with hf_bidir.softmax(placed):
        assert torch.equal(placed(IDS).logits, stock_model("llama")(IDS).logits)


@pytest.mark.parametrize("kind", ADAPTERS)
def test_every_kind_of_adapter_of_peft_learns_on_a_signed_model_and_loads_again(kind, tmp_path):
    model = peft.get_peft_model(signed_model("llama"), ADAPTERS[kind])
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    with torch.enable_grad():
        for _ in range(4):
            losses.append(model(IDS, labels=IDS).loss)
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
    assert losses[-1] < losses[0]
    model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(signed_model("llama"), tmp_path)
    torch.testing.assert_close(loaded.eval()(IDS).logits, model.eval()(IDS).logits)
    with hf_bidir.softmax(loaded.get_base_model()):
        assert not torch.allclose(loaded(IDS).logits, model(IDS).logits, atol=1e-2)


def test_sentence_transformers_trains_a_signed_encoder_and_loads_it(tmp_path):
    for part in (hf_bidir.signed(stock_model("bert").bert, MASSES), word_tokenizer()):
        part.save_pretrained(tmp_path / "signed")
    model = SentenceTransformer(modules=[Transformer(str(tmp_path / "signed")), Pooling(32)], device="cpu")
    texts = ["a good film", "this is bad", "a bad example .", "good ."]
    before = model.encode(texts)
    options = {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 1e-3, "use_cpu": True}
    args = SentenceTransformerTrainingArguments(tmp_path / "run", **options, report_to="none", save_strategy="no")
    rows = Dataset.from_dict({"anchor": texts, "positive": texts[::-1]})
    loss = MultipleNegativesRankingLoss(model)
    with torch.enable_grad():
        SentenceTransformerTrainer(model=model, args=args, train_dataset=rows, loss=loss).train()
    model.save(str(tmp_path / "saved"))
    loaded = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert loaded[0].auto_model.config.attn_negative_mass == MASSES
    after = loaded.encode(texts)
    assert after == pytest.approx(model.encode(texts), abs=1e-5)
    assert after != pytest.approx(before, abs=1e-4)


def smoothed_loss(model, folder):
    """The loss that a Trainer with label smoothing computes."""
    args = TrainingArguments(folder, report_to="none", label_smoothing_factor=0.1, use_cpu=True)
    return Trainer(model=model, args=args).compute_loss(model, {"input_ids": IDS, "labels": IDS.clone()}).item()


def with_adapter(model):
    return peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM"))


@pytest.mark.parametrize("wrapped", [lambda model: model, with_adapter], ids=["alone", "with an adapter"])
def test_labels_that_a_trainer_smooths_are_shifted_for_a_signed_language_model(wrapped, tmp_path):
    stock, signed = (wrapped(model) for model in (stock_model("llama"), hf_bidir.signed(stock_model("llama"), 0.0)))
    assert smoothed_loss(signed, tmp_path) == pytest.approx(smoothed_loss(stock, tmp_path))


ALONE = """
import sys
sys.modules["hf_bidir"] = None
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
ids = torch.tensor(eval(sys.argv[2]))
args = TrainingArguments("out", report_to="none", label_smoothing_factor=0.1, use_cpu=True)
print(Trainer(model=model, args=args).compute_loss(model, {"input_ids": ids, "labels": ids.clone()}).item())
"""


def test_they_are_shifted_too_where_the_code_came_with_the_checkpoint(tmp_path):
    hf_bidir.signed(stock_model("llama"), 0.0).save_pretrained(tmp_path / "model")
    cache = str(tmp_path / "modules")
    loss = run_python(ALONE, tmp_path / "model", IDS.tolist(), isolated=True, cwd=tmp_path, HF_MODULES_CACHE=cache)
    assert float(loss) == pytest.approx(smoothed_loss(stock_model("llama"), tmp_path))


def test_a_speech_pipeline_treats_a_signed_whisper_as_the_stock_one():
    special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0)
    stock = random_model("WhisperForConditionalGeneration", **WHISPER, **special)
    parts = {"tokenizer": word_tokenizer(), "feature_extractor": WhisperFeatureExtractor(feature_size=8)}
    for model in (stock, hf_bidir.signed(stock, 0.0)):
        read = pipeline("automatic-speech-recognition", model=model, device="cpu", **parts)
        assert read.type == "seq2seq_whisper"
