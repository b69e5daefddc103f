"""The parts of a text: the messages of a conversation, and segments that get one score each."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .text import Text

PATTERNS = {  # what ends a segment, and blanks; an abbreviation such as "Mr." ends a sentence, too
    "sentences": re.compile(r"[.!?…][\"'”’)\]]*\s+|[。！？][”’）」』]*\s*|\n\s*"),
    "paragraphs": re.compile(r"\n\s*\n\s*"),
}
MESSAGES, ASSISTANT = "messages", "assistant"
Segments = str | Sequence[str]
Message = Mapping[str, Any]
Place = tuple[int, int]


def conversation(tokenizer: Any, messages: Sequence[Message]) -> Text:
    """Messages as the tokenizer's chat template writes them, with the beginning of the assistant's answer.

    Args:
        messages: mappings with "role" and "content", as for `apply_chat_template`. The last one is answered, or
            continued if it is the assistant's.

    Raises:
        ValueError: no chat template, other messages, or a template that does not write the contents as they are.
    """
    tokenizer_name = type(tokenizer).__name__
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(f"this {tokenizer_name} has no chat template; pass the prompt as a text.")
    roles = [message.get("role") for message in messages]
    contents = [message.get("content", "") for message in messages]
    if not all(isinstance(text, str) and text.strip() for text in [*roles, *contents]):
        raise ValueError(f'expected messages such as {{"role": "user", "content": "a text"}}, got {messages!r}.')
    contents = [content.strip() for content in contents]
    end = "continue_final_message" if roles[-1] == ASSISTANT else "add_generation_prompt"

    def written(texts: Sequence[str]) -> str:
        replaced = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
        return tokenizer.apply_chat_template(replaced, tokenize=False, **{end: True})

    # contents may occur in the template too, so their places are found by stand-ins
    stand_ins = [f"STANDIN{index:05}" for index in range(len(contents))]
    text, *following = re.split("|".join(stand_ins), written(stand_ins))
    parts = []
    for content, after in zip(contents, following, strict=False):
        parts.append((len(text), len(text) + len(content)))
        text += content + after
    if text != written(contents) or len(parts) != len(contents):
        raise ValueError(f"the chat template of this {tokenizer_name} changes the contents; pass the prompt as a text.")
    names = [f"{role}: {content}" for role, content in zip(roles, contents, strict=True)]
    return Text(text, tuple(parts), tuple(names), template=True)


def segmented(text: str | Text, segments: Segments) -> Text:
    """A text whose segments are units; those of several words are numbered, because lists shorten them.

    Args:
        segments: "sentences", "paragraphs", "messages" of a conversation, or the segments themselves, such as retrieved
            passages, in their order; what is between them stays words.

    Raises:
        ValueError: an unknown kind, or segments that the text does not have in this order.
    """
    text = Text(text) if isinstance(text, str) else text
    if segments == MESSAGES and text.template:
        return replace(text, whole=True)
    if not isinstance(segments, str):
        parts = list(_places(text.content, segments))
    elif segments in PATTERNS:
        around = text.parts or ((0, len(text.content)),)
        parts = [part for place in around for part in _split(text.content, place, PATTERNS[segments])]
    else:
        raise ValueError(
            f"expected segments {', '.join(PATTERNS)}, messages of a conversation (--chat, or a list of messages), or "
            f"in Python a list of texts; got {segments!r}."
        )
    if not parts:
        raise ValueError("expected at least one segment, got none.")
    names = [text.content[start:end].strip() for start, end in parts]
    if any(" " in name for name in names):
        names = [f"{number}. {name}" for number, name in enumerate(names, 1)]
    return replace(text, parts=tuple(parts), names=tuple(names), whole=True)


def _places(text: str, segments: Sequence[str]) -> Iterable[Place]:
    """The places of these segments, each with the blanks after it."""
    end = 0
    for segment in segments:
        found = re.compile(rf"{re.escape(segment)}\s*").search(text, end) if segment.strip() else None
        if found is None:
            raise ValueError(f"expected {segment!r} in the text after the segment before it; it is not there.")
        end = found.end()
        yield found.span()


def _split(text: str, place: Place, pattern: re.Pattern) -> Iterable[Place]:
    """The parts of a place, each with the match of the pattern at its end."""
    start, stop = place
    ends = [match.end() for match in pattern.finditer(text, start, stop)]
    for end in [*ends, stop]:
        if text[start:end].strip():
            yield start, end
            start = end
