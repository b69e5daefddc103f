"""The scores of generated text: a row for each generated token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from hf_bidir.explain.inputs.text import shortened, signed, told_apart
from hf_bidir.explain.result import NAMED_SHARE, ORDER, Result


@dataclass(frozen=True, eq=False)
class Alignment(Result):
    """Generated tokens, and for each of them a number per source token.

    Attributes:
        source: the source tokens; for a causal model, the prompt and all generated tokens but the last.
        written: the generated tokens in order.
        explained: the generated text, in words.
        what: the numbers that rank tokens, in words.
        scores: `[written, source]` by unit; the first one ranks.
        first_length: source tokens of the first row: all, or those of the prompt, and one more in each next row.
        how_to_read: the meaning of + and − in the first scores, without a full stop.
        probabilities: of the generated tokens, where known.
        has_signs: whether the first scores can be negative.
        notes: what limits the scores, a sentence each.
    """

    is_generated: ClassVar = True

    source: list[str]
    written: list[str]
    explained: str
    what: str
    scores: Mapping[str, Tensor]
    first_length: int
    how_to_read: str = ""
    probabilities: Sequence[float] = ()
    has_signs: bool = True
    notes: Sequence[str] = ()

    @property
    def rows(self) -> list[str]:
        """The generated tokens with their probabilities."""
        if not self.probabilities:
            return self.written
        return [f"{word} ({share:.1%})" for word, share in zip(self.written, self.probabilities, strict=True)]

    def summary(self, top: int = 10) -> str:
        """One line per generated token, with the source tokens of largest magnitude."""
        lines = [self.explained, *self.notes, f"{self.what}. {ORDER}"]
        number = signed if self.has_signs else "{:.2g}".format
        names = told_apart(self.source)
        first_scores = next(iter(self.scores.values()))
        for word, row in zip(self.rows, first_scores, strict=True):
            least = NAMED_SHARE * row.abs().max()
            named = []
            for index in row.abs().argsort(descending=True)[:top].tolist():
                if row[index].abs() > least:
                    named.append(f"{number(row[index].item())} {names[index]}")
            lines.append(f"{shortened(word):>16}  {'  '.join(named)}")
        return "\n".join(lines)
