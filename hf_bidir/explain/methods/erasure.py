"""Leave-one-out scores: how much the output falls without a token, or without a group of tokens."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.kinds import kind_of, takes_one_row
from hf_bidir.checkpoints.layer_hooks import edited_coefficients, in_evaluation
from hf_bidir.explain.forward import (
    ForwardCache,
    attends_between_tokens,
    leading_tokens,
    patch_size,
    takes_embedding,
)
from hf_bidir.explain.readout import Readout, cached_readout, readout_of
from hf_bidir.explain.request import Request

CHUNK = 64  # erasures in a forward pass


@torch.no_grad()
def erasure(cache: ForwardCache, request: Request, *, rescale: bool = True, chunk_size: int = CHUNK) -> Tensor:
    """`y - y without token i`, for every token: no query attends to it in any layer. Positive where it supports y.

    The tokens of a segment (`ForwardCache.units`) are erased together. A sentence encoder leaves them out of its
    pooling, too. Several outputs of one text, which is in every row, share the forward passes.

    Args:
        rescale: whether each query's other coefficients are rescaled to the sum of magnitudes that all had before: with
            softmax the token is then masked. Without it, as in the TanhMax paper, the effect in a model with one
            attention layer and a linear output is the contribution `a_i ∂y/∂a_i`.
        chunk_size: erasures in a forward pass.

    Returns:
        `[batch, length]`, the effect of a segment at its first token; for images one entry per token, special tokens
        first. Zero for padding.
    """
    model = cache.model
    text = _one_text(cache)
    shared = text is not cache
    units = _units(text)
    before = nn.functional.pad(units[:, :-1], (1, 0), value=-1)
    begins = units != before
    with in_evaluation(model):
        outputs: Any = text.outputs
        if shared:
            outputs = ModelOutput(logits=outputs.logits.expand(len(cache.keep), -1, -1))
        readout = readout_of(model, outputs, request, text.position)
        whole = readout(outputs)
        effects = torch.zeros(len(whole), text.length, dtype=whole.dtype, device=whole.device)
        for examples, tokens in _chunks(model, text.keep & begins, chunk_size):
            remains = units[examples] != units[examples, tokens].unsqueeze(1)
            rows = {name: value[examples] for name, value in text.inputs.items()}
            if takes_embedding(model):
                rows["pooled"] = remains
            with _attending_only(model, remains[:, None, None], rescale):
                remaining = model(**rows, return_dict=True)
            if not shared:
                effects[examples, tokens] = whole[examples] - readout.of(examples)(remaining)
                continue
            for row, y in enumerate(whole):
                of_row = readout.of(torch.full_like(examples, row))
                effects[row, tokens] = y - of_row(remaining)
    return effects


@torch.no_grad()
def erasure_by_token(cache: ForwardCache, request: Request, *, chunk_size: int = CHUNK) -> Tensor:
    """`y - y without token i` in the input: a word piece is deleted, a patch is set to 0, the mean after normalisation.

    Returns:
        `[batch, length]`, as `erasure`. Zero for padding, and for tokens that cannot be deleted: the one that `y` is
        read from, and those before an image's patches.

    Raises:
        ValueError: segments.
    """
    if cache.units is not None:
        raise ValueError("erasure-token removes single tokens; use erasure for segments.")
    model = cache.model
    with in_evaluation(model):
        readout = cached_readout(cache, request)
        whole = readout(cache.outputs)
        effects = torch.zeros(len(whole), cache.length, dtype=whole.dtype, device=whole.device)
        for examples, tokens in _chunks(model, cache.keep & ~_indispensable(cache, readout), chunk_size):
            rows = {name: value[examples] for name, value in cache.inputs.items()}
            part = readout.of(examples)
            if "pixel_values" in rows:
                patches = tokens - leading_tokens(model, rows["pixel_values"], cache.length)
                rows["pixel_values"] = _painted(rows["pixel_values"], patches, patch_size(model))
            else:
                rows = _shortened(rows, tokens)
                part = _moved(part, tokens)
            effects[examples, tokens] = whole[examples] - part(model(**rows, return_dict=True))
    return effects


def _chunks(model: PreTrainedModel, erasable: Tensor, size: int) -> Iterator[tuple[Tensor, ...]]:
    """The examples and tokens of erasures that run together, where `erasable`, `[batch, length]`."""
    places = erasable.nonzero()
    chunks = places.split(1 if takes_one_row(model) else size)
    for chunk in tqdm(chunks, desc="erasure", unit="call", leave=False, delay=1):
        if len(chunk):
            yield chunk.unbind(1)


def _units(cache: ForwardCache) -> Tensor:
    """The segment of each token, `[batch, length]`; by default every token is one."""
    if cache.units is None:
        positions = torch.arange(cache.length, device=cache.keep.device)
        return positions.expand_as(cache.keep)
    return cache.units.to(cache.keep.device)


def _one_text(cache: ForwardCache) -> ForwardCache:
    """The first row of a text in all rows, of which several outputs are explained; otherwise the cache."""
    rows = list(cache.inputs.values())
    same = all((row == row[:1]).all() for row in rows)
    if not same or len(rows[0]) == 1 or not kind_of(cache.model).per_token:
        return cache
    first = {name: value[:1] for name, value in cache.inputs.items()}
    return ForwardCache(cache.model, first, None if cache.units is None else cache.units[:1])


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
    """Boolean `[batch, length]`: the only token that `y` is read from, and the tokens before an image's patches."""
    model, keep = cache.model, cache.keep
    if takes_embedding(model):
        return model.pooling_weights(keep) == 1
    if not attends_between_tokens(model):
        return (keep.sum(1, keepdim=True) == 1).expand_as(keep)
    positions = torch.arange(keep.shape[1], device=keep.device)
    if "pixel_values" in cache.inputs:
        leading = leading_tokens(model, cache.inputs["pixel_values"], keep.shape[1])
        return (positions < leading).expand_as(keep)
    read = cache.position if readout.positions is None else readout.positions
    return positions == read.unsqueeze(1)


def _shortened(rows: dict[str, Tensor], tokens: Tensor) -> dict[str, Tensor]:
    """The rows of a text, each without its token; the tokens after it move up."""
    length = rows["input_ids"].shape[1]
    remaining = torch.arange(length - 1, device=tokens.device)
    remaining = remaining + (remaining >= tokens.unsqueeze(1))
    shorter = {name: value.gather(1, remaining) for name, value in rows.items()}
    if "position_ids" in rows:
        shorter["position_ids"] = rows["position_ids"][:, :-1]
    return shorter


def _moved(readout: Readout, tokens: Tensor) -> Readout:
    """The readout at its positions in texts without these tokens."""
    if readout.positions is None:
        return readout
    return Readout(readout.weights, readout.positions - (tokens < readout.positions).long())


def _painted(pixels: Tensor, patches: Tensor, size: tuple[int, int]) -> Tensor:
    """Images `[rows, channels, height, width]`, each with one patch set to 0."""
    height, width = size
    columns = pixels.shape[3] // width
    images = pixels.clone()
    for image, patch in zip(images, patches.tolist(), strict=True):
        top = patch // columns * height
        left = patch % columns * width
        image[:, top : top + height, left : left + width] = 0
    return images
