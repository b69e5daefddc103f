"""The words that matter most over a data set."""

import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hf_bidir.explain.draw.page import rendered
from hf_bidir.explain.inputs.text import shortened, signed, visible
from hf_bidir.explain.registry import METHODS
from hf_bidir.explain.result import Explanation

SHOWN = 20  # words of either sign in a notebook


@dataclass(frozen=True)
class Word:
    """A word over a data set."""

    word: str  # in lower case
    count: int  # occurrences
    mean: float  # mean score
    total: float  # sum of the scores
    positive: float  # share of occurrences with a score above 0, in [0, 1]


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

    def _ends(self, count: int = SHOWN) -> list[Word]:
        """The words with the highest and the lowest means."""
        return self.words if len(self.words) <= 2 * count else [*self.top(count), *reversed(self.bottom(count))]

    def __str__(self) -> str:
        rows = [f"{signed(one.mean):>10}  {visible(shortened(one.word))} ({one.count})" for one in self._ends()]
        return "\n".join([f"Mean of {self.unit} over {self.explanations} texts, occurrences in brackets:", *rows])

    def _repr_html_(self) -> str:
        header = ["word", "occurrences", f"mean of {self.unit}", "above 0"]
        rows = [[one.word, str(one.count), f"{one.mean:+.3g}", f"{one.positive:.0%}"] for one in self._ends()]
        caption = f"{len(self.words)} words of {self.explanations} texts"
        return rendered("table.html", header=header, rows=rows, caption=caption)


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
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0])  # occurrences, total, scores above 0
    number, methods, targets = 0, set(), set()
    for one in explanations:
        if not isinstance(one, Explanation):
            raise ValueError(f"expected explanations, got a {type(one).__name__}; `explain_each` makes them of texts.")
        if one.example.grid is not None:
            raise ValueError("expected explanations of texts; images have no words.")
        for token, special, score in zip(one.tokens, one.example.special, one.scores.tolist(), strict=True):
            if not special and any(map(str.isalnum, token)):
                own = sums[token.lower()]
                own[:] = own[0] + 1, own[1] + score, own[2] + (score > 0)
        methods.add(one.method)
        targets.add((one.target, one.instead_of) if METHODS[one.method].explains_output else None)
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
        Word(word, int(count), total / count, total, above / count)
        for word, (count, total, above) in sums.items()
        if count >= min_count
    ]
    return WordTable(sorted(words, key=lambda word: -word.mean), METHODS[methods.pop()].unit, number)
