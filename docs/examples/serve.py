"""An endpoint that answers many requests with one batch: a text classifier, or embeddings of sentences.

    pip install -e '.[sentences]' litserve     # the extra is for --embed
    hf-bidir merge model_cards/sst2-minilm-tanhmax runs/sst2        # an adapter, whose base does not know the classes
    python docs/examples/serve.py runs/sst2
    python docs/examples/serve.py runs/minilm-signed --embed        # a folder of sentence-transformers

    curl localhost:8000/predict -H 'Content-Type: application/json' -d '{"text": "a charming film"}'

Requests that arrive within --wait seconds share a forward pass. Signed and stock checkpoints are served alike.
"""

import argparse
from typing import Any

import litserve
from pydantic import BaseModel
from transformers import pipeline

import hf_bidir  # noqa: F401  (transformers then knows signed models)


class Text(BaseModel):
    """A request; another one is refused before it joins a batch."""

    text: str


class Classifier(litserve.LitAPI):
    """Answers {"text": ...} with {"label": ..., "score": ...}."""

    def __init__(self, checkpoint: str, **batches: Any):
        super().__init__(**batches)
        self.checkpoint = checkpoint

    def setup(self, device: str) -> None:
        self.predict_texts = pipeline("text-classification", self.checkpoint, device=device)

    def decode_request(self, request: Text, **_: Any) -> str:
        return request.text

    def predict(self, texts: list[str], **_: Any) -> list[Any]:
        return self.predict_texts(texts, batch_size=len(texts), truncation=True)

    def encode_response(self, answer: Any, **_: Any) -> Any:
        return answer


class Embedder(Classifier):
    """Answers {"text": ...} with {"embedding": [...]}."""

    def setup(self, device: str) -> None:
        from sentence_transformers import SentenceTransformer

        self.model = SentenceTransformer(self.checkpoint, device=device)

    def predict(self, texts: list[str], **_: Any) -> list[Any]:
        return [{"embedding": row} for row in self.model.encode(texts, batch_size=len(texts)).tolist()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="folder or Hub name")
    parser.add_argument("--embed", action="store_true", help="answer with embeddings instead of classes")
    parser.add_argument("--batch", type=int, default=16, help="most texts of a forward pass")
    parser.add_argument("--wait", type=float, default=0.01, help="seconds to wait for more requests")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    options = parser.parse_args()
    if options.batch < 2:  # LitServe then passes single texts instead of lists
        parser.error(f"expected --batch of at least 2, got {options.batch}")
    api = (Embedder if options.embed else Classifier)(
        options.checkpoint, max_batch_size=options.batch, batch_timeout=options.wait
    )
    server = litserve.LitServer(api, accelerator=options.device)
    server.run(host=options.host, port=options.port, generate_client_file=False)


if __name__ == "__main__":
    main()
