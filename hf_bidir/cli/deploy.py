"""`hf-bidir export` and `quantise`: checkpoints for other runtimes, and with 8-bit weights."""

from pathlib import Path
from typing import Annotated

import typer

from .app import OUT, OVERWRITE, app, running

CHECKPOINT = typer.Argument(metavar="CHECKPOINT", help="Folder or Hub name of a checkpoint, signed or stock.")


@app.command()
def export(
    checkpoint: Annotated[str, CHECKPOINT],
    output_dir: Annotated[Path, OUT],
    format: Annotated[
        str, typer.Option(help="onnx, or pt2 (a program of torch.export, whose loading runs code from the file).")
    ] = "onnx",
    tolerance: Annotated[float, typer.Option(min=0, help="Accepted difference, as a share of outputs above 1.")] = 1e-4,
    overwrite: Annotated[bool, OVERWRITE] = False,
) -> None:
    """Export a checkpoint as a graph that runs without hf_bidir.

    OUT gets the graph with fp32 weights, and the checkpoint's config, tokenizer and processors. Batch size and length
    may differ in every call. The graph is compared with the model on inputs of other sizes than those it was traced
    with, and nothing is written if they differ by more than the tolerance. docs/deployment.md shows how to run it.

    \b
    hf-bidir export model_cards/sst2-minilm-tanhmax runs/sst2-onnx
    hf-bidir export runs/my-vit runs/my-vit-pt2 --format pt2
    """
    with running("export"):
        from hf_bidir.deploy.graph import export_checkpoint

        difference = export_checkpoint(checkpoint, output_dir, format=format, tolerance=tolerance, overwrite=overwrite)
    typer.echo(f"Largest difference from the model's outputs: {difference:.1e}")
    typer.echo(f"Saved to {output_dir}")


@app.command()
def quantise(
    checkpoint: Annotated[str, CHECKPOINT],
    output_dir: Annotated[Path, OUT],
    overwrite: Annotated[bool, OVERWRITE] = False,
) -> None:
    """Write a copy of a checkpoint with 8-bit weights.

    The linear layers have int8 weights; activations are rounded to 8 bits in each call (torchao). Quantise last: the
    copy cannot be trained, converted or exported. docs/deployment.md shows what it costs in
    accuracy.

    \b
    hf-bidir merge model_cards/sst2-minilm-tanhmax runs/sst2    (an adapter is merged first)
    hf-bidir quantise runs/sst2 runs/sst2-int8
    hf-bidir evaluate runs/sst2-int8 --data sst2/test.parquet
    """
    with running("int8"):
        from hf_bidir.deploy.int8 import quantise_checkpoint

        quantise_checkpoint(checkpoint, output_dir, overwrite=overwrite)
    typer.echo(f"Saved to {output_dir}")
