"""Curves of deletion and insertion, comprehensiveness and sufficiency, against deletion by hand."""

import pytest
import torch

from hf_bidir.explain import contributions
from research.faithfulness import ERASER_SHARES, area, comprehensiveness, prediction_curve, sufficiency
from research.tests.faithfulness.conftest import texts
from tests.explain.conftest import bert, family, images, inputs_of, pooling, sentences, vit


def probability(model, ids, target):
    return model(torch.tensor([ids])).logits.softmax(-1)[0, target].item()


def example(model):
    """A text of seven words, their scores, the predicted class."""
    ids = texts()["input_ids"][:1]
    return ids, torch.tensor([[0.3, -2.0, 1.5, 0.0, 0.9, -0.1, 0.7]]), model(ids).logits.argmax().item()


def test_deletion_takes_the_highest_scores_first_and_the_text_closes_up():
    model = pooling(encoder="gru")
    ids, scores, target = example(model)
    curve = prediction_curve(model, {"input_ids": ids}, scores, [0, 0.25, 1])
    words = ids[0].tolist()
    rest = [word for index, word in enumerate(words) if index not in (2, 4)]  # a quarter of seven is two
    assert curve[:, 0].tolist() == pytest.approx(
        [probability(model, words, target), probability(model, rest, target), probability(model, [words[2]], target)],
        abs=1e-6,
    )


def test_insertion_leaves_the_highest_scores_alone_in_the_order_of_the_text():
    model = pooling(encoder="gru")
    ids, scores, target = example(model)
    curve = prediction_curve(model, {"input_ids": ids}, scores, [0.4, 1], "insertion")
    words = ids[0].tolist()
    best = [words[2], words[4], words[6]]
    expected = [probability(model, best, target), probability(model, words, target)]
    assert curve[:, 0].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("how", ["deletion", "insertion"])
def test_examples_of_a_batch_do_not_depend_on_each_other(how):
    model, batch = pooling(encoder="lstm", bidirectional=True), texts()
    scores = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    together = prediction_curve(model, batch, scores, ERASER_SHARES, how)
    for row, length in enumerate(batch["attention_mask"].sum(1)):
        alone = prediction_curve(
            model, {"input_ids": batch["input_ids"][row : row + 1, :length]}, scores[row : row + 1, :length],
            ERASER_SHARES, how,
        )  # fmt: skip
        torch.testing.assert_close(together[:, row], alone[:, 0], rtol=0, atol=1e-6)


def test_the_token_of_the_output_and_special_tokens_stay():
    model, ids = bert(), sentences()["input_ids"][:1]
    special = torch.tensor([[True, False, False, False, False, True]])
    left = prediction_curve(model, {"input_ids": ids}, torch.zeros(1, 6), [1.0], special=special)
    expected = model(ids[:, [0, 5]]).logits.softmax(-1)[0, model(ids).logits.argmax()]
    torch.testing.assert_close(left[0, 0], expected.detach())
    only_first = prediction_curve(model, {"input_ids": ids}, torch.zeros(1, 6), [1.0])
    expected = model(ids[:, :1]).logits.softmax(-1)[0, model(ids).logits.argmax()]
    torch.testing.assert_close(only_first[0, 0], expected.detach())


