"""Texts as model inputs, and words and numbers as they are shown."""

import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, pairwise
from math import nan
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_bidir.checkpoints.kinds import LONGEST_TEXT, longest_text, text_limit

NEGLIGIBLE = 0.01  # share of the largest magnitude below which a score is not printed
APOSTROPHE = re.compile(r"(?<=[^\W\d_]|[\u0300-\u036f])['’](?=[^\W\d_])")  # between letters, which may be decomposed
JOINERS = "\u200c\u200d"  # cannot be printed; letters and emojis beside them are written apart or as one


Place = Any  # a tuple of integers, None of a special token
NO_WORD = "expected a text with at least one word, got {}."
NO_INPUTS = ("offset_mapping", "overflow_to_sample_mapping")  # that a tokenizer returns beside those of a model


class Answer(NamedTuple):
    """The explained answer in a context, and the predicted one."""

    text: str
    positions: list[int]  # of its first and last token
    predicted: str | None  # None if it is not known, as without some words
    probability: Any  # of the predicted one, or None


@dataclass(frozen=True)
class Example:
    """Model inputs of one text, pair of texts or image, with a name for every token that gets a score.

    Attributes:
        inputs: tensors of one row.
        tokens: words as spelled in the text, segments, or patches; special tokens included.
        special: whether each token is special.
        token_of_piece: `[length]`, the token that each model position belongs to.
        truncated: word pieces that were cut off.
        template: whether special tokens are those of a chat template.
        texts: the names of the texts that are drawn, and the first token of each; none of an image.
        answer: of a question and its context, the explained answer.
        notes: what was left out, a sentence each.
        grid: rows and columns of patches.
        file: name of the image file, if it is known.
        text: as the model reads it, with a chat template or prompt; empty for images.
        parts: of a text, the places of messages, or of both texts of a pair.
        places: of each token, its first character in the text and the one after its last; of patches the left, top,
            right and bottom edge in pixels of the image that the model reads; None for special tokens. Empty where a
            tokenizer reports none.
        of_segments: whether tokens are segments.
    """

    inputs: dict[str, Tensor]
    tokens: list[str]
    special: list[bool]
    token_of_piece: Tensor
    truncated: int = 0
    template: bool = False
    texts: Mapping[str, int] = field(default_factory=lambda: {"": 0})
    answer: Answer | None = None
    notes: Sequence[str] = ()
    grid: tuple[int, int] | None = None
    file: str = ""
    text: str = ""
    parts: Sequence[tuple[int, int]] = ()
    places: Sequence[Place] = ()
    of_segments: bool = False

    @property
    def part(self) -> str:
        """What a token is called."""
        if self.grid is None:
            return "segment" if self.of_segments else "word"
        return "word or cell" if self.texts else "patch"

    @property
    def boxes(self) -> dict[int, Place]:
        """The edges of patches and cells by token, in pixels."""
        return {token: place for token, place in enumerate(self.places) if place and len(place) > 2}

    @property
    def picture(self) -> Tensor:
        """The image `[channels, height, width]`; NaN of one that is not stored."""
        return self.inputs["pixel_values"][0] if self.inputs else torch.full((1, *self.edges), nan)

    @property
    def edges(self) -> tuple[int, int]:
        """Height and width of the image in pixels, as far as there are patches or cells."""
        _, _, widths, heights = zip(*self.boxes.values(), strict=True)
        return max(heights), max(widths)

    def on_grid(self, scores: Tensor) -> Tensor:
        """Scores `[tokens]` as `[rows, columns]` over the image."""
        pixels = torch.zeros(self.edges)
        for token, (left, upper, right, lower) in self.boxes.items():
            pixels[upper:lower, left:right] = scores[token]
        return nn.functional.interpolate(pixels[None, None], self.grid, mode="nearest-exact")[0, 0]

    @property
    def words(self) -> list[int]:
        """The tokens that are not special."""
        return [index for index, special in enumerate(self.special) if not special]

    def place_of(self, word: str) -> int:
        """The position of the first piece of a word, which may be named "the (2 of 3)", or a number; −1 unless there is
        one such."""
        if word.isdecimal():
            return int(word)
        names = zip(self.tokens, told_apart(self.tokens), strict=True)
        places = [place for place, spelled_as in enumerate(names) if word in spelled_as]
        return self.token_of_piece.tolist().index(places[0]) if len(places) == 1 else -1

    def by_token(self, scores: Tensor, add: bool = True) -> Tensor:
        """Scores `[..., tokens]` from `[..., length]`: the sum over a token's pieces, or the largest, of at least 0."""
        tokens = scores.new_zeros(*scores.shape[:-1], len(self.tokens))
        places = self.token_of_piece.to(scores.device).expand_as(scores)
        return tokens.scatter_reduce(-1, places, scores, "sum" if add else "amax")


