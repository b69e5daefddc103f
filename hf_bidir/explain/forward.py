"""The forward cache: checked inputs, and the outputs, coefficients and values of one pass."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.kinds import check_vocabulary, device_of, kind_of, longest_text, vocabulary_of
from hf_bidir.checkpoints.layer_hooks import check_attends, edited_coefficients, in_evaluation, observed_layers
from hf_bidir.checkpoints.signing import unwrapped
from hf_bidir.modeling.signed_layers import signed_layers

Values = list[tuple[nn.Module, Tensor]]
DIFFERENTIAL = {"DiffLlamaAttention"}  # layers that subtract two maps, by class name


class ForwardCache:
    """The checked inputs of a model, and the outputs, coefficients and values of one pass, which runs when first read.

    It runs once more where gradients are enabled and the pass before had no graph, or its graph is used up.

    Attributes:
        model, inputs: the signed model, and its inputs on its device.
        units: the segment of each token, which erasure removes as a whole, rising integers `[batch, length]`; None
            where every token stands alone.
        layers: the layers whose coefficients are recorded; None: all.
        values: layer and values `[batch, key heads, keys, value_dim]` of each entry of `coefficients`, once it has run.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        inputs: Mapping[str, Tensor],
        units: Tensor | None = None,
        *,
        layers: Sequence[nn.Module] | None = None,
    ) -> None:
        with torch.inference_mode(False):  # gradients need tensors of the usual mode
            self.model = unwrapped(model)
            self.inputs = prepared_inputs(self.model, inputs)
        self.units, self.layers = units, layers
        self.values: Values = []
        self._outputs: ModelOutput | None = None
        self._coefficients: list[Tensor] = []
        self._has_graph = False

    def _run(self) -> bool:
        """Run the model unless it has run, with a graph where gradients are enabled; whether they are."""
        gradients = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        if self._outputs is None or (gradients and not self._has_graph):
            with torch.inference_mode(False), torch.set_grad_enabled(gradients):
                self._outputs, self._coefficients, self.values = record_maps(self.model, self.inputs, self.layers)
            self._has_graph = gradients
        return gradients

    @property
    def outputs(self) -> ModelOutput:
        """With a graph where gradients are enabled."""
        with_graph = self._run()
        assert self._outputs is not None
        if with_graph:
            return self._outputs
        detached = {name: x.detach() for name, x in self._outputs.items() if isinstance(x, Tensor)}
        return ModelOutput(detached)

    @property
    def coefficients(self) -> list[Tensor]:
        """Those of each run of a signed layer, `[batch, heads, queries, keys]`, with a graph as the outputs."""
        with_graph = self._run()
        return self._coefficients if with_graph else [layer.detach() for layer in self._coefficients]

    def gradients(self, y: Tensor) -> tuple[Tensor, ...]:
        """`∂y/∂a` of every coefficient that was read with a graph; 0 where a coefficient does not affect `y`."""
        self._has_graph = False
        return torch.autograd.grad(y, self._coefficients, materialize_grads=True)

    @property
    def main_input(self) -> Tensor:
        """The token ids or the pixels."""
        return self.inputs[self.model.main_input_name]

    @property
    def passes(self) -> int:
        """The forward passes that erasure takes per text, one for each token or segment."""
        if self.units is not None:
            edges = self.units.diff() != 0
            return int(edges.sum(-1).max()) + 1
        return self.main_input.shape[-1]

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


def model_within(model: Any, processor: Any) -> PreTrainedModel:
    """The signed model inside `torch.compile`, `DataParallel` or peft."""
    if isinstance(processor, nn.Module) or isinstance(model, PreTrainedTokenizerBase):
        raise ValueError(
            "expected a model and then its tokenizer or image processor; got a "
            f"{type(model).__name__} and a {type(processor).__name__}."
        )
    model = unwrapped(model)
    check_attends(model)
    check_vocabulary(processor, vocabulary_of(model), type(model).__name__)
    return model


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
    return model.main_input_name == "pixel_values"


def check_kind(head: type[PreTrainedModel], config: PretrainedConfig) -> None:
    """Raise ValueError unless models of this class read one text or one image, and have one output for it."""
    several = hasattr(config, "vision_config") and head.main_input_name != "pixel_values"
    if several or hasattr(config, "num_frames") or head.main_input_name not in ("input_ids", "pixel_values"):
        raise ValueError(
            f"expected a model of one text or one image; {head.__name__} takes sound, video or several inputs, which "
            "cannot be explained."
        )
    if kind_of(head.__name__).task in ("question-answering", "multiple-choice"):
        raise ValueError(
            f"expected a model with one output to explain; {head.__name__} chooses a span or a text, which cannot be "
            "explained yet. In Python, explain model.base_model, the same model without its head."
        )


