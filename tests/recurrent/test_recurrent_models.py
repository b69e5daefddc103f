"""The recurrent models: their formulas, padding, training, generation, explanations, errors."""

import pytest
import torch

from hf_bidir import BidirRnnConfig, BidirRnnForSeq2SeqLM, BidirRnnForSequenceClassification, tanhmax
from hf_bidir.recurrent.configuration_bidir_rnn import ATTN_SCORES, SCORES_ALONE

TINY = {"vocab_size": 30, "embedding_size": 6, "hidden_size": 4, "initializer_range": 1.0}
DECODER = {
    "dropout": 0.0, "decoder_start_token_id": 1, "bos_token_id": 1, "eos_token_id": 2, "attn_score": "general",
    "encoder": "gru", "decoder_style": "luong",
}  # fmt: skip
LOCAL = {"attn_scope": "local-p", "attn_window": 2}
ENCODERS = {"none": {}, "lstm": {"bidirectional": True}, "gru": {"num_rnn_layers": 2}}


def model_of(encoder="none", score="per_token", **config):
    torch.manual_seed(0)
    fields = TINY | ENCODERS[encoder] | {"encoder": encoder, "attn_score": score} | config
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


def assert_all_trained(model, batch):
    model.train()(**batch).loss.backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]


def assert_close(got, expected):
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_the_papers_model_is_its_formula_written_out():
    model, ids = model_of(attn_scale=3.0, attn_negative_mass=0.5), texts()["input_ids"][:1]
    pooling, words = model.rnn.attention, model.rnn.embeddings.weight[ids[0]]
    scores = (pooling.score.query(words) * pooling.score.key(words)).sum(-1) / 3
    coefficients = (scores.exp() - 0.5 * (-scores).exp()) / (scores.exp() + 0.5 * (-scores).exp()).sum()
    expected = model.classifier(coefficients @ (words @ pooling.value.weight.T + pooling.value.bias))
    outputs = model(ids, output_attentions=True)
    assert_close(outputs.logits[0], expected)
    assert_close(outputs.attentions[0][0, 0, 0], coefficients)


def test_with_other_scores_the_values_are_the_states_and_the_query_is_learned():
    model, batch = model_of("lstm", "dot"), texts()
    outputs = model(**batch, output_hidden_states=True)
    states = outputs.hidden_states[-1]
    coefficients = tanhmax(states @ model.rnn.attention.query, batch["attention_mask"].bool())
    assert_close(outputs.logits, model.classifier(torch.einsum("bk,bks->bs", coefficients, states)))


def test_an_encoder_ends_with_the_last_state_of_each_text_in_both_directions():
    model, batch = translator(encoder="lstm", bidirectional=True), texts()
    states, last = model.encoder(**batch).to_tuple()[:2]
    ends = states[torch.arange(3), batch["attention_mask"].sum(1) - 1, :4]
    assert_close(last, torch.cat([ends, states[:, 0, 4:]], 1))


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("score", ATTN_SCORES)
def test_padding_changes_no_logit_gets_no_coefficient_and_everything_is_trained(encoder, score):
    scope = LOCAL if score not in SCORES_ALONE else {}
    model, batch = model_of(encoder, score, **scope), texts()
    together = model(**batch, output_attentions=True)
    for row, length in enumerate(batch["attention_mask"].sum(1)):
        alone = model(batch["input_ids"][row : row + 1, :length]).logits
        assert_close(together.logits[row : row + 1], alone)
    assert (together.attentions[0][:, 0, 0][batch["attention_mask"] == 0] == 0).all()
    assert_close(model(batch["input_ids"]).logits, together.logits)  # the pad token is padding
    assert_all_trained(model, batch | {"labels": torch.tensor([0, 1, 1])})


def test_hard_selection_passes_one_value_alone_and_is_trained():
    model, batch = model_of("gru", attn_selection="hard"), texts()
    outputs = model(**batch, output_attentions=True, output_hidden_states=True)
    coefficients = outputs.attentions[0][:, 0]
    largest = coefficients.abs() == coefficients.abs().amax(-1, keepdim=True)
    values = model.rnn.attention.value(outputs.hidden_states[-1])
    assert_close(outputs.logits, model.classifier((coefficients.sign() * largest @ values)[:, 0]))
    assert_all_trained(model, batch | {"labels": torch.tensor([0, 1, 1])})
    assert model.reinforce.baseline > 0


def test_a_negative_mass_that_is_no_number_between_0_and_1_is_refused_when_it_is_set():
    for mass in (2.0, [0.1]):
        with pytest.raises(ValueError, match="negative mass must lie in"):
            BidirRnnConfig().attn_negative_mass = mass


def attended(model, state, states, step):
    """The context and the coefficients of one step, written out for one text."""
    scores = model.attention.score(state[None], states)[0, 0]
    positions, scope, weight = torch.arange(states.shape[1]), model.config.attn_scope, 1.0
    keep = positions >= 0
    if scope == "local-m":
        keep = (positions - step).abs() <= model.config.attn_window
    if scope == "local-p":
        distance = positions - states.shape[1] * torch.sigmoid(model.attention.place(state))[0, 0]
        keep, weight = distance.abs() <= 2, torch.exp(-(distance**2) / (2 * 1.0**2))  # half of the window of 2
    coefficients = tanhmax(scores, keep) * weight
    if model.config.attn_selection == "hard":
        index = coefficients.abs().argmax()
        return coefficients[index].sign() * states[:, index], coefficients
    return coefficients @ states, coefficients


