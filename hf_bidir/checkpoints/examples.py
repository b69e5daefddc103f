"""Random inputs that a model accepts, and the comparison of what two models compute of them."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from hf_bidir.checkpoints.kinds import device_of, kind_of, takes_one_row

LENGTH, DECODER_STEPS, SAMPLES, FRAMES = 64, 4, 6000, 48
IMAGE_TOKENS = ("image_token_id", "image_token_index", "image_patch_id", "media_placeholder_token_id")
AUDIO_BINS = (
    "num_mel_bins", "n_mels", "feature_size", "input_feat_size", "input_feat_per_channel",
    "feature_projection_input_dim", "input_dim",
)  # fmt: skip
TOLERANCE, TOLERATED_STEPS = 1e-5, 8  # relative difference of outputs; in half precision, in rounding steps
Inputs = dict[str, Tensor]


def example_inputs(model: PreTrainedModel, seed: int = 0) -> Inputs:
    """Two random examples, the second text padded on the right; for an encoder-decoder also decoder inputs.

    A model that inserts images or sounds into its text gets text alone.

    Raises:
        ValueError: the model needs an input that is not supported here.
    """
    generator = torch.Generator().manual_seed(seed)
    accepted = inspect.signature(model.forward).parameters
    required = {
        name
        for name, parameter in accepted.items()
        if parameter.default is parameter.empty and parameter.kind == parameter.POSITIONAL_OR_KEYWORD
    }
    wanted = required | {model.main_input_name}
    beside_text = hasattr(model.config, "vision_config") and first_field(model.config, *IMAGE_TOKENS) is None
    inputs: Inputs = {}
    if "input_ids" in accepted and ("input_ids" in wanted or beside_text):
        inputs = _texts(model.config, generator)
        if "attention_mask" not in accepted:
            del inputs["attention_mask"]
    if "pixel_values" in wanted or ("pixel_values" in accepted and beside_text):
        inputs["pixel_values"] = _images(model.config, generator)
    if "input_features" in wanted:
        inputs["input_features"] = _audio_features(model.config, generator)
    elif "input_values" in wanted:
        inputs["input_values"] = _sounds(model.config, generator)
    if model.config.is_encoder_decoder and "decoder_input_ids" in accepted:
        if kind_of(model).derives_decoder_input:
            inputs["input_ids"][:, 1] = model.config.eos_token_id
        else:
            inputs["decoder_input_ids"] = _ids(model.config, DECODER_STEPS, generator)
    if missing := sorted(required - inputs.keys()):
        raise ValueError(f"{type(model).__name__} needs {', '.join(missing)}, for which there is no example.")
    if kind_of(model).auto == "AutoModelForMultipleChoice":
        inputs = {name: tensor.unsqueeze(0) for name, tensor in inputs.items()}
    if takes_one_row(model):
        inputs = {name: tensor[:1] for name, tensor in inputs.items()}
    return placed(inputs, model)


def placed(inputs: Inputs, model: PreTrainedModel) -> Inputs:
    """The inputs on the device of the model, images and sounds in its precision."""
    device = device_of(model)
    return {
        name: tensor.to(device, model.dtype if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in inputs.items()
    }


def _texts(config: PretrainedConfig, generator: torch.Generator) -> Inputs:
    longest = first_field(config.get_text_config(), "max_position_embeddings", "n_positions") or 0
    length = min(LENGTH, longest - 2) if longest > 0 else LENGTH  # XLNet has -1: any length
    lengths = torch.tensor([[length], [length - length // 3]])
    keep = (torch.arange(length) < lengths).long()
    return {"input_ids": _ids(config, length, generator), "attention_mask": keep}


def _ids(config: PretrainedConfig, length: int, generator: torch.Generator) -> Tensor:
    """Random token ids `[2, length]`, without special tokens."""
    special = set(special_tokens(config))
    vocabulary = first_field(config.get_text_config(), "vocab_size") or 32
    plain = torch.tensor([token for token in range(3, vocabulary) if token not in special])
    return plain[torch.randint(len(plain), (2, length), generator=generator)]


def _images(config: PretrainedConfig, generator: torch.Generator) -> Tensor:
    """Images `[2, channels, height, width]`, or videos `[2, frames, channels, height, width]`."""
    vision = getattr(config, "vision_config", None) or config
    channels = first_field(vision, "num_channels", "in_channels", "in_chans", "input_channels")
    shape = [channels if isinstance(channels, int) else 3, *image_size(vision)]
    if first_field(vision, "tubelet_size", "num_frames"):
        shape.insert(0, first_field(vision, "num_frames", "frames_per_clip"))
    return torch.randn(2, *shape, generator=generator)


def _audio_features(config: PretrainedConfig, generator: torch.Generator) -> Tensor:
    """`[2, bins, frames]` where the number of frames is fixed, else `[2, frames, bins]`."""
    bins = first_field(config, *AUDIO_BINS) or 80
    if longest := first_field(config, "max_source_positions"):
        return torch.randn(2, bins, 2 * longest, generator=generator)
    return torch.randn(2, FRAMES, bins, generator=generator)


def _sounds(config: PretrainedConfig, generator: torch.Generator) -> Tensor:
    """Samples `[2, samples]`, or a spectrogram `[2, frames, bins]`."""
    bins = first_field(config, *AUDIO_BINS)
    frames = first_field(config, "max_length") if bins else None
    shape = (frames, bins) if frames else (SAMPLES,)
    return torch.randn(2, *shape, generator=generator)


def first_field(config: PretrainedConfig, *names: str) -> Any:
    """The value of the first of these fields in a config, else in one of its parts; None if there is none."""
    for part in (config, *_parts(config)):
        for name in names:
            if getattr(part, name, None) is not None:
                return getattr(part, name)
    return None


def _parts(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    for value in vars(config).values():
        if isinstance(value, PretrainedConfig):
            yield value
            yield from _parts(value)


def special_tokens(config: PretrainedConfig) -> Iterator[int]:
    """The ids of special tokens that a config names."""
    for part in (config, *_parts(config)):
        for name, value in vars(part).items():
            if "token" in name and name.endswith(("_id", "_index", "_ids")):
                yield from (value if isinstance(value, list | tuple) else [value])


def image_size(vision: PretrainedConfig) -> tuple[int, int]:
    """Height and width in pixels; 64 where the config has none."""
    size = first_field(vision, "image_size", "img_size", "input_size")
    size = (size["height"], size["width"]) if isinstance(size, dict) else size
    return tuple(size)[-2:] if isinstance(size, list | tuple) else (size or 64,) * 2


@torch.inference_mode()
def outputs_of(model: PreTrainedModel, inputs: Inputs) -> list[Tensor]:
    """All floating-point tensors that the model returns, with a fixed seed for models that draw random numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return list(output_tensors(model(**inputs)))


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


def rounding_tolerance(dtype: torch.dtype) -> float:
    """The accepted relative difference of outputs that are equal up to rounding."""
    return max(TOLERANCE, TOLERATED_STEPS * torch.finfo(dtype).eps)
