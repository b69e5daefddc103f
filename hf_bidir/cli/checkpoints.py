"""`hf-bidir convert`, `merge` and `families`: convert checkpoints, merge adapters, list the convertible model types."""

from pathlib import Path
from typing import Annotated

import typer

from .app import OUT, OVERWRITE, app, running


@app.command()
def convert(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="Folder or Hub name of a supported model, or timm:NAME for a plain ViT."),
    ],
    output_dir: Annotated[Path, OUT],
    attn_activation: Annotated[
        str | None,
        typer.Option(
            help="Activation of the copy: tanhmax, balanced or a registered name; by default tanhmax, with --heal "
            "balanced for models that generate text."
        ),
    ] = None,
    negative_mass: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Negative mass λ, 0 (softmax) to 1; by default 0, with --heal 1, or 0.2 of balanced."
        ),
    ] = None,
    heal: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Texts or images without labels: heal the copy. May be repeated."),
    ] = None,
    column: Annotated[str | None, typer.Option(help="Text or image column of --heal; by default detected.")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of steps of --heal; by default 300 to 1,000.")
    ] = None,
    keep_signs: Annotated[
        bool,
        typer.Option(
            "--keep-signs", help="Heal with penalties that keep negative coefficients in use; costs agreement."
        ),
    ] = False,
    weights: Annotated[Path | None, typer.Option(help="Weights file for timm:NAME; by default from the Hub.")] = None,
    partial: Annotated[
        bool,
        typer.Option(
            "--partial",
            help="Sign only layers of transformers' attention interface; others stay softmax.",
        ),
    ] = False,
    to_softmax: Annotated[
        bool, typer.Option("--to-softmax", help="Convert back: from a signed model with λ = 0 to the stock model.")
    ] = False,
    overwrite: Annotated[bool, OVERWRITE] = False,
) -> None:
    """Convert a checkpoint to signed attention, or back.

    Copies the tokenizer or processor too; sentence-transformers folders keep their layout. With λ = 0, the default, the
    copy computes the same outputs as the source; with λ > 0 the outputs differ. With --heal the copy is then trained to
    match the hidden states of the source, or its next tokens, and gets a model card; an interrupted run continues.
    training/distill.py has all options of healing.

    \b
    hf-bidir convert FacebookAI/roberta-base runs/roberta-signed
    hf-bidir convert sentence-transformers/all-MiniLM-L6-v2 runs/minilm-signed
    hf-bidir convert google-bert/bert-base-uncased runs/bert-healed --heal texts.txt
    hf-bidir convert timm:vit_tiny_patch16_224 runs/vit-signed --negative-mass 0.1
    hf-bidir convert runs/roberta-signed runs/roberta-stock --to-softmax
    """
    with running(*(["train", "hub"] if heal else [])):
        from hf_bidir.checkpoints.convert import convert_checkpoint, restore_softmax

        if not heal and (steps or column or keep_signs):
            raise ValueError("--steps, --column and --keep-signs need --heal FILE.")
        if to_softmax and (attn_activation or negative_mass is not None or weights or partial or heal):
            raise ValueError(
                "--to-softmax cannot be combined with --attn-activation, --negative-mass, --weights, --partial, --heal."
            )
        if heal and (weights or partial):
            raise ValueError("--heal cannot be combined with --weights or --partial; convert first, then heal OUT.")
        if to_softmax:
            restore_softmax(source, output_dir, overwrite=overwrite)
        elif heal:
            from hf_bidir.finetune import heal as healing
            from hf_bidir.hub.card import write_card

            from .script import parse

            options = {
                "model_name_or_path": source,
                "attn_activation": attn_activation,
                "keep_signs": keep_signs,
                "train_file": heal,
                "text_column": column,
                "image_column": column,
                "negative_mass_end": negative_mass,
                "output_dir": str(output_dir),
                "max_steps": steps,
                "overwrite_output_dir": overwrite,
            }
            healing.heal(*parse(healing.HEALING, options), card=write_card)
        else:
            convert_checkpoint(
                source,
                output_dir,
                attn_activation=attn_activation or "tanhmax",
                negative_mass=negative_mass or 0.0,
                weights=weights,
                partial=partial,
                overwrite=overwrite,
            )
    typer.echo(f"Saved to {output_dir}")


@app.command()
def merge(
    adapter: Annotated[str, typer.Argument(metavar="ADAPTER", help="Folder or Hub name of an adapter.")],
    output_dir: Annotated[Path, OUT],
    base: Annotated[
        str | None, typer.Option(help="Folder or Hub name of the base model; by default the one the adapter names.")
    ] = None,
    overwrite: Annotated[bool, OVERWRITE] = False,
) -> None:
    """Merge a LoRA adapter into its base model.

    OUT is a complete checkpoint in fp32, which needs neither the adapter nor peft. Its outputs are compared with
    those of the separate adapter before anything is saved. Another base than the one in the adapter's run.json is
    refused.

    \b
    hf-bidir merge runs/my-adapter runs/my-model
    hf-bidir merge someone/adapter runs/my-model --base runs/copy-of-the-base
    """
    with running("lora"):
        from hf_bidir.checkpoints.convert import merge_adapter

        difference = merge_adapter(adapter, output_dir, base=base, overwrite=overwrite)
    typer.echo(f"Largest difference from the outputs with the separate adapter: {difference:.1e}")
    typer.echo(f"Saved to {output_dir}")


@app.command()
def families(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A transformers model type, such as roberta; by default all.")
    ] = None,
) -> None:
    """List the model types that can be converted.

    For one model type, prints whether it can be converted, what was checked, and if not, why.

    \b
    hf-bidir families
    hf-bidir families roberta
    """
    with running():
        from hf_bidir.checkpoints.families import about, overview

        typer.echo(overview() if name is None else about(name))
