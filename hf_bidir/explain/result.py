"""The scores of one example or several: printed, drawn, as a page, and as they show themselves in a notebook."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hf_bidir.explain.inputs.text import Example, shortened, signed, told_apart, visible
from hf_bidir.explain.registry import METHODS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hf_bidir.explain.draw.colors import Scale
    from hf_bidir.explain.tables import WordTable

SHOWN = 20  # explanations in a notebook


@dataclass(frozen=True, eq=False)
class Explanation:
    """The scores of one example, and the output they explain; a notebook displays them.

    Attributes:
        example: the inputs, with a name for every token.
        explained: the prediction and the explained number y, in words.
        method, layer, head: as in `token_scores`.
        scores: `[tokens]`, one per word or patch; special tokens included.
        value: y.
        target: the explained class or token; None for a model without a head.
        notes: what limits the scores, a sentence each.
        heads: contributions of each layer and head, summed over all tokens, `[layers, heads]`; only where asked for.
        traced: rollout and flow, `[tokens]` each; only where asked for.
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

    @property
    def tokens(self) -> list[str]:
        """Words as spelled in the text, or names of patches, one for each score."""
        return self.example.tokens

    def to_dict(self) -> dict[str, Any]:
        """Everything but the inputs, as numbers, strings and lists that json can write."""
        return {
            "explained": self.explained,
            "value": self.value,
            "target": self.target,
            "method": self.method,
            "unit": METHODS[self.method].unit,
            "layer": self.layer,
            "head": self.head,
            "tokens": self.tokens,
            "special": self.example.special,
            "scores": self.scores.tolist(),
            "notes": self.notes,
        }

    def plot(self) -> "Figure":
        """The text or image with its scores as colours."""
        from hf_bidir.explain.draw.explanations import draw

        return draw(self, [self.method])

    def to_html(self, path: str | Path) -> None:
        """Write a page with the scores and all figures, without scripts."""
        from hf_bidir.explain.draw.page import write_page

        write_page(path, self.page())

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        what = (
            f"{self.example.grid[0]} x {self.example.grid[1]} patches" if self.example.grid else " ".join(self.tokens)
        )
        return f"<Explanation by {self.method} of {visible(shortened(what, 60))}>"

    def _repr_html_(self) -> str:
        """The scores as HTML, which Jupyter shows in place of the object."""
        from hf_bidir.explain.draw.explanations import fragment_of

        return fragment_of(self)

    def figures(self) -> "dict[str, tuple[str, Figure]]":
        """The figures by names of `FIGURES`, each with its heading.

        Rollout and flow need attention between tokens; the grid of heads needs more than one head.
        """
        from hf_bidir.explain.draw.explanations import figures_of

        return figures_of(self)

    def page(self, pictures: Mapping[str, bytes] | None = None) -> str:
        """The figures as a web page, with a text as HTML instead of its picture.

        Args:
            pictures: the figures as PNG by file name; by default they are drawn.
        """
        from hf_bidir.explain.draw.explanations import page_of

        return page_of(self, pictures)

    def caption(self, method: str) -> str:
        return METHODS[method].caption(self.layer, self.head)

    def summary(self, top: int = 10) -> str:
        """The explained output, then the tokens with the scores of largest magnitude, special tokens included."""
        order = self.scores.abs().argsort(descending=True)[:top].tolist()
        scores, names = self.scores.tolist(), told_apart(self.example.tokens)
        rows = [f"{self.number(scores[index]):>10}  {names[index]}" for index in order]
        heading = f"{self.caption(self.method)}. Largest magnitude first:"
        return "\n".join(filter(None, [self.explained, *self.notes, heading, *rows, self.sums()]))

    def number(self, score: float) -> str:
        """A score as text, with a sign if the method has signs."""
        return signed(score) if METHODS[self.method].signed else f"{score:.2g}"

    def shown(self, scores: Tensor) -> tuple[list[str], Tensor]:
        """Tokens and scores to draw: all but special tokens, whose scores would dominate the colour scale."""
        kept = [index for index, special in enumerate(self.example.special) if not special]
        return [self.example.tokens[index] for index in kept], scores[kept]

    def hidden(self) -> str:
        """The special tokens that are not drawn, with their scores, as a sentence; empty if there are none."""
        numbers = zip(told_apart(self.example.tokens), self.example.special, self.scores.tolist(), strict=True)
        named = [f"{token} ({self.number(score)})" for token, special, score in numbers if special]
        return f"Not drawn: {', '.join(named)}." if named else ""

    def scale(self) -> "Scale":
        """The colour scale of the scores. The grid of heads has its own: sums over all tokens can be much larger."""
        from hf_bidir.explain.draw.colors import Scale

        return Scale.of(self.shown(self.scores)[1])

    def sums(self) -> str:
        """One sentence on what the scores sum to, where they are for or against y."""
        method, total = METHODS[self.method], self.scores.sum().item()
        if not method.explains_output or self.value != self.value or (self.layer, self.head) != (None, None):
            return ""
        return f"The scores sum to {signed(total)}, y is {signed(self.value)}; {method.sums}."

    def reading(self) -> str:
        """One sentence on how to read the scores, with their colour scale."""
        return f"How to read: {METHODS[self.method].how_to_read}; {self.scale().sentence('all scores')}."


class Explanations(list[Explanation]):
    """A list of explanations, which shows the first ones in a notebook."""

    def words(self, min_count: int = 1) -> "WordTable":
        """The words of all explanations with their mean scores, as in `word_table`."""
        from hf_bidir.explain.tables import word_table

        return word_table(self, min_count)

    def _repr_html_(self) -> str:
        more = f"<p>and {len(self) - SHOWN} more</p>" if len(self) > SHOWN else ""
        return "".join(one._repr_html_() for one in self[:SHOWN]) + more
