"""Explanations as self-contained HTML without scripts: the scores, and below them what a page folds."""

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jinja2 import Environment, PackageLoader
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from torch import Tensor

from hf_bidir.common.files import replacing

from ..inputs.text import Example, visible
from ..listing import Listing
from ..registry import METHODS
from .figures import (
    Scale,
    draw_words,
    finish,
    image_heatmap,
    score_grid,
    text_color_on,
)

COEFFICIENT = "a"  # unit of a coefficient
TEMPLATE, GENERATED = "template", "generated"  # marks of tokens
PAGE = "index.html"
PAGE_MARK = '<meta name="generator" content="hf-bidir explain">'  # in page.html


class Line(NamedTuple):
    """A text with a score for each token."""

    label: str  # in front of the text
    listing: Listing
    prompt: float = inf  # the tokens before those that were generated


@dataclass(frozen=True)
class Section:
    """Scores on one colour scale, as a picture, as coloured texts, or as both."""

    heading: str
    unit: str
    scale: Scale
    caption: str = ""
    lines: Sequence[Line] = ()
    figure: Any = None  # a matplotlib figure

    def words(self, line: Line) -> Iterator[tuple[str, str, str, str, str]]:
        """Each token with its number, if it carries one, its background and colour, and its mark."""
        listing, numbered = line.listing, line.listing.numbered
        tokens = zip(listing.tokens, listing.shown.tolist(), listing.special, strict=True)
        for index, (token, score, special) in enumerate(tokens):
            color = self.scale.color(score)
            number = self.scale.number(score) if index in numbered else ""
            mark = TEMPLATE if special else GENERATED if index >= line.prompt else ""
            yield visible(token), number, to_hex(color), text_color_on(color), mark

    @property
    def png(self) -> str:
        """The picture in base64."""
        stream = io.BytesIO()
        self.figure.savefig(stream, format="png", dpi=120)
        return base64.b64encode(stream.getvalue()).decode("ascii")

    @property
    def gradient(self) -> str:
        """The colours of the bar in CSS."""
        return ", ".join(map(to_hex, self.scale.colors(9)))


def rendered(template: str, **values: object) -> str:
    """A template of the package, such as "explain/draw/page.html", with its values; every value is escaped."""
    environment = Environment(loader=PackageLoader("hf_bidir", "."), autoescape=True)
    return environment.get_template(template).render(**values)


def sections_of(result: Any, scale: Scale | None = None) -> Iterator[Section]:
    """The scores of an `Explanation` or `Alignment`, then the details that were asked for.

    Args:
        scale: of the scores; by default up to the largest of them.
    """
    if result.is_generated:
        if result.listing:
            yield _totals(result)
        yield from (_aligned(result, unit) for unit in result.scores)
        return
    listing = result.listing
    yield _section(result, "", result.unit, listing, scale or scale_of(result, listing.shown))
    if (head := result.coefficients) is not None:
        values = replace(listing, has_signs=False, scores=head.values)
        yield _section(result, head.heading, COEFFICIENT, values, caption=head.caption)
    if result.heads is not None and result.heads.numel() > 1:
        yield _heads(result)


def _section(
    result: Any,
    heading: str,
    unit: str,
    listing: Listing,
    scale: Scale | None = None,
    caption: str = "",
) -> Section:
    """Texts with the scores of their words, and the image alone and under the scores of its patches or cells."""
    scale = scale or Scale.of(listing.shown)
    lines = [Line(*part) for part in listing.by_text()]
    figure = picture_of(result.example, [listing.scores], unit, scale)
    return Section(heading, unit, scale, f"{caption} {listing.left_out()}".strip(), lines, figure)


def picture_of(
    example: Example,
    scores: Sequence[Tensor],
    unit: str,
    scale: Scale,
    titles: Sequence[str] = ("",),
    **place: Any,
) -> Figure | None:
    """The image alone, and under each of several scores `[tokens]`; None of a text."""
    if example.grid is None:
        return None
    grids = torch.stack([torch.zeros(example.grid), *map(example.on_grid, scores)])
    images = example.picture.expand(len(grids), -1, -1, -1)
    title = "the image in grey" if example.inputs else "The image is not stored."
    return image_heatmap(images, grids, titles=[title, *titles], unit=unit, scale=scale, **place)


