"""Gradients that the report compares attention with: input times gradient, and Grad-CAM for images, by captum."""

from collections.abc import Mapping

import torch
from captum.attr import InputXGradient, LayerGradCam
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.explain.forward import ForwardCache, leading_tokens
from hf_bidir.explain.readout import InputFunction
from hf_bidir.explain.request import Request, Target
from hf_bidir.modeling.signed_layers import signed_layers


def gradient_times_input(model: PreTrainedModel, inputs: Mapping[str, Tensor], target: Target = None) -> Tensor:
    """`x · ∂y/∂x`, summed over a token's word embedding or a patch's pixels, `[batch, length]`."""
    with torch.inference_mode(False), in_evaluation(model):
        function = InputFunction(ForwardCache(model, inputs), Request(target=target))
        start = function.start.clone().requires_grad_()
        return function.by_token(InputXGradient(function.score).attribute(start, additional_forward_args=function.rows))


def grad_cam(model: PreTrainedModel, inputs: Mapping[str, Tensor], target: Target = None) -> Tensor:
    """`Σ_c x_jc · mean_i ∂y/∂x_ic` of patch j, `[batch, length]`: Grad-CAM (Selvaraju et al. 2017), with its sign.

    x are the hidden states of the patches that enter the last attention, after which a classifier that reads the class
    token has no gradient at any patch.
    """
    with torch.inference_mode(False), in_evaluation(model):
        function = InputFunction(ForwardCache(model, inputs), Request(target=target))
        leading = leading_tokens(model, function.start, function.length)
        patches = nn.Identity()  # its output is [batch, channels, patches], the shape that captum expects

        def pass_through_patches(_: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            states, *others = args or [kwargs.pop("hidden_states")]
            states = torch.cat([states[:, :leading], patches(states[:, leading:].mT).mT], 1)
            return (states, *others), kwargs

        with hooked(signed_layers(model)[-1:], before=pass_through_patches):
            scores = LayerGradCam(function.score, patches).attribute(
                function.start, additional_forward_args=function.rows
            )
    return nn.functional.pad(scores.detach().squeeze(1), (leading, 0))
