"""The answer to a question, explained by the question and its context."""

from itertools import product

import pytest
import torch
from typer.testing import CliRunner

from hf_bidir import unsigned
from hf_bidir.cli import app
from hf_bidir.explain import explain, token_scores
from hf_bidir.explain.inputs import questions
from tests.explain.conftest import SHAPE, family, saved, tokenizer

PAIR = ("a good", "bad film un good ! a film")
INPUTS = dict(tokenizer()(*PAIR, return_tensors="pt"))
CONTEXT = range(4, 11)  # the positions of its tokens
TOKENS = ["[CLS]", "a", "good", "[SEP]", "bad", "film", "un", "good", "!", "a", "film", "[SEP]"]


@pytest.fixture
def model():
    return unsigned(family("BertForQuestionAnswering", 0.0, **SHAPE))


@torch.no_grad()
def logits(model, inputs=INPUTS):
    outputs = model(**inputs)
    return outputs.start_logits[0], outputs.end_logits[0]


def without(places):
    """The inputs with these tokens masked."""
    return INPUTS | {"attention_mask": INPUTS["attention_mask"].index_fill(1, torch.tensor(places), 0)}


def test_the_answer_is_the_span_of_the_context_with_the_largest_sum_of_logits(model):
    starts, ends = logits(model)
    spans = [(first, last) for first, last in product(CONTEXT, CONTEXT) if first <= last]
    first, last = max(spans, key=lambda span: starts[span[0]] + ends[span[1]])
    found = explain(model, tokenizer(), PAIR)
    assert found.tokens == TOKENS
    assert found.prediction == " ".join(TOKENS[first : last + 1])
    assert found.value == pytest.approx((starts[first] + ends[last]).item(), rel=1e-5)
    assert found.probability == pytest.approx((starts.softmax(0)[first] * ends.softmax(0)[last]).item(), rel=1e-4)
    assert found.explained.startswith(f'"{found.prediction}", ')
    assert found.example.texts == {"question": 0, "context": 4}
    assert "y is the start logit plus the end logit of the answer" in found.summary()


def test_a_score_is_the_fall_of_y_of_the_stock_model_with_the_word_masked(model):
    found = explain(model, tokenizer(), PAIR, "erasure", target="film un")
    starts, ends = logits(model)
    for place in range(len(TOKENS)):
        fewer = logits(model, without([place]))
        expected = starts[5] + ends[6] - fewer[0][5] - fewer[1][6]
        torch.testing.assert_close(found.scores[place], expected, rtol=1e-5, atol=2e-6)


def test_the_answer_moves_with_its_words_where_others_are_deleted_and_stays(model):
    found = explain(model, tokenizer(), PAIR, "deletion", target="film un")
    starts, ends = logits(model)
    for place, moved in ((1, (4, 5)), (8, (5, 6))):
        stays = [index for index in range(len(TOKENS)) if index != place]
        fewer = logits(model, {name: rows[:, stays] for name, rows in INPUTS.items()})
        expected = starts[5] + ends[6] - fewer[0][moved[0]] - fewer[1][moved[1]]
        torch.testing.assert_close(found.scores[place], expected, rtol=1e-4, atol=1e-5)
    assert not found.scores[[5, 6]].any()
    assert not {"film (1 of 2)", "un"} & set(found.verdict.removed)
    after = found.verdict.after
    stays = [place for place, name in enumerate(names()) if name not in found.verdict.removed]
    fewer = logits(model, {name: rows[:, stays] for name, rows in INPUTS.items()})
    assert (after.prediction, after.probability) == (None, None)  # of the shorter text it is not known
    assert after.value == pytest.approx((fewer[0][stays.index(5)] + fewer[1][stays.index(6)]).item(), abs=1e-5)


def names():
    equal = {name: [place for place, other in enumerate(TOKENS) if other == name] for name in TOKENS}
    return [
        f"{name} ({equal[name].index(place) + 1} of {len(equal[name])})" if len(equal[name]) > 1 else name
        for place, name in enumerate(TOKENS)
    ]


@pytest.mark.parametrize("method", ["attnlrp", "contributions", "integrated-gradients"])
def test_scores_of_methods_with_gradients_are_those_of_the_start_plus_those_of_the_end(model, method):
    def scores(first, last):
        return token_scores(model, INPUTS, method, position=torch.tensor([[first, last]]))

    torch.testing.assert_close(scores(5, 6) + scores(7, 8), scores(5, 8) + scores(7, 6), rtol=1e-3, atol=1e-5)


