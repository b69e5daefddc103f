"""The card of a checkpoint, README.md: a header of YAML between two lines ---, and a text."""

from pathlib import Path

from huggingface_hub import ModelCard
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from yaml import YAMLError

from .errors import InputError

CARD = "README.md"


def read_card(readme: Path, name: str | None = None) -> ModelCard:
    """`parsed_card` of a README.md, which messages call `name`; by default its folder and file."""
    return parsed_card(readme.read_bytes(), name or "/".join(readme.resolve().parts[-2:]))


def parsed_card(content: bytes, name: str) -> ModelCard:
    """The card that a README.md holds; an invalid model index is left out.

    Raises:
        InputError: the content is not UTF-8, or its header is not YAML.
    """
    try:
        return ModelCard(content.decode("utf-8-sig"), ignore_metadata_errors=True)
    except (YAMLError, ValueError, TypeError) as error:  # TypeError: a key that is not text
        reason = " ".join(str(error).split())
        raise InputError(
            f"{name} is no model card: {reason}. Correct it, above all the header between the two lines ---."
        ) from error


def with_note(content: bytes, note: str) -> bytes:
    """A README.md with a note between its header, if it has one, and its text; in any encoding like ASCII."""
    text = content.decode("utf-8-sig", errors="surrogateescape")
    header = REGEX_YAML_BLOCK.match(text)
    above = header[0] if header else ""
    return f"{above}\n> {note}\n\n{text[len(above) :]}".encode(errors="surrogateescape")


def rounded(value: float) -> str:
    """A metric as cards and logs print it: four decimal places; four significant digits below 0.001."""
    return f"{value:.4f}" if abs(value) >= 1e-3 or value == 0 else f"{value:.4g}"
