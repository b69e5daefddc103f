"""A missing optional dependency is reported with the extra that installs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextmanager
def extra(*names: str) -> Iterator[None]:
    """Imports that need extras of this package; the outermost block names them.

    Raises:
        ModuleNotFoundError: a package is not installed; the message gives the pip command.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        reason = missing(error, *names)
        if reason is None:
            raise
        raise ModuleNotFoundError(reason, name=error.name) from error


def missing(error: ModuleNotFoundError, *names: str) -> str | None:
    """The package that an import lacks and the command that installs it; None for a module of this package."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "hf_bidir"):
        return None
    return f"{package} is not installed; run: {install(*names)}"


def install(*names: str) -> str:
    """The pip command that installs this package with extras, from the clone around it if there is one."""
    package = "-e '." if (ROOT / "pyproject.toml").is_file() else "'hf-bidir"
    return f"pip install {package}[{','.join(names)}]'"