@torch.no_grad()
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"encoder": "lstm", "bidirectional": True, **LOCAL},
        {"decoder_style": "bahdanau", "attn_score": "additive"},
        {"decoder_style": "bahdanau", "encoder": "lstm", "attn_scope": "local-m", "attn_window": 1},
        {"attn_selection": "hard"},
    ],
    ids=["luong", "local-p", "bahdanau", "local-m", "hard"],
)
def test_the_steps_of_a_decoder_are_its_formulas_written_out(config):
    model, ids, words = translator(**config), texts()["input_ids"][:1], torch.tensor([[1, 7, 8]])
    states, last = model.encoder(ids).to_tuple()[:2]
    hidden = torch.tanh(model.start(last))
    cell, vector = torch.zeros_like(hidden), torch.zeros_like(hidden)
    logits, rows = [], []
    for step, word in enumerate(model.embeddings(words[0])):
        context, row = attended(model, hidden, states, step)
        fed = {"bahdanau": context, "luong": vector}[model.config.decoder_style]
        inputs = torch.cat([word[None], fed], 1)
        if model.config.encoder == "lstm":
            hidden, cell = model.cell(inputs, (hidden, cell))
        else:
            hidden = model.cell(inputs, hidden)
        if model.config.decoder_style == "luong":
            context, row = attended(model, hidden, states, step)
        vector = torch.tanh(model.combine(torch.cat([context, hidden], 1)))
        logits.append(model.lm_head(vector))
        rows.append(row)
    outputs = model(ids, decoder_input_ids=words, output_attentions=True)
    assert_close(outputs.logits[0], torch.cat(logits))
    assert_close(outputs.cross_attentions[0][0, 0], torch.stack(rows))


def test_without_attention_every_step_has_the_last_state_of_the_encoder():
    model = translator(attn_scope="none")
    outputs = model(**pairs(), output_attentions=True)
    assert outputs.cross_attentions is None
    encoded = {"last_hidden_state": torch.zeros(2, 7, 4), "pooler_output": model.encoder(**texts())[1][:2]}
    assert_close(model(labels=pairs()["labels"], encoder_outputs=encoded).logits, outputs.logits)


@pytest.mark.parametrize(("encoder", "style"), [("lstm", "luong"), ("gru", "bahdanau")])
def test_padding_of_inputs_and_of_labels_changes_nothing(encoder, style):
    model, batch = translator(encoder=encoder, decoder_style=style, bidirectional=True), pairs()
    together = model(**batch)
    alone = model(batch["input_ids"][1:, :4], labels=batch["labels"][1:, :2])
    assert_close(together.logits[1:, :2], alone.logits)
    first = model(batch["input_ids"][:1], labels=batch["labels"][:1])
    assert_close(together.loss, (4 * first.loss + 2 * alone.loss) / 6)
    shifted = torch.tensor([[1, 7, 8, 9], [1, 5, 2, 0]])
    assert_close(model(batch["input_ids"], decoder_input_ids=shifted).logits, together.logits)


@pytest.mark.parametrize(("style", "selection"), [("luong", "hard"), ("bahdanau", "soft")])
def test_everything_in_a_decoder_is_trained(style, selection):
    assert_all_trained(translator(decoder_style=style, attn_selection=selection, **LOCAL), pairs())


def test_a_decoder_generates_the_likeliest_word_again_and_again():
    model = translator(bidirectional=True)
    inputs, written = texts(), torch.full((3, 1), 1)
    for _ in range(5):
        logits = model(**inputs, decoder_input_ids=written).logits
        written = torch.cat([written, logits[:, -1:].argmax(-1)], 1)
    generated = model.generate(**inputs, max_new_tokens=5, min_new_tokens=5, eos_token_id=None)
    assert generated.tolist() == written.tolist()


REFUSED = {
    "none, lstm, gru": {"encoder": "rnn"},
    "bidirectional=True needs": {"bidirectional": True},
    'attn_score="per_token"': {"attn_scope": "local-p"},
    "global, local-p": {"attn_scope": "local-m", "attn_score": "dot"},
    'got 3 for attn_scope="global"': {"attn_window": 3},
    'encoder="none"': DECODER | {"encoder": "none"},
    'decoder_style="luong" .* attn_score="per_token"': DECODER | {"attn_score": "per_token"},
    'got None for attn_scope="local-m"': DECODER | {"attn_scope": "local-m"},
    'got 0 for attn_scope="local-p"': DECODER | {"attn_scope": "local-p", "attn_window": 0},
    'got -3 for attn_scope="local-p"': DECODER | {"attn_scope": "local-p", "attn_window": -3},
    'got 0 for attn_scope="none"': DECODER | {"attn_scope": "none", "attn_window": 0},
    'attn_selection="hard"': DECODER | {"attn_scope": "none", "attn_selection": "hard"},
}


@pytest.mark.parametrize(("message", "config"), REFUSED.items())
def test_a_config_that_cannot_be_is_refused_with_its_fields(message, config):
    with pytest.raises(ValueError, match=message):
        BidirRnnConfig(**config)


def test_what_a_recurrent_model_cannot_read_is_one_error():
    ids, keep = texts().values()
    with pytest.raises(ValueError, match="padding on the right"):
        model_of("lstm")(ids.flip(1), keep.flip(1))
    with pytest.raises(ValueError, match="decoder_style"):
        BidirRnnForSeq2SeqLM(BidirRnnConfig())
    with pytest.raises(ValueError, match="decoder_input_ids"):
        translator()(ids)
