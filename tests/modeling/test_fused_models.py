"""Whole models on the Triton kernels: `attn_implementation="fused"`."""

import pytest
import torch

from hf_bidir import (
    BidirBertForSequenceClassification,
    signed,
)
from hf_bidir.modeling import modeling_bidir, signed_attention
from tests.processes import run_python
from tests.tiny_models import inputs_of, sliding_window_model, stock_model

pytest.importorskip("triton")

from tests.modeling.fused_inputs import distance

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPE = {"num_attention_heads": 2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SENTENCES = {name: x.to(DEVICE) for name, x in inputs_of("bert").items()}


def bert(mass=1.0, **fields):
    return signed(stock_model("bert", **SHAPE | fields), mass).to(DEVICE)


def loss_and_gradients(model, batch, implementation: str):
    model.set_attn_implementation(implementation)
    model.zero_grad()
    loss = model(**batch, labels=torch.tensor([0, 1, 0], device=DEVICE)).loss
    loss.backward()
    return loss.detach(), *(p.grad.clone() for p in model.parameters())


@pytest.mark.parametrize(("mass", "window"), [([0.5, [0.0, 1.0]], None), (1.0, 2)], ids=["masses", "window"])
def test_a_padded_bert_learns_the_same_from_the_kernel_and_from_the_plain_path(mass, window):
    model = bert(mass).train()
    model.config.attn_scope, model.config.attn_window = "window" if window else "global", window
    plainly, got = (loss_and_gradients(model, SENTENCES, path) for path in ("eager", "fused"))
    gold = loss_and_gradients(model.double(), SENTENCES, "eager")
    # large weights make rounding errors large, also those of the plain path
    for ours, theirs, exact in zip(distance(got, gold), distance(plainly, gold), gold, strict=True):
        assert ours <= 4 * theirs + 1e-5 * (exact.norm() + 1)


def test_the_kernel_gets_padding_as_one_row_for_all_queries_and_dropout_in_training_only(monkeypatch):
    model, calls = bert(attention_probs_dropout_prob=0.5), []
    model.set_attn_implementation("fused")
    attend = signed_attention.attend

    def recording(query, key, value, keep, call, implementation):
        calls.append((tuple(keep.shape), call.dropout, implementation))
        return attend(query, key, value, keep, call, implementation)

    monkeypatch.setattr(signed_attention, "attend", recording)
    for training in (True, False):
        model.train(training)(**SENTENCES)
    assert calls == [((3, 1, 1, 9), dropout, "fused") for dropout in (0.5, 0.5, 0.0, 0.0)]


STRANGER = """
import sys
sys.modules["hf_bidir"] = None
import torch
from transformers import AutoModelForSequenceClassification
folder = sys.argv[1]
device = "cuda" if torch.cuda.is_available() else "cpu"
options = {"trust_remote_code": True, "attn_implementation": "fused"}
model = AutoModelForSequenceClassification.from_pretrained(folder, **options).eval().to(device)
assert not any("fused_kernels" in name for name in sys.modules if "transformers_modules" in name)
batch = {"input_ids": torch.arange(1, 10, device=device)[None]}
with torch.no_grad():
    fused = model(**batch).logits
    model.set_attn_implementation("eager")
    eager = model(**batch).logits
assert any("fused_kernels" in name for name in sys.modules if "transformers_modules" in name)
print((fused - eager).abs().max().item())
"""


def test_the_kernel_travels_with_a_checkpoint_and_is_imported_only_when_used(tmp_path):
    bert().save_pretrained(tmp_path)
    environment = {"HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    assert float(run_python(STRANGER, tmp_path, cwd=tmp_path, **environment)) < 1e-4


def test_a_machine_without_a_gpu_refuses_the_kernel_before_any_work_is_done(monkeypatch):
    monkeypatch.setattr(modeling_bidir, "fused_obstacle", lambda: "torch sees no GPU")
    refused = 'attn_implementation="fused" cannot run here: torch sees no GPU; use "sdpa"'
    with pytest.raises(ValueError, match=refused):
        BidirBertForSequenceClassification.from_pretrained("no/such-folder", attn_implementation="fused")
    with pytest.raises(ValueError, match=refused):
        bert().set_attn_implementation("fused")


def test_the_kernel_keeps_a_padded_decoder_with_a_sliding_window_causal():
    keep = SENTENCES["attention_mask"]
    model = signed(sliding_window_model(num_attention_heads=2, num_key_value_heads=1)).to(DEVICE)
    logits = []
    for implementation in ("eager", "fused"):
        model.set_attn_implementation(implementation)
        logits.append(model(**SENTENCES).logits[keep.bool()])
    torch.testing.assert_close(*logits, rtol=1e-3, atol=1e-3)


def test_a_stock_model_cannot_take_the_kernel_by_its_name():
    stock = stock_model("bert", attn_implementation="fused", **SHAPE).to(DEVICE)
    with pytest.raises(ValueError, match="needs a signed layer, and BertSelfAttention is not signed"):
        stock(**SENTENCES)
