"""Leave-one-out scores: how much the output falls without a token."""

from contextlib import AbstractContextManager
from typing import Any, Literal

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
from hf_bidir.explain.readout import Readout, readout_of
from hf_bidir.explain.request import Request


@torch.no_grad()
def erasure(
    cache: ForwardCache,
    request: Request,
    *,
    how: Literal["renormalise", "zero", "token"] = "renormalise",
    chunk_size: int = 64,
    progress: bool = True,
) -> Tensor:
    """`y - y without token i`, for every token: positive where the token supports the target.

    Several outputs of one text, which is in every row, share the forward passes, except with "token".

    Args:
        how: what "without" means.
            "renormalise"  no query attends to the token in any layer, and each query's other coefficients are rescaled
                           to the sum of magnitudes that all had before: with softmax the token is masked. A sentence
                           encoder leaves it out of its pooling, too, here and with "zero".
            "zero"         the same without rescaling, as in the TanhMax paper. In a model with one attention layer and
                           a linear output this is the contribution `a_i ∂y/∂a_i`, whatever the model does.
            "token"        the token is removed from the input: a word piece is deleted, and a patch is set to 0, the
                           mean colour after normalisation.
        chunk_size: number of erased tokens per forward pass.

    The tokens of a segment (`ForwardCache.units`) are erased together; "token" refuses segments.

    Returns:
        `[batch, length]`, the effect of a segment at its first token; for images one entry per token, special tokens
        first. Zero for padding and, with "token", for tokens that cannot be deleted: the one that `y` is read from, and
        those before an image's patches.

    Raises:
        ValueError: an unknown `how`, a `chunk_size` below 1, and as in `token_scores`.
    """
    if how not in ("renormalise", "zero", "token"):
        raise ValueError(f'expected how "renormalise", "zero" or "token", got {how!r}.')
    if chunk_size < 1:
        raise ValueError(f"expected a chunk_size of at least 1, got {chunk_size}.")
    if how == "token" and cache.units is not None:
        raise ValueError("erasure-token removes single tokens; use erasure for segments.")
    model, count = cache.model, len(cache.inputs[cache.model.main_input_name])
    text = cache if how == "token" else _one_text(cache)
    with in_evaluation(model):
        outputs = text.outputs if text is cache else _repeated(text.outputs, count)
        readout = readout_of(model, outputs, request, text.position)
        whole = readout(outputs)
        erased = _Erasure(text, readout, how)
        effects = torch.zeros(count, text.length, dtype=whole.dtype, device=whole.device)
        chunks = erased.chunks(1 if takes_one_row(model) else chunk_size)
        hidden = not progress or len(chunks) < 2
        for chunk in tqdm(chunks, desc="erasure", unit="call", leave=False, delay=1, disable=hidden):
            examples, tokens = chunk.unbind(1)
            remaining, remaining_readout = erased.outputs(examples, tokens)
            if text is cache:
                effects[examples, tokens] = whole[examples] - remaining_readout(remaining)
            else:
                left = [readout(_repeated(remaining, count, row)) for row in range(len(tokens))]
                effects[:, tokens] = whole.unsqueeze(1) - torch.stack(left, 1)
    return effects


class _Erasure:
    """The outputs of a model without single tokens or segments."""

    def __init__(self, cache: ForwardCache, readout: Readout, how: str) -> None:
        self.cache, self.readout, self.how = cache, readout, how
        keep = cache.keep
        self.units = torch.arange(cache.length, device=keep.device).expand_as(keep)
        if cache.units is not None:
            self.units = cache.units.to(keep.device)

    def chunks(self, size: int) -> list[Tensor]:
        """Example and token `[chunk, 2]` of each erasure, in chunks that run together."""
        keep = self.cache.keep
        if self.how == "token":
            erasable = keep & ~_indispensable(self.cache, self.readout)
        else:
            before = nn.functional.pad(self.units[:, :-1], (1, 0), value=-1)
            erasable = keep & (self.units != before)
        return [chunk for chunk in erasable.nonzero().split(size) if len(chunk)]

    def outputs(self, examples: Tensor, tokens: Tensor) -> tuple[ModelOutput, Readout]:
        """The outputs for these examples, each without its token, and their readout."""
        model = self.cache.model
        rows = {name: value[examples] for name, value in self.cache.inputs.items()}
        readout = self.readout.of(examples) if len(self.readout.weights) == len(self.units) else self.readout
        if self.how == "token":
            rows, readout = _without_input(model, rows, readout, tokens, self.cache.length)
            return model(**rows, return_dict=True), readout
        others = self.units[examples] != self.units[examples, tokens].unsqueeze(1)
        if takes_embedding(model):
            rows["pooled"] = others
        with _attending_only(model, others[:, None, None], self.how):
            return model(**rows, return_dict=True), readout


