"""`hf-bidir demo`: train a small model and explain it, without any data."""

from pathlib import Path
from typing import Annotated

import typer

from hf_bidir.cli.app import app, one_line_errors, slow_imports


@app.command()
def demo(
    attn_activation: Annotated[str, typer.Option(help="Activation: tanhmax, softmax or tanh.")] = "tanhmax",
    seed: Annotated[int, typer.Option(help="Seed of the initial weights.")] = 0,
    output: Annotated[
        Path | None, typer.Option(help="Output folder; by default runs/demo-text-ACTIVATION-SEED.")
    ] = None,
) -> None:
    """Train a small model on synthetic texts and explain it.

    Two words in every twelve determine the class. Prints and draws the coefficient and contribution of each. Downloads
    nothing.

    \b
    hf-bidir demo
    hf-bidir demo --attn-activation softmax
    """
    with slow_imports("explain", "train"):
        from hf_bidir.cli.text_demo import text_demo

    with one_line_errors():
        folder = output or Path(f"runs/demo-text-{attn_activation}-{seed}")
        typer.echo(text_demo(folder, attn_activation, seed))
