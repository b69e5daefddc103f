"""Several explanations at once: as a list that shows itself, and the words that matter most over a data set."""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from hf_bidir.explain.colors import Scale, shortened, signed, visible
from hf_bidir.explain.explanation import Explanation
from hf_bidir.explain.fonts import Figure
from hf_bidir.explain.methods import METHODS
from hf_bidir.explain.page import html_table

SHOWN = 20  # explanations, and words of either sign, in a notebook


class Explanations(list[Explanation]):
    """A list of explanations, which shows the first ones in a notebook."""

    def words(self, min_count: int = 1) -> "WordTable":
        """The words of all explanations with their mean scores, as in `word_table`."""
        return word_table(self, min_count)

    def _repr_html_(self) -> str:
        more = f"<p>and {len(self) - SHOWN} more</p>" if len(self) > SHOWN else ""
        return "".join(one._repr_html_() for one in self[:SHOWN]) + more


@dataclass(frozen=True)
class Word:
    """A word over a data set.

    Attributes:
        word: in lower case.
        count: occurrences.
        mean: mean score.
        total: sum of the scores.
        positive: share of occurrences with a score above 0, in [0, 1].
    """

    word: str
    count: int
    mean: float
    total: float
    positive: float


@dataclass(frozen=True)
class WordTable:
    """The words of a data set with their mean scores, from the highest to the lowest. Shows itself in a notebook."""

    words: list[Word] = field(repr=False)
    unit: str
    explanations: int

    def __iter__(self) -> Iterator[Word]:
        return iter(self.words)

    def __len__(self) -> int:
        return len(self.words)

    def top(self, count: int = SHOWN) -> list[Word]:
        """The words with the highest mean score."""
        return self.words[:count]

    def bottom(self, count: int = SHOWN) -> list[Word]:
        """The words with the lowest mean score, the lowest first."""
        return self.words[: -count - 1 : -1]

    def plot(self, count: int = 10) -> Figure:
        """The highest and the lowest mean scores as bars."""
        chosen = self.words if len(self.words) <= 2 * count else [*self.words[:count], *self.words[-count:]]
        figure = Figure(figsize=(6, 0.28 * len(chosen) + 1), layout="constrained")
        panel, scale = figure.subplots(), Scale.of(np.array([word.mean for word in chosen]))
        places = range(len(chosen))
        panel.barh(places, [word.mean for word in chosen], color=[scale.color(word.mean) for word in chosen])
        labels = [f"{visible(shortened(word.word, 24))} ({word.count})" for word in chosen]
        panel.set_yticks(places, labels, parse_math=False, fontsize=8)
        panel.invert_yaxis()
        panel.axvline(0, color="black", linewidth=0.5)
        panel.set_xlabel(f"mean of {self.unit}", parse_math=False)
        return figure

    def _ends(self) -> list[Word]:
        """The words with the highest and the lowest means."""
        return self.words if len(self.words) <= 2 * SHOWN else [*self.top(), *reversed(self.bottom())]

    def __str__(self) -> str:
        rows = [f"{signed(one.mean):>10}  {visible(shortened(one.word))} ({one.count})" for one in self._ends()]
        return "\n".join([f"Mean of {self.unit} over {self.explanations} texts, occurrences in brackets:", *rows])

    def _repr_html_(self) -> str:
        header, some = ["word", "occurrences", f"mean of {self.unit}", "above 0"], self._ends()
        rows = [[one.word, str(one.count), f"{one.mean:+.3g}", f"{one.positive:.0%}"] for one in some]
        return html_table(header, rows, f"{len(self.words)} words of {self.explanations} texts")


@dataclass
class _Sums:
    count: int = 0
    total: float = 0.0
    positive: int = 0


@dataclass
class _Counter:
    sums: dict[str, _Sums] = field(default_factory=dict)

    def add(self, explanation: Explanation) -> None:
        scores = explanation.scores.tolist()
        for token, special, score in zip(explanation.tokens, explanation.example.special, scores, strict=True):
            if not special and any(map(str.isalnum, token)):
                own = self.sums.setdefault(token.lower(), _Sums())
                own.count, own.total, own.positive = own.count + 1, own.total + score, own.positive + (score > 0)


def word_table(explanations: Iterable[Explanation], min_count: int = 1) -> WordTable:
    """The words that matter most over a data set.

        word_table(explain_each(model, tokenizer, dataset["text"], target="positive"), min_count=5)

    Choose one `target` for all texts: means over different classes would mix support for one with support for another.

    Args:
        explanations: of texts, by one method; a stream is read once and not kept.
        min_count: rarer words are left out.

    Raises:
        ValueError: no explanation, images, or more than one method.

    Warns:
        UserWarning: explanations have different targets.
    """
    counter, number, methods, targets = _Counter(), 0, set(), set()
    for one in explanations:
        if not isinstance(one, Explanation):
            raise ValueError(f"expected explanations, got a {type(one).__name__}; `explain_each` makes them of texts.")
        if one.example.grid is not None:
            raise ValueError("expected explanations of texts; images have no words.")
        counter.add(one)
        methods.add(one.method)
        targets.add(one.target if METHODS[one.method].explains_output else None)
        number += 1
    if len(methods) != 1:
        raise ValueError(f"expected explanations by one method, got {', '.join(sorted(methods)) or 'no explanation'}.")
    if len(targets) > 1:
        warnings.warn(
            "the explanations have different targets, so a mean mixes support for one class with support for another; "
            "choose one target for all texts.",
            stacklevel=2,
        )
    words = [
        Word(word, own.count, own.total / own.count, own.total, own.positive / own.count)
        for word, own in counter.sums.items()
        if own.count >= min_count
    ]
    return WordTable(sorted(words, key=lambda word: -word.mean), METHODS[methods.pop()].unit, number)
