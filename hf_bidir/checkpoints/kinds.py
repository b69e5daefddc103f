"""Properties of a model by its class name and config: Auto class, task, loss, example inputs, limits of its texts."""

import ast
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

LENGTH, DECODER_STEPS, SAMPLES, FRAMES, GRID = 64, 4, 6000, 48, (1, 4, 4)
NUMBER_OF_LABELS = "num_items_in_batch"  # the argument of loss functions
NAMED = 5  # tokens or weights in a message
LONGEST_TEXT = 2**20  # limit in tokens where neither model nor tokenizer has one
IMAGE_TOKENS = ("image_token_id", "image_token_index", "image_patch_id", "media_placeholder_token_id")
AUDIO_TOKENS = ("audio_token_id", "audio_token_index")
AUDIO_BINS = (
    "num_mel_bins", "n_mels", "feature_size", "input_feat_size", "input_feat_per_channel",
    "feature_projection_input_dim", "input_dim",
)  # fmt: skip
Inputs = dict[str, Tensor]


class Kind(NamedTuple):
    """A kind of head."""

    ending: str  # of the names of its classes
    auto: str  # its Auto class
    task: str  # its name on the Hub
    has_pipeline: bool = True  # whether transformers has one for the task
    names_tokens: bool = False  # its logits are those of a vocabulary, at every position
    per_token: bool = False  # it has outputs for every position
    causal: bool = False  # it predicts the next token
    peft_task: str | None = None  # peft's name of the task
    derives_decoder_input: bool = False  # from `input_ids`, which then need the token that ends a text

    @property
    def pipeline(self) -> str | None:
        """The name of the task's pipeline."""
        return self.task if self.has_pipeline else None


_CAUSAL: dict[str, Any] = {"names_tokens": True, "per_token": True, "causal": True, "peft_task": "CAUSAL_LM"}
# if several fit a config, the first one counts
KINDS = (
    Kind("Model", "AutoModel", "feature-extraction"),
    Kind("ForImageClassification", "AutoModelForImageClassification", "image-classification"),
    Kind(
        "ForSequenceClassification", "AutoModelForSequenceClassification", "text-classification", peft_task="SEQ_CLS",
        derives_decoder_input=True,
    ),
    Kind(
        "ForTokenClassification", "AutoModelForTokenClassification", "token-classification", per_token=True,
        peft_task="TOKEN_CLS",
    ),
    Kind(
        "ForQuestionAnswering", "AutoModelForQuestionAnswering", "question-answering", peft_task="QUESTION_ANS",
        derives_decoder_input=True,
    ),
    Kind("ForMultipleChoice", "AutoModelForMultipleChoice", "multiple-choice", has_pipeline=False),
    Kind("ForMaskedLM", "AutoModelForMaskedLM", "fill-mask", names_tokens=True, per_token=True),
    Kind("ForCausalLM", "AutoModelForCausalLM", "text-generation", **_CAUSAL),
    Kind("LMHeadModel", "AutoModelForCausalLM", "text-generation", **_CAUSAL),
    Kind("ForImageTextToText", "AutoModelForImageTextToText", "image-text-to-text"),
    Kind("ForZeroShotImageClassification", "AutoModelForZeroShotImageClassification", "zero-shot-image-classification"),
    Kind("ForObjectDetection", "AutoModelForObjectDetection", "object-detection"),
    Kind("ForSemanticSegmentation", "AutoModelForSemanticSegmentation", "image-segmentation"),
    Kind("ForAudioClassification", "AutoModelForAudioClassification", "audio-classification"),
    Kind("ForSpeechSeq2Seq", "AutoModelForSpeechSeq2Seq", "automatic-speech-recognition"),
    Kind(
        "ForSeq2SeqLM", "AutoModelForSeq2SeqLM", "text2text-generation", has_pipeline=False, peft_task="SEQ_2_SEQ_LM",
    ),
)  # fmt: skip
NO_HEAD = KINDS[0]
BY_AUTO_CLASS = {kind.auto: kind for kind in reversed(KINDS)}


def kind_of(model: PreTrainedModel | str) -> Kind:
    """The kind of a model or of a class with this name; `NO_HEAD` if its name has none of the endings."""
    name = model if isinstance(model, str) else type(model).__name__
    return next((kind for kind in KINDS[1:] if name.endswith(kind.ending)), NO_HEAD)


