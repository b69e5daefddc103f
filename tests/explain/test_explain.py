"""`explain`: one text, several, a stream, and what the results say."""

import copy
import json
import re
from functools import partial
from itertools import cycle, islice

import pandas as pd
import pytest
import torch
from datasets import Dataset
from transformers.utils import ModelOutput

from hf_bidir import BidirBertForMaskedLM, BidirBertModel, unsigned
from hf_bidir.checkpoints.layer_hooks import edited_coefficients
from hf_bidir.explain import ForwardCache, Request, explain, explain_each, read_text, result, token_scores
from hf_bidir.explain.inputs.text import percent
from hf_bidir.explain.readout import predictions, readout_of
from hf_bidir.explain.request import default_method
from tests.explain.conftest import NAMES, SHAPE, bert, family, pooling, sentences, tokenizer, vit

ANIMALS = ("cat", "dog", "fox")
TEXTS = ["a unbelievably good film", "bad", "a film !", "good bad good"]


def model():
    return bert(**NAMES)


explained = partial(explain, model(), tokenizer())


def test_one_text_gives_its_scores_by_word():
    found = explained(TEXTS[0], "attnlrp", target="positive")
    assert found.tokens == ["[CLS]", "a", "unbelievably", "good", "film", "[SEP]"]
    example = read_text(tokenizer(), TEXTS[0], 12)
    expected = token_scores(model(), example.inputs, "attnlrp", "positive")[0]
    torch.testing.assert_close(found.scores, example.by_token(expected))
    assert found.value == pytest.approx(model()(**example.inputs).logits[0, 1].item(), abs=1e-5)
    read = json.loads(json.dumps(found.to_dict()))
    assert (read["example"]["tokens"], read["scores"]) == (found.tokens, pytest.approx(found.scores.tolist()))
    assert (read["definition"], found.reading.partition(" AttnLRP")[0]) == 2 * ("y is the logit of positive.",)
    assert (read["method"], read["example"]["special"]) == ("attnlrp", [True, False, False, False, False, True])


def test_a_model_of_transformers_is_explained_as_its_signed_counterpart_and_is_the_same_afterwards():
    signed = bert(0.0, **NAMES)
    stock = unsigned(copy.deepcopy(signed))
    before = (type(stock), stock.config, vars(stock).keys(), [vars(part).keys() for part in stock.modules()])
    for inputs in (TEXTS[0], TEXTS):
        assert str(explain(stock, tokenizer(), inputs)) == str(explain(signed, tokenizer(), inputs))
    with pytest.raises(ValueError, match="unknown method"):
        explain(stock, tokenizer(), TEXTS[0], "saliency")
    assert all(part.config is stock.config for part in stock.modules() if hasattr(part, "config"))
    assert (type(stock), stock.config, vars(stock).keys(), [vars(part).keys() for part in stock.modules()]) == before
    batch = tokenizer()(TEXTS, padding=True, return_tensors="pt")
    assert torch.equal(token_scores(stock, batch), token_scores(signed, batch))


@pytest.mark.parametrize("method", ["attnlrp", "erasure", "flow"])
def test_texts_of_different_lengths_are_explained_as_each_is_alone(method):
    together = explained(TEXTS, method, batch_size=3)
    for text, explanation in zip(TEXTS, together, strict=True):
        alone = explained(text, method)
        torch.testing.assert_close(explanation.scores, alone.scores, atol=1e-5, rtol=1e-3)
        assert (explanation.tokens, explanation.explained) == (alone.tokens, alone.explained)


def test_each_text_of_a_list_is_explained_as_it_is_alone_by_the_default_for_its_length():
    longer = family("BertForSequenceClassification", vocab_size=40, max_position_embeddings=90)
    texts = [*TEXTS, "good bad " * 35]
    together = explain(longer, tokenizer(), texts)
    for text, found in zip(texts, together, strict=True):
        alone = explain(longer, tokenizer(), text, verdict=False)
        torch.testing.assert_close(found.scores, alone.scores)
        assert (found.method, found.notes) == (alone.method, alone.notes)
    assert [found.method for found in together] == [*["erasure"] * len(TEXTS), "attnlrp"]


