"""Inputs for a tiny model of any type, with all that it reads; those of families.yaml by name."""

import inspect
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.checkpoints.examples import IMAGE_TOKENS, MAKERS, first_field, placed
from hf_bidir.checkpoints.kinds import kind_of, takes_one_row

Inputs = dict[str, Any]
Reshape = dict[str, Callable[[Tensor], Tensor]]
DECODER_STEPS, SIDE, GRID = 4, 4, (1, 4, 4)
SERIES = 12  # steps of a time series
AUDIO_TOKENS = ("audio_token_id", "audio_token_index")
MODALITIES = {"input_ids", "pixel_values", "pixel_values_videos", "input_features", "input_values"}
EXCEPTIONS = yaml.safe_load(Path(__file__).with_name("families.yaml").read_text(encoding="utf-8"))
KINDS: dict[str, Callable[[list[int]], Tensor]] = {  # of inputs in families.yaml, beside "ids" and "normal"
    "zeros": lambda shape: torch.zeros(shape, dtype=torch.long),
    "zeros.0": torch.zeros,
    "ones": lambda shape: torch.ones(shape, dtype=torch.long),
    "true": lambda shape: torch.ones(shape, dtype=torch.bool),
    "false": lambda shape: torch.zeros(shape, dtype=torch.bool),
    "steps": lambda shape: torch.arange(shape[-1]).expand(shape),
    "places": lambda shape: places(shape[1]).expand(shape[0], -1, -1).contiguous(),
}


def places(side: int) -> Tensor:
    """The coordinates of the cells of a square, `[side * side, 2]`."""
    return torch.cartesian_prod(torch.arange(side), torch.arange(side)).flip(-1)


