"""Whether to believe an explanation: the prediction without what supports it most, and a second method."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.explain.forward import ForwardCache, takes_embedding
from hf_bidir.explain.inputs.text import Example, percent, signed, told_apart
from hf_bidir.explain.readout import Prediction, Readout, predicted_of, readout_of
from hf_bidir.explain.registry import NoRule
from hf_bidir.explain.request import AFFORDABLE, Request, methods_of

REMOVED = 3  # words, and at most half of them
REMOVED_SHARE = 0.1  # of the patches of an image
MATTERS = 0.1  # share of its method's largest magnitude from which the sign of a score counts
LISTED = 5  # words in a sentence
LONGEST = 512  # tokens up to which a second method runs, which keeps coefficients of length x length
AGREES, AGREES_IN_PART = 0.7, 0.3  # least rank correlation
# methods of gradients are compared with the first of these that the model and the length allow, others with the second
SECOND = {
    "contributions": ("erasure", "attnlrp"),
    "chefer": ("erasure", "attnlrp"),
    "attnlrp": ("erasure", "contributions"),
    "integrated-attnlrp": ("erasure", "contributions"),
}


@dataclass(frozen=True)
class Verdict:
    """What the prediction becomes without the tokens that support it most, and whether a second method agrees.

    Attributes:
        removed: words that were removed, or patches that were painted in the mean colour.
        images: whether they are patches.
        before, value: y with and without them; None where nothing was removed.
        was, prediction, probability: the prediction with and without them; None for a model that predicts none.
        method: the second method, if any applies.
        correlation: Spearman's rank correlation with its scores, special tokens left out; with their magnitudes, where
            the first method has no signs.
        differing: the words to which both give at least a tenth of their largest magnitude, with different signs.
    """

    removed: list[str]
    before: float
    images: bool = False
    value: float | None = None
    was: str | None = None
    prediction: str | None = None
    probability: float | None = None
    method: str | None = None
    correlation: float | None = None
    differing: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The verdict in words; empty where nothing was removed and no second method applies."""
        return " ".join(filter(None, [self._removal(), self._agreement()]))

    def _removal(self) -> str:
        if self.value is None:
            return ""
        change = "falls" if self.value < self.before else "rises"
        moves = f"y {change} from {signed(self.before)} to {signed(self.value)}"
        without = f"Without {'the strongest ' * self.images}{self._named(self.removed)}"
        if self.prediction is None or self.probability is None:
            return f"{without} {moves}."
        stays = "stays" if self.prediction == self.was else "is"
        return f"{without} the prediction {stays} {self.prediction}, {percent(self.probability)} ({moves})."

    def _agreement(self) -> str:
        if self.correlation is None:
            return ""
        agrees = "disagrees"
        if self.correlation >= AGREES_IN_PART:
            agrees = "agrees" if self.correlation >= AGREES and not self.differing else "agrees in part"
        but = f", which gives {self._named(self.differing)} the other sign" if self.differing else ""
        return f"A second method, {self.method}{but}, {agrees}: rank correlation {self.correlation:.2f}."

    def _named(self, names: Sequence[str]) -> str:
        """At most `LISTED` words in quotation marks, and how many more there are; of patches their number."""
        if self.images:
            return f"{len(names)} patches" if len(names) > 1 else f"the {names[0]}"
        quoted = [f'"{name}"' for name in names[:LISTED]]
        if len(names) > LISTED:
            quoted.append(f"{len(names) - LISTED} more")
        *first, last = quoted
        return f"{', '.join(first)} and {last}" if first else last


def verdict_of(
    cache: ForwardCache, request: Request, example: Example, scores: Tensor, found: Prediction, processor: Any
) -> Verdict:
    """The verdict on the scores `[tokens]` of a single example.

    Args:
        request: with the method of the scores, and the position if the model has an output for each.
        found: the prediction that they explain.
    """
    readout = readout_of(cache, request, cache.outputs_alone())
    names = told_apart(example.tokens)
    removed = _strongest(example, scores, readout)
    facts: dict[str, Any] = {"images": example.grid is not None, "was": found.prediction}
    if removed:
        rows, y = _without(cache, example, readout, removed)
        facts["value"] = y
        if found.prediction is not None:
            facts["prediction"], facts["probability"] = predicted_of(cache.model, processor, rows)
    if (method := _second(cache, request, example)) is not None:
        facts |= _compared(cache, replace(request, method=method), example, scores, request.entry.explains_output)
    return Verdict([names[index] for index in removed], found.value, **facts)