def test_patches_are_painted_with_the_mean_colour():
    model, batch = vit(), images()
    scores = contributions(model, batch).sum((1, 2))
    curve = prediction_curve(model, batch, scores, [2 / 16])
    best = scores[0, 1:].argsort(descending=True)[:2].tolist()
    painted = batch["pixel_values"][:1].clone()
    for patch in best:
        painted[:, :, patch // 4 * 2 : patch // 4 * 2 + 2, patch % 4 * 2 : patch % 4 * 2 + 2] = 0
    target = model(batch["pixel_values"][:1]).logits.argmax()
    torch.testing.assert_close(curve[0, 0], model(painted).logits.softmax(-1)[0, target].detach())


def test_comprehensiveness_and_sufficiency_are_means_over_shares_and_areas_integrals():
    assert area(torch.tensor([[1.0], [0.75], [0.5]])).tolist() == [0.75]
    model, batch = pooling(), texts()
    scores = contributions(model, batch).sum((1, 2))
    whole = model(**batch).logits.softmax(-1).amax(-1).detach()
    without = torch.stack([prediction_curve(model, batch, scores, [share])[0] for share in (0.01, 0.05, 0.1, 0.2, 0.5)])
    torch.testing.assert_close(comprehensiveness(model, batch, scores), whole - without.mean(0))
    alone = torch.stack(
        [prediction_curve(model, batch, scores, [s], "insertion")[0] for s in (0.01, 0.05, 0.1, 0.2, 0.5)]
    )
    torch.testing.assert_close(sufficiency(model, batch, scores), whole - alone.mean(0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shares": [1.5]}, r"shares in \[0, 1\], got 'deletion' and \[1.5\]"),
        ({"how": "erasure"}, 'expected how "deletion" or "insertion" .* got \'erasure\''),
        ({"scores": torch.zeros(3, 5)}, r"expected scores \[batch, length\] = \(3, 7\), got \(3, 5\)"),
    ],
)
def test_bad_input_is_one_error(change, message):
    arguments = {"scores": torch.zeros(3, 7), "shares": [0.5], "how": "deletion"} | change
    with pytest.raises(ValueError, match=message):
        prediction_curve(pooling(), texts(), **arguments)


def test_scores_in_half_precision_rank_the_tokens_of_a_long_text_as_they_are():
    model = pooling()
    ids = torch.randint(1, 20, (1, 400), generator=torch.Generator().manual_seed(3))
    scores = torch.arange(400.0).flip(0)[None].bfloat16()  # many ties, in the same order for both
    curves = [prediction_curve(model, {"input_ids": ids}, s, [0.8, 0.9, 0.95]) for s in (scores, scores.float())]
    assert curves[0].equal(curves[1])


def test_nan_scores_are_refused_except_at_padding():
    model, batch = pooling(), texts()
    scores = torch.randn(3, 7).masked_fill(~batch["attention_mask"].bool(), float("nan"))
    assert prediction_curve(model, batch, scores, [0.5]).isfinite().all()
    scores[1, 0] = float("nan")
    with pytest.raises(ValueError, match="expected finite scores"):
        prediction_curve(model, batch, scores, [0.5])


@pytest.mark.parametrize("name", ["GPT2ForSequenceClassification", "LlamaForSequenceClassification"])
def test_a_decoder_keeps_its_last_token(name):
    model, batch = family(name), inputs_of(family(name))
    ids, scores = batch["input_ids"], torch.arange(12.0).view(2, 6)
    curve = prediction_curve(model, batch, scores, [0.5, 1.0])
    for row, rest in ((0, [[0, 1, 5], [5]]), (1, [[0, 3], [3]])):
        target = model(ids[row : row + 1, : rest[0][-1] + 1]).logits.argmax()
        for share, kept in enumerate(rest):
            expected = model(ids[row : row + 1, kept]).logits.softmax(-1)[0, target].detach()
            torch.testing.assert_close(curve[share, row], expected, atol=1e-5, rtol=1e-4)


def test_a_replaced_word_piece_keeps_its_place():
    model, inputs = bert(), sentences()
    scores = torch.tensor([[0.0, 3.0, 1.0, 2.0, 0.0, 0.0]]).expand(2, -1)
    curve = prediction_curve(model, inputs, scores, [0.2], replacement=4, target=torch.tensor([1, 1]))
    masked = inputs["input_ids"].clone()
    masked[:, 1] = 4  # a fifth of five, and of three rounded up
    expected = model(masked, attention_mask=inputs["attention_mask"]).logits.softmax(-1)[:, 1]
    torch.testing.assert_close(curve[0], expected)
