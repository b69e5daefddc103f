"""Random inputs that a model accepts, and the comparison of what two models compute of them."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import BatchFeature, PretrainedConfig, PreTrainedModel

from .kinds import device_of, kind_of, takes_one_row

LENGTH, DECODER_STEPS, SAMPLES, FRAMES = 64, 4, 6000, 48
IMAGE_TOKENS = ("image_token_id", "image_token_index", "image_patch_id", "media_placeholder_token_id")
AUDIO_BINS = (
    "num_mel_bins", "n_mels", "feature_size", "input_feat_size", "input_feat_per_channel",
    "feature_projection_input_dim", "input_dim",
)  # fmt: skip
TOLERANCE, TOLERATED_STEPS = 1e-5, 8  # relative difference of outputs; in half precision, in rounding steps
Inputs = dict[str, Tensor]


def example_inputs(model: PreTrainedModel) -> Inputs:
    """Two random examples, the second text padded on the right; for an encoder-decoder also decoder inputs.

    A model that inserts images or sounds into its text gets text alone.

    Raises:
        ValueError: the model needs an input that is not supported here.
    """
    config, generator = model.config, torch.Generator().manual_seed(0)
    accepted = inspect.signature(model.forward).parameters
    required = set()
    for name, parameter in accepted.items():
        if parameter.default is parameter.empty and parameter.kind == parameter.POSITIONAL_OR_KEYWORD:
            required.add(name)
    wanted = required | {model.main_input_name}
    if hasattr(config, "vision_config") and first_field(config, *IMAGE_TOKENS) is None:
        wanted |= {"input_ids", "pixel_values"}  # images beside a text
    passed = wanted & accepted.keys()
    inputs = {name: make(config, generator) for name, make in MAKERS.items() if name in passed}
    if "input_ids" in inputs and "attention_mask" in accepted:
        length = inputs["input_ids"].shape[1]
        lengths = torch.tensor([[length], [length - length // 3]])
        inputs["attention_mask"] = (torch.arange(length) < lengths).long()
    if config.is_encoder_decoder and "decoder_input_ids" in accepted:
        if kind_of(model).derives_decoder_input:
            inputs["input_ids"][:, 1] = config.eos_token_id
        else:
            inputs["decoder_input_ids"] = _ids(config, generator)[:, :DECODER_STEPS]
    if missing := sorted(required - inputs.keys()):
        raise ValueError(f"{type(model).__name__} needs {', '.join(missing)}, for which there is no example.")
    if kind_of(model).auto == "AutoModelForMultipleChoice":
        inputs = {name: tensor.unsqueeze(0) for name, tensor in inputs.items()}
    if takes_one_row(model):
        inputs = {name: tensor[:1] for name, tensor in inputs.items()}
    return placed(inputs, model)


def placed(inputs: Inputs, model: PreTrainedModel) -> Inputs:
    """The inputs on the device of the model, images and sounds in its precision."""
    batch = BatchFeature(inputs)
    return batch.to(device_of(model), model.dtype).data


def _ids(config: PretrainedConfig, generator: torch.Generator) -> Tensor:
    """Random token ids `[2, length]`, without special tokens."""
    text = config.get_text_config()
    positions = first_field(text, "max_position_embeddings", "n_positions") or 0
    length = min(LENGTH, positions - 2) if positions > 0 else LENGTH  # XLNet has -1: any length
    vocabulary = first_field(text, "vocab_size") or 32
    plain = sorted(set(range(3, vocabulary)) - set(special_tokens(config)))
    places = torch.randint(len(plain), (2, length), generator=generator)
    return torch.tensor(plain)[places]


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


MAKERS = {"input_ids": _ids, "pixel_values": _images, "input_features": _audio_features, "input_values": _sounds}


def first_field(config: PretrainedConfig, *names: str) -> Any:
    """The value of the first of these fields in a config, else in one of its parts; None if there is none."""
    for part in _parts(config):
        for name in names:
            value = getattr(part, name, None)
            if value is not None:
                return value
    return None


def _parts(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    """The config, and those of the parts of its model."""
    yield config
    for value in vars(config).values():
        if isinstance(value, PretrainedConfig):
            yield from _parts(value)


def special_tokens(config: PretrainedConfig) -> Iterator[int]:
    """The ids of special tokens that a config names."""
    for part in _parts(config):
        for name, value in vars(part).items():
            if "token" in name and name.endswith(("_id", "_index", "_ids")):
                yield from (value if isinstance(value, list | tuple) else [value])


def image_size(vision: PretrainedConfig) -> tuple[int, int]:
    """Height and width in pixels; 64 where the config has none."""
    size = first_field(vision, "image_size", "img_size", "input_size") or 64
    if isinstance(size, int):
        return size, size
    if isinstance(size, dict):
        return size["height"], size["width"]
    return size[-2], size[-1]


@torch.inference_mode()
def outputs_of(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """All floating-point tensors that the model returns."""
    return output_tensors(model(**inputs))


def output_tensors(outputs: Any) -> list[Tensor]:
    """The floating-point tensors of a model's outputs, in order, without those of a cache of keys and values."""
    if isinstance(outputs, Mapping):
        outputs = list(outputs.values())
    if isinstance(outputs, list | tuple):  # torch's pytree would enter a cache once an export has registered its class
        return [tensor for part in outputs for tensor in output_tensors(part)]
    is_output = isinstance(outputs, Tensor) and outputs.is_floating_point()
    return [outputs] if is_output else []


def largest_difference(first: list[Tensor], second: list[Tensor], inputs: Mapping[str, Tensor]) -> float:
    """The largest difference of an output, without padding; relative to the largest output if that is above 1."""
    keep, largest = inputs.get("attention_mask"), torch.zeros(())
    for expected, got in zip(first, second, strict=True):
        expected, got = expected.float(), got.float()
        if keep is not None and expected.shape[: keep.dim()] == keep.shape:
            expected, got = expected[keep.bool()], got[keep.bool()]
        magnitude = expected.abs().max().clamp_min(1)
        difference = (expected - got).abs().max() / magnitude
        largest = torch.maximum(largest, difference.cpu())  # propagates NaN, which Python's max would drop
    return largest.item()


def rounding_tolerance(dtype: torch.dtype) -> float:
    """The accepted relative difference of outputs that are equal up to rounding."""
    return max(TOLERANCE, TOLERATED_STEPS * torch.finfo(dtype).eps)
