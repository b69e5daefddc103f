"""Explanations as a self-contained HTML page without scripts."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from hf_bidir.common.files import replacing
from hf_bidir.explain.draw.colors import Scale, text_color_on
from hf_bidir.explain.inputs.text import visible


@dataclass(frozen=True)
class TextBlock:
    """A text with one row of scores `[length]`, under a heading."""

    heading: str
    tokens: Sequence[str]
    scores: np.ndarray
    unit: str
    has_signs: bool = False  # True also if only scores of another block are negative
    limit: float | None = None  # the magnitude of the strongest colour; by default the largest score

    @property
    def scale(self) -> Scale:
        return Scale.of(self.scores, self.has_signs, self.limit)

    @property
    def ends(self) -> list[str]:
        return [self.scale.number(end) for end in self.scale.ends]

    @property
    def gradient(self) -> str:
        return ", ".join(map(to_hex, self.scale.steps(9)))

    @property
    def words(self) -> list[dict[str, str]]:
        scale = self.scale
        colors = [scale.color(score) for score in self.scores]
        return [
            {
                "text": visible(token),
                "score": scale.number(score),
                "background": to_hex(color),
                "color": text_color_on(color),
            }
            for token, score, color in zip(self.tokens, self.scores, colors, strict=True)
        ]


def html_page(
    title: str,
    *,
    blocks: Sequence[TextBlock] = (),
    pictures: Mapping[str, bytes] | None = None,
    caption: str | None = None,
) -> str:
    """Render texts with their scores, then PNG pictures under their headings.

    Tokens, titles and captions are escaped, and the page's content security policy forbids scripts and external files.
    """
    return _rendered("page.html", title=title, blocks=blocks, pictures=_encoded(pictures), caption=caption)


def _rendered(template: str, **values: object) -> str:
    environment = Environment(loader=PackageLoader("hf_bidir.explain.draw", "."), autoescape=True)
    return environment.get_template(template).render(**values)


def _encoded(pictures: Mapping[str, bytes] | None) -> dict[str, str]:
    return {heading: base64.b64encode(png).decode("ascii") for heading, png in (pictures or {}).items()}


def html_fragment(
    *, blocks: Sequence[TextBlock] = (), pictures: Mapping[str, bytes] | None = None, caption: str | None = None
) -> str:
    """The content of `html_page` without the page around it, for a notebook; everything is escaped."""
    return _rendered("fragment.html", blocks=blocks, pictures=_encoded(pictures), caption=caption)


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """An escaped HTML table for a notebook."""
    return _rendered("table.html", header=header, rows=rows, caption=caption)


def write_page(path: str | Path, page: str) -> None:
    with replacing(Path(path)) as temporary:
        temporary.write_text(page, encoding="utf-8")


def png_of(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=120)
    return stream.getvalue()
