"""Errors for invalid user input, raised before any training starts."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches


class InputError(ValueError):
    """Invalid user input; the message says what was expected, what was given and what to do."""


def did_you_mean(word: str, known: list[str]) -> str:
    """A closing sentence that names the closest known word, or an empty string if none is close."""
    close = get_close_matches(word, known, n=1)
    return f' Did you mean "{close[0]}"?' if close else ""


def shared_names(names: Sequence[str]) -> str:
    """The names of several classes with the indices of these, such as "'crane' (0, 2)"; empty if all names differ."""
    places = defaultdict(list)
    for index, name in enumerate(names):
        places[name].append(str(index))
    return ", ".join(f"{name!r} ({', '.join(indices)})" for name, indices in places.items() if len(indices) > 1)


@contextmanager
def as_input_error(prefix: str = "", *kinds: type[Exception]) -> Iterator[None]:
    """Turn a library's errors about user input, by default each ValueError, into `InputError` with a prefix."""
    try:
        yield
    except InputError:
        raise
    except kinds or ValueError as error:  # noqa: B030
        raise InputError(" ".join(f"{prefix}{error}".split())) from error  # some messages have many lines
