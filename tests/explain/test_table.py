"""Several predictions for one text: the words of a tagger, and the labels that apply."""

import re

import pytest
import torch
from typer.testing import CliRunner

from hf_bidir import unsigned
from hf_bidir.cli import app
from hf_bidir.explain import alignment, explain, explain_each
from hf_bidir.explain.inputs.text import percent
from tests.explain.conftest import SHAPE, bert, family, saved, tokenizer

TEXT = "a unbelievably good film bad film"
TAGS = {"id2label": dict(enumerate(["O", "PER", "LOC"])), "label2id": {"O": 0, "PER": 1, "LOC": 2}}
LABELS = {"id2label": dict(enumerate("abcd")), "label2id": {name: index for index, name in enumerate("abcd")}}
FIRSTS = {"a": 1, "unbelievably": 2, "good": 5, "film (1 of 2)": 6, "bad": 7, "film (2 of 2)": 8}
INPUTS = dict(tokenizer()(TEXT, return_tensors="pt"))


@pytest.fixture
def tagger():
    """A model that gives half of the words a label."""
    model = unsigned(family("BertForTokenClassification", 0.0, **SHAPE, **TAGS))
    model.classifier.bias.data[0] += 2.465
    return model


@pytest.fixture
def labeller():
    """A model of which the first three labels apply."""
    model = unsigned(bert(0.0, **LABELS, problem_type="multi_label_classification"))
    model.classifier.bias.data = torch.tensor([9.0, 8.0, 7.0, -9.0])
    return model


@torch.no_grad()
def falls(model, places, row, column):
    """The fall of a logit of the stock model with these tokens masked."""
    keep = INPUTS["attention_mask"].index_fill(1, torch.tensor(places), 0)
    whole, rest = (model(**INPUTS | {"attention_mask": mask}).logits[0] for mask in (INPUTS["attention_mask"], keep))
    whole, rest = (logits if row is None else logits[row] for logits in (whole, rest))
    return whole[column] - rest[column]


def test_each_word_with_a_label_has_a_row_whose_scores_equal_masking_in_the_stock_model(tagger):
    logits = tagger(**INPUTS).logits[0].detach()
    labels = logits.argmax(-1).tolist()
    marked = {name: place for name, place in FIRSTS.items() if labels[place]}
    assert list(marked) == ["a", "good", "bad"]
    found = explain(tagger, tokenizer(), TEXT)
    expected = [
        (name, TAGS["id2label"][labels[place]], logits[place].softmax(-1).max()) for name, place in marked.items()
    ]
    assert found.written == [f"{name}: {label}, {percent(share.item())}" for name, label, share in expected]
    (scores,) = found.scores.values()
    for row, place in zip(scores, marked.values(), strict=True):
        for column, places in ((2, [2, 3, 4]), (5, [7])):
            torch.testing.assert_close(row[column], falls(tagger, places, place, labels[place]), rtol=1e-5, atol=2e-6)
    assert f"{len(marked)} predictions: " in found.summary()
    assert "y is the logit of the label of a row" in found.summary()


@pytest.mark.parametrize("name", ["a", "bad", "film (2 of 2)", 7])
def test_a_position_is_a_word_or_the_number_of_a_token(tagger, name):
    found = explain(tagger, tokenizer(), TEXT, position=name)
    place = FIRSTS.get(name, name)
    logits = tagger(**INPUTS).logits[0, place]
    assert (found.value, found.target) == (pytest.approx(logits.max().item(), rel=1e-5), logits.argmax())
    assert found.prediction == TAGS["id2label"][found.target]


@pytest.mark.parametrize("name", ["film", "good film", "xyz"])
def test_a_word_that_is_not_one_of_the_text_is_an_error_that_lists_the_positions(tagger, name):
    with pytest.raises(ValueError, match=rf"6 film, 7 bad, 8 film, 9 \[SEP\]; got '{name}'"):
        explain(tagger, tokenizer(), TEXT, position=name)


def test_without_a_label_all_words_have_a_row_up_to_a_number(tagger, monkeypatch):
    tagger.config.id2label = {0: "O", 1: "O", 2: "O"}
    assert [row.partition(": ")[0] for row in explain(tagger, tokenizer(), TEXT).written] == list(FIRSTS)
    monkeypatch.setattr(alignment, "MOST", 4)
    found = explain(tagger, tokenizer(), TEXT)
    assert len(found.written) == 4
    assert "Only the first 4 of 6 words have a row" in found.notes[0]


