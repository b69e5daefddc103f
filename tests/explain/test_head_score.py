"""Why a head attends from a query to a key."""

import pytest
import torch
from typer.testing import CliRunner

from hf_bidir.checkpoints.layer_hooks import edited_projections
from hf_bidir.cli import app
from hf_bidir.explain import explain_head
from hf_bidir.explain.forward import record_coefficients
from hf_bidir.explain.inputs.text import signed
from hf_bidir.modeling.signed_layers import signed_layers
from tests.explain.conftest import bert, family, pooling, tokenizer
from tests.explain.test_signed_maps import differential

TEXT = "a good bad film !"


def states_of(model, layer):
    found = []
    inputs = tokenizer()(TEXT, return_tensors="pt")
    with torch.no_grad(), edited_projections(signed_layers(model)[layer], lambda *x: found.append(x) or x):
        model(**inputs)
    return found[0]


@pytest.mark.parametrize("head", ["BertForSequenceClassification", "LlamaForSequenceClassification"])
def test_the_score_of_a_pair_is_named_and_explained_through_its_query_and_its_key(head):
    model = family(head, pad_token_id=0, num_attention_heads=4)
    found = explain_head(model, tokenizer(), TEXT, (1, 3), "film", "good")
    query, key, _ = states_of(model, 1)
    score = query[0, 3, 4] @ key[0, 3 * key.shape[1] // 4, 2] * query.shape[-1] ** -0.5
    assert f"the query film the key good has the score {score:+.2g}".replace("-", "−") in found.explained
    assert found.written == ["query film", "key good"]
    assert found.scores["relevance"].shape == (2, 7)


def test_in_the_first_layer_the_query_rests_on_its_word_and_the_key_on_its_own():
    scores = explain_head(bert(), tokenizer(), TEXT, (0, 1), "film", "good").scores["relevance"]
    assert scores[0].nonzero().flatten().tolist() == [4]
    assert scores[1].nonzero().flatten().tolist() == [2]


def test_without_biases_and_norms_each_side_sums_to_the_score():
    model = bert()
    for module in model.modules():
        if getattr(module, "bias", None) is not None:
            module.bias.data.zero_()
    for embedding in (model.bert.embeddings.position_embeddings, model.bert.embeddings.token_type_embeddings):
        embedding.weight.data.zero_()
    found = explain_head(model, tokenizer(), TEXT, (0, 1), "film", "good")
    query, key, _ = states_of(model, 0)
    score = query[0, 1, 4] @ key[0, 1, 2] * query.shape[-1] ** -0.5
    torch.testing.assert_close(found.scores["relevance"].sum(1), score.expand(2), rtol=1e-3, atol=1e-4)
    assert f"it sums to {signed(score.item())} and {signed(score.item())}" in found.what


def test_by_default_the_key_is_the_word_of_the_strongest_coefficient():
    model = bert()
    coefficients = record_coefficients(model, tokenizer()(TEXT, return_tensors="pt"))[1][2][0, 0, 4]
    strongest = int(coefficients[1:-1].abs().argmax())
    found = explain_head(model, tokenizer(), TEXT, (2, 0), "film")
    assert found.written == ["query film", f"key {TEXT.split()[strongest]}"]


def test_each_run_of_a_shared_layer_counts():
    model = family("AlbertForSequenceClassification")
    assert explain_head(model, tokenizer(), TEXT, (2, 0), "film").explained.startswith("Layer 2, head 0")


def test_the_two_scores_of_a_head_of_differential_attention_are_not_taken_for_one():
    with pytest.raises(ValueError, match="subtracts two maps, each with scores of its own"):
        explain_head(differential(), tokenizer(), TEXT, (0, 0), "film")


def test_words_are_named_as_they_are_printed():
    found = explain_head(bert(), tokenizer(), "film a film", (1, 0), "film (2 of 2)", "a")
    assert found.written == ["query film (2 of 2)", "key a"]


def test_the_command_line_explains_a_head(checkpoint, tmp_path):
    options = ["--layer", "1", "--head", "0", "--query", "film", "--key", "bad", "--output", str(tmp_path / "out")]
    printed = CliRunner().invoke(app, ["explain", str(checkpoint), TEXT, *options], catch_exceptions=False).output
    assert "Layer 1, head 0: for the query film the key bad has the score" in printed
    assert (tmp_path / "out/index.html").is_file()
    printed = CliRunner().invoke(app, ["explain", str(checkpoint), TEXT, "--key", "bad"]).output
    assert "with --layer, --head and --query" in printed
    printed = CliRunner().invoke(app, ["explain", str(checkpoint), TEXT, *options, "--target", "positive"]).output
    assert "leave out what else is explained" in printed


@pytest.mark.parametrize(
    ("head", "query", "message"),
    [
        ((9, 0), "film", "layer 9 does not exist"),
        ((0, 5), "film", "head 5 does not exist"),
        ((0, 0), "poor", r"expected a word of the text, got 'poor'; it has \[CLS\], a, good"),
    ],
)
def test_what_does_not_exist_is_named(head, query, message):
    with pytest.raises(ValueError, match=message):
        explain_head(bert(), tokenizer(), TEXT, head, query)


def test_a_recurrent_model_has_no_attention_between_tokens():
    with pytest.raises(ValueError, match="has no attention between tokens"):
        explain_head(pooling(), tokenizer(), TEXT, (0, 0), "film")
