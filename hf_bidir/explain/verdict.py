"""Whether to believe an explanation: the prediction without what supports it most, and a second method."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import torch
from torch import Tensor

from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.explain.forward import ForwardCache, takes_embedding
from hf_bidir.explain.inputs.text import percent, signed, told_apart
from hf_bidir.explain.methods.erasure import without
from hf_bidir.explain.readout import Prediction, Readout, predictions, readout_of
from hf_bidir.explain.request import AFFORDABLE, Request
from hf_bidir.explain.result import Explanation

HEADLINES = ("do not rely on it", "partly", "holds")  # by the number of checks that are passed
REMOVED_SHARE, REMOVED = 0.1, 3  # of the words or patches, and at least so many, but at most half of them
NAMED = 3  # words in a sentence
LONGEST = 1024  # tokens up to which a second method runs, which keeps coefficients of length x length
MATTERS = 0.1  # share of its method's largest magnitude from which a score counts
AGREES = 0.5  # least rank correlation


@dataclass(frozen=True)
class Verdict:
    """Two checks: y falls without the tokens that support it most, and a second method ranks the tokens alike.

    Attributes:
        before: the prediction that is explained.
        removed: words that were removed, or patches that were painted in the mean colour.
        after: the prediction without them, with y of the same class; None where nothing was removed.
        patches: of the image; 0 for a text.
        method: the second method, if any applies.
        correlation: Spearman's rank correlation with its scores, special tokens left out; with their magnitudes, where
            the first method has no signs.
        differing: the words to which both give at least a tenth of their largest magnitude, with different signs.
    """

    before: Prediction
    removed: Sequence[str] = ()
    after: Prediction | None = None
    patches: int = 0
    method: str | None = None
    correlation: float = 0.0
    differing: Sequence[str] = ()

    @property
    def fall(self) -> float:
        """y minus y without the removed tokens; 0 where nothing was removed."""
        return 0.0 if self.after is None else self.before.value - self.after.value

    @property
    def hardly_moves(self) -> bool:
        """Whether the removal changes y by less than counts, so that there is nothing to explain."""
        return self.after is not None and abs(self.fall) < self.before.least

    @property
    def headline(self) -> str:
        """One of `HEADLINES`, by the number of checks that are passed; none is where y hardly moves."""
        return HEADLINES[0 if self.hardly_moves else (self.fall > 0) + (self.correlation >= AGREES)]

    @property
    def sentence(self) -> str:
        """The headline and its reasons."""
        reasons = [f"Verdict: {self.headline}.", self._removal()]
        if not self.hardly_moves:
            reasons.append(self._comparison())
        return " ".join(reasons)

    def _removal(self) -> str:
        if self.after is None:
            return "Nothing that can be removed clearly supports y."
        how = f"Without {_named(self.removed)}"
        if self.patches:
            painted = f"{len(self.removed)} of {self.patches} patches painted in the mean colour"
            how = f"With {painted} ({_named(self.removed)})"
        moves = "hardly moves:" if self.hardly_moves else "falls" if self.fall > 0 else "rises"
        return f"{how} y {moves} from {_state(self.before)} to {_state(self.after)}."

    def _comparison(self) -> str:
        if self.method is None:
            return "No second method applies."
        agrees = "agrees" if self.correlation >= AGREES else "disagrees"
        other = f" It gives {_named(self.differing)} the other sign." if self.differing else ""
        return f"A second method, {self.method}, {agrees}: rank correlation {self.correlation:.2f}.{other}"


def _named(names: Sequence[str]) -> str:
    """At most `NAMED` names in quotation marks, and how many more there are."""
    quoted = [f'"{name}"' for name in names[:NAMED]]
    if len(names) > NAMED:
        quoted.append(f"{len(names) - NAMED} more")
    *first, last = quoted
    return f"{', '.join(first)} and {last}" if first else last


def _state(prediction: Prediction) -> str:
    """y, and the prediction, if there is one."""
    y = signed(prediction.value)
    if prediction.probability is None:
        return y
    return f"{y} ({prediction.prediction}, {percent(prediction.probability)})"


@torch.no_grad()
def verdict_of(cache: ForwardCache, request: Request, processor: Any, explanation: Explanation) -> Verdict:
    """The verdict on an explanation of the single example in a cache.

    Args:
        request: with the method of the scores, and the position if the model has an output for each.
    """
    model, example = cache.model, explanation.example
    readout = readout_of(cache, request, cache.outputs_alone)
    (before,) = predictions(model, processor, readout, cache.outputs_alone)
    patches = len(example.words) if example.grid else 0
    names, removed, after = told_apart(explanation.tokens), _strongest(explanation, readout), None
    if removed:
        remains = ~torch.isin(example.token_of_piece, torch.tensor(removed)).to(cache.main_input.device)
        inputs, moved = without(cache, readout, torch.tensor([0]), remains.unsqueeze(0))
        with in_evaluation(model):
            (after,) = predictions(model, processor, moved, model(**inputs, return_dict=True))
    agreement = _agreement(cache, request, explanation, names)
    return Verdict(before, [names[index] for index in removed], after, patches, **agreement)


def _strongest(explanation: Explanation, readout: Readout) -> list[int]:
    """The words or patches that support y most, the strongest first, without the one that y is read from."""
    example, listing, read = explanation.example, explanation.listing, None
    count = len(example.words)
    most = min(max(REMOVED, int(REMOVED_SHARE * count)), count // 2)
    if readout.positions is not None:
        read = example.token_of_piece[int(readout.positions)]
    least = MATTERS * listing.shown.abs().max()
    strong = [index for index in listing.order() if explanation.scores[index] >= least and index != read]
    return strong[:most]


def _agreement(cache: ForwardCache, request: Request, explanation: Explanation, names: list[str]) -> dict[str, Any]:
    """The fields of the verdict on a second method; none where there is no other, or no ranks."""
    example = explanation.example
    erases = request.method not in ("erasure", "deletion") and len(names) <= AFFORDABLE
    second = replace(request, method="erasure" if erases else "contributions")
    alone = request.is_part or takes_embedding(cache.model) or len(example.token_of_piece) > LONGEST
    if alone or second.method == request.method:
        return {}
    try:
        (row,) = second.entry.scores(cache, second)
    except ValueError:  # layers that do not attend over the same tokens
        return {}
    pair = torch.stack([explanation.scores, example.by_token(row.cpu())])[:, example.words]
    if not request.entry.explains_output:
        pair = pair.abs()
    if min(len(scores.unique()) for scores in pair) < 3:
        return {}
    large = (pair.abs() >= MATTERS * pair.abs().amax(1, keepdim=True)).all(0)
    return {
        "method": second.method,
        "correlation": torch.corrcoef(_ranks(pair))[0, 1].item(),
        "differing": [names[index] for index in compress(example.words, large & (pair.prod(0) < 0))],
    }


def _ranks(scores: Tensor) -> Tensor:
    """A linear function of the ranks in each row of scores `[methods, words]`; equal scores share their mean rank."""
    return (scores.unsqueeze(2) - scores.unsqueeze(1)).sign().sum(2)


@torch.no_grad()
def baseline_note(cache: ForwardCache, request: Request, processor: Any) -> str:
    """One sentence on the prediction for the baseline of the method; empty for a method without one.

    Of a baseline that has most of y the scores explain little.
    """
    if "{baseline}" not in request.entry.what:
        return ""
    from hf_bidir.explain.methods.gradients import InputFunction

    function = InputFunction(cache, request)
    with in_evaluation(cache.model):
        outputs = function.run(function.baseline, function.rows)
    (start,) = predictions(cache.model, processor, function.readout, outputs)
    return f"The baseline has y {_state(start)}; the scores explain only the change from there."
