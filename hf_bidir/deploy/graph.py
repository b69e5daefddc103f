"""Exports a checkpoint as a graph that runs without hf_bidir: for ONNX runtimes, or as a program of torch.export.

The exporters of transformers trace the model. Here inputs and dynamic axes are chosen, and the graph is compared with
the model on other inputs before anything is written.
"""

import contextlib
import copy
import inspect
import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.export import Dim
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_bidir.checkpoints.convert import free_folder, write_checkpoint
from hf_bidir.checkpoints.examples import example_inputs, largest_difference, output_tensors
from hf_bidir.checkpoints.reading import open_checkpoint
from hf_bidir.checkpoints.signing import stock_config
from hf_bidir.common.errors import first_line
from hf_bidir.common.extras import extra
from hf_bidir.modeling.configuration_bidir import ATTENTION_FIELDS, PREFIX

with extra("export"):
    import onnxruntime as onnxruntime  # runs the graph that is compared with the model
    from transformers.exporters.exporter_dynamo import DynamoConfig, DynamoExporter
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

FORMATS = ("onnx", "pt2")
OPSETS = range(18, 24)  # that torch.onnx.export writes
TOLERANCE = 1e-4  # of an output, relative to the largest one
ROUNDING = 4  # accepted multiple of the model's own rounding error, where that is above the tolerance
WITH_LENGTH = ("input_ids", "attention_mask", "token_type_ids", "decoder_input_ids", "input_values")
STANDARD = ("", "ai.onnx")  # domains of ONNX's own operators


def export_checkpoint(
    source: str | Path,
    output_dir: str | Path,
    *,
    format: str = "onnx",
    opset: int | None = None,
    tolerance: float | None = None,
    overwrite: bool = False,
) -> float:
    """Write a graph of a checkpoint, signed or stock, with its config, tokenizer and processors.

    Batch size and length may differ in every call; the size of images is that of the model. Weights are in fp32.
    Decoders compute the logits of all positions, without a cache.

    Args:
        source: a folder, or a name on the Hub.
        output_dir: a folder that is new or empty, unless `overwrite`, which replaces its contents.
        format: "onnx" (model.onnx and model.onnx.data), or "pt2" (model.pt2, for `torch.export.load`).
        opset: the version of ONNX's operators; by default torch's (20 in torch 2.14).
        tolerance: the largest accepted difference of an output, relative to the largest one. By default 1e-4, or four
            times the difference between the model's own outputs in fp32 and in fp64: the large activations of a deep
            language model round as much.

    Returns:
        The largest difference of an output, relative to the largest one, on inputs of other sizes than the traced ones.

    Raises:
        ValueError: an unknown format or operator set, a checkpoint with 8-bit weights, a model that cannot be traced,
            or a graph whose outputs differ from the model's by more than the tolerance. Nothing is written then.
        FileNotFoundError: no such checkpoint.
        FileExistsError: `output_dir` is not empty, or holds the source.
    """
    output_dir = free_folder(output_dir, overwrite, source)
    _check_format(format, opset)
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
    if any(len(tensor) != 2 for tensor in inputs.values()):  # an axis of size 1 would be fixed
        raise ValueError(f"{type(model).__name__} cannot be exported: it accepts one example at a time.")
    with _quiet():
        exported = _exported(model, inputs, format, opset)
        others = _of_other_sizes(inputs)
        with torch.inference_mode():
            expected = model(**others, **_without_cache(model))
            try:
                got = exported(**others)
            except Exception as error:  # runtimes raise errors of many types
                raise ValueError(f"the {format} graph of {source} refuses inputs of other sizes: {error}") from error
    outputs = list(output_tensors(expected))
    difference = _relative_difference(outputs, list(output_tensors(got)), others)
    if tolerance is None:
        tolerance = TOLERANCE
        if difference > TOLERANCE:
            tolerance = max(TOLERANCE, ROUNDING * _rounding_error(model, outputs, others))
    if not difference <= tolerance:
        raise ValueError(
            f"the outputs of the {format} graph of {source} differ from the model's by {difference:.1e} of the largest "
            f"output, more than {tolerance:.1e}; nothing saved. To accept that, set tolerance (--tolerance)."
        )
    exported.config = _readable_without_code(model)
    write_checkpoint(output_dir, [exported, *processors])
    return difference


def _check_format(format: str, opset: int | None) -> None:
    if format not in FORMATS:
        raise ValueError(f"expected the format {' or '.join(FORMATS)}, got {format!r}.")
    if opset is not None and format != "onnx":
        raise ValueError(f"an operator set (opset={opset}) is for the format onnx, got {format}.")
    if opset is not None and opset not in OPSETS:
        raise ValueError(f"expected an operator set from {OPSETS[0]} to {OPSETS[-1]}, got {opset}.")


def _exported(model: PreTrainedModel, inputs: dict[str, Tensor], format: str, opset: int | None) -> Any:
    shapes = {name: dict.fromkeys(range(1 + _has_length(name, x)), Dim.AUTO) for name, x in inputs.items()}
    given = copy.copy(inputs) | _without_cache(model)  # the exporter changes the dictionary
    try:
        if format == "pt2":
            return DynamoExporter().export(model, given, DynamoConfig(dynamic_shapes=shapes))
        exported = OnnxExporter().export(model, given, OnnxConfig(dynamic_shapes=shapes, opset_version=opset))
    except Exception as error:  # tracing raises errors of many types
        raise ValueError(f"{type(model).__name__} cannot be exported as {format}: {first_line(error)}") from error
    others = {f"{node.domain}.{node.op_type}" for node in exported.program.graph if node.domain not in STANDARD}
    if others:
        raise ValueError(f"the graph needs operators that are not ONNX's own: {', '.join(sorted(others))}.")
    return exported


def _traced_inputs(model: PreTrainedModel, processors: list) -> dict[str, Tensor]:
    """Two random examples, with the token types that a tokenizer adds, in which BERT tells two texts apart."""
    inputs = example_inputs(model)
    names = {name for one in processors if isinstance(one, PreTrainedTokenizerBase) for name in one.model_input_names}
    accepted = inspect.signature(model.forward).parameters
    if "token_type_ids" in names and "token_type_ids" in accepted and "input_ids" in inputs:
        inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
    return inputs


def _has_length(name: str, tensor: Tensor) -> bool:
    """Whether an input is `[batch, length]` with a length that may differ."""
    return name in WITH_LENGTH and tensor.dim() == 2


def _of_other_sizes(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """One more example, each of them shorter where the length is free."""
    longer = {name: torch.cat([tensor, tensor[:1]]) for name, tensor in inputs.items()}
    return {name: tensor[:, :-1] if _has_length(name, tensor) else tensor for name, tensor in longer.items()}


def _relative_difference(expected: list[Tensor], got: list[Tensor], inputs: dict[str, Tensor]) -> float:
    """The largest difference of an output, relative to the largest output."""
    largest = [output.abs().max().clamp_min(torch.finfo(output.dtype).tiny) for output in expected]
    ours, theirs = ([x / scale for x, scale in zip(some, largest, strict=True)] for some in (got, expected))
    return largest_difference(theirs, ours, inputs)


def _rounding_error(model: PreTrainedModel, outputs: list[Tensor], inputs: dict[str, Tensor]) -> float:
    """How much the model's outputs differ from those that it computes in fp64."""
    exact = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
    with torch.inference_mode():
        found = copy.deepcopy(model).double()(**exact, **_without_cache(model))
    return _relative_difference(outputs, list(output_tensors(found)), inputs)


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


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' lines about each step; errors remain."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "transformers")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
