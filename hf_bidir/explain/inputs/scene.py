"""An image with texts, and model inputs without some of their cells and words: the processor runs again for each."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from hf_bidir.explain.inputs.text import Example

DRAWN = 512  # pixels that the longer side of a picture has at most
Inputs = Mapping[str, Tensor]


class Cell(NamedTuple):
    """A cell of a square grid over the whole image, which keeps the image's proportions."""

    rows: int  # of the grid, and as many columns
    row: int
    column: int

    def __str__(self) -> str:
        return f"cell in row {self.row}, column {self.column} of {self.rows} × {self.rows}"

    @property
    def quarters(self) -> list["Cell"]:
        halves = product(range(2), repeat=2)
        return [Cell(2 * self.rows, 2 * self.row + down, 2 * self.column + right) for down, right in halves]

    def box(self, width: int, height: int) -> tuple[int, ...]:
        """Left, upper, right and lower edge in an image of this size."""
        edges = [(self.column, width), (self.row, height), (self.column + 1, width), (self.row + 1, height)]
        return tuple(place * side // self.rows for place, side in edges)


class Word(NamedTuple):
    """A word of one of the texts."""

    text: int
    start: int  # its first character in all texts, with a line break between them
    written: str  # with the blanks after it

    def __str__(self) -> str:
        return self.written.strip()

    def box(self, *_: int) -> tuple[int, int]:
        """Its first character and the one after its last."""
        return self.start, self.start + len(str(self))


Part = Cell | Word


@dataclass(frozen=True, kw_only=True)
class Scene(Example):
    """An image with texts, and the cells and words that are scored.

    Attributes:
        image: as it is, before the processor.
        color: the mean colour of the processor, or of the image, in which removed cells are painted.
        texts: the words of each text.
        prepared: makes model inputs of one row from an image and texts.
        parts: the cell or word of each token; None for a special token.
    """

    image: Image.Image
    color: tuple[int, ...]
    texts: Sequence[Sequence[Word]]
    prepared: Callable[[Image.Image, list[str]], Inputs]
    parts: Sequence[Part | None] = ()

    @property
    def picture(self) -> Tensor:
        shown = self.image.reduce(1 + max(self.image.size) // DRAWN)
        return torch.from_numpy(np.array(shown)).permute(2, 0, 1)

    def without(self, removed: Collection[Part]) -> Inputs:
        """Model inputs with cells painted in one colour, and texts without some words."""
        image = self.image.copy()
        for part in removed:
            if isinstance(part, Cell):
                image.paste(self.color, part.box(*image.size))
        return self.prepared(image, self.written(removed))

    def written(self, removed: Collection[Part] = ()) -> list[str]:
        """The texts, without some words."""
        return ["".join(word.written for word in text if word not in removed).strip() for text in self.texts]

    def scored(self, cells: Iterable[Cell], texts: Sequence[int]) -> "Scene":
        """The scene with these cells, and the words of these texts, as tokens."""
        cells = sorted(cells, key=lambda cell: (cell.row / cell.rows, cell.column / cell.rows))
        parts = [*cells, *self.texts[texts[0]]]
        for text in texts[1:]:
            parts += [None, *self.texts[text]]
        return replace(
            self,
            parts=parts,
            tokens=["instead of" if part is None else str(part) for part in parts],
            special=[part is None for part in parts],
            token_of_piece=torch.arange(len(parts)),
            grid=(max(cells).rows, max(cells).rows),
            text="\n".join(self.written()),
            places=[part and part.box(*self.image.size) for part in parts],
        )
