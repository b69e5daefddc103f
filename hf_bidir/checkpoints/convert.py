"""Converts softmax checkpoints of transformers and timm to signed ones, back if `λ = 0`, and merges adapters.

A stock model is signed in place, not copied, so a conversion needs little more memory than the checkpoint.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from hf_bidir.common.files import PREVIOUS, RECORD

from .examples import example_inputs, largest_difference, outputs_of
from .reading import documents, open_checkpoint
from .sentence_folder import SentenceFolder
from .signing import unsigned

MERGE_TOLERANCE = 1e-4  # of an output, relative to the largest one if that is above 1


def convert_checkpoint(
    source: str | Path | nn.Module,
    output_dir: str | Path,
    *,
    attn_activation: str = "tanhmax",
    negative_mass: float | list = 0.0,
    weights: str | Path | None = None,
    partial: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write a signed copy of a softmax checkpoint, with its tokenizer or processors.

    A folder of sentence-transformers stays one: its transformer is converted, its other modules and prompts are copied.
    The source's README.md and licence are copied too.

    Args:
        source: a folder, a name on the Hub, "timm:NAME", or an instantiated timm VisionTransformer.
        output_dir: a folder that is new or empty, unless `overwrite`.
        attn_activation: the activation of the copy.
        negative_mass: its `λ` in [0, 1], or a list with one entry per layer. At 0 every layer calls the function of
            the softmax model, so the outputs are equal.
        weights: for "timm:NAME", a file of weights (safetensors, or a torch file without pickled code).
        partial: sign only layers that use transformers' attention interface; other attention stays softmax.
        overwrite: replace the contents of `output_dir`.

    Returns:
        `output_dir`. A failure leaves it unchanged.

    Raises:
        ValueError: the source cannot be signed or is signed already, or a timm model has other outputs as a ViT.
        FileNotFoundError: the source does not exist or is incomplete.
        FileExistsError: `output_dir` is not empty, or holds the source.
    """
    output_dir = free_folder(output_dir, overwrite, source)
    checkpoint = open_checkpoint(source, weights=weights)
    checkpoint.check_full_precision("converted")
    if checkpoint.is_signed:
        raise ValueError(
            f"{source} is signed already, with the activation {checkpoint.config.attn_activation}; convert a softmax "
            "checkpoint, raise λ of this one by healing it (--heal), or write the stock model (--to-softmax)."
        )
    model = checkpoint.signed_model(attn_activation=attn_activation, negative_mass=negative_mass, partial=partial)
    note = (
        f"Signed by hf_bidir: attention activation `{attn_activation}`, negative mass "
        f"λ = {model.config.attn_negative_mass}. Below is the card of the checkpoint that it was made from."
    )
    copies = {} if checkpoint.vit else documents(checkpoint.source, note)
    return write_checkpoint(output_dir, [model, *checkpoint.processors(model)], checkpoint.sentences, copies)


def restore_softmax(source: str | Path, output_dir: str | Path, *, overwrite: bool = False) -> Path:
    """Convert a bidir checkpoint that computes softmax (`λ = 0`, or that activation) back to a stock checkpoint.

    Arguments and errors as in `convert_checkpoint` and `unsigned`.
    """
    output_dir = free_folder(output_dir, overwrite, source)
    checkpoint = open_checkpoint(source)
    if checkpoint.adapter:
        raise ValueError(f"{source} is an adapter; merge it first: hf-bidir merge {source} OUT.")
    checkpoint.check_full_precision("converted")
    model = unsigned(checkpoint.model())
    return write_checkpoint(output_dir, [model, *checkpoint.processors(model)], checkpoint.sentences)


def merge_adapter(
    source: str | Path,
    output_dir: str | Path,
    *,
    base: str | Path | None = None,
    overwrite: bool = False,
) -> float:
    """Write the checkpoint that an adapter and its base model make together, in fp32, with its processors.

    Args:
        base: the folder or Hub name of the base model; by default the one that the adapter names.

    Returns:
        The largest difference of an output from the model with the separate adapter, as in `largest_difference`.

    Raises:
        ValueError: not an adapter, another base model than that of the training run, or outputs that differ by more
            than 1e-4. Nothing is written then. Other errors and arguments as in `convert_checkpoint`.
    """
    output_dir = free_folder(output_dir, overwrite, source)
    checkpoint = open_checkpoint(source, base=base)
    if checkpoint.adapter is None or checkpoint.base is None:
        raise ValueError(f"{source} is not an adapter: it has a config.json of its own.")
    free_folder(output_dir, overwrite, checkpoint.base.source)
    adapted = checkpoint.adapted(torch.float32)
    whole = adapted.get_base_model()  # with the adapter in its layers
    inputs = example_inputs(whole)
    expected = outputs_of(whole, inputs)
    model = adapted.merge_and_unload().eval()
    difference = largest_difference(expected, outputs_of(model, inputs), inputs)
    if not difference <= MERGE_TOLERANCE:
        raise ValueError(
            f"the outputs of the merged model differ from those with the adapter by {difference:.1e}, more than "
            f"{MERGE_TOLERANCE:g}; nothing saved."
        )
    processors = checkpoint.processors(model) or checkpoint.base.processors(model)
    record = checkpoint.adapter.folder / RECORD
    # the card names the origin of the weights from it
    copies = {PREVIOUS: record.read_bytes()} if record.is_file() else {}
    write_checkpoint(output_dir, [model, *processors], copies=copies)
    return difference


def free_folder(output_dir: str | Path, overwrite: bool, source: str | Path | nn.Module) -> Path:
    """The folder; FileExistsError unless it is new or empty, or to be overwritten and without the source."""
    output_dir = Path(output_dir)
    local = isinstance(source, str | Path) and Path(source).exists()
    if local and Path(source).resolve().is_relative_to(output_dir.resolve()):
        raise FileExistsError(f"expected an output folder without the source, {source}; got {output_dir}.")
    if output_dir.exists() and any(output_dir.iterdir()) and not overwrite:
        raise FileExistsError(
            f"{output_dir} is not empty; name another folder, or replace its contents (--overwrite or overwrite=True)."
        )
    return output_dir


def write_checkpoint(
    output_dir: Path,
    parts: list,
    sentences: SentenceFolder | None = None,
    copies: Mapping[str, bytes] = {},
) -> Path:
    """Save model, processors and copies of other files in a temporary folder, then move it to the target."""
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output_dir.parent, prefix=f".{output_dir.name}-") as scratch:
        complete = Path(scratch, "complete")
        for part in parts:
            part.save_pretrained(complete / sentences.path if sentences else complete)
        if sentences:
            sentences.copy_others(complete)
        for name, content in copies.items():
            (complete / name).write_bytes(content)
        if output_dir.exists():
            output_dir.rename(Path(scratch, "replaced"))
        complete.rename(output_dir)
    return output_dir