def prepared_inputs(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inputs on the model's device, without labels, once they are checked."""
    check_attends(model)
    name = type(model).__name__
    if model.config.is_encoder_decoder:
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
    device = device_of(model)
    for key, value in tensors.items():
        # inference-mode tensors cannot have gradients, their clones can; position_ids may come as a single row
        value = value.clone() if value.is_inference() else value
        tensors[key] = value.to(device).expand(len(main), *value.shape[1:])
    return tensors


def keep_mask_of(inputs: Mapping[str, Tensor], length: int) -> Tensor:
    """Boolean `[batch, length]`, False for padding."""
    if "attention_mask" in inputs:
        return inputs["attention_mask"].bool()
    main = next(iter(inputs.values()))
    return torch.ones(len(main), length, dtype=torch.bool, device=main.device)


def record_coefficients(model: PreTrainedModel, inputs: Mapping[str, Any]) -> tuple[ModelOutput, list[Tensor]]:
    """Run the model on any attention backend; its outputs, and the coefficients of all layers.

    They are `[batch, heads, queries, keys]` each, in the order in which layers run, with one entry per run of a layer,
    as in ALBERT; of differential attention they are its signed map (`signed_maps.py`). Both are differentiable if
    gradients are enabled, even with frozen weights.
    """
    return record_maps(model, inputs)[:2]


def record_maps(
    model: PreTrainedModel, inputs: Mapping[str, Any], layers: Sequence[nn.Module] | None = None
) -> tuple[ModelOutput, list[Tensor], Values]:
    """As `record_coefficients`, of some layers, and the layer and the values `[batch, key heads, keys, value_dim]` of
    each entry."""
    maps: list[Tensor] = []
    values: Values = []
    with in_evaluation(model), ExitStack() as stack:
        for layer in signed_layers(model) if layers is None else layers:
            reader = _Reader(layer, maps, values)
            stack.enter_context(edited_coefficients(layer, reader.edit))
            stack.enter_context(observed_layers(layer, reader.observe))
        return model(**inputs, return_dict=True), maps, values


class _Reader:
    """Adds the map and the values of each run of a layer to two lists."""

    def __init__(self, layer: nn.Module, maps: list[Tensor], values: Values) -> None:
        self.layer, self.maps, self.values = layer, maps, values
        self.parts: list[Tensor] = []  # values of the calls of a run of differential attention
        self.coefficients = torch.empty(0)

    def edit(self, coefficients: Tensor) -> Tensor:
        if self.parts:  # a later call of a run
            return self.coefficients
        if is_differential(self.layer):
            from hf_bidir.explain.signed_maps import difference

            signed_map, rebuilt = difference(self.layer, coefficients)
            self.coefficients = rebuilt(self._added(signed_map))  # made of the map, so that y depends on it
            return self.coefficients
        return self._added(coefficients)

    def _added(self, signed_map: Tensor) -> Tensor:
        if torch.is_grad_enabled() and not signed_map.requires_grad:
            signed_map.requires_grad_()
        self.maps.append(signed_map)
        return signed_map

    def observe(self, layer: nn.Module, key: Tensor, value: Tensor, context: Tensor) -> None:
        value = value.detach()
        if is_differential(layer):
            from hf_bidir.explain.signed_maps import joined_values

            self.parts.append(value)
            whole = joined_values(layer, self.parts)
            if whole is None:
                return
            value, self.parts = whole, []
        self.values.append((layer, value))


def is_differential(layer: nn.Module) -> bool:
    """Whether a layer subtracts two maps (`signed_maps.py`)."""
    return any(base.__name__ in DIFFERENTIAL for base in type(layer).__mro__)


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
    """One position for all examples, or one per example, as `[batch]`; raises ValueError if it is not in `keep`."""
    batch, length = keep.shape
    positions = torch.as_tensor(position, device=keep.device).reshape(-1)
    inside = (positions >= 0) & (positions < length)
    if len(positions) in (1, batch) and inside.all():
        positions = positions.expand(batch)
        if keep.gather(1, positions.unsqueeze(1)).all():
            return positions
    raise ValueError(
        f"expected the position of a token, not padding, from 0 to {length - 1}; got {position}. Give one for all "
        f"examples, or one per example ({batch})."
    )


def patch_size(model: PreTrainedModel) -> tuple[int, int]:
    """Height and width of an image model's patches, in pixels."""
    size = getattr(vision_config(model), "patch_size", None)
    if size is None:
        raise ValueError(f"expected a model with patches; the config of {type(model).__name__} has no patch_size.")
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def vision_config(model: PreTrainedModel) -> PretrainedConfig:
    """The config of the image part: the model's own, or its `vision_config`."""
    return getattr(model.config, "vision_config", model.config)


def patch_grid(model: PreTrainedModel, pixels: Tensor) -> tuple[int, int]:
    """Rows and columns of patches in images `[batch, channels, height, width]`; patches are the last tokens."""
    height, width = patch_size(model)
    return pixels.shape[2] // height, pixels.shape[3] // width


def leading_tokens(model: PreTrainedModel, pixels: Tensor, length: int) -> int:
    """The number of tokens before an image's patches, such as a class token and registers."""
    rows, columns = patch_grid(model, pixels)
    if length < rows * columns or hasattr(model.config, "num_detection_tokens"):  # YOLOS has tokens after the patches
        raise ValueError(
            f"expected one token per patch and none after the patches; {type(model).__name__} attends over {length} "
            f"tokens for {rows} x {columns} patches."
        )
    return length - rows * columns
