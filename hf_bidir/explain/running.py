"""Running the model that is explained: its inputs checked, without dropout, its coefficients recorded."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hf_bidir.modeling.modeling_bidir import edited_coefficients


def check_bidir(model: PreTrainedModel) -> None:
    if not hasattr(model, "signed_attention"):
        raise ValueError(
            f"expected a bidir model, got {type(model).__name__}; hf_bidir.explain.load_checkpoint(name) reads a "
            "softmax checkpoint as one, at λ = 0, with the same outputs."
        )


def prepared_inputs(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inputs without labels, on the model's device.

    Raises:
        ValueError: the model is not a bidir model, or there is no token or image, or more tokens than positions.
    """
    check_bidir(model)
    if model.config.is_encoder_decoder:
        raise ValueError(
            f"{type(model).__name__} writes one word after the other; hf_bidir.explain.align(model, tokenizer, text) "
            "shows where each of them comes from."
        )
    if not isinstance(inputs, Mapping):
        raise ValueError(
            f"expected a batch as a mapping, such as what a tokenizer returns, got {type(inputs).__name__}; a "
            "dataloader yields such batches, one after the other."
        )
    inputs = {name: value for name, value in inputs.items() if name != "labels" and value is not None}
    wrong = {name: type(value).__name__ for name, value in inputs.items() if not isinstance(value, Tensor)}
    if wrong:
        raise ValueError(f'expected tensors, got {wrong}; tokenizers return tensors with return_tensors="pt".')
    main = inputs.get("input_ids", inputs.get("pixel_values"))
    if main is None or main.dim() not in (2, 4) or not main.numel():
        raise ValueError(
            "expected input_ids [batch, length] or pixel_values [batch, channels, height, width], not empty; got "
            f"{ {name: tuple(value.shape) for name, value in inputs.items()} }."
        )
    limit = getattr(model.config, "max_position_embeddings", None)
    if main.dim() == 2 and limit and main.shape[1] > limit:
        raise ValueError(
            f"{main.shape[1]} tokens are too many for {limit} positions; tokenize with truncation=True, "
            f"max_length={limit}."
        )
    # tensors made in inference mode take no part in gradients, their clones do; position_ids may come once for all
    inputs = {name: value.clone() if value.is_inference() else value for name, value in inputs.items()}
    return {name: value.to(model.device).expand(len(main), *value.shape[1:]) for name, value in inputs.items()}


def keep_mask_of(inputs: Mapping[str, Tensor], length: int) -> Tensor:
    """Boolean `[batch, length]`: where there is a token."""
    if "attention_mask" in inputs:
        return inputs["attention_mask"].bool()
    main = next(iter(inputs.values()))
    return torch.ones(len(main), length, dtype=torch.bool, device=main.device)


@contextmanager
def in_evaluation(model: PreTrainedModel) -> Iterator[None]:
    """Without dropout while the context lasts."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def record_coefficients(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> tuple[ModelOutput, list[Tensor]]:
    """Run the model, whatever its attention backend.

    Returns:
        Its outputs, and the coefficients of every layer, `[batch, heads, length, length]`; both differentiable where
        gradients are enabled, also when every weight is frozen.
    """
    recorded: list[Tensor] = []

    def record(coefficients: Tensor) -> Tensor:
        if torch.is_grad_enabled() and not coefficients.requires_grad:
            coefficients.requires_grad_()
        recorded.append(coefficients)
        return coefficients

    with in_evaluation(model), edited_coefficients(model, record):
        return model(**inputs, return_dict=True), recorded


def patch_size(model: PreTrainedModel) -> tuple[int, int]:
    """Height and width of an image model's patches, in pixels."""
    size = model.config.patch_size
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def patch_grid(model: PreTrainedModel, pixels: Tensor) -> tuple[int, int]:
    """Rows and columns of patches in images `[batch, channels, height, width]`; they are the last tokens."""
    height, width = patch_size(model)
    return pixels.shape[2] // height, pixels.shape[3] // width
