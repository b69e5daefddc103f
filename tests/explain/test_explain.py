"""`explain`: one text, several, long ones in windows, streams, and what the results show."""

import json
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice, pairwise

import pandas as pd
import pytest
import torch

from hf_bidir import BidirBertModel
from hf_bidir.explain import Explanation, Explanations, explain, explain_each, read_text, token_scores, word_table
from hf_bidir.explain.inputs.text import windows_of
from hf_bidir.explain.request import TEXT_DEFAULT, default_method
from tests.explain.conftest import NAMES, SHAPE, bert, family, pooling, tokenizer

TEXTS = ["a unbelievably good film", "bad", "a film !", "good bad good"]


def model():
    return bert(**NAMES)


def headless():
    return bert(head=BidirBertModel)


def test_one_text_gives_its_scores_by_word():
    found = explain(model(), tokenizer(), TEXTS[0], target="positive")
    assert isinstance(found, Explanation)
    assert found.tokens == ["[CLS]", "a", "unbelievably", "good", "film", "[SEP]"]
    example = read_text(tokenizer(), TEXTS[0], 12)
    expected = token_scores(model(), example.inputs, TEXT_DEFAULT, "positive")[0]
    torch.testing.assert_close(found.scores, example.by_token(expected))
    assert found.value == pytest.approx(model()(**example.inputs).logits[0, 1].item(), abs=1e-5)
    read = json.loads(json.dumps(found.to_dict()))
    assert (read["tokens"], read["scores"]) == (found.tokens, pytest.approx(found.scores.tolist()))
    assert (read["method"], read["special"]) == (TEXT_DEFAULT, [True, False, False, False, False, True])


@pytest.mark.parametrize("method", ["integrated-attnlrp", "erasure", "integrated-gradients", "flow"])
def test_texts_of_different_lengths_are_explained_as_each_is_alone(method):
    together = explain(model(), tokenizer(), TEXTS, method, batch_size=3)
    assert [one.tokens[1:-1] for one in together] == [text.split() for text in TEXTS]
    for text, one in zip(TEXTS, together, strict=True):
        alone = explain(model(), tokenizer(), text, method)
        torch.testing.assert_close(one.scores, alone.scores, atol=1e-5, rtol=1e-3)
        assert one.explained == alone.explained


def test_a_stream_is_read_a_batch_at_a_time():
    taken = []

    def endless():
        for number in count():
            taken.append(number)
            yield TEXTS[number % 4]

    first = list(islice(explain_each(model(), tokenizer(), endless(), batch_size=2), 3))
    assert len(first) == 3
    assert len(taken) == 4


def test_windows_cover_a_long_text_and_share_tokens_with_their_neighbours():
    example = read_text(tokenizer(), "a " * 50, 1000)
    windows = windows_of(example, 12)
    assert all(len(positions) == 12 for positions in windows)
    assert all(positions[0] == 0 and positions[-1] == 51 for positions in windows)  # [CLS] and [SEP]
    assert sorted({int(place) for positions in windows for place in positions}) == list(range(52))
    for first, second in pairwise(windows):
        assert set(first[1:-1].tolist()) & set(second[1:-1].tolist())


@pytest.mark.parametrize(
    ("make", "method", "target", "explained"),
    [
        (model, "erasure", 1, lambda outputs: outputs.logits[0, 1]),
        (model, "attention", 1, lambda outputs: outputs.logits[0, 1]),
        (headless, "contributions", None, lambda outputs: outputs.last_hidden_state[0, 0].norm()),  # on its direction
    ],
)
def test_scores_of_a_long_text_are_shares_of_the_mean_over_its_windows(make, method, target, explained):
    long = " ".join([TEXTS[0].split()[index % 4] for index in range(30)])
    found, example = explain(make(), tokenizer(), long, method, target=target), read_text(tokenizer(), long, 1000)
    windows, values = windows_of(example, 12), []
    expected, times = torch.zeros(2, len(example.token_of_piece))
    for positions in windows:
        inputs = {name: value[:, positions] for name, value in example.inputs.items()}
        expected[positions] += token_scores(make(), inputs, method, target)[0]
        times[positions] += 1
        values.append(explained(make()(**inputs)))
    # without signs for and against y, it is the mean over the windows with the token
    expected /= times if method == "attention" else len(windows)
    torch.testing.assert_close(found.scores, example.by_token(expected), atol=1e-5, rtol=1e-3)
    assert found.value == pytest.approx(torch.stack(values).mean().item(), rel=1e-4)
    assert f"mean over {len(windows)} overlapping windows" in found.notes[0]


def test_a_notebook_shows_coloured_words_without_a_script():
    shown = explain(model(), tokenizer(), "a <b> good film")._repr_html_()
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown.replace('<b style="', "")
    assert shown.count('class="word"') == 2 * 4  # coefficients and scores
    assert "<script" not in shown


