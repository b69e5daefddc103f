"""The parts of a text: the messages of a conversation, and segments that get one score each."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

PATTERNS = {  # what lies between the segments of a kind
    "sentences": re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])|\n+"),
    "paragraphs": re.compile(r"\n\s*\n"),
}
MESSAGES = "messages"
Segments = str | Sequence[str]
Message = Mapping[str, Any]


class Parted(str):
    """A text with the places of its parts.

    Attributes:
        parts: the first character of each part and the one after its last, in order.
        whole: whether a part is one unit, with one score; otherwise its words are.
        roles: of the parts of a conversation, who says them; None where parts are no messages.
        template: whether what is outside the parts was written by a chat template.
        spoken: the text as people read it, of a conversation the messages after their roles.
    """

    parts: tuple[tuple[int, int], ...]
    whole: bool
    roles: tuple[str, ...] | None
    template: bool
    spoken: str

    def __new__(
        cls,
        text: str,
        parts: Iterable[tuple[int, int]],
        *,
        whole: bool,
        roles: Iterable[str] | None = None,
        spoken: str | None = None,
    ) -> "Parted":
        made = super().__new__(cls, text)
        made.parts, made.whole, made.template = tuple(parts), whole, spoken is not None
        made.roles, made.spoken = None if roles is None else tuple(roles), text if spoken is None else spoken
        return made

    def named(self, part: int, spelling: str) -> str:
        """A unit as it is shown: a message after its role."""
        return spelling if self.roles is None else f"{self.roles[part]}: {spelling}"

    def part_at(self, start: int, end: int) -> int | None:
        """The index of the part that begins before the first visible character of these places and ends after it."""
        piece = self[start:end]
        first = start + len(piece) - len(piece.lstrip()) if piece.strip() else start
        return next((index for index, (begin, stop) in enumerate(self.parts) if begin <= first < stop), None)

    def within(self, longer: str) -> "Parted":
        """The same parts of a text that ends with this one."""
        shift = len(longer) - len(self)
        moved = ((start + shift, end + shift) for start, end in self.parts)
        return Parted(longer, moved, whole=self.whole, roles=self.roles)


def conversation(tokenizer: Any, messages: Sequence[Message]) -> Parted:
    """Messages as the tokenizer's chat template writes them, with the beginning of the assistant's answer.

    Args:
        messages: mappings with "role" and "content", as for `apply_chat_template`; the last one is answered.

    Raises:
        ValueError: no chat template, other messages, or a template that does not write the contents as they are.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(f"this {type(tokenizer).__name__} has no chat template; pass the prompt as a text.")
    contents = [message.get("content") for message in messages]
    if not all(isinstance(content, str) and content.strip() for content in contents):
        raise ValueError(f'expected messages such as {{"role": "user", "content": "a text"}}, got {messages!r}.')
    text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    contents, roles = [str(content).strip() for content in contents], [message["role"] for message in messages]
    spoken = " ".join(f"{role}: {content}" for role, content in zip(roles, contents, strict=True))
    return Parted(text, _places(text, contents), whole=False, roles=roles, spoken=spoken)


def segmented(text: str, segments: Segments) -> Parted:
    """A text whose segments are units.

    Args:
        segments: "sentences", "paragraphs", "messages" of a conversation, or the segments themselves, such as retrieved
            passages, in their order; what is between them stays words.

    Raises:
        ValueError: an unknown kind, or segments that the text does not have in this order.
    """
    chat = isinstance(text, Parted) and text.template
    around = text.parts if isinstance(text, Parted) else ((0, len(text)),)
    roles = None
    if not isinstance(segments, str):
        parts: Iterable[tuple[int, int]] = _places(text, list(segments))
    elif segments == MESSAGES and chat:
        parts, roles = around, text.roles  # type: ignore[attr-defined]
    elif segments in PATTERNS:
        parts = chain.from_iterable(_between(text, *place, PATTERNS[segments]) for place in around)
    else:
        known = ", ".join([*PATTERNS, *[MESSAGES] * chat])
        raise ValueError(f"expected segments {known}, or a list of texts; got {segments!r}.")
    return Parted(text, parts, whole=True, roles=roles, spoken=text.spoken if chat else None)  # type: ignore[attr-defined]


def _places(text: str, contents: Sequence[str]) -> list[tuple[int, int]]:
    places, start = [], 0
    for content in contents:
        found = text.find(content, start) if content else -1
        if found < 0:
            raise ValueError(f"expected {content!r} in the text after the segment before it; it is not there.")
        start = found + len(content)
        places.append((found, start))
    return places


def _between(text: str, start: int, end: int, pattern: re.Pattern) -> Iterable[tuple[int, int]]:
    """The places between matches of a pattern that are not blank."""
    edges = [start, *chain.from_iterable(match.span() for match in pattern.finditer(text, start, end)), end]
    return ((first, last) for first, last in zip(edges[::2], edges[1::2], strict=True) if text[first:last].strip())
