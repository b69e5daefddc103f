"""Signed numbers as colours: red for +, blue for −, white for 0, on a scale symmetrical around 0."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.image import AxesImage
from torch import Tensor

from hf_bidir.explain.inputs.text import signed

COLORS = colormaps["RdBu_r"]
STEPS = 256  # colours in a colour bar
NEGLIGIBLE = 1e-3  # share of the limit below which a value is written as ≈0


def as_array(values: Tensor | np.ndarray | Sequence[float]) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().float().cpu().numpy()
    return np.asarray(values, dtype=float)


@dataclass(frozen=True)
class Scale:
    """Colour scale from -limit to +limit; without negative values only its half above 0 is shown, without signs."""

    limit: float
    has_signs: bool

    @classmethod
    def of(
        cls, values: np.ndarray | Tensor | Sequence[float], has_signs: bool = False, limit: float | None = None
    ) -> "Scale":
        """The scale that just holds these values; `has_signs` and `limit` are those of others drawn beside them."""
        values = as_array(values)
        limit = limit or float(np.abs(values).max(initial=0)) or 1.0
        return cls(limit, has_signs or bool((values < 0).any()))

    @property
    def ends(self) -> tuple[float, float]:
        return (-self.limit if self.has_signs else 0.0, self.limit)

    def sentence(self, subject: str) -> str:
        """A clause that states the scale, such as "all rows are on one colour scale, −0.5 to +0.5"."""
        return f"{subject} are on one colour scale, {self.number(self.ends[0])} to {self.number(self.ends[1])}"

    def number(self, value: float) -> str:
        """The value with two significant digits, unless it is too close to 0 for this scale."""
        if 0 < abs(value) < NEGLIGIBLE * self.limit:
            return "≈0"
        return signed(value) if self.has_signs else f"{value:.2g}"

    def color(self, value: float) -> tuple[float, float, float, float]:
        return COLORS(0.5 + 0.5 * value / self.limit)

    def steps(self, count: int = STEPS) -> list[tuple[float, float, float, float]]:
        """Evenly spaced colours from one end of the scale to the other."""
        return [self.color(value) for value in np.linspace(*self.ends, count)]

    def show(self, panel, values: np.ndarray, **placing) -> AxesImage:
        """Draw a grid of values in the colours of the scale."""
        return panel.imshow(values, cmap=COLORS, vmin=-self.limit, vmax=self.limit, **placing)

    def bar(self, figure, unit: str, **placing) -> Colorbar:
        """Draw a colour bar labelled with the unit."""
        mappable = ScalarMappable(Normalize(*self.ends), ListedColormap(self.steps()))
        ticks = sorted({*self.ends, 0.0})
        bar = figure.colorbar(mappable, ticks=ticks, **placing)
        bar.set_label(unit, parse_math=False)
        bar.set_ticklabels([self.number(tick) for tick in ticks])
        return bar


def text_color_on(color: tuple[float, ...]) -> str:
    """Black or white, whichever contrasts more with the background colour."""
    red, green, blue = color[:3]
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
