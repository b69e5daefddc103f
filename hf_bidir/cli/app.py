"""The application that every sub-command belongs to."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    # --negative_mass is --negative-mass, as in the training scripts, which take both spellings
    context_settings={"token_normalize_func": lambda name: name.replace("_", "-"), "max_content_width": 120},
)


@app.callback()
def main() -> None:
    """Signed attention for Hugging Face models."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """What is wrong with the input becomes one line, and exit code 2."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
