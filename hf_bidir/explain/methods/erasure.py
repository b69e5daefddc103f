"""Leave-one-out scores: how much the output falls without a token, or without a group of tokens."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.kinds import takes_one_row
from hf_bidir.checkpoints.layer_hooks import edited_coefficients, in_evaluation

from ..forward import ForwardCache, attends_between_tokens, reads_images, takes_embedding
from ..inputs.image import leading_tokens, patch_grid, patch_size
from ..inputs.text import Example
from ..readout import Readout, readout_of
from ..request import Request, only_deletes
from . import image_text

CHUNK, TOKENS = 64, 4096  # erasures in a forward pass, and their tokens


@torch.no_grad()
def erasure(cache: ForwardCache, request: Request, *, rescale: bool = True, chunk_size: int = CHUNK) -> Tensor:
    """`y - y without word i`, for every word: no query attends to it in any layer. Positive where it supports y.

    The tokens of a word or segment (`ForwardCache.units`) are erased together; a sentence encoder does not pool them,
    either. Several outputs of one text, with a tensor of targets and of positions, share the forward passes.

    Args:
        rescale: whether each query's other coefficients are rescaled to the sum of magnitudes that all had before: with
            softmax the token is then masked. Without it, as in the TanhMax paper, the effect in a model with one
            attention layer and a linear output is the contribution `a_i ∂y/∂a_i`.
        chunk_size: erasures in a forward pass, fewer of long texts.

    Returns:
        `[batch or targets, length]`, the effect of a word at its first token; for images one entry per token,
        special tokens first. Zero for padding.
    """
    model = cache.model
    with in_evaluation(model):
        outputs: Any = cache.outputs
        targets = request.target.numel() if isinstance(request.target, Tensor) else 1
        several = len(cache.main_input) == 1 and targets > 1
        if several:
            outputs = ModelOutput(logits=outputs.logits.expand(targets, *outputs.logits.shape[1:]))
        readout = readout_of(cache, request, outputs)
        whole = readout(outputs)
        effects = whole.new_zeros(len(whole), cache.length)
        for examples, tokens, remains in _erasures(cache, chunk_size):
            inputs = {name: value[examples] for name, value in cache.inputs.items()}
            if takes_embedding(model):
                inputs["pooled"] = remains
            with _attending_only(model, remains[:, None, None], rescale):
                remaining = model(**inputs, return_dict=True)
            rows = [torch.full_like(examples, row) for row in range(targets)] if several else [examples]
            for row in rows:
                effects[row, tokens] = whole[row] - readout.of(row)(remaining)
    return effects


@torch.no_grad()
def deletion(cache: ForwardCache, request: Request, *, chunk_size: int = CHUNK) -> Tensor:
    """`y - y without word i` in the input: the pieces of a word are deleted, a patch is set to 0, the mean colour.

    Returns:
        `[batch, length]`, as `erasure`. Zero for padding, and for tokens that cannot be deleted: the one that `y` is
        read from, and those before an image's patches. Of an image with a text `[batch or targets, tokens]`.
    """
    if not isinstance(cache, ForwardCache):
        return image_text.deletion(cache, request)
    model = cache.model
    with in_evaluation(model):
        readout = readout_of(cache, request, cache.outputs_alone)
        whole = readout(cache.outputs_alone)
        effects = whole.new_zeros(cache.keep.shape)
        fixed = cache.keep & _indispensable(cache, readout)
        for examples, tokens, remains in _erasures(cache, chunk_size):
            left = remains & cache.keep[examples]
            allowed = left.any(1) & ~(fixed[examples] & ~remains).any(1)
            lengths = remains.sum(1)
            for length in lengths[allowed].unique():  # texts of equal length form a batch without padding
                rows = allowed & (lengths == length)
                inputs, moved = without(cache, readout, examples[rows], remains[rows])
                y = moved(model(**inputs, return_dict=True))
                effects[examples[rows], tokens[rows]] = whole[examples[rows]] - y
    return effects


def outputs_without(
    cache: ForwardCache, example: Example, readout: Readout, removed: list[int]
) -> tuple[ModelOutput, Readout]:
    """The outputs for a cache's single example without some of its tokens, and where `y` is then read from."""
    if not isinstance(cache, ForwardCache):
        return cache.without([example.places[token] for token in removed]), readout
    remains = ~torch.isin(example.token_of_piece, torch.tensor(removed)).to(cache.main_input.device)
    inputs, moved = without(cache, readout, torch.tensor([0]), remains.unsqueeze(0))
    with in_evaluation(cache.model):
        return cache.model(**inputs, return_dict=True), moved