def _one_text(cache: ForwardCache) -> ForwardCache:
    """The first row of a text in all rows, of which several outputs are explained; otherwise the cache."""
    same = kind_of(cache.model).per_token and all(bool((x == x[:1]).all()) for x in cache.inputs.values())
    if not same or len(cache.inputs["input_ids"]) == 1:
        return cache
    first = {name: value[:1] for name, value in cache.inputs.items()}
    return ForwardCache(cache.model, first, None if cache.units is None else cache.units[:1])


def _repeated(outputs: ModelOutput, count: int, row: int = 0) -> ModelOutput:
    """One row of logits as those of `count` examples."""
    logits: Any = outputs["logits"]
    return ModelOutput(logits=logits[row].expand(count, *logits.shape[1:]))


def _attending_only(model: PreTrainedModel, others: Tensor, how: str) -> AbstractContextManager[None]:
    """Context in which queries attend to the `others` only, boolean `[rows, 1, 1, keys]`."""
    if how == "zero":
        return edited_coefficients(model, lambda coefficients: coefficients * others)

    def renormalised(coefficients: Tensor) -> Tensor:
        rest = coefficients * others
        # rest / left first, in fp32: total / left could overflow
        total, left = (values.float().abs().sum(-1, keepdim=True) for values in (coefficients, rest))
        share = rest.float() / left.clamp_min(torch.finfo(torch.float32).tiny)
        return (share * total).to(coefficients.dtype)

    return edited_coefficients(model, renormalised)


def _indispensable(cache: ForwardCache, readout: Readout) -> Tensor:
    """Boolean `[batch, length]`: the only token that `y` is read from, and the tokens before an image's patches."""
    model, inputs, keep = cache.model, cache.inputs, cache.keep
    if takes_embedding(model):
        return model.pooling_weights(keep) == 1
    if not attends_between_tokens(model):
        return (keep.sum(1, keepdim=True) == 1).expand_as(keep)
    positions = torch.arange(keep.shape[1], device=keep.device)
    if "pixel_values" in inputs:
        return (positions < leading_tokens(model, inputs["pixel_values"], keep.shape[1])).expand_as(keep)
    read = cache.position if readout.positions is None else readout.positions
    return positions == read.unsqueeze(1)


def _without_input(model, rows: dict, readout: Readout, tokens: Tensor, length: int) -> tuple[dict, Readout]:
    """The input rows, each without its token, and the readout at the shifted position."""
    if "pixel_values" in rows:
        patches = tokens - leading_tokens(model, rows["pixel_values"], length)
        return {**rows, "pixel_values": _painted(rows["pixel_values"], patches, patch_size(model))}, readout
    remaining = torch.arange(length - 1, device=tokens.device)
    remaining = remaining + (remaining >= tokens.unsqueeze(1))
    shorter = {name: value.gather(1, remaining) for name, value in rows.items()}
    if "position_ids" in rows:  # the remaining tokens move up
        shorter["position_ids"] = rows["position_ids"][:, :-1]
    positions = None if readout.positions is None else readout.positions - (tokens < readout.positions).long()
    return shorter, Readout(readout.weights, positions)


def _painted(pixels: Tensor, patches: Tensor, size: tuple[int, int]) -> Tensor:
    """Images `[rows, channels, height, width]`, each with one patch set to 0, the mean after normalisation."""
    height, width = size
    row, column = patches // (pixels.shape[3] // width), patches % (pixels.shape[3] // width)
    in_row = torch.arange(pixels.shape[2], device=pixels.device) // height == row.unsqueeze(1)
    in_column = torch.arange(pixels.shape[3], device=pixels.device) // width == column.unsqueeze(1)
    return pixels.masked_fill((in_row.unsqueeze(2) & in_column.unsqueeze(1)).unsqueeze(1), 0)
