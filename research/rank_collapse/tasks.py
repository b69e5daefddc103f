"""The small tasks of Dong, Cordonnier, Loukas 2021 ("Attention is not all you need", section 4), which show the
effect of depth and skip connections: three classify tokens, one walks along a circle."""

from collections.abc import Callable

import numpy as np
import torch
from scipy.spatial import ConvexHull, QhullError
from torch import Tensor

SYMBOLS, GRID, LENGTH = 10, 10, 8  # alphabet size, side of the grid of points, tokens per sequence
RADIUS = 0.3


def sorting(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random symbols, and the same symbols sorted.

    Args:
        rows: the number of sequences.
        seed: seed of the generator.

    Returns:
        Tokens and the class of every token, `[rows, LENGTH]` each, both in 0 to SYMBOLS - 1.
    """
    tokens = torch.from_numpy(np.random.default_rng(seed).integers(SYMBOLS, size=(rows, LENGTH)))
    return tokens, tokens.sort(-1).values


def convex_hull(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Distinct points of a grid, and the corners of their convex hull.

    Arguments as in `sorting`; a token is `GRID * row + column`, a class 1 for a corner, else 0.
    """
    generator = np.random.default_rng(seed)
    tokens, labels = np.empty((rows, LENGTH), np.int64), np.zeros((rows, LENGTH), np.int64)
    for row in range(rows):
        corners = None
        while corners is None:
            tokens[row] = generator.choice(GRID * GRID, LENGTH, replace=False)
            corners = _corners(tokens[row])
        labels[row, corners] = 1
    return torch.from_numpy(tokens), torch.from_numpy(labels)


def _corners(tokens: np.ndarray) -> np.ndarray | None:
    """Indices of the corners; None if all points are collinear."""
    try:
        return ConvexHull(np.stack(np.divmod(tokens, GRID), -1)).vertices
    except QhullError:
        return None


def memorization(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Sequences of symbols with random classes, which can only be memorised.

    Arguments as in `sorting`; the classes are 0 and 1. Evaluated on the training rows.
    """
    generator = np.random.default_rng(seed)
    tokens, labels = (generator.integers(high, size=(rows, LENGTH)) for high in (GRID * GRID, 2))
    return torch.from_numpy(tokens), torch.from_numpy(labels)


# name -> task, vocabulary size, number of classes
TOKEN_TASKS: dict[str, tuple[Callable[..., tuple[Tensor, Tensor]], int, int]] = {
    "sorting": (sorting, SYMBOLS, SYMBOLS),
    "convex hull": (convex_hull, GRID * GRID, 2),
    "memorization": (memorization, GRID * GRID, 2),
}


def circle(steps: int = 1000) -> Tensor:
    """Two opposite points moving half way around a circle, counter-clockwise, `[steps + 1, 2, 2]`."""
    angle = torch.linspace(0, torch.pi, steps + 1, dtype=torch.float64)
    angles = torch.stack([angle, angle + torch.pi], -1)
    return RADIUS * torch.stack([angles.cos(), angles.sin()], -1).float()
