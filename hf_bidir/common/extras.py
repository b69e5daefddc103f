"""A missing optional dependency is reported with the extra that installs it."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(*names: str) -> Iterator[None]:
    """Imports that need extras of this package; the outermost block names them.

    Raises:
        ModuleNotFoundError: a package is not installed; the message gives the pip command.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "hf_bidir"):
            raise
        reason = f"{package} is not installed; run: pip install 'hf-bidir[{','.join(names)}]'"
        raise ModuleNotFoundError(reason, name=error.name) from error
