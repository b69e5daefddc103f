"""The verdict of an explanation: the prediction without the strongest words, and a second method."""

from dataclasses import replace

import pytest
import torch
from scipy.spatial.distance import cosine
from scipy.stats import spearmanr
from transformers import ViTImageProcessor

from hf_bidir import BidirBertModel
from hf_bidir.explain import ForwardCache, Request, explain, explain_each
from hf_bidir.explain.inputs.text import signed
from hf_bidir.explain.readout import Prediction
from hf_bidir.explain.verdict import Verdict, verdict_of
from tests.explain.conftest import NAMES, SHAPE, bert, family, picture, pooling, tokenizer, vit

TEXT = "a good bad film ! good a film"


@pytest.mark.parametrize(
    ("model", "read"),
    [
        (bert, None),
        (pooling, None),
        (lambda: family("BertForTokenClassification", **SHAPE), 6),
        (lambda: family("LlamaForCausalLM", vocab_size=40), 8),
    ],
)
def test_the_strongest_words_of_the_sign_of_y_are_removed_and_never_the_one_it_is_read_from(model, read):
    model = model()
    found = explain(model, tokenizer(), TEXT, "erasure", position=read)
    ids = found.example.inputs["input_ids"][0]
    scores = found.scores if found.value > 0 else -found.scores
    least = scores[1:-1].abs().max() / 10
    words = [place for place in range(1, len(ids) - 1) if place != read and scores[place] >= least]
    removed = sorted(words, key=lambda place: -scores[place])[:3]
    assert [name.split(" ")[0] for name in found.verdict.removed] == [found.tokens[place] for place in removed]
    stays = [place for place in range(len(ids)) if place not in removed]
    with torch.no_grad():
        row = model(input_ids=ids[stays][None]).logits[0]
    row = row if read is None else row[stays.index(read)]
    y = row[found.target] - (row.mean() if "CausalLM" in type(model).__name__ else 0)
    assert found.verdict.after.value == pytest.approx(y.item(), abs=1e-5)
    assert found.verdict.after.probability == pytest.approx(row.softmax(-1).max().item(), abs=1e-6)
    assert found.verdict.before.value == found.value


