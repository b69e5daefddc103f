"""The recurrent encoder-decoder: alignment formulas, padding, generation, loading in a clean process, errors."""

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from hf_bidir import BidirRnnConfig, BidirRnnForSeq2SeqLM, tanhmax

TINY = {
    "vocab_size": 20, "embedding_size": 6, "hidden_size": 4, "initializer_range": 1.0, "dropout": 0.0,
    "decoder_start_token_id": 1, "bos_token_id": 1, "eos_token_id": 2, "attn_score": "general", "encoder": "gru",
}  # fmt: skip
every_style = pytest.mark.parametrize("style", ["luong", "bahdanau"])


def model_of(**config):
    torch.manual_seed(0)
    return BidirRnnForSeq2SeqLM(BidirRnnConfig(**TINY | {"decoder_style": "luong"} | config)).eval()


def texts():
    """Two inputs of 6 and 3 words, and what they are to become."""
    keep = (torch.arange(6) < torch.tensor([[6], [3]])).long()
    ids = torch.randint(3, 20, (2, 6), generator=torch.Generator().manual_seed(1)) * keep
    return {"input_ids": ids, "attention_mask": keep, "labels": torch.tensor([[7, 8, 9, 2], [5, 2, -100, -100]])}


@pytest.mark.parametrize(("encoder", "style"), [("lstm", "luong"), ("gru", "bahdanau")])
def test_padding_of_inputs_and_of_labels_changes_nothing(encoder, style):
    model, batch = model_of(encoder=encoder, decoder_style=style, bidirectional=True), texts()
    together = model(**batch)
    alone = model(batch["input_ids"][1:, :3], labels=batch["labels"][1:, :2])
    torch.testing.assert_close(together.logits[1:, :2], alone.logits, rtol=0, atol=1e-6)
    first = model(batch["input_ids"][:1], labels=batch["labels"][:1])
    counted = (4 * first.loss + 2 * alone.loss) / 6
    torch.testing.assert_close(together.loss, counted, rtol=0, atol=1e-6)
    shifted = torch.tensor([[1, 7, 8, 9], [1, 5, 2, 0]])
    read = model(batch["input_ids"], batch["attention_mask"], decoder_input_ids=shifted).logits
    torch.testing.assert_close(together.logits, read)


@every_style
def test_everything_is_trained(style):
    model = model_of(decoder_style=style, attn_scope="local-p", attn_window=2)
    model.train()(**texts()).loss.backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]