def _strongest(example: Example, scores: Tensor, readout: Readout) -> list[int]:
    """The tokens of largest score above 0, without special ones and the one that the output is read from."""
    read = None if readout.positions is None else int(example.token_of_piece[int(readout.positions)])
    words = _words(example)
    count = REMOVED if example.grid is None else max(REMOVED, int(REMOVED_SHARE * len(words)))
    ranked = sorted((index for index in words if index != read), key=scores.tolist().__getitem__, reverse=True)
    return [index for index in ranked[: min(count, len(words) // 2)] if scores[index] > 0]


def _words(example: Example) -> list[int]:
    return [index for index, special in enumerate(example.special) if not special]


@torch.no_grad()
def _without(cache: ForwardCache, example: Example, readout: Readout, removed: list[int]) -> tuple[Tensor, float]:
    """The row of outputs that y is read from, `[entries]`, and y, once tokens are removed from the input."""
    stays = ~torch.isin(example.token_of_piece, torch.tensor(removed)).to(cache.main_input.device)
    if example.grid is None:
        inputs = {name: value[:, stays] for name, value in cache.inputs.items()}
    else:
        rows, columns = example.grid
        grid = stays[-rows * columns :].view(1, 1, rows, columns).float()
        pixels = cache.main_input
        inputs = cache.inputs | {"pixel_values": pixels * nn.functional.interpolate(grid, pixels.shape[2:])}
    if readout.positions is not None:
        before = stays[: int(readout.positions)]
        readout = replace(readout, positions=before.sum().view(1))
    with in_evaluation(cache.model):
        outputs = cache.model(**inputs, return_dict=True)
    return readout.rows(outputs)[0], readout(outputs).item()


def _second(cache: ForwardCache, request: Request, example: Example) -> str | None:
    """The method to compare with; None for a layer or head, embeddings and very long texts, and where none applies."""
    part = (request.layer, request.head) != (None, None)
    if part or takes_embedding(cache.model) or len(example.token_of_piece) > LONGEST:
        return None
    known = set(methods_of(cache.model)) - {request.method}
    if len(example.tokens) > AFFORDABLE:
        known.discard("erasure")
    return next((name for name in SECOND.get(str(request.method), ("contributions",)) if name in known), None)


def _compared(
    cache: ForwardCache, request: Request, example: Example, scores: Tensor, has_signs: bool
) -> dict[str, Any]:
    """The fields of the verdict on the agreement with the method of a request; none where it has no rule."""
    from scipy.stats import spearmanr

    try:
        by_piece = request.entry.scores(cache, request)[0]
    except NoRule:
        return {}
    words = _words(example)
    first, second = scores[words], example.by_token(by_piece.cpu(), request.entry.additive)[words]
    ranked = first, second if has_signs else second.abs()
    varied = min(row.unique().numel() for row in ranked) > 2
    large = [row.abs() >= MATTERS * row.abs().max() for row in (first, second)]
    differ = large[0] & large[1] & (first * second < 0) & has_signs
    names = told_apart(example.tokens)
    return {
        "method": request.method,
        "correlation": float(spearmanr(*ranked).statistic) if varied else None,
        "differing": tuple(names[words[place]] for place in differ.nonzero().flatten().tolist()),
    }


@torch.no_grad()
def baseline_note(cache: ForwardCache, request: Request, found: Prediction, processor: Any) -> str:
    """One sentence on the prediction for the baseline of a method; empty for a method without one.

    Of a baseline that has most of y the scores explain little.
    """
    if "{baseline}" not in request.entry.what:
        return ""
    from hf_bidir.explain.methods.gradients import InputFunction

    function = InputFunction(cache, request)
    with in_evaluation(cache.model):
        outputs = function.run(function.baseline, function.rows)
    readout = readout_of(cache, request)
    predicted = "has"
    if found.prediction is not None:
        name, probability = predicted_of(cache.model, processor, readout.rows(outputs)[0])
        predicted = f"is itself predicted {name}, {percent(probability)}, with"
    what = "an image of the mean colour" if function.is_image else "padding"
    start, end = signed(readout(outputs).item()), signed(found.value)
    return f"The baseline, {what}, {predicted} y {start}; the scores explain only the change from there to {end}."
