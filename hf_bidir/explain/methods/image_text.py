"""Scores of the words of texts and of the cells of an image: by deletion, coarse to fine, and for gradients."""

import functools
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.modeling.activations import upcast

from ..image_text_cache import ImageTextCache
from ..inputs.image_text import ImageText, Inputs, Span
from ..readout import Readout, readout_of
from ..request import Request

COARSE, FINE, FINEST, QUARTERS = 2, 3, 32, 4  # times that an image is divided into quarters, and most rows of cells
LEAST = 4  # pixels of a side of a cell
DIVIDED = 0.1  # share of the largest score from which a cell is divided
ALIKE = 0.05  # absolute and relative tolerance of y, in half precision
KEPT = 0.5  # share of a cell's score that its quarters hold together, from which on they stand for it
COST = (
    "{passes} forward passes, one per word and cell. A cell is painted in the mean colour, and divided where its "
    "quarters hold its score; a larger budget divides more."
)


def deletion(cache: ImageTextCache, request: Request) -> Tensor:
    """`y - y without it` `[rows, tokens]` for the cells and words that the example has, or else for words and for
    cells of which the strongest are divided.

    The words are those of the texts that `y` is read from.
    """
    (example,) = cache.examples
    readout = readout_of(cache, request, cache.outputs_alone)
    whole = readout(cache.outputs_alone)

    @functools.cache
    def fall(place: Span) -> Tensor:
        bar.update()
        return whole - readout(cache.without([place]))

    def size(*places: Span) -> float:
        """How far y falls without places, each on its own, in sum."""
        return torch.stack([fall(place) for place in places]).sum(0).abs().sum().item()

    with tqdm(total=request.budget, desc="deletion", unit="call", leave=False, delay=1) as bar:
        if not example.tokens:
            texts = cache.texts_of(readout)
            words = [word for text in texts.values() for word in example.words_of(text)]
            cells = _coarse_to_fine(example, size, max(map(size, words)), request.budget - 1 - len(words))
            cache.examples = [example.scored(cells, texts)]
            cache.notes[0].append(COST.format(passes=1 + fall.cache_info().misses))
        return torch.stack([fall(place) for place in cache.examples[0].places], -1)


def _coarse_to_fine(example: ImageText, size: Callable[..., float], largest: float, budget: int) -> list[Span]:
    """Cells of which the strongest are divided, unless their quarters change y little, each on its own.

    Args:
        size: of the scores of cells, a forward pass each.
        largest: the size of other scores.
        budget: of forward passes.
    """
    left, cells = _cells(example, COARSE), []
    passes, largest = len(left), max(largest, *map(size, left))
    while left and passes + QUARTERS <= budget:
        left.sort(key=size)
        cell = left.pop()
        quarters = _divided(cell, _least(example))
        if size(cell) < DIVIDED * largest or len(quarters) == 1:
            cells.append(cell)
            continue
        largest, passes = max(largest, *map(size, quarters)), passes + QUARTERS
        if size(*quarters) >= KEPT * size(cell):
            left += quarters
        else:
            cells.append(cell)
    return sorted([*cells, *left], key=itemgetter(1, 0))