def test_a_tenth_of_the_patches_is_painted_in_the_mean_colour():
    model, processor = vit(image_size=16), ViTImageProcessor(size={"height": 16, "width": 16})
    found = explain(model, processor, picture(), "contributions")
    pixels = found.example.inputs["pixel_values"].clone()
    scores = found.scores[1:]
    ranked = scores.topk(6)
    painted = ranked.indices[ranked.values >= scores.abs().max() / 10].tolist()
    for patch in painted:
        top, left = 2 * (patch // 8), 2 * (patch % 8)
        pixels[:, :, top : top + 2, left : left + 2] = 0
    with torch.no_grad():
        logits = model(pixel_values=pixels).logits[0]
    assert found.verdict.after.value == pytest.approx(logits[found.target].item(), abs=1e-5)
    assert f'With {len(painted)} of 64 patches painted in the mean colour ("patch in row' in found.verdict.sentence


@pytest.mark.parametrize(
    ("method", "second"), [("erasure", "contributions"), ("contributions", "erasure"), ("rollout", "erasure")]
)
def test_a_second_method_is_compared_by_ranks_and_signs(method, second):
    found, first, scores = compared(TEXT, method, second)
    ranked = scores.abs() if method == "rollout" else scores
    assert found.verdict.method == second
    assert found.verdict.correlation == pytest.approx(spearmanr(first, ranked).statistic)
    shares = first / first.abs().max(), scores / scores.abs().max()
    differ = (torch.minimum(*map(torch.abs, shares)) >= 0.1) & (first * scores < 0)
    assert len(found.verdict.differing) == (0 if method == "rollout" else differ.sum())


@pytest.mark.parametrize(("method", "second"), [("deletion", "attnlrp"), ("contributions", "erasure")])
def test_a_second_method_is_compared_by_the_cosine_of_few_words(method, second):
    found, first, scores = compared("a good film", method, second)
    assert found.verdict.correlation == pytest.approx(1 - cosine(first, scores), abs=1e-6)


def test_scores_of_few_words_without_signs_are_compared_with_no_other_method():
    verdict = explain(bert(**NAMES), tokenizer(), "a good film", "rollout").verdict
    assert (verdict.method, verdict.correlation) == ("", None)
    assert verdict.sentence.endswith("No second method applies where scores have no signs and few words are ranked.")


def compared(text, method, second):
    """The explanation by a method, its scores of the words, and those by a second method."""
    found, other = (explain(bert(**NAMES), tokenizer(), text, name, target=1) for name in (method, second))
    return found, found.scores[1:-1], other.scores[1:-1]


def test_of_a_target_against_the_prediction_the_words_that_oppose_it_are_removed():
    model = bert(**NAMES)
    model.eval()
    chosen = [explain(model, tokenizer(), TEXT, "erasure", target=which, instead_of=1 - which) for which in (0, 1)]
    against, supported = sorted(chosen, key=lambda found: found.value)
    assert against.value < 0
    assert against.verdict.removed == supported.verdict.removed
    assert against.verdict.share == pytest.approx(supported.verdict.share, abs=1e-5)
    assert against.verdict.headline == supported.verdict.headline


def test_a_second_method_with_a_correlation_that_is_printed_as_its_threshold_agrees():
    assert Verdict(POSITIVE, method="m", correlation=0.496).agrees
    assert not Verdict(POSITIVE, method="m", correlation=0.494).agrees


@pytest.mark.parametrize("scale", [0.1, -0.1])
def test_a_special_token_that_outweighs_the_words_and_their_opposite_sum_leave_no_more_than_partly(scale):
    model = bert(**NAMES)
    found = explain(model, tokenizer(), TEXT, "erasure", target=1, instead_of=0, verdict=False)
    scores = torch.full_like(found.scores, scale * found.value)
    scores[0] = 2 * found.value
    cache = ForwardCache(model, found.example.inputs, found.example.token_of_piece[None])
    verdict = verdict_of(cache, Request("erasure", 1, 0), tokenizer(), replace(found, scores=scores))
    assert ("The listed scores sum to another sign than y." in verdict.limits) == (scale < 0)
    assert "[CLS] outweighs every word or patch." in verdict.limits
    assert verdict.headline != "holds"


def test_a_single_layer_is_compared_with_no_other_method():
    verdict = explain(bert(**NAMES), tokenizer(), TEXT, "contributions", layer=1).verdict
    assert verdict.sentence.endswith("). No second method applies for a single layer or head.")


def test_one_input_has_a_verdict_and_of_several_those_that_were_asked_for():
    model, words = bert(**NAMES), tokenizer()
    assert explain(model, words, TEXT, "erasure", verdict=False).verdict is None
    assert [found.verdict for found in explain(model, words, [TEXT], "erasure")] == [None]
    asked = list(explain_each(model, words, [TEXT, "a bad film"], "erasure", verdict=True))
    assert [found.verdict for found in asked] == [
        explain(model, words, text, "erasure").verdict for text in (TEXT, "a bad film")
    ]


@pytest.mark.parametrize(("text", "segments"), [("good", None), ("a good film", "sentences")])
def test_a_word_or_segment_alone_has_no_verdict_and_a_note_says_so(text, segments):
    found = explain(bert(**NAMES), tokenizer(), text, segments=segments)
    assert found.verdict is None
    assert "A single word, segment or patch has no verdict." in found.notes


POSITIVE = Prediction("", 1.93, "positive", 0.974, shares="positive, 97.4 %")
LESS = Prediction("", 0.02, "positive", 0.505, shares="positive, 50.5 %")
NEGATIVE = Prediction("", -1.27, "negative", 0.812, shares="positive, 18.8 %; predicted: negative, 81.2 %")
AGREED = {"method": "m", "correlation": 0.75}


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ((1.9, 0.6), (1.2, 0.7), " Its probability rises: other logits fall more. "),
        ((-1.9, 0.2), (-1.2, 0.1), " Its probability falls: other logits rise more. "),
        ((1.9, 0.6), (1.2, 0.5), ""),
        ((1.9, 0.6), (1.2, 0.605), ""),
        ((1.9, None), (1.2, None), ""),
    ],
)
def test_a_probability_that_moves_against_its_logit_is_named(before, after, named):
    before, after = (Prediction("", value, "a", 0.5, share=share) for value, share in (before, after))
    sentence = Verdict(before, ["bad"], after, **AGREED).sentence
    assert named in sentence
    assert ("probability" in sentence) == bool(named)


