"""The parts of a text: the messages of a conversation, and segments that get one score each."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

PATTERNS = {  # the last group is what lies between two segments; an abbreviation such as "Mr." ends a sentence, too
    "sentences": re.compile(r"[.!?…][\"'”’)\]]*(\s+)|[。！？][”’）」』]*(\s*)|(\n+)"),
    "paragraphs": re.compile(r"(\n\s*\n)"),
}
MESSAGES, ASSISTANT = "messages", "assistant"
Segments = str | Sequence[str]
Message = Mapping[str, Any]
Place = tuple[int, int]


class Parted(str):
    """A text with the places of its parts.

    Attributes:
        parts: the first character of each part and the one after its last, in order.
        whole: whether a part is one unit, with one score; otherwise its words are.
        roles: the role of each message of a conversation; None where parts are no messages.
        template: whether a chat template wrote what is outside the parts.
        spoken: the text as people read it, of a conversation the messages after their roles.
    """

    parts: tuple[Place, ...]
    whole: bool
    roles: tuple[str, ...] | None
    template: bool
    spoken: str

    def __new__(
        cls,
        text: str,
        parts: Iterable[Place],
        *,
        whole: bool,
        roles: Iterable[str] | None = None,
        spoken: str | None = None,
    ) -> "Parted":
        made = super().__new__(cls, text)
        made.parts, made.whole, made.template = tuple(parts), whole, spoken is not None
        made.roles, made.spoken = None if roles is None else tuple(roles), text if spoken is None else spoken
        return made

    def named(self, part: int) -> str:
        """A unit as it is shown: a message after its role."""
        start, end = self.parts[part]
        shown = self[start:end].strip()
        return shown if self.roles is None else f"{self.roles[part]}: {shown}"

    def part_at(self, start: int, end: int, before: int | None) -> int | None:
        """The part of a piece at these places, by its first visible character; None outside of all parts.

        Args:
            before: the part of the piece before, to which blanks after it belong, unless a template wrote them.
        """
        piece = self[start:end]
        if not piece.strip() and not self.template and before is not None:
            return before
        first = start + len(piece) - len(piece.lstrip()) if piece.strip() else start
        return next((index for index, (begin, stop) in enumerate(self.parts) if begin <= first < stop), None)

    def within(self, longer: str) -> "Parted":
        """The same parts of a text that ends with this one."""
        shift = len(longer) - len(self)
        return Parted(longer, ((start + shift, end + shift) for start, end in self.parts), whole=self.whole)


def conversation(tokenizer: Any, messages: Sequence[Message]) -> Parted:
    """Messages as the tokenizer's chat template writes them, with the beginning of the assistant's answer.

    Args:
        messages: mappings with "role" and "content", as for `apply_chat_template`. The last one is answered, or
            continued if it is the assistant's.

    Raises:
        ValueError: no chat template, other messages, or a template that does not write the contents as they are.
    """
    name = type(tokenizer).__name__
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(f"this {name} has no chat template; pass the prompt as a text.")
    pairs = [(message.get("role"), message.get("content")) for message in messages]
    if not all(isinstance(role, str) and isinstance(content, str) and content.strip() for role, content in pairs):
        raise ValueError(f'expected messages such as {{"role": "user", "content": "a text"}}, got {messages!r}.')
    roles, contents = [str(role) for role, _ in pairs], [str(content).strip() for _, content in pairs]
    end = "continue_final_message" if roles[-1] == ASSISTANT else "add_generation_prompt"

    def written(texts: Sequence[str]) -> str:
        given = [{**message, "content": text} for message, text in zip(messages, texts, strict=True)]
        return tokenizer.apply_chat_template(given, tokenize=False, **{end: True})

    # contents may occur in the template too, so their places are found by stand-ins
    stand_ins = [f"STANDIN{index:05}" for index in range(len(contents))]
    around = re.split("|".join(stand_ins), written(stand_ins))
    text, parts = around[0], []
    for content, after in zip(contents, around[1:], strict=False):
        parts.append((len(text), len(text) + len(content)))
        text += content + after
    if text != written(contents) or len(parts) != len(contents):
        raise ValueError(f"the chat template of this {name} changes the contents; pass the prompt as a text.")
    spoken = " ".join(f"{role}: {content}" for role, content in zip(roles, contents, strict=True))
    return Parted(text, parts, whole=False, roles=roles, spoken=spoken)


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
    if isinstance(segments, Sequence) and not isinstance(segments, str) and all(isinstance(s, str) for s in segments):
        parts: Iterable[Place] = _places(text, segments)
    elif isinstance(segments, str) and segments in PATTERNS:
        parts = chain.from_iterable(_between(text, *place, PATTERNS[segments]) for place in around)
    elif segments == MESSAGES and chat:
        parts = around
    else:
        needs = "" if chat or segments != MESSAGES else " Messages need a conversation: --chat, or a list of messages."
        known = ", ".join([*PATTERNS, *[MESSAGES] * chat])
        raise ValueError(f"expected segments {known}, or in Python a list of texts; got {segments!r}.{needs}")
    roles = text.roles if isinstance(text, Parted) and segments == MESSAGES else None
    return Parted(text, parts, whole=True, roles=roles, spoken=text.spoken if chat else None)  # type: ignore[attr-defined]


def _places(text: str, segments: Sequence[str]) -> list[Place]:
    places, start = [], 0
    for segment in segments:
        found = text.find(segment, start) if segment.strip() else -1
        if found < 0:
            raise ValueError(f"expected {segment!r} in the text after the segment before it; it is not there.")
        start = found + len(segment)
        places.append((found, start))
    if not places:
        raise ValueError("expected at least one segment, got an empty list.")
    return places


def _between(text: str, start: int, end: int, pattern: re.Pattern) -> Iterable[Place]:
    """The places between matches of a pattern that are not blank."""
    gaps = (match.span(match.lastindex) for match in pattern.finditer(text, start, end) if match.lastindex)
    edges = [start, *chain.from_iterable(gaps), end]
    return ((first, last) for first, last in zip(edges[::2], edges[1::2], strict=True) if text[first:last].strip())
