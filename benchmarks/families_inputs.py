"""Inputs for a tiny model of any type, with all that it reads, and rare inputs by name."""

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.checkpoints.examples import AUDIO_BINS, IMAGE_TOKENS, first_field, image_size, placed, special_tokens
from hf_bidir.checkpoints.kinds import kind_of, takes_one_row

Inputs = dict[str, Any]
Reshape = dict[str, Callable[[Tensor], Tensor]]
SIDE, SERIES = 4, 12  # patches per side of an image; steps of a time series
LENGTH, DECODER_STEPS, SAMPLES, FRAMES, GRID = 64, 4, 6000, 48, (1, 4, 4)
AUDIO_TOKENS = ("audio_token_id", "audio_token_index")


class Examples:
    """Builds the inputs of one model from its config and the parameters of its forward method."""

    def __init__(self, model: PreTrainedModel, seed: int, companions: "dict[str, Companion] | None" = None):
        self.model, self.config = model, model.config
        self.companions = COMPANIONS if companions is None else companions
        self.accepted = inspect.signature(model.forward).parameters
        self.required = {
            n for n, p in self.accepted.items() if p.default is p.empty and p.kind == p.POSITIONAL_OR_KEYWORD
        }
        self.generator = torch.Generator().manual_seed(seed)

    def inputs(self) -> Inputs:
        main = self.model.main_input_name
        wanted = self.required | ({main} & set(self.accepted) if isinstance(main, str) else set())
        inputs = self.with_companions(self.images(wanted) | self.audio(wanted))
        if "input_ids" in wanted or ("input_ids" in self.accepted and inputs):
            inputs = self.with_companions(inputs | self.text(inputs))
        if self.config.is_encoder_decoder and "decoder_input_ids" in self.accepted:
            inputs |= self.decoder_inputs(inputs)
        if missing := sorted(self.required - set(inputs)):
            raise ValueError(f"{type(self.model).__name__} needs {', '.join(missing)}, for which there is no example.")
        if kind_of(self.model).auto == "AutoModelForMultipleChoice":
            inputs = {name: tensor.unsqueeze(0) for name, tensor in inputs.items()}
        if takes_one_row(self.model):
            inputs = {name: tensor[:1] for name, tensor in inputs.items()}
        return self.placed(inputs)

    def decoder_inputs(self, inputs: Inputs) -> Inputs:
        """The decoder inputs, unless the model derives them."""
        if not kind_of(self.model).derives_decoder_input:
            return {"decoder_input_ids": self.ids(DECODER_STEPS)}
        inputs["input_ids"][:, 1] = self.config.eos_token_id
        return {}

    def placed(self, inputs: Inputs) -> Inputs:
        return placed(inputs, self.model)

    def with_companions(self, inputs: Inputs) -> Inputs:
        """The inputs, with those of `COMPANIONS` that go with them."""
        for name in [name for name in self.companions if name in self.accepted and name not in inputs]:
            value = self.companions[name](self, inputs)
            inputs = inputs if value is None else inputs | {name: value}
        return inputs

    def text(self, features: Inputs) -> Inputs:
        """Text, with placeholders for image and audio features if the model inserts them into the text."""
        text = self.config.get_text_config()
        longest = first_field(text, "max_position_embeddings", "n_positions") or 0
        length = min(LENGTH, longest - 2) if longest > 0 else LENGTH  # XLNet has -1: any length
        ids = self.ids(length)
        for names, method in ((IMAGE_TOKENS, "get_image_features"), (AUDIO_TOKENS, "get_audio_features")):
            token = first_field(self.config, *names)
            if token is not None and features and hasattr(self.model, method):
                placeholders = torch.full((2, self.count(method, features)), token)
                ids = torch.cat([ids[:, :2], placeholders, ids[:, 2:]], 1)
        length = ids.shape[1]
        padding = min(length, LENGTH) // 3
        keep = (torch.arange(length) < torch.tensor([[length], [length - padding]])).long()
        return {"input_ids": ids} | ({"attention_mask": keep} if "attention_mask" in self.accepted else {})

    def ids(self, length: int) -> Tensor:
        """Random token ids `[2, length]`, without special tokens."""
        special = set(special_tokens(self.config))
        vocabulary = first_field(self.config.get_text_config(), "vocab_size") or 32
        plain = torch.tensor([token for token in range(3, vocabulary) if token not in special])
        return plain[torch.randint(len(plain), (2, length), generator=self.generator)]

    def count(self, method: str, features: Inputs) -> int:
        """The number of features per image or audio example; 0 without any."""
        function = getattr(self.model, method)
        known = {name: features[name] for name in inspect.signature(function).parameters if name in features}
        if not known:
            return 0
        with torch.no_grad():
            made = function(**self.placed(known))
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
        channels = first_field(vision, "num_channels", "in_channels", "in_chans", "input_channels")
        channels = channels if isinstance(channels, int) else 3
        if grid:
            patch, time = (
                first_field(vision, "patch_size", "spatial_patch_size"),
                first_field(vision, "temporal_patch_size"),
            )
            patches = self.randn(2 * math.prod(GRID), channels * (time or 1) * patch**2)
            return {name: patches, grid: torch.tensor([GRID, GRID])}
        frames = first_field(vision, "num_frames", "frames_per_clip") or 4
        moving = name.endswith("videos") or first_field(vision, "tubelet_size", "num_frames")
        return {name: self.randn(2, *[frames] * bool(moving), channels, *image_size(vision))}

    def audio(self, wanted: set[str]) -> Inputs:
        """Audio as samples `[2, samples]`, or as features `[2, bins, frames]` or `[2, frames, bins]`."""
        audio = getattr(self.config, "audio_config", None)
        bins = first_field(audio or self.config, *AUDIO_BINS)
        if "input_features" in wanted or ("input_features" in self.accepted and audio is not None):
            if longest := first_field(audio or self.config, "max_source_positions"):
                return {"input_features": self.randn(2, bins, 2 * longest)}
            return {"input_features": self.randn(2, FRAMES, bins or 80)}
        if "input_values" not in wanted:
            return {}
        frames = first_field(self.config, "max_length") if bins else None
        return {"input_values": self.randn(2, frames, bins) if frames else self.randn(2, SAMPLES)}

    def randn(self, *shape: int) -> Tensor:
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


