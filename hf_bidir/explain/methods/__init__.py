"""All methods under one signature; the file of a method is imported when the method is first used."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from hf_bidir.checkpoints.signing import as_signed

from ..forward import AnyCache, ForwardCache
from ..inputs.text import Example
from ..registry import LAYER_DEFAULT, NoRule
from ..request import AFFORDABLE, Request, Target, check_position

ROWS = 16  # outputs of one text that are explained in one batch
SINK = 0.9  # share of the scores on the first or a special token from which they do not rank the others
CHEAP_NOTE = (
    "{best}, the default of short texts, would need {passes} forward passes; {method} needs {cost} pass. "
    'Choose method="{best}" (--method {best}) to wait.'
)
STREAM_NOTE = f"{{method}} is cheap; budget={AFFORDABLE} (--method {{best}}) gives {{best}}, as for single texts."
FEWER_PASSES = ' With segments="sentences" (--segments sentences) it needs one per sentence.'

logger = logging.getLogger(__name__)


def token_scores(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    method: str | None = None,
    target: Target = None,
    **choices: Any,
) -> Tensor:
    """Scores of one method of `METHODS`, one per token, `[batch, length]`; padding gets zeros.

    Args:
        model: as in `explain`, on any attention backend.
        inputs: a batch of model inputs.
        method: a name of `METHODS`; None selects `default_method`.
        target: the class whose logit is `y`, by index or name: one for all examples, or one index per example. None
            selects the predicted class. For a model without a head, `y` projects its hidden state on itself. Methods
            without signs ignore the target.
        choices: position, layer, head and instead_of, as in `Request`. For models without a head the default position
            is the first token, or the last one in causal attention.

    Raises:
        ValueError: no input, an unknown method, target, layer or head, a layer or head for a method that takes none, or
            a method that the model does not support.
    """
    request = Request(method, target, **choices)
    with as_signed(model):
        cache = ForwardCache(model, inputs)
        check_position(cache.model, request.position)
        scores, _, _ = scored(cache, request)
    for note in dict.fromkeys(chain(*cache.notes.values())):
        logger.warning(note)
    return scores


def scored(cache: AnyCache, request: Request) -> tuple[Tensor, Request, str]:
    """The scores, the request with the method that they are of, and a note on the choice of a default method.

    Where the default method has no rule for an operation of the model, they are contributions.
    """
    model, passes, note = cache.model, cache.passes, ""
    resolved = request.resolved(model, passes)
    if resolved.method != (best := request.resolved(model, passes=0).method):
        chosen = CHEAP_NOTE if request.budget else STREAM_NOTE
        note = chosen.format(best=best, passes=passes, method=resolved.method, cost=resolved.entry.cost)
        note += FEWER_PASSES if request.budget and request.segments is None else ""
    try:
        return _scores(cache, resolved), resolved, note
    except NoRule as error:
        if request.method is not None:
            raise
        note = f"The default method, {resolved.method}, does not apply: {error}"
    resolved = replace(resolved, method=LAYER_DEFAULT)
    return _scores(cache, resolved), resolved, note


def _scores(cache: AnyCache, request: Request) -> Tensor:
    """Scores `[batch, length]`, or of several targets of one text, each with its position if any, `[targets, length]`.

    Those run in batches; methods with a forward pass per token compute all of them at once.
    """
    method, targets = request.entry, request.target
    positions: Any = request.position
    repeats = isinstance(cache, ForwardCache) and not method.shared
    if not (repeats and isinstance(targets, Tensor) and targets.numel() > len(cache.main_input)):
        return method.scores(cache, request)
    scores = []
    for batch in tqdm(torch.arange(len(targets)).split(ROWS), desc=request.method, unit="batch", leave=False, delay=1):
        of_batch = replace(request, target=targets[batch], position=None if positions is None else positions[batch])
        scores.append(method.scores(cache.repeated(len(batch)), of_batch).detach())
    return torch.cat(scores)


def sink_note(request: Request, example: Example, scores: Tensor) -> str:
    """One sentence where a sink of the attention holds almost all of the scores `[..., tokens]`, else ""."""
    tokens = example.tokens
    totals = scores.reshape(-1, len(tokens)).sum(0)
    largest = int(totals.argmax())
    share = (totals[largest] / totals.sum()).item()
    stands_out = len(tokens) > 1 and share >= SINK  # False where all scores are 0
    is_sink = stands_out and (largest == 0 or example.special[largest])
    if request.entry.explains_output or not is_sink:
        return ""
    return (
        f'"{tokens[largest]}", a sink of the attention, holds {share:.0%} of the scores of {request.method}; they do '
        "not rank the other tokens."
    )
