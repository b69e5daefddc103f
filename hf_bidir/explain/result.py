"""The scores of one example or several, and of generated text: printed, drawn, as a page, and in a notebook."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hf_bidir.explain.inputs.text import Example, shortened, signed, told_apart, visible
from hf_bidir.explain.registry import METHODS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hf_bidir.explain.coefficients import Coefficients
    from hf_bidir.explain.draw.figures import Scale
    from hf_bidir.explain.tables import WordTable

SHOWN = 20  # explanations in a notebook
LITTLE = 0.1  # share of the magnitude of y below which that of all scores together explains little
NAMED_SHARE = 0.01  # share of a row's largest magnitude below which a token of an alignment is not printed


def explains_little(scores: Tensor, y: Sequence[float]) -> str:
    """A note where all scores together are small beside y, such as in saturation; empty otherwise, and without y."""
    total, whole = scores.abs().sum().item(), sum(map(abs, y))
    if not total < LITTLE * whole:
        return ""
    return (
        f"These scores explain almost nothing: without special tokens their magnitudes sum to {total:.2g}, beside "
        f"{whole:.2g} of y, so their signs say little. The colour scale ends at y."
    )


class Result:
    """Base of `Explanation` and `Alignment`: prints a summary, draws figures and a page, and displays in notebooks."""

    def summary(self, top: int = 10) -> str:
        """The scores of largest magnitude, as text."""
        raise NotImplementedError

    def figures(self) -> "dict[str, Figure]":
        """The figures by name: scores and coefficients, or the alignment, and those that were asked for."""
        from hf_bidir.explain.draw.page import figures_of

        return figures_of(self)  # type: ignore[arg-type]

    def plot(self) -> "Figure":
        """The image, or the words, with the scores as colours."""
        from hf_bidir.explain.draw.page import figure_of

        return figure_of(self)  # type: ignore[arg-type]

    def page(self) -> str:
        """A web page without scripts, with a text as HTML and an image as pictures."""
        from hf_bidir.explain.draw.page import page_of

        return page_of(self)  # type: ignore[arg-type]

    def to_html(self, path: str | Path) -> None:
        """Write the page."""
        from hf_bidir.explain.draw.page import write_page

        write_page(path, self.page())

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        """The scores as HTML, which Jupyter shows in place of the object."""
        from hf_bidir.explain.draw.page import fragment_of

        return fragment_of([self])  # type: ignore[list-item]


@dataclass(frozen=True, eq=False)
class Explanation(Result):
    """The scores of one example, and the output they explain.

    Attributes:
        example: the inputs, with a name for every token.
        explained: the prediction and the explained number y, in words.
        method, layer, head: as in `token_scores`.
        scores: `[tokens]`, one per word or patch; special tokens included.
        value: y.
        target: the explained class or token; None for a model without a head.
        instead_of: the class or token that the target is contrasted with, if any.
        notes: what limits the scores, a sentence each.
        heads: contributions of each layer and head, summed over all tokens, `[layers, heads]`; only where asked for.
        traced: rollout and flow, `[tokens]` each; only where asked for.
        coefficients: those of one head for the query that the output is read from; None where the method read none, and
            for texts in several windows or in batches.
    """

    example: Example
    explained: str
    method: str
    layer: int | None
    head: int | None
    scores: Tensor
    value: float = float("nan")
    target: int | None = None
    notes: list[str] = field(default_factory=list)
    heads: Tensor | None = None
    traced: dict[str, Tensor] = field(default_factory=dict)
    coefficients: "Coefficients | None" = None
    instead_of: int | None = None

    @property
    def tokens(self) -> list[str]:
        """Words as spelled in the text, or names of patches, one for each score."""
        return self.example.tokens

    def to_dict(self) -> dict[str, Any]:
        """Everything but the inputs, as numbers, strings and lists that json can write."""
        named = ("explained", "value", "target", "instead_of", "method", "layer", "head", "tokens", "notes")
        more = {"unit": METHODS[self.method].unit, "special": self.example.special, "scores": self.scores.tolist()}
        return {name: getattr(self, name) for name in named} | more

    def __repr__(self) -> str:
        grid = self.example.grid
        what = f"{grid[0]} x {grid[1]} patches" if grid else " ".join(self.tokens)
        return f"<Explanation by {self.method} of {visible(shortened(what, 60))}>"

    def caption(self, method: str) -> str:
        return METHODS[method].caption(self.layer, self.head, images=self.example.grid is not None)

    def summary(self, top: int = 10) -> str:
        """The explained output, then the tokens with the scores of largest magnitude, special tokens included."""
        order = self.scores.abs().argsort(descending=True)[:top].tolist()
        scores, names = self.scores.tolist(), told_apart(self.example.tokens)
        rows = [f"{self.number(scores[index]):>10}  {names[index]}" for index in order]
        heading = f"{self.caption(self.method)}. Largest magnitude first:"
        above = [self.explained, *self.notes, self._attended(), heading]
        return "\n".join(filter(None, [*above, *rows, self.sums()]))

    def _attended(self) -> str:
        """The head that is shown, with its lowest and its highest coefficient; empty if there is none."""
        if self.coefficients is None:
            return ""
        tokens, values = self.shown(self.coefficients.values)
        places = int(values.argmin()), int(values.argmax())
        ends = [f"{signed(values[at].item())} ({visible(shortened(tokens[at]))})" for at in places]
        return f"{self.coefficients.heading}: {' to '.join(ends)}."

    def number(self, score: float) -> str:
        """A score as text, with a sign if the method has signs."""
        return signed(score) if METHODS[self.method].explains_output else f"{score:.2g}"

    def shown(self, scores: Tensor) -> tuple[list[str], Tensor]:
        """Tokens and scores to draw: all but special tokens, whose scores would dominate the colour scale."""
        kept = [index for index, special in enumerate(self.example.special) if not special]
        return [self.example.tokens[index] for index in kept], scores[kept]

    def hidden(self, scores: Tensor | None = None) -> str:
        """The special tokens that are not drawn, with their scores, as a sentence; empty if there are none.

        Args:
            scores: `[tokens]` with signs, in place of those of the method.
        """
        number, scores = (self.number, self.scores) if scores is None else (signed, scores)
        numbers = zip(told_apart(self.example.tokens), self.example.special, scores.tolist(), strict=True)
        named = [f"{token} ({number(score)})" for token, special, score in numbers if special]
        return f"Not drawn: {', '.join(named)}." if named else ""

    @property
    def little(self) -> str:
        """The note of `explains_little` on the drawn scores of the whole model; empty for those of a layer or head."""
        if not METHODS[self.method].explains_output or (self.layer, self.head) != (None, None):
            return ""
        note = explains_little(self.shown(self.scores)[1], [self.value])
        return f"{note} Try the method erasure." if note and not self.method.startswith("erasure") else note

    def scale(self) -> "Scale":
        """The colour scale of the scores, up to the largest one, or to y where they explain little.

        The grid of heads has its own: sums over all tokens can be much larger.
        """
        from hf_bidir.explain.draw.figures import Scale

        return Scale.of(self.shown(self.scores)[1], limit=abs(self.value) if self.little else None)

    def sums(self) -> str:
        """One sentence on what the scores sum to, where they are for or against y."""
        method, total = METHODS[self.method], self.scores.sum().item()
        if not method.explains_output or self.value != self.value or (self.layer, self.head) != (None, None):
            return ""
        opposite = " The sum has the other sign than y, so compare another method." * (total * self.value < 0)
        return f"The scores sum to {signed(total)}, y is {signed(self.value)}; {method.sums}.{opposite}"


class Explanations(list[Explanation]):
    """A list of explanations, which shows the first ones in a notebook."""

    def words(self, min_count: int = 1) -> "WordTable":
        """The words of all explanations with their mean scores, as in `word_table`."""
        from hf_bidir.explain.tables import word_table

        return word_table(self, min_count)

    def _repr_html_(self) -> str:
        from hf_bidir.explain.draw.page import fragment_of

        return fragment_of(self[:SHOWN], more=f"and {len(self) - SHOWN} more" if len(self) > SHOWN else "")


@dataclass(frozen=True, eq=False)
class Alignment(Result):
    """Generated tokens, and for each of them a number per source token."""

    source: list[str]  # for a causal model, the prompt and all generated tokens but the last
    written: list[str]  # the generated tokens in order
    explained: str  # the generated text, in words
    what: str  # the numbers that rank tokens, in words
    scores: Mapping[str, Tensor]  # [written, source] by unit; the first one ranks
    first_length: int  # source tokens of the first row: all, or those of the prompt, and one more in each next row
    how_to_read: str = ""  # the meaning of + and − in the first scores, without a full stop
    probabilities: Sequence[float] = ()  # of the generated tokens, where known
    has_signs: bool = True  # whether the first scores can be negative
    values: Sequence[float] = ()  # y of each generated token, where the first scores are for or against it
    axes: tuple[str, str] = ("generated token", "source token")  # what rows and columns are

    @property
    def notes(self) -> list[str]:
        """What limits the scores, a sentence each."""
        return [note] if (note := explains_little(next(iter(self.scores.values())), self.values)) else []

    def limit(self, unit: str) -> float | None:
        """The magnitude of the strongest colour: that of y where the scores explain little, otherwise the largest."""
        return max(map(abs, self.values)) if self.notes and unit == next(iter(self.scores)) else None

    @property
    def rows(self) -> list[str]:
        """The generated tokens with their probabilities."""
        if not self.probabilities:
            return self.written
        return [f"{word} ({share:.1%})" for word, share in zip(self.written, self.probabilities, strict=True)]

    def summary(self, top: int = 10) -> str:
        """One line per generated token, with the source tokens of largest magnitude."""
        lines = [self.explained, *self.notes, f"{self.what}. Largest magnitude first:"]
        number, names = signed if self.has_signs else "{:.2g}".format, told_apart(self.source)
        for word, row in zip(self.rows, next(iter(self.scores.values())), strict=True):
            order = row.abs().argsort(descending=True)[:top].tolist()
            order = [index for index in order if row[index].abs() > NAMED_SHARE * row.abs().max()]
            named = "  ".join(f"{number(row[index].item())} {names[index]}" for index in order)
            lines.append(f"{shortened(word):>16}  {named}")
        return "\n".join(lines)