# functions that make an additional input from the inputs so far, or None if it does not apply
Companion = Callable[[Examples, Inputs], Tensor | None]
COMPANIONS: dict[str, Companion] = {
    "mm_token_type_ids": _token_types,
    "image_sizes": _sizes,
    "input_features_mask": _feature_mask,
    "feature_attention_mask": _feature_mask,
}


class Reshaped(Examples):
    """Examples whose images or sounds have another shape; with `everything`, of all modalities that are accepted."""

    def __init__(self, model: PreTrainedModel, reshape: Reshape, everything: bool = False):
        super().__init__(model, 0, COMPANIONS | OWN)
        self.reshape = reshape
        if everything:
            self.required |= MODALITIES & set(self.accepted)

    def images(self, wanted: set[str]) -> Inputs:
        return self._reshaped(super().images(wanted))

    def audio(self, wanted: set[str]) -> Inputs:
        return self._reshaped(super().audio(wanted))

    def _reshaped(self, made: Inputs) -> Inputs:
        return {name: self.reshape[name](x) if name in self.reshape else x for name, x in made.items()}


def patches_of(x: Tensor, patch: int = 14) -> Tensor:
    """Rows of values of a patch as patches `[rows, channels, patch, patch]`."""
    return x.view(x.shape[0], -1, patch, patch)


def flat_patches(model: PreTrainedModel) -> Tensor:
    width = first_field(model.config, "patch_embed_hidden_size") or 3 * first_field(model.config, "patch_size") ** 2
    return torch.randn(2, SIDE**2, width)


MODALITIES = {"input_ids", "pixel_values", "pixel_values_videos", "input_features", "input_values"}
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
    if (special := BY_TYPE.get(model.config.model_type)) and type(model).__name__ not in GENERATES:
        examples = Examples(model, seed=0)
        made = special(examples)
        return _run_on(model, made | examples.placed({k: v for k, v in made.items() if isinstance(v, Tensor)}))
    problem = None
    for examples in _candidates(model):
        try:
            return _run_on(model, examples())
        except Exception as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _candidates(model: PreTrainedModel) -> Iterator[Callable[[], Inputs]]:
    """Functions that make inputs, in the order in which they are tried."""
    plain = Reshaped(model, {})
    reshapes = [reshape for reshape in RESHAPES if not reshape or set(reshape) & set(plain.accepted)]
    yield from (Reshaped(model, reshape).inputs for reshape in reshapes)
    if "input_ids" in plain.accepted:
        yield lambda: plain.placed(plain.text({}))
    if len(MODALITIES & set(plain.accepted)) > 1:
        yield from (Reshaped(model, reshape, everything=True).inputs for reshape in reshapes)


