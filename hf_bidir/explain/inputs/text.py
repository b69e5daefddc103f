"""Texts as model inputs, and words and numbers as they are shown."""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.checkpoints.kinds import longest_text, text_limit

JOINERS = "\u200c\u200d"  # cannot be printed; letters and emojis beside them are written apart or as one
WORD_START = "▁"  # in front of the first piece of a word, in SentencePiece


@dataclass(frozen=True)
class Example:
    """Model inputs of one text or image, with a name for every token that gets a score.

    Attributes:
        inputs: tensors of one row.
        tokens: words as spelled in the text, segments, or patches; special tokens included.
        special: whether each token is special.
        token_of_piece: `[length]`, the token that each model position belongs to.
        truncated: word pieces that were cut off.
        whole: whether tokens are segments, which erasure removes as a whole.
        grid: rows and columns of patches.
    """

    inputs: dict[str, Tensor]
    tokens: list[str]
    special: list[bool]
    token_of_piece: Tensor
    truncated: int = 0
    whole: bool = False
    grid: tuple[int, int] | None = None

    def by_token(self, scores: Tensor, add: bool = True) -> Tensor:
        """Scores `[..., tokens]` from `[..., length]`: the sum over a token's pieces, or the largest magnitude."""
        pieces = torch.nn.functional.one_hot(self.token_of_piece).bool().T.to(scores.device)  # [tokens, length]
        table = scores.unsqueeze(-2) * pieces
        if add:
            return table.sum(-1)
        largest = table.abs().argmax(-1, keepdim=True)
        return table.gather(-1, largest).squeeze(-1)


@dataclass(frozen=True)
class Text:
    """A text with the places of its parts: the messages of a conversation, or segments.

    Attributes:
        written: the whole text.
        parts: the first character of each part and the one after its last, in order.
        names: of the parts.
        whole: whether a part is a unit, with one score; otherwise its words are.
        template: whether a chat template wrote what is outside the parts, which is then special.
    """

    written: str
    parts: tuple[tuple[int, int], ...] = ()
    names: tuple[str, ...] = ()
    whole: bool = False
    template: bool = False

    @property
    def spoken(self) -> str:
        """The text as people read it."""
        return " ".join(self.names) if self.template else self.written

    def part_at(self, start: int, end: int) -> int | None:
        """The part of the first visible character of a piece; None outside of all parts."""
        piece = self.written[start:end]
        first = end - len(piece.lstrip()) if piece.strip() else start
        inside = (index for index, (begin, stop) in enumerate(self.parts) if begin <= first < stop)
        return next(inside, None)


def after(prompt: str, text: str | Text) -> str | Text:
    """A text after a prompt."""
    if isinstance(text, str):
        return prompt + text
    parts = tuple((start + len(prompt), end + len(prompt)) for start, end in text.parts)
    return replace(text, written=prompt + text.written, parts=parts)


@dataclass
class _Token:
    """A word, a segment or a special token, as its pieces are read one after the other."""

    name: str
    special: bool
    word: int | None  # the tokenizer's number of the word
    part: int | None
    first: int  # character
    reach: int  # the character after the last one


def read_text(tokenizer: Any, text: str | Text, limit: int) -> Example:
    """Tokenize a text, truncated to `limit` word pieces.

    A word is what the tokenizer splits a text into before it makes pieces, with its combining marks.

    Raises:
        ValueError: the text has no word, or its parts are asked of a tokenizer without character offsets.
    """
    text = Text(text) if isinstance(text, str) else text
    if text.parts and not tokenizer.is_fast:
        raise ValueError(f"segments and conversations need a fast tokenizer; {type(tokenizer).__name__} is slow.")
    ends = {"add_special_tokens": not text.template}
    whole = len(tokenizer(text.written, verbose=False, **ends)["input_ids"])
    options = ends | {"truncation": True, "max_length": limit, "return_tensors": "pt"}
    if tokenizer.is_fast:
        options["return_offsets_mapping"] = True
    encoding = tokenizer(text.written, **options)
    if tokenizer.is_fast:
        tokens, token_of_piece = _words(tokenizer, text, encoding)
    else:
        tokens, token_of_piece = _marked_words(tokenizer, encoding)
    if not text.written.strip() or all(token.special for token in tokens):
        raise ValueError(f"expected a text with at least one word, got {text.written!r}.")
    return Example(
        inputs=dict(encoding),
        tokens=[token.name for token in tokens],
        special=[token.special for token in tokens],
        token_of_piece=torch.tensor(token_of_piece),
        truncated=whole - len(token_of_piece),
        whole=text.whole,
    )


