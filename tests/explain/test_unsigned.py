"""Models that cannot be signed, and encoder-decoders that classify, are explained by deletion."""

import pytest
import torch
from transformers import BartForSequenceClassification, FNetForSequenceClassification, Qwen3NextForTokenClassification

from hf_bidir.explain import default_method, explain, load_checkpoint
from hf_bidir.explain.request import methods_of
from tests.explain.conftest import WIDTHS, family, saved, tokenizer

SPECIAL = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
SIZES = {"vocab_size": 40, "max_position_embeddings": 24, **SPECIAL}


def tiny(head, **options):
    torch.manual_seed(0)
    return head(head.config_class(**SIZES | options)).eval()


def fnet():
    widths = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32, "initializer_range": 0.4}
    return tiny(FNetForSequenceClassification, **widths)


def bart():
    end = tokenizer().sep_token_id
    others = {"eos_token_id": end, "decoder_start_token_id": end, "init_std": 0.4}
    sizes = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    return tiny(BartForSequenceClassification, d_model=16, encoder_ffn_dim=32, decoder_ffn_dim=32, **sizes | others)


@torch.no_grad()
def fall(model, text, fewer, target):
    whole, rest = (model(**tokenizer()(*given, return_tensors="pt")).logits[0, target] for given in (text, fewer))
    return (whole - rest).item()


@pytest.mark.parametrize(("model", "method"), [(fnet, "deletion"), (bart, None)])
def test_a_score_is_the_fall_of_y_of_the_stock_model_without_the_word(model, method):
    model = model()
    found = explain(model, tokenizer(), ("a good film", "un bad !"), method)
    assert found.method == "deletion"
    assert found.tokens[1:4] == ["a", "good", "film"]
    expected = fall(model, ("a good film", "un bad !"), ("a film", "un bad !"), found.target)
    assert found.scores[2].item() == pytest.approx(expected, abs=1e-6)
    assert found.verdict.missing == "to a model that only deletion explains"


@pytest.mark.parametrize("model", [fnet, bart])
def test_a_checkpoint_is_explained_as_the_model_in_memory(model, tmp_path):
    folder, pair = saved(model(), tokenizer(), tmp_path), ("a good film", "un bad !")
    found = explain(*load_checkpoint(folder), pair, "deletion")
    torch.testing.assert_close(found.scores, explain(model(), tokenizer(), pair, "deletion").scores)
    assert found.verdict.missing == "to a model that only deletion explains"


def test_a_model_without_attention_is_refused_with_the_method_that_needs_none():
    with pytest.raises(ValueError, match=r"no layer that computes softmax attention.*--method deletion"):
        explain(fnet(), tokenizer(), "a good film")


def test_erasure_leaves_out_models_with_other_layers_that_mix_tokens():
    hybrid = family(
        "Qwen3NextForTokenClassification",
        **WIDTHS | {"num_hidden_layers": 2},
        layer_types=["linear_attention", "full_attention"],
    )
    assert isinstance(hybrid, Qwen3NextForTokenClassification)
    assert "erasure" not in methods_of(hybrid)
    assert (default_method(hybrid, 10), default_method(hybrid, 1000)) == ("deletion", "attnlrp")