def divides_by_all_labels(model: nn.Module) -> bool:
    """Whether the loss of a model is a sum over the labels, divided by the `num_items_in_batch` that a Trainer passes.

    transformers looks for `**kwargs` in the signature, but many heads that have it return the mean of their own batch.
    So this reads the code: `forward` must hand its keywords to the loss function, and that to the cross entropy of
    transformers. False where there is no such code, which is safe: the Trainer then averages over batches.
    """
    try:
        source = inspect.getsource(inspect.unwrap(model.forward))
    except (OSError, TypeError):
        return False
    calls = [node for node in ast.walk(ast.parse(dedent(source))) if isinstance(node, ast.Call)]
    losses = [call for call in calls if getattr(call.func, "attr", None) == "loss_function"]
    if not any(keyword.arg in (None, NUMBER_OF_LABELS) for call in losses for keyword in call.keywords):
        return False
    function = model.loss_function
    if function.__name__ == "ForSequenceClassificationLoss" and predicts_values(model.config):
        return False  # the mean of squared errors, or of binary cross entropies
    names = {*function.__code__.co_names, *function.__code__.co_varnames}
    return bool(names & {"fixed_cross_entropy", NUMBER_OF_LABELS})


def predicts_values(config: PretrainedConfig) -> bool:
    """Whether a classifier predicts numbers or several labels, by the rule with which transformers guesses it."""
    known = config.problem_type
    return known in ("regression", "multi_label_classification") or (known is None and config.num_labels == 1)


def example_inputs(model: PreTrainedModel, seed: int = 0) -> Inputs:
    """Two random examples, the second text padded on the right; for an encoder-decoder also decoder inputs.

    Models of text and images, or of text and audio, get both, and the text has a placeholder for each feature.

    Raises:
        ValueError: the model needs an input that is not supported here.
    """
    return Examples(model, seed).inputs()


def takes_one_row(model: PreTrainedModel) -> bool:
    """Whether the model classifies texts and has no padding token, so that a decoder accepts one text at a time."""
    unpadded = getattr(model.config.get_text_config(), "pad_token_id", 0) is None
    return unpadded and kind_of(model).task == "text-classification"


def device_of(model: PreTrainedModel) -> torch.device:
    """The device of a model's inputs; where weights lie on disk or in memory, that on which accelerate runs them."""
    if model.device.type != "meta":
        return model.device
    places = getattr(model, "hf_device_map", {}).values()
    return torch.device(next((place for place in places if place not in ("cpu", "disk")), "cpu"))


def text_limit(model: PreTrainedModel, tokenizer: Any) -> int:
    """The longest text, in tokens, that both the model and its tokenizer accept; at most `LONGEST_TEXT`."""
    return min(longest_text(model) or LONGEST_TEXT, tokenizer.model_max_length, LONGEST_TEXT)


def longest_text(model: PreTrainedModel) -> int | None:
    """The largest number of tokens that the positions of a text model allow; None without a limit in the config."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not limit or limit < 0:
        return None
    words = model.get_input_embeddings()
    for table in model.modules():  # RoBERTa's positions start after the padding index
        counts = isinstance(table, nn.Embedding) and table is not words and table.num_embeddings == limit
        if counts and table.padding_idx is not None:
            return limit - table.padding_idx - 1
    return limit


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
        dtype, device = self.model.dtype, device_of(self.model)
        return {k: v.to(device, dtype if v.is_floating_point() else v.dtype) for k, v in inputs.items()}

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
        return {name: self.randn(2, *[frames] * bool(moving), channels, *_image_size(vision))}

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
    for part in (config, *_parts(config)):
        for name, value in vars(part).items():
            if "token" in name and name.endswith(("_id", "_index", "_ids")):
                yield from (value if isinstance(value, list | tuple) else [value])


def _image_size(vision: PretrainedConfig) -> tuple[int, int]:
    size = first_field(vision, "image_size", "img_size", "input_size")
    size = (size["height"], size["width"]) if isinstance(size, dict) else size
    return tuple(size)[-2:] if isinstance(size, list | tuple) else (size or 64,) * 2


def vocabulary_of(model: PreTrainedModel) -> int | None:
    """The number of tokens that a model of text has embeddings for; None for other models."""
    if model.main_input_name != "input_ids":
        return None
    with suppress(NotImplementedError):  # models of text and images may have a table of each
        return getattr(model.get_input_embeddings(), "num_embeddings", None)
    return None


def check_vocabulary(tokenizer: Any, count: int | None, source: str | Path) -> None:
    """Raise ValueError if tokens were added to a tokenizer for which a model with `count` embeddings has none.

    Special tokens that the tokenizer names itself, such as `image_token` of Gemma 3, may have none: in a model of text
    they are not used. Other processors, and a count of None, pass.
    """
    if count is None or not isinstance(tokenizer, PreTrainedTokenizerBase):
        return
    of_texts = PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES
    others = {token for name, token in tokenizer.special_tokens_map.items() if name not in of_texts}
    added = sorted(tokenizer.added_tokens_decoder.items())
    if without := [str(token) for index, token in added if index >= count and str(token) not in others]:
        raise ValueError(
            f"the tokenizer of {source} has tokens for which its model, with {count} embeddings, has none: "
            f"{few(without)}. They were added without model.resize_token_embeddings(len(tokenizer)); call it, and save "
            "the model again."
        )


def few(names: list[str]) -> str:
    """The first few names, for a message."""
    return ", ".join(names[:NAMED]) + ", …" * (len(names) > NAMED)
