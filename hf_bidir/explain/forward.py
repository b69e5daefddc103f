"""The forward cache: checked inputs, and the outputs, coefficients and values of one pass."""

import copy
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.kinds import (
    IMAGE_TEXT,
    NO_HEAD,
    device_of,
    image_text_auto,
    kind_of,
    longest_text,
    vocabulary_of,
)
from hf_bidir.checkpoints.layer_hooks import check_attends, edited_coefficients, in_evaluation, observed_layers
from hf_bidir.checkpoints.signing import unwrapped
from hf_bidir.modeling.signed_layers import signed_layers

from .inputs.text import Example
from .signed_maps import reader_of

OF_PLACES = re.compile("Detection|Segmentation|Matting|Depth|Pose|Keypoint")  # in the names of heads


class ForwardPass(NamedTuple):
    """What one pass computes; coefficients and values have an entry for each run of a layer, in order, as in ALBERT."""

    outputs: ModelOutput
    coefficients: list[Tensor]  # [batch, heads, queries, keys]
    values: list[tuple[nn.Module, Tensor]]  # the layer, and [batch, key heads, keys, value_dim]


class ForwardCache:
    """The checked inputs of a model, and the outputs, coefficients and values of one pass, which runs when first read.

    Attributes:
        model, inputs: the signed model, and its inputs on its device.
        units: the word or segment of each token, which erasure and deletion remove as a whole, rising integers
            `[batch, length]`; None where every token stands alone.
        examples: what the rows are made of, if it is known.
        notes: what limits the scores of each row, a sentence each.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        inputs: Mapping[str, Tensor],
        units: Tensor | None = None,
        examples: Sequence[Example] = (),
    ) -> None:
        with torch.inference_mode(False):  # gradients need tensors of the usual mode
            self.model = unwrapped(model)
            self.inputs = prepared_inputs(self.model, inputs)
        self.units, self.examples = units, examples
        self.notes: defaultdict[int, list[str]] = defaultdict(list)

    def repeated(self, count: int) -> "ForwardCache":
        """A cache with the single row `count` times."""
        inputs = {name: value.expand(count, *value.shape[1:]) for name, value in self.inputs.items()}
        return ForwardCache(self.model, inputs, None if self.units is None else self.units.expand(count, -1))

    @cached_property
    def forward_pass(self) -> ForwardPass:
        """The pass, without a graph."""
        with torch.inference_mode(False), torch.no_grad():
            return forward_pass(self.model, self.inputs)

    @property
    def outputs(self) -> ModelOutput:
        return self.forward_pass.outputs

    @property
    def coefficients(self) -> list[Tensor]:
        return self.forward_pass.coefficients

    @property
    def values(self) -> list[tuple[nn.Module, Tensor]]:
        return self.forward_pass.values

    @cached_property
    def outputs_alone(self) -> ModelOutput:
        """The outputs; where no pass has run, of one that keeps no coefficients, which are large for a long text."""
        if "forward_pass" in vars(self):
            return self.outputs
        with torch.inference_mode(False), torch.no_grad(), in_evaluation(self.model):
            return self.model(**self.inputs, return_dict=True)

    @property
    def main_input(self) -> Tensor:
        """The token ids or the pixels."""
        return self.inputs[self.model.main_input_name]

    @property
    def passes(self) -> int:
        """The forward passes that erasure takes per text, one for each token or segment."""
        if self.units is None:
            return self.main_input.shape[-1]
        edges = self.units.diff() > 0  # padding is -1
        return int(edges.sum(-1).max()) + 1

    @property
    def length(self) -> int:
        """The number of tokens that all layers attend over; errors as in `sequence_length`."""
        return sequence_length(self.model, self.inputs, self.coefficients, pooled=True)

    @property
    def keep(self) -> Tensor:
        """Boolean `[batch, length]`, False for padding."""
        is_image = reads_images(self.model)
        length = self.coefficients[-1].shape[-1] if is_image else self.main_input.shape[1]
        return keep_mask_of(self.inputs, length)

    @property
    def position(self) -> Tensor:
        """The position that the output is read from, `[batch]`, as in `read_position`."""
        return read_position(self.coefficients[-1], self.keep)


AnyCache = ForwardCache | Any  # or an ImageTextCache, as far as an image with a text has the same attributes


def attends_between_tokens(model: PreTrainedModel) -> bool:
    """Whether every token is a query; others have a single one for the whole text."""
    return getattr(model, "attends_between_tokens", True)


def takes_embedding(model: nn.Module) -> bool:
    """Whether `y` is read from an embedding of the whole text, that of a `SentenceEncoder`."""
    return getattr(model, "makes_embeddings", False)


def pools_tokens(model: PreTrainedModel) -> bool:
    """Whether the output of a sentence encoder is read from several tokens."""
    return takes_embedding(model) and bool((model.pooling_weights(torch.ones(1, 2)) % 1).any())


def reads_images(model: PreTrainedModel) -> bool:
    """Whether the model reads an image alone."""
    return model.main_input_name == "pixel_values" and not reads_image_text(model)


def reads_image_text(model: PreTrainedModel) -> bool:
    """Whether the model reads an image with a text."""
    return image_text_auto(type(model), model.config) is not None


def writes_about_images(model: PreTrainedModel) -> bool:
    """Whether it is a vision-language model, which predicts the next token after an image and a text."""
    return image_text_auto(type(model), model.config) == IMAGE_TEXT


def translates(model: PreTrainedModel) -> bool:
    """Whether it is an encoder-decoder that generates text; others of them classify it."""
    kind = kind_of(model)
    return model.config.is_encoder_decoder and not (kind.derives_decoder_input or kind.per_token)


def classifies_decoded(model: PreTrainedModel) -> bool:
    """Whether it is an encoder-decoder that classifies a text, as BART does."""
    return model.config.is_encoder_decoder and not translates(model)


def chooses_text(model: PreTrainedModel) -> bool:
    """Whether the model has a logit for each choice, a pair with the question."""
    return kind_of(model).task == "multiple-choice"


def of_one_choice(model: PreTrainedModel) -> PreTrainedModel:
    """The same multiple-choice model with a row of inputs for each pair of a question and a choice."""

    def forward(return_dict: bool, **inputs: Tensor) -> Any:
        return model(**{name: rows.unsqueeze(1) for name, rows in inputs.items()}, return_dict=return_dict)

    scorer: Any = copy.copy(model)  # with the same modules
    scorer.forward = forward
    return scorer


def names_tokens(model: PreTrainedModel) -> bool:
    """Whether the logits are those of a vocabulary."""
    return kind_of(model).names_tokens or writes_about_images(model)


def check_kind(head: type[PreTrainedModel], config: PretrainedConfig) -> None:
    """Raise ValueError unless models of this class read a text, an image or both, and have one output for it."""
    if image_text_auto(head, config):
        return
    if OF_PLACES.search(head.__name__):
        raise ValueError(
            f"expected a model that predicts a class or a token; {head.__name__} marks places of an image (detection, "
            "segmentation and the like), which cannot be explained."
        )
    kind = kind_of(head.__name__)
    several = hasattr(config, "vision_config") and head.main_input_name != "pixel_values" and kind is NO_HEAD
    if several or hasattr(config, "num_frames") or head.main_input_name not in ("input_ids", "pixel_values"):
        raise ValueError(
            f"expected a model of a text, an image, or both with logits; {head.__name__} takes sound or video, or has "
            "no logits of both, which cannot be explained."
        )


def prepared_inputs(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inputs on the model's device, without labels, once they are checked."""
    name = type(model).__name__
    if translates(model):
        raise ValueError(
            f"expected a model of one text or image; {name} is an encoder-decoder. Call "
            "hf_bidir.explain.explain(model, tokenizer, text) to explain its generated text."
        )
    tensors = {key: value for key, value in inputs.items() if key != "labels" and isinstance(value, Tensor)}
    main = tensors.get(model.main_input_name)
    if main is None or not main.numel():
        raise ValueError(
            f"expected {model.main_input_name} of {name} as a tensor, not empty, as processors return it with "
            f'return_tensors="pt"; got {list(tensors) or "no tensor"}.'
        )
    count = vocabulary_of(model)
    if count is not None and main.max() >= count:
        raise ValueError(
            f"expected tokens below {count}, the number of embeddings of {name}, got {main.max()}; is the tokenizer "
            "another model's, or were tokens added without resize_token_embeddings?"
        )
    limit = longest_text(model) if main.dim() == 2 else None
    if limit and main.shape[1] > limit:
        raise ValueError(
            f"expected at most {limit} tokens, got {main.shape[1]}; tokenize with truncation=True, max_length={limit}."
        )
    # inference-mode tensors cannot have gradients, their clones can; position_ids may come as one row
    rows = {key: value.expand(len(main), *value.shape[1:]) for key, value in tensors.items()}
    return {key: value.to(device_of(model)).clone() for key, value in rows.items()}