@dataclass(frozen=True)
class Text:
    """A text with the places of its parts: the messages of a conversation, segments, or both texts of a pair.

    Attributes:
        content: the whole text, of a pair with a line break between both.
        parts: the first character of each part and the one after its last, in order.
        names: of the parts.
        whole: whether a part is a unit, with one score; otherwise its words are.
        template: whether a chat template wrote what is outside the parts, which is then special.
        pair: both texts of a pair.
    """

    content: str
    parts: tuple[tuple[int, int], ...] = ()
    names: tuple[str, ...] = ()
    whole: bool = False
    template: bool = False
    pair: tuple[str, ...] = ()

    @classmethod
    def of_texts(cls, *texts: str) -> "Text":
        """Several texts below each other, such as a pair, which a model reads together."""
        ends = accumulate(len(text) + 1 for text in texts)
        parts = tuple((end - len(text) - 1, end - 1) for text, end in zip(texts, ends, strict=True))
        return cls("\n".join(texts), parts, pair=texts)

    def part_at(self, character: int) -> int | None:
        """The part of a character; None outside of all parts."""
        inside = (index for index, (start, end) in enumerate(self.parts) if start <= character < end)
        return next(inside, None)


def read_text(tokenizer: Any, text: str | Text, limit: int) -> Example:
    """Tokenize a text or a pair, truncated to `limit` word pieces, of a pair the longer text first.

    A word is what the tokenizer splits a text into before it makes pieces, with its combining marks; a contraction such
    as "can't" is one word. Of a tokenizer without character offsets each piece is one.

    Raises:
        ValueError: a text has no word, or its parts are asked of a tokenizer without character offsets.
    """
    text = Text(text) if isinstance(text, str) else text
    whole = len(encoded(tokenizer, text, verbose=False)["input_ids"][0])
    example = example_of(tokenizer, text, encoded(tokenizer, text, truncation=True, max_length=limit))
    return replace(example, truncated=whole - len(example.token_of_piece))


def encoded(tokenizer: Any, text: Text, **options: Any) -> Any:
    """What the tokenizer returns for a text or a pair: rows of word pieces, with character offsets if it has them."""
    if text.parts and not tokenizer.is_fast:
        name = type(tokenizer).__name__
        raise ValueError(f"pairs, segments and conversations need a fast tokenizer; {name} is slow.")
    texts = text.pair or (text.content,)
    if not all(map(str.strip, texts)):
        raise ValueError(NO_WORD.format(" and ".join(map(repr, texts))))
    options |= {"return_offsets_mapping": tokenizer.is_fast, "add_special_tokens": not text.template}
    return tokenizer(*([part] for part in texts), **options)


def example_of(tokenizer: Any, text: Text, encoding: Any, row: int = 0) -> Example:
    """The example of a row of an encoding."""
    inputs = {name: torch.tensor([rows[row]]) for name, rows in encoding.items() if name not in NO_INPUTS}
    if tokenizer.is_fast:
        example = _by_words(tokenizer, text, encoding, row, inputs)
    else:
        example = replace(read_tensors(tokenizer, inputs), text=text.content)
    if all(example.special):
        raise ValueError(NO_WORD.format(repr(text.content)))
    return example


def word_places(tokenizer: Any, text: str) -> Sequence[Place]:
    """The places of words; of a tokenizer without character offsets those of what blanks separate."""
    if not tokenizer.is_fast:
        return [match.span() for match in re.finditer(r"\S+", text)]
    example = read_text(tokenizer, text, LONGEST_TEXT)
    return [example.places[token] for token in example.words]


def read_tensors(tokenizer: Any, inputs: Mapping[str, Any]) -> Example:
    """A row of model inputs as an example, whose tokens are the pieces as the vocabulary spells them."""
    ids = inputs.get("input_ids")
    if not isinstance(ids, Tensor) or ids.shape[:-1] != (1,):
        raise ValueError(
            'expected input_ids of one row [1, length], as a tokenizer returns them with return_tensors="pt"; got '
            f"{shortened(repr(ids))}. Of several rows make a list, or call token_scores."
        )
    pieces = ids[0].tolist()
    special = [index in tokenizer.all_special_ids and index != tokenizer.unk_token_id for index in pieces]
    return Example(dict(inputs), spelled(tokenizer, pieces), special, torch.arange(len(pieces)))


def _by_words(tokenizer: Any, text: Text, encoding: Any, row: int, inputs: dict[str, Tensor]) -> Example:
    """The example whose tokens are words and segments, by character offsets."""
    pieces, owners = tokenizer.convert_ids_to_tokens(encoding["input_ids"][row]), encoding.sequence_ids(row)
    words = list(zip(owners, encoding.word_ids(row), strict=True))
    firsts = [first for first, _ in offsets_of(text, encoding, row)]
    begun = dict(zip(reversed(words), reversed(firsts), strict=True))
    starts = _starts(text, begun.values())
    named = [_named(text, *bounds) for bounds in pairwise(starts)]
    tokens: list[tuple[str, bool, Place]] = []
    token_of_piece: list[int] = []
    last = -1
    for piece, (_, word), first in zip(pieces, words, firsts, strict=True):
        place = -1 if word is None else bisect_right(starts, first, hi=len(named)) - 1
        if place < 0:
            tokens.append((piece, True, None))
        elif place != last:
            tokens.append(named[place])
        last = place
        token_of_piece.append(len(tokens) - 1)
    texts = {"": 0}
    if text.pair:
        if 1 not in owners:  # it has no width
            raise ValueError(NO_WORD.format(repr(text.pair[1])))
        texts = {"text 1": 0, "text 2": token_of_piece[owners.index(1)]}
    names, special, places = map(list, zip(*tokens, strict=True))
    return Example(
        inputs,
        names,
        special,
        torch.tensor(token_of_piece),
        template=text.template,
        texts=texts,
        text=text.content,
        parts=() if text.whole else text.parts,
        places=places,
        of_segments=text.whole,
    )


