"""Tokens that follow a prompt, explained one by one, and the next token alone."""

import copy
import re
from dataclasses import replace

import pytest
import torch
import transformers
from typer.testing import CliRunner

import hf_bidir
from hf_bidir.cli import app
from hf_bidir.explain import (
    METHODS,
    Request,
    explain,
    explain_continuation,
    integrated_gradients,
    integrated_relevance,
    load_checkpoint,
    request,
    token_scores,
)
from hf_bidir.explain.generation import prediction_scores
from hf_bidir.explain.inputs.text import spelled, visible
from hf_bidir.finetune.data.tokenizer import train_byte_level
from tests.explain.conftest import asked, explained, saved, with_biases

PROMPT, NEXT = "the film was", "not good"
TOKENIZER = train_byte_level([f"{PROMPT} {NEXT} and the film was bad"] * 9, vocab_size=290, max_length=16)
SHAPES = {
    "GPT2LMHeadModel": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16},
    "LlamaForCausalLM": {
        **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
        **{"intermediate_size": 16, "max_position_embeddings": 16},
    },
}


def stock_model(name):
    head = getattr(transformers, name)
    special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    torch.manual_seed(0)
    config = head.config_class(**SHAPES[name], **special, vocab_size=len(TOKENIZER), initializer_range=0.4)
    return with_biases(head(config))


@pytest.fixture
def model():
    return hf_bidir.signed(stock_model("LlamaForCausalLM"), negative_mass=1.0)


@pytest.fixture
def folder(model, tmp_path):
    return str(saved(model, TOKENIZER, tmp_path / "model"))


@pytest.mark.parametrize(
    "method", ["attnlrp", "integrated-attnlrp", "contributions", "erasure", "erasure-token", "flow"]
)
@pytest.mark.parametrize("name", SHAPES)
def test_every_row_equals_the_explanation_of_its_token_alone(method, name):
    model = hf_bidir.signed(stock_model(name), negative_mass=1.0)
    ids = TOKENIZER(f"{PROMPT} {NEXT}", return_tensors="pt")["input_ids"]
    predictions, positions = ids[0, 3:], torch.arange(2, ids.shape[1] - 1)
    inputs = {"input_ids": ids[:, :-1], "attention_mask": torch.ones_like(ids[:, :-1])}
    rows = prediction_scores(model, inputs, Request(method, predictions, position=positions), batch_size=2)
    assert rows.shape == (len(predictions), ids.shape[1] - 1)
    for row, prediction, position in zip(rows, predictions.tolist(), positions.tolist(), strict=True):
        alone = {name: value[:, : position + 1] for name, value in inputs.items()}
        expected = token_scores(model, alone, method, prediction, position=position)[0].detach()
        torch.testing.assert_close(row[: position + 1], expected, rtol=1e-3, atol=1e-5)
        assert row[position + 1 :].abs().sum() < 1e-4


def test_a_given_continuation_is_explained_token_by_token(model):
    found = explain_continuation(model, TOKENIZER, PROMPT, NEXT)
    assert "".join(found.written) == f" {NEXT}"
    assert found.source == [*PROMPT.split(), *found.written[:-1]]
    assert found.scores["Δy"].shape == (len(found.written), len(found.source))
    assert found.explained == f"{PROMPT} → {NEXT}"
    logits = model(**TOKENIZER(f"{PROMPT} {NEXT}", return_tensors="pt")).logits[0].softmax(-1)
    first = TOKENIZER(f" {NEXT}")["input_ids"][0]
    assert found.probabilities[0] == pytest.approx(logits[2, first].item(), rel=1e-4)
    assert f"{found.written[0]} ({found.probabilities[0]:.1%})  " in found.summary()


def test_explain_takes_the_continuation_of_a_single_prompt(model):
    found = explain(model, TOKENIZER, PROMPT, continuation=NEXT)
    expected = explain_continuation(model, TOKENIZER, PROMPT, NEXT)
    assert found.written == expected.written
    torch.testing.assert_close(found.scores["Δy"], expected.scores["Δy"])
    with pytest.raises(ValueError, match="expected a single prompt to continue, got a list"):
        explain(model, TOKENIZER, [PROMPT], new_tokens=2)


