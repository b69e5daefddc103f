"""A tiny model of sentence-transformers with random weights."""

from tests.tiny_models import stock_model, word_tokenizer

SENTENCES = ["a good film", "bad", "a bad bad film good"]


def sentence_model(folder):
    """A folder with a BERT, pooling and a linear layer, and the vectors of `SENTENCES` with a prompt."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    for part in (stock_model("bert").bert, word_tokenizer()):
        part.save_pretrained(folder / "bert")
    modules = [Transformer(str(folder / "bert")), Pooling(32), Dense(32, 8), Normalize()]
    model = SentenceTransformer(modules=modules, prompts={"query": "good "}, device="cpu")
    model.save(str(folder / "st"))
    (folder / "st/LICENSE").write_text("Apache-2.0")
    return folder / "st", model.encode(SENTENCES, prompt_name="query", convert_to_tensor=True)
