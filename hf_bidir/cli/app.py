"""The application that every sub-command belongs to."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from hf_bidir.common.extras import extra

# what errors call an option of the training scripts -> this application's option
ALIASES = {
    "text-column": "column",
    "image-column": "column",
    "test-file": "data",
    "train-file": "heal",
    "max-steps": "steps",
    "overwrite-output-dir": "overwrite",
}


def normalised(name: str) -> str:
    """The spelling of an option in `--help`: dashes, as in --negative-mass for --negative_mass."""
    name = name.replace("_", "-")
    return ALIASES.get(name, name)


OUT = typer.Argument(metavar="OUT", help="Output folder, new or empty.")
OVERWRITE = typer.Option("--overwrite", help="Replace the contents of OUT.")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"token_normalize_func": normalised, "max_content_width": 120},
)


@app.callback()
def main() -> None:
    """Explain predictions of transformers models; convert, evaluate and publish models with TanhMax attention.

    \b
    hf-bidir explain distilbert/distilbert-base-uncased-finetuned-sst-2-english "a charming film"
    hf-bidir convert FacebookAI/roberta-base runs/roberta-signed
    hf-bidir COMMAND --help     options and examples of one command
    """
    import hf_bidir.cli.start  # noqa: F401  (before the command imports torch)


@contextmanager
def running(*extras: str) -> Iterator[None]:
    """The body of a command with its slow imports, which `--help` does without.

    An error in the input, or a missing package with the extra that has it, is one line and exit code 2; an interruption
    one and 130.
    """
    from .script import INTERRUPTED, stop
    from .start import announce_imports

    announce_imports()
    try:
        with extra(*extras):
            yield
    except (ValueError, OSError, ImportError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        stop(130, INTERRUPTED)
