"""The example endpoint answers with the model's own predictions, to several requests at once."""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import pipeline

from hf_bidir import signed
from tests.tiny_models import stock_model, word_tokenizer

SCRIPT = Path(__file__).parents[2] / "docs/examples/serve.py"
TEXTS = ["a good film", "bad", "a bad bad film good", "film"] * 3
SECONDS = 120  # to wait for the start


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A signed classifier, and a folder of sentence-transformers with a signed model, on the same words."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = tmp_path_factory.mktemp("served")
    tokenizer = word_tokenizer()
    for name, stock in (("classifier", stock_model("bert")), ("encoder", stock_model("bert").bert)):
        for part in (signed(stock), tokenizer):
            part.save_pretrained(folder / name)
    sentence_transformers.SentenceTransformer(str(folder / "encoder"), device="cpu").save(str(folder / "sentences"))
    return folder


@pytest.fixture(scope="module")
def post(checkpoints):
    """A function that posts a text to the example, which serves the classifier, and returns the answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--device", "cpu", "--port", str(port), "--batch", "4"]
    command = [sys.executable, str(SCRIPT), str(checkpoints / "classifier"), *options]
    # a session of its own, because LitServe's workers outlive the process that started them
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, **silent, start_new_session=True)

    def answer(text):
        body, header = json.dumps({"text": text}).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/predict", body, header)
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    try:
        wait_for(f"http://127.0.0.1:{port}/health")
        yield answer
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(address):
    for _ in range(SECONDS * 5):
        try:
            urllib.request.urlopen(address)
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
        else:
            return
    raise TimeoutError("the example did not start")


def test_requests_that_come_together_get_the_classes_of_the_pipeline(checkpoints, post):
    with ThreadPoolExecutor(len(TEXTS)) as pool:
        answers = list(pool.map(post, TEXTS))
    expected = pipeline("text-classification", str(checkpoints / "classifier"))(TEXTS)
    assert [one["label"] for one in answers] == [one["label"] for one in expected]
    assert [one["score"] for one in answers] == pytest.approx([one["score"] for one in expected], abs=1e-5)


def test_a_request_without_a_text_is_refused_alone(post):
    with pytest.raises(urllib.error.HTTPError, match="422"):
        post(["a good film"])
    assert post("a good film")["label"].startswith("LABEL")


def test_embeddings_are_those_of_the_model(checkpoints):
    from sentence_transformers import SentenceTransformer

    api = runpy.run_path(str(SCRIPT))["Embedder"](str(checkpoints / "sentences"), max_batch_size=4, batch_timeout=0.01)
    api.setup("cpu")
    got = torch.tensor([answer["embedding"] for answer in api.predict(TEXTS[:4])])
    expected = SentenceTransformer(str(checkpoints / "sentences"), device="cpu").encode(TEXTS[:4])
    torch.testing.assert_close(got, torch.tensor(expected), atol=1e-5, rtol=1e-4)