def test_without_a_continuation_the_generated_text_is_explained(model):
    found = explain_continuation(model, TOKENIZER, PROMPT, new_tokens=4)
    inputs = TOKENIZER(PROMPT, return_tensors="pt")
    written = model.generate(**inputs, max_new_tokens=4, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert found.written == spelled(TOKENIZER, written.tolist())


def test_y_is_the_logit_minus_the_mean_so_a_shift_of_all_logits_changes_nothing(model):
    class Shifted(torch.nn.Module):
        def __init__(self, head):
            super().__init__()
            self.head = head

        def forward(self, states):
            return self.head(states) + states.sum(-1, keepdim=True)

    inputs = TOKENIZER(PROMPT, return_tensors="pt")
    before = token_scores(model, inputs, position=2, target=7)
    model.lm_head = Shifted(model.lm_head)
    torch.testing.assert_close(token_scores(model, inputs, position=2, target=7), before, rtol=1e-4, atol=1e-5)


def test_the_page_colours_the_tokens_that_each_token_attends_to(folder):
    found = explained(folder, PROMPT, continuation=NEXT)
    page = found.page()
    parts = page.split("<h2>→ ")[1:]
    assert len(parts) == len(found.written) == found._repr_html_().count("<h2>→ ")
    assert [part.count('<span class="word">') for part in parts] == [2 * (3 + step) for step in range(len(parts))]
    units = re.findall(r'<div class="scale">.*<span>(.*?)</span></div>', page)
    assert (len(units), units[1]) == (2, "Δy")  # a colour bar for all rows of coefficients, one for those of scores


def test_beside_each_token_stand_the_coefficients_at_the_position_before_it(folder):
    source = load_checkpoint(folder)
    found = explained(source, PROMPT, continuation=NEXT, layer=1, head=1, method="contributions")
    ids = source[1](f"{PROMPT} {NEXT}", return_tensors="pt")["input_ids"][:, :-1]
    coefficients = source[0](ids, output_attentions=True).attentions[1][0, 1]
    torch.testing.assert_close(found.scores["a of layer 1, head 1"], coefficients[-len(found.written) :])


def test_the_command_explains_the_next_token_a_target_and_what_follows(folder, tmp_path):
    def run(*words):
        result = CliRunner().invoke(app, ["explain", folder, PROMPT, "--output", str(tmp_path / "out"), *words])
        assert result.exit_code == 0, result.output
        return result.output, {path.name for path in (tmp_path / "out").iterdir()}

    told, files = run()
    assert "minus the mean of all tokens" in told
    assert "erasure is the default for the next token of causal language models" in told
    assert files == {"index.html"}
    told, _ = run("--target", "bad", "--method", "erasure")
    assert 'Explained: y, the logit of " bad" minus' in told
    told, files = run("--new-tokens", "3", "--method", "attnlrp")
    assert "AttnLRP: relevance for y, propagated backwards; y is the logit" in told
    assert files == {"index.html"}


def test_a_continuation_whose_scores_are_small_beside_y_has_a_warning_and_pale_colours(folder):
    found = explained(folder, PROMPT, continuation=NEXT)
    assert not found.notes
    small = replace(found, scores={unit: rows / 1e4 for unit, rows in found.scores.items()})
    told = "These scores explain almost nothing"
    assert [told in text for text in (small.summary(), small.page(), small._repr_html_())] == [True] * 3
    assert small.limit("Δy") == max(map(abs, found.values))
    assert not replace(small, values=()).notes


def test_a_continuation_explained_without_signs_prints_none(folder):
    told = explained(folder, PROMPT, continuation=NEXT, method="rollout").summary()
    assert "+" not in told.partition("Largest magnitude first:")[2]
    assert "y is" not in told


def test_where_erasure_would_take_long_the_output_says_that_a_fast_method_stands_in(model, monkeypatch):
    inputs = TOKENIZER(PROMPT, return_tensors="pt")
    length = inputs["input_ids"].shape[1]
    monkeypatch.setattr(request, "AFFORDABLE", length)
    assert explain(model, TOKENIZER, PROMPT).method == "erasure"
    told = explain_continuation(model, TOKENIZER, PROMPT, NEXT).summary()  # whose first tokens the others read
    assert "would need" in told.partition("Largest magnitude first:")[0]
    assert METHODS["attnlrp"].what in told
    monkeypatch.setattr(request, "AFFORDABLE", length - 1)
    found = explain(model, TOKENIZER, PROMPT)
    assert (found.method, f"would need {length} forward passes" in found.notes[0]) == ("attnlrp", True)
    assert explain(model, TOKENIZER, PROMPT, "attnlrp").notes == []


def test_a_contrast_of_two_words_explains_the_difference_of_their_logits(model):
    found = explain(model, TOKENIZER, PROMPT, target="good", instead_of="bad")
    good, bad = (explain(model, TOKENIZER, PROMPT, target=word) for word in ("good", "bad"))
    torch.testing.assert_close(found.scores, good.scores - bad.scores, atol=1e-5, rtol=1e-3)
    assert (found.target, found.instead_of) == (good.target, bad.target)
    assert 'the logit of " good" minus that of " bad"' in found.explained


def test_erasure_of_several_outputs_takes_as_many_rows_as_one(model):
    rows = []
    model.register_forward_pre_hook(lambda *call: rows.append(len(call[-1]["input_ids"])), with_kwargs=True)
    ids = TOKENIZER(f"{PROMPT} {NEXT}", return_tensors="pt")["input_ids"]
    for targets in (torch.tensor([5]), torch.tensor([5, 6, 7])):
        prediction_scores(model, {"input_ids": ids}, Request("erasure", targets, position=torch.full_like(targets, 3)))
    assert rows == [1, ids.shape[1]] * 2


@pytest.mark.parametrize("method", [integrated_gradients, integrated_relevance])
def test_the_first_token_of_causal_attention_stays_in_the_baseline_as_the_sink(method, model):
    inputs = TOKENIZER(PROMPT, return_tensors="pt")
    options = {"target": 7, "position": inputs["input_ids"].shape[1] - 1}
    scores = asked(method, model, inputs, **options)
    assert not scores[:, 0].any()
    assert scores[:, 1:].all()
    assert asked(method, model, inputs, **options, keep_first=False)[:, 0].all()


@pytest.mark.parametrize(
    ("text", "chosen", "told"),
    [
        ("", {}, "expected a text with at least one word"),
        (PROMPT, {"continuation": " "}, "expected a continuation with at least one word"),
        (PROMPT * 9, {}, r"the prompt has \d+ tokens, but Bidir\w+ reads at most 16; shorten it"),
        (PROMPT, {"new_tokens": 20}, "the prompt has 3 tokens and 20 follow, but "),
        (PROMPT, {"target": "unheard"}, r"'unheard' is not one token of the vocabulary, but ' ' \+ 'u' \+ 'n' \+ "),
        (PROMPT, {"target": " "}, "expected a word of the vocabulary"),
        (PROMPT, {"target": "bad", "new_tokens": 2}, "is explained for each token that follows; leave out target"),
        (
            PROMPT,
            {"instead_of": "bad", "new_tokens": 2},
            "is explained for each token that follows; leave out instead_of",
        ),
        (PROMPT, {"continuation": NEXT, "new_tokens": 2}, "expected a continuation .* or new_tokens"),
    ],
)
def test_bad_input_is_one_error_with_the_expectation(text, chosen, told, folder):
    with pytest.raises(ValueError, match=told):
        explained(folder, text, **chosen)


def test_a_prompt_that_the_tokenizer_would_cut_is_refused(model):
    tokenizer = copy.deepcopy(TOKENIZER)
    tokenizer.model_max_length = 4
    with pytest.raises(ValueError, match=r"the prompt has \d+ tokens, but .* reads at most 4; shorten it"):
        explain(model, tokenizer, PROMPT * 3)


def test_a_masked_language_model_takes_no_continuation():
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = hf_bidir.BidirBertForMaskedLM(hf_bidir.BidirBertConfig(vocab_size=len(TOKENIZER), **shape))
    with pytest.raises(ValueError, match="BidirBertForMaskedLM does not generate text"):
        explained((model, TOKENIZER), PROMPT, new_tokens=3)


def test_blank_and_control_characters_become_visible():
    tokens = (" good", "\n\n", ".\n", "\x03", "", "👨\u200d👧")
    assert [visible(token) for token in tokens] == [" good", "␣␣", ".␣", "␣", "", "👨\u200d👧"]