class Examples:
    """Builds the inputs of one model from its config and the parameters of its forward method.

    `reshape` changes images or sounds by name; with `everything`, all modalities that the model accepts are given.
    """

    def __init__(self, model: PreTrainedModel, reshape: Reshape | None = None, everything: bool = False):
        self.model, self.config, self.reshape = model, model.config, reshape or {}
        self.accepted = inspect.signature(model.forward).parameters
        self.required = {
            n for n, p in self.accepted.items() if p.default is p.empty and p.kind == p.POSITIONAL_OR_KEYWORD
        }
        self.wanted = self.required | (MODALITIES & set(self.accepted) if everything else set())
        self.generator = torch.Generator().manual_seed(0)

    def inputs(self) -> Inputs:
        main = self.model.main_input_name
        wanted = self.wanted | ({main} & set(self.accepted) if isinstance(main, str) else set())
        made = self.images(wanted) | self.audio(wanted)
        made = {name: self.reshape[name](x) if name in self.reshape else x for name, x in made.items()}
        inputs = self.with_companions(made)
        if "input_ids" in wanted or ("input_ids" in self.accepted and inputs):
            inputs = self.with_companions(inputs | self.text(inputs))
        if self.config.is_encoder_decoder and "decoder_input_ids" in self.accepted:
            if kind_of(self.model).derives_decoder_input:
                inputs["input_ids"][:, 1] = self.config.eos_token_id
            else:
                inputs["decoder_input_ids"] = self.ids(2, DECODER_STEPS)
        if missing := sorted(self.required - set(inputs)):
            raise ValueError(f"{type(self.model).__name__} needs {', '.join(missing)}, for which there is no example.")
        if kind_of(self.model).auto == "AutoModelForMultipleChoice":
            inputs = {name: tensor.unsqueeze(0) for name, tensor in inputs.items()}
        if takes_one_row(self.model):
            inputs = {name: tensor[:1] for name, tensor in inputs.items()}
        return placed(inputs, self.model)

    def with_companions(self, inputs: Inputs) -> Inputs:
        """The inputs, with those of `COMPANIONS` and families.yaml that go with them."""
        for name in self.accepted:
            recipe = EXCEPTIONS["accepted"].get(name) or (name in self.required and EXCEPTIONS["required"].get(name))
            if name in inputs:
                continue
            if recipe:
                inputs = inputs | {name: self.made(recipe)}
            elif name in COMPANIONS and (value := COMPANIONS[name](self, inputs)) is not None:
                inputs = inputs | {name: value}
        return inputs

    def made(self, recipe: Any) -> Tensor:
        """An input of families.yaml, which describes the form."""
        if not isinstance(recipe, str):
            return torch.tensor(recipe)
        kind, *sizes = recipe.split()
        shape = [math.prod(map(self.size, size.split("*"))) for size in sizes]
        if kind == "ids":
            return self.ids(*shape)
        return self.normal(*shape) if kind == "normal" else KINDS[kind](shape)

    def size(self, name: str) -> int:
        return int(name) if name.isdigit() else first_field(self.config, *name.split("|"))

    def text(self, features: Inputs) -> Inputs:
        """Text, with placeholders for image and audio features if the model inserts them into the text."""
        ids = MAKERS["input_ids"](self.config, self.generator)
        longest = ids.shape[1]
        for names, method in ((IMAGE_TOKENS, "get_image_features"), (AUDIO_TOKENS, "get_audio_features")):
            token = first_field(self.config, *names)
            if token is not None and features and hasattr(self.model, method):
                placeholders = torch.full((2, self.count(method, features)), token)
                ids = torch.cat([ids[:, :2], placeholders, ids[:, 2:]], 1)
        length = ids.shape[1]
        lengths = torch.tensor([[length], [length - longest // 3]])
        keep = {"attention_mask": (torch.arange(length) < lengths).long()}
        return {"input_ids": ids} | (keep if "attention_mask" in self.accepted else {})

    def ids(self, *shape: int) -> Tensor:
        """Random token ids, without special tokens."""
        tokens, count = MAKERS["input_ids"](self.config, self.generator).flatten(), math.prod(shape)
        return tokens.repeat(count // len(tokens) + 1)[:count].view(shape)

    def count(self, method: str, features: Inputs) -> int:
        """The number of features per image or audio example; 0 without any."""
        function = getattr(self.model, method)
        known = {name: features[name] for name in inspect.signature(function).parameters if name in features}
        if not known:
            return 0
        with torch.no_grad():
            made = function(**placed(known, self.model))
        made = getattr(made, "pooler_output", made)
        tensors = made if isinstance(made, list | tuple) else [made]
        return sum(tensor.numel() // tensor.shape[-1] for tensor in tensors) // 2

    def images(self, wanted: set[str]) -> Inputs:
        """Images or videos: `[2, channels, height, width]`, or a sequence of patches with the shapes of their grids."""
        grid = next((n for n in ("image_grid_thw", "grid_thw") if n in self.accepted), None)
        names = {"pixel_values", "pixel_values_videos", *(["hidden_states"] if grid else [])} & set(self.accepted)
        vision = getattr(self.config, "vision_config", None)
        if not names & wanted and (vision is None or "pixel_values" not in names):
            return {}
        name, vision = min(names & wanted or {"pixel_values"}), vision or self.config
        if grid:
            patch = first_field(vision, "patch_size", "spatial_patch_size")
            values = (first_field(vision, "temporal_patch_size") or 1) * patch**2
            channels = first_field(vision, "num_channels", "in_channels", "in_chans", "input_channels")
            values *= channels if isinstance(channels, int) else 3
            return {name: self.normal(2 * math.prod(GRID), values), grid: torch.tensor([GRID] * 2)}
        image = MAKERS["pixel_values"](self.config, self.generator)
        one_frame = name.endswith("videos") and image.dim() == 4
        return {name: image.unsqueeze(1).repeat(1, SIDE, 1, 1, 1) if one_frame else image}

    def audio(self, wanted: set[str]) -> Inputs:
        """Audio as samples `[2, samples]`, or as features `[2, bins, frames]` or `[2, frames, bins]`."""
        audio = getattr(self.config, "audio_config", None)
        if "input_features" in wanted or ("input_features" in self.accepted and audio is not None):
            return {"input_features": MAKERS["input_features"](audio or self.config, self.generator)}
        return {"input_values": MAKERS["input_values"](self.config, self.generator)} if "input_values" in wanted else {}

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)


def _token_types(examples: Examples, inputs: Inputs) -> Tensor | None:
    """1 for placeholders of images in the text, else 0."""
    token = first_field(examples.config, *IMAGE_TOKENS)
    return (inputs["input_ids"] == token).long() if "input_ids" in inputs and token is not None else None


def _sizes(examples: Examples, inputs: Inputs) -> Tensor | None:
    return torch.tensor([inputs["pixel_values"].shape[-2:]] * 2) if "pixel_values" in inputs else None


def _feature_mask(examples: Examples, inputs: Inputs) -> Tensor | None:
    if "input_features" not in inputs:
        return None
    return torch.ones(2, max(inputs["input_features"].shape[1:]), dtype=torch.long)


def _boxes(examples: Examples, inputs: Inputs) -> Tensor | None:
    if "input_ids" not in inputs:
        return None
    corners = torch.randint(0, 100, (*inputs["input_ids"].shape, 2), generator=examples.generator)
    boxes = torch.cat([corners, corners + 100], -1)
    return boxes / 1000 if examples.config.model_type == "udop" else boxes


def _flattened_patches(examples: Examples, inputs: Inputs) -> Tensor:
    width = first_field(examples.config, "patch_embed_hidden_size")
    return torch.cat([(places(SIDE) + 1).float().expand(2, -1, -1), examples.normal(2, SIDE**2, width)], -1)


def _series(examples: Examples, inputs: Inputs, *fields: str) -> Tensor | None:
    """A series of the length that lags need, with as many numbers in each step as a field of the config says."""
    config = examples.config
    if not hasattr(config, "lags_sequence"):
        return None
    length = (first_field(config, "context_length") or SERIES) + max(config.lags_sequence or [0])
    return examples.normal(2, length, *(getattr(config, field) for field in fields))


def _past_values(examples: Examples, inputs: Inputs) -> Tensor | None:
    """A series of the length that lags need, or of several channels, or a long one."""
    if "past_values" not in examples.required:
        return None
    channels = getattr(examples.config, "num_input_channels", None)
    shape = (examples.config.context_length, channels) if channels else (64,)
    lagged = _series(examples, inputs)
    return examples.normal(2, *shape) if lagged is None else lagged


def _observed(examples: Examples, inputs: Inputs) -> Tensor | None:
    return torch.ones_like(inputs["past_values"]) if "past_values" in inputs else None


# functions that make an additional input from the inputs so far, or None if it does not apply
COMPANIONS: dict[str, Callable[[Examples, Inputs], Any]] = {
    "mm_token_type_ids": _token_types,
    "image_sizes": _sizes,
    "input_features_mask": _feature_mask,
    "feature_attention_mask": _feature_mask,
    "bbox": _boxes,
    "flattened_patches": _flattened_patches,
    "past_values": _past_values,
    "past_time_features": lambda examples, inputs: _series(examples, inputs, "num_time_features"),
    "past_observed_mask": _observed,
}


def _atoms(examples: Examples) -> Inputs:
    """Three atoms for each residue of two proteins."""
    from transformers.models.esmfold2.modeling_esmfold2 import EsmFold2AtomInputs  # not in transformers 5.0

    atoms = torch.arange(3 * SERIES).expand(2, -1)
    return {
        "atom_inputs": EsmFold2AtomInputs(
            ref_pos=examples.normal(2, 3 * SERIES, 3),
            ref_charge=torch.zeros(2, 3 * SERIES),
            atom_attention_mask=torch.ones_like(atoms, dtype=torch.bool),
            ref_element=atoms % 8,
            ref_atom_name_chars=torch.stack([atoms % 30] * examples.config.max_chars, -1),
            ref_space_uid=atoms // 3,
            atom_to_token=atoms // 3,
        )
    }


def _with_images(examples: Examples) -> Inputs:
    """Text with placeholders for an image."""
    ids = examples.ids(2, 2 * SERIES)
    ids[:, 2 : 2 + examples.config.mm_tokens_per_image] = examples.config.image_token_index
    return {"input_ids": ids}


MORE = {"esmfold2": _atoms, "shieldgemma2": _with_images}  # beside the inputs of families.yaml, by model type
GENERATES = ("MusicgenForConditionalGeneration", "SpeechT5ForSpeechToText")


def patches_of(x: Tensor, patch: int = 14) -> Tensor:
    """Rows of values of a patch as patches `[rows, channels, patch, patch]`."""
    return x.view(x.shape[0], -1, patch, patch)


# tried in this order until the model runs; then only text, then these with all modalities that the model accepts
RESHAPES: list[Reshape] = [
    {},
    {"pixel_values": lambda x: x.unsqueeze(1)},
    {"pixel_values": lambda x: torch.stack([x, x.flip(0)], 1)},
    {"pixel_values": lambda x: x.unsqueeze(1).unsqueeze(1)},
    {"pixel_values": patches_of},
    {"pixel_values": lambda x: patches_of(x).unsqueeze(0)},
    {"pixel_values": lambda x: x.repeat(1, 2)},
    {"pixel_values": lambda x: x.flatten(0, 1)},
    {"input_features": lambda x: x.transpose(1, 2)},
    {"input_features": lambda x: x.unsqueeze(1)},
    {"input_features": lambda x: x.repeat(1, 3, 1)[:, :100]},
    {"input_features": lambda x: x.repeat(1, 3, 1)[:, :100].transpose(1, 2)},
    {"input_values": lambda x: x.unsqueeze(1)},
    {"input_values": lambda x: x[:, :5760]},
]


def example(model: PreTrainedModel) -> Inputs:
    """The first candidate that the model runs on; raises the error of the first if it runs on none."""
    name = model.config.model_type
    if (recipes := EXCEPTIONS["types"].get(name)) and type(model).__name__ not in GENERATES:
        examples = Examples(model)
        made = placed({key: examples.made(recipe) for key, recipe in recipes.items()}, model)
        return _run_on(model, made | (MORE[name](examples) if name in MORE else {}))
    problem = None
    for inputs in _candidates(model):
        try:
            return _run_on(model, inputs())
        except Exception as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _candidates(model: PreTrainedModel) -> Iterator[Callable[[], Inputs]]:
    """Functions that make inputs, in the order in which they are tried."""
    plain = Examples(model)
    reshapes = [reshape for reshape in RESHAPES if not reshape or set(reshape) & set(plain.accepted)]
    yield from (Examples(model, reshape).inputs for reshape in reshapes)
    if "input_ids" in plain.accepted:
        yield lambda: placed(plain.text({}), model)
    if len(MODALITIES & set(plain.accepted)) > 1:
        yield from (Examples(model, reshape, everything=True).inputs for reshape in reshapes)


def _run_on(model: PreTrainedModel, inputs: Inputs) -> Inputs:
    torch.manual_seed(0)
    with torch.no_grad():
        model(**inputs)
    return inputs
