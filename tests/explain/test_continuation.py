"""Tokens that follow a prompt, explained one by one, and the next token alone."""

import copy

import pytest
import torch
import transformers
from typer.testing import CliRunner

import hf_bidir
from hf_bidir.cli import app
from hf_bidir.explain import (
    METHODS,
    ForwardCache,
    Request,
    explain,
    integrated_gradients,
    methods,
    token_scores,
)
from hf_bidir.explain.inputs.text import shortened, signed, spelled, visible
from hf_bidir.explain.methods import scored
from hf_bidir.finetune.data.tokenizer import train_byte_level
from tests.explain.conftest import asked, saved, with_biases

PROMPT, NEXT = "the film was", "not good"
TOKENIZER = train_byte_level([f"{PROMPT} {NEXT} and the film was bad"] * 9, vocab_size=290, max_length=16)
SHAPES = {
    "GPT2LMHeadModel": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16},
    "LlamaForCausalLM": {
        **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
        **{"intermediate_size": 16, "max_position_embeddings": 16},
    },
}


def signed_model(name="LlamaForCausalLM"):
    head = getattr(transformers, name)
    special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    torch.manual_seed(0)
    config = head.config_class(**SHAPES[name], **special, vocab_size=len(TOKENIZER), initializer_range=0.4)
    return hf_bidir.signed(with_biases(head(config)), negative_mass=1.0)


@pytest.fixture
def model():
    return signed_model()


def continued(model, **choices):
    return explain(model, TOKENIZER, PROMPT, continuation=NEXT, **choices)


def tokens_of(text):
    return TOKENIZER(text, return_tensors="pt")["input_ids"]


@pytest.mark.parametrize("method", ["attnlrp", "contributions", "erasure", "deletion", "flow"])
@pytest.mark.parametrize("name", SHAPES)
def test_every_row_equals_the_explanation_of_its_token_alone(method, name, monkeypatch):
    monkeypatch.setattr(methods, "ROWS", 2)
    model, ids = signed_model(name), tokens_of(f"{PROMPT} {NEXT}")
    predictions, positions = ids[0, 3:], torch.arange(2, ids.shape[1] - 1)
    inputs = {"input_ids": ids[:, :-1], "attention_mask": torch.ones_like(ids[:, :-1])}
    rows, _, _ = scored(ForwardCache(model, inputs), Request(method, predictions, position=positions))
    assert rows.shape == (len(predictions), ids.shape[1] - 1)
    for row, prediction, position in zip(rows, predictions.tolist(), positions.tolist(), strict=True):
        alone = {name: value[:, : position + 1] for name, value in inputs.items()}
        expected = token_scores(model, alone, method, prediction, position=position)[0].detach()
        torch.testing.assert_close(row[: position + 1], expected, rtol=1e-3, atol=1e-5)
        assert row[position + 1 :].abs().sum() < 1e-4


def test_a_given_continuation_is_explained_token_by_token(model):
    found = continued(model)
    assert "".join(found.written) == f" {NEXT}"
    assert found.source == [*PROMPT.split(), *found.written[:-1]]
    (scores,) = found.scores.values()
    assert scores.shape == (len(found.written), len(found.source))
    assert found.explained == f'Continuation: "{NEXT}".'
    shares = model(tokens_of(f"{PROMPT} {NEXT}")).logits[0].softmax(-1)
    expected = [shares[2 + step, token].item() for step, token in enumerate(tokens_of(f" {NEXT}")[0].tolist())]
    assert found.probabilities == pytest.approx(expected, rel=1e-4)


def test_words_of_a_prompt_are_ranked_by_their_sums_over_the_continuation_and_tokens_in_a_row_of_their_own(model):
    found = continued(model, method="attnlrp")
    (scores,) = found.scores.values()
    torch.testing.assert_close(found.listing.scores, scores[:, :3].sum(0))
    title, first, *others, _ = found.summary(top=1).splitlines()
    strongest = int(found.listing.scores.abs().argmax())
    assert (title, first.split()) == (
        found.explained,
        [signed(found.listing.scores[strongest]), found.source[strongest]],
    )
    assert "summed over the continuation" in others[0]
    prompt, generated = others[-1].split("│")
    assert [word in generated for word in found.source[3:]] == [True] * len(found.source[3:])
    assert not any(word in prompt for word in found.written[:-1])


def test_without_a_continuation_the_generated_text_is_explained(model):
    found = explain(model, TOKENIZER, PROMPT, new_tokens=4)
    written = model.generate(tokens_of(PROMPT), max_new_tokens=4, do_sample=False)[0, 3:]
    assert found.written == spelled(TOKENIZER, written.tolist())


def test_the_command_explains_the_next_token_a_target_and_what_follows(model, tmp_path):
    folder = saved(model, TOKENIZER, tmp_path / "model")

    def run(*words):
        command = ["explain", folder, PROMPT, "--output", tmp_path / "out", *words]
        result = CliRunner().invoke(app, list(map(str, command)))
        assert result.exit_code == 0, result.output
        return result.output

    assert 'y is the logit of "bad" minus the mean of all tokens' in run("--target", "bad")
    generated = run("--new-tokens", 3, "--method", "attnlrp")
    assert "AttnLRP: relevance for y, propagated backwards, summed over the continuation; y is" in generated
    assert "There is no verdict: " in generated