def _named(text: Text, start: int, end: int) -> tuple[str, bool, Place]:
    """The word or segment at a place, whether it is special, and its place without the blanks at its ends."""
    written, part = text.content, text.part_at(start)
    begin = end - len(written[start:end].lstrip())
    stop = begin + len(written[begin:end].rstrip())
    name = written[begin:stop] or "␣"
    if text.whole and part is not None:
        name = text.names[part]
    return name, text.template and part is None, (begin, stop)


def offsets_of(text: Text, encoding: Any, row: int) -> list[tuple[int, int]]:
    """The first visible character of each piece in the whole text, or its first one, and the one after its last."""
    second = len(text.pair[0]) + 1 if text.pair else 0  # first character of the second text
    places = []
    for (first, end), owner in zip(encoding["offset_mapping"][row], encoding.sequence_ids(row), strict=True):
        start = second * (owner or 0)
        piece = text.content[start + first : start + end]
        visible_part = piece.lstrip() or piece
        places.append((start + end - len(visible_part), start + end))
    return places


def _starts(text: Text, begun: Iterable[int]) -> list[int]:
    """The first characters of words, with the blanks before them, and of segments, in order, and the end of the text.

    Args:
        begun: where the tokenizer begins words; without a pre-tokenizer it reports the whole text as one.
    """
    written, starts = text.content, {0}
    after_blanks = [match.start() for match in re.finditer(r"\S+", written)]
    inside = chain.from_iterable(match.span() for match in APOSTROPHE.finditer(written))
    for place in {*begun, *after_blanks}.difference(inside):
        before, here = written[place - 1 : place], written[place : place + 1]
        # some pre-tokenizers split words at their marks
        if not (_is_mark(here) or (_is_mark(before) and here.isalpha())):
            starts.add(len(written[:place].rstrip()))
    if text.whole:
        starts = {start for start in starts if text.part_at(start) is None}
    return sorted({*starts, *chain.from_iterable(text.parts), len(written)})


def _is_mark(char: str) -> bool:
    """Whether it belongs to the character before it: a combining mark, or a joiner of letters."""
    return char != "" and (char in JOINERS or unicodedata.category(char).startswith("M"))


def check_prompt(model: PreTrainedModel, tokenizer: Any, example: Example, more: int = 0) -> None:
    """Raise ValueError if the example was cut, or if it and `more` tokens exceed the model's positions."""
    limit = text_limit(model, tokenizer) if example.truncated else longest_text(model)
    length = len(example.token_of_piece) + example.truncated
    if limit is not None and length + more > limit:
        following = f" and {more} follow" if more else ""
        raise ValueError(
            f"the prompt has {length} tokens{following}, but {type(model).__name__} reads at most {limit}; shorten it."
        )


def signed(value: float, plus: bool = True) -> str:
    """Format a number with two significant digits and its sign, + only if `plus`."""
    return f"{float(f'{value:.2g}'):{'+' if plus else '-'}g}".replace("-", "−") if value else "0"


def percent(share: float) -> str:
    """Format a probability with three significant digits, unless it is below 0.01 %."""
    return f"{100 * share:.3g} %" if share >= 1e-4 else "below 0.01 %"


def shortened(token: str, length: int = 40) -> str:
    """Truncate a token to `length` characters, ending in an ellipsis."""
    return token if len(token) <= length else f"{token[: length - 1]}…"


def visible(token: str) -> str:
    """The token, with "␣" for each character that cannot be printed, and for each blank in a token of blanks."""
    shown = "".join(char if char.isprintable() or char in JOINERS else "␣" for char in token)
    return shown if shown.strip() else "␣" * len(token)


def told_apart(tokens: Sequence[str]) -> list[str]:
    """The tokens as they are printed; of equal ones, such as "the (2 of 3)", also which one it is."""
    names = [visible(shortened(token)) for token in tokens]
    counts, seen = Counter(names), Counter[str]()
    numbered = []
    for name in names:
        seen[name] += 1
        numbered.append(f"{name} ({seen[name]} of {counts[name]})" if counts[name] > 1 else name)
    return numbered


def spelled(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Every token of a vocabulary as text; its piece or its number where it has none."""
    names = []
    for index in ids:
        piece = tokenizer.convert_ids_to_tokens([index])[0]
        names.append(visible(tokenizer.decode([index]) or piece or f"token {index}"))
    return names
