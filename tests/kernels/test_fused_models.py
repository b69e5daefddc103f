"""Whole models on the Triton kernels: `attn_implementation="fused"`."""

import pytest
import torch

from hf_bidir import signed
from hf_bidir.modeling import signed_layers
from tests.tiny_models import inputs_of, sliding_window_model, stock_model

pytest.importorskip("triton")

from tests.kernels.fused_inputs import distance

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
    model.config.attn_scope = "window" if window else "global"
    model.config.attn_window = window
    plainly, got = (loss_and_gradients(model, SENTENCES, path) for path in ("eager", "fused"))
    gold = loss_and_gradients(model.double(), SENTENCES, "eager")
    # large weights make rounding errors large, also those of the plain path
    for ours, theirs, exact in zip(distance(got, gold), distance(plainly, gold), gold, strict=True):
        assert ours <= 4 * theirs + 1e-5 * (exact.norm() + 1)


def test_the_kernel_gets_padding_as_one_row_for_all_queries_and_dropout_in_training_only(monkeypatch):
    model = bert(attention_probs_dropout_prob=0.5)
    calls = []
    model.set_attn_implementation("fused")
    attend = signed_layers.attend

    def recording(query, key, value, keep, call, implementation):
        calls.append((tuple(keep.shape), call.dropout, implementation))
        return attend(query, key, value, keep, call, implementation)

    monkeypatch.setattr(signed_layers, "attend", recording)
    for training in (True, False):
        model.train(training)(**SENTENCES)
    assert calls == [((3, 1, 1, 9), dropout, "fused") for dropout in (0.5, 0.5, 0.0, 0.0)]


def test_a_machine_without_a_gpu_refuses_the_kernel(monkeypatch):
    backend = signed_layers.BACKENDS["fused"]._replace(obstacle=lambda: "torch sees no GPU")
    monkeypatch.setitem(signed_layers.BACKENDS, "fused", backend)
    refused = 'attn_implementation="fused" cannot run here: torch sees no GPU; use "sdpa"'
    model = bert()
    model.set_attn_implementation("fused")
    with pytest.raises(ValueError, match=refused):
        model(**SENTENCES)


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
