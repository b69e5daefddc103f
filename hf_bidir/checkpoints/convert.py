"""Converts softmax checkpoints of transformers and timm to signed ones, back if `λ = 0`, and merges adapters.

A stock model is signed in place, not copied, so a conversion needs little more memory than the checkpoint.
"""

import copy
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial as bound
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel

from hf_bidir.checkpoints.adapters import read_adapter, required_adapter
from hf_bidir.checkpoints.kinds import example_inputs
from hf_bidir.checkpoints.reading import (
    check_full_precision,
    checkpoint_processors,
    complete_model,
    documents,
    merged,
    read_adapted,
    read_bidir,
    read_config,
    stock_head,
)
from hf_bidir.checkpoints.sentence_folder import SentenceFolder, sentence_folder
from hf_bidir.checkpoints.signing import signed, unsigned
from hf_bidir.checkpoints.timm_vit import TIMM_PREFIX, read_timm, timm_outputs, vit_from_timm
from hf_bidir.common.files import PREVIOUS, RECORD
from hf_bidir.common.model_types import is_signed
from hf_bidir.modeling.configuration_bidir import is_softmax

logger = logging.getLogger(__name__)

TEXT_INPUTS = {"input_ids", "attention_mask", "decoder_input_ids"}
GENERATED = 3  # tokens; the first comes from the padded texts, the others from steps over the cache
MERGE_TOLERANCE = 1e-4  # of an output, relative to the largest one if that is above 1
TOLERANCE, TOLERATED_STEPS = 1e-5, 8  # relative difference of outputs; in half precision, in rounding steps


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
        negative_mass: its `λ` in [0, 1], or a list with one entry per layer. At 0 its outputs on random input are
            compared with the source's before anything is saved; above 0 the difference is logged.
        weights: for "timm:NAME", a file of weights (safetensors, or a torch file without pickled code).
        partial: sign only layers that use transformers' attention interface; other attention stays softmax.
        overwrite: replace the contents of `output_dir`.

    Returns:
        `output_dir`. A failure leaves it unchanged.

    Raises:
        ValueError: the source cannot be signed or is signed already, or the outputs are not equal at `λ = 0`.
        FileNotFoundError: the source does not exist or is incomplete.
        FileExistsError: `output_dir` is not empty, or holds the source.
    """
    output_dir = free_folder(output_dir, overwrite, source)
    model, processors, difference = signed_model(
        source, attn_activation=attn_activation, negative_mass=negative_mass, weights=weights, partial=partial
    )
    logger.warning("Largest difference of an output on random input: %.1e", difference)
    note = (
        f"Signed by hf_bidir: attention activation `{attn_activation}`, negative mass "
        f"λ = {model.config.attn_negative_mass}. Below is the card of the checkpoint that it was made from."
    )
    copies = {} if _is_timm(source) else documents(str(source), note)
    return write_checkpoint(output_dir, [model, *processors], _sentence_folder(source), copies)


def signed_model(
    source: str | Path | nn.Module,
    *,
    attn_activation: str = "tanhmax",
    negative_mass: float | list = 0.0,
    weights: str | Path | None = None,
    partial: bool = False,
    dtype: torch.dtype | str = "auto",
    quantised: bool = False,
) -> tuple[PreTrainedModel, list, float]:
    """A softmax checkpoint as a signed model in memory, with its tokenizer and processors if any, and the largest
    difference of an output on random input; quantised weights pass with `quantised`. Other arguments and errors as in
    `convert_checkpoint`."""
    attention: dict[str, Any] = {"attn_activation": attn_activation, "negative_mass": negative_mass, "partial": partial}
    model, processors, source_outputs = _read_source(source, weights, dtype, attention, quantised)
    inputs = random_inputs(model)
    before = source_outputs(inputs)
    signed(model, **attention)
    difference = largest_difference(before, outputs_of(model, inputs), inputs)
    if is_softmax(model.config) and not difference <= _tolerance(model):
        raise ValueError(
            f"the converted model's outputs differ from the source's by {difference:.1e}, more than "
            f"{_tolerance(model):.0e}; nothing saved."
        )
    return model, processors, difference


def restore_softmax(source: str | Path, output_dir: str | Path, *, overwrite: bool = False) -> Path:
    """Convert a bidir checkpoint that computes softmax (`λ = 0`, or that activation) back to a stock checkpoint.

    Arguments and errors as in `convert_checkpoint` and `unsigned`.
    """
    output_dir, sentences = free_folder(output_dir, overwrite, source), _sentence_folder(source)
    transformer = sentences.transformer if sentences else source
    if read_adapter(transformer):
        raise ValueError(f"{source} is an adapter; merge it first: hf-bidir merge {source} OUT.")
    config = read_config(transformer)
    check_full_precision(config, source, "converted")
    if not is_signed(type(config).model_type):
        raise ValueError(
            f"{source} has the model type {config.model_type}, which is not signed; there is nothing to restore."
        )
    model = read_bidir(transformer)
    inputs = random_inputs(model)
    expected = outputs_of(model, inputs)
    difference = largest_difference(expected, outputs_of(unsigned(model), inputs), inputs)
    if not difference <= _tolerance(model):
        raise ValueError(
            f"the restored model's outputs differ from the source's by {difference:.1e}, more than "
            f"{_tolerance(model):.0e}; nothing saved."
        )
    return write_checkpoint(output_dir, [model, *checkpoint_processors(transformer, model)], sentences)


def merge_adapter(
    source: str | Path, output_dir: str | Path, *, base: str | Path | None = None, overwrite: bool = False
) -> float:
    """Write the signed checkpoint that an adapter and its base model make together, in fp32, with its processors.

    Args:
        base: the folder or Hub name of the base model; by default the one that the adapter names.

    Returns:
        The largest difference of an output from the model with the separate adapter, as in `largest_difference`.

    Raises:
        ValueError: not an adapter, another base model than that of the training run, or outputs that differ by more
            than 1e-4. Nothing is written then. Other errors and arguments as in `convert_checkpoint`.
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
    if not difference <= MERGE_TOLERANCE:
        raise ValueError(
            f"the outputs of the merged model differ from those with the adapter by {difference:.1e}, more than "
            f"{MERGE_TOLERANCE:g}; nothing saved."
        )
    processors = checkpoint_processors(source, model) or checkpoint_processors(base, model)
    # the card names the origin of the weights from this record
    write_checkpoint(output_dir, [model, *processors], copies={PREVIOUS: adapter.folder / RECORD})
    return difference


