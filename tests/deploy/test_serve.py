"""The example endpoint answers with the model's own predictions, in batches."""

import runpy
import sys
from pathlib import Path

import litserve
import pydantic
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import pipeline

from hf_bidir import signed
from tests.tiny_models import stock_model, word_tokenizer

SCRIPT = str(Path(__file__).parents[2] / "docs/examples/serve.py")
TEXTS = ["a good film", "bad", "a bad bad film good", "film"]


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Runs the script for a model, up to the start of the server: the folder, the API and the port."""

    def start(model, *words):
        for part in (signed(model), word_tokenizer()):
            part.save_pretrained(tmp_path)
        servers = []
        monkeypatch.setattr(litserve.LitServer, "run", lambda server, port, **_: servers.append((server, port)))
        monkeypatch.setattr(sys, "argv", [SCRIPT, str(tmp_path), "--device", "cpu", *words])
        runpy.run_path(SCRIPT, run_name="__main__")
        ((server, port),) = servers
        api = server.litapi_connector.lit_apis[0]
        api.setup("cpu")
        return str(tmp_path), api, port

    return start


def test_texts_that_come_together_get_the_classes_of_the_pipeline(served):
    folder, api, port = served(stock_model("bert"), "--batch", "4", "--port", "8123")
    assert (api.max_batch_size, port) == (4, 8123)
    request = api.decode_request.__annotations__["request"]
    texts = [api.decode_request(request(text=text)) for text in TEXTS]
    answers = [api.encode_response(answer) for answer in api.predict(texts)]
    for answer, expected in zip(answers, pipeline("text-classification", folder)(TEXTS), strict=True):
        assert answer == {"label": expected["label"], "score": pytest.approx(expected["score"], abs=1e-5)}
    with pytest.raises(pydantic.ValidationError):  # a request of another form, before it joins a batch
        request(text=["a good film"])


def test_embeddings_are_those_of_the_model(served):
    folder, api, _ = served(stock_model("bert").bert, "--embed")
    embeddings = torch.tensor([answer["embedding"] for answer in api.predict(TEXTS)])
    expected = SentenceTransformer(folder, device="cpu").encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(embeddings, expected, atol=1e-5, rtol=1e-4)
