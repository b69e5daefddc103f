"""The example endpoint answers with the model's own predictions, in batches."""

import runpy
import sys
from pathlib import Path

import litserve
import pydantic
import pytest
import torch
from transformers import pipeline

from hf_bidir import signed
from tests.tiny_models import stock_model, word_tokenizer

SCRIPT = Path(__file__).parents[2] / "docs/examples/serve.py"
TEXTS = ["a good film", "bad", "a bad bad film good", "film"]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A signed classifier, and a folder of sentence-transformers with a signed model, on the same words."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = tmp_path_factory.mktemp("served")
    for name, stock in (("classifier", stock_model("bert")), ("encoder", stock_model("bert").bert)):
        for part in (signed(stock), word_tokenizer()):
            part.save_pretrained(folder / name)
    sentence_transformers.SentenceTransformer(str(folder / "encoder"), device="cpu").save(str(folder / "sentences"))
    return folder


@pytest.fixture
def served(monkeypatch):
    """Runs the script with options up to the start of the server; returns the API of that server, and its address."""

    def start(*words):
        started = []
        monkeypatch.setattr(litserve.LitServer, "run", lambda server, **options: started.append((server, options)))
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, words)])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        ((server, options),) = started
        api = server.litapi_connector.lit_apis[0]
        api.setup("cpu")
        return api, options

    return start


def test_texts_that_come_together_get_the_classes_of_the_pipeline(checkpoints, served):
    api, options = served(checkpoints / "classifier", "--device", "cpu", "--batch", "4", "--port", "8123")
    assert (api.max_batch_size, options["port"]) == (4, 8123)
    request = api.decode_request.__annotations__["request"]
    texts = [api.decode_request(request(text=text)) for text in TEXTS]
    answers = [api.encode_response(answer) for answer in api.predict(texts)]
    expected = pipeline("text-classification", str(checkpoints / "classifier"))(TEXTS)
    assert [answer["label"] for answer in answers] == [answer["label"] for answer in expected]
    assert [answer["score"] for answer in answers] == pytest.approx([answer["score"] for answer in expected], abs=1e-5)
    with pytest.raises(pydantic.ValidationError):  # a request of another form, before it joins a batch
        request(text=["a good film"])


def test_embeddings_are_those_of_the_model(checkpoints, served):
    from sentence_transformers import SentenceTransformer

    api, _ = served(checkpoints / "sentences", "--embed", "--device", "cpu")
    got = torch.tensor([answer["embedding"] for answer in api.predict(TEXTS)])
    expected = SentenceTransformer(str(checkpoints / "sentences"), device="cpu").encode(TEXTS)
    torch.testing.assert_close(got, torch.tensor(expected), atol=1e-5, rtol=1e-4)