def scale_of(result: Any, scores: Tensor) -> Scale:
    """The colour scale of the scores of an `Explanation`.

    Of changes of y, and where y hardly moves, it does not end below a change that counts: smaller ones are pale.
    """
    changes = result.unit == METHODS["erasure"].unit or (result.verdict and result.verdict.hardly_moves)
    return Scale.of(scores, result.least if result.is_whole and changes else 0)


def _heads(result: Any) -> Section:
    """The contributions of each layer and head, the top layer on top."""
    contributions = result.heads
    count, width = contributions.shape
    layers = [f"layer {index}" for index in reversed(range(count))]
    heads = [f"head {index}" for index in range(width)]
    unit = METHODS["contributions"].unit
    scale = Scale.of(contributions)
    caption = "Summed over all tokens. A cell without a number is close to 0."
    figure = score_grid(contributions.flip(0), layers, heads, unit=unit, scale=scale)
    return Section("Contribution of each layer and head", unit, scale, caption, figure=figure)


def _totals(result: Any) -> Section:
    """The prompt with the sums over all generated tokens, a line for each of its sentences."""
    section = _section(result, "", result.unit, result.listing)
    if not result.sentences:
        return section
    lines = [Line(total, part) for _, total, part in result.by_sentence()]
    return replace(section, lines=lines, caption=f"The number in front of a sentence is its sum. {section.caption}")


def _aligned(result: Any, unit: str) -> Section:
    """A text for each generated token: the source, and of a causal model the tokens generated before."""
    begin, lines = min(result.example.texts.values()), []
    for step, (word, scores) in enumerate(zip(result.rows, result.scores[unit], strict=True)):
        end = result.first_length + result.grows * step
        lines.append(Line(f"→ {word}", result.row_of(scores).part(begin, end), result.first_length))
    special = torch.tensor(result.example.special)
    scale = Scale.of(result.scores[unit].masked_fill(special, 0))
    figure = picture_of(result.example, list(result.scores[unit]), unit, scale, result.rows)
    return Section(f"Each {result.row}: {unit}", unit, scale, lines=lines, figure=figure)


def figure_of(result: Any) -> Figure:
    """The scores alone: the words or the image, or a grid of generated and source tokens."""
    section = next(sections_of(result))
    verdict = [result.verdict.sentence] if result.verdict else []
    parts = [f"{result.reading} {section.caption}", *verdict, *result.notes]
    if section.figure is not None and section.lines:
        figure = Figure(figsize=(10, 7), layout="constrained")
        panels: Any = figure.subfigures(2, 1, height_ratios=(3, 1))
        above, below = panels
        picture_of(result.example, [result.listing.scores], section.unit, section.scale, figure=above)
        draw_words(result.listing, section.unit, section.scale, below)
    elif section.figure is not None:
        figure = section.figure
    elif result.listing is None:
        figure = score_grid(
            result.scores[section.unit], result.rows, result.source, unit=section.unit, scale=section.scale
        )
    else:
        figure = draw_words(result.listing, section.unit, section.scale)
    return finish(figure, "\n".join(filter(None, map(str.strip, parts))), result.explained)


def page_of(result: Any) -> str:
    """The scores of an `Explanation` or `Alignment` as a whole page."""
    return rendered("explain/draw/page.html", result=result, sections=list(sections_of(result)))


def fragment_of(results: Sequence[Any], more: str = "", scale: Scale | None = None) -> str:
    """The scores as HTML for a notebook; what the numbers are is said once for several results."""
    contents = [(result, list(sections_of(result, scale))) for result in results]
    return rendered("explain/draw/fragment.html", contents=contents, more=more)


def write_page(path: str | Path, page: str) -> None:
    with replacing(Path(path)) as temporary:
        temporary.write_text(page, encoding="utf-8")


def write_explanation(result: Any, folder: str | Path) -> Path:
    """Write the page as index.html into `folder`, in place of an earlier one; errors as in `check_page`."""
    check_page(folder)
    path = Path(folder, PAGE)
    write_page(path, page_of(result))
    return path


def check_page(folder: str | Path) -> None:
    """Raise FileExistsError if `folder` is a file, or its index.html is no earlier explanation."""
    folder = Path(folder)
    page = folder / PAGE
    foreign = page.is_file() and PAGE_MARK not in page.read_text(encoding="utf-8", errors="replace")
    if foreign or folder.is_file():
        raise FileExistsError(
            f"expected a folder for the page, without another index.html; got {folder}. Choose another --output."
        )
