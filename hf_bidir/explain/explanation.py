"""The scores of one example: printed, drawn, as a page, and as they show themselves in a notebook."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from hf_bidir.explain.checkpoint import Example
from hf_bidir.explain.colors import Scale, as_array, shortened, signed, told_apart, visible
from hf_bidir.explain.figures import image_heatmap, layer_head_grid
from hf_bidir.explain.methods import METHODS
from hf_bidir.explain.page import html_fragment, html_page, png_of, write_page
from hf_bidir.explain.photo import photo_heatmap
from hf_bidir.explain.text_heatmap import text_blocks, text_heatmap

SMOOTH = 10  # rows of patches from which an image is drawn as a photograph under a smooth map


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

    def plot(self) -> Figure:
        """The text or image with its scores as colours."""
        return _draw(self, [self.method])

    def to_html(self, path: str | Path) -> None:
        """Write a page with the scores and all figures, without scripts."""
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
        caption = " ".join(filter(None, [self.explained, *self.notes, self.hidden(), self.sums(), self.reading()]))
        if self.example.grid is not None:
            return html_fragment(pictures={self.caption(self.method): png_of(self.plot())}, caption=caption)
        return html_fragment(blocks=self._blocks(), caption=caption)

    def _blocks(self) -> list:
        tokens, scores = self.shown(self.scores)
        scale, row = self.scale(), {self.caption(self.method): scores}
        return text_blocks(tokens, row, METHODS[self.method].unit, scale.has_signs, scale.limit)

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

    def headings(self) -> dict[str, str]:
        """The headings of the figures by names of `FIGURES`.

        Rollout and flow need attention between tokens; the grid of heads needs more than one head.
        """
        found = {"scores": self.caption(self.method)}
        if self.traced:
            found["rollout-flow"] = " and ".join(self.traced).capitalize()
        if self.heads is not None and self.heads.numel() > 1:
            found["heads"] = "Contribution of each layer and head"
        return found

    def figures(self) -> dict[str, tuple[str, Figure]]:
        """The figures by names of `FIGURES`, each with its heading."""
        headings, drawn = self.headings(), {"scores": _draw(self, [self.method])}
        if "rollout-flow" in headings:
            drawn["rollout-flow"] = _draw(self, list(self.traced))
        if self.heads is not None and "heads" in headings:
            reading = (
                f"How to read: {METHODS['contributions'].how_to_read}; {_scale_of(self.heads).sentence('all heads')}."
            )
            caption = f"Contributions, summed over all tokens. {self.explained} {reading}"
            drawn["heads"] = layer_head_grid(self.heads, unit="a · ∂y/∂a", caption=caption)
        return {name: (headings[name], figure) for name, figure in drawn.items()}

    def page(self, pictures: Mapping[str, bytes] | None = None) -> str:
        """The figures as a web page, with a text as HTML instead of its picture.

        Args:
            pictures: the figures as PNG by file name; by default they are drawn.
        """
        if pictures is None:
            pictures = {name: png_of(figure) for name, (_, figure) in self.figures().items()}
        headings, blocks = self.headings(), []
        if self.example.grid is None:
            del headings["scores"]
            blocks = self._blocks()
        by_heading = {heading: pictures[name] for name, heading in headings.items()}
        caption = " ".join(filter(None, [*self.notes, self.hidden(), self.sums(), self.reading()]))
        return html_page(self.explained, blocks=blocks, pictures=by_heading, caption=caption)

    def shown(self, scores: Tensor) -> tuple[list[str], Tensor]:
        """Tokens and scores to draw: all but special tokens, whose scores would dominate the colour scale."""
        kept = [index for index, special in enumerate(self.example.special) if not special]
        return [self.example.tokens[index] for index in kept], scores[kept]

    def hidden(self) -> str:
        """The special tokens that are not drawn, with their scores, as a sentence; empty if there are none."""
        numbers = zip(told_apart(self.example.tokens), self.example.special, self.scores.tolist(), strict=True)
        named = [f"{token} ({self.number(score)})" for token, special, score in numbers if special]
        return f"Not drawn: {', '.join(named)}." if named else ""

    def scale(self) -> Scale:
        """The colour scale of the scores. The grid of heads has its own: sums over all tokens can be much larger."""
        return _scale_of(self.shown(self.scores)[1])

    def sums(self) -> str:
        """One sentence on what the scores sum to, where they are for or against y."""
        method, total = METHODS[self.method], self.scores.sum().item()
        if not method.explains_output or self.value != self.value or (self.layer, self.head) != (None, None):
            return ""
        return f"The scores sum to {signed(total)}, y is {signed(self.value)}; {method.sums}."

    def reading(self) -> str:
        """One sentence on how to read the scores, with their colour scale."""
        return f"How to read: {METHODS[self.method].how_to_read}; {self.scale().sentence('all scores')}."


def _scale_of(scores: Tensor) -> Scale:
    return Scale.of(as_array(scores))


def _draw(explanation: Explanation, methods: list[str]) -> Figure:
    """Draw the text once per method, or the image, without special tokens."""
    example, known = explanation.example, {explanation.method: explanation.scores} | explanation.traced
    scores = {name: explanation.shown(known[name])[1] for name in methods}
    units = {name: METHODS[name].unit for name in methods}
    if methods == [explanation.method]:
        hidden, reading = " ".join([explanation.hidden(), *explanation.notes]), explanation.reading()
        limit = explanation.scale().limit
    else:  # rollout and flow, which have different units
        scores = {name: values / values.abs().max().clamp_min(1e-12) for name, values in scores.items()}
        units, hidden, limit = dict.fromkeys(methods, "share of the largest"), "", 1.0
        same = "each is divided by its largest score, so all are on one colour scale, 0 to 1"
        reading = f"How to read: {METHODS[methods[0]].how_to_read}; {same}."
    captions = "; ".join(explanation.caption(name) for name in methods)
    caption = " ".join(filter(None, [f"{captions[0].upper()}{captions[1:]}.", hidden, explanation.explained, reading]))
    if example.grid is None:
        words, _ = explanation.shown(explanation.scores)
        return text_heatmap(words, scores, unit=units, caption=caption, limit=limit)
    if example.photo is not None and example.grid[0] >= SMOOTH:
        maps = {name: values.unflatten(0, example.grid) for name, values in scores.items()}
        return photo_heatmap(example.photo, maps, units=units, caption=caption, with_photo=True)
    grids = torch.stack([values.unflatten(0, example.grid) for values in scores.values()])
    grids = torch.cat([torch.zeros_like(grids[:1]), grids])  # the first panel shows the image alone
    images = example.inputs["pixel_values"].expand(len(grids), -1, -1, -1)
    titles, unit = [f"the image in grey, {images.shape[3]} x {images.shape[2]}", *methods], units[methods[0]]
    figure: Any = image_heatmap(images, grids, titles=titles, unit=unit, caption=caption, limit=limit)
    return figure
