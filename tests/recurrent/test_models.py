"""The recurrent models: explicit formulas, padding, generation, explanations, errors."""

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

from hf_bidir import (
    BidirRnnConfig,
    BidirRnnForSeq2SeqLM,
    BidirRnnForSequenceClassification,
    BidirRnnModel,
    tanhmax,
)
from hf_bidir.explain import contributions, erasure, token_scores
from hf_bidir.recurrent.modeling_bidir_rnn import encode

TINY = {"vocab_size": 30, "embedding_size": 6, "hidden_size": 4, "initializer_range": 1.0}
DECODER = {
    "dropout": 0.0, "decoder_start_token_id": 1, "bos_token_id": 1, "eos_token_id": 2, "attn_score": "general",
    "encoder": "gru", "decoder_style": "luong",
}  # fmt: skip
SCORES = ("content", "additive", "location", "general", "dot", "scaled_dot")
RECURRENT = {"none": {}, "lstm": {"bidirectional": True}, "gru": {"num_rnn_layers": 2}}
every_kind = pytest.mark.parametrize(
    ("encoder", "score"), [("none", "per_token"), ("lstm", "feed_forward"), ("gru", "per_token")]
)
every_style = pytest.mark.parametrize("style", ["luong", "bahdanau"])


def model_of(encoder="none", score="per_token", **config):
    torch.manual_seed(0)
    fields = TINY | RECURRENT[encoder] | {"encoder": encoder, "attn_score": score} | config
    return BidirRnnForSequenceClassification(BidirRnnConfig(**fields)).eval()


def translator(**config):
    torch.manual_seed(0)
    return BidirRnnForSeq2SeqLM(BidirRnnConfig(**TINY | DECODER | config)).eval()


def texts() -> dict[str, torch.Tensor]:
    """Three texts of 7, 4 and 1 words."""
    keep = (torch.arange(7) < torch.tensor([[7], [4], [1]])).long()
    ids = torch.randint(1, 30, (3, 7), generator=torch.Generator().manual_seed(1)) * keep
    return {"input_ids": ids, "attention_mask": keep}


def pairs():
    """Two texts of 7 and 4 words, and what they are to become."""
    inputs = {name: tensor[:2] for name, tensor in texts().items()}
    return inputs | {"labels": torch.tensor([[7, 8, 9, 2], [5, 2, -100, -100]])}


def encoded(model):
    """The first text: its encoder states, and the decoder's state before the first step."""
    states, last = model.encoder(texts()["input_ids"][:1]).to_tuple()[:2]
    return states, torch.tanh(model.start(last))


def assert_rows_are_texts_alone(model, batch, together):
    for row, length in enumerate(batch["attention_mask"].sum(1)):
        alone = model(batch["input_ids"][row : row + 1, :length]).logits
        torch.testing.assert_close(together.logits[row : row + 1], alone, rtol=0, atol=1e-6)


def untrained(model):
    return [name for name, parameter in model.named_parameters() if parameter.grad is None]


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
    assert_rows_are_texts_alone(model, batch, together)
    dropped = batch["attention_mask"] == 0
    assert (together.attentions[0][:, 0, 0][dropped] == 0).all()


@every_kind
def test_a_text_that_is_all_padding_gets_the_logits_of_no_context_and_no_text_is_one_error(encoder, score):
    model = model_of(encoder, score)
    logits = model(torch.zeros(1, 5, dtype=torch.long), torch.zeros(1, 5, dtype=torch.long)).logits
    torch.testing.assert_close(logits[0], model.classifier.bias)
    with pytest.raises(ValueError, match=r"expected at least one text with at least one position; got .* \(2, 0\)"):
        model(torch.zeros(2, 0, dtype=torch.long))


@pytest.mark.parametrize(("score", "query"), [*zip(SCORES, ["learned", "last"] * 3, strict=True)])
def test_with_every_score_and_query_padding_changes_no_logit_and_everything_is_trained(score, query):
    model, batch = model_of("lstm", score, attn_query=query), texts()
    together = model(**batch, labels=torch.tensor([0, 1, 1]))
    assert_rows_are_texts_alone(model, batch, together)
    together.loss.backward()
    assert not untrained(model)


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
    assert not untrained(model)
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


@pytest.mark.parametrize(("encoder", "style"), [("lstm", "luong"), ("gru", "bahdanau")])
def test_padding_of_inputs_and_of_labels_changes_nothing(encoder, style):
    model, batch = translator(encoder=encoder, decoder_style=style, bidirectional=True), pairs()
    together = model(**batch)
    alone = model(batch["input_ids"][1:, :4], labels=batch["labels"][1:, :2])
    torch.testing.assert_close(together.logits[1:, :2], alone.logits, rtol=0, atol=1e-6)
    first = model(batch["input_ids"][:1], labels=batch["labels"][:1])
    torch.testing.assert_close(together.loss, (4 * first.loss + 2 * alone.loss) / 6, rtol=0, atol=1e-6)
    shifted = torch.tensor([[1, 7, 8, 9], [1, 5, 2, 0]])
    read = model(batch["input_ids"], batch["attention_mask"], decoder_input_ids=shifted).logits
    torch.testing.assert_close(together.logits, read)


@every_style
def test_everything_in_a_decoder_is_trained(style):
    model = translator(decoder_style=style, attn_scope="local-p", attn_window=2)
    model.train()(**pairs()).loss.backward()
    assert not untrained(model)


