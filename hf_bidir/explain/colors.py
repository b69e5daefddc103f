"""Signed numbers as colours and as text: red for +, blue for −, white for 0, and the same scale on both sides."""

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Normalize
from torch import Tensor

COLORS = colormaps["RdBu_r"]


def as_array(values: Tensor | np.ndarray) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().float().cpu().numpy()
    return np.asarray(values, dtype=float)


def limit_of(values: np.ndarray) -> float:
    """Where the colours end, on both sides; 1 where everything is 0."""
    return float(np.abs(values).max(initial=0)) or 1.0


def signed(value: float) -> str:
    """Two digits and a sign."""
    return f"{value:+.2g}".replace("-", "−") if value else "0"


def color_of(value: float, limit: float) -> tuple[float, float, float, float]:
    return COLORS(0.5 + 0.5 * value / limit)


def text_color_on(color: tuple[float, ...]) -> str:
    """Black or white, whichever is easier to read on a colour."""
    red, green, blue = color[:3]
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def signed_colorbar(figure, limit: float, unit: str, **placing) -> Colorbar:
    """A colour bar from -limit to +limit with the unit beside it."""
    mappable = ScalarMappable(Normalize(-limit, limit), COLORS)
    bar = figure.colorbar(mappable, ticks=[-limit, 0, limit], **placing)
    bar.set_label(unit, parse_math=False)
    bar.set_ticklabels([signed(-limit), "0", signed(limit)])
    return bar
