"""`hf-bidir explain`: printed summary, figures, page and errors."""

import re

import pytest
import torch
from PIL import Image
from transformers import ViTImageProcessor
from typer.testing import CliRunner

from hf_bidir import BidirBertForMaskedLM, BidirBertForQuestionAnswering, BidirBertModel
from hf_bidir.checkpoints.layer_hooks import edited_coefficients
from hf_bidir.cli import app
from hf_bidir.explain import load_checkpoint, read_text, token_scores
from hf_bidir.explain.api import explain_checkpoint
from hf_bidir.explain.methods import TEXT_DEFAULT
from tests.explain.conftest import bert, tokenizer, vit

TEXT = "a unbelievably good film !"


def run(*words):
    return CliRunner().invoke(app, ["explain", *(str(word) for word in words)])


def saved(model, processor, folder):
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture
def picture(tmp_path):
    Image.effect_noise((16, 16), 80).save(tmp_path / "noise.png")
    return tmp_path / "noise.png"


@pytest.fixture
def image_checkpoint(tmp_path):
    return saved(vit(), ViTImageProcessor(size={"height": 8, "width": 8}), tmp_path / "vit")


def test_it_writes_figures_and_a_page_and_prints_signed_tokens(checkpoint, tmp_path):
    result = run(checkpoint, TEXT, "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"scores.png", "rollout-flow.png", "heads.png", "index.html"}
    assert re.search(r"Prediction: (positive|negative) \(\d+\.\d%\)", result.output)
    assert re.search(r"[+−]\d\S*  unbelievably", result.output)


def test_the_default_method_is_named_with_the_reason(checkpoint, tmp_path):
    result = run(checkpoint, TEXT, "--output", tmp_path / "out")
    assert f"{TEXT_DEFAULT} is the default for texts; docs/explanations.md compares the methods." in result.output
    chosen = run(checkpoint, TEXT, "--method", "erasure", "--output", tmp_path / "out")
    assert "is the default" not in chosen.output


def test_the_printed_scores_are_those_of_the_method_by_word(checkpoint):
    explanation = explain_checkpoint(checkpoint, TEXT, target="negative", layer=1, head=0)
    example = read_text(tokenizer(), TEXT, 12)
    model = bert(id2label={0: "negative", 1: "positive"}, label2id={"negative": 0, "positive": 1})
    scores = token_scores(model, example.inputs, target=0, layer=1, head=0)
    torch.testing.assert_close(explanation.scores, example.by_token(scores[0]))
    assert "Explained: y, the logit of negative" in explanation.summary()


def test_a_stock_softmax_checkpoint_is_explained_too(stock_checkpoint, tmp_path):
    result = run(stock_checkpoint, TEXT, "--method", "erasure", "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "renormalised" in result.output


def test_an_image_is_explained_patch_by_patch(image_checkpoint, picture, tmp_path):
    result = run(image_checkpoint, picture, "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert re.search(r"[+−]\d\S*  patch in row \d, column \d", result.output)
    assert (tmp_path / "out/scores.png").is_file()


def test_a_masked_language_model_is_explained_at_the_mask(tmp_path):
    folder = saved(bert(head=BidirBertForMaskedLM), tokenizer(), tmp_path / "mlm")
    result = run(folder, "a [MASK] film", "--target", "good", "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert 'Explained: y, the logit of "good"' in result.output
    refused = run(folder, "a film")
    assert (refused.exit_code, "expected [MASK] in the text" in refused.output) == (2, True)


def test_a_model_without_a_head_is_explained_along_its_own_state(tmp_path):
    folder = saved(bert(head=BidirBertModel), tokenizer(), tmp_path / "encoder")
    result = run(folder, TEXT, "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "has no head" in result.output


def test_a_head_with_several_outputs_has_its_encoder_explained(tmp_path):
    folder = saved(bert(head=BidirBertForQuestionAnswering), tokenizer(), tmp_path / "answers")
    result = run(folder, TEXT, "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "its encoder is explained instead" in result.output


def test_a_regression_output_has_no_probability(tmp_path):
    folder = saved(bert(num_labels=1), tokenizer(), tmp_path / "regression")
    result = run(folder, TEXT, "--output", tmp_path / "out")
    assert "Prediction, and explained: y = " in result.output
    assert "%" not in result.output.partition("Prediction")[2]


def test_at_half_the_negative_mass_no_orientation_is_needed(tmp_path):
    folder = saved(bert(0.5), tokenizer(), tmp_path / "half")
    result = run(folder, TEXT, "--method", "signed-rollout", "--output", tmp_path / "out")
    assert "needs oriented heads" not in result.output


def test_a_text_that_is_too_long_is_explained_in_windows_with_a_note(checkpoint, tmp_path):
    result = run(checkpoint, "a " * 20, "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    told = "y is the mean over 3 overlapping windows of 12 tokens"
    assert told in result.output
    assert told in (tmp_path / "out/index.html").read_text(encoding="utf-8")


def test_a_method_that_needs_oriented_heads_has_a_note(checkpoint, tmp_path):
    result = run(checkpoint, TEXT, "--method", "signed-rollout", "--output", tmp_path / "out")
    assert "needs oriented heads" in result.output


def test_the_page_escapes_the_text(checkpoint, tmp_path):
    run(checkpoint, "a <script>alert(1)</script> film", "--output", tmp_path / "out")
    page = (tmp_path / "out/index.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;" in page
    assert "<script" not in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("{folder}", ""), "at least one word"),
        (("{folder}", TEXT, "--target", "postive"), 'Did you mean "positive"?'),
        (("{folder}", TEXT, "--method", "rolout"), 'Did you mean "rollout"?'),
        (("{folder}", TEXT, "--layer", "7"), "layer 7 does not exist; choose 0 to 2"),
        (("{folder}/absent", TEXT), "there is none"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(checkpoint, tmp_path, words, message):
    result = run(*(word.format(folder=checkpoint) for word in words), "--output", tmp_path / "out")
    *_, last = result.output.splitlines()
    assert (result.exit_code, last.startswith("error: "), message in last) == (2, True, True), result.output
    assert not (tmp_path / "out").exists()


def test_a_file_is_refused_as_text(checkpoint, tmp_path):
    (tmp_path / "review.txt").write_text("a good film")
    result = run(checkpoint, tmp_path / "review.txt", "--output", tmp_path / "out")
    assert (result.exit_code, "takes the text itself" in result.output) == (2, True)


def test_an_output_that_is_a_file_is_refused(checkpoint, tmp_path):
    (tmp_path / "out").touch()
    result = run(checkpoint, TEXT, "--output", tmp_path / "out")
    assert (result.exit_code, "expected a folder for the figures" in result.output) == (2, True)


def test_an_earlier_explanation_is_replaced_and_other_folders_are_refused(checkpoint, tmp_path):
    run(checkpoint, TEXT, "--output", tmp_path / "out")
    (tmp_path / "out" / "alignment.png").touch()  # from a model that generates
    again = run(checkpoint, TEXT, "--output", tmp_path / "out")
    assert (again.exit_code, "Replaced the earlier explanation" in again.output) == (0, True)
    assert not (tmp_path / "out" / "alignment.png").exists()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("a page of someone else")
    refused = run(checkpoint, TEXT, "--output", tmp_path / "site")
    assert (refused.exit_code, "holds index.html; choose another --output" in refused.output) == (2, True)
    assert (tmp_path / "site" / "index.html").read_text() == "a page of someone else"


@pytest.mark.parametrize(("method", "meaning"), [("erasure", "supports y"), ("attention", "there are no signs")])
def test_the_page_explains_how_to_read_the_scores(checkpoint, method, meaning):
    page = explain_checkpoint(checkpoint, TEXT, method=method).page()
    assert re.search(rf"How to read: [^.]*{meaning}[^.]* on one colour scale", page)


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("attnlrp", "they need not sum to y"),
        ("integrated-gradients", "they sum to the change of y from the baseline"),
        ("rollout", None),
    ],
)
def test_the_page_and_the_summary_say_what_the_scores_sum_to(checkpoint, method, told):
    explanation = explain_checkpoint(checkpoint, TEXT, method=method)
    for text in (explanation.page(), explanation.summary()):
        assert (told in text) if told else ("sum to" not in text)


def test_a_figure_that_a_sink_fills_is_left_out_with_the_reason(checkpoint):
    model, words = load_checkpoint(checkpoint)

    def onto_the_first(coefficients):
        return torch.nn.functional.one_hot(torch.zeros_like(coefficients[..., 0]).long(), coefficients.shape[-1]) * 1e3

    with edited_coefficients(model, onto_the_first):
        explanation = explain_checkpoint((model, words), TEXT, method="rollout")
    assert "a sink of the attention" in " ".join(explanation.notes)
    assert "Rollout is not drawn" in " ".join(explanation.notes)
    assert "rollout" not in explanation.traced


def test_scores_and_heads_have_a_scale_each_so_that_neither_is_pale(checkpoint):
    explanation = explain_checkpoint(checkpoint, TEXT)
    assert explanation.scale().limit == explanation.shown(explanation.scores)[1].abs().max()
    heads = explanation.figures()["heads"][1]
    assert max(image.norm.vmax for axes in heads.axes for image in axes.images) == explanation.heads.abs().max()


def test_scores_of_special_tokens_have_signs_only_if_the_method_has(checkpoint):
    hidden = {name: explain_checkpoint(checkpoint, TEXT, method=name).hidden() for name in ("erasure", "attention")}
    assert re.search(r"\([+−]", hidden["erasure"])
    assert not re.search(r"\([+−]", hidden["attention"])


def test_a_file_that_is_not_an_image_is_one_line_and_exit_code_2(image_checkpoint, tmp_path):
    (tmp_path / "notes.txt").write_text("not an image")
    result = run(image_checkpoint, tmp_path / "notes.txt", "--output", tmp_path / "out")
    assert (result.exit_code, "cannot be read as one" in result.output) == (2, True)


@pytest.mark.parametrize("method", [None, "contributions", "rollout"])
def test_an_explanation_runs_the_model_forward_and_backward_at_most_twice(checkpoint, method, monkeypatch):
    model, processor = load_checkpoint(checkpoint)
    passes, grad = {"forward": 0, "backward": 0}, torch.autograd.grad

    def counted(*arguments, **options):
        passes["backward"] += 1
        return grad(*arguments, **options)

    monkeypatch.setattr(torch.autograd, "grad", counted)
    model.register_forward_hook(lambda *_: passes.update(forward=passes["forward"] + 1))
    found = explain_checkpoint((model, processor), "a good film", method=method)
    assert found.heads is not None
    assert passes["forward"] <= 2
    assert passes["backward"] <= 2