def test_a_list_in_a_notebook_shows_its_first_explanations_and_says_once_how_to_read_them():
    several = explain(model(), tokenizer(), TEXTS)
    shown = several._repr_html_()
    assert shown.count("Explained: y") == len(TEXTS)
    assert shown.count("How to read: + (red) supports y") == 1
    assert several[0]._repr_html_().count("How to read: + (red) supports y") == 1
    assert "and 5 more" in Explanations(several[:1] * 25)._repr_html_()


def test_control_characters_of_a_text_are_not_printed(tmp_path):
    found = explain(model(), tokenizer(), "a \x1b[31mgood film")
    assert "\x1b" not in found.summary()
    assert "\x1b" not in found._repr_html_()
    found.to_html(tmp_path / "page.html")
    assert "␣[31mgood" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_equal_tokens_are_told_apart_where_they_are_listed():
    found = explain(model(), tokenizer(), "a good film a film", "erasure")
    listed = {line.split("  ")[-1] for line in found.summary().splitlines()[-8:-1]}
    assert listed == {"[CLS]", "a (1 of 2)", "good", "film (1 of 2)", "a (2 of 2)", "film (2 of 2)", "[SEP]"}
    assert found.tokens == ["[CLS]", "a", "good", "film", "a", "film", "[SEP]"]


def test_explanations_in_several_threads_are_those_of_one_after_the_other():
    signed = model()
    expected = {text: explain(signed, tokenizer(), text) for text in TEXTS}
    with ThreadPoolExecutor(4) as pool:
        for text, found in pool.map(lambda text: (text, explain(signed, tokenizer(), text)), TEXTS * 2):
            assert found.method == expected[text].method
            torch.testing.assert_close(found.scores, expected[text].scores)


def test_words_have_their_mean_score_over_all_texts():
    found = explain(model(), tokenizer(), TEXTS, "erasure", target="positive")
    table = found.words()
    goods = [
        score for one in found for token, score in zip(one.tokens, one.scores.tolist(), strict=True) if token == "good"
    ]
    word = next(word for word in table if word.word == "good")
    assert (word.count, word.mean) == (3, pytest.approx(sum(goods) / 3))
    assert [one.mean for one in table] == sorted((one.mean for one in table), reverse=True)
    assert "!" not in {one.word for one in table}
    assert {one.word for one in word_table(found, min_count=2)} == {"a", "film", "good", "bad"}
    assert "<td>good</td>" in table._repr_html_()
    assert "good (3)" in str(table)
    assert table.bottom(1) == [list(table)[-1]]


@pytest.mark.parametrize(
    ("targets", "method", "warns"),
    [
        (("negative", "positive"), "erasure", True),
        (("positive", "positive"), "erasure", False),
        (("negative", "positive"), "rollout", False),
    ],
)
def test_a_table_of_different_targets_warns(targets, method, warns):
    found = [explain(model(), tokenizer(), TEXTS[1], method, target=name) for name in targets]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        word_table(found)
    with pytest.raises(ValueError, match="expected explanations, got a str"):
        word_table(TEXTS)
    assert ["different targets" in str(one.message) for one in told] == [True] * warns


def test_a_model_without_a_rule_gets_contributions_and_a_note():
    recurrent = pooling()
    assert default_method(recurrent) == "contributions"
    changed = model()
    changed.classifier = torch.nn.Sequential(Fourier(), changed.classifier)
    found = explain(changed, tokenizer(), TEXTS[0])
    assert found.method == "contributions"
    assert f"The default method, {TEXT_DEFAULT}, does not apply: AttnLRP has no rule" in found.notes[0]
    with pytest.raises(ValueError, match="no rule for the operation fft_fft"):
        explain(changed, tokenizer(), TEXTS[0], "attnlrp")


class Fourier(torch.nn.Module):
    def forward(self, states):
        return torch.fft.fft(states).real


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ([], {}, "at least one text or image, got an empty list"),
        (["good", ""], {}, r"inputs\[1\]: expected a text with at least one word"),
        (["good", ("good", "bad")], {}, r"inputs\[1\]: .* got tuple"),
        (("good", "bad"), {}, "a tuple, which is a pair of texts"),
        ("good", {"target": "neutral"}, "target 'neutral' does not exist"),
        ("good", {"target": 2}, "choose one of"),
        (["good"], {"batch_size": 0}, "a batch_size of at least 1"),
        (pd.DataFrame({"text": ["good"]}), {}, "got a DataFrame; pass one column of a table"),
        ({"input_ids": [1, 2]}, {}, "texts or images in a list or a stream, got a dict"),
        (None, {}, "texts or images in a list or a stream, got a NoneType"),
        (["good"], {"target": ["positive"]}, "one target for all inputs, a name or an index; got a list"),
        ("good", {"layer": "first", "method": "contributions"}, "layer 'first' does not exist; choose 0 to 2"),
    ],
)
def test_bad_input_is_one_error_with_the_expectation(inputs, options, message):
    with pytest.raises(ValueError, match=message):
        explain(model(), tokenizer(), inputs, **options)
    with pytest.raises(ValueError, match="in a list or a stream, got a str"):
        next(explain_each(model(), tokenizer(), "good film"))