def test_explanations_of_a_stream_say_that_their_method_is_cheap_and_how_to_get_that_of_single_texts():
    for found in explain_each(model(), tokenizer(), TEXTS):
        assert found.method == "attnlrp"
        assert "budget=64 (--method erasure) gives erasure, as for single texts." in found.notes[0]
    (found,) = explain_each(model(), tokenizer(), TEXTS[:1], budget=64)
    assert (found.method, found.notes) == ("erasure", explained(TEXTS[0]).notes)


@pytest.mark.parametrize(("padding", "read"), [("[PAD]", 4), (None, 3)])
def test_a_stream_is_read_a_batch_at_a_time_or_without_a_padding_token_one_by_one(padding, read):
    words, stream = tokenizer(), cycle(TEXTS)
    words.pad_token = padding
    explanations = list(islice(explain_each(model(), words, stream, batch_size=2), 3))
    assert [explanation.tokens[1:-1] for explanation in explanations] == [text.split() for text in TEXTS[:3]]
    assert next(stream) == TEXTS[read % 4]


def test_a_text_that_is_too_long_is_cut_with_a_note():
    found = explained("a good bad film " * 5, "erasure")
    beginning = explained("a good bad film " * 2 + "a good", "erasure")
    torch.testing.assert_close(found.scores, beginning.scores)
    assert "last 10 word pieces were left out" in found.notes[0]


def test_a_text_that_is_longer_than_those_of_the_training_has_a_note(tmp_path):
    words = tokenizer()
    words.name_or_path = str(tmp_path)
    (tmp_path / "run.json").write_text('{"recipe": {"max_length": 5}}')
    longer, as_long = explain(model(), words, ["a good bad film", "a good film"], "contributions")
    assert longer.notes[0] == "The text has 6 word pieces; the model was trained on at most 5."
    assert not any("trained" in note for note in as_long.notes)


@pytest.mark.parametrize("record", ["{", '{"recipe": {"max_length": "5"}}'])
def test_of_a_tokenizer_without_a_folder_and_without_a_length_there_is_no_such_note(tmp_path, monkeypatch, record):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.json").write_text(record)
    words = tokenizer()
    words.name_or_path = "" if record == "{" else str(tmp_path)
    (found,) = explain(model(), words, ["a good bad film"], "contributions")
    assert not any("trained" in note for note in found.notes)


def test_words_without_a_piece_are_named():
    found = explained("a xyzzy good qwrtp xyzzy film")
    assert found.notes[0] == "Not, or not fully, in the vocabulary; the model reads [UNK]: xyzzy, qwrtp."


def test_the_summary_is_the_prediction_words_by_magnitude_what_they_are_the_verdict_and_notes():
    found = explained("a good \x1b[31mfilm a film", "erasure")
    prediction, *rows, reading, special, verdict, unknown = str(found).splitlines()
    assert prediction == found.explained
    assert "␣[31mfilm" in unknown  # control characters are not printed
    numbers, names = zip(*(row.split(maxsplit=1) for row in rows), strict=True)
    shown = [float(number.replace("−", "-")) for number in numbers]
    assert shown == pytest.approx(sorted(found.scores[1:-1].tolist(), key=abs, reverse=True), rel=0.1)
    assert {"a (1 of 2)", "a (2 of 2)", "good", "␣[31mfilm"} <= set(names)
    assert (reading, special, verdict) == (found.reading, found.listing.left_out(), found.verdict.sentence)
    assert len(found.summary(top=2).splitlines()) == 7
    assert repr([found]) == "[<Explanation by erasure of [CLS] a good ␣[31mfilm a film [SEP]>]"


