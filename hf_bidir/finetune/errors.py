"""Bad input: one clear error, raised before any training time is spent."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

import torch


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


def run_script(main: Callable[[], object]) -> None:
    """Run a script's `main`; an `InputError` becomes one line on stderr, of the first process, and exit 2.

    So does Ctrl-C, with the exit status 130 that shells give it.
    """
    try:
        main()
    except InputError as error:
        _say(f"error: {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        _say("interrupted; the same command goes on from the last checkpoint")
        sys.exit(130)
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _say(line: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(line, file=sys.stderr)
