"""The explained number as a function of the input, and integrated gradients of it, computed by captum."""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.kinds import takes_one_row
from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.modeling.activations import upcast

from ..forward import ForwardCache, reads_images
from ..image_text_cache import ImageTextCache
from ..readout import Readout, readout_of
from ..request import Request
from .image_text import ImageTextFunction

TOLERATED, SMALL = 0.1, 0.1  # error of integrated gradients, relative to a change of y of at least SMALL
CHUNK = 16  # points in a forward pass
MISSED = (
    "integrated-gradients: with %d steps the scores miss the change of y by %.0f %%; choose another method, or of a "
    "text or an image call hf_bidir.explain.integrated_gradients with steps=%d."
)


class InputFunction:
    """A model's outputs and `y` as functions of the input tensor, in the form that captum calls.

    Attributes:
        start: word embeddings `[batch, length, hidden]`, or pixels.
        rows: the index of each example; captum repeats it together with the example.
    """

    def __init__(self, cache: ForwardCache, request: Request) -> None:
        self.cache, self.request, self.model = cache, request, cache.model
        self.is_image = reads_images(cache.model)
        self.start = cache.main_input
        if not self.is_image:
            with torch.no_grad():
                self.start = self.model.get_input_embeddings()(cache.main_input)
        self.rows = torch.arange(len(self.start), device=self.start.device)

    @cached_property
    def readout(self) -> Readout:
        return readout_of(self.cache, self.request)

    @cached_property
    def baseline(self) -> Tensor:
        """Images of zeros, or padding at every token except the sinks of causal attention, the first of each text.

        Without a sink, y changes too abruptly for an integral of few steps.
        """
        if self.is_image:
            return torch.zeros_like(self.start)
        padding = getattr(self.model.config.get_text_config(), "pad_token_id", None) or 0
        token = torch.tensor([max(padding, 0)], device=self.start.device)  # -1 in old configs
        padded = self.model.get_input_embeddings()(token).detach()
        return torch.where(self._sinks().unsqueeze(-1), self.start, padded)

    @property
    def ends(self) -> tuple[tuple[Tensor], tuple[Tensor]]:
        """The ends of the path of integrated gradients, in the form that captum calls."""
        return (self.baseline,), (self.start,)

    @torch.no_grad()
    def _sinks(self) -> Tensor:
        """The tokens that are part of the baseline, boolean `[batch, length]`."""
        keep = self.cache.keep
        first = keep.long().argmax(-1)  # after padding on the left
        is_first = nn.functional.one_hot(first, keep.shape[1]).bool()
        causal = self.cache.position > first
        return is_first & causal.unsqueeze(1)

    def run(self, start: Tensor, rows: Tensor) -> ModelOutput:
        """The outputs of the model for these input tensors of the rows."""
        inputs = {name: value[rows] for name, value in self.cache.inputs.items()}
        start = start.to(self.start.dtype)  # captum adds noise in single precision
        if self.is_image:
            return self.model(**inputs | {"pixel_values": start}, return_dict=True)
        # no inputs_embeds: some models find padding, or the position to read, by token id
        with hooked([self.model.get_input_embeddings()], after=lambda *_: start.clone()):
            return self.model(**inputs, return_dict=True)

    def score(self, start: Tensor, rows: Tensor) -> Tensor:
        """`y` `[rows]` for these input tensors, with the class and position of the whole input."""
        return self.readout.of(rows)(self.run(start, rows))

    def attributed(self, slopes: Sequence[Tensor]) -> Tensor:
        """Scores `[batch, length]` from the mean gradient on the path."""
        (slope,) = slopes
        return self.by_token(slope * (self.start - self.baseline))

    def by_token(self, scores: Tensor) -> Tensor:
        """Sum scores of the shape of `start` to `[batch, length]`, in at least fp32."""
        scores = upcast(scores.detach())
        if not self.is_image:
            return scores.sum(-1)
        from ..inputs.image import leading_tokens, patch_size

        by_patch = nn.functional.avg_pool2d(scores.sum(1), patch_size(self.model), divisor_override=1)
        leading = leading_tokens(self.model, self.start, self.cache.length)
        return nn.functional.pad(by_patch.flatten(1), (leading, 0))


def integrated_gradients(cache: ForwardCache | ImageTextCache, request: Request, *, steps: int = 50) -> Tensor:
    """`(x - x') · ∫ ∂y/∂x` on the line from a baseline x' (Sundararajan et al. 2017); captum's `IntegratedGradients`.

    The baseline of a text is the embedding of the padding token at every position, in causal attention at every one but
    the first, whose score is then 0. That of an image has zeros, the mean colour after normalisation. That of both is
    the painted image, with padding in place of each word. The scores of an example sum to `y(x) - y(x')`, up to the
    error of the integral.

    Args:
        steps: points on the line, each one forward and backward pass. Where the sum of an example's scores misses the
            change of `y` by over 10 %, that is a note of the cache.

    Returns:
        `[batch, length]`, zero for padding and for the tokens before an image's patches. Of an image with a text
        `[1, tokens]`.
    """
    from captum.attr import IntegratedGradients

    together = isinstance(cache, ForwardCache) and not takes_one_row(cache.model)
    # of recurrent layers cuDNN has a backward pass in training mode only
    without_cudnn = torch.backends.cudnn.flags(enabled=False)
    with torch.inference_mode(False), in_evaluation(cache.model), without_cudnn:
        function = function_of(cache, request)
        baseline, start = function.ends
        total = (steps + 2) * len(function.rows)  # and both ends, for the error
        with tqdm(total=total, desc="integrated-gradients", unit="point", leave=False, delay=1) as bar:

            def score(*inputs: Tensor) -> Tensor:
                bar.update(len(inputs[-1]))
                return function.score(*inputs)

            slopes = IntegratedGradients(score, multiply_by_inputs=False).attribute(
                start,
                baselines=baseline,
                additional_forward_args=function.rows,
                n_steps=steps,
                internal_batch_size=CHUNK if together else 1,
            )
            with torch.no_grad():
                change = score(*start, function.rows) - score(*baseline, function.rows)
        scores = function.attributed(slopes)
    missed = (scores.sum(1) - change).abs() / change.abs().clamp_min(SMALL)
    for row in (missed > TOLERATED).nonzero().flatten().tolist():
        cache.notes[row].append(MISSED % (steps, 100 * missed[row].item(), 4 * steps))
    return scores


def function_of(cache: ForwardCache | ImageTextCache, request: Request) -> InputFunction | ImageTextFunction:
    """`y` as a function of the input of a model."""
    return InputFunction(cache, request) if isinstance(cache, ForwardCache) else ImageTextFunction(cache, request)
