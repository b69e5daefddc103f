"""Texts as model inputs, long ones in overlapping windows, and their words and numbers as they are shown."""

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.checkpoints.kinds import longest_text, text_limit
from hf_bidir.explain.inputs.parts import Parted

if TYPE_CHECKING:
    from PIL import Image

JOINERS = "\u200c\u200d"  # cannot be printed; letters and emojis beside them are written apart or as one
UNDECODED = "\ufffd"  # in the text of a part of a character
OVERLAP = 8  # a window shares one eighth of its tokens with the next one


@dataclass(frozen=True)
class Example:
    """Model inputs of one text or image, with a name for every token that gets a score."""

    inputs: dict[str, Tensor]
    tokens: list[str]  # words as spelled in the text, or patches; special tokens included
    special: list[bool]
    token_of_piece: Tensor  # [length]: index of the token that each model position belongs to
    truncated: int = 0  # number of word pieces cut off
    whole: bool = False  # whether tokens are segments, which erasure removes as a whole
    grid: tuple[int, int] | None = None  # rows and columns of patches
    photo: "Image.Image | None" = None  # the part of an image that is the input, in its own resolution

    def by_token(self, scores: Tensor, add: bool = True) -> Tensor:
        """Scores of tokens `[..., tokens]` from `[..., length]`: sum or largest magnitude of its pieces."""
        pieces = torch.nn.functional.one_hot(self.token_of_piece).bool().T.to(scores.device)  # [tokens, length]
        table = scores.unsqueeze(-2) * pieces
        if add:
            return table.sum(-1)
        return table.gather(-1, table.abs().argmax(-1, keepdim=True)).squeeze(-1)


def read_text(tokenizer, text: str | Sequence[str], limit: int) -> Example:
    """Tokenize a text or a list of words, truncated to `limit` word pieces.

    A word is what the tokenizer splits a text into before it makes pieces, with its combining marks. Of a `Parted` text
    the parts are tokens if they are `whole`, and what a chat template writes is special.

    Raises:
        ValueError: the text has no word, or its parts are asked of a tokenizer without character offsets.
    """
    wordless = f"expected a text with at least one word, got {text!r}."
    if not "".join(text).strip():
        raise ValueError(wordless)
    split, whole_parts = tokenizer.is_fast and not isinstance(text, str), isinstance(text, Parted) and text.whole
    if isinstance(text, Parted) and not tokenizer.is_fast:
        raise ValueError(f"segments and conversations need a fast tokenizer; {type(tokenizer).__name__} is slow.")
    text = text if isinstance(text, str) else list(text) if split else " ".join(text)
    ends = {"add_special_tokens": not is_template(text)}
    whole = len(tokenizer(text, is_split_into_words=split, verbose=False, **ends)["input_ids"])
    options: dict[str, Any] = {"truncation": True, "max_length": limit, "return_tensors": "pt"} | ends
    if tokenizer.is_fast:
        options |= {"is_split_into_words": split, "return_offsets_mapping": True}
    encoding = tokenizer(text, **options)
    tokens, special, token_of_piece = (_words if tokenizer.is_fast else _joined_pieces)(tokenizer, text, encoding)
    if all(special):
        raise ValueError(wordless)
    cut = whole - len(token_of_piece)
    return Example(dict(encoding), tokens, special, torch.tensor(token_of_piece), cut, whole_parts)


def _words(tokenizer, text: str | list[str], encoding: Any) -> tuple[list[str], list[bool], list[int]]:
    """Words, whether each is special, and the word of each piece, by character offsets."""
    offsets = encoding.pop("offset_mapping")[0].tolist()
    pieces = tokenizer.convert_ids_to_tokens(encoding["input_ids"][0])
    tokens: list[str] = []
    special: list[bool] = []
    token_of_piece: list[int] = []
    last, first, reach = None, 0, 0  # the word of the piece before, from its smallest start to its largest end
    segment = None  # that of the piece before
    for piece, word, (start, end) in zip(pieces, encoding.word_ids(), offsets, strict=True):
        part = text.part_at(start, end, segment) if isinstance(text, Parted) and word is not None else None
        begins = word is None or word != last
        if isinstance(text, Parted) and text.whole and (part is not None or segment is not None):
            begins = part != segment
        elif isinstance(text, str) and word is not None and last is not None:
            begins = _begins_word(text, first, reach, start, begins)
        if begins:
            tokens.append(piece)
            special.append(word is None or (is_template(text) and part is None))
            first, reach = start, end
        last, first, reach, segment = word, min(first, start), max(reach, end), part
        if word is not None:
            tokens[-1] = _spelling(text, first, reach) if isinstance(text, str) else text[word]
        if isinstance(text, Parted) and text.whole and part is not None:
            tokens[-1] = text.named(part)
        token_of_piece.append(len(tokens) - 1)
    return tokens, special, token_of_piece


