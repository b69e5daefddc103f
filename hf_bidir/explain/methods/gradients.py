"""Gradients with respect to the input or hidden states, computed by captum, as a comparison for attention."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from captum.attr import InputXGradient, IntegratedGradients, LayerGradCam, NoiseTunnel, Saliency
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.explain.methods import Request
from hf_bidir.explain.record import Inputs, check_exists, leading_tokens
from hf_bidir.explain.target import InputFunction, Position, Target
from hf_bidir.modeling.signed_layers import signed_layers

TOLERATED, SMALL = 0.1, 0.1  # error of integrated gradients, relative to a change of y of at least SMALL

logger = logging.getLogger(__name__)


@contextmanager
def _differentiated(model: PreTrainedModel, *inputs: Any, **options: Any) -> Iterator[InputFunction]:
    """Context in which captum differentiates the `InputFunction` of these arguments."""
    # cuDNN has a backward pass of recurrent models in training mode only; its `flags` would reset other switches too
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = before and not any(isinstance(module, nn.RNNBase) for module in model.modules())
    try:
        with torch.inference_mode(False), in_evaluation(model):
            yield InputFunction.of(model, *inputs, **options)
    finally:
        torch.backends.cudnn.enabled = before


def gradient_times_input(
    model: PreTrainedModel, inputs: Inputs, target: Target = None, *, position: Position = None
) -> Tensor:
    """`x · ∂y/∂x`, summed over a token's word embedding or a patch's pixels; captum's `InputXGradient`.

    Arguments and errors as in `contributions`.

    Returns:
        `[batch, length]`, zero for padding and for the tokens before an image's patches.
    """
    with _differentiated(model, inputs, target, position) as function:
        start = function.start.clone().requires_grad_()
        return function.by_token(InputXGradient(function.score).attribute(start, additional_forward_args=function.rows))


def integrated_gradients(
    model: PreTrainedModel,
    inputs: Inputs,
    target: Target = None,
    *,
    position: Position = None,
    steps: int = 50,
    keep_first: bool | None = None,
) -> Tensor:
    """`(x - x') · ∫ ∂y/∂x` on the line from a baseline x' (Sundararajan et al. 2017); captum's `IntegratedGradients`.

    The baseline is the embedding of the padding token at every position, in causal attention at every one but the
    first, whose score is then 0; or an image of zeros, the mean colour after normalisation. The scores of an example
    sum to `y(x) - y(x')`, up to the error of the integral. Result and other arguments as in `gradient_times_input`.

    Args:
        steps: points on the line, each one forward and backward pass. Logs a warning if the sum of an example's scores
            misses the change of `y` by over 10 %.
        keep_first: whether the first token of a text is part of the baseline; by default in causal attention, whose
            sink it is.
    """
    with _differentiated(model, inputs, target, position, keep_first=keep_first) as function:
        scores = IntegratedGradients(function.score).attribute(
            function.start.clone().requires_grad_(),
            baselines=function.baseline,
            additional_forward_args=function.rows,
            n_steps=steps,
            internal_batch_size=64,
        )
        with torch.no_grad():
            change = function.score(function.start, function.rows) - function.score(function.baseline, function.rows)
    missed = (scores.flatten(1).sum(1) - change).abs() / change.abs().clamp_min(SMALL)
    if missed.max() > TOLERATED:
        logger.warning(
            "integrated-gradients: with %d steps the scores miss the change of y by %.0f %%; call "
            "hf_bidir.explain.integrated_gradients with steps=%d, or choose another method.",
            *(steps, 100 * missed.max().item(), 4 * steps),
        )
    return function.by_token(scores)


def smooth_grad(
    model: PreTrainedModel,
    inputs: Inputs,
    target: Target = None,
    *,
    position: Position = None,
    samples: int = 25,
    noise: float = 0.5,
    seed: int = 0,
) -> Tensor:
    """`x · mean ∂y/∂x` at inputs with Gaussian noise (Smilkov et al. 2017); captum's `NoiseTunnel`.

    Arguments, result and errors as in `gradient_times_input`.

    Args:
        samples, seed: noisy inputs, each one forward and backward pass, and the seed of their noise.
        noise: standard deviation of the noise, in standard deviations of the x of an example.
    """
    with _differentiated(model, inputs, target, position) as function:
        # each example in units of its own standard deviation, so that its noise does not depend on the others
        spread = function.start.flatten(1).std(1).view(-1, *[1] * (function.start.dim() - 1)).clamp_min(1e-12)

        def score(scaled: Tensor, rows: Tensor) -> Tensor:
            return function.score(scaled * spread[rows], rows)

        options = {"nt_samples": samples, "nt_samples_batch_size": max(1, 64 // len(spread)), "stdevs": noise}
        start = (function.start / spread).clone().requires_grad_()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            gradient = NoiseTunnel(Saliency(score)).attribute(
                start, **options, additional_forward_args=function.rows, abs=False
            )
    return function.by_token(start * gradient)


def by_grad_cam(request: Request) -> Tensor:
    record, target, position, layer, _ = request
    return grad_cam(record.model, record, target, position=position, layer=layer)


def grad_cam(
    model: PreTrainedModel,
    inputs: Inputs,
    target: Target = None,
    *,
    position: Position = None,
    layer: int | None = None,
) -> Tensor:
    """`Σ_c x_jc · mean_i ∂y/∂x_ic` of patch j: Grad-CAM (Selvaraju et al. 2017) for images; captum's `LayerGradCam`.

    x are the hidden states of the patches that enter the attention of a layer, by default the last one; in a ViT the
    output of the layer norm before it. After the last attention, a classifier that reads the class token has no
    gradient at any patch. Other arguments, result and errors as in `gradient_times_input`.

    The publication sets negative scores to 0, as `.clamp_min(0)` does. They are kept here, because these patches have
    features that lower y. One mean gradient serves all patches, so a sign is less specific to its patch than that of a
    contribution.
    """
    with _differentiated(model, inputs, target, position) as function:
        check_exists("layer", layer, len(signed_layers(model)))
        leading = leading_tokens(model, function.start, function.length)
        patches = nn.Identity()  # its output is [batch, channels, patches], the shape that captum expects

        def pass_through_patches(_, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            states, *others = args or [kwargs.pop("hidden_states")]
            states = torch.cat([states[:, :leading], patches(states[:, leading:].mT).mT], 1)
            return (states, *others), kwargs

        attention = signed_layers(model)[-1 if layer is None else layer]
        with hooked([attention], before=pass_through_patches):
            scores = LayerGradCam(function.score, patches).attribute(
                function.start, additional_forward_args=function.rows
            )
    return nn.functional.pad(scores.detach().squeeze(1), (leading, 0))
