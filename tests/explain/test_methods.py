"""All methods under one signature."""

from dataclasses import replace

import pytest
import torch

from hf_bidir import BidirBertForMaskedLM
from hf_bidir.explain import METHODS, Request, attention_flow, attention_rollout, head_contributions, token_scores
from hf_bidir.explain.forward import forward_pass
from hf_bidir.explain.inputs.text import Example
from hf_bidir.explain.methods import sink_note
from tests.explain.conftest import asked, bert, family, images, sentences, vit


def coefficients(model, inputs):
    with torch.no_grad():
        return forward_pass(model, inputs).coefficients


@pytest.mark.parametrize("position", [None, 50])
def test_a_method_without_an_output_checks_the_position_too(position):
    for method in ("flow", "attention", "values"):
        with pytest.raises(ValueError, match="position"):
            token_scores(bert(head=BidirBertForMaskedLM), sentences(), method, position=position)


@pytest.mark.parametrize("method", METHODS)
def test_padding_on_the_left_changes_no_score(method):
    model, text = family("LlamaForSequenceClassification"), torch.arange(5, 10)[None]
    padded = {
        "input_ids": torch.cat([torch.tensor([[1, 1, 1, *text[0]]]), torch.arange(12, 20)[None]]),
        "attention_mask": torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [1] * 8]),
    }
    scores, alone = (token_scores(model, inputs, method, target=1)[0] for inputs in (padded, {"input_ids": text}))
    torch.testing.assert_close(scores[3:], alone, atol=1e-4, rtol=1e-3)
    assert not scores[:3].any()


@pytest.mark.parametrize("method", ["erasure", "integrated-gradients"])
def test_positions_in_one_row_are_those_of_every_text(method):
    scores = token_scores(bert(), sentences() | {"position_ids": torch.arange(6)[None]}, method, target=1)
    torch.testing.assert_close(scores, token_scores(bert(), sentences(), method, target=1))


@pytest.mark.parametrize("method", ["integrated-gradients", "deletion"])
def test_a_decoder_without_a_padding_token_is_explained_as_with_one_that_the_text_does_not_have(method):
    model, inputs = family("GPT2ForSequenceClassification", pad_token_id=None), {"input_ids": torch.arange(5, 11)[None]}
    scores = token_scores(model, inputs, method, target=1)
    model.config.pad_token_id = 0  # whose embedding is the baseline without one, too
    torch.testing.assert_close(scores, token_scores(model, inputs, method, target=1), atol=1e-4, rtol=1e-3)


def test_a_name_that_two_classes_share_is_no_target():
    model = vit(id2label={0: "crane", 1: "dog", 2: "crane"}, label2id={"dog": 1, "crane": 2})
    with pytest.raises(ValueError, match=r"'crane' .* 0 and 2"):
        token_scores(model, images(), "contributions", "crane")
    chosen = [token_scores(model, images(), "contributions", target) for target in (0, 2)]
    assert not torch.equal(*chosen)


def test_layer_and_head_select_coefficients():
    model, inputs = bert(), sentences()
    attentions, keep = coefficients(model, inputs), inputs["attention_mask"]
    chosen, of_head = {"layer": 1, "head": 1}, [layer[:, [1]] for layer in attentions[:2]]
    expected = {
        "contributions": asked(head_contributions, model, inputs)[:, 1, 1],
        "attention": attentions[1][:, 1, 0].abs(),
        "rollout": attention_rollout(of_head, keep)[:, 0],
        "flow": attention_flow(of_head, keep),
    }
    for method, scores in expected.items():
        torch.testing.assert_close(token_scores(model, inputs, method, **chosen), scores)


def test_scores_of_an_output_per_token_start_at_its_position():
    model, inputs = bert(head=BidirBertForMaskedLM), sentences()
    attentions = coefficients(model, inputs)
    scores = token_scores(model, inputs, "attention", position=torch.tensor([2, 1]))
    rows = [attentions[-1][0, :, 2], attentions[-1][1, :, 1]]
    torch.testing.assert_close(scores, torch.stack([row.abs().mean(0) for row in rows]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "rolout"}, "unknown method 'rolout'.*Did you mean \"rollout\""),
        ({"layer": 3}, "layer 3 does not exist; choose 0 to 2"),
        ({"head": 2}, "head 2 does not exist; choose 0 to 1"),
        ({"method": "erasure", "head": 1}, "erasure covers the whole model"),
        ({"method": "alti", "head": 1}, "alti covers all heads of a layer; leave out head"),
    ],
)
def test_bad_input_is_one_error_with_the_expectation(options, message):
    with pytest.raises(ValueError, match=message):
        token_scores(bert(), sentences(), **options)


@pytest.mark.parametrize(
    ("method", "scores", "named"),
    [
        ("rollout", [0.97, 0.02, 0.01], '"[CLS]", a sink of the attention, holds 97% of the scores of rollout'),
        ("values", [0.02, 0.01, 0.97], '"[SEP]", a sink of the attention, holds 97% of the scores of values'),
        ("rollout", [0.02, 0.97, 0.01], ""),  # a word, which is what the method says
        ("rollout", [0.0, 0.0, 0.0], ""),
        ("alti", [[0.9, 0.1, 0.0], [0.91, 0.09, 0.0]], "holds 90% of the scores of alti"),
        ("alti", [[0.9, 0.1, 0.0], [0.88, 0.12, 0.0]], ""),
        ("erasure", [0.97, 0.02, -0.01], ""),  # for or against y
    ],
)
def test_a_sink_that_holds_almost_all_scores_is_named(method, scores, named):
    example = Example({}, ["[CLS]", "good", "[SEP]"], [True, False, True], torch.arange(3))
    note = sink_note(Request(method), example, torch.tensor(scores))
    assert (named in note) if named else note == ""
    alone = replace(example, tokens=["[CLS]"])  # there is no other token to rank
    assert not sink_note(Request(method), alone, torch.ones(1))
