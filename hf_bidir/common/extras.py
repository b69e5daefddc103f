"""A missing optional dependency is reported with the extra that installs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextmanager
def extra(*names: str) -> Iterator[None]:
    """Imports that need extras of this package; the outermost block names them.

    Raises:
        ModuleNotFoundError: a package is not installed; the message gives the pip command, for the clone around this
            package if there is one.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "hf_bidir"):
            raise
        source = "-e '." if (ROOT / "pyproject.toml").is_file() else "'hf-bidir"
        command = f"pip install {source}[{','.join(names)}]'"
        raise ModuleNotFoundError(f"{package} is not installed; run: {command}", name=error.name) from error