def test_a_step_of_luong_is_its_formula_written_out():
    model, batch = model_of(input_feeding=False), texts()
    ids, (states, last) = batch["input_ids"][:1], model.encoder(batch["input_ids"][:1]).to_tuple()[:2]
    state = model.cell(model.embeddings(torch.tensor([1])), torch.tanh(model.start(last)))
    scores = torch.stack([state[0] @ model.attention.score.key.weight @ h for h in states[0]])
    context = sum(a * h for a, h in zip(tanhmax(scores), states[0], strict=True))
    combined = torch.tanh(model.combine(torch.cat([context, state[0]])))
    expected = model.lm_head(combined)
    got = model(ids, decoder_input_ids=torch.tensor([[1]]), output_attentions=True)
    torch.testing.assert_close(got.logits[0, 0], expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(got.cross_attentions[0][0, 0, 0], tanhmax(scores), rtol=0, atol=1e-6)


def test_a_step_of_bahdanau_aligns_before_it_moves():
    model, batch = model_of(decoder_style="bahdanau", attn_score="additive"), texts()
    states, last = model.encoder(batch["input_ids"][:1]).to_tuple()[:2]
    before = torch.tanh(model.start(last))
    scores = model.attention.score(before.unsqueeze(1), states)[0, 0]
    got = model(batch["input_ids"][:1], decoder_input_ids=torch.tensor([[1]]), output_attentions=True)
    torch.testing.assert_close(got.cross_attentions[0][0, 0, 0], tanhmax(scores), rtol=0, atol=1e-6)


def test_local_m_attends_around_the_index_of_the_step():
    model, batch = model_of(attn_scope="local-m", attn_window=1), texts()
    coefficients = model(**batch, output_attentions=True).cross_attentions[0][0, 0]
    for step in range(4):
        inside = [abs(key - step) <= 1 for key in range(6)]
        assert (coefficients[step] != 0).tolist() == inside


def test_local_p_attends_around_a_predicted_position_with_a_gaussian():
    model, batch = model_of(attn_scope="local-p", attn_window=2), texts()
    states, last = model.encoder(batch["input_ids"][:1]).to_tuple()[:2]
    query, keep = torch.tanh(model.start(last)), torch.ones(1, 6, dtype=torch.bool)
    centre = 6 * torch.sigmoid(model.attention.place(query))[0, 0]
    distance = torch.arange(6.0) - centre
    scores = model.attention.score(query.unsqueeze(1), states)[0, 0]
    expected = tanhmax(scores, distance.abs() <= 2) * torch.exp(-(distance**2) / (2 * 1.0**2))
    _, coefficients, _ = model.attention(query, states, keep, 0)
    torch.testing.assert_close(coefficients[0, 0, 0], expected, rtol=0, atol=1e-6)


def test_a_saved_model_generates_the_likeliest_word_again_and_again(tmp_path):
    model, batch = model_of(bidirectional=True), texts()
    written = torch.full((2, 1), 1)
    for _ in range(5):
        logits = model(batch["input_ids"], batch["attention_mask"], decoder_input_ids=written).logits
        written = torch.cat([written, logits[:, -1:].argmax(-1)], 1)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    generated = model.generate(**inputs, max_new_tokens=5, min_new_tokens=5, eos_token_id=None)
    assert generated.tolist() == written.tolist()
    model.save_pretrained(tmp_path)
    assert isinstance(AutoModelForSeq2SeqLM.from_pretrained(tmp_path), BidirRnnForSeq2SeqLM)


def test_hard_alignment_is_trained_and_takes_one_state_at_evaluation():
    model, batch = model_of(attn_selection="hard"), texts()
    model.train()(**batch).loss.backward()
    assert model.attention.score.key.weight.grad.abs().sum() > 0
    model.eval()
    states, last = model.encoder(batch["input_ids"][:1]).to_tuple()[:2]
    context, coefficients, _ = model.attention(torch.tanh(model.start(last)), states, torch.ones(1, 6).bool(), 0)
    chosen = coefficients[0, 0, 0].abs().argmax()
    torch.testing.assert_close(context[0], coefficients[0, 0, 0, chosen].sign() * states[0, chosen])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"encoder": "none"}, 'decoder_style="luong" needs an encoder .* encoder="none"'),
        ({"attn_score": "per_token"}, 'needs an encoder and an attn_score with a query; .* attn_score="per_token"'),
        ({"decoder_style": "transformer"}, 'decoder_style="transformer" is not known'),
        ({"attn_scope": "local-m"}, 'attn_window of at least 1 for attn_scope="local-m"; got None'),
        ({"attn_scope": "local-p", "attn_window": 0}, 'attn_scope="local-p"; got 0'),
    ],
)
def test_a_config_that_cannot_be_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        BidirRnnConfig(**TINY | {"decoder_style": "luong"} | config)


def test_a_classifiers_config_makes_no_decoder_and_a_decoder_needs_input():
    with pytest.raises(ValueError, match='needs a config with decoder_style="luong" or "bahdanau"'):
        BidirRnnForSeq2SeqLM(BidirRnnConfig())
    with pytest.raises(ValueError, match=r"expected decoder_input_ids .* or labels; .* call generate"):
        model_of()(texts()["input_ids"])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[3, 99], [3, 2]], r"expected labels \[batch, steps\] from 0 to 19, or -100 .* 2 to 99"),
        ([[3, -5], [3, 2]], r"-5 to 3"),
        ([[], []], r"the shape \(2, 0\)"),
    ],
)
def test_labels_that_are_no_words_are_one_error(labels, message):
    with pytest.raises(ValueError, match=message):
        model_of()(texts()["input_ids"], labels=torch.tensor(labels, dtype=torch.long))


def test_a_text_that_is_all_padding_is_read_as_nothing_and_a_batch_without_positions_is_one_error():
    model = model_of()
    padding = model(torch.zeros(2, 3, dtype=torch.long), labels=texts()["labels"], output_attentions=True)
    assert padding.loss.isfinite()
    assert (padding.cross_attentions[0] == 0).all()
    with pytest.raises(ValueError, match=r"expected at least one text with at least one position; got .* \(2, 0\)"):
        model(torch.zeros(2, 0, dtype=torch.long), labels=texts()["labels"])
