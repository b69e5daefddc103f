"""Explanations as self-contained HTML without scripts, a page or a fragment for a notebook, with pictures of images."""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from torch import Tensor

from hf_bidir.common.files import replacing
from hf_bidir.explain.draw.figures import (
    NUMBERED_SHARE,
    Array,
    Scale,
    as_array,
    draw_grid,
    draw_images,
    draw_words,
    finish,
    text_color_on,
)
from hf_bidir.explain.inputs.text import visible
from hf_bidir.explain.registry import METHODS
from hf_bidir.explain.result import Alignment, Explanation

COEFFICIENT = "a"  # unit of a coefficient
SCORES, HEADS, ALIGNMENT = "scores", "heads", "alignment"  # names of figures
PICTURES = {f"{name}.png" for name in ("coefficients", SCORES, "rollout", "flow", HEADS)}
PAGE = "index.html"
PAGE_MARK = '<meta name="generator" content="hf-bidir explain">'  # in page.html


class Bar(NamedTuple):
    """A colour bar: the numbers at its ends, its colours in CSS, and its unit."""

    start: str
    end: str
    gradient: str
    unit: str

    @classmethod
    def of(cls, scale: Scale, unit: str) -> "Bar":
        start, end = map(scale.number, scale.ends)
        return cls(start, end, ", ".join(map(to_hex, scale.steps(9))), unit)


@dataclass(frozen=True)
class TextBlock:
    """A text with one row of scores `[length]` on their colour scale, as content.html draws it."""

    heading: str
    tokens: Sequence[str]
    scores: np.ndarray
    unit: str
    scale: Scale
    label: str = ""  # in front of the text
    caption: str = ""  # below it

    @property
    def bar(self) -> Bar:
        return Bar.of(self.scale, self.unit)

    @property
    def words(self) -> Iterator[tuple[str, str, str, str]]:
        """Each token with its number, background and colour."""
        for token, score in zip(self.tokens, self.scores, strict=True):
            color = self.scale.color(score)
            yield visible(token), self.scale.number(score), to_hex(color), text_color_on(color)


@dataclass(frozen=True)
class Content:
    """What a page or a fragment shows: notes, text, coloured texts, and pictures as PNG by heading."""

    title: str = ""
    notes: Sequence[str] = ()
    caption: str = ""
    blocks: Sequence[TextBlock] = ()
    pictures: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def barred(self) -> list[tuple[TextBlock, bool]]:
        """The blocks, and whether each is the first one with its colour bar, which the others do not repeat."""
        bars = [block.bar for block in self.blocks]
        return [(block, bars.index(bar) == at) for at, (block, bar) in enumerate(zip(self.blocks, bars, strict=True))]

    @property
    def encoded(self) -> dict[str, str]:
        return {heading: base64.b64encode(png).decode("ascii") for heading, png in self.pictures.items()}


def rendered(template: str, **values: object) -> str:
    """A template of this folder with its values; every value is escaped."""
    environment = Environment(loader=PackageLoader("hf_bidir.explain.draw", "."), autoescape=True)
    return environment.get_template(template).render(**values)


def write_page(path: str | Path, page: str) -> None:
    with replacing(Path(path)) as temporary:
        temporary.write_text(page, encoding="utf-8")


def png_of(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=120)
    return stream.getvalue()


def text_heatmap(
    tokens: Sequence[str],
    scores: Array | Mapping[str, Array],
    *,
    unit: str = "score",
    caption: str = "",
    path: str | Path | None = None,
) -> str:
    """A page of a text with its signed scores as colours behind the words: red for +, blue for −, white for 0.

    Words carry their signed number. If nothing is negative, there is neither blue nor a sign.

    Args:
        tokens: words or word pieces, `length` of them.
        scores: `[length]`, or several such rows by name, one below the other, each with its own scale.
        unit, caption: label of the colour bars; text above the words.
        path: file to write the page to.

    Raises:
        ValueError: no tokens, or scores that do not fit them or are not finite.
    """
    named = scores if isinstance(scores, Mapping) else {"": scores}
    blocks = [_block(name, tokens, as_array(values), unit, Scale.of(values)) for name, values in named.items()]
    page = rendered("page.html", content=Content("Signed scores", caption=caption, blocks=blocks))
    if path is not None:
        write_page(path, page)
    return page