def test_a_notebook_shows_the_first_of_many_explanations(monkeypatch):
    monkeypatch.setattr(result, "SHOWN", 1)
    assert "<p>and 1 more</p>" in explained(TEXTS[:2], "erasure")._repr_html_()
    assert "and 0 more" not in explained(TEXTS[:1], "erasure")._repr_html_()


@pytest.mark.parametrize(
    ("method", "sums", "signs"),
    [
        ("erasure", "the scores need not sum to y", True),
        ("integrated-gradients", "they sum to the change of y from the baseline", True),
        ("attention", "there are no signs", False),
    ],
)
def test_scores_with_signs_have_their_sum_and_the_others_no_sign(method, sums, signs):
    found = explained(TEXTS[0], method)
    assert sums in found.reading
    assert bool(re.search(r"^ *[+−]", found.summary(), re.MULTILINE)) == signs
    assert "sum to" not in explained(TEXTS[0], "contributions", layer=1).reading
    opposite = any("another sign than y" in note for note in explained(TEXTS[0], method, verdict=False).notes)
    assert opposite == (signs and found.listing.shown.sum().item() * found.value < 0)


def test_what_is_explained_of_a_model_without_probabilities():
    headless = explain(bert(head=BidirBertModel), tokenizer(), TEXTS[0])
    inputs = read_text(tokenizer(), TEXTS[0], 12).inputs
    state = bert(head=BidirBertModel)(**inputs).last_hidden_state[0, 0]
    assert headless.value == pytest.approx(state.norm().item(), rel=1e-4)  # projected on its own direction
    assert "BidirBertModel has no head. Explained: y, the hidden state of token 0" in headless.explained
    regression = explain(bert(num_labels=1), tokenizer(), TEXTS[0]).explained
    assert regression.startswith("Prediction, and explained: y = ")
    outputs = explain(bert(**NAMES, problem_type="regression"), tokenizer(), TEXTS[0], target=1)
    assert outputs.explained.startswith("Prediction of positive, and explained: y = ")
    assert outputs.probability is None
    several = bert(**NAMES, problem_type="multi_label_classification")
    logits = several(**inputs).logits[0]
    found = explain(several, tokenizer(), TEXTS[0])
    assert found.probability == pytest.approx(logits.max().sigmoid().item())
    assert f", {percent(found.probability)} (y = " in found.explained


@pytest.mark.parametrize(
    ("shares", "target", "instead_of", "line"),
    [
        ((0.7, 0.2, 0.1), None, None, "cat, 70 % (y = −0.36)."),
        ((0.7, 0.2, 0.1), "dog", None, "dog, 20 % (y = −1.6). Prediction: cat, 70 %."),
        ((0.7, 0.2, 0.1), "dog", "cat", "dog, 20 %, instead of cat, 70 % (y = −1.3)."),
        ((0.7, 0.2, 0.1), "fox", "dog", "fox, 10 %, instead of dog, 20 % (y = −0.69). Prediction: cat, 70 %."),
        ((0.2, 0.36, 0.44), None, None, "fox, 44 % (y = −0.82). A close call with dog."),
        ((0.2, 0.36, 0.44), "cat", None, "cat, 20 % (y = −1.6). Prediction: fox, 44 %. A close call with dog."),
    ],
)
def test_the_first_line_names_what_is_explained_and_a_prediction_that_is_another_one(shares, target, instead_of, line):
    assert first_line(torch.tensor([shares]).log(), target, instead_of) == line


@pytest.mark.parametrize(
    ("shares", "line"),
    [
        ((0.9, 0.86, 0.1), "cat, 90 % (y = +2.2)."),  # both labels apply
        ((0.1, 0.46, 0.3), "dog, 46 % (y = −0.16). A close call."),
    ],
)
def test_a_label_among_several_is_a_close_call_near_one_half(shares, line):
    assert first_line(torch.tensor([shares]).logit(), problem_type="multi_label_classification") == line


