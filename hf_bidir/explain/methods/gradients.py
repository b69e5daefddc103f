"""Integrated gradients with respect to the input, computed by captum."""

import logging
from contextlib import nullcontext

import torch
from captum.attr import IntegratedGradients
from torch import Tensor, nn

from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.explain.forward import ForwardCache
from hf_bidir.explain.readout import InputFunction
from hf_bidir.explain.request import Request

TOLERATED, SMALL = 0.1, 0.1  # error of integrated gradients, relative to a change of y of at least SMALL

logger = logging.getLogger(__name__)


def integrated_gradients(
    cache: ForwardCache, request: Request, *, steps: int = 50, keep_first: bool | None = None
) -> Tensor:
    """`(x - x') · ∫ ∂y/∂x` on the line from a baseline x' (Sundararajan et al. 2017); captum's `IntegratedGradients`.

    The baseline is the embedding of the padding token at every position, in causal attention at every one but the
    first, whose score is then 0; or an image of zeros, the mean colour after normalisation. The scores of an example
    sum to `y(x) - y(x')`, up to the error of the integral.

    Args:
        steps: points on the line, each one forward and backward pass. Logs a warning if the sum of an example's scores
            misses the change of `y` by over 10 %.
        keep_first: whether the first token of a text is part of the baseline; by default in causal attention, whose
            sink it is.

    Returns:
        `[batch, length]`, zero for padding and for the tokens before an image's patches.
    """
    # cuDNN has a backward pass of recurrent layers in training mode only
    recurrent = any(isinstance(module, nn.RNNBase) for module in cache.model.modules())
    without_cudnn = torch.backends.cudnn.flags(enabled=False) if recurrent else nullcontext()
    with torch.inference_mode(False), in_evaluation(cache.model), without_cudnn:
        function = InputFunction(cache, request, keep_first=keep_first)
        scores, errors = IntegratedGradients(function.score).attribute(
            function.start.clone().requires_grad_(),
            baselines=function.baseline,
            additional_forward_args=function.rows,
            n_steps=steps,
            internal_batch_size=64,
            return_convergence_delta=True,
        )
    changes = scores.flatten(1).sum(1) - errors
    missed = errors.abs() / changes.abs().clamp_min(SMALL)
    if missed.max() > TOLERATED:
        logger.warning(
            "integrated-gradients: with %d steps the scores miss the change of y by %.0f %%; call "
            "hf_bidir.explain.integrated_gradients with steps=%d, or choose another method.",
            steps,
            100 * missed.max().item(),
            4 * steps,
        )
    return function.by_token(scores)
