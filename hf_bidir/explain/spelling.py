"""Tokens and numbers as they are shown."""

from collections import Counter
from collections.abc import Iterator, Sequence

JOINERS = "\u200c\u200d"  # cannot be printed; letters and emojis beside them are written apart or as one
UNDECODED = "\ufffd"  # in the text of a part of a character


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
    """Every token as text.

    Tokens that make up one character together are named by it and their place, such as "日 [1/3]"; a part of a
    character without its other parts by its piece; a token that the tokenizer does not have by its id.
    """
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