def _block(heading: str, tokens: Sequence[str], scores: np.ndarray, unit: str, scale: Scale, **more: str) -> TextBlock:
    if not len(tokens) or scores.shape != (len(tokens),) or not np.isfinite(scores).all():
        raise ValueError(
            f"expected a finite score for each of {len(tokens)} tokens, at least one; got the shape {scores.shape}"
            f"{'' if np.isfinite(scores).all() else ' with NaN or infinity'}{f' for {heading}' if heading else ''}."
        )
    return TextBlock(heading, tokens, scores, unit, scale, **more)


class Row(NamedTuple):
    """One score for each shown token."""

    heading: str
    values: Tensor
    unit: str
    scale: Scale
    caption: str = ""


def _rows(result: Explanation) -> dict[str, Row]:
    """The coefficients, the scores, and the methods traced beside them, by name of the figure."""
    rows, method = {}, METHODS[result.method]
    if (of := result.coefficients) is not None:
        values, signs = result.shown(of.values)[1], bool((of.values < 0).any())
        caption = f"{of.caption} {result.hidden(of.values)}"
        rows["coefficients"] = Row(of.heading, values, COEFFICIENT, Scale.of(values, has_signs=signs), caption)
    heading = _capitalised(result.caption(result.method))
    rows[SCORES] = Row(heading, result.shown(result.scores)[1], method.unit, Scale.of(result.shown(result.scores)[1]))
    for name, scores in result.traced.items():
        values = result.shown(scores)[1]
        rows[name] = Row(_capitalised(result.caption(name)), values, METHODS[name].unit, Scale.of(values))
    return rows


def figures_of(result: Explanation | Alignment) -> dict[str, Figure]:
    if isinstance(result, Alignment):
        return {ALIGNMENT: figure_of(result)}
    figures = {name: _drawn(result, row) for name, row in _rows(result).items()}
    return figures | {name: figure for name, (_, figure) in _heads(result).items()}


def figure_of(result: Explanation | Alignment) -> Figure:
    """The figure of the scores alone."""
    if isinstance(result, Explanation):
        return _drawn(result, _rows(result)[SCORES])
    unit, scores = next(iter(result.scores.items()))
    caption = " ".join([f"{result.explained.rstrip('.')}.", *result.notes, _caption(result)])
    scale = Scale.of(scores)
    return draw_grid(as_array(scores), result.rows, result.source, scale, unit=unit, caption=caption)


def _drawn(result: Explanation, row: Row) -> Figure:
    """The image alone and under a row of scores, or the words on their colours."""
    example = result.example
    caption = f"{row.heading}. {row.caption or _caption(result)} {result.explained}"
    if example.grid is None:
        words = result.shown(result.scores)[0]
        return draw_words(words, as_array(row.values), row.scale, unit=row.unit, caption=caption)
    scores = as_array(row.values).reshape(example.grid)
    figure = Figure(figsize=(6.8, 3.9), layout="constrained")
    images = example.inputs["pixel_values"].expand(2, -1, -1, -1) if example.photo is None else example.photo
    stacked = np.stack([np.zeros_like(scores), scores])  # the first panel shows the image alone
    draw_images(figure, images, stacked, titles=["the image in grey", ""], scale=row.scale, unit=row.unit)
    return finish(figure, caption)


def _heads(result: Explanation) -> dict[str, tuple[str, Figure]]:
    """The grid of layers and heads with its heading, if it was asked for and there are several."""
    if result.heads is None or result.heads.numel() == 1:
        return {}
    scale, heading = Scale.of(result.heads), "Contribution of each layer and head"
    layers = [f"layer {index}" for index in range(len(result.heads))]
    heads = [f"head {index}" for index in range(result.heads.shape[1])]
    caption = (
        f"Contributions, summed over all tokens. {result.explained} {_reading('contributions', scale, 'all heads')} "
        f"A cell without a number is closer to 0 than {NUMBERED_SHARE:.0%} of the largest."
    )
    grid = as_array(result.heads)[::-1]  # the top layer on top
    figure = draw_grid(grid, layers[::-1], heads, scale, unit=METHODS["contributions"].unit, caption=caption)
    return {HEADS: (heading, figure)}


