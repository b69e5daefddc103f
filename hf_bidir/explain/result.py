"""The scores of one example or several: printed, drawn, as a page, and in a notebook."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from hf_bidir.explain.inputs.text import Example, shortened, signed, told_apart, visible
from hf_bidir.explain.readout import Prediction
from hf_bidir.explain.registry import METHODS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hf_bidir.explain.coefficients import Coefficients

SHOWN = 20  # explanations in a notebook
NAMED_SHARE = 0.01  # share of a row's largest magnitude below which a token of an alignment is not printed
ORDER = "Largest magnitude first:"


class Result:
    """Base of `Explanation` and `Alignment`: prints a summary, draws a figure and a page, and displays in notebooks."""

    is_generated: ClassVar = False  # whether the scores are of generated tokens, a row each

    def summary(self, top: int = 10) -> str:
        """The scores of largest magnitude, as text."""
        raise NotImplementedError

    def plot(self) -> "Figure":
        """The image, or the words, with the scores as colours."""
        from hf_bidir.explain.draw.page import figure_of

        return figure_of(self)

    def page(self) -> str:
        """A web page without scripts, with a text as HTML and an image as pictures."""
        from hf_bidir.explain.draw.page import page_of

        return page_of(self)

    def to_html(self, path: str | Path) -> None:
        """Write the page."""
        from hf_bidir.explain.draw.page import write_page

        write_page(path, self.page())

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        """The scores as HTML, which Jupyter shows in place of the object."""
        from hf_bidir.explain.draw.page import fragment_of

        return fragment_of([self])


@dataclass(frozen=True, eq=False, kw_only=True)
class Explanation(Prediction, Result):
    """The scores of one example, and the prediction that they explain.

    Attributes:
        example: the inputs, with a name for every token.
        method, layer, head: as in `token_scores`.
        scores: `[tokens]`, one per word or patch; special tokens included.
        notes: what limits the scores, a sentence each.
        coefficients, heads: the figures that were asked for: the coefficients of one head, and the contributions of
            each layer and head, summed over all tokens, `[layers, heads]`.
    """

    example: Example
    method: str
    layer: int | None
    head: int | None
    scores: Tensor
    notes: list[str] = field(default_factory=list)
    coefficients: "Coefficients | None" = None
    heads: Tensor | None = None

    @property
    def tokens(self) -> list[str]:
        """Words as spelled in the text, or names of patches, one for each score."""
        return self.example.tokens

    @property
    def how_to_read(self) -> str:
        """The meaning of the scores, without a full stop."""
        return METHODS[self.method].how_to_read

    def to_dict(self) -> dict[str, Any]:
        """Everything but the inputs, as numbers, strings and lists that json can write."""
        named = ("explained", "value", "target", "instead_of", "method", "layer", "head", "tokens", "notes")
        numbers = {name: getattr(self, name) for name in named}
        numbers["unit"] = METHODS[self.method].unit
        numbers["special"] = self.example.special
        numbers["scores"] = self.scores.tolist()
        return numbers

    def __repr__(self) -> str:
        grid = self.example.grid
        what = f"{grid[0]} x {grid[1]} patches" if grid else " ".join(self.tokens)
        return f"<Explanation by {self.method} of {visible(shortened(what, 60))}>"

    def caption(self, method: str) -> str:
        """What the scores of a method are, of these layers and heads."""
        return METHODS[method].caption(self.layer, self.head, images=self.example.grid is not None)

    def summary(self, top: int = 10) -> str:
        """The explained output, then the tokens with the scores of largest magnitude, special tokens included."""
        order = self.scores.abs().argsort(descending=True)[:top].tolist()
        names = told_apart(self.tokens)
        rows = [f"{self.number(self.scores[index].item()):>10}  {names[index]}" for index in order]
        lines = [self.explained, *self.notes, f"{self.caption(self.method)}. {ORDER}", *rows, self.sums()]
        return "\n".join(filter(None, lines))

    def number(self, score: float) -> str:
        """A score as text, with a sign if the method has signs."""
        return signed(score) if METHODS[self.method].explains_output else f"{score:.2g}"

    def shown(self, scores: Tensor) -> tuple[list[str], Tensor]:
        """Tokens and scores to draw: all but special tokens, whose scores would dominate the colour scale."""
        indices = [index for index, special in enumerate(self.example.special) if not special]
        return [self.tokens[index] for index in indices], scores[indices]

    def hidden(self, scores: Tensor | None = None) -> str:
        """The special tokens that are not drawn, with their scores, as a sentence; empty if there are none.

        Args:
            scores: `[tokens]` with signs, in place of those of the method.
        """
        number = self.number if scores is None else signed
        scores = self.scores if scores is None else scores
        names = told_apart(self.tokens)
        named = []
        for name, score, special in zip(names, scores.tolist(), self.example.special, strict=True):
            if special:
                named.append(f"{name} ({number(score)})")
        return f"Not drawn: {', '.join(named)}." if named else ""

    def sums(self) -> str:
        """One sentence on what the scores sum to, where they are for or against y."""
        method, total = METHODS[self.method], self.scores.sum().item()
        if not method.explains_output or (self.layer, self.head) != (None, None):
            return ""
        opposite = " The sum has the other sign than y, so compare another method." if total * self.value < 0 else ""
        return f"The scores sum to {signed(total)}, y is {signed(self.value)}; {method.sums}.{opposite}"


class Explanations(list[Explanation]):
    """A list of explanations, which shows the first ones in a notebook."""

    def _repr_html_(self) -> str:
        from hf_bidir.explain.draw.page import fragment_of

        more = len(self) - SHOWN
        return fragment_of(self[:SHOWN], more=f"and {more} more" if more > 0 else "")
