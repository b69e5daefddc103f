"""Gradients with respect to the input, by captum, to compare attention with."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from captum.attr import InputXGradient, IntegratedGradients
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_bidir.explain.readout import Readout, Target, choose_readout
from hf_bidir.explain.running import in_evaluation, patch_size, prepared_inputs

TOLERATED, SMALL = 0.1, 0.1  # what integrated gradients may miss, relative to a change of y of at least this


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
    """`(x - x') · ∫ ∂y/∂x` on the way from a baseline x' (Sundararajan et al. 2017); captum's `IntegratedGradients`.

    The baseline is the embedding of the padding token at every position, or an image of zeros, the mean colour after
    normalisation; the scores of an example sum to `y(x) - y(x')`, up to the error of the integral.

    Arguments, result and errors as in `gradient_times_input`.

    Args:
        steps: points on the way; each is one forward and backward pass. Warns where they are too few: where the scores
            of an example miss the change of `y` by over a tenth.
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
        warnings.warn(
            f"integrated gradients with {steps} steps miss the change of y by {missed.max():.0%}; give more steps.",
            stacklevel=2,
        )
    return task.by_token(scores)


@contextmanager
def _without_cudnn_where_recurrent(model: PreTrainedModel) -> Iterator[None]:
    """cuDNN has a backward pass for recurrent layers in training alone; PyTorch's own layers have one always.

    `torch.backends.cudnn.flags` would set its other switches back as well.
    """
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = before and not any(isinstance(module, nn.RNNBase) for module in model.modules())
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


@dataclass(frozen=True)
class _Task:
    """A model's `y` as a function of the tensor that gradients are taken of, as captum wants it."""

    model: PreTrainedModel
    start: Tensor  # word embeddings [batch, length, hidden], or pixels
    rest: dict[str, Tensor]
    readout: Readout
    length: int  # of the model's sequence, in tokens

    @classmethod
    @torch.no_grad()
    def of(cls, model, inputs, target, position) -> "_Task":
        inputs = prepared_inputs(model, inputs)
        outputs = model(**inputs, output_hidden_states=True, return_dict=True)
        readout = choose_readout(model, outputs, target, position)
        rest = {name: value for name, value in inputs.items() if name not in ("input_ids", "pixel_values")}
        start = inputs.get("pixel_values")
        start = model.get_input_embeddings()(inputs["input_ids"]) if start is None else start
        return cls(model, start, rest, readout, outputs.hidden_states[-1].shape[1])

    @property
    def rows(self) -> Tensor:
        """The number of each example; captum repeats it together with the example."""
        return torch.arange(len(self.start), device=self.start.device)

    @property
    def baseline(self) -> Tensor:
        if self.start.dim() == 4:
            return torch.zeros_like(self.start)
        padding = self.model.get_input_embeddings().weight[self.model.config.pad_token_id or 0]
        return padding.detach().expand_as(self.start)

    def score(self, start: Tensor, rows: Tensor) -> Tensor:
        name = "pixel_values" if start.dim() == 4 else "inputs_embeds"
        rest = {key: value[rows] for key, value in self.rest.items()}
        return self.readout.of(rows)(self.model(**{name: start}, **rest, return_dict=True))

    def by_token(self, scores: Tensor) -> Tensor:
        """Scores like `start`, summed to `[batch, length]`."""
        scores = scores.detach()
        if scores.dim() == 3:
            return scores.sum(-1)
        height, width = patch_size(self.model)
        by_patch = scores.unfold(2, height, height).unfold(3, width, width).sum((1, 4, 5)).flatten(1)
        return torch.nn.functional.pad(by_patch, (self.length - by_patch.shape[1], 0))
