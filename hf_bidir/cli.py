"""`hf-bidir`: one thin sub-command per capability."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback()
def main() -> None:
    """Signed attention for Hugging Face models."""


@app.command()
def convert(
    source: Annotated[
        str, typer.Argument(help="A folder, a name on the Hub, or timm:NAME (BERT, ViT, DeiT; plain ViTs of timm).")
    ],
    output_dir: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write, new or empty.")],
    attn_activation: Annotated[str, typer.Option(help="The activation of the copy.")] = "tanhmax",
    negative_mass: Annotated[float, typer.Option(min=0, max=1, help="λ: 0 is softmax, 1 is TanhMax.")] = 0.0,
    weights: Annotated[Path | None, typer.Option(help="A file of weights for timm:NAME.")] = None,
    to_softmax: Annotated[
        bool, typer.Option("--to-softmax", help="The way back: from λ = 0 to a stock model.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what OUT holds.")] = False,
) -> None:
    """Write a signed copy of a softmax checkpoint, with its tokenizer or image processor.

    At λ = 0, the default, the copy computes what the source computes: the outputs of both on random input are compared
    before anything is written. At λ > 0 they differ, and the difference is printed. training/distill.py then makes
    them nearly equal.

    \b
    hf-bidir convert google-bert/bert-base-uncased runs/bert-signed
    hf-bidir convert timm:vit_tiny_patch16_224 runs/vit-signed --negative-mass 0.1
    hf-bidir convert runs/bert-signed runs/bert-stock --to-softmax
    """
    from hf_bidir.convert import convert_checkpoint, restore_softmax  # slow to import, so not for --help

    options = {"attn_activation": attn_activation, "negative_mass": negative_mass, "weights": weights}
    try:
        if to_softmax and options != {"attn_activation": "tanhmax", "negative_mass": 0.0, "weights": None}:
            raise ValueError("--to-softmax takes neither an activation, nor a negative mass, nor weights.")
        if to_softmax:
            restore_softmax(source, output_dir, overwrite=overwrite)
        else:
            convert_checkpoint(source, output_dir, overwrite=overwrite, **options)
    except (ValueError, OSError, ImportError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo(f"Written to {output_dir}")