def test_a_step_of_luong_is_its_formula_written_out():
    model = translator(input_feeding=False)
    states, start = encoded(model)
    state = model.cell(model.embeddings(torch.tensor([1])), start)
    scores = torch.stack([state[0] @ model.attention.score.key.weight @ h for h in states[0]])
    context = sum(a * h for a, h in zip(tanhmax(scores), states[0], strict=True))
    expected = model.lm_head(torch.tanh(model.combine(torch.cat([context, state[0]]))))
    got = model(texts()["input_ids"][:1], decoder_input_ids=torch.tensor([[1]]), output_attentions=True)
    torch.testing.assert_close(got.logits[0, 0], expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(got.cross_attentions[0][0, 0, 0], tanhmax(scores), rtol=0, atol=1e-6)


def test_a_step_of_bahdanau_aligns_before_it_moves():
    model = translator(decoder_style="bahdanau", attn_score="additive")
    states, start = encoded(model)
    scores = model.attention.score(start.unsqueeze(1), states)[0, 0]
    got = model(texts()["input_ids"][:1], decoder_input_ids=torch.tensor([[1]]), output_attentions=True)
    torch.testing.assert_close(got.cross_attentions[0][0, 0, 0], tanhmax(scores), rtol=0, atol=1e-6)


def test_local_m_attends_around_the_index_of_the_step():
    outputs = translator(attn_scope="local-m", attn_window=1)(**pairs(), output_attentions=True)
    distance = torch.arange(4)[:, None] - torch.arange(7)
    assert torch.equal(outputs.cross_attentions[0][0, 0] != 0, distance.abs() <= 1)


def test_local_p_attends_around_a_predicted_position_with_a_gaussian():
    model = translator(attn_scope="local-p", attn_window=2)
    states, query = encoded(model)
    distance = torch.arange(7.0) - 7 * torch.sigmoid(model.attention.place(query))[0, 0]
    scores = model.attention.score(query.unsqueeze(1), states)[0, 0]
    expected = tanhmax(scores, distance.abs() <= 2) * torch.exp(-(distance**2) / (2 * 1.0**2))
    _, coefficients, _ = model.attention(query, states, torch.ones(1, 7, dtype=torch.bool), 0)
    torch.testing.assert_close(coefficients[0, 0, 0], expected, rtol=0, atol=1e-6)


def test_a_saved_decoder_generates_the_likeliest_word_again_and_again(tmp_path):
    translator(bidirectional=True).save_pretrained(tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    inputs, written = {name: texts()[name][:2] for name in texts()}, torch.full((2, 1), 1)
    for _ in range(5):
        logits = model(**inputs, decoder_input_ids=written).logits
        written = torch.cat([written, logits[:, -1:].argmax(-1)], 1)
    generated = model.generate(**inputs, max_new_tokens=5, min_new_tokens=5, eos_token_id=None)
    assert generated.tolist() == written.tolist()


def test_hard_alignment_is_trained_and_takes_one_state_at_evaluation():
    model = translator(attn_selection="hard")
    model.train()(**pairs()).loss.backward()
    assert model.attention.score.key.weight.grad.abs().sum() > 0
    states, start = encoded(model.eval())
    context, coefficients, _ = model.attention(start, states, torch.ones(1, 7).bool(), 0)
    chosen = coefficients[0, 0, 0].abs().argmax()
    torch.testing.assert_close(context[0], coefficients[0, 0, 0, chosen].sign() * states[0, chosen])


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
        (DECODER | {"encoder": "none"}, 'decoder_style="luong" needs an encoder .* encoder="none"'),
        (DECODER | {"attn_score": "per_token"}, 'an attn_score with a query; .* attn_score="per_token"'),
        (DECODER | {"decoder_style": "transformer"}, 'decoder_style="transformer" is not known'),
        (DECODER | {"attn_scope": "local-m"}, 'attn_window of at least 1 for attn_scope="local-m"; got None'),
        (DECODER | {"attn_scope": "local-p", "attn_window": 0}, 'attn_scope="local-p"; got 0'),
    ],
)
def test_a_config_that_cannot_be_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        BidirRnnConfig(**config)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda batch: model_of()(), "expected either input_ids or inputs_embeds"),
        (lambda batch: model_of(attn_implementation="fused"), '"fused" .* BidirRnnForSequenceClassification'),
        (lambda batch: model_of().set_attn_implementation("sdpa"), '"sdpa" .* BidirRnnForSequenceClassification'),
        (
            lambda batch: model_of("lstm")(batch["input_ids"].flip(1), batch["attention_mask"].flip(1)),
            "padding on the right",
        ),
        (lambda batch: BidirRnnForSeq2SeqLM(BidirRnnConfig()), 'a config with decoder_style="luong" or "bahdanau"'),
        (lambda batch: translator()(batch["input_ids"]), r"expected decoder_input_ids .* or labels; .* call generate"),
        (lambda batch: translated(batch, [[3, 99], [3, 2]]), r"from 0 to 29, or -100 .* 2 to 99"),
        (lambda batch: translated(batch, [[3, -5], [3, 2]]), r"-5 to 3"),
        (lambda batch: translated(batch, [[], []]), r"the shape \(2, 0\)"),
        (
            lambda batch: translator()(torch.zeros(2, 0).long(), labels=batch["labels"]),
            r"one position; got .* \(2, 0\)",
        ),
    ],
)
def test_what_a_recurrent_model_cannot_read_is_one_error(call, message):
    with pytest.raises(ValueError, match=message):
        call(pairs())


def translated(batch, labels):
    return translator()(batch["input_ids"], labels=torch.tensor(labels, dtype=torch.long))


def test_a_source_that_is_all_padding_is_read_as_nothing():
    outputs = translator()(torch.zeros(2, 3, dtype=torch.long), labels=pairs()["labels"], output_attentions=True)
    assert outputs.loss.isfinite()
    assert (outputs.cross_attentions[0] == 0).all()
