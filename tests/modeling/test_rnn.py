"""The recurrent models: explicit formulas, padding, loading in a clean process, explanations, errors."""

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from hf_bidir import BidirRnnConfig, BidirRnnForSequenceClassification, BidirRnnModel
from hf_bidir.explain import contributions, erasure, token_scores
from hf_bidir.modeling.modeling_bidir_rnn import encode

TINY = {"vocab_size": 30, "embedding_size": 6, "hidden_size": 4, "initializer_range": 1.0}
SCORES = ("content", "additive", "location", "general", "dot", "scaled_dot")
RECURRENT = {"none": {}, "lstm": {"bidirectional": True}, "gru": {"num_rnn_layers": 2}}
CASES = [("none", "per_token"), ("lstm", "feed_forward"), ("gru", "per_token")]
every_kind = pytest.mark.parametrize(("encoder", "score"), CASES)


def model_of(encoder="none", score="per_token", **config):
    torch.manual_seed(0)
    return BidirRnnForSequenceClassification(
        BidirRnnConfig(**TINY | RECURRENT[encoder] | {"encoder": encoder, "attn_score": score} | config)
    ).eval()


def texts() -> dict[str, torch.Tensor]:
    """Three texts of 7, 4 and 1 words."""
    keep = (torch.arange(7) < torch.tensor([[7], [4], [1]])).long()
    return {"input_ids": torch.randint(1, 30, (3, 7), generator=torch.Generator().manual_seed(1)) * keep,
            "attention_mask": keep}  # fmt: skip


def test_the_papers_model_is_its_formula_written_out():
    model, ids = model_of(attn_scale=3.0), texts()["input_ids"][:1]
    pooling, embedded = model.rnn.attention, model.rnn.embeddings.weight[ids[0]]

    def linear(layer):
        return torch.stack([layer.weight @ state + layer.bias for state in embedded])

    query, key, value = linear(pooling.score.query), linear(pooling.score.key), linear(pooling.value)
    scores = torch.stack([sum(q * k for q, k in zip(*pair, strict=True)) / 3 for pair in zip(query, key, strict=True)])
    signed = scores.exp() - (-scores).exp()
    coefficients = signed / (scores.exp() + (-scores).exp()).sum()
    context = sum(a * v for a, v in zip(coefficients, value, strict=True))
    expected = model.classifier.weight @ context + model.classifier.bias
    torch.testing.assert_close(model(ids).logits[0], expected, rtol=0, atol=1e-6)


def test_the_tutorial_layer_is_its_formula_written_out():
    model, ids = model_of(score="feed_forward", attn_activation="softmax"), texts()["input_ids"][:1]
    layer, states = model.rnn.attention.score.score, model.rnn.embeddings.weight[ids[0]]
    scores = torch.stack([torch.tanh(layer.weight[0] @ state + layer.bias[0]) for state in states])
    context = sum(torch.exp(score) / scores.exp().sum() * state for score, state in zip(scores, states, strict=True))
    expected = model.classifier.weight @ context + model.classifier.bias
    torch.testing.assert_close(model(ids).logits[0], expected, rtol=0, atol=1e-6)


@every_kind
def test_padding_changes_no_logit_and_gets_no_coefficient(encoder, score):
    model, batch = model_of(encoder, score), texts()
    together = model(**batch, output_attentions=True)
    for row, length in enumerate(batch["attention_mask"].sum(1)):
        alone = model(batch["input_ids"][row : row + 1, :length]).logits
        torch.testing.assert_close(together.logits[row : row + 1], alone, rtol=0, atol=1e-6)
        assert (together.attentions[0][row, 0, 0, length:] == 0).all()


@every_kind
def test_a_text_that_is_all_padding_gets_the_logits_of_no_context_and_no_text_is_one_error(encoder, score):
    model = model_of(encoder, score)
    logits = model(torch.zeros(1, 5, dtype=torch.long), torch.zeros(1, 5, dtype=torch.long)).logits
    torch.testing.assert_close(logits[0], model.classifier.bias)
    with pytest.raises(ValueError, match=r"expected at least one text with at least one position; got .* \(2, 0\)"):
        model(torch.zeros(2, 0, dtype=torch.long))


@pytest.mark.parametrize(("score", "query"), zip(SCORES, ["learned", "last"] * 3, strict=True))
def test_with_every_score_and_query_padding_changes_no_logit_and_everything_is_trained(score, query):
    model, batch = model_of("lstm", score, attn_query=query), texts()
    together = model(**batch, labels=torch.tensor([0, 1, 1]))
    for row, length in enumerate(batch["attention_mask"].sum(1)):
        alone = model(batch["input_ids"][row : row + 1, :length]).logits
        torch.testing.assert_close(together.logits[row : row + 1], alone, rtol=0, atol=1e-6)
    together.loss.backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]


def test_the_last_state_of_a_bidirectional_encoder_is_that_of_both_ends():
    model, batch = model_of("lstm", "dot", attn_query="last"), texts()
    embedded = model.rnn.embeddings(batch["input_ids"])
    states, last = encode(model.rnn.encoder, embedded, batch["attention_mask"].bool())
    forward, backward = states[..., :4], states[..., 4:]
    ends = torch.cat([forward[torch.arange(3), batch["attention_mask"].sum(1) - 1], backward[:, 0]], dim=1)
    torch.testing.assert_close(last, ends)


