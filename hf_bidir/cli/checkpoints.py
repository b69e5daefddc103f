"""`hf-bidir convert` and `families`: which models can be signed, and signed copies of checkpoints."""

from pathlib import Path
from typing import Annotated

import typer

from hf_bidir.cli.app import app, one_line_errors


@app.command()
def convert(
    source: Annotated[
        str, typer.Argument(help="A folder or a name on the Hub, of any supported model; or timm:NAME, of a plain ViT.")
    ],
    output_dir: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write, new or empty.")],
    attn_activation: Annotated[str, typer.Option(help="The activation of the copy.")] = "tanhmax",
    negative_mass: Annotated[float, typer.Option(min=0, max=1, help="λ: 0 is softmax, 1 is TanhMax.")] = 0.0,
    weights: Annotated[Path | None, typer.Option(help="A file of weights for timm:NAME.")] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Accept models in which some attention stays softmax.")
    ] = False,
    to_softmax: Annotated[
        bool, typer.Option("--to-softmax", help="The way back: from λ = 0 to a stock model.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what OUT holds.")] = False,
) -> None:
    """Write a signed copy of a softmax checkpoint, with its tokenizer or processors.

    A folder of sentence-transformers stays one. At λ = 0, the default, the copy computes what the source computes: the
    outputs of both on random input are compared before anything is written. At λ > 0 they differ, and the difference
    is printed. training/distill.py then makes them nearly equal.

    \b
    hf-bidir convert FacebookAI/roberta-base runs/roberta-signed
    hf-bidir convert sentence-transformers/all-MiniLM-L6-v2 runs/minilm-signed
    hf-bidir convert timm:vit_tiny_patch16_224 runs/vit-signed --negative-mass 0.1
    hf-bidir convert runs/roberta-signed runs/roberta-stock --to-softmax
    """
    from hf_bidir.checkpoints.convert import convert_checkpoint, restore_softmax  # slow to import, so not for --help

    options = {
        "attn_activation": attn_activation,
        "negative_mass": negative_mass,
        "weights": weights,
        "partial": partial,
    }
    with one_line_errors():
        if to_softmax and list(options.values()) != ["tanhmax", 0.0, None, False]:
            raise ValueError("--to-softmax takes neither an activation, nor a negative mass, weights or --partial.")
        if to_softmax:
            restore_softmax(source, output_dir, overwrite=overwrite)
        else:
            convert_checkpoint(source, output_dir, overwrite=overwrite, **options)
    typer.echo(f"Written to {output_dir}")


@app.command()
def families(
    name: Annotated[str | None, typer.Argument(help="A model type of transformers, such as roberta.")] = None,
) -> None:
    """List the model types that can be signed, or say of one whether it can, what was checked, and if not, why.

    \b
    hf-bidir families
    hf-bidir families roberta
    """
    from hf_bidir.checkpoints.families import about, overview

    with one_line_errors():
        typer.echo(overview() if name is None else about(name))
