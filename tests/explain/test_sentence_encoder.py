"""Folders of sentence-transformers: the embedding that they compute is explained, and its similarity to a text."""

import json

import pytest
import torch
from transformers import BertConfig, BertModel
from typer.testing import CliRunner

from hf_bidir import convert_checkpoint
from hf_bidir.cli import app
from hf_bidir.explain import explain, load_checkpoint, token_scores
from hf_bidir.explain.forward import forward_pass
from hf_bidir.explain.request import methods_of
from tests.explain.conftest import SHAPE, bert, tokenizer, with_biases

sentence_transformers = pytest.importorskip("sentence_transformers")
TEXT, OTHER = "a unbelievably good film !", "a bad film"
MODES = ["cls", "weightedmean", ("mean", "max")]


def sentence_folder(folder, mode="mean", parts=("Normalize",), **settings):
    """A folder of a tiny BERT, as sentence-transformers saves it, and the model that sentence-transformers loads."""
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    torch.manual_seed(0)
    with_biases(BertModel(BertConfig(**SHAPE))).save_pretrained(folder / "bert")
    tokenizer().save_pretrained(folder / "bert")
    pooling = Pooling(16, mode)
    dense = Dense(pooling.pooling_output_dimension, 8)
    others = [{"Normalize": Normalize(), "Dense": dense}[name] for name in parts]
    modules = [Transformer(str(folder / "bert"), max_seq_length=10), pooling, *others]
    model = sentence_transformers.SentenceTransformer(modules=modules, device="cpu", **settings)
    model.save(str(folder / "st"))
    return folder / "st", sentence_transformers.SentenceTransformer(str(folder / "st"), device="cpu")


def similarity(stock, text):
    return stock.similarity(stock.encode([text]), stock.encode([OTHER])).item()


@pytest.fixture(scope="module")
def mean(tmp_path_factory):
    return sentence_folder(tmp_path_factory.mktemp("mean"), parts=("Dense", "Normalize"))


@pytest.fixture(scope="module")
def encoder(mean):
    """The model of the folder, and its tokenizer."""
    return load_checkpoint(mean[0])


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_y_is_the_similarity_that_sentence_transformers_computes(mode, tmp_path):
    folder, stock = sentence_folder(tmp_path, mode)
    found = explain(*load_checkpoint(folder), TEXT, against=OTHER)
    assert found.value == pytest.approx(similarity(stock, TEXT), abs=1e-6)
    assert f'cosine similarity to "{OTHER}"' in found.explained


@pytest.mark.parametrize(
    "settings", [{"similarity_fn_name": "dot"}, {"default_prompt_name": "q", "prompts": {"q": "good "}}]
)
def test_the_settings_of_the_folder_count(settings, tmp_path):
    folder, stock = sentence_folder(tmp_path, "mean", ("Dense",), **settings)
    found = explain(*load_checkpoint(folder), TEXT, against=OTHER)
    assert found.value == pytest.approx(similarity(stock, TEXT), abs=1e-5)


def test_without_a_second_text_y_is_the_length_of_the_pooled_embedding(mean, encoder):
    stock = mean[1]
    found = explain(*encoder, TEXT)
    features = stock.preprocess([TEXT]) if hasattr(stock, "preprocess") else stock.tokenize([TEXT])
    for part in list(stock)[:-1]:  # all but the normalisation
        features = part(features)
    assert found.value == pytest.approx(features["sentence_embedding"].norm().item(), rel=1e-5)
    assert "projected on its own direction" in found.explained


def test_the_coefficients_that_are_shown_are_the_mean_over_the_pooled_queries(encoder):
    found = explain(*encoder, TEXT, details=True)
    shown = found.coefficients
    rows = forward_pass(encoder[0], found.example.inputs).coefficients[shown.layer][0, shown.head]
    torch.testing.assert_close(shown.values, found.example.by_token(rows.detach().mean(0)))
    assert shown.query == "the mean over all queries"


def test_a_text_is_cut_where_sentence_transformers_cuts_it(mean, encoder):
    found = explain(*encoder, "a good film " * 9, against=OTHER)
    assert len(found.tokens) == 10
    assert "word pieces were left out" in found.notes[0]
    assert found.value == pytest.approx(similarity(mean[1], "a good film " * 9), abs=1e-6)