def test_hard_selection_takes_the_largest_coefficient_and_passes_its_value_alone():
    model, batch = model_of("gru", attn_selection="hard"), texts()
    outputs = model(**batch, output_attentions=True, output_hidden_states=True)
    coefficients = outputs.attentions[0][:, 0, 0]
    chosen = coefficients.abs().argmax(-1)
    rows = torch.arange(3)
    values = model.rnn.attention.value(outputs.hidden_states[-1])[rows, chosen]
    expected = model.classifier(coefficients[rows, chosen].sign().unsqueeze(1) * values)
    torch.testing.assert_close(outputs.logits, expected)


def test_hard_selection_trains_scores_and_values_and_never_draws_padding():
    torch.manual_seed(0)
    model, batch = model_of(attn_selection="hard").train(), texts()
    model(**batch, labels=torch.tensor([0, 1, 1])).loss.backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert model.reinforce.baseline > 0
    drawn = [model.rnn(**batch).pooler_output[2] for _ in range(20)]  # a text of one word
    torch.testing.assert_close(torch.stack(drawn).abs(), drawn[0].abs().expand(20, -1))


def test_without_a_mask_the_pad_token_is_padding_and_an_unknown_label_is_refused():
    model, batch = model_of("lstm"), texts()
    torch.testing.assert_close(model(batch["input_ids"]).logits, model(**batch).logits)
    for labels in ([0, 1, 2], [-1, 0, 1]):
        with pytest.raises(ValueError, match="expected labels from 0 to 1, one per text; got"):
            model(**batch, labels=torch.tensor(labels))


def test_the_auto_class_finds_a_classifier_from_which_the_encoder_alone_loads_too(tmp_path):
    model = model_of("gru")
    model.save_pretrained(tmp_path)
    assert isinstance(AutoModelForSequenceClassification.from_pretrained(tmp_path), BidirRnnForSequenceClassification)
    encoder = BidirRnnModel.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(encoder(**texts()).pooler_output, model.rnn(**texts()).pooler_output)


@every_kind
def test_contributions_are_what_each_word_adds_to_the_logit(encoder, score):
    """In one layer with a linear readout the contribution `a_i u_i` is exact."""
    model, batch = model_of(encoder, score), texts()
    found = contributions(model, batch, target=1).sum((1, 2))
    logits = model(**batch).logits[:, 1]
    torch.testing.assert_close(found.sum(-1), logits - model.classifier.bias[1], rtol=0, atol=1e-5)
    assert (found[1, 4:] == 0).all()


def test_erasure_renormalises_what_is_left():
    model, batch = model_of(attn_activation="softmax"), {"input_ids": texts()["input_ids"][:1]}
    found = erasure(model, batch, target=1)[0]
    states = model.rnn.embeddings(batch["input_ids"])
    for left_out in range(7):
        keep = torch.ones(1, 7, dtype=torch.bool)
        keep[0, left_out] = False
        context, *_ = model.rnn.attention(states, keep)
        expected = model(**batch).logits[0, 1] - model.classifier(context)[0, 1]
        torch.testing.assert_close(found[left_out], expected, rtol=0, atol=1e-6)


@every_kind
def test_zeroing_a_coefficient_takes_its_contribution_away(encoder, score):
    model, batch = model_of(encoder, score), texts()
    found = erasure(model, batch, target=1, how="zero")
    torch.testing.assert_close(found, contributions(model, batch, target=1).sum((1, 2)), rtol=0, atol=1e-5)


def test_what_needs_attention_between_tokens_is_refused_with_the_alternatives():
    with pytest.raises(ValueError, match=r"rollout .* choose one of contributions"):
        token_scores(model_of(), texts(), "rollout")


def test_every_word_but_the_last_one_left_can_be_taken_from_the_text():
    model, batch = model_of("lstm"), texts()
    found = erasure(model, batch, target=1, how="token")
    shorter = batch["input_ids"][:1, 1:]
    torch.testing.assert_close(found[0, 0], (model(**batch).logits[0] - model(shorter).logits[0])[1])
    assert found[2].tolist() == [0] * 7


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"encoder": "rnn"}, 'encoder="rnn" is not known; choose one of: none, lstm, gru'),
        ({"attn_score": "dott"}, 'attn_score="dott" is not known'),
        ({"hidden_size": 0}, "expected hidden_size of at least 1, got 0"),
        ({"attn_scale": 0.0}, "expected attn_scale above 0"),
        ({"attn_query": "last"}, 'attn_query="last" needs an encoder, .* encoder is "none"'),
        ({"attn_selection": "both"}, 'attn_selection="both" is not known; choose one of: soft, hard'),
        ({"attn_scope": "local-p"}, 'attn_scope="local-p" is not available for bidir_rnn; choose one of: global'),
        ({"bidirectional": True}, 'bidirectional=True needs an encoder, .* encoder is "none"'),
        ({"pad_token_id": None}, "expected pad_token_id"),
    ],
)
def test_a_config_that_cannot_be_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        BidirRnnConfig(**config)


def test_padding_on_the_left_of_an_encoder_and_neither_words_nor_embeddings_are_refused():
    batch = texts()
    with pytest.raises(ValueError, match="expected either input_ids or inputs_embeds"):
        model_of()()
    with pytest.raises(ValueError, match="padding on the right"):
        model_of("lstm")(batch["input_ids"].flip(1), batch["attention_mask"].flip(1))
