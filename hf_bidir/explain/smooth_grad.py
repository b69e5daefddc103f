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
        noise: standard deviation of the noise, in standard deviations of the x of an example.
        seed: seed of the noise.
    """
    with torch.inference_mode(False), in_evaluation(model), without_cudnn_where_recurrent(model):
        function = InputFunction.of(model, inputs, target, position)
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
