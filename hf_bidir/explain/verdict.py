"""Whether to believe an explanation: the prediction without the strongest words, and a second method."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import compress
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from hf_bidir.checkpoints.kinds import kind_of
from hf_bidir.checkpoints.layer_hooks import in_evaluation

from .forward import AnyCache, ForwardCache
from .inputs.text import signed, told_apart
from .methods.erasure import outputs_without
from .readout import Prediction, predictions, readout_of
from .request import AFFORDABLE, GRADIENTS, Request, methods_of, only_deletes
from .result import Explanation

HEADLINES = ("do not rely on it", "partly", "holds")  # by the number of checks that are passed
REMOVED_SHARE, REMOVED = 0.1, 3  # of the words or patches, and at least so many, but at most half of them
NAMED = 3  # words in a sentence
LONGEST = 1024  # tokens up to which a second method runs, which keeps coefficients of length x length
OCCLUSIONS = ("erasure", "deletion")  # too close to each other for a second opinion
TOGETHER = 2  # how many times the sum of their scores the removed words have to move y together to stand in for others
OPPOSITE = "The listed scores sum to another sign than y."
MATTERS = 0.1  # share of its method's largest magnitude from which a score counts
EXPLAINS, AGREES = 0.25, 0.5  # least share of y, least correlation: research/explanations/words.py measures both checks
SHIFT = 0.01  # difference of two probabilities from which it is named
RANKED = 6  # words from which on their ranks are compared


@dataclass(frozen=True)
class Verdict:
    """Two checks: a quarter of y goes with the strongest words of its sign, and a second method scores the words alike.

    Attributes:
        before: the prediction that is explained.
        removed: words that were removed, or patches that were painted in the mean colour: those that support y, or
            oppose it where it is negative.
        after: the prediction without them, with y of the same class; None where nothing was removed.
        patches: of the image; 0 for a text.
        method: the second method; empty where none applies.
        missing: where none applies, as the end of a sentence.
        correlation: Spearman's rank correlation of the two methods' scores, without those of special tokens; of fewer
            than `RANKED` words, or of words and cells, the cosine of the scores. Of magnitudes, where the first method
            has no signs. None without a second method.
        ranked: whether it is one of ranks.
        differing: the words to which both give at least a tenth of their largest magnitude, with different signs.
        alone: the sum of the scores of the removed words, where it has the unit of y.
        limits: sentences on why the explanation holds partly at most: a sum of another sign than y, and a special token
            that outweighs every word.
    """

    before: Prediction
    removed: Sequence[str] = ()
    after: Prediction | None = None
    patches: int = 0
    method: str = ""
    missing: str = ""
    correlation: float | None = None
    ranked: bool = True
    differing: Sequence[str] = ()
    alone: float | None = None
    limits: Sequence[str] = ()

    @property
    def change(self) -> float:
        """How much y falls without the removed tokens; 0 where none was."""
        return 0.0 if self.after is None else self.before.value - self.after.value

    @property
    def share(self) -> float:
        """The share of y that goes with the removed tokens, above 1 where its sign changes; 0 where none was."""
        return self.change / self.before.value if self.before.value else 0.0

    @property
    def hardly_moves(self) -> bool:
        """Whether the removal changes y by less than counts, so that there is nothing to explain."""
        return self.after is not None and abs(self.change) < self.before.least

    @property
    def agrees(self) -> bool:
        """Whether a second method scores the words alike, and gives none of those that were removed the other sign."""
        contradicts = set(self.removed) & set(self.differing)
        return self.correlation is not None and round(self.correlation, 2) >= AGREES and not contradicts

    @property
    def headline(self) -> str:
        """One of `HEADLINES`, by the number of checks that are passed; none is where y hardly moves."""
        passed = 0 if self.hardly_moves else (self.share >= EXPLAINS) + self.agrees
        return HEADLINES[min(passed, 1) if self.limits else passed]

    @property
    def title(self) -> str:
        return f"Verdict on the explanation: {self.headline}."

    @property
    def reasons(self) -> str:
        """A sentence on each check."""
        reasons = [self._removal()]
        if not self.hardly_moves:
            reasons.append(self._comparison())
        return " ".join([*reasons, *self.limits])

    @property
    def sentence(self) -> str:
        """The headline and its reasons."""
        return f"{self.title} {self.reasons}"

    def _removal(self) -> str:
        if self.after is None:
            return "Nothing that can be removed has clearly the sign of y."
        how = f"Without {_named(self.removed)}"
        if self.patches:
            painted = f"{len(self.removed)} of {self.patches} patches painted in the mean colour"
            how = f"With {painted} ({_named(self.removed)})"
        moves = "falls" if self.change > 0 else "rises"
        together = ""
        if self.hardly_moves:
            moves = "hardly moves:"
        elif self.share <= 0:
            moves += ", away from 0,"
        elif self.share < EXPLAINS:
            moves += " only"
        elif self.alone is not None and len(self.removed) > 1 and abs(self.change) > TOGETHER * abs(self.alone):
            together = f" Their scores, each alone, sum to {signed(self.alone)}: they stand in for each other."
        return f"{how} y {moves} from {_state(self.before)} to {_state(self.after)}.{self._others()}{together}"

    def _others(self) -> str:
        """A sentence where the probability of what is explained moves against its logit."""
        before, after = self.before.share, self.after.share if self.after else None
        rises = 0 if before is None or after is None else after - before
        if rises * self.change <= 0 or abs(rises) < SHIFT:
            return ""
        more, less = ("rises", "fall") if rises > 0 else ("falls", "rise")
        return f" Its probability {more}: other logits {less} more."

    def _comparison(self) -> str:
        if self.correlation is None:
            return f"No second method applies {self.missing}."
        agrees = "agrees" if self.agrees else "disagrees"
        measure = "rank correlation" if self.ranked else "cosine"
        other = f" It gives {_named(self.differing)} the other sign." if self.differing else ""
        return f"A second method, {self.method}, {agrees}: {measure} {self.correlation:.2f}.{other}"


def _named(names: Sequence[str]) -> str:
    """At most `NAMED` names in quotation marks, and how many more there are."""
    quoted = [f'"{name}"' for name in names[:NAMED]]
    if len(names) > NAMED:
        quoted.append(f"{len(names) - NAMED} more")
    *first, last = quoted
    return f"{', '.join(first)} and {last}" if first else last


def _state(prediction: Prediction) -> str:
    """y, and the shares of what it is read from."""
    return f"{signed(prediction.value)}{f' ({prediction.shares})' if prediction.shares else ''}"


@torch.no_grad()
def verdict_of(cache: AnyCache, request: Request, processor: Any, explanation: Explanation) -> Verdict:
    """The verdict on an explanation of the single example in a cache.

    Args:
        request: with the method of the scores, and the position if the model has an output for each token.
    """
    example, names = explanation.example, told_apart(explanation.tokens)
    readout = readout_of(cache, request, cache.outputs_alone)
    positions = [] if readout.positions is None else readout.positions[0].tolist()
    removed = _strongest(explanation, example.token_of_piece[positions].tolist())
    limits = [OPPOSITE] if explanation.is_opposite else []
    if explanation.is_whole and (special := explanation.listing.outweighing):
        limits.append(f"{special} outweighs every word or patch.")
    after, alone = None, None
    if removed:
        outputs, moved = outputs_without(cache, example, readout, removed)
        (after,) = predictions(cache.model, processor, moved, outputs)
        alone = explanation.scores[removed].sum().item() if explanation.method in OCCLUSIONS else None
    return Verdict(
        before=Prediction(**{field.name: getattr(explanation, field.name) for field in fields(Prediction)}),
        removed=[names[index] for index in removed],
        after=after,
        patches=len(example.words) if example.part == "patch" else 0,
        alone=alone,
        limits=limits,
        **_agreement(cache, request, explanation),
    )


def _strongest(explanation: Explanation, read: Sequence[int]) -> list[int]:
    """The words, patches or cells with the largest scores of the sign of y, the strongest first, without those that
    it is read from."""
    listing = explanation.listing
    count = len(explanation.example.words)
    most = min(max(REMOVED, int(REMOVED_SHARE * count)), count // 2)
    scores = listing.shown
    least = MATTERS * scores.abs().max()
    if listing.has_signs and explanation.value < 0:
        scores = -scores
    strong = [index for index in listing.order() if scores[index] >= least and index not in read]
    return strong[:most]


def _agreement(cache: AnyCache, request: Request, explanation: Explanation) -> dict[str, Any]:
    """The fields of the verdict on a second method."""
    names = told_apart(explanation.tokens)
    example, has_signs = explanation.example, request.entry.explains_output
    words = example.words
    ranked = len(words) >= RANKED and isinstance(cache, ForwardCache)  # ranks of cells that hardly matter are noise
    if only_deletes(cache.model):
        return {"missing": "to a model that only deletion explains"}
    if request.is_part:
        return {"missing": "for a single layer or head"}
    if len(example.token_of_piece) > LONGEST:
        return {"missing": f"for more than {LONGEST} tokens"}
    if not (has_signs or ranked):
        return {"missing": "where scores have no signs and few words are ranked"}
    second, row = _second_scores(cache, request, ranked)
    if row is None:
        return {"missing": second}
    pair = torch.stack([explanation.scores, example.by_token(row)])[:, words]
    if not has_signs:
        pair = pair.abs()
    if not pair.diff().any(1).all():
        return {"missing": "where all words have the same score"}
    large = (pair.abs() >= MATTERS * pair.abs().amax(1, keepdim=True)).all(0)
    correlation = torch.corrcoef(_ranks(pair))[0, 1] if ranked else cosine_similarity(pair[0], pair[1], dim=0)
    return {
        "method": second,
        "correlation": correlation.item(),
        "ranked": ranked,
        "differing": [names[index] for index in compress(words, large & (pair.prod(0) < 0))],
    }


def _second_scores(cache: AnyCache, request: Request, ranked: bool) -> tuple[str, Tensor | None]:
    """The first other method that applies, and its scores `[length]`; or where none does, as the end of a sentence."""
    missing = f"for more than {AFFORDABLE} words or patches"
    names = ["erasure", "contributions", "attnlrp"]
    if not isinstance(cache, ForwardCache):
        names = ["deletion", GRADIENTS]
    elif not ranked or kind_of(cache.model).names_tokens:  # AttnLRP saturates less
        names = ["erasure", "attnlrp", "contributions"]
    for name in names:
        repeats = name == request.method or {name, request.method} <= set(OCCLUSIONS)
        costs = name == "erasure" and cache.passes > AFFORDABLE
        if repeats or costs or name not in methods_of(cache.model):
            continue
        second = replace(request, method=name)
        try:
            return name, second.entry.scores(cache, second)[0].cpu()
        # an operation without a rule or a gradient, layers that attend over other tokens, or too little memory
        except (ValueError, RuntimeError):
            missing = "to this model on this machine"
    return missing, None


def _ranks(scores: Tensor) -> Tensor:
    """A linear function of the ranks in each row of scores `[methods, words]`; equal scores share their mean rank."""
    return (scores.unsqueeze(2) - scores.unsqueeze(1)).sign().sum(2)


@torch.no_grad()
def baseline_note(cache: AnyCache, request: Request, processor: Any) -> str:
    """One sentence on the prediction for the baseline of the method; empty for a method without one.

    Of a baseline that has most of y the scores explain little.
    """
    if "{baseline}" not in request.entry.what:
        return ""
    from .methods.gradients import function_of

    with in_evaluation(cache.model):
        function: Any = function_of(cache, request)
        outputs = function.run(*function.ends[0], function.rows)
    (start,) = predictions(cache.model, processor, function.readout, outputs)
    return f"The baseline has y {_state(start)}; the scores explain only the change from there."
