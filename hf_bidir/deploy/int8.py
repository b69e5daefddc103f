"""Writes a checkpoint with 8-bit weights, whose linear layers multiply 8-bit numbers on a CPU (torchao)."""

from pathlib import Path

from transformers import PreTrainedModel

from hf_bidir.checkpoints.convert import free_folder, write_checkpoint
from hf_bidir.checkpoints.reading import check_full_precision, checkpoint_processors, read_config, read_model
from hf_bidir.common.extras import extra

with extra("int8"):
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig
    from transformers import TorchAoConfig


def quantise_checkpoint(source: str | Path, output_dir: str | Path, *, overwrite: bool = False) -> Path:
    """Write a copy of a checkpoint, signed or stock, with the weights of its linear layers in int8.

    Each row of a weight has a scale of its own; activations are rounded to int8 in each call, with a scale per token.
    Other weights, such as embeddings, norms and convolutions, keep their dtype; attention computes in it.
    The copy loads by `from_pretrained` where torchao is installed. It cannot be trained, converted, oriented or
    exported.

    Args:
        source: a folder, or a name on the Hub.
        output_dir: a folder that is new or empty, unless `overwrite`.
        overwrite: replace the contents of `output_dir`.

    Returns:
        `output_dir`. A failure leaves it unchanged.

    Raises:
        ValueError: the checkpoint has 8-bit weights already.
        FileNotFoundError: no such checkpoint.
        FileExistsError: `output_dir` is not empty, or holds the source.
    """
    output_dir = free_folder(output_dir, overwrite, source)
    check_full_precision(read_config(source), source, "quantised again")
    return write_checkpoint(output_dir, [read_int8(source), *checkpoint_processors(source)])


def read_int8(source: str | Path) -> PreTrainedModel:
    """A checkpoint, in full precision or saved in int8, as a model with int8 weights in evaluation mode."""
    saved = getattr(read_config(source), "quantization_config", None) is not None
    options = {} if saved else {"quantization_config": TorchAoConfig(Int8DynamicActivationInt8WeightConfig())}
    return read_model(source, **options)
