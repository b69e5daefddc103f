"""Softmax checkpoints (transformers BERT, ViT, DeiT; timm ViT) to signed ones, and back where `λ = 0`.

A stock model is not copied but retyped in place (`BidirMixin.from_stock`): a conversion needs hardly more memory
than the checkpoint, and at `λ = 0` there is nothing that could differ.
"""

import logging
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer, PretrainedConfig, PreTrainedModel

import hf_bidir
from hf_bidir.timm_vit import TIMM_PREFIX, read_timm, timm_outputs, vit_from_timm

logger = logging.getLogger(__name__)

FAMILIES = {"bert": "Bert", "vit": "ViT", "deit": "DeiT"}
ATTENTION_FIELDS = (
    *("attn_activation", "attn_negative_mass", "attn_learn_negative_mass"),
    *("attn_scope", "attn_window"),
)
TOLERANCE, TIMM_TOLERANCE = 1e-6, 1e-5
BEGUN = 4  # tokens that a decoder is given to go on from


def convert_checkpoint(
    source: str | Path | nn.Module,
    output_dir: str | Path,
    *,
    attn_activation: str = "tanhmax",
    negative_mass: float = 0.0,
    weights: str | Path | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a signed copy of a softmax checkpoint, with its tokenizer or image processor.

    Args:
        source: a folder, a name on the Hub, "timm:NAME", or an instantiated timm VisionTransformer.
        output_dir: a folder that is new or empty, unless `overwrite`.
        attn_activation: the activation of the copy.
        negative_mass: its `λ` in [0, 1]. At 0 its outputs on random input are compared with the source's before
            anything is written; above 0 the difference is logged.
        weights: for "timm:NAME", a file of weights (safetensors, or a torch file without pickled code).
        overwrite: replace what `output_dir` holds.

    Returns:
        `output_dir`, complete. A failure leaves it as it was.

    Raises:
        ValueError: the source is of another family or signed already, or the outputs are not equal at `λ = 0`.
        FileNotFoundError: there is no such source, or it is incomplete.
        FileExistsError: `output_dir` is in use.
    """
    output_dir = _free_folder(output_dir, overwrite)
    model, processors, difference = signed_model(
        source, attn_activation=attn_activation, negative_mass=negative_mass, weights=weights
    )
    logger.warning("Largest difference of an output on random input: %.1e", difference)
    return _write(output_dir, model, *processors)


def signed_model(
    source: str | Path | nn.Module,
    *,
    attn_activation: str = "tanhmax",
    negative_mass: float = 0.0,
    weights: str | Path | None = None,
    dtype: torch.dtype | str = "auto",
) -> tuple[PreTrainedModel, list, float]:
    """A softmax checkpoint as a signed model in memory; arguments and errors as in `convert_checkpoint`.

    Args:
        dtype: of the weights; "auto" keeps that of the checkpoint.

    Returns:
        The model, its tokenizer or image processor as far as there is one, and the largest difference of an output
        on random input.
    """
    read = _read_source(source, weights, dtype)
    inputs = random_inputs(read.model.config)
    before = read.outputs(inputs)
    config = _signed_config(read.model.config, attn_activation, negative_mass)
    model = _bidir_class_of(type(read.model).__name__).from_stock(read.model, config)
    difference = _largest_difference(before, _outputs(model, inputs))
    unchanged = attn_activation == "softmax" or (attn_activation == "tanhmax" and negative_mass == 0)
    if unchanged and not difference <= read.tolerance:
        raise ValueError(
            f"the converted model's outputs differ from the source's by {difference:.1e}; nothing written."
        )
    return model, read.processors, difference


def signed_encoder(model: PreTrainedModel) -> PreTrainedModel:
    """The encoder inside a bidir model with a head, as a bidir model of its own; they share their weights."""
    encoder = model.base_model
    return _bidir_class_of(type(encoder).__name__).from_stock(encoder, model.config)


def restore_softmax(source: str | Path, output_dir: str | Path, *, overwrite: bool = False) -> Path:
    """The way back: a bidir checkpoint that computes softmax (`λ = 0`, or that activation) as a stock checkpoint.

    Args and errors as in `convert_checkpoint`; ValueError where the checkpoint has negative mass, because no softmax
    model equals it.
    """
    output_dir = _free_folder(output_dir, overwrite)
    config = read_config(source)
    if not config.model_type.startswith("bidir_"):
        raise ValueError(f"{source} is a {config.model_type} checkpoint, not a bidir one; there is nothing to restore.")
    if not is_softmax(config):
        raise ValueError(
            f"{source} computes {config.attn_activation} with attn_negative_mass={config.attn_negative_mass}; only a "
            "checkpoint with attn_negative_mass=0, or with softmax, equals a stock one."
        )
    stock_class = getattr(transformers, config.architectures[0].removeprefix("Bidir"), None)
    if stock_class is None or config.attn_scope != "global":
        raise ValueError(
            f"{source} ({config.architectures[0]}, attn_scope={config.attn_scope}) has no counterpart in transformers."
        )
    bidir = read_bidir(source)
    fields = _fields(config)
    model = stock_class(stock_class.config_class(**fields)).eval()
    model.load_state_dict(bidir.state_dict())
    inputs = random_inputs(config)
    difference = _largest_difference(_outputs(bidir, inputs), _outputs(model, inputs))
    if not difference <= TOLERANCE:
        raise ValueError(f"the restored model's outputs differ from the source's by {difference:.1e}; nothing written.")
    return _write(output_dir, model, *checkpoint_processors(source))


def _free_folder(output_dir: str | Path, overwrite: bool) -> Path:
    output_dir = Path(output_dir)
    if output_dir.exists() and not output_dir.is_dir():
        raise FileExistsError(f"{output_dir} is a file; name a folder.")
    if output_dir.exists() and any(output_dir.iterdir()) and not overwrite:
        raise FileExistsError(
            f"{output_dir} is not empty; name another folder, or replace it with overwrite=True (--overwrite)."
        )
    return output_dir


@dataclass(frozen=True)
class _Source:
    """A stock model, its tokenizer or image processor, what it must be equal to, and how exactly."""

    model: PreTrainedModel
    processors: list
    outputs: Callable[[dict[str, Tensor]], list[Tensor]]
    tolerance: float


def _read_source(source, weights, dtype) -> _Source:
    if isinstance(source, nn.Module) or str(source).startswith(TIMM_PREFIX):
        timm_model = source if isinstance(source, nn.Module) else read_timm(str(source), weights)
        model, processor = vit_from_timm(timm_model)
        return _Source(model, [processor], partial(timm_outputs, timm_model), TIMM_TOLERANCE)
    if weights is not None:
        raise ValueError(f"weights={weights} goes with a timm model only; {source} has its own.")
    config = read_config(source)
    if config.model_type.startswith("bidir_"):
        raise ValueError(f"{source} is signed already ({config.model_type}); convert a softmax checkpoint.")
    if config.model_type not in FAMILIES:
        raise ValueError(
            f"{source} is a {config.model_type} checkpoint; supported are {', '.join(FAMILIES)} of transformers, and "
            'timm ViTs as "timm:NAME".'
        )
    name = (config.architectures or [f"{FAMILIES[config.model_type]}Model"])[0]
    _bidir_class_of(name)
    model = _complete(getattr(transformers, name), source, dtype)
    return _Source(model, checkpoint_processors(source), partial(_outputs, model), TOLERANCE)


def read_bidir(source: str | Path, dtype: torch.dtype | str = "auto") -> PreTrainedModel:
    """The bidir checkpoint, with the head that it was saved with, in evaluation mode.

    Raises:
        ValueError: a head that there is not, or weights that are missing or cannot be read.
    """
    name = (read_config(source).architectures or ["none"])[0]
    return _complete(_bidir_class_of(name.removeprefix("Bidir")), source, dtype)


def _complete(head: type[PreTrainedModel], source, dtype) -> PreTrainedModel:
    """The checkpoint as `head`; ValueError unless every weight of it is there and fits."""
    try:
        model, report = head.from_pretrained(source, dtype=dtype, output_loading_info=True)
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(
            f"the weights in {source} cannot be read ({error}); if the file is incomplete, copy or download it again."
        ) from error
    if report["missing_keys"]:
        raise ValueError(f"{source} is incomplete: it lacks the weights {sorted(report['missing_keys'])}.")
    return model.eval()


def read_config(source) -> PretrainedConfig:
    path = Path(source)
    if path.is_dir() and not (path / "config.json").is_file():
        raise FileNotFoundError(f"{source} has no config.json, so it is not a checkpoint folder.")
    if path.is_absolute() and not path.exists():
        raise FileNotFoundError(f"expected a checkpoint folder at {source}; there is none.")
    try:
        return AutoConfig.from_pretrained(source)
    except OSError as error:
        raise FileNotFoundError(f"{source} is neither a checkpoint folder nor a name the Hub knows: {error}") from error


def checkpoint_processors(source) -> list:
    """The tokenizer and the image processor beside a checkpoint, where it has them."""
    found = []
    for auto in (AutoTokenizer, AutoImageProcessor):
        try:
            found.append(auto.from_pretrained(source))
        except (OSError, ValueError, KeyError, TypeError):  # TypeError: transformers 4.57 without a vocabulary
            logger.info("%s has nothing for %s", source, auto.__name__)
    return found


def _bidir_class_of(stock_name: str) -> type[PreTrainedModel]:
    bidir_class = getattr(hf_bidir, f"Bidir{stock_name}", None)
    if bidir_class is None:
        heads = sorted(name for name in hf_bidir.__all__ if name.startswith("Bidir") and not name.endswith("Config"))
        raise ValueError(f"{stock_name} has no signed counterpart; there are {', '.join(heads)}.")
    return bidir_class


def _fields(config: PretrainedConfig) -> dict:
    """The fields of a config that are not about its class."""
    ours = {"model_type", "architectures", "auto_map", "transformers_version"}
    return {k: v for k, v in config.to_dict().items() if k not in ours | set(ATTENTION_FIELDS)}


def _signed_config(config: PretrainedConfig, attn_activation: str, negative_mass: float) -> PretrainedConfig:
    config_class = getattr(hf_bidir, f"Bidir{FAMILIES[config.model_type]}Config")
    return config_class(attn_activation=attn_activation, attn_negative_mass=negative_mass, **_fields(config))


def random_inputs(config: PretrainedConfig) -> dict[str, Tensor]:
    """Two random sentences, one padded, or two random images; for a decoder, two beginnings of what it writes."""
    generator = torch.Generator().manual_seed(0)
    if hasattr(config, "image_size"):
        size = config.image_size if isinstance(config.image_size, list | tuple) else (config.image_size,) * 2
        return {"pixel_values": torch.randn(2, config.num_channels, *size, generator=generator)}
    length = min(64, config.max_position_embeddings)
    keep = (torch.arange(length) < torch.tensor([[length], [length - length // 3]])).long()
    inputs = {
        "input_ids": torch.randint(config.vocab_size, (2, length), generator=generator),
        "attention_mask": keep,
    }
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.randint(config.vocab_size, (2, BEGUN), generator=generator)
    return inputs


@torch.inference_mode()
def _outputs(model: PreTrainedModel, inputs: dict[str, Tensor]) -> list[Tensor]:
    if "MultipleChoice" in type(model).__name__:
        inputs = {name: tensor.unsqueeze(0) for name, tensor in inputs.items()}
    return [value for value in model(**inputs).values() if isinstance(value, Tensor)]


def _largest_difference(first: list[Tensor], second: list[Tensor]) -> float:
    """Relative to the largest output where that is above 1: rounding grows with the numbers."""
    return max(((a - b).abs().max() / a.abs().max().clamp_min(1)).item() for a, b in zip(first, second, strict=True))


def is_softmax(config: PretrainedConfig) -> bool:
    """Whether a bidir model with this config computes softmax attention, in every head."""
    without_mass = not config.attn_learn_negative_mass and not any(_flat(config.attn_negative_mass))
    return config.attn_activation == "softmax" or (config.attn_activation == "tanhmax" and without_mass)


def _flat(mass) -> list[float]:
    return [mass] if not isinstance(mass, list | tuple) else [value for entry in mass for value in _flat(entry)]


def _write(output_dir: Path, *parts) -> Path:
    """Save model and processors beside the target, then rename."""
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output_dir.parent, prefix=f".{output_dir.name}-") as scratch:
        complete = Path(scratch, "complete")
        for part in parts:
            part.save_pretrained(complete)
        if output_dir.exists():
            output_dir.rename(Path(scratch, "replaced"))
        complete.rename(output_dir)
    return output_dir
