"""Whether to believe an explanation: the prediction without what supports it most, and a second method."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import torch
from torch import Tensor

from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.explain.forward import ForwardCache, takes_embedding
from hf_bidir.explain.inputs.text import Example, percent, signed, told_apart
from hf_bidir.explain.methods.erasure import without
from hf_bidir.explain.readout import Prediction, Readout, predictions, readout_of
from hf_bidir.explain.request import AFFORDABLE, Request

REMOVED = 3  # words, and at most half of them
REMOVED_SHARE = 0.1  # of the patches of an image
NAMED = 3  # words in a sentence
LONGEST = 512  # tokens up to which a second method runs, which keeps coefficients of length x length
MATTERS = 0.1  # share of its method's largest magnitude from which the sign of a score counts
AGREES = 0.5  # least rank correlation


@dataclass(frozen=True)
class Verdict:
    """What the prediction becomes without the tokens that support it most, and whether a second method agrees.

    Attributes:
        before: the prediction that is explained.
        removed: words that were removed, or patches that were painted in the mean colour.
        after: the prediction without them, with y of the same class; None where nothing was removed.
        method: the second method, if any applies.
        correlation: Spearman's rank correlation with its scores, special tokens left out; with their magnitudes, where
            the first method has no signs.
        differing: the words to which both give at least a tenth of their largest magnitude, with different signs.
    """

    before: Prediction
    removed: Sequence[str] = ()
    after: Prediction | None = None
    method: str | None = None
    correlation: float = 0.0
    differing: Sequence[str] = ()

    @property
    def sentence(self) -> str:
        """The verdict in words; empty where nothing was removed and no second method applies."""
        parts = []
        if self.after is not None:
            parts.append(f"Without {_named(self.removed)} {_change(self.before, self.after)}.")
        if self.method is not None:
            agrees = "agrees" if self.correlation >= AGREES else "disagrees"
            parts.append(f"A second method, {self.method}, {agrees}: rank correlation {self.correlation:.2f}.")
        if self.differing:
            parts.append(f"It gives {_named(self.differing)} the other sign.")
        return " ".join(parts)


def _named(names: Sequence[str]) -> str:
    """At most `NAMED` names in quotation marks, and how many more there are."""
    quoted = [f'"{name}"' for name in names[:NAMED]]
    if len(names) > NAMED:
        quoted.append(f"{len(names) - NAMED} more")
    *first, last = quoted
    return f"{', '.join(first)} and {last}" if first else last


def _change(before: Prediction, after: Prediction) -> str:
    falls = "falls" if after.value < before.value else "rises"
    moves = f"y {falls} from {signed(before.value)} to {signed(after.value)}"
    if after.probability is None:
        return moves
    stays = "stays" if after.prediction == before.prediction else "is"
    return f"the prediction {stays} {after.prediction}, {percent(after.probability)} ({moves})"


def verdict_of(
    cache: ForwardCache, request: Request, example: Example, scores: Tensor, prediction: Prediction, processor: Any
) -> Verdict:
    """The verdict on the scores `[tokens]` of a single example.

    Args:
        request: with the method of the scores, and the position if the model has an output for each.
        prediction: the one that they explain.
    """
    readout = readout_of(cache, request, cache.outputs_alone)
    names, removed, after = told_apart(example.tokens), _strongest(example, scores, readout), None
    if removed:
        pieces = torch.isin(example.token_of_piece, torch.tensor(removed))
        after = _without(cache, replace(request, target=prediction.target), readout, pieces, processor)
    alone = request.is_part or takes_embedding(cache.model) or len(example.token_of_piece) > LONGEST
    agreement = {} if alone else _compared(cache, request, example, scores)
    return Verdict(prediction, [names[index] for index in removed], after, **agreement)


def _strongest(example: Example, scores: Tensor, readout: Readout) -> list[int]:
    """The tokens of largest score above 0, without special ones and the one that the output is read from."""
    count = REMOVED if example.grid is None else max(REMOVED, int(REMOVED_SHARE * len(example.words)))
    ranked = sorted(example.words, key=scores.tolist().__getitem__, reverse=True)
    if readout.positions is not None:
        read = example.token_of_piece[int(readout.positions)]
        ranked = [index for index in ranked if index != read]
    return [index for index in ranked[: min(count, len(example.words) // 2)] if scores[index] > 0]


@torch.no_grad()
def _without(cache: ForwardCache, request: Request, readout: Readout, removed: Tensor, processor: Any) -> Prediction:
    """The prediction without the pieces or patches that are `removed`, boolean `[length]`."""
    remains = ~removed.to(cache.main_input.device).unsqueeze(0)
    inputs, moved = without(cache, readout, remains.new_zeros(1).long(), remains)
    if moved.positions is not None:
        request = replace(request, position=moved.positions)
    with in_evaluation(cache.model):
        outputs = cache.model(**inputs, return_dict=True)
    (after,) = predictions(cache, request, processor, outputs)
    return replace(after, value=moved(outputs).item())  # without a head, along the direction of the whole text


def _compared(cache: ForwardCache, request: Request, example: Example, scores: Tensor) -> dict[str, Any]:
    """The fields of the verdict on the agreement with a second method; none where there is no other, or no ranks."""
    erases = request.method not in ("erasure", "deletion") and len(example.tokens) <= AFFORDABLE
    second = replace(request, method="erasure" if erases else "contributions")
    if second.method == request.method:
        return {}
    try:
        (row,) = second.entry.scores(cache, second)
    except ValueError:  # layers that do not attend over the same tokens
        return {}
    has_signs = request.entry.explains_output
    first, other = scores[example.words], example.by_token(row.cpu())[example.words]
    ranked = first, other if has_signs else other.abs()
    if min(row.unique().numel() for row in ranked) < 3:
        return {}
    ranks = [(row.unsqueeze(1) - row).sign().sum(1) for row in ranked]  # linear in mean ranks of ties
    large = [row.abs() >= MATTERS * row.abs().max() for row in (first, other)]
    differ = large[0] & large[1] & (first * other < 0) & has_signs
    names = told_apart(example.tokens)
    return {
        "method": second.method,
        "correlation": torch.corrcoef(torch.stack(ranks))[0, 1].item(),
        "differing": [names[index] for index in compress(example.words, differ)],
    }


@torch.no_grad()
def baseline_note(cache: ForwardCache, request: Request, prediction: Prediction, processor: Any) -> str:
    """One sentence on the prediction for the baseline of a method; empty for a method without one.

    Of a baseline that has most of y the scores explain little.
    """
    if "{baseline}" not in request.entry.what:
        return ""
    from hf_bidir.explain.methods.gradients import InputFunction

    function = InputFunction(cache, request)
    with in_evaluation(cache.model):
        outputs = function.run(function.baseline, function.rows)
    (start,) = predictions(cache, replace(request, target=prediction.target), processor, outputs)
    what = "an image of the mean colour" if function.is_image else "padding"
    predicted = f" itself predicted {start.prediction}," if start.prediction else ""
    change = f"the scores explain only the change from there to {signed(prediction.value)}"
    value = function.readout(outputs).item()
    return f"The baseline, {what},{predicted} has y {signed(value)}; {change}."
