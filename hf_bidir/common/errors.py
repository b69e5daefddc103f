"""Bad input: one clear error, raised before any training time is spent."""

from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class InputError(ValueError):
    """What the user gave cannot be used; the message says what was expected, what came and what to do."""


def did_you_mean(word: str, known: list[str]) -> str:
    """A closing sentence that names the closest known word, or nothing when none is close."""
    close = get_close_matches(word, known, n=1)
    return f' Did you mean "{close[0]}"?' if close else ""


@contextmanager
def as_input_error(prefix: str = "", *kinds: type[Exception]) -> Iterator[None]:
    """Turn the errors of a library that judges user input into an `InputError`."""
    expected = kinds or (ValueError,)
    try:
        yield
    except InputError:
        raise
    except expected as error:
        raise InputError(" ".join(f"{prefix}{error}".split())) from error  # some libraries write a page
