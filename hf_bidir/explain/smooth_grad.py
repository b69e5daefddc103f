"""SmoothGrad: input times the mean gradient at noisy inputs, computed by captum."""

from collections.abc import Mapping

import torch
from captum.attr import NoiseTunnel, Saliency
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.explain.input_function import InputFunction, without_cudnn_where_recurrent
from hf_bidir.explain.readout import Target


def smooth_grad(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    target: Target = None,
    *,
    position: int | Tensor | None = None,
    samples: int = 25,
    noise: float = 0.5,
    seed: int = 0,
) -> Tensor:
    """`x · mean ∂y/∂x` at inputs with Gaussian noise (Smilkov et al. 2017); captum's `NoiseTunnel`.

    Arguments, result and errors as in `gradient_times_input`.

    Args:
        samples: noisy inputs, each one forward and backward pass.
        noise: standard deviation of the noise, in standard deviations of x over the batch.
        seed: seed of the noise.
    """
    with torch.inference_mode(False), in_evaluation(model), without_cudnn_where_recurrent(model):
        function = InputFunction.of(model, inputs, target, position)
        start = function.start.clone().requires_grad_()
        spread = noise * function.start.std().item()
        options = {"nt_samples": samples, "nt_samples_batch_size": max(1, 64 // len(start)), "stdevs": spread}
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            gradient = NoiseTunnel(Saliency(function.score)).attribute(
                start, **options, additional_forward_args=function.rows, abs=False
            )
    return function.by_token(function.start * gradient)