def first_line(logits, target=None, instead_of=None, **options):
    """What is said of the logits of three classes."""
    names = {"id2label": dict(enumerate(ANIMALS)), "label2id": {name: index for index, name in enumerate(ANIMALS)}}
    cache, outputs = ForwardCache(bert(**names, **options), sentences()), ModelOutput(logits=logits)
    readout = readout_of(cache, Request(target=target, instead_of=instead_of), outputs)
    return predictions(cache.model, None, readout, outputs)[0].explained


def test_a_language_model_makes_no_close_calls_and_names_both_tokens_of_a_contrast():
    masked = bert(head=BidirBertForMaskedLM)
    masked.get_output_embeddings().weight.data *= 0.1  # almost uniform predictions
    found = explain(masked, tokenizer(), "a [MASK] film", target="good", instead_of="bad")
    shares = masked(**tokenizer()("a [MASK] film", return_tensors="pt")).logits[0, 2].softmax(-1).tolist()
    contrast, *others = found.explained.split(" (y = ")
    assert contrast == f'"good", {percent(shares[6])}, instead of "bad", {percent(shares[7])}'
    assert others[0].endswith(f"Prediction: {found.prediction}, {percent(max(shares))}.")


@pytest.mark.parametrize("method", ["contributions", "erasure"])
def test_a_contrast_explains_the_difference_of_two_logits(method):
    contrast = explained(TEXTS[:3], method, target="positive", instead_of="negative")
    each = [explained(TEXTS[:3], method, target=name) for name in ("positive", "negative")]
    for both, positive, negative in zip(contrast, *each, strict=True):
        torch.testing.assert_close(both.scores, positive.scores - negative.scores, atol=1e-4, rtol=1e-3)
        assert both.value == pytest.approx(positive.value - negative.value, abs=1e-5)
        assert (both.target, both.instead_of) == (1, 0)
        assert " minus that of negative. " in both.reading


def test_a_masked_language_model_is_explained_at_the_mask():
    masked = bert(head=BidirBertForMaskedLM)
    found = explain(masked, tokenizer(), "a [MASK] film", target="good")
    logits = masked(**tokenizer()("a [MASK] film", return_tensors="pt")).logits[0, 2]
    assert found.value == pytest.approx((logits[6] - logits.mean()).item(), abs=1e-5)
    assert 'y is the logit of "good" minus the mean of all tokens. ' in found.reading
    with pytest.raises(ValueError, match=r"\[MASK\] in the text"):
        explain(masked, tokenizer(), "a film")


def test_the_default_method_depends_on_the_model_and_on_what_is_asked():
    defaults = [default_method(made) for made in (bert(), vit(), pooling())]
    assert defaults == ["erasure", "attnlrp", "contributions"]
    for choice in ("layer", "head"):
        assert explained(TEXTS[0], **{choice: 1}).method == "contributions"
    assert [found.method for found in explained(TEXTS, budget=4)] == ["attnlrp", "erasure", "attnlrp", "attnlrp"]


def test_details_are_computed_where_they_are_asked_for():
    (found,) = explained(TEXTS[:1], details=True, target=1)
    for layer in range(3):
        for head in range(2):
            alone = explained(TEXTS[0], target=1, layer=layer, head=head)
            torch.testing.assert_close(found.heads[layer, head], alone.scores.sum(), rtol=1e-3, atol=1e-5)
    plain = explained(TEXTS[0])
    assert (plain.coefficients, plain.heads) == (None, None)


def test_scores_that_a_sink_fills_have_a_note():
    def onto_the_first(coefficients):
        return torch.nn.functional.one_hot(torch.zeros_like(coefficients[..., 0]).long(), coefficients.shape[-1]) * 1e3

    signed = model()
    with edited_coefficients(signed, onto_the_first):
        found = explain(signed, tokenizer(), TEXTS[0], "rollout")
    assert "holds 100% of the scores of rollout" in found.notes[-1]