def without(
    cache: ForwardCache, readout: Readout, examples: Tensor, remains: Tensor
) -> tuple[dict[str, Tensor], Readout]:
    """The inputs of examples `[rows]` without some tokens, and where their output is read from.

    Args:
        remains: boolean `[rows, length]`, with as many tokens in each row of texts, which move up; of images the other
            patches are set to 0.
    """
    inputs = {name: value[examples] for name, value in cache.inputs.items()}
    moved = readout.of(examples)
    if reads_images(cache.model):
        patches = remains[:, leading_tokens(cache.model, cache.main_input, cache.length) :]
        painted = _painted(cache.model, inputs["pixel_values"], patches)
        return inputs | {"pixel_values": painted}, moved
    if moved.positions is not None:
        before = torch.arange(remains.shape[1], device=remains.device) < moved.positions.unsqueeze(2)
        answer = moved.answer and moved.answer._replace(predicted=None, probability=None)
        moved = replace(moved, positions=(remains.unsqueeze(1) & before).sum(2), answer=answer)
    places = remains.nonzero()[:, 1].view(len(remains), -1)
    shortened = {name: value.gather(1, places) for name, value in inputs.items()}
    if "position_ids" in inputs:
        shortened["position_ids"] = inputs["position_ids"][:, : places.shape[1]]
    return shortened, moved


def _erasures(cache: ForwardCache, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Erasures that run together: their examples and first tokens `[rows]`, and what remains, boolean `[rows, length]`.

    Each word or segment is erased, by default every token.
    """
    keep, units = cache.keep, cache.units
    if units is None:
        units = torch.arange(keep.shape[1]).expand_as(keep)
    units = units.to(keep.device)
    begins = nn.functional.pad(units.diff(), (1, 0), value=1) != 0
    size = 1 if takes_one_row(cache.model) else max(1, min(size, TOKENS // keep.shape[1]))
    chunks = (keep & begins).nonzero().split(size)
    for chunk in tqdm(chunks, desc="erasure", unit="call", leave=False, delay=1):
        examples, tokens = chunk.unbind(1)
        yield examples, tokens, units[examples] != units[examples, tokens].unsqueeze(1)


def _attending_only(model: PreTrainedModel, remains: Tensor, rescale: bool) -> AbstractContextManager[None]:
    """Context in which queries attend only to keys that `remains`, boolean `[rows, 1, 1, keys]`, keeps."""

    def erased(coefficients: Tensor) -> Tensor:
        rest = coefficients * remains
        if not rescale:
            return rest
        # rest / left first, in fp32: total / left could overflow
        total = coefficients.float().abs().sum(-1, keepdim=True)
        left = rest.float().abs().sum(-1, keepdim=True)
        share = rest.float() / left.clamp_min(torch.finfo(torch.float32).tiny)
        return (share * total).to(coefficients.dtype)

    return edited_coefficients(model, erased)


def _indispensable(cache: ForwardCache, readout: Readout) -> Tensor:
    """Boolean, as `[batch, length]`: the tokens that `y` is read from, and those before an image's patches."""
    model, keep = cache.model, cache.keep
    if takes_embedding(model):
        return model.pooling_weights(keep) == 1
    if not attends_between_tokens(model):
        return keep.sum(1, keepdim=True) == 1
    positions = torch.arange(keep.shape[1], device=keep.device)
    if reads_images(model):
        return (positions < leading_tokens(model, cache.main_input, cache.length)).unsqueeze(0)
    read = readout.positions
    if read is None and only_deletes(model):  # then it is unknown, or the end of a text
        last = keep.sum(1, keepdim=True) - 1
        return (positions == 0) | (positions == last) | (cache.main_input == model.config.eos_token_id)
    if read is None:
        read = cache.position.unsqueeze(1)
    return (positions == read.unsqueeze(2)).any(1)


def _painted(model: PreTrainedModel, pixels: Tensor, remains: Tensor) -> Tensor:
    """Images `[rows, channels, height, width]` with the patches that do not remain, `[rows, patches]`, set to 0."""
    height, width = patch_size(model)
    grid = remains.view(len(remains), 1, *patch_grid(model, pixels))
    stays = grid.repeat_interleave(height, 2).repeat_interleave(width, 3)
    images = pixels.clone()
    images[..., : stays.shape[2], : stays.shape[3]] *= stays
    return images