def is_template(text: Any) -> bool:
    """Whether a chat template wrote the text, with its special tokens."""
    return isinstance(text, Parted) and text.template


def _begins_word(text: str, first: int, reach: int, start: int, new: bool) -> bool:
    """Whether a piece at `start` begins a word, after one at `first` to `reach`; `new` is what the tokenizer says."""
    if start < reach:  # pieces of one character overlap
        return False
    before, here = text[start - 1 : start], text[start : start + 1]
    if _is_mark(here) or (_is_mark(before) and here.isalpha()):  # some pre-tokenizers split words at their marks
        return False
    # a tokenizer without a pre-tokenizer reports the whole text as one word; split it at whitespace
    return new or ((before.isspace() or here.isspace()) and text[first:reach].strip() != "")


def _spelling(text: str, first: int, reach: int) -> str:
    """The word at these places, with the marks of its last character, which some tokenizers leave out."""
    while _is_mark(text[reach : reach + 1]):
        reach += 1
    return text[first:reach].strip() or "␣"


def _is_mark(char: str) -> bool:
    """Whether it belongs to the character before it: a combining mark, or a joiner of letters."""
    return char != "" and (char in JOINERS or unicodedata.category(char).startswith("M"))


def _joined_pieces(tokenizer, text: Any, encoding: Any) -> tuple[list[str], list[bool], list[int]]:
    """Like `_words`, without character offsets: pieces are joined at each "▁" to words, or else to characters."""
    ids = encoding["input_ids"][0].tolist()
    marked = any("▁" in piece for piece in tokenizer.convert_ids_to_tokens(ids))
    tokens: list[str] = []
    special: list[bool] = []
    token_of_piece: list[int] = []
    own_ids = set(tokenizer.all_special_ids)
    if tokenizer.unk_token_id != tokenizer.pad_token_id:
        own_ids -= {tokenizer.unk_token_id}  # stands for a part of the text
    for part in characters(tokenizer, ids):
        piece = tokenizer.decode(part) if len(part) > 1 else tokenizer.convert_ids_to_tokens(part)[0]
        own = part[0] in own_ids
        if own or not marked or piece.startswith("▁") or not tokens or special[-1]:
            tokens.append("")
            special.append(own)
        tokens[-1] += piece.replace("▁", "")
        token_of_piece += [len(tokens) - 1] * len(part)
    return [token if token.strip() else "␣" for token in tokens], special, token_of_piece


def check_prompt(model: PreTrainedModel, tokenizer, example: Example, more: int = 0) -> None:
    """Raise ValueError if the example was cut, or if it and `more` tokens exceed the model's positions."""
    limit = text_limit(model, tokenizer) if example.truncated else longest_text(model)
    length = len(example.token_of_piece) + example.truncated
    if limit is not None and length + more > limit:
        following = f" and {more} follow" if more else ""
        raise ValueError(
            f"the prompt has {length} tokens{following}, but {type(model).__name__} reads at most {limit}; shorten it."
        )


def windows_of(example: Example, limit: int) -> list[Tensor]:
    """The positions of a text's windows of at most `limit` tokens, `[length]` each, with the text's special tokens.

    Neighbours share `limit // OVERLAP` tokens, the last two more.
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

    `shares` of the mean y are summed over windows and divided by their number; other scores are averaged over the
    windows that contain the token.
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
    for index, name in enumerate(names):
        seen[name] += 1
        if counts[name] > 1:
            names[index] = f"{name} ({seen[name]} of {counts[name]})"
    return names


def spelled(tokenizer, ids: Sequence[int]) -> list[str]:
    """Every token as text: its character with a place if several make it up, as "日 [1/3]", or its piece or id."""
    names: list[str] = []
    for part in characters(tokenizer, ids):
        text, (piece, *_) = tokenizer.decode(part), tokenizer.convert_ids_to_tokens(part)
        if len(part) > 1:
            names += [f"{text} [{place}/{len(part)}]" for place in range(1, len(part) + 1)]
        else:
            names.append(f"{text} [{piece}]" if UNDECODED in text else text or piece or f"token {part[0]}")
    return [visible(name) for name in names]


def characters(tokenizer, ids: Sequence[int]) -> Iterator[list[int]]:
    """The ids, with those together that only decode together."""

    def complete(part: list[int]) -> bool:
        return UNDECODED not in (text := tokenizer.decode(part)) and text != ""

    rest = list(ids)
    while rest:
        count = 1
        while not complete(rest[:count]) and count < len(rest) and not complete(rest[count : count + 1]):
            count += 1
        count = count if complete(rest[:count]) else 1
        yield rest[:count]
        rest = rest[count:]