def _capitalised(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _reading(method: str, scale: Scale, subject: str) -> str:
    return f"How to read: {METHODS[method].how_to_read}; {scale.sentence(subject)}."


def _caption(result: Explanation | Alignment, with_reading: bool = True) -> str:
    """What the scores are, what they sum to and how to read them, with their colour scale."""
    if isinstance(result, Explanation):
        reading = (
            _reading(result.method, Scale.of(result.shown(result.scores)[1]), "all scores") if with_reading else ""
        )
        return " ".join(filter(None, [result.hidden(), result.sums(), reading]))
    _unit, rows = next(iter(result.scores.items()))
    scale = Scale.of(rows).sentence("all rows")
    reading = f" How to read: {result.how_to_read}; {scale}." if with_reading else ""
    return f"{_capitalised(result.what)}.{reading}"


def pictures_of(result: Explanation | Alignment) -> dict[str, tuple[str, bytes]]:
    """Heading and PNG, by name, of what a page does not show as text: images, and the grid of heads."""
    if isinstance(result, Alignment):
        return {}
    figures = _heads(result)
    if result.example.grid is not None:
        figures = {name: (row.heading, _drawn(result, row)) for name, row in _rows(result).items()} | figures
    return {name: (heading, png_of(figure)) for name, (heading, figure) in figures.items()}


def page_of(result: Explanation | Alignment, pictures: Mapping[str, tuple[str, bytes]] | None = None) -> str:
    drawn = dict((pictures_of(result) if pictures is None else pictures).values())
    content = Content(result.explained, result.notes, _caption(result), _blocks(result), drawn)
    return rendered("page.html", content=content)


def fragment_of(results: Sequence[Explanation | Alignment], more: str = "") -> str:
    """The scores as HTML for a notebook; how to read them is said once for several results."""
    reading = ""
    if len(results) > 1:
        meanings = dict.fromkeys(METHODS[one.method].how_to_read for one in results if isinstance(one, Explanation))
        reading = f"How to read: {'; '.join(meanings)}. Each has a colour scale of its own."
    contents = [
        Content(
            notes=result.notes,
            caption=f"{result.explained} {_caption(result, with_reading=not reading)}",
            blocks=_blocks(result),
            pictures=dict(pictures_of(result).values()),
        )
        for result in results
    ]
    return rendered("fragment.html", contents=contents, reading=reading, more=more)


def _blocks(result: Explanation | Alignment) -> list[TextBlock]:
    """The texts with their scores, those of a generated token below each other; none for an image."""
    if isinstance(result, Alignment):
        return list(_generated(result))
    if result.example.grid is not None:
        return []
    words = result.shown(result.scores)[0]
    return [
        _block(row.heading, words, as_array(row.values), row.unit, row.scale, caption=row.caption)
        for row in _rows(result).values()
    ]


def _generated(result: Alignment) -> Iterator[TextBlock]:
    """A text for each generated token and unit, the unit that ranks last, below the attention."""
    scales = {unit: Scale.of(rows) for unit, rows in result.scores.items()}
    whole, several = result.first_length == len(result.source), len(scales) > 1
    for step, word in enumerate(result.rows):
        length = result.first_length + (0 if whole else step)
        heading = f"→ {word}"
        for unit, scale in reversed(scales.items()):
            row = as_array(result.scores[unit][step, :length])
            yield _block(heading, result.source[:length], row, unit, scale, label=unit if several else "")
            heading = ""


def write_explanation(result: Explanation | Alignment, folder: str | Path) -> list[Path]:
    """Write index.html, and what it shows as pictures as PNG, into `folder`.

    Replaces an earlier explanation. Everything is drawn first, then each file is written beside its target and renamed.

    Raises:
        FileExistsError: as in `holds_explanation`.
    """
    folder = Path(folder)
    holds_explanation(folder)
    pictures = pictures_of(result)
    # the page first, because it marks the folder as an explanation
    contents = {folder / PAGE: page_of(result, pictures).encode()}
    contents |= {folder / f"{name}.png": png for name, (_, png) in pictures.items()}
    for path, content in contents.items():
        with replacing(path) as temporary:
            temporary.write_bytes(content)
    for name in PICTURES - {path.name for path in contents}:
        (folder / name).unlink(missing_ok=True)  # from an earlier explanation
    return list(contents)


def holds_explanation(folder: str | Path) -> bool:
    """Whether `folder` holds an earlier explanation; False if it is missing or empty. Hidden files do not count.

    Raises:
        FileExistsError: `folder` is a file, or holds anything else.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"expected a folder for the page, {folder} is a file; choose another --output.")
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")) if folder.exists() else []
    foreign = [name for name in names if name not in (PAGE, *PICTURES)]
    page = (folder / PAGE).read_text(encoding="utf-8", errors="replace") if (folder / PAGE).is_file() else ""
    if names and (foreign or PAGE_MARK not in page):
        raise FileExistsError(
            f"expected an empty folder or an earlier explanation, {folder} holds {(foreign or names)[0]}; choose "
            "another --output."
        )
    return bool(names)
