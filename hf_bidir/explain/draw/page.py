"""Explanations as self-contained HTML without scripts, a page or a fragment for a notebook."""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
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
    """A text with one row of scores `[length]`, under a heading, as content.html draws it."""

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
    def words(self) -> Iterator[tuple[str, str, str, str]]:
        """Each token with its number, background and colour."""
        scale = self.scale
        for token, score in zip(self.tokens, self.scores, strict=True):
            color = scale.color(score)
            yield visible(token), scale.number(score), to_hex(color), text_color_on(color)


def rendered(template: str, *, pictures: Mapping[str, bytes] | None = None, **values: object) -> str:
    """A template of this folder with its values, PNG pictures by heading among them; every value is escaped."""
    environment = Environment(loader=PackageLoader("hf_bidir.explain.draw", "."), autoescape=True)
    encoded = {heading: base64.b64encode(png).decode("ascii") for heading, png in (pictures or {}).items()}
    return environment.get_template(template).render(pictures=encoded, **values)


def write_page(path: str | Path, page: str) -> None:
    with replacing(Path(path)) as temporary:
        temporary.write_text(page, encoding="utf-8")


def png_of(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=120)
    return stream.getvalue()
