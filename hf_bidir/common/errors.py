"""Errors for invalid user input, raised before any training starts."""

from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class InputError(ValueError):
    """Invalid user input; the message says what was expected, what was given and what to do."""


def did_you_mean(word: str, known: list[str]) -> str:
    """A closing sentence that names the closest known word, or an empty string if none is close."""
    close = get_close_matches(word, known, n=1)
    return f' Did you mean "{close[0]}"?' if close else ""


@contextmanager
def as_input_error(prefix: str = "", *kinds: type[Exception]) -> Iterator[None]:
    """Turn a library's errors about user input into `InputError`.

    Args:
        prefix: text before the message of the error.
        kinds: the error types to convert, by default ValueError.
    """
    expected = kinds or (ValueError,)
    try:
        yield
    except InputError:
        raise
    except expected as error:
        raise InputError(" ".join(f"{prefix}{error}".split())) from error  # some messages have many lines