def _run_on(model: PreTrainedModel, inputs: Inputs) -> Inputs:
    torch.manual_seed(0)
    with torch.no_grad():
        model(**inputs)
    return inputs


def _width(examples: Examples) -> int:
    return first_field(examples.config, "hidden_size", "d_model")


def _boxes(examples: Examples, inputs: Inputs) -> Tensor | None:
    if "input_ids" not in inputs:
        return None
    corners = torch.randint(0, 100, (*inputs["input_ids"].shape, 2), generator=examples.generator)
    boxes = torch.cat([corners, corners + 100], -1)
    return boxes / 1000 if examples.config.model_type == "udop" else boxes


def _flattened_patches(examples: Examples, inputs: Inputs) -> Tensor:
    places = torch.cartesian_prod(torch.arange(1, SIDE + 1), torch.arange(1, SIDE + 1)).float()
    return torch.cat([places.expand(2, -1, -1), flat_patches(examples.model)], -1)


def _series(examples: Examples, *more: int) -> Tensor:
    config = examples.config
    lags = max(getattr(config, "lags_sequence", None) or [0])
    return examples.randn(2, (first_field(config, "context_length") or SERIES) + lags, *more)


def _past_values(examples: Examples) -> Tensor:
    """A long series, or one of several channels, or the length that lags need."""
    config = examples.config
    if hasattr(config, "lags_sequence"):
        return _series(examples)
    channels = getattr(config, "num_input_channels", None)
    return examples.randn(2, config.context_length, channels) if channels else examples.randn(2, 64)


# companions of models that only the sweep builds
OWN: dict[str, Callable[[Examples, Inputs], Any]] = {
    "bbox": _boxes,
    "flattened_patches": _flattened_patches,
    "qformer_input_ids": lambda examples, inputs: examples.ids(8),
    "task_inputs": lambda examples, inputs: examples.ids(77),
    "spatial_shapes": lambda examples, inputs: torch.full((2, 2), SIDE),
    "target_sizes": lambda examples, inputs: torch.full((2, 2), SIDE),
    "merge_sizes": lambda examples, inputs: torch.ones(2, dtype=torch.long),
    "image_merge_sizes": lambda examples, inputs: torch.ones(2, dtype=torch.long),
    "states": lambda e, _: e.randn(2, SERIES, e.config.state_dim),
    "actions": lambda e, _: e.randn(2, SERIES, e.config.act_dim),
    "rewards": lambda e, _: e.randn(2, SERIES, 1),
    "returns_to_go": lambda e, _: e.randn(2, SERIES, 1),
    "timesteps": lambda e, _: torch.arange(SERIES).expand(2, -1),
    "visual_feats": lambda e, _: e.randn(2, SERIES, e.config.visual_feat_dim),
    "visual_pos": lambda e, _: e.randn(2, SERIES, e.config.visual_pos_dim),
}
IF_REQUIRED: dict[str, Callable[[Examples], Any]] = {
    "query_embeds": lambda e: e.randn(2, SIDE, _width(e)),
    "patch_embeds": lambda e: e.randn(2, _width(e), SIDE, SIDE),
    "latents": lambda e: e.randn(2, _width(e), SERIES),
    "past_time_features": lambda e: _series(e, e.config.num_time_features),
    "past_observed_mask": lambda e: torch.ones_like(_series(e)),
    "aspect_ratio_ids": lambda e: torch.ones(2, 1, dtype=torch.long),
    "aspect_ratio_mask": lambda e: torch.ones(2, 1, 4, dtype=torch.long),
    "past_values_padding": lambda e: torch.zeros(2, 64),
    "freq": lambda e: torch.zeros(2, 1, dtype=torch.long),
    "inputs": lambda e: e.randn(2, SERIES, _width(e)),
    "hidden_states": lambda e: e.randn(2, SERIES, first_field(e.config, "input_dim", "hidden_size")),
    "audio_mel": lambda e: e.randn(2, FRAMES, e.config.input_feat_size),
    "audio_mel_mask": lambda e: torch.zeros(2, FRAMES, dtype=torch.bool),
    "past_values": _past_values,
}
OWN |= {
    name: lambda examples, _, name=name, make=make: make(examples) if name in examples.required else None
    for name, make in IF_REQUIRED.items()
}