def keep_mask_of(inputs: Mapping[str, Tensor], length: int) -> Tensor:
    """Boolean `[batch, length]`, False for padding."""
    if "attention_mask" in inputs:
        return inputs["attention_mask"].bool()
    main = next(iter(inputs.values()))
    return torch.ones(len(main), length, dtype=torch.bool, device=main.device)


def forward_pass(model: PreTrainedModel, inputs: Mapping[str, Any]) -> ForwardPass:
    """Run the model on any attention backend, and keep what it computes.

    Outputs and coefficients are differentiable if gradients are enabled, even with frozen weights.
    """
    check_attends(model)
    coefficients: list[Tensor] = []
    values: list[tuple[nn.Module, Tensor]] = []
    with in_evaluation(model), ExitStack() as stack:
        for layer in signed_layers(model):
            reader = reader_of(layer, coefficients, values)
            stack.enter_context(edited_coefficients(layer, reader.edit))
            stack.enter_context(observed_layers(layer, reader.observe))
        outputs = model(**inputs, return_dict=True)
    return ForwardPass(outputs, coefficients, values)


def sequence_length(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], coefficients: Sequence[Tensor], pooled: bool = False
) -> int:
    """The number of tokens that all layers attend over; raises ValueError if they differ, or attend in windows.

    Args:
        pooled: accept layers with a single query, such as the pooling head of SigLIP.
    """
    shapes = list(dict.fromkeys(tuple(layer.shape) for layer in coefficients))
    single = pooled or not attends_between_tokens(model)
    rows, keys = len(inputs[model.main_input_name]), shapes[0][3]
    wanted = {(rows, keys, keys), (rows, 1 if single else keys, keys)}
    if wanted.issuperset((shape[0], shape[2], shape[3]) for shape in shapes):
        return keys
    raise ValueError(
        f"expected layers that all attend over the same tokens; {type(model).__name__} has coefficients [batch, heads, "
        f"queries, keys] of the shapes {', '.join(map(str, shapes))}. For numbers per layer, call "
        "edge_contributions or value_weighted."
    )


