"""The card of a checkpoint, README.md: a header of YAML between two lines ---, and a text."""

import re
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from yaml import YAMLError

from hf_bidir.common.errors import InputError

CARD = "README.md"
OPENING = re.compile(r"\A\s*---[ \t]*(?=[\r\n])")


def read_card(readme: Path, name: str | None = None) -> ModelCard:
    """The card in a README.md, which messages call `name`; by default its folder and file.

    Raises:
        InputError: as in `parsed_card`.
    """
    return parsed_card(readme.read_bytes(), name or "/".join(readme.resolve().parts[-2:]))


def parsed_card(content: bytes, name: str, **options: Any) -> ModelCard:
    """The card that a README.md holds, which messages call `name`.

    Args:
        options: for `ModelCard`.

    Raises:
        InputError: the content is not UTF-8, or its header is not YAML or has no end.
    """
    try:
        text = _text(content)
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 ({error}); save it as UTF-8.") from error
    advice = "Correct the header, between the two lines ---, or remove it."
    if OPENING.match(text) and not REGEX_YAML_BLOCK.search(text):
        raise InputError(f"the header of {name} has no end. {advice}")
    try:
        return ModelCard(text, **options)
    except (YAMLError, ValueError, TypeError) as error:  # TypeError: a key that is not text
        raise InputError(
            f"the header of {name} is not that of a model card: {' '.join(str(error).split())}. {advice}"
        ) from error


def with_note(content: bytes, note: str) -> bytes:
    """A README.md with a note between its header, if it has one, and its text; in any encoding like ASCII."""
    text = _text(content, errors="surrogateescape")
    header = REGEX_YAML_BLOCK.match(text)
    above = header[0] if header else ""
    ends = "\n" * (bool(above) and not above.endswith(("\r", "\n")))
    return f"{above}{ends}\n> {note}\n\n{text[len(above) :]}".encode(errors="surrogateescape")


def _text(content: bytes, errors: str = "strict") -> str:
    """The text without a byte-order mark and without blanks after the first ---, which huggingface_hub refuses."""
    return OPENING.sub("---", content.decode("utf-8-sig", errors=errors))


def rounded(value: float) -> str:
    """A metric as cards and logs print it: four decimal places; four significant digits below 0.001."""
    return f"{value:.4f}" if abs(value) >= 1e-3 or value == 0 else f"{value:.4g}"