def test_of_a_long_context_the_window_with_the_most_likely_answer_is_explained_with_a_note(model, monkeypatch):
    monkeypatch.setattr(questions, "OVERLAP", 2)
    pieces = ("bad film un good ! a film good good ! ! un bad a film" * 2).split()
    found = explain(model, tokenizer(), (PAIR[0], " ".join(pieces)), "contributions")
    best = {}
    for begin in range(0, len(pieces) - 2, 5):  # seven tokens, two of them in the window before
        window = pieces[begin : begin + 7]
        inputs = tokenizer()(PAIR[0], " ".join(window), return_tensors="pt")
        starts, ends = (part.softmax(0) for part in logits(model, inputs))
        for first, last in product(range(len(window)), range(len(window))):
            if first <= last:
                share = (starts[4 + first] * ends[4 + last]).item()
                best[share] = (window, " ".join(window[first : last + 1]))
    assert (found.tokens[4:-1], found.prediction) == best[max(best)]
    assert found.probability == pytest.approx(max(best), rel=1e-4)
    assert f"of {len(range(0, len(pieces) - 2, 5))} windows that overlap" in found.notes[0]


def test_a_named_answer_is_explained_beside_the_predicted_one(model):
    predicted, named = (explain(model, tokenizer(), PAIR, target=target) for target in (None, "bad"))
    assert named.prediction == predicted.prediction != "bad"
    assert named.explained.startswith('"bad", ')
    assert f' Prediction: "{predicted.prediction}", ' in named.explained


def test_the_command_explains_a_question_of_a_checkpoint(model, tmp_path):
    folder = saved(model, tokenizer(), tmp_path / "model")
    command = ["explain", folder, PAIR[0], "--text", PAIR[1], "--target", "un good", "--output", tmp_path / "out"]
    result = CliRunner().invoke(app, list(map(str, command)), catch_exceptions=False)
    assert '"un good", ' in result.output
    assert "<small>context</small>" in (tmp_path / "out/index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("inputs", "options", "named"),
    [
        ("a good film", {}, r"expected a question and its context .* \(--text CONTEXT\)"),
        (PAIR, {"target": "fil"}, "a target that occurs in the context, .* got 'fil'"),
        (PAIR, {"instead_of": "film"}, "choose another answer by target alone"),
        (("a good " * 5, "film"), {}, "the question has 10 tokens; with its context the model reads at most 12"),
        ((PAIR[0], " "), {}, "at least one word, got 'a good' and ' '"),
        (INPUTS, {}, "or a pair of texts as a tuple"),
        ([PAIR, PAIR[0]], {}, r"inputs\[1\]: expected a question and its context"),
    ],
)
def test_bad_input_is_one_error_that_names_it(model, inputs, options, named):
    with pytest.raises(ValueError, match=named):
        explain(model, tokenizer(), inputs, **options)


CHOICES = ["bad film", "good !", "un un"]


@torch.no_grad()
def choice_logits(model, question, choices):
    inputs = tokenizer()([question] * len(choices), choices, padding=True, return_tensors="pt")
    return model(**{name: rows.unsqueeze(0) for name, rows in inputs.items()}).logits[0]


def test_of_several_choices_the_most_likely_one_is_explained_as_the_stock_model_scores_it():
    chooser = unsigned(family("BertForMultipleChoice", 0.0, **SHAPE))
    logits = choice_logits(chooser, "a film", CHOICES)
    best = int(logits.argmax())
    found = explain(chooser, tokenizer(), ("a film", CHOICES), "deletion")
    question, chosen = ["a", "film"], CHOICES[best].split()
    assert found.tokens == ["[CLS]", *question, "[SEP]", *chosen, "[SEP]"]
    assert found.value == pytest.approx(logits[best].item(), abs=1e-6)
    assert f'most likely choice: "{CHOICES[best]}", {100 * logits.softmax(0)[best]:.3g} %;' in found.notes[0]
    fewer = choice_logits(chooser, "film", CHOICES)[best]
    assert found.scores[1].item() == pytest.approx((logits[best] - fewer).item(), abs=1e-6)


@pytest.mark.parametrize("method", ["attnlrp", "contributions", "erasure", "integrated-gradients"])
def test_a_pair_is_one_choice(method):
    chooser = family("BertForMultipleChoice", **SHAPE)
    found = explain(chooser, tokenizer(), ("a film", "good !"), method)
    assert found.value == pytest.approx(choice_logits(chooser, "a film", ["good !"]).item(), abs=1e-6)
    assert found.explained.startswith("Explained: the logit of the choice")
    assert found.scores.any()


def test_a_question_without_a_choice_is_refused():
    with pytest.raises(ValueError, match="expected a question and its choices for BidirBertForMultipleChoice"):
        explain(family("BertForMultipleChoice", **SHAPE), tokenizer(), "a film")