def check_exists(name: str, index: int | None, count: int) -> None:
    """Raise ValueError for a layer or head that the model does not have; None passes."""
    if index is not None and not (isinstance(index, Integral) and 0 <= index < count):
        raise ValueError(f"{name} {index!r} does not exist; choose 0 to {count - 1}.")


def read_position(coefficients: Tensor, keep: Tensor) -> Tensor:
    """The position that the output is read from, `[batch]`: the first token, or the last one in causal attention."""
    *_, queries, keys = coefficients.shape
    causal = queries == keys and not coefficients.triu(1).any()
    positions = torch.arange(keep.shape[1], device=keep.device)
    return (positions * keep * causal).argmax(-1)


def token_positions(position: int | Sequence[int] | Tensor, keep: Tensor) -> Tensor:
    """One position for all examples, or one per example, or a row of several for each, as `[batch, places]`.

    Raises:
        ValueError: a position that is not in `keep`.
    """
    batch, length = keep.shape
    positions = torch.as_tensor(position, device=keep.device)
    if positions.dim() < 2:
        positions = positions.reshape(-1, 1)
    inside = (positions >= 0) & (positions < length)
    if len(positions) in (1, batch) and inside.all():
        positions = positions.expand(batch, -1)
        if keep.gather(1, positions).all():
            return positions
    raise ValueError(
        f"expected the position of a token, not padding, from 0 to {length - 1}; got {position}. Give one for all "
        f"examples, or one per example ({batch})."
    )
