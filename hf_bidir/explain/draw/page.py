"""Explanations as self-contained HTML without scripts, a page or a fragment for a notebook."""

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

from hf_bidir.common.files import replacing
from hf_bidir.explain.draw.colors import Scale, text_color_on
from hf_bidir.explain.inputs.text import visible


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
