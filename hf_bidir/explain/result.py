"""The scores of one example or several: printed, drawn, as a page, in a notebook, and as JSON."""

import json
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from hf_bidir import __version__

from .inputs.text import Example, shortened, visible
from .listing import LISTED, Listing
from .readout import Prediction
from .registry import METHODS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .coefficients import Coefficients
    from .verdict import Verdict

SHOWN = 20  # explanations in a notebook


def _drawing() -> Any:
    """The module that draws, which imports matplotlib, on first use."""
    from .draw import page

    return page


@dataclass(frozen=True, eq=False, kw_only=True)
class Result:
    """Base of `Explanation` and `Alignment`: prints a summary, draws a figure and a page, and displays in notebooks.

    Attributes:
        example: the inputs, with a name for every token.
        method: a name of `METHODS`.
        model: folder or name of the model; empty for one that was made in memory.
        version, day: the version of hf_bidir, and the day.
        verdict: the prediction without the strongest words or patches, and whether a second method agrees.
        notes: what limits the scores, a sentence each.
    """

    is_generated: ClassVar = False  # whether the scores are of generated tokens, a row each

    example: Example
    method: str
    model: str = ""
    version: str = __version__
    day: date = field(default_factory=date.today)
    verdict: "Verdict | None" = None
    notes: list[str] = field(default_factory=list)

    @property
    def unit(self) -> str:
        return METHODS[self.method].unit

    def row_of(self, scores: Tensor) -> Listing:
        """The tokens with these scores."""
        example, has_signs = self.example, METHODS[self.method].explains_output
        return Listing(example.tokens, scores, example.special, example.template, has_signs, example.texts)

    def summary(self: Any, top: int = LISTED) -> str:
        """The prediction, the tokens of largest magnitude, what the numbers are, the verdict or rows, and notes."""
        listing = self.listing
        rows = [f"{number:>8}  {name}" for name, number in listing.strongest(top)] if listing else []
        left_out = listing.left_out() if listing else ""
        lines = [self.explained, *rows, self.reading, left_out, *self._findings(), *self.notes]
        return "\n".join(filter(None, lines))

    def _findings(self) -> list[str]:
        """What follows from the scores, a line each."""
        return [self.verdict.sentence] if self.verdict else []

    def plot(self) -> "Figure":
        """The image, or the words, with the scores as colours."""
        return _drawing().figure_of(self)

    def page(self) -> str:
        """A web page without scripts, with a text as HTML and an image as pictures."""
        return _drawing().page_of(self)

    def to_html(self, path: str | Path) -> None:
        """Write the page."""
        _drawing().write_page(path, self.page())

    def to_json(self, path: str | Path | None = None) -> str:
        """All of it but the model inputs as JSON, also written to a path; the schema is in docs/explanations.md."""
        from .stored import written

        text = written(self)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def to_dict(self) -> dict[str, Any]:
        """The content of `to_json`: numbers, strings and lists by name."""
        return json.loads(self.to_json())

    @staticmethod
    def from_json(source: str | Path) -> Any:
        """The `Explanation` or `Alignment` that `to_json` wrote; it prints and draws the same, an image by its patches.

        Args:
            source: the JSON, or the path of its file.

        Raises:
            ValueError: something else, or JSON of another schema.
        """
        from .stored import read

        return read(source)

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        """The scores as HTML, which Jupyter shows in place of the object."""
        return _drawing().fragment_of([self])


@dataclass(frozen=True, eq=False, kw_only=True)
class Explanation(Prediction, Result):
    """The scores of one example, and the prediction that they explain.

    It is read, printed and drawn in one order: `explained`, the scores, `reading`, the verdict, notes.

    Attributes:
        layer, head: as in `token_scores`.
        scores: `[tokens]`, one per word or patch; special tokens included.
        coefficients, heads: details, if they were asked for: the coefficients of one head, and the contributions of
            each layer and head, summed over all tokens, `[layers, heads]`.
    """

    layer: int | None
    head: int | None
    scores: Tensor
    coefficients: "Coefficients | None" = None
    heads: Tensor | None = None

    @property
    def tokens(self) -> list[str]:
        """Words as spelled in the text, or names of patches, one for each score."""
        return self.example.tokens

    @property
    def is_whole(self) -> bool:
        """Whether the scores are for or against y, and of the whole model."""
        return METHODS[self.method].explains_output and (self.layer, self.head) == (None, None)

    @property
    def is_opposite(self) -> bool:
        """Whether scores for or against y, without those of special tokens, sum to another sign than y."""
        return self.is_whole and self.listing.shown.sum().item() * self.value < 0

    @property
    def reading(self) -> str:
        """What y is, unless `explained` says it, and what the numbers are."""
        method = METHODS[self.method]
        caption = method.caption(self.example.part, self.layer, self.head)
        sums = f"; {method.sums}" if self.is_whole else ""
        return f"{self.definition} {caption}: {method.how_to_read}{sums}.".lstrip()

    def __repr__(self) -> str:
        return f"<Explanation by {self.method} of {visible(shortened(' '.join(self.tokens), 60))}>"

    @property
    def listing(self) -> Listing:
        """The tokens with their scores."""
        return self.row_of(self.scores)


class Explanations(list):
    """A list of explanations, which shows the first ones in a notebook."""

    def _repr_html_(self) -> str:
        more = len(self) - SHOWN
        return _drawing().fragment_of(self[:SHOWN], more=f"and {more} more" if more > 0 else "")
