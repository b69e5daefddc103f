"""Gradients with respect to the input or hidden states, computed by captum, as a comparison for attention."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from captum.attr import InputXGradient, IntegratedGradients, LayerGradCam
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.explain.attentions import read_position
from hf_bidir.explain.readout import Readout, Target, choose_readout
from hf_bidir.explain.running import (
    check_exists,
    keep_mask_of,
    leading_tokens,
    patch_size,
    prepared_inputs,
    reads_images,
    record_coefficients,
    sequence_length,
)
from hf_bidir.modeling.signed_layers import signed_layers

TOLERATED, SMALL = 0.1, 0.1  # error of integrated gradients, relative to a change of y of at least SMALL

logger = logging.getLogger(__name__)


def gradient_times_input(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    target: Target = None,
    *,
    position: int | Tensor | None = None,
) -> Tensor:
    """`x · ∂y/∂x`, summed over a token's word embedding or a patch's pixels; captum's `InputXGradient`.

    Arguments and errors as in `contributions`.

    Returns:
        `[batch, length]`, zero for padding and for the tokens before an image's patches.
    """
    with torch.inference_mode(False), in_evaluation(model), _without_cudnn_where_recurrent(model):
        task = _Task.of(model, inputs, target, position)
        start = task.start.clone().requires_grad_()
        return task.by_token(InputXGradient(task.score).attribute(start, additional_forward_args=task.rows))


def integrated_gradients(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    target: Target = None,
    *,
    position: int | Tensor | None = None,
    steps: int = 50,
) -> Tensor:
    """`(x - x') · ∫ ∂y/∂x` on the line from a baseline x' (Sundararajan et al. 2017); captum's `IntegratedGradients`.

    The baseline is the embedding of the padding token at every position, or an image of zeros, the mean colour after
    normalisation. The scores of an example sum to `y(x) - y(x')`, up to the error of the integral.

    Arguments, result and errors as in `gradient_times_input`.

    Args:
        steps: points on the line, each one forward and backward pass. Logs a warning if the sum of an example's scores
            misses the change of `y` by over 10 %.
    """
    with torch.inference_mode(False), in_evaluation(model), _without_cudnn_where_recurrent(model):
        task = _Task.of(model, inputs, target, position)
        scores = IntegratedGradients(task.score).attribute(
            task.start.clone().requires_grad_(),
            baselines=task.baseline,
            additional_forward_args=task.rows,
            n_steps=steps,
            internal_batch_size=64,
        )
        with torch.no_grad():
            change = task.score(task.start, task.rows) - task.score(task.baseline, task.rows)
    missed = (scores.flatten(1).sum(1) - change).abs() / change.abs().clamp_min(SMALL)
    if missed.max() > TOLERATED:
        logger.warning(
            "integrated-gradients: with %d steps the scores miss the change of y by %.0f %%; call "
            "hf_bidir.explain.integrated_gradients with steps=%d, or choose another method.",
            *(steps, 100 * missed.max().item(), 4 * steps),
        )
    return task.by_token(scores)


def grad_cam(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    target: Target = None,
    *,
    position: int | Tensor | None = None,
    layer: int | None = None,
) -> Tensor:
    """`Σ_c x_jc · mean_i ∂y/∂x_ic` of patch j: Grad-CAM (Selvaraju et al. 2017) for images; captum's `LayerGradCam`.

    x are the hidden states of the patches that enter the attention of a layer, in a ViT the output of the layer norm
    before it. After the last attention, a classifier that reads the class token has no gradient at any patch.

    The publication sets negative scores to 0, as `.clamp_min(0)` does. They are kept here, because these patches have
    features that lower y. One mean gradient serves all patches, so a sign is less specific to its patch than that of a
    contribution.

    Other arguments and errors as in `contributions`.

    Args:
        model: a bidir model of images with patches, usually a classifier.
        layer: the layer whose inputs are explained; by default the last one.

    Returns:
        `[batch, length]`, zero for the tokens before an image's patches.
    """
    with torch.inference_mode(False), in_evaluation(model):
        task = _Task.of(model, inputs, target, position)
        check_exists("layer", layer, len(signed_layers(model)))
        leading = leading_tokens(model, task.start, task.length)
        patches = nn.Identity()  # its output is [batch, channels, patches], the shape that captum expects

        def pass_through_patches(_, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            states, *others = args or [kwargs.pop("hidden_states")]
            states = torch.cat([states[:, :leading], patches(states[:, leading:].mT).mT], 1)
            return (states, *others), kwargs

        attention = signed_layers(model)[-1 if layer is None else layer]
        with attention.register_forward_pre_hook(pass_through_patches, with_kwargs=True):
            scores = LayerGradCam(task.score, patches).attribute(task.start, additional_forward_args=task.rows)
    return nn.functional.pad(scores.detach().squeeze(1), (leading, 0))


@contextmanager
def _without_cudnn_where_recurrent(model: PreTrainedModel) -> Iterator[None]:
    """Disable cuDNN for recurrent models, whose cuDNN backward pass exists in training mode only.

    `torch.backends.cudnn.flags` would reset its other switches too.
    """
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = before and not any(isinstance(module, nn.RNNBase) for module in model.modules())
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


@dataclass(frozen=True)
class _Task:
    """A model's `y` as a function of the input tensor, in the form that captum calls."""

    model: PreTrainedModel
    inputs: dict[str, Tensor]
    start: Tensor  # word embeddings [batch, length, hidden], or pixels
    readout: Readout
    length: int  # tokens in the model's sequence

    @classmethod
    @torch.no_grad()
    def of(cls, model, inputs, target, position) -> "_Task":
        inputs = prepared_inputs(model, inputs)
        outputs, coefficients = record_coefficients(model, inputs)
        length = sequence_length(model, inputs, coefficients)
        read = read_position(coefficients[-1], keep_mask_of(inputs, length))
        readout = choose_readout(model, outputs, target, position, read)
        start = inputs["pixel_values"] if reads_images(model) else model.get_input_embeddings()(inputs["input_ids"])
        return cls(model, inputs, start, readout, length)

    @property
    def rows(self) -> Tensor:
        """The index of each example; captum repeats it together with the example."""
        return torch.arange(len(self.start), device=self.start.device)

    @property
    def baseline(self) -> Tensor:
        if self.start.dim() == 4:
            return torch.zeros_like(self.start)
        padding = getattr(self.model.config.get_text_config(), "pad_token_id", None) or 0
        token = torch.tensor([padding], device=self.start.device)
        return self.model.get_input_embeddings()(token).detach().expand_as(self.start)

    def score(self, start: Tensor, rows: Tensor) -> Tensor:
        inputs, readout = {name: value[rows] for name, value in self.inputs.items()}, self.readout.of(rows)
        if start.dim() == 4:
            return readout(self.model(**inputs | {"pixel_values": start}, return_dict=True))
        # no inputs_embeds: some models find padding, or the position to read, by token id
        hook = self.model.get_input_embeddings().register_forward_hook(lambda *_: start)
        try:
            return readout(self.model(**inputs, return_dict=True))
        finally:
            hook.remove()

    def by_token(self, scores: Tensor) -> Tensor:
        """Sum scores of the shape of `start` to `[batch, length]`."""
        scores = scores.detach()
        if scores.dim() == 3:
            return scores.sum(-1)
        height, width = patch_size(self.model)
        by_patch = scores.unfold(2, height, height).unfold(3, width, width).sum((1, 4, 5)).flatten(1)
        leading = leading_tokens(self.model, self.start, self.length)
        return nn.functional.pad(by_patch, (leading, 0))