def test_one_word_with_a_label_is_explained_like_a_position(tagger):
    tagger.classifier.bias.data[0] += 0.1
    found, alone = explain(tagger, tokenizer(), TEXT), explain(tagger, tokenizer(), TEXT, position="a")
    assert found.explained == alone.explained
    assert found.explained.startswith("a: ")
    torch.testing.assert_close(found.scores, alone.scores)


def test_special_tokens_that_outweigh_every_word_of_a_row_are_named(tagger):
    found = explain(tagger, tokenizer(), TEXT, "deletion")
    (scores,) = found.scores.values()
    special = torch.tensor(found.example.special)
    largest = [row[special].abs().max() > row[~special].abs().max() for row in scores]
    assert any(largest)
    assert found.notes[0].startswith(f"In {sum(largest)} of {len(scores)} rows [")
    assert found.notes[0].endswith("] outweighs every word.")


def test_a_target_is_explained_at_each_word_with_a_label(tagger):
    found = explain(tagger, tokenizer(), TEXT, "contributions", target="O", instead_of="LOC")
    assert all(re.match(r".*: O, .* %, instead of LOC, .* %", row) for row in found.written)


def test_every_row_equals_the_explanation_of_its_word_alone(tagger):
    found = explain(tagger, tokenizer(), TEXT, "attnlrp")
    (scores,) = found.scores.values()
    for row, scores_of_row in zip(found.written, scores, strict=True):
        alone = explain(tagger, tokenizer(), TEXT, "attnlrp", position=row.partition(":")[0])
        torch.testing.assert_close(scores_of_row, alone.scores, rtol=1e-3, atol=1e-5)


def test_each_label_above_one_half_has_a_row_and_without_one_the_largest_is_explained(labeller):
    logits = labeller(**INPUTS).logits[0].detach()
    assert (logits > 0).tolist() == [True, True, True, False]
    found = explain(labeller, tokenizer(), TEXT)
    assert found.written == [f"{'abcd'[label]}, {percent(logits[label].sigmoid().item())}" for label in range(3)]
    (scores,) = found.scores.values()
    for label in range(3):
        torch.testing.assert_close(scores[label, 5], falls(labeller, [7], None, label), rtol=1e-5, atol=2e-6)
    assert explain(labeller, tokenizer(), TEXT, target="b").target == 1
    labeller.classifier.bias.data -= 20
    assert explain(labeller, tokenizer(), TEXT).target == labeller(**INPUTS).logits.argmax()


def test_a_list_or_stream_has_a_table_for_each_text(tagger):
    texts = [TEXT, "a good bad film"]
    for together in (explain(tagger, tokenizer(), texts), explain_each(tagger, tokenizer(), texts, budget=64)):
        for text, found in zip(texts, together, strict=True):
            alone = explain(tagger, tokenizer(), text)
            assert found.explained == alone.explained
    assert "<h2>Each prediction: Δy</h2>" in explain(tagger, tokenizer(), texts)._repr_html_()
    assert explain(tagger, tokenizer(), TEXT).plot().axes


def test_details_of_several_predictions_are_refused(tagger):
    with pytest.raises(ValueError, match="details are of a single prediction"):
        explain(tagger, tokenizer(), TEXT, details=True)


def test_the_commands_explain_the_words_of_a_tagger_one_of_them_and_a_table_of_texts(tagger, tmp_path):
    folder = saved(tagger, tokenizer(), tmp_path / "model")
    (tmp_path / "texts.csv").write_text(f"text\n{TEXT}\n")

    def run(*words):
        result = CliRunner().invoke(app, ["explain", str(folder), *map(str, words)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    out = ["--output", tmp_path / "out"]
    assert "There is no verdict: " in run(TEXT, *out)
    assert "Verdict" in run(TEXT, *out, "--position", "bad")
    assert "Verdict" in run(TEXT, *out, "--position", "7")
    run(tmp_path / "texts.csv", "--output", tmp_path / "found.csv")
    assert "predictions: " in (tmp_path / "found.csv").read_text(encoding="utf-8")