def _codes(examples: Examples) -> Inputs:
    """One row of tokens for each codebook of each example."""
    rows = [examples.ids(SERIES) for _ in range(examples.config.num_codebooks)]
    return {"input_ids": torch.cat(rows), "attention_mask": torch.ones(2, SERIES, dtype=torch.long)}


def _one_row_of_patches(examples: Examples) -> Inputs:
    """Concatenated patches of two images."""
    patch = examples.config.patch_size
    sizes = torch.full((2, 2), SIDE, dtype=torch.int32)
    return {"pixel_values": examples.randn(1, 3, patch, 2 * SIDE**2 * patch), "target_sizes": sizes}


def _placed_patches(examples: Examples) -> Inputs:
    side = 2 * examples.config.pooling_kernel_size
    places = torch.cartesian_prod(torch.arange(side), torch.arange(side)).flip(-1)
    patches = examples.randn(2, side**2, 3 * examples.config.patch_size**2)
    return {"pixel_values": patches, "pixel_position_ids": places.expand(2, -1, -1).contiguous()}


def _tiles(examples: Examples) -> Inputs:
    size = examples.config.image_size
    ids, mask = torch.ones(2, 1, dtype=torch.long), torch.ones(2, 1, 4, dtype=torch.long)
    return {"pixel_values": examples.randn(2, 1, 4, 3, size, size), "aspect_ratio_ids": ids, "aspect_ratio_mask": mask}


def _decision(examples: Examples) -> Inputs:
    choices = torch.full((1, 2), 2)
    return {
        "input_ids": examples.ids(SERIES)[:1],
        "marks": torch.tensor([[4, SERIES]]),
        "num_options": choices,
        "question_type_ids": torch.zeros(1, 2, dtype=torch.long),
    }


def _flat_images(examples: Examples) -> Inputs:
    mask = torch.ones(2, SIDE**2, dtype=torch.long)
    shapes = torch.full((2, 2), SIDE)
    return {"pixel_values": flat_patches(examples.model), "pixel_attention_mask": mask, "spatial_shapes": shapes}


def _images_in_text(examples: Examples) -> Inputs:
    ids, size = examples.ids(2 * SERIES), first_field(examples.config, "image_size")
    ids[:, 2 : 2 + examples.config.mm_tokens_per_image] = examples.config.image_token_index
    images = examples.randn(2, 3, size, size)
    return {"input_ids": ids, "pixel_values": images, "attention_mask": torch.ones_like(ids)}


def _classes(examples: Examples) -> Inputs:
    """Two images, of which each has a task and three classes."""
    classes, tasks = torch.cat([examples.ids(SERIES) for _ in range(3)]), examples.ids(SERIES)
    return {
        "pixel_values": examples.randn(2, 3, 64, 64),
        "classes_input_ids": classes,
        "classes_attention_mask": torch.ones_like(classes),
        "tasks_input_ids": tasks,
        "tasks_attention_mask": torch.ones_like(tasks),
        "classes_structure": torch.tensor([3, 3]),
    }


def _codes_to_mel(examples: Examples) -> Inputs:
    config = examples.config
    steps = SERIES * config.repeats
    return {
        "hidden_states": examples.randn(2, steps, config.mel_dim),
        "condition_vector": examples.randn(2, steps, config.mel_dim),
        "speaker_embedding": examples.randn(2, steps, config.enc_emb_dim),
        "quantized_code": torch.randint(1, 99, (2, SERIES), generator=examples.generator),
        "time_step": torch.tensor(0.5),
    }


