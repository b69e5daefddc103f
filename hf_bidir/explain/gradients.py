"""Gradients with respect to the input, by captum, to compare attention with."""

from collections.abc import Callable, Mapping

import torch
from captum.attr import InputXGradient, IntegratedGradients
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.explain.readout import Readout, Target, choose_readout
from hf_bidir.explain.running import in_evaluation, patch_size, prepared_inputs


def gradient_times_input(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    target: Target = None,
    *,
    position: int | Tensor | None = None,
) -> Tensor:
    """`x · ∂y/∂x` of every token's word embedding, or of every patch's pixels; captum's `InputXGradient`.

    Arguments and errors as in `contributions`.

    Returns:
        `[batch, length]`, with zeros for padding and for what stands before an image's patches.
    """
    return _attribute(model, inputs, target, position, InputXGradient, use_baseline=False)


def integrated_gradients(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    target: Target = None,
    *,
    position: int | Tensor | None = None,
    steps: int = 50,
) -> Tensor:
    """`(x - x') · ∫ ∂y/∂x` on the way from a baseline x' (Sundararajan et al. 2017); captum's `IntegratedGradients`.

    The baseline is the embedding of the padding token at every position, or an image of zeros, the mean colour after
    normalisation; the scores of an example sum to `y(x) - y(x')`, up to the error of the integral.

    Arguments, result and errors as in `gradient_times_input`.

    Args:
        steps: points on the way; each is one forward and backward pass.
    """
    return _attribute(
        model, inputs, target, position, IntegratedGradients, use_baseline=True, n_steps=steps, internal_batch_size=64
    )


def _attribute(model, inputs, target, position, method, *, use_baseline: bool, **options) -> Tensor:
    with torch.inference_mode(False):
        inputs = prepared_inputs(model, inputs)
    images = "pixel_values" in inputs
    with torch.inference_mode(False), in_evaluation(model):
        with torch.no_grad():
            outputs = model(**inputs, output_hidden_states=True, return_dict=True)
            start = inputs["pixel_values"] if images else model.get_input_embeddings()(inputs["input_ids"])
        readout = choose_readout(model, outputs, target, position)
        rest = {key: value for key, value in inputs.items() if key not in ("input_ids", "pixel_values")}
        if use_baseline:
            options["baselines"] = torch.zeros_like(start) if images else _padding_embedding(model).expand_as(start)
        forward = _scorer(model, "pixel_values" if images else "inputs_embeds", list(rest))
        extra = (
            readout.weights,
            readout.positions,
            *rest.values(),
        )  # captum repeats tensors with the rows they go with
        start = start.clone().requires_grad_()
        scores = method(forward).attribute(start, additional_forward_args=extra, **options).detach()
    if not images:
        return scores.sum(-1)
    height, width = patch_size(model)
    by_patch = scores.unfold(2, height, height).unfold(3, width, width).sum((1, 4, 5)).flatten(1)
    return torch.nn.functional.pad(by_patch, (outputs.hidden_states[-1].shape[1] - by_patch.shape[1], 0))


def _scorer(model: PreTrainedModel, name: str, rest: list[str]) -> Callable[..., Tensor]:
    """`y` `[rows]` of the model as a function of its input alone, as captum wants it."""

    def score(start: Tensor, weights: Tensor, positions: Tensor | None, *values: Tensor) -> Tensor:
        outputs = model(**{name: start}, **dict(zip(rest, values, strict=True)), return_dict=True)
        return Readout(weights, positions)(outputs)

    return score


def _padding_embedding(model: PreTrainedModel) -> Tensor:
    return model.get_input_embeddings().weight[model.config.pad_token_id or 0].detach()