def free_folder(output_dir: str | Path, overwrite: bool, source: str | Path | nn.Module) -> Path:
    """The folder; FileExistsError unless it is new or empty, or to be overwritten and without the source."""
    output_dir = Path(output_dir)
    local = isinstance(source, str | Path) and Path(source).exists()
    if local and Path(source).resolve().is_relative_to(output_dir.resolve()):
        raise FileExistsError(f"expected an output folder without the source, {source}; got {output_dir}.")
    if output_dir.exists() and not output_dir.is_dir():
        raise FileExistsError(f"{output_dir} is a file; name a folder.")
    if output_dir.exists() and any(output_dir.iterdir()) and not overwrite:
        raise FileExistsError(
            f"{output_dir} is not empty; name another folder, or replace its contents (--overwrite or overwrite=True)."
        )
    return output_dir


def _is_timm(source: str | Path | nn.Module) -> bool:
    return isinstance(source, nn.Module) or str(source).startswith(TIMM_PREFIX)


def _sentence_folder(source: str | Path | nn.Module) -> SentenceFolder | None:
    return None if _is_timm(source) else sentence_folder(source)


def _read_source(
    source: str | Path | nn.Module,
    weights: str | Path | None,
    dtype: torch.dtype | str,
    attention: dict[str, Any],
    quantised: bool,
) -> tuple[PreTrainedModel, list, Callable[[dict[str, Tensor]], list[Tensor]]]:
    """The stock model, its tokenizer and processors, and a function that computes the source's outputs."""
    if _is_timm(source):
        timm_model = source if isinstance(source, nn.Module) else read_timm(str(source), weights)
        model, processor = vit_from_timm(timm_model)
        return model, [processor], bound(timm_outputs, timm_model)
    if weights is not None:
        raise ValueError(f"weights={weights} is for timm models only; {source} has its own.")
    sentences = sentence_folder(source)
    source = sentences.transformer if sentences else source
    config = read_config(source)
    if not quantised:
        check_full_precision(config, source, "converted")
    if is_signed(type(config).model_type):
        advice = "convert a softmax checkpoint, or raise λ of this one by healing it (--heal) or in its config"
        if config.attn_activation == "softmax":
            advice = "it has softmax attention; heal it to TanhMax with --heal FILE, or write the stock model with"
            advice += " --to-softmax"
        raise ValueError(f"{source} is signed already ({config.model_type}); {advice}.")
    head = (sentences and sentences.head(config)) or stock_head(config, source)
    with torch.device("meta"):  # refuses what cannot be signed before weights are downloaded
        signed(head(copy.deepcopy(config)), **attention)
    if sentences:
        sentences.fetch_weights()
    model = complete_model(head, source, dtype)
    return model, checkpoint_processors(source, model), bound(outputs_of, model)


