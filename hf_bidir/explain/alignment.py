"""Alignment: one row of signed numbers over the source tokens for each generated token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from torch import Tensor

from hf_bidir.explain.colors import Scale, as_array, shortened, signed, told_apart
from hf_bidir.explain.figures import alignment_grid
from hf_bidir.explain.page import html_page, png_of
from hf_bidir.explain.text_heatmap import text_blocks

LOGIT = "the logit of the token of a row, minus the mean of all logits"
NAMED_SHARE = 0.01  # share of a row's largest magnitude below which a token is not printed


@dataclass(frozen=True)
class Alignment:
    """Generated tokens, and for each of them a number per source token.

    Attributes:
        source: the source tokens; for a causal model, the prompt and all generated tokens but the last.
        written: the generated tokens in order.
        explained: the generated text, in words.
        what: the numbers that rank tokens, in words.
        scores: `[written, source]` by unit; the first one ranks.
        first_length: number of source tokens that the first generated token attends to: all, or in a causal model one
            fewer than the next token.
        how_to_read: the meaning of + and − in the first scores, without a full stop.
        probabilities: probabilities of the generated tokens, where known.
        has_signs: whether the first scores can be negative.
    """

    source: list[str]
    written: list[str]
    explained: str
    what: str
    scores: Mapping[str, Tensor]
    first_length: int
    how_to_read: str = ""
    probabilities: Sequence[float] = ()
    has_signs: bool = True

    @property
    def rows(self) -> list[str]:
        """The generated tokens with their probabilities."""
        if not self.probabilities:
            return self.written
        return [f"{word} ({share:.1%})" for word, share in zip(self.written, self.probabilities, strict=True)]

    def summary(self, top: int = 10) -> str:
        """One line per generated token, with the source tokens of largest magnitude."""
        lines = [self.explained, f"{self.what}. Largest magnitude first:"]
        number = signed if self.has_signs else "{:.2g}".format
        names = told_apart(self.source)
        for word, row in zip(self.rows, next(iter(self.scores.values())), strict=True):
            order = row.abs().argsort(descending=True)[:top].tolist()
            order = [index for index in order if row[index].abs() > NAMED_SHARE * row.abs().max()]
            named = "  ".join(f"{number(row[index].item())} {names[index]}" for index in order)
            lines.append(f"{shortened(word):>16}  {named}")
        return "\n".join(lines)

    def reading(self) -> str:
        """One sentence on how to read the first panel and the page, with their common colour scale."""
        scale = Scale.of(as_array(next(iter(self.scores.values()))))
        return f"How to read: {self.how_to_read}; {scale.sentence('all rows')}."

    def figures(self) -> dict[str, tuple[str, Figure]]:
        """The grid of all numbers, with its caption."""
        caption = f"{self.what[0].upper()}{self.what[1:]}. {self.explained.rstrip('.')}. {self.reading()}"
        grid = alignment_grid(self.rows, self.source, self.scores, caption=caption)
        return {"alignment": ("Rows: generated tokens. Columns: source tokens.", grid)}

    def page(self, pictures: Mapping[str, bytes] | None = None) -> str:
        """A web page with the figure and, for every generated token, its source text in colours.

        Args:
            pictures: the figures as PNG by file name; by default they are drawn.
        """
        if pictures is None:
            pictures = {name: png_of(figure) for name, (_, figure) in self.figures().items()}
        unit, rows = next(iter(self.scores.items()))
        scale = Scale.of(as_array(rows))
        blocks = []
        for step, (word, row) in enumerate(zip(self.rows, rows, strict=True)):
            length = len(self.source) if self.first_length == len(self.source) else self.first_length + step
            heading = {f"→ {word}": row[:length]}
            blocks += text_blocks(self.source[:length], heading, unit, scale.has_signs, scale.limit)
        headings = {"Rows: generated tokens. Columns: source tokens.": pictures["alignment"]}
        caption = f"{self.what}. {self.reading()}"
        return html_page(self.explained, blocks=blocks, pictures=headings, caption=caption)
