"""A model's output as a function of its input embeddings or pixels, for methods that differentiate it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.layer_hooks import hooked
from hf_bidir.checkpoints.projections import check_differentiable
from hf_bidir.explain.record import Record, leading_tokens, patch_size, reads_images
from hf_bidir.explain.target import Readout, Target, choose_readout, has_head


@contextmanager
def without_cudnn_where_recurrent(model: PreTrainedModel) -> Iterator[None]:
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
class InputFunction:
    """A model's `y` as a function of the input tensor, in the form that captum calls."""

    model: PreTrainedModel
    inputs: dict[str, Tensor]
    start: Tensor  # word embeddings [batch, length, hidden], or pixels
    length: int  # tokens in the model's sequence
    readout: Readout | None  # None: that of the outputs of `score`, for a function of one point
    target: Target = None
    position: int | Tensor | None = None
    keep_first: Tensor | None = None  # boolean [batch]: texts whose first token is part of the baseline

    @classmethod
    @torch.no_grad()
    def of(
        cls, model, inputs, target, position, *, one_point: bool = False, keep_first: bool | None = None
    ) -> "InputFunction":
        """The function of these inputs.

        Args:
            one_point: it will be computed at the inputs only; saves a forward pass for texts and models with logits.
            keep_first: whether the first token of a text is part of the baseline; None: where attention is causal.
        """
        record = Record.of(model, inputs)
        check_differentiable(model)
        inputs = record.inputs
        start = inputs["pixel_values"] if reads_images(model) else model.get_input_embeddings()(inputs["input_ids"])
        if one_point and not record.kept and not reads_images(model) and has_head(model):
            return cls(model, inputs, start, start.shape[1], None, target, position)
        length, read = record.length, record.position
        kept = read > 0 if keep_first is None else torch.full_like(read, keep_first, dtype=torch.bool)
        readout = choose_readout(model, record.read()[0], target, position, read)
        return cls(model, inputs, start, length, readout, keep_first=kept)

    @property
    def rows(self) -> Tensor:
        """The index of each example; captum repeats it together with the example."""
        return torch.arange(len(self.start), device=self.start.device)

    @property
    def baseline(self) -> Tensor:
        """Images of zeros, or padding at every token, except the first of a text in `keep_first`.

        Causal models use the first token as a sink: most attention goes to it and most of their computation depends on
        it. On a path that starts without it, y changes too abruptly for an integral of few steps.
        """
        if self.start.dim() == 4:
            return torch.zeros_like(self.start)
        padding = getattr(self.model.config.get_text_config(), "pad_token_id", None)
        known = isinstance(padding, int) and 0 <= padding < self.model.get_input_embeddings().num_embeddings
        token = torch.tensor([padding if known else 0], device=self.start.device)
        padded = self.model.get_input_embeddings()(token).detach().expand_as(self.start)
        if self.keep_first is None:  # a function of one point
            return padded
        first = torch.arange(self.start.shape[1], device=self.start.device) == 0
        return torch.where((first & self.keep_first[:, None])[..., None], self.start, padded)

    def score(self, start: Tensor, rows: Tensor) -> Tensor:
        inputs = {name: value[rows] for name, value in self.inputs.items()}
        start = start.to(self.start.dtype)  # captum adds noise in single precision
        if start.dim() == 4:
            return self._read(self.model(**inputs | {"pixel_values": start}, return_dict=True), rows)
        # no inputs_embeds: some models find padding, or the position to read, by token id
        with hooked([self.model.get_input_embeddings()], after=lambda *_: start.clone()):
            return self._read(self.model(**inputs, return_dict=True), rows)

    def _read(self, outputs: ModelOutput, rows: Tensor) -> Tensor:
        if self.readout is None:
            return choose_readout(self.model, outputs, self.target, self.position)(outputs)
        return self.readout.of(rows)(outputs)

    def by_token(self, scores: Tensor) -> Tensor:
        """Sum scores of the shape of `start` to `[batch, length]`."""
        scores = scores.detach()
        if scores.dim() == 3:
            return scores.sum(-1)
        height, width = patch_size(self.model)
        by_patch = scores.unfold(2, height, height).unfold(3, width, width).sum((1, 4, 5)).flatten(1)
        leading = leading_tokens(self.model, self.start, self.length)
        return nn.functional.pad(by_patch, (leading, 0))
