"""Exports a checkpoint as a graph that runs without hf_bidir: for ONNX runtimes, or as a program of torch.export.

The exporters of transformers trace the model. Here inputs and dynamic axes are chosen, and the graph is compared with
the model on other inputs before anything is written.
"""

import inspect
import logging
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.export import Dim
from transformers import PretrainedConfig, PreTrainedModel

from hf_bidir.checkpoints.convert import free_folder, write_checkpoint
from hf_bidir.checkpoints.examples import example_inputs, largest_difference, output_tensors
from hf_bidir.checkpoints.reading import open_checkpoint
from hf_bidir.checkpoints.signing import stock_config
from hf_bidir.common.errors import as_input_error
from hf_bidir.common.extras import extra
from hf_bidir.modeling.configuration_bidir import ATTENTION_FIELDS, PREFIX

with extra("export"):
    import onnxruntime as onnxruntime  # runs the graph that is compared with the model
    from transformers.exporters.exporter_dynamo import DynamoConfig, DynamoExporter
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

FORMATS = ("onnx", "pt2")
STANDARD = {"", "ai.onnx"}  # domains of ONNX's own operators
WITH_LENGTH = ("input_ids", "attention_mask", "token_type_ids", "decoder_input_ids", "input_values")


def export_checkpoint(
    source: str | Path,
    output_dir: str | Path,
    *,
    format: str = "onnx",
    tolerance: float = 1e-4,
    overwrite: bool = False,
) -> float:
    """Write a graph of a checkpoint, signed or stock, with its config, tokenizer and processors.

    Batch size and length may differ in every call; the size of images is that of the model. Weights are in fp32.
    Decoders compute the logits of all positions, without a cache.

    Args:
        source: a folder, or a name on the Hub.
        output_dir: a folder that is new or empty, unless `overwrite`, which replaces its contents.
        format: "onnx" (model.onnx and model.onnx.data), or "pt2" (model.pt2, for `torch.export.load`).
        tolerance: the largest accepted difference of an output, relative to the largest one if that is above 1. The
            large activations of a deep language model may round by more than the default.

    Returns:
        That difference, on inputs of other sizes than the traced ones.

    Raises:
        ValueError: an unknown format, a checkpoint with 8-bit weights, a model that cannot be traced,
            or a graph whose outputs differ from the model's by more than the tolerance. Nothing is written then.
        FileNotFoundError: no such checkpoint.
        FileExistsError: `output_dir` is not empty, or holds the source.
    """
    output_dir = free_folder(output_dir, overwrite, source)
    if format not in FORMATS:
        raise ValueError(f"expected the format {' or '.join(FORMATS)}, got {format!r}.")
    checkpoint = open_checkpoint(source)
    if checkpoint.sentences:
        raise ValueError(
            f"{source} is a folder of sentence-transformers, whose pooling the graph would lose; export its "
            "transformer from a folder of its own."
        )
    checkpoint.check_full_precision("exported")
    model = checkpoint.model(torch.float32)
    processors = checkpoint.processors(model)
    inputs = _traced_inputs(model, processors)
    exported = _exported(model, inputs, format)
    other_inputs = _of_other_sizes(inputs)
    with torch.inference_mode():
        expected = output_tensors(model(**other_inputs, **_without_cache(model)))
        # runtimes raise errors of many types
        with as_input_error(f"the {format} graph of {source} refuses inputs of other sizes: ", Exception):
            outputs = output_tensors(exported(**other_inputs))
    difference = largest_difference(expected, outputs, other_inputs)
    if not difference <= tolerance:  # also of NaN
        raise ValueError(
            f"the outputs of the {format} graph of {source} differ from the model's by {difference:.1e}, more than "
            f"{tolerance:.1e}; nothing saved. To accept that, set tolerance (--tolerance)."
        )
    exported.config = _readable_without_code(model)
    write_checkpoint(output_dir, [exported, *processors])
    return difference


def _exported(model: PreTrainedModel, inputs: dict[str, Tensor], format: str) -> Any:
    shapes = {}
    for name, tensor in inputs.items():
        axes = (0, 1) if _has_length(name, tensor) else (0,)
        shapes[name] = dict.fromkeys(axes, Dim.AUTO)
    traced = inputs | _without_cache(model)
    for name in ("torch.onnx", "torch.export", "transformers"):  # which log each step
        logging.getLogger(name).setLevel(logging.ERROR)
    # tracing raises errors of many types
    with as_input_error(f"{type(model).__name__} cannot be exported as {format}: ", Exception):
        if format == "pt2":
            return DynamoExporter().export(model, traced, DynamoConfig(dynamic_shapes=shapes))
        exported = OnnxExporter().export(model, traced, OnnxConfig(dynamic_shapes=shapes))
        foreign = {node.domain for node in exported.program.graph} - STANDARD
        if foreign:
            raise ValueError(f"the graph needs operators that are not ONNX's own: {foreign}.")
        return exported


def _traced_inputs(model: PreTrainedModel, processors: list) -> dict[str, Tensor]:
    """Two random examples, with the token types that a tokenizer adds, in which BERT tells two texts apart."""
    inputs = example_inputs(model)
    names = {name for processor in processors for name in processor.model_input_names}
    accepted = inspect.signature(model.forward).parameters
    if "token_type_ids" in names and "token_type_ids" in accepted:
        inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
    return inputs


def _has_length(name: str, tensor: Tensor) -> bool:
    """Whether an input is `[batch, length]` with a length that may differ."""
    return name in WITH_LENGTH and tensor.dim() == 2


def _of_other_sizes(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """One more example, each of them shorter where the length is free."""
    others = {}
    for name, tensor in inputs.items():
        longer = torch.cat([tensor, tensor[:1]])
        others[name] = longer[:, :-1] if _has_length(name, tensor) else longer
    return others


def _without_cache(model: PreTrainedModel) -> dict[str, bool]:
    return {"use_cache": False} if getattr(model.config, "use_cache", None) is not None else {}


def _readable_without_code(model: PreTrainedModel) -> PretrainedConfig:
    """The config as transformers' own class, which loads without hf_bidir and says what the attention was."""
    stock = getattr(transformers, type(model).__name__.removeprefix(PREFIX), None)
    if stock is type(model) or stock is None:
        return model.config
    config = stock_config(model.config, stock)
    for name in ATTENTION_FIELDS:
        setattr(config, name, getattr(model.config, name))
    config.architectures = [stock.__name__]
    return config