@pytest.mark.parametrize(
    ("verdict", "sentence"),
    [
        (
            Verdict(POSITIVE, ["not", "bad"], NEGATIVE, missing="here"),
            'partly. Without "not" and "bad" y falls from +1.9 (positive, 97.4 %) to −1.3 (positive, 18.8 %; '
            "predicted: negative, 81.2 %). No second method applies here.",
        ),
        (
            Verdict(POSITIVE, ["bad"], LESS, **AGREED),
            'holds. Without "bad" y falls from +1.9 (positive, 97.4 %) to +0.02 (positive, 50.5 %). A second '
            "method, m, agrees: rank correlation 0.75.",
        ),
        (
            Verdict(POSITIVE, ["bad"], LESS, **AGREED, limits=["The scores sum to another sign than y."]),
            'partly. Without "bad" y falls from +1.9 (positive, 97.4 %) to +0.02 (positive, 50.5 %). A second '
            "method, m, agrees: rank correlation 0.75. The scores sum to another sign than y.",
        ),
        (
            Verdict(Prediction("", -2.0), ["a"], Prediction("", -0.1), **AGREED, differing=list("abcde")),
            'partly. Without "a" y rises from −2 to −0.1. A second method, m, disagrees: rank correlation 0.75. It '
            'gives "a", "b", "c" and 2 more the other sign.',
        ),
        (
            Verdict(Prediction("", 2.0), ["x", "y"], Prediction("", 0.1), **AGREED, differing=["a"], alone=0.04),
            'holds. Without "x" and "y" y falls from +2 to +0.1. Their scores, each alone, sum to +0.04: they stand in'
            ' for each other. A second method, m, agrees: rank correlation 0.75. It gives "a" the other sign.',
        ),
        (
            Verdict(Prediction("", 2.0), ["x"], Prediction("", 0.1), **AGREED, alone=0.04),
            'holds. Without "x" y falls from +2 to +0.1. A second method, m, agrees: rank correlation 0.75.',
        ),
        (
            Verdict(Prediction("", -2.0), ["a"], Prediction("", -2.2), **AGREED, ranked=False),
            'partly. Without "a" y falls, away from 0, from −2 to −2.2. A second method, m, agrees: cosine 0.75.',
        ),
        (
            Verdict(Prediction("", 9.3), ["a"], Prediction("", 8.9), **AGREED),
            'partly. Without "a" y falls only from +9.3 to +8.9. A second method, m, agrees: rank correlation 0.75.',
        ),
        (
            Verdict(LESS, ["bad"], Prediction("", -0.06, "positive", 0.49, shares="positive, 49 %"), **AGREED),
            'do not rely on it. Without "bad" y hardly moves: from +0.02 (positive, 50.5 %) to −0.06 (positive, 49 %).',
        ),
        (
            Verdict(Prediction("", 50.0), ["a"], Prediction("", 49.6)),
            'do not rely on it. Without "a" y hardly moves: from +50 to +50.',
        ),
        (
            Verdict(LESS, method="m", correlation=-0.2),
            "do not rely on it. Nothing that can be removed has clearly the sign of y. A second method, m, "
            "disagrees: rank correlation -0.20.",
        ),
    ],
)
def test_the_verdict_begins_with_its_headline(verdict, sentence):
    assert verdict.sentence == f"Verdict on the explanation: {sentence}"


@pytest.mark.parametrize("images", [False, True])
def test_the_prediction_for_the_baseline_is_a_note(images):
    model, source = bert(**NAMES), (tokenizer(), TEXT)
    if images:
        model, source = vit(), (ViTImageProcessor(size={"height": 8, "width": 8}), picture())
    found = explain(model, *source, "integrated-gradients")
    name = model.main_input_name
    with torch.no_grad():
        logits = model(**found.example.inputs | {name: torch.zeros_like(found.example.inputs[name])}).logits[0]
    explained, y = model.config.id2label[found.target], signed(logits[found.target].item())
    assert f"The baseline has y {y} ({explained}, " in found.notes[-1]


@pytest.mark.parametrize("method", ["attnlrp", "integrated-gradients"])
def test_a_model_in_half_precision_has_a_verdict(method):
    found = explain(bert(**NAMES).bfloat16(), tokenizer(), TEXT, method)
    assert found.verdict.method == "erasure"
    assert found.scores.dtype == torch.float32


def test_without_a_head_y_stays_the_projection_on_the_state_of_the_whole_text():
    model = bert(head=BidirBertModel)
    found = explain(model, tokenizer(), TEXT, "deletion")
    ids = found.example.inputs["input_ids"]
    names = [name.split(" ")[0] for name in found.verdict.removed]
    removed = sorted(range(1, ids.shape[1] - 1), key=lambda place: -found.scores[place])[: len(names)]
    stays = [place for place in range(ids.shape[1]) if place not in removed]
    with torch.no_grad():
        whole, rest = (model(input_ids=row).last_hidden_state[0, 0] for row in (ids, ids[:, stays]))
    assert found.verdict.after.value == pytest.approx((rest @ whole / whole.norm()).item(), abs=1e-5)