def _protein(examples: Examples) -> Inputs:
    """Two proteins of one chain, with three atoms per residue."""
    from transformers.models.esmfold2.modeling_esmfold2 import EsmFold2AtomInputs  # not in transformers 5.0

    config, length = examples.config, SERIES
    places, none = torch.arange(length).expand(2, -1), torch.zeros(2, length, dtype=torch.long)
    atoms = torch.arange(3 * length).expand(2, -1)
    one_chain = dict.fromkeys(("asym_id", "sym_id", "entity_id", "mol_type"), none)
    return one_chain | {
        "token_index": places,
        "residue_index": places,
        "res_type": examples.ids(length) % config.num_res_types,
        "token_bonds": torch.zeros(2, length, length, 1),
        "attention_mask": torch.ones(2, length, dtype=torch.bool),
        "input_ids": examples.ids(length) % 20 + 4,
        "msa": torch.stack([examples.ids(length) % config.num_res_types] * 2, 1),
        "atom_inputs": EsmFold2AtomInputs(
            ref_pos=examples.randn(2, 3 * length, 3),
            ref_charge=torch.zeros(2, 3 * length),
            atom_attention_mask=torch.ones_like(atoms, dtype=torch.bool),
            ref_element=atoms % 8,
            ref_atom_name_chars=torch.stack([atoms % 30] * config.max_chars, -1),
            ref_space_uid=atoms // 3,
            atom_to_token=atoms // 3,
        ),
    }


# models with inputs of special shapes
BY_TYPE: dict[str, Callable[[Examples], Inputs]] = {
    "blt": lambda e: {"input_ids": e.ids(SERIES)},
    "depth_pro": lambda e: {"pixel_values": e.randn(2, 3, 280, 280)},
    "esmfold2": _protein,
    "florence_vision": lambda e: {"hidden_states": e.randn(2, 3, 64, 64)},
    "gemma4_vision": _placed_patches,
    "gemma4_audio": lambda e: {
        "input_features": e.randn(2, FRAMES, 128),
        "attention_mask": torch.ones(2, FRAMES, dtype=torch.bool),
    },
    "inkling2_vision": lambda e: {
        "pixel_values": e.randn(2 * SIDE**2, 40, 40, 3),
        "image_grid_thw": torch.tensor([[1, SIDE, SIDE]] * 2),
    },
    "jev": _decision,
    "kyutai_speech_to_text": lambda e: {"input_ids": torch.stack([e.ids(SERIES)] * (e.config.num_codebooks + 1), -1)},
    "minicpm_ocr_vision": _one_row_of_patches,
    "minicpmv4_7_vision": _one_row_of_patches,
    "mllama_vision_model": _tiles,
    "molmo2_vision": lambda e: {"pixel_values": e.randn(2, SIDE**2, 3 * e.config.patch_size**2)},
    "musicgen_decoder": _codes,
    "musicgen_melody_decoder": _codes,
    "qwen3_omni_moe_talker_code_predictor": lambda e: {"inputs_embeds": e.randn(2, SERIES, _width(e))},
    "qwen3_omni_moe_talker_text": lambda e: {"inputs_embeds": e.randn(2, SERIES, _width(e))},
    "omdet-turbo": _classes,
    "qwen2_5_omni_dit": _codes_to_mel,
    "seggpt": lambda e: {
        name: e.randn(2, 3, 64, 64) for name in ("pixel_values", "prompt_pixel_values", "prompt_masks")
    },
    "shieldgemma2": _images_in_text,
    "siglip2": lambda e: {"input_ids": e.ids(SERIES)} | _flat_images(e),
    "siglip2_vision_model": _flat_images,
    "speecht5": lambda e: {name: e.randn(2, SERIES, _width(e)) for name in ("input_values", "decoder_input_values")},
    "tvp": lambda e: {  # it has no batches
        "input_ids": e.ids(SERIES)[:1],
        "pixel_values": e.randn(1, e.config.num_frames, 3, 64, 64),
        "attention_mask": torch.ones(1, SERIES, dtype=torch.long),
    },
    "blip_2_qformer": lambda e: {
        "query_embeds": e.randn(2, SIDE, _width(e)),
        "encoder_hidden_states": e.randn(2, SIDE, e.config.encoder_hidden_size),
    },
}
GENERATES = ("MusicgenForConditionalGeneration", "SpeechT5ForSpeechToText")
