"""What each token that a model wrote took from every token that it could read: a row of signed numbers per token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from torch import Tensor

from hf_bidir.explain.colors import shortened, signed
from hf_bidir.explain.figures import alignment_grid
from hf_bidir.explain.page import html_page
from hf_bidir.explain.text_heatmap import text_blocks

ANSWER = "y, the written token's logit above the mean of all"
NAMED_SHARE = 0.01  # a token below this share of its row's largest number is not named


@dataclass(frozen=True)
class Alignment:
    """Tokens that a model wrote, and for each of them a number per token that it could read.

    Attributes:
        source: what could be read; where a model reads what it wrote, this too.
        written: the tokens in their order.
        explained: what was written, and what the numbers explain, in words.
        what: the numbers that rank, in words.
        scores: by unit, `[written, source]` each; the first ranks.
        read: how many tokens of the source the first written token could read, all or, where each reads those before
            it, one fewer than the next one.
        probabilities: of the written tokens, where they are known.
    """

    source: list[str]
    written: list[str]
    explained: str
    what: str
    scores: Mapping[str, Tensor]
    read: int
    probabilities: Sequence[float] = ()

    @property
    def rows(self) -> list[str]:
        """The written tokens with their probabilities."""
        if not self.probabilities:
            return self.written
        return [f"{word} ({share:.1%})" for word, share in zip(self.written, self.probabilities, strict=True)]

    def summary(self, top: int = 10) -> str:
        """A line per written token, with the source tokens of the largest numbers."""
        lines = [self.explained, f"{self.what}. Largest first:"]
        for word, row in zip(self.rows, next(iter(self.scores.values())), strict=True):
            order = row.abs().argsort(descending=True)[:top].tolist()
            order = [index for index in order if row[index].abs() > NAMED_SHARE * row.abs().max()]
            named = "  ".join(f"{signed(row[index].item())} {shortened(self.source[index])}" for index in order)
            lines.append(f"{shortened(word):>16}  {named}")
        return "\n".join(lines)

    def figures(self) -> dict[str, tuple[str, Figure]]:
        """The grid of all numbers, with its caption."""
        grid = alignment_grid(self.written, self.source, self.scores, caption=f"{self.what}. {self.explained}")
        return {"alignment": ("What every written token took", grid)}

    def page(self) -> str:
        """The figure and, for every written token, the text that it could read in colours, as a web page."""
        unit, rows = next(iter(self.scores.items()))
        blocks, has_signs = [], bool((rows < 0).any())
        for step, (word, row) in enumerate(zip(self.rows, rows, strict=True)):
            readable = len(self.source) if self.read == len(self.source) else self.read + step
            blocks += text_blocks(self.source[:readable], {f"→ {word}": row[:readable]}, unit, has_signs)
        return html_page(self.explained, blocks=blocks, figures=dict(self.figures().values()), caption=self.what)


def visible(token: str) -> str:
    """The token, with signs for what cannot be printed, and for blanks where it is nothing else."""
    shown = "".join(char if char.isprintable() else "␣" for char in token)
    return shown if shown.strip() else "␣" * len(token)
