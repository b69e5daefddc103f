"""Tokens with one score each: the strongest as a list, and what the list leaves out as a sentence."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from .inputs.text import NEGLIGIBLE, signed, told_apart

LISTED = 10  # tokens in a list
LONG = 40  # tokens of a text from which on only so many carry a number
SPECIAL = 5  # special tokens in a sentence
SPECIAL_SHARE = 0.1  # of the largest word's score, from which a special token is named


@dataclass(frozen=True, eq=False)
class Listing:
    """Tokens with one score each.

    Attributes:
        tokens: their names.
        scores: `[tokens]`.
        special: whether each one is special, which is neither listed nor coloured.
        template: whether the special tokens are those of a chat template.
        has_signs: whether scores can be negative.
        texts: the names of the texts, and the first token of each.
    """

    tokens: Sequence[str]
    scores: Tensor
    special: Sequence[bool]
    template: bool = False
    has_signs: bool = True
    texts: Mapping[str, int] = field(default_factory=lambda: {"": 0})

    @property
    def is_long(self) -> bool:
        return len(self.tokens) > LONG

    @property
    def words(self) -> list[int]:
        """The tokens that are not special."""
        return [index for index, special in enumerate(self.special) if not special]

    @property
    def shown(self) -> Tensor:
        """The scores `[tokens]` with 0 for special tokens, which would dominate the colour scale."""
        return self.scores.masked_fill(torch.tensor(self.special, dtype=torch.bool), 0)

    @property
    def numbered(self) -> list[int]:
        """The tokens that carry their number in the text: those not close to 0, of a long text the strongest."""
        return self.order()[: LISTED if self.is_long else None]

    def part(self, start: int, stop: int) -> "Listing":
        """The tokens from `start` to `stop`."""
        part = slice(start, stop)
        return replace(self, tokens=self.tokens[part], scores=self.scores[part], special=self.special[part])

    def by_text(self) -> Iterator[tuple[str, "Listing"]]:
        """The tokens of each text, after its name."""
        for name, bound in zip(self.texts, pairwise([*self.texts.values(), len(self.tokens)]), strict=True):
            yield name, self.part(*bound)

    def number(self, score: float) -> str:
        """A score as text, with a sign if there are signs."""
        return signed(score, self.has_signs)

    def order(self, special: bool = False) -> list[int]:
        """The special tokens, or the others, by magnitude, without those that are small beside the largest word's."""
        magnitudes = self.scores.abs() * (torch.tensor(self.special) == special)
        least = (SPECIAL_SHARE if special else NEGLIGIBLE) * self.shown.abs().max()
        return [index for index in magnitudes.argsort(descending=True).tolist() if magnitudes[index] > least]

    def strongest(self, count: int = LISTED, special: bool = False) -> list[tuple[str, str]]:
        """The special tokens, or the others, of largest magnitude, with their scores as text."""
        names = told_apart(self.tokens)
        return [(names[index], self.number(self.scores[index].item())) for index in self.order(special)[:count]]

    @property
    def outweighing(self) -> str:
        """The special token whose score for or against y has a larger magnitude than that of any word, if there is."""
        largest = int(self.scores.abs().argmax())
        return self.tokens[largest] if self.has_signs and self.special[largest] else ""

    def left_out(self) -> str:
        """The scores of special tokens, or the sum of those of a chat template, and whether they outweigh the words."""
        if self.template:
            together = self.number((self.scores - self.shown).sum().item())
            return f"Not listed: {sum(self.special)} tokens of the chat template, {together} together."
        named = [f"{name} ({number})" for name, number in self.strongest(SPECIAL, special=True)]
        more = f" {self.outweighing} outweighs every listed token; its part of y is attributed to none of them."
        return f"Not listed: {', '.join(named)}.{more if self.outweighing else ''}" if named else ""