def _words(tokenizer: Any, text: Text, encoding: Any) -> tuple[list[_Token], list[int]]:
    """The tokens, and the one of each piece, by character offsets."""
    offsets = encoding.pop("offset_mapping")[0].tolist()
    pieces = tokenizer.convert_ids_to_tokens(encoding["input_ids"][0])
    tokens: list[_Token] = []
    token_of_piece: list[int] = []
    for piece, word, (start, end) in zip(pieces, encoding.word_ids(), offsets, strict=True):
        part = None if word is None else text.part_at(start, end)
        if not tokens or not _continues(text, tokens[-1], word, part, start):
            special = word is None or (text.template and part is None)
            tokens.append(_Token(piece, special, word, part, start, end))
        token = tokens[-1]
        token.word, token.first, token.reach = word, min(token.first, start), max(token.reach, end)
        if text.whole and part is not None:
            token.name = text.names[part]
        elif word is not None:
            token.name = _spelling(text.written, token)
        token_of_piece.append(len(tokens) - 1)
    return tokens, token_of_piece


def _continues(text: Text, token: _Token, word: int | None, part: int | None, start: int) -> bool:
    """Whether a piece of this word and part, which starts at a character, belongs to the token before it."""
    if word is None or token.word is None or part != token.part:
        return False
    if (text.whole and part is not None) or start < token.reach:  # pieces of one character overlap
        return True
    before, here = text.written[start - 1 : start], text.written[start : start + 1]
    if _is_mark(here) or (_is_mark(before) and here.isalpha()):  # some pre-tokenizers split words at their marks
        return True
    # a tokenizer without a pre-tokenizer reports the whole text as one word; split it at whitespace
    apart = (before.isspace() or here.isspace()) and text.written[token.first : token.reach].strip() != ""
    return word == token.word and not apart


def _spelling(text: str, token: _Token) -> str:
    """The word, with the marks of its last character, which some tokenizers leave out."""
    reach = token.reach
    while _is_mark(text[reach : reach + 1]):
        reach += 1
    return text[token.first : reach].strip() or "␣"


def _is_mark(char: str) -> bool:
    """Whether it belongs to the character before it: a combining mark, or a joiner of letters."""
    return char != "" and (char in JOINERS or unicodedata.category(char).startswith("M"))


def _marked_words(tokenizer: Any, encoding: Any) -> tuple[list[_Token], list[int]]:
    """As `_words`, without character offsets: pieces are joined at each `WORD_START`, if the tokenizer has any."""
    ids = encoding["input_ids"][0].tolist()
    pieces = tokenizer.convert_ids_to_tokens(ids)
    marked = any(piece.startswith(WORD_START) for piece in pieces)
    special_ids = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    tokens: list[_Token] = []
    token_of_piece: list[int] = []
    for index, piece in zip(ids, pieces, strict=True):
        special = index in special_ids
        inside = marked and not special and not piece.startswith(WORD_START)
        if not inside or not tokens or tokens[-1].special:
            tokens.append(_Token("", special, None, None, 0, 0))
        tokens[-1].name += piece.removeprefix(WORD_START)
        token_of_piece.append(len(tokens) - 1)
    return tokens, token_of_piece


def check_prompt(model: PreTrainedModel, tokenizer: Any, example: Example, more: int = 0) -> None:
    """Raise ValueError if the example was cut, or if it and `more` tokens exceed the model's positions."""
    limit = text_limit(model, tokenizer) if example.truncated else longest_text(model)
    length = len(example.token_of_piece) + example.truncated
    if limit is not None and length + more > limit:
        following = f" and {more} follow" if more else ""
        raise ValueError(
            f"the prompt has {length} tokens{following}, but {type(model).__name__} reads at most {limit}; shorten it."
        )


def signed(value: float) -> str:
    """Format a number with its sign and two significant digits."""
    return f"{value:+.2g}".replace("-", "−") if value else "0"


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
