"""`hf-bidir orient`: write a checkpoint whose heads are oriented."""

import warnings
from pathlib import Path
from typing import Annotated

import typer

from hf_bidir.cli.app import app, one_line_errors, slow_imports


@app.command()
def orient(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="Folder or Hub name of a TanhMax model.")],
    output_dir: Annotated[Path, typer.Argument(metavar="OUT", help="Output folder, new or empty.")],
    data: Annotated[
        str, typer.Option(metavar="FILE", help="Training texts or images; labels are ignored. 256 examples suffice.")
    ],
    target: Annotated[
        str | None, typer.Option(help="The class that + is to support; by default the predicted one.")
    ] = None,
    column: Annotated[str | None, typer.Option(help="The text or image column; by default detected.")] = None,
    examples: Annotated[int, typer.Option(min=1, help="Examples to use, sampled with a fixed seed.")] = 256,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples that run together.")] = 16,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the contents of OUT.")] = False,
) -> None:
    """Orient the heads of a TanhMax checkpoint.

    At λ = 1 the overall sign of each head is arbitrary. This flips heads without changing any output, so that positive
    coefficients support the target on average, and records the target in config.json (attn_oriented). The record is
    void once a weight has changed. Prints how many heads have a consistent sign; raw signs of the others
    say little.

    \b
    hf-bidir orient model_cards/sst2-minilm-tanhmax runs/oriented --data sst2/train.parquet --target positive
    hf-bidir explain runs/oriented "a dull film" --method signed-attention
    """
    with slow_imports("explain", "train"):
        from hf_bidir.checkpoints.convert import free_folder, write_checkpoint
        from hf_bidir.checkpoints.reading import checkpoint_processors
        from hf_bidir.checkpoints.sentence_folder import sentence_folder
        from hf_bidir.explain.inputs.checkpoint import load_checkpoint
        from hf_bidir.explain.inputs.sentences import transformer_of
        from hf_bidir.explain.orient import CONSISTENT, orient_heads
        from hf_bidir.finetune.data.unlabelled_data import unlabelled_batches

    with one_line_errors():
        folder = free_folder(output_dir, overwrite, checkpoint)
        model, processor = load_checkpoint(checkpoint)
        batches = unlabelled_batches(model, processor, data, column, examples, batch_size)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            share = orient_heads(model, batches, target)
        sentences = sentence_folder(checkpoint)
        source = sentences.transformer if sentences else checkpoint
        write_checkpoint(folder, [transformer_of(model), *checkpoint_processors(source, model)], sentences)
    consistent = int((share >= CONSISTENT).sum())
    typer.echo(f"{consistent} of {share.numel()} heads have a consistent sign (a share of at least {CONSISTENT}).")
    for warning in caught:
        typer.echo(f"warning: {warning.message}", err=True)
    typer.echo(f"Saved to {output_dir}")