@pytest.mark.parametrize("method", ["erasure", "deletion"])
def test_an_erased_token_is_not_pooled(method, encoder):
    model, words = encoder
    model = model.compared_with(words, OTHER)
    inputs = dict(words(TEXT, return_tensors="pt"))
    effects = token_scores(model, inputs, method)
    reduced = inputs | {"attention_mask": torch.tensor([[1, 1, 0, *[1] * (inputs["input_ids"].shape[1] - 3)]])}
    if method == "deletion":
        reduced = {name: torch.cat([value[:, :2], value[:, 3:]], 1) for name, value in inputs.items()}
    with torch.no_grad():
        whole, without = (model(**rows).sentence_embedding[0] @ model.reference for rows in (inputs, reduced))
    assert effects[0, 2].item() == pytest.approx((whole - without).item(), abs=1e-6)


def test_every_method_scores_a_pooled_embedding_and_padding_changes_nothing(encoder):
    model, words = encoder
    assert "flow" not in methods_of(model)
    model = model.compared_with(words, "good")
    both = dict(words([TEXT, OTHER], padding=True, return_tensors="pt"))
    for method in methods_of(model):
        scores = token_scores(model, both, method)
        alone = token_scores(model, dict(words(OTHER, return_tensors="pt")), method)
        torch.testing.assert_close(scores[1, : alone.shape[1]], alone[0], atol=1e-5, rtol=1e-3)
        assert not scores[1, alone.shape[1] :].any(), method


def test_rollout_of_a_mean_is_that_of_all_tokens_and_of_a_class_token_its_own(encoder, tmp_path):
    model, words = encoder
    inputs = dict(words(TEXT, return_tensors="pt"))
    one = load_checkpoint(sentence_folder(tmp_path, "cls")[0])[0]
    places = range(len(inputs["input_ids"][0]))
    each = [token_scores(model.transformer, inputs, "rollout", position=place) for place in places]
    torch.testing.assert_close(token_scores(model, inputs, "rollout"), torch.stack(each).mean(0))
    torch.testing.assert_close(token_scores(one, inputs, "rollout"), each[0])
    assert "flow" in methods_of(one)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"against": " "}, "' '"),
        ({"position": 2}, "leave out position"),
        ({"target": 1}, "got target 1"),
        ({"method": "flow"}, "flow does not apply"),
    ],
)
def test_bad_input_is_one_error_with_the_expectation(encoder, options, message):
    with pytest.raises(ValueError, match=message):
        explain(*encoder, TEXT, **options)


def test_what_cannot_be_compared_is_refused(tmp_path):
    with pytest.raises(ValueError, match="leave out against"):
        explain(bert(), tokenizer(), TEXT, against=OTHER)
    settings = {"similarity_fn_name": "euclidean", "prompts": {"q": "good "}, "default_prompt_name": "q"}
    folder, _ = sentence_folder(tmp_path, **settings)
    with pytest.raises(ValueError, match=r"by euclidean; .* cosine and dot"):
        explain(*load_checkpoint(folder), TEXT, against=OTHER)
    pooling = folder / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps(json.loads(pooling.read_text()) | {"include_prompt": False}))
    with pytest.raises(ValueError, match="leaves its prompt out of the pooling"):
        load_checkpoint(folder)
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "elsewhere.Pooling"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match=r"the module elsewhere\.Pooling"):
        load_checkpoint(folder)


def test_a_converted_folder_is_explained_as_its_source(mean, encoder, tmp_path):
    folder = str(convert_checkpoint(mean[0], tmp_path / "softmax"))
    similar = CliRunner().invoke(app, ["explain", folder, TEXT, "--against", OTHER, "--output", str(tmp_path / "out")])
    assert f'y, its cosine similarity to "{OTHER}"' in similar.output
    softmax, source = (explain(*loaded, TEXT, against=OTHER) for loaded in (load_checkpoint(folder), encoder))
    torch.testing.assert_close(softmax.scores, source.scores, atol=1e-5, rtol=1e-4)
