"""The application that every sub-command belongs to."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import typer

from hf_bidir.common.errors import InputError
from hf_bidir.common.extras import extra

# the training scripts' names for the same option
ALIASES = {"text-column": "column", "image-column": "column", "test-file": "data"}


def normalised(name: str) -> str:
    """The spelling of an option in `--help`: dashes, as in --negative-mass for --negative_mass."""
    name = name.replace("_", "-")
    return ALIASES.get(name, name)


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"token_normalize_func": normalised, "max_content_width": 120},
)


@app.callback()
def main() -> None:
    """Signed attention (TanhMax) for Hugging Face models.

    \b
    hf-bidir convert FacebookAI/roberta-base runs/roberta-signed
    hf-bidir explain runs/roberta-signed "a charming film"
    hf-bidir COMMAND --help     options and examples of one command
    """
    import hf_bidir.cli.start  # noqa: F401  (before the command imports torch)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Print an error in the input as one line and exit with code 2."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error


@contextmanager
def options_as(ours: Mapping[str, str]) -> Iterator[None]:
    """Name the options of this command in errors that name those of the training scripts."""
    try:
        yield
    except InputError as error:
        text = str(error)
        for theirs, name in ours.items():
            text = text.replace(theirs, name)
        raise InputError(text) from error


@contextmanager
def slow_imports(*extras: str) -> Iterator[None]:
    """The imports of a command, which `--help` does without; print a missing package and its extra as one line."""
    from hf_bidir.cli.start import announce_imports

    announce_imports()
    with one_line_errors(), extra(*extras):
        yield
