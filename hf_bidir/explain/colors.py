"""Signed numbers as colours and as text: red for +, blue for −, white for 0, the same on both sides."""

from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import ListedColormap, Normalize
from torch import Tensor

COLORS = colormaps["RdBu_r"]
STEPS = 256  # of a colour bar


def as_array(values: Tensor | np.ndarray) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().float().cpu().numpy()
    return np.asarray(values, dtype=float)


def signed(value: float) -> str:
    """Two digits and a sign."""
    return f"{value:+.2g}".replace("-", "−") if value else "0"


@dataclass(frozen=True)
class Scale:
    """The colours from -limit to +limit; where nothing is negative only the half from 0 on is shown, without signs."""

    limit: float
    has_signs: bool

    @classmethod
    def of(cls, values: np.ndarray, has_signs: bool = False) -> "Scale":
        """The scale that just holds these values; `has_signs` where others beside them are negative."""
        return cls(float(np.abs(values).max(initial=0)) or 1.0, has_signs or bool((values < 0).any()))

    @property
    def ends(self) -> tuple[float, float]:
        return (-self.limit if self.has_signs else 0.0, self.limit)

    def number(self, value: float) -> str:
        return signed(value) if self.has_signs else f"{value:.2g}"

    def color(self, value: float) -> tuple[float, float, float, float]:
        return COLORS(0.5 + 0.5 * value / self.limit)

    def steps(self, count: int = STEPS) -> list[tuple[float, float, float, float]]:
        """The colours from one end to the other."""
        return [self.color(value) for value in np.linspace(*self.ends, count)]

    def bar(self, figure, unit: str, **placing) -> Colorbar:
        """A colour bar with the unit beside it."""
        mappable = ScalarMappable(Normalize(*self.ends), ListedColormap(self.steps()))
        ticks = sorted({*self.ends, 0.0})
        bar = figure.colorbar(mappable, ticks=ticks, **placing)
        bar.set_label(unit, parse_math=False)
        bar.set_ticklabels([self.number(tick) for tick in ticks])
        return bar


def text_color_on(color: tuple[float, ...]) -> str:
    """Black or white, whichever is easier to read on a colour."""
    red, green, blue = color[:3]
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def shortened(token: str, length: int = 40) -> str:
    """A token that fits on a line; what it loses is replaced by an ellipsis."""
    return token if len(token) <= length else f"{token[: length - 1]}…"