class ImageTextFunction:
    """`y` as a function of all that a processor makes of an image, and of the embeddings of words.

    The path of integrated gradients begins at the painted image, with padding in place of the words.

    Attributes:
        pixels: the names of the inputs that are made of the image.
        rows: the index of the single example.
    """

    def __init__(self, cache: ImageTextCache, request: Request) -> None:
        self.cache = cache
        self.readout = readout_of(cache, request, cache.outputs_alone)
        if cache.writes:
            self._check()
        self.example = _with_cells(cache, self.readout)
        tensors = {name: value for name, value in self.example.inputs.items() if isinstance(value, Tensor)}
        self.pixels = [name for name, value in tensors.items() if value.is_floating_point()]
        self.rows = torch.tensor([0])

    @torch.no_grad()
    def _check(self) -> None:
        """Raise ValueError for several tokens, or for a model whose `generate` does more than call it."""
        if len(self.readout.weights) > 1:
            raise ValueError("expected a single token for integrated gradients; leave out new_tokens (--new-tokens).")
        (example,) = self.cache.examples
        generated = self.readout(self.cache.outputs_alone)
        called = self.readout(self.cache.called(example.inputs))
        if not torch.allclose(generated, called, rtol=ALIKE, atol=ALIKE):
            name = type(self.cache.model).__name__
            raise ValueError(
                f"the first token that {name} generates has other logits than in a call of it; choose "
                'method="deletion" (--method deletion).'
            )

    @property
    def embeddings(self) -> nn.Module:
        """The layer that embeds words; models of two towers have it in that of the text."""
        model: Any = self.cache.model
        return getattr(model, "text_model", model).get_input_embeddings()

    @functools.cached_property
    def pieces(self) -> list[tuple[int, slice]]:
        """The row of model inputs that has each word, and its pieces there."""
        texts = self.cache.texts_of(self.readout).values()
        bounds = [(row, pairwise(self.example.pieces_of(row))) for row in texts]
        return [(row, slice(*pair)) for row, pairs in bounds for pair in pairs]

    @functools.cached_property
    @torch.no_grad()
    def ends(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The ends of the path of integrated gradients, in the form that captum calls: with a dimension of examples."""
        example = self.example
        painted = example.prepared(*example.without([(0, 0, *example.image.size)]))
        ids = example.inputs["input_ids"]
        words, padding = self.embeddings(ids), self.embeddings(torch.full_like(ids[0, :1], example.padding))
        padded = words.clone()
        for piece in self.pieces:
            padded[piece] = padding

        def end(inputs: Inputs, states: Tensor) -> tuple[Tensor, ...]:
            return tuple(part.unsqueeze(0) for part in (*(inputs[name] for name in self.pixels), states))

        return end(painted, padded), end(example.inputs, words)

    def run(self, *inputs: Tensor) -> ModelOutput:
        """The outputs for pixels, the embeddings of words, and the rows."""
        *images, states = (part[0].clone() for part in inputs[:-1])  # a model may change them in place

        def replaced(_: Any, args: tuple, kwargs: dict, output: Tensor) -> Tensor:
            return states if output.shape == states.shape else output

        with hooked([self.embeddings], after=replaced):
            changed = dict(zip(self.pixels, images, strict=True))
            return self.cache.called(self.example.inputs | changed)

    def score(self, *inputs: Tensor) -> Tensor:
        """`y` `[1]` for the inputs of `run`."""
        return self.readout(self.run(*inputs))

    def attributed(self, slopes: Sequence[Tensor]) -> Tensor:
        """Scores `[1, tokens]` from the mean gradients on the path.

        That of a cell is the gradient times the change of the pixels where the cell is painted, so that it holds for
        whatever a processor crops, tiles or merges.
        """
        example = self.example
        *images, words = (upcast(slope[0]) for slope in slopes)
        (*_, padded), (*_, states) = self.ends
        by_piece = (words * (states - padded)[0]).sum(-1)
        cells = by_piece.new_zeros(len(example.boxes))
        for index, box in enumerate(example.boxes.values()):
            painted = example.prepared(*example.without([box]))
            for name, slope in zip(self.pixels, images, strict=True):
                cells[index] += ((example.inputs[name] - painted[name]) * slope).sum()
        texts = [by_piece[piece].sum() for piece in self.pieces]
        return torch.cat([cells, torch.stack(texts)]).unsqueeze(0)


def _with_cells(cache: ImageTextCache, readout: Readout) -> ImageText:
    """The example of a cache with tokens: those that have scores already, or the words and cells of one size."""
    (example,) = cache.examples
    if not example.tokens:
        example = example.scored(_cells(example, FINE), cache.texts_of(readout))
        cache.examples = [example]
    return example


def _cells(example: ImageText, times: int) -> list[Span]:
    """The cells of an image that is divided into quarters so many times."""
    cells: list[Span] = [(0, 0, *example.image.size)]
    for _ in range(times):
        cells = [quarter for cell in cells for quarter in _divided(cell, _least(example))]
    return sorted(cells, key=itemgetter(1, 0))


def _least(example: ImageText) -> int:
    """The pixels that the sides of a cell have at least if it is divided."""
    return 2 * max(LEAST, min(example.image.size) // FINEST)


def _divided(cell: Span, least: int) -> list[Span]:
    """The quarters of a cell whose sides have at least so many pixels; a smaller one itself."""
    left, upper, right, lower = cell
    if min(right - left, lower - upper) < least:
        return [cell]
    x, y = (left + right) // 2, (upper + lower) // 2
    return [(left, upper, x, y), (x, upper, right, y), (left, y, x, lower), (x, y, right, lower)]
