"""Long texts in overlapping windows: `y` is the mean over windows, and scores add up."""

import torch
from torch import Tensor

from hf_bidir.explain.checkpoint import Example

OVERLAP = 8  # a window shares one eighth of its tokens with the next one


def windows_of(example: Example, limit: int) -> list[Tensor]:
    """The positions of a text's windows, `[length]` each, of at most `limit` tokens; a single one if the text fits.

    Every window begins and ends with the special tokens of the whole text. Neighbours share `limit // OVERLAP` tokens,
    the last two more.
    """
    special = torch.tensor(example.special)[example.token_of_piece]
    length = len(special)
    if length <= limit:
        return [torch.arange(length)]
    first, last = int(special.long().argmin()), length - int(special.flip(0).long().argmin())
    size = limit - first - (length - last)
    if size < 1:
        raise ValueError(f"expected a limit above the {first + length - last} special tokens, got {limit}.")
    starts = [*range(first, last - size, max(1, size - limit // OVERLAP)), last - size]
    ends = torch.arange(last, length)
    return [torch.cat([torch.arange(first), torch.arange(start, start + size), ends]) for start in starts]


def window(example: Example, positions: Tensor) -> dict[str, Tensor]:
    """The model inputs of a window, without the batch dimension."""
    return {name: value[0, positions] for name, value in example.inputs.items()}


def merged(scores: list[Tensor], windows: list[Tensor], length: int, shares: bool) -> Tensor:
    """Scores `[length]` of a text from those of its windows.

    Args:
        shares: whether scores support or oppose y, so that those of the mean of y are the mean of all windows' scores.
            Otherwise a token's score is the mean over the windows that contain it.
    """
    total, count = torch.zeros(length, dtype=scores[0].dtype), torch.zeros(length)
    for own, positions in zip(scores, windows, strict=True):
        total.index_add_(0, positions, own[: len(positions)])
        count.index_add_(0, positions, torch.ones(len(positions)))
    return total / (len(windows) if shares else count)


def note(windows: list[Tensor], shares: bool) -> list[str]:
    """One sentence where a text has several windows."""
    if len(windows) == 1:
        return []
    how = "the sum over windows divided by their number" if shares else "the mean over the windows that contain it"
    return [
        f"The text exceeds the limit of the model: y is the mean over {len(windows)} overlapping windows of "
        f"{len(windows[0])} tokens, and the score of a token is {how}."
    ]
