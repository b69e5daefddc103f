"""Merges an adapter into its base model: a complete checkpoint that needs neither of them."""

from pathlib import Path

import torch

from hf_bidir.checkpoints.adapters import required_adapter
from hf_bidir.checkpoints.convert import free_folder, largest_difference, outputs_of, random_inputs, write_checkpoint
from hf_bidir.checkpoints.reading import checkpoint_processors, merged, read_adapted
from hf_bidir.common.files import PREVIOUS, RECORD

TOLERANCE = 1e-4  # of an output, relative to the largest one if that is above 1


def merge_adapter(
    source: str | Path, output_dir: str | Path, *, base: str | Path | None = None, overwrite: bool = False
) -> float:
    """Write the signed checkpoint that an adapter and its base model make together, in fp32, with its processors.

    Args:
        source: the adapter, a folder or a name on the Hub.
        output_dir: a folder that is new or empty, unless `overwrite`.
        base: the folder or Hub name of the base model; by default the one that the adapter names.
        overwrite: replace the contents of `output_dir`.

    Returns:
        The largest difference of an output from the model with the separate adapter, on random input; relative to the
        largest output if that is above 1.

    Raises:
        ValueError: not an adapter, another base model than that of the training run, or outputs that differ by more
            than 1e-4. Nothing is written then.
        FileNotFoundError: no such adapter, or no such base model.
        FileExistsError: `output_dir` is not empty, or holds the adapter or the base.
    """
    output_dir = free_folder(output_dir, overwrite, source)
    adapter = required_adapter(source)
    adapted = read_adapted(adapter, torch.float32, base)
    base = adapter.base if base is None else base
    free_folder(output_dir, overwrite, base)
    whole = adapted.get_base_model()  # with the adapter in its layers
    inputs = random_inputs(whole)
    expected = outputs_of(whole, inputs)
    model = merged(adapted)
    difference = largest_difference(expected, outputs_of(model, inputs), inputs)
    if not difference <= TOLERANCE:
        raise ValueError(
            f"the outputs of the merged model differ from those with the adapter by {difference:.1e}, more than "
            f"{TOLERANCE:g}; nothing saved."
        )
    processors = checkpoint_processors(source, model) or checkpoint_processors(base, model)
    # the card tells where the weights come from
    write_checkpoint(output_dir, [model, *processors], copies={PREVIOUS: adapter.folder / RECORD})
    return difference
