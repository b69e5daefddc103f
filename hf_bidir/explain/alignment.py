"""The scores of several predictions for one text, such as generated tokens: a row for each, and their sums."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from hf_bidir.explain.inputs.text import Example, percent, shortened
from hf_bidir.explain.listing import Listing
from hf_bidir.explain.result import Result

IN_ROW = 5  # tokens in the row of a generated token
NO_VERDICT = "There is no verdict: it would need a single prediction, and each row is one."
WIDTH = 70  # characters of a sentence


@dataclass(frozen=True, eq=False, kw_only=True)
class Alignment(Result):
    """Generated tokens or other predictions, and for each of them a number per source token.

    Attributes:
        source: the source tokens; for a causal model, the prompt and all generated tokens but the last.
        special: whether each of them is special, or written by a chat template.
        written: the generated tokens in order, or the other predictions.
        row: what a row is of.
        explained: the generated text, or the predictions, in words.
        reading: what the first numbers are, in one sentence.
        scores: `[written, source]` by unit; the first one ranks.
        first_length: source tokens of the first row: all, or those of the prompt, and one more in each next row.
        probabilities: of the generated tokens, where known.
        has_signs: whether the first scores can be negative.
        listing: the tokens of the prompt of a causal model, with the sums of their first scores over all rows.
        sentences: the same for the sentences of the prompt, where it has several.
        starts: the first token of each of these sentences.
        example: an image with a text, of which the source is.
    """

    is_generated: ClassVar = True

    source: list[str]
    special: Sequence[bool]
    written: list[str]
    explained: str
    reading: str
    scores: Mapping[str, Tensor]
    first_length: int
    row: str = "generated token"
    probabilities: Sequence[float] = ()
    has_signs: bool = True
    listing: Listing | None = None
    sentences: Listing | None = None
    starts: Sequence[int] = ()
    example: Example | None = None

    @property
    def rows(self) -> list[str]:
        """The generated tokens with their probabilities."""
        if not self.probabilities:
            return self.written
        return [f"{word} ({percent(share)})" for word, share in zip(self.written, self.probabilities, strict=True)]

    def _findings(self) -> list[str]:
        """The sums of sentences, and a line per generated token with its strongest scores."""
        heading = "Largest magnitude first:"
        if self.listing and not self.example:
            heading = "Each generated token, explained by the prompt │ by what was generated before it:"
        first_scores = next(iter(self.scores.values()))
        rows = [f"{shortened(word):>16}  {self._row(row)}" for word, row in zip(self.rows, first_scores, strict=True)]
        if self.sentences is None:
            return [heading, *rows]
        totals = zip(self.sentences.tokens, self.sentences.scores.tolist(), strict=True)
        sums = [f"{self.sentences.number(total):>8}  {shortened(name, WIDTH)}" for name, total in totals]
        return ["By sentence:", *sums, heading, *rows]

    def _row(self, scores: Tensor) -> str:
        """The source tokens of largest magnitude `[source]`, those of a prompt before those generated."""
        row = Listing(self.source, scores, self.special, has_signs=self.has_signs)
        prompt: list[str] = []
        generated: list[str] = []
        for index, (name, number) in zip(row.order(), row.strongest(IN_ROW), strict=False):
            part = prompt if index < self.first_length else generated
            part.append(f"{number} {name.strip()}")
        if generated:
            prompt.append("│")
        return "  ".join(prompt + generated)
