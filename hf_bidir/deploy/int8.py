"""Writes a checkpoint with 8-bit weights, whose linear layers multiply 8-bit numbers on a CPU (torchao)."""

from pathlib import Path

from huggingface_hub import ModelCardData

from hf_bidir.checkpoints.convert import free_folder, write_checkpoint
from hf_bidir.checkpoints.reading import documents, open_checkpoint
from hf_bidir.common.card import CARD, parsed_card
from hf_bidir.common.extras import extra

with extra("int8"):
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig
    from torchao.utils import TorchAOBaseTensor
    from transformers import TorchAoConfig


def quantise_checkpoint(source: str | Path, output_dir: str | Path, *, overwrite: bool = False) -> Path:
    """Write a copy of a checkpoint, signed or stock, with the weights of its `nn.Linear` layers in int8.

    Each row of a weight has a scale of its own; activations are rounded to int8 in each call, with a scale per token.
    Other weights, such as embeddings, norms and the output layer of a language model, keep their dtype; attention
    computes in it. A folder of sentence-transformers stays one.
    The copy loads by `from_pretrained` where torchao is installed. It cannot be trained, converted or
    exported.

    Args:
        source: a folder, or a name on the Hub.
        output_dir: a folder that is new or empty, unless `overwrite`.
        overwrite: replace the contents of `output_dir`.

    Returns:
        `output_dir`. A failure leaves it unchanged.

    Raises:
        ValueError: the checkpoint has 8-bit weights already, or no layer that can have them.
        FileNotFoundError: no such checkpoint.
        FileExistsError: `output_dir` is not empty, or holds the source.
    """
    output_dir = free_folder(output_dir, overwrite, source)
    checkpoint = open_checkpoint(source)
    checkpoint.check_full_precision("quantised again")
    model = checkpoint.model(quantization_config=TorchAoConfig(Int8DynamicActivationInt8WeightConfig()))
    if not any(isinstance(weight, TorchAOBaseTensor) for weight in model.parameters()):
        raise ValueError(f"{type(model).__name__} has no nn.Linear layer that torchao quantises (GPT-2 has Conv1D).")
    saved = [model, *checkpoint.processors(model)]
    return write_checkpoint(output_dir, saved, checkpoint.sentences, {CARD: _header(source)})


def _header(source: str | Path) -> bytes:
    """The header of a card with the model on the Hub that the weights come from and their licence, as far as known."""
    card = documents(source).get(CARD)
    data = parsed_card(card, CARD).data if card else ModelCardData()
    base = data.get("base_model") if Path(source).exists() else str(source)
    header = ModelCardData(license=data.get("license"), base_model=base, base_model_relation=base and "quantized")
    return f"---\n{header.to_yaml()}\n---\n".encode()
