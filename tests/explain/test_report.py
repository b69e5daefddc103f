"""`hf-bidir explain`: printed summary, figures, page and errors."""

import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from hf_bidir import BidirBertForMaskedLM, BidirBertModel
from hf_bidir.checkpoints.layer_hooks import edited_coefficients
from hf_bidir.cli import app
from hf_bidir.explain import explain, load_checkpoint, read_text, token_scores
from hf_bidir.explain.registry import TEXT_DEFAULT
from tests.explain.conftest import NAMES, bert, explained, tokenizer
from tests.processes import run_python

TEXT = "a unbelievably good film !"
DIGITS = Path(__file__).parents[2] / "model_cards/digits-tanhmax"


def run(*words):
    return CliRunner().invoke(app, ["explain", *(str(word) for word in words)])


def test_it_writes_a_page_and_prints_signed_tokens(checkpoint, tmp_path):
    result = run(checkpoint, f"{TEXT} <script>alert(1)</script>", "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["index.html"]
    assert re.search(r"Prediction: (positive|negative) \(\d+\.\d%\)", result.output)
    assert re.search(r"[+−]\d\S*  unbelievably", result.output)
    assert f"{TEXT_DEFAULT} is the default for texts; docs/explanations.md compares the methods." in result.output
    page = (tmp_path / "out/index.html").read_text(encoding="utf-8")
    assert ("&lt;script&gt;" in page, "<script" in page) == (True, False)


def test_a_chosen_method_of_a_stock_checkpoint_is_named_without_the_default(stock_checkpoint, tmp_path):
    result = run(stock_checkpoint, TEXT, "--method", "erasure", "--output", tmp_path / "out")
    assert "renormalised" in result.output
    assert "is the default" not in result.output


def test_what_is_explained_of_a_model_without_probabilities():
    headless = explain(bert(head=BidirBertModel), tokenizer(), TEXT).explained
    assert "BidirBertModel has no head. Explained: y, the" in headless
    regression = explain(bert(num_labels=1), tokenizer(), TEXT).explained
    assert regression.startswith("Prediction, and explained: y = ")
    assert "%" not in regression


def test_the_printed_scores_are_those_of_the_method_by_word(checkpoint):
    explanation = explained(checkpoint, TEXT, target="negative", layer=1, head=0)
    example = read_text(tokenizer(), TEXT, 12)
    scores = token_scores(bert(**NAMES), example.inputs, target=0, layer=1, head=0)
    torch.testing.assert_close(explanation.scores, example.by_token(scores[0]))
    assert "Explained: y, the logit of negative" in explanation.summary()


def test_a_masked_language_model_is_explained_at_the_mask():
    source = bert(head=BidirBertForMaskedLM), tokenizer()
    assert 'Explained: y, the logit of "good"' in explained(source, "a [MASK] film", target="good").explained
    with pytest.raises(ValueError, match=r"expected \[MASK\] in the text"):
        explained(source, "a film")


def test_a_text_that_is_too_long_is_explained_in_windows_with_a_note(checkpoint, tmp_path):
    result = run(checkpoint, "a " * 20, "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    told = "y is the mean over 3 overlapping windows of 12 tokens"
    assert told in result.output
    assert told in (tmp_path / "out/index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("{folder}", ""), "at least one word"),
        (("{folder}", TEXT, "--target", "postive"), 'Did you mean "positive"?'),
        (("{folder}", TEXT, "--method", "rolout"), 'Did you mean "rollout"?'),
        (("{folder}", TEXT, "--figure", "head"), "expected figures heads, rollout, flow, got 'head'"),
        (("{folder}", TEXT, "--layer", "7"), "layer 7 does not exist; choose 0 to 2"),
        (("{folder}/absent", TEXT), "there is none"),
        (("{folder}", "{folder}/config.json"), "takes the text itself"),
        (("{folder}", "missing.PNG"), "got the file missing.PNG"),
        (("{folder}", TEXT, "--output", "{folder}/config.json"), "expected a folder for the page"),
        (("{digits}", "{folder}/config.json"), "cannot be read as one"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(checkpoint, tmp_path, words, message):
    given = (word.format(folder=checkpoint, digits=DIGITS) for word in words)
    result = run(words[0].format(folder=checkpoint, digits=DIGITS), "--output", tmp_path / "out", *list(given)[1:])
    *_, last = result.output.splitlines()
    assert (result.exit_code, last.startswith("error: "), message in last) == (2, True, True), result.output
    assert not (tmp_path / "out").exists()


def test_an_earlier_explanation_is_replaced_and_other_folders_are_refused(checkpoint, tmp_path):
    run(checkpoint, TEXT, "--output", tmp_path / "out")
    (tmp_path / "out" / "heads.png").touch()  # from another call
    again = run(checkpoint, TEXT, "--output", tmp_path / "out")
    assert (again.exit_code, "Replaced the earlier explanation" in again.output) == (0, True)
    assert not (tmp_path / "out" / "heads.png").exists()
    (tmp_path / "out" / "mine.png").touch()
    mine = run(checkpoint, TEXT, "--output", tmp_path / "out")
    assert (mine.exit_code, "holds mine.png; choose another --output" in mine.output) == (2, True)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("a page of someone else")
    refused = run(checkpoint, TEXT, "--output", tmp_path / "site")
    assert (refused.exit_code, "holds index.html; choose another --output" in refused.output) == (2, True)
    assert (tmp_path / "site" / "index.html").read_text() == "a page of someone else"


def test_a_figure_that_a_sink_fills_has_a_note(checkpoint):
    model, words = load_checkpoint(checkpoint)

    def onto_the_first(coefficients):
        return torch.nn.functional.one_hot(torch.zeros_like(coefficients[..., 0]).long(), coefficients.shape[-1]) * 1e3

    with edited_coefficients(model, onto_the_first):
        explanation = explained((model, words), TEXT, figures=["rollout"])
    assert "a sink of the attention, holds 100% of the scores of rollout" in explanation.notes[-1]


def test_only_the_figures_that_were_asked_for_are_made(checkpoint, tmp_path):
    without = explained(checkpoint, TEXT)
    assert (without.traced, without.heads, set(without.figures())) == ({}, None, {"coefficients", "scores"})
    result = run(checkpoint, TEXT, "--figure", "heads", "--figure", "flow", "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"index.html", "heads.png"}
    page = (tmp_path / "out/index.html").read_text(encoding="utf-8")
    for heading, shown in (("Maximum flow", True), ("Contribution of each layer", True), ("Rollout", False)):
        assert (f"<h2>{heading}" in page) == shown
    found = explained(checkpoint, TEXT, figures=["flow"])
    scores = token_scores(bert(**NAMES), found.example.inputs, "flow")[0]
    torch.testing.assert_close(found.traced["flow"], found.example.by_token(scores, False))


def test_scores_and_heads_have_a_scale_each_so_that_neither_is_pale(checkpoint):
    explanation = explained(checkpoint, TEXT, figures=["heads"])
    assert explanation.scale().limit == explanation.shown(explanation.scores)[1].abs().max()
    heads = explanation.figures()["heads"]
    assert max(image.norm.vmax for axes in heads.axes for image in axes.images) == explanation.heads.abs().max()
    assert "A cell without a number is closer to 0 than 5% of the largest." in " ".join(heads.get_supxlabel().split())


@pytest.mark.parametrize("method", [None, "contributions", "erasure"])
def test_scores_that_are_small_beside_y_are_pale_and_have_a_warning(checkpoint, method):
    model, words = load_checkpoint(checkpoint)
    model.classifier.bias.data[1] = -1e3  # y hardly depends on the text
    found = explained((model, words), TEXT, target="positive", method=method)
    told = "These scores explain almost nothing"
    assert [told in text for text in (found.summary(), found.page(), found._repr_html_())] == [True] * 3
    assert "How to read: + (red) supports y" in found.page()
    assert found.scale().limit == abs(found.value)
    assert ("Try the method erasure" in found.little) == (method != "erasure")
    whole = explained((model, words), TEXT, target="negative", method=method)
    one_head = explain(model, words, TEXT, "contributions", target="positive", head=0)
    assert (whole.little, one_head.little) == ("", "")


@pytest.mark.parametrize(
    ("method", "meaning", "sums", "signs"),
    [
        ("erasure", "supports y", "they need not sum to y", True),
        ("integrated-gradients", "supports y", "they sum to the change of y from the baseline", True),
        ("attention", "there are no signs", None, False),
    ],
)
def test_an_explanation_says_how_to_read_its_scores_and_what_they_sum_to(checkpoint, method, meaning, sums, signs):
    explanation = explained(checkpoint, TEXT, method=method)
    page = explanation.page()
    assert re.search(rf"How to read: [^.]*{meaning}[^.]* on one colour scale", page)
    for text in (page, explanation.summary()):
        assert (sums in text) if sums else ("sum to" not in text)
    assert bool(re.search(r"\([+−]", explanation.hidden())) == signs  # of special tokens


@pytest.mark.parametrize("method", [None, "contributions", "rollout"])
@pytest.mark.parametrize("explained", [explain, lambda *source, method: explained(source[:2], TEXT, method=method)])
def test_an_explanation_runs_the_model_forward_and_backward_at_most_twice(checkpoint, method, explained, monkeypatch):
    model, processor = load_checkpoint(checkpoint)
    passes, grad = {"forward": 0, "backward": 0}, torch.autograd.grad

    def counted(*arguments, **options):
        passes["backward"] += 1
        return grad(*arguments, **options)

    monkeypatch.setattr(torch.autograd, "grad", counted)
    model.register_forward_hook(lambda *_: passes.update(forward=passes["forward"] + 1))
    found = explained(model, processor, TEXT, method=method)
    assert passes["forward"] <= 2
    assert passes["backward"] <= (1 if found.heads is None else 2)


def test_the_default_explanation_of_a_text_imports_few_files_and_no_library_for_drawing():
    run_python(FEW_FILES)


FEW_FILES = """
import sys
import hf_bidir.explain
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "film"]
shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": len(words)}
model = hf_bidir.signed(BertForSequenceClassification(BertConfig(**shape)), negative_mass=0.0)
tokenizer = BertTokenizer(vocab={word: index for index, word in enumerate(words)})
hf_bidir.explain.explain(model, tokenizer, "a good film")
files = [name for name in sys.modules if name.partition(".")[0] == "hf_bidir"]
assert len(files) <= 44, sorted(files)
assert not {"matplotlib", "captum"} & sys.modules.keys()
"""