def test_a_continuation_explained_without_signs_prints_none(model):
    told = continued(model, method="rollout").summary()
    assert "+" not in told
    assert "y is" not in told


def test_where_erasure_would_take_long_the_output_says_that_a_fast_method_stands_in(model):
    words = len(explain(model, TOKENIZER, PROMPT).tokens)
    assert explain(model, TOKENIZER, PROMPT, budget=words).method == "erasure"
    assert "segments=" not in explain(model, TOKENIZER, PROMPT, budget=1, segments=PROMPT.split()).notes[0]
    found = continued(model, budget=words)  # whose first tokens the others read
    assert "would need" in found.notes[0]
    assert METHODS["attnlrp"].what in found.reading
    found = explain(model, TOKENIZER, PROMPT, budget=words - 1)
    assert (found.method, f"would need {words} forward passes" in found.notes[0]) == ("attnlrp", True)
    assert explain(model, TOKENIZER, PROMPT, "attnlrp").notes == []


def test_where_the_cheap_default_has_no_rule_contributions_stand_in(model):
    changed = copy.deepcopy(model)
    changed.lm_head = torch.nn.Sequential(Fourier(), changed.lm_head)
    found = explain(changed, TOKENIZER, PROMPT, budget=1)
    assert found.method == "contributions"
    assert "The default method, attnlrp, does not apply: " in found.notes[0]
    with pytest.raises(ValueError, match="fft_fft"):
        explain(changed, TOKENIZER, PROMPT, "attnlrp")


class Fourier(torch.nn.Module):
    def forward(self, states):
        return torch.fft.fft(states).real


def test_a_contrast_of_two_words_explains_the_difference_of_their_logits(model):
    found = explain(model, TOKENIZER, PROMPT, target="good", instead_of="bad")
    good, bad = (explain(model, TOKENIZER, PROMPT, target=word) for word in ("good", "bad"))
    torch.testing.assert_close(found.scores, good.scores - bad.scores, atol=1e-5, rtol=1e-3)
    assert (found.target, found.instead_of) == (good.target, bad.target)
    assert 'the logit of "good" minus that of "bad"' in found.reading


def test_erasure_of_several_outputs_takes_as_many_rows_as_one(model):
    rows = []
    model.register_forward_pre_hook(lambda *call: rows.append(len(call[-1]["input_ids"])), with_kwargs=True)
    ids = tokens_of(f"{PROMPT} {NEXT}")
    for targets in (torch.tensor([5]), torch.tensor([5, 6, 7])):
        cache = ForwardCache(model, {"input_ids": ids})
        scored(cache, Request("erasure", targets, position=torch.full_like(targets, 3)))
    assert rows == [1, ids.shape[1]] * 2


def test_attnlrp_of_a_prompt_keeps_no_coefficients(model):
    kept = []
    for layer in model.model.layers:
        layer.self_attn.register_forward_hook(lambda *call: kept.append(call[-1][1]))
    explain(model, TOKENIZER, PROMPT, "attnlrp", verdict=False)
    assert kept
    assert all(coefficients is None for coefficients in kept)


def test_the_first_token_of_causal_attention_stays_in_the_baseline_as_the_sink(model):
    inputs, options = {"input_ids": tokens_of(PROMPT)}, {"target": 7, "position": 2}
    scores = asked(integrated_gradients, model, inputs, **options)
    assert not scores[:, 0].any()
    assert scores[:, 1:].all()


@pytest.mark.parametrize(
    ("text", "chosen", "named"),
    [
        (PROMPT, {"continuation": " "}, "' '"),
        (PROMPT * 9, {}, r"the prompt has \d+ tokens, but Bidir\w+ reads at most 16"),
        (PROMPT, {"new_tokens": 20}, "the prompt has 3 tokens and 20 follow"),
        (PROMPT, {"target": "unheard"}, r"'unheard' .*'u' \+ 'n' \+ "),
        (PROMPT, {"target": " "}, "' '"),
        (PROMPT, {"target": "bad", "new_tokens": 2}, "leave out target"),
        (PROMPT, {"continuation": NEXT, "new_tokens": 2}, "got both"),
        ([PROMPT], {"new_tokens": 2}, "a single prompt to continue, got a list"),
    ],
)
def test_bad_input_is_one_error_that_names_it(text, chosen, named, model):
    with pytest.raises(ValueError, match=named):
        explain(model, TOKENIZER, text, **chosen)


def test_a_prompt_that_the_tokenizer_would_cut_is_refused(model):
    tokenizer = copy.deepcopy(TOKENIZER)
    tokenizer.model_max_length = 4
    with pytest.raises(ValueError, match=r"the prompt has \d+ tokens, but .* reads at most 4"):
        explain(model, tokenizer, PROMPT * 3)


def test_a_long_token_is_shortened_to_its_length():
    assert [len(shortened("a" * length, 5)) for length in (4, 5, 6, 9)] == [4, 5, 5, 5]


def test_blank_and_control_characters_become_visible():
    tokens = (" good", "\n\n", ".\n", "\x03", "", "👨\u200d👧")
    assert [visible(token) for token in tokens] == [" good", "␣␣", ".␣", "␣", "", "👨\u200d👧"]
