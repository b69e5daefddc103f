"""A tiny model of sentence-transformers with random weights."""

import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

SENTENCES = ["a good film", "bad", "a bad bad film good"]
CONFIG = BertConfig(
    vocab_size=9, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
    initializer_range=0.5, max_position_embeddings=16,
)  # fmt: skip


def sentence_model(folder):
    """A folder with a BERT, pooling and a linear layer, and the vectors of `SENTENCES` with a prompt."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    (folder / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "film"])
    )
    torch.manual_seed(0)
    BertModel(CONFIG).save_pretrained(folder / "bert")
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder / "bert")
    modules = [Transformer(str(folder / "bert")), Pooling(16), Dense(16, 8), Normalize()]
    model = SentenceTransformer(modules=modules, prompts={"query": "good "}, device="cpu")
    model.save(str(folder / "st"))
    (folder / "st/LICENSE").write_text("Apache-2.0")
    return folder / "st", model.encode(SENTENCES, prompt_name="query", convert_to_tensor=True)