@pytest.mark.parametrize(("method", "most"), [("attnlrp", 2), ("contributions", 2), ("rollout", 1)])
def test_an_explanation_runs_the_model_once_and_a_method_with_gradients_once_more(method, most):
    signed, passes = model(), []
    signed.register_forward_hook(lambda *_: passes.append(torch.is_grad_enabled()))
    explain(signed, tokenizer(), TEXTS[0], method, verdict=False)
    assert len(passes) == most
    assert sum(passes) == most - 1


@pytest.mark.parametrize(
    ("inputs", "options", "named"),
    [
        ([], {}, "an empty list"),
        (["good", ""], {}, r"inputs\[1\]: .*''"),
        (["good", ("good", 1)], {}, r"inputs\[1\]: .* got \('good', 1\)"),
        ("good", {"target": "neutral"}, "'neutral' does not exist; choose one of .*negative.*positive"),
        ("good", {"target": "positive", "instead_of": 1}, "instead_of to differ .* got 1"),
        ("good", {"size": 8}, "size is for images"),
        ("good", {"new_tokens": 2}, "new_tokens is for models that generate text after a prompt, not for BidirBert"),
        (["good"], {"batch_size": 0}, "got 0"),
        (None, {}, "got a NoneType"),
        (["good"], {"target": [0, 1]}, r"\[0, 1\] does not exist"),
        ("good", {"layer": "first", "method": "contributions"}, "layer 'first' does not exist; choose 0 to 2"),
    ],
)
def test_bad_input_is_one_error_that_names_it(inputs, options, named):
    with pytest.raises(ValueError, match=named):
        explained(inputs, **options)


def test_a_column_of_a_table_is_a_stream_and_a_table_is_an_error_that_lists_its_columns():
    frame = pd.DataFrame({"review": TEXTS, "stars": 1})
    data = Dataset.from_pandas(frame)
    for table in (frame, data, data.to_iterable_dataset()):
        with pytest.raises(ValueError, match="pass one column of a table: review, stars"):
            next(explain_each(model(), tokenizer(), table))
        found = explain_each(model(), tokenizer(), table["review"])
        assert [" ".join(one.tokens[1:-1]) for one in found] == TEXTS


def test_a_single_text_is_no_stream():
    with pytest.raises(ValueError, match="got a str"):
        next(explain_each(model(), tokenizer(), "good film"))


@pytest.mark.parametrize(
    ("head", "position"),
    [("BertForMaskedLM", None), ("BertForTokenClassification", 8), ("BertForMaskedLM", -1)],
)
def test_a_missing_or_wrong_position_is_an_error_that_lists_the_positions(head, position):
    listed = re.escape("(--position): 0 [CLS], 1 a, 2 un, 3 ##believ, 4 ##ably, 5 good, 6 film, 7 [SEP]")
    with pytest.raises(ValueError, match=f"{listed}; got {position}"):
        explain(family(head, **SHAPE), tokenizer(), TEXTS[0], position=position)
    with pytest.raises(ValueError, match=r"inputs\[1\]: .*0 \[CLS\], 1 bad, 2"):
        explain(family("BertForMaskedLM", **SHAPE), tokenizer(), ["a [MASK] film", "bad"])


def test_the_class_of_a_token_is_explained_at_its_position():
    tagger = family("BertForTokenClassification", **SHAPE, id2label={0: "O", 1: "LOC"}, label2id={"O": 0, "LOC": 1})
    found = explain(tagger, tokenizer(), TEXTS[0], target="LOC", position=5)
    logits = tagger(**tokenizer()(TEXTS[0], return_tensors="pt")).logits[0, 5]
    assert (found.value, found.target) == (pytest.approx(logits[1].item(), abs=1e-5), 1)