def random_inputs(model: PreTrainedModel) -> dict[str, Tensor]:
    """Random inputs that the model accepts; ValueError if none are known."""
    try:
        inputs = example_inputs(model)
        outputs_of(model, inputs)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{type(model).__name__} cannot be compared with its source: it accepts no known random input "
            f"({error}). In memory, hf_bidir.signed(model) and peft's merge_and_unload() compare nothing."
        ) from error
    return inputs


@torch.inference_mode()
def outputs_of(model: PreTrainedModel, inputs: dict[str, Tensor]) -> list[Tensor]:
    """All floating-point tensors that the model returns, with a fixed seed for models that draw random numbers.

    For a model that generates text also the logits of steps over a cache, after padding on the left.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [*output_tensors(model(**inputs)), *_generated_logits(model, inputs)]


def _generated_logits(model: PreTrainedModel, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """The logits of each generated token, `[batch, vocabulary]`; none unless it turns text into text."""
    if not model.can_generate() or not {"input_ids", "attention_mask"} <= inputs.keys() <= TEXT_INPUTS:
        return ()
    padded_on_the_left = {name: inputs[name].flip(1) for name in ("input_ids", "attention_mask")}
    greedy = GenerationConfig(
        max_new_tokens=GENERATED, min_new_tokens=GENERATED, do_sample=False, num_beams=1, use_cache=True,
        pad_token_id=0, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    if model.config.is_encoder_decoder and getattr(model.config, "decoder_start_token_id", None) is None:
        greedy.decoder_start_token_id = 0
    return model.generate(**padded_on_the_left, generation_config=greedy).logits


def output_tensors(outputs: Any) -> Iterator[Tensor]:
    """The floating-point tensors of a model's outputs, in order."""
    if isinstance(outputs, Tensor) and outputs.is_floating_point():
        yield outputs
    elif isinstance(outputs, Mapping | list | tuple):
        for part in outputs.values() if isinstance(outputs, Mapping) else outputs:
            yield from output_tensors(part)


def largest_difference(first: list[Tensor], second: list[Tensor], inputs: dict[str, Tensor]) -> float:
    """The largest difference of an output, without padding; relative to the largest output if that is above 1."""
    keep = inputs.get("attention_mask")

    def at_tokens(output: Tensor) -> Tensor:
        if keep is not None and output.shape[: keep.dim()] == keep.shape:
            output = output[keep.bool()]
        return output.float()

    pairs = [(at_tokens(a), at_tokens(b)) for a, b in zip(first, second, strict=True)]
    found = [(a - b).abs().max() / a.abs().max().clamp_min(1) for a, b in pairs if a.numel()]
    return torch.stack(found).max().item()  # propagates NaN, which Python's max would drop


def _tolerance(model: PreTrainedModel) -> float:
    return max(TOLERANCE, TOLERATED_STEPS * torch.finfo(model.dtype).eps)


def write_checkpoint(
    output_dir: Path,
    parts: list,
    sentences: SentenceFolder | None = None,
    copies: Mapping[str, Path | bytes] | None = None,
) -> Path:
    """Save model, processors and copies of other files in a temporary folder, then move it to the target."""
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output_dir.parent, prefix=f".{output_dir.name}-") as scratch:
        complete = Path(scratch, "complete")
        for part in parts:
            part.save_pretrained(complete / sentences.path if sentences else complete)
        if sentences:
            sentences.copy_others(complete)
        for name, file in (copies or {}).items():
            if isinstance(file, bytes):
                (complete / name).write_bytes(file)
            elif file.is_file():
                shutil.copyfile(file, complete / name)
        if output_dir.exists():
            output_dir.rename(Path(scratch, "replaced"))
        complete.rename(output_dir)
    return output_dir
