"""An encoder-decoder's generated tokens explained by its source."""

from contextlib import ExitStack

import numpy as np
import pytest
import torch

import hf_bidir
from hf_bidir import BidirRnnConfig, BidirRnnForSeq2SeqLM
from hf_bidir.checkpoints.layer_hooks import edited_coefficients
from hf_bidir.explain import explain, head_contributions
from hf_bidir.explain.generation import COEFFICIENT, CONTRIBUTION, MAGNITUDE
from hf_bidir.finetune.data.tokenizer import train_words
from tests.explain.conftest import asked, tokenizer, with_biases
from tests.tiny_models import STOCK

TEXT = "c a d b"
TOKENIZER = train_words(["a b c d e f"], vocab_size=20, max_length=8, ends=True)


def model_of(**options):
    torch.manual_seed(0)
    fields = {"embedding_size": 8, "hidden_size": 8, "encoder": "gru", "attn_score": "general"}
    fields |= {"decoder_start_token_id": 2, "bos_token_id": 2, "eos_token_id": 3, "max_position_embeddings": 8}
    fields |= {"vocab_size": len(TOKENIZER), "initializer_range": 1.0, "decoder_style": "luong"}
    model = BidirRnnForSeq2SeqLM(BidirRnnConfig(**fields | options)).eval()
    torch.manual_seed(2)
    torch.nn.init.normal_(model.lm_head.weight)  # makes generated words differ
    torch.nn.init.normal_(model.embeddings.weight, std=2)
    model.generation_config.max_length = 6
    return model


def cross_model(name):
    """A tiny signed encoder-decoder of transformers, which has several layers and heads of cross-attention."""
    model_class, fields = STOCK[name]
    torch.manual_seed(1)
    fields = fields | {"vocab_size": len(TOKENIZER), "decoder_start_token_id": 2, "initializer_factor": 2.0}
    stock = model_class(model_class.config_class(**fields))
    stock.generation_config.update(min_length=5, max_length=7, forced_eos_token_id=None)
    return hf_bidir.signed(with_biases(stock), negative_mass=1.0)


@pytest.mark.parametrize("name", ["luong", "bahdanau", "bart", "t5"])
def test_a_contribution_is_the_slope_of_the_generated_words_logit_over_all_layers_and_heads(name):
    recurrent = name not in STOCK
    model = model_of(decoder_style=name) if recurrent else cross_model(name)
    found, inputs = explain(model, TOKENIZER, TEXT), dict(TOKENIZER(TEXT, return_tensors="pt"))
    ids = model.generate(**inputs, num_beams=1)
    step, key, change = 2, 1, 1e-3 if recurrent else 1e-2
    crossing = [part for name, part in model.named_modules() if name.endswith(("encoder_attn", "EncDecAttention"))]
    assert len(set(ids[0].tolist())) > (3 if recurrent else 1)
    assert len(crossing) == (0 if recurrent else 2)

    def logit(factor):
        steps = iter(range(100))

        def edit(coefficients):  # a recurrent model calls its layer once per step
            if recurrent and next(steps) != step:
                return coefficients
            scaled = coefficients.clone()
            scaled[:, :, 0 if recurrent else step, key] *= factor
            return scaled

        with ExitStack() as stack, torch.no_grad():
            for layer in crossing or [model]:
                stack.enter_context(edited_coefficients(layer, edit))
            logits = model(**inputs, decoder_input_ids=ids[:, :-1]).logits
        return logits[0, step, ids[0, step + 1]] - logits[0, step].mean()

    slope = (logit(1 + change) - logit(1 - change)) / (2 * change)
    torch.testing.assert_close(found.scores[CONTRIBUTION][step, key], slope, rtol=2e-2, atol=1e-4)
    if not recurrent:
        attentions = model(**inputs, decoder_input_ids=ids[:, :-1], output_attentions=True).cross_attentions
        torch.testing.assert_close(found.scores[MAGNITUDE], torch.stack(attentions)[:, 0].abs().mean((0, 1)).detach())


@pytest.mark.parametrize("style", ["luong", "bahdanau"])
def test_coefficients_are_those_of_the_generated_text_summed_over_the_pieces_of_a_source_word(style):
    pieces = tokenizer()
    model = model_of(decoder_style=style, vocab_size=len(pieces), max_position_embeddings=12)
    found, encoding = explain(model, pieces, "a unbelievably good"), pieces("a unbelievably good", return_tensors="pt")
    inputs = {name: encoding[name] for name in ("input_ids", "attention_mask")}
    written = model.generate(**inputs)
    rows = model(**inputs, decoder_input_ids=written[:, :-1], output_attentions=True).cross_attentions[0][0, 0].detach()
    expected = torch.stack([part.sum(-1) for part in rows.split([1, 1, 3, 1, 1], -1)], -1)
    torch.testing.assert_close(found.scores[COEFFICIENT], expected)
    assert found.written == pieces.convert_ids_to_tokens(written[0, 1:])
    assert found.source == ["[CLS]", "a", "unbelievably", "good", "[SEP]"]


def test_dropout_is_off_during_generation_and_on_again_afterwards():
    model = model_of(dropout=0.9).train()
    assert explain(model, TOKENIZER, TEXT).written == explain(model, TOKENIZER, TEXT).written
    assert model.training


def test_an_encoder_decoder_has_methods_of_its_own():
    model = model_of()
    with pytest.raises(ValueError, match="erasure does not apply to BidirRnnForSeq2SeqLM; choose one of contributions"):
        explain(model, TOKENIZER, TEXT, "erasure")
    with pytest.raises(ValueError, match="leave out target"):
        explain(model, TOKENIZER, TEXT, target="c")
    with pytest.raises(ValueError, match="BidirRnnForSeq2SeqLM is an encoder-decoder"):
        asked(head_contributions, model, dict(TOKENIZER(TEXT, return_tensors="pt")))


def test_the_figure_has_a_row_per_generated_word_and_a_column_per_source_word():
    found = explain(model_of(), TOKENIZER, TEXT)
    figure = found.plot()
    panel = figure.axes[0]
    assert [label.get_text() for label in panel.get_yticklabels()] == found.written
    assert [label.get_text() for label in panel.get_xticklabels()] == found.source
    np.testing.assert_allclose(panel.images[0].get_array(), found.scores[CONTRIBUTION], atol=1e-6)