def test_words_without_a_piece_are_named():
    found = explain(model(), tokenizer(), "a xyzzy good qwrtp xyzzy film")
    assert found.notes == ["Not, or not fully, in the vocabulary; the model reads [UNK]: xyzzy, qwrtp."]


def test_printed_it_is_the_summary_and_in_a_list_one_line():
    found = explain(model(), tokenizer(), [TEXTS[0]])
    assert re.search(r"^Prediction: .*Largest magnitude first:\n.*  unbelievably\n", str(found[0]), re.DOTALL)
    assert repr(found) == f"[<Explanation by {TEXT_DEFAULT} of [CLS] a unbelievably good film [SEP]>]"


def test_long_texts_run_in_batches_of_windows_also_without_a_padding_token():
    long = [" ".join(["a", "good", "bad", "film"] * times) for times in (10, 3, 8)]
    few, many = (explain(model(), tokenizer(), long, "contributions", batch_size=size) for size in (2, 50))
    for one, other in zip(few, many, strict=True):
        torch.testing.assert_close(one.scores, other.scores, atol=1e-5, rtol=1e-3)
        assert one.explained == other.explained
    without = tokenizer()
    without.pad_token = None
    found, _ = explain(model(), without, [long[0], "good"], "contributions")
    torch.testing.assert_close(found.scores, many[0].scores, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("method", ["contributions", "integrated-gradients", "erasure", "attnlrp"])
def test_a_contrast_explains_the_difference_of_two_logits(method):
    for text in (TEXTS[0], TEXTS[:3]):
        found = explain(model(), tokenizer(), text, method, target="positive", instead_of="negative")
        each = [explain(model(), tokenizer(), text, method, target=name) for name in ("positive", "negative")]
        parts = [[one] if isinstance(text, str) else one for one in (found, *each)]
        for contrast, positive, negative in zip(*parts, strict=True):
            torch.testing.assert_close(contrast.scores, positive.scores - negative.scores, atol=1e-4, rtol=1e-3)
            assert contrast.value == pytest.approx(positive.value - negative.value, abs=1e-5)
            assert "the logit of positive minus that of negative" in contrast.explained


def test_a_model_in_double_precision_is_explained_with_its_coefficients_and_its_figures():
    found = explain(model().double(), tokenizer(), TEXTS[0], "attnlrp")
    torch.testing.assert_close(found.scores.float(), explain(model(), tokenizer(), TEXTS[0], "attnlrp").scores)
    chosen = explain(model().double(), tokenizer(), TEXTS[0], layer=1, head=1)
    assert chosen.coefficients.values.dtype == torch.float64


@pytest.mark.parametrize("head", ["BertForQuestionAnswering", "BertForMultipleChoice"])
def test_a_model_with_several_outputs_for_a_text_is_refused_and_its_encoder_is_explained(head):
    several = family(head, **SHAPE)
    with pytest.raises(ValueError, match=rf"one output to explain; Bidir{head} .* model\.base_model"):
        explain(several, tokenizer(), TEXTS[0])
    assert explain(several.base_model, tokenizer(), TEXTS[0]).scores.any()


@pytest.mark.parametrize(
    ("head", "position"),
    [
        ("BertForTokenClassification", None),
        ("BertForTokenClassification", 8),
        ("BertForMaskedLM", None),
        ("BertForMaskedLM", -1),
    ],
)
def test_a_missing_or_wrong_position_is_an_error_that_lists_the_positions(head, position):
    listed = re.escape("(--position): 0 [CLS], 1 a, 2 un, 3 ##believ, 4 ##ably, 5 good, 6 film, 7 [SEP]")
    with pytest.raises(ValueError, match=f"{listed}; got {position}"):
        explain(family(head, **SHAPE), tokenizer(), TEXTS[0], position=position)
    with pytest.raises(ValueError, match=r"inputs\[1\]: .*0 \[CLS\], 1 bad, 2"):
        explain(family("BertForMaskedLM", **SHAPE), tokenizer(), ["a [MASK] film", "bad"])


def test_a_contrast_with_the_explained_class_or_an_unknown_one_is_refused():
    with pytest.raises(
        ValueError, match="expected instead_of to differ from the explained class or token, got 'bad'; name another"
    ):
        explain(
            bert(**NAMES | {"id2label": {0: "good", 1: "bad"}}), tokenizer(), TEXTS[0], target="bad", instead_of="bad"
        )
    with pytest.raises(ValueError, match="target 'neutral' does not exist"):
        explain(model(), tokenizer(), TEXTS[0], instead_of="neutral")
