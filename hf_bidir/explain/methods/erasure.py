"""Leave-one-out scores: how much the output falls without a token."""

from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.kinds import kind_of, takes_one_row
from hf_bidir.checkpoints.layer_hooks import edited_coefficients, in_evaluation
from hf_bidir.explain.record import Inputs, Record, SegmentedInputs, attends_between_tokens, leading_tokens, patch_size
from hf_bidir.explain.target import Position, Readout, Target, choose_readout, takes_embedding


@torch.no_grad()
def erasure(
    model: PreTrainedModel,
    inputs: Inputs,
    target: Target = None,
    how: Literal["renormalise", "zero", "token"] = "renormalise",
    *,
    position: Position = None,
    chunk_size: int = 64,
    progress: bool = True,
) -> Tensor:
    """`y - y without token i`, for every token: positive where the token supports the target.

    Several outputs of one text, which is in every row, share the forward passes, except with "token".

    Args:
        model, inputs, target, position: as in `contributions`.
        how: what "without" means.
            "renormalise"  no query attends to the token in any layer, and each query's other coefficients are rescaled
                           to the sum of magnitudes that all had before: with softmax the token is masked. A sentence
                           encoder leaves it out of its pooling, too, here and with "zero".
            "zero"         the same without rescaling, as in the TanhMax paper. In a model with one attention layer and
                           a linear output this is the contribution `a_i ∂y/∂a_i`, whatever the model does.
            "token"        the token is removed from the input: a word piece is deleted, and a patch is set to 0, the
                           mean colour after normalisation.
        chunk_size: number of erased tokens per forward pass.

    The tokens of a segment (`SegmentedInputs`) are erased together; "token" refuses segments.

    Returns:
        `[batch, length]`, the effect of a segment at its first token; for images one entry per token, special tokens
        first. Zero for padding and, with "token", for tokens that cannot be deleted: the one that `y` is read from, and
        those before an image's patches.

    Raises:
        ValueError: an unknown `how`, a `chunk_size` below 1, and as in `contributions`.
    """
    if how not in ("renormalise", "zero", "token"):
        raise ValueError(f'expected how "renormalise", "zero" or "token", got {how!r}.')
    if chunk_size < 1:
        raise ValueError(f"expected a chunk_size of at least 1, got {chunk_size}.")
    record = Record.of(model, inputs)
    if how == "token" and record.units is not None:
        raise ValueError("erasure-token removes single tokens; use erasure for segments.")
    asked = len(record.inputs[model.main_input_name])
    record = record if how == "token" else _one_text(record)
    inputs = record.inputs
    chunk_size = 1 if takes_one_row(model) else chunk_size
    with in_evaluation(model):
        outputs, length = record.read()[0], record.length
        keep, read = record.keep, record.position
        units = torch.arange(length, device=keep.device).expand_as(keep)
        units = units if record.units is None else record.units.to(keep.device)
        first = units != torch.nn.functional.pad(units[:, :-1], (1, 0), value=-1)
        outputs, shared = (outputs, False) if len(keep) == asked else (_repeated(outputs, asked), True)
        readout = choose_readout(model, outputs, target, position, read)
        whole = readout(outputs)
        effects = torch.zeros(asked, length, dtype=whole.dtype, device=whole.device)
        erasable = keep & first if how != "token" else keep & ~_indispensable(model, inputs, readout, read, keep)
        chunks = [chunk for chunk in erasable.nonzero().split(chunk_size) if len(chunk)]
        for chunk in tqdm(
            chunks, desc="erasure", unit="call", leave=False, delay=1, disable=not progress or len(chunks) < 2
        ):
            examples, tokens = chunk.unbind(1)
            rows, own = {name: value[examples] for name, value in inputs.items()}, readout.of(examples)
            if how == "token":
                rows, own = _without_input(model, rows, own, tokens, length)
                remaining = model(**rows, return_dict=True)
            else:
                others = units[examples] != units[examples, tokens].unsqueeze(1)
                if takes_embedding(model):
                    rows["pooled"] = others
                with _attending_only(model, others[:, None, None], how):
                    remaining = model(**rows, return_dict=True)
            if shared:
                left = [readout(_repeated(remaining, asked, row)) for row in range(len(tokens))]
                effects[:, tokens] = whole.unsqueeze(1) - torch.stack(left, 1)
            else:
                effects[examples, tokens] = whole[examples] - own(remaining)
    return effects


def _one_text(record: Record) -> Record:
    """The first row of a text in all rows, of which several outputs are explained; otherwise the record."""
    same = kind_of(record.model).per_token and all(bool((x == x[:1]).all()) for x in record.inputs.values())
    if not same or record.kept:
        return record
    first = {name: value[:1] for name, value in record.inputs.items()}
    return Record(record.model, first if record.units is None else SegmentedInputs(first, record.units[:1]))


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


def _indispensable(model: PreTrainedModel, inputs: dict, readout: Readout, read: Tensor, keep: Tensor) -> Tensor:
    """Boolean like `keep`: the only token that `y` is read from, and the tokens before an image's patches."""
    if takes_embedding(model):
        return model.pooling_weights(keep) == 1
    if not attends_between_tokens(model):
        return (keep.sum(1, keepdim=True) == 1).expand_as(keep)
    positions = torch.arange(keep.shape[1], device=keep.device)
    if "pixel_values" in inputs:
        return (positions < leading_tokens(model, inputs["pixel_values"], keep.shape[1])).expand_as(keep)
    return positions == (read if readout.positions is None else readout.positions).unsqueeze(1)


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
