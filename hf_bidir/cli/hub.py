"""`hf-bidir push`, `card` and `evaluate`: publishing a checkpoint with numbers that were measured."""

from pathlib import Path
from typing import Annotated

import typer

from hf_bidir.cli.app import app, one_line_errors


@app.command()
def push(
    folder: Annotated[Path, typer.Argument(help="The folder of a checkpoint.")],
    repo_id: Annotated[str, typer.Argument(metavar="REPO_ID", help="owner/name; created where there is none.")],
    private: Annotated[bool, typer.Option("--private", help="Create it as private.")] = False,
    revision: Annotated[str | None, typer.Option(help="The branch; by default the main one.")] = None,
    tag: Annotated[str | None, typer.Option(help="A name for the commit, such as v1.")] = None,
    create_pr: Annotated[bool, typer.Option("--create-pr", help="Propose it as a pull request instead.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show files and card, and change nothing.")] = False,
) -> None:
    """Publish a checkpoint on the Hub, in one commit, after running it alone in a process that has nothing else.

    Refuses pickles, tokens and paths of this machine. What a person wrote in the repository's README.md stays. Log in
    before with `hf auth login`.

    \b
    hf-bidir push runs/sst2-tanhmax me/sst2-tanhmax --dry-run
    hf-bidir push runs/sst2-tanhmax me/sst2-tanhmax --private --tag v1
    """
    from hf_bidir.hub.push import push_checkpoint

    options = {"private": private, "revision": revision, "create_pr": create_pr, "dry_run": dry_run, "tag": tag}
    with one_line_errors():
        done = push_checkpoint(folder, repo_id, **options)
    typer.echo(done if dry_run else f"Published: {done.commit_url}")


@app.command()
def card(
    folder: Annotated[Path, typer.Argument(help="The folder of a checkpoint.")],
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 where card and results differ.")
    ] = False,
) -> None:
    """Write the model card of a checkpoint anew, from the numbers that its run left.

    What a person wrote around the generated part of README.md stays.
    """
    from hf_bidir.hub.model_card import card_differences, write_card

    with one_line_errors():
        if not check:
            typer.echo(f"Written: {write_card(folder)}")
            return
        differences = card_differences(folder)
    if differences:
        typer.echo("\n".join(["The card and the results of its run differ:", *differences]), err=True)
        raise typer.Exit(1)
    typer.echo("The card says what the run measured.")


@app.command()
def evaluate(
    checkpoint: Annotated[
        str, typer.Argument(help="The folder of a classifier or causal language model, or its name on the Hub.")
    ],
    data: Annotated[
        str | None,
        typer.Option(metavar="FILE|NAME", help="The examples; by default the data set that the run read by name."),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="What the examples are, or which split of a data set; by default test, or validation for a "
            "language model."
        ),
    ] = None,
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit on the Hub.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples per forward pass.")] = 64,
    column: Annotated[
        str | None,
        typer.Option("--column", "--text_column", "--image_column", help="The text's or image's; by default guessed."),
    ] = None,
    label_column: Annotated[
        str | None,
        typer.Option("--label-column", "--label_column", help="The column of the class; by default guessed."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0, help="How far from the card's number, or its share, is equal.")
    ] = 0.001,
    save: Annotated[
        bool,
        typer.Option("--save", help="Write evaluation.json and the card, which then says: verified (folders only)."),
    ] = False,
) -> None:
    """Measure a published checkpoint again, and print its card's numbers beside the fresh ones.

    Exits with 1 where they differ though the data is the same. TanhMax models also get the share of their attention
    that is negative, and the accuracy without that part.

    \b
    hf-bidir evaluate runs/digits-tanhmax
    hf-bidir evaluate someone/sst2-tanhmax --revision v1 --data test.parquet
    """
    from transformers.utils import logging

    from hf_bidir.hub.evaluation import (
        claimed_scores,
        comparison,
        evaluate_checkpoint,
        is_of_the_cards_data,
        local_folder,
    )
    from hf_bidir.hub.model_card import nearly_equal, write_card

    logging.disable_progress_bar()  # of loading the weights
    options = {"split": split, "batch_size": batch_size, "column": column, "label_column": label_column}
    with one_line_errors():
        if save and not Path(checkpoint).is_dir():
            raise ValueError(f"--save writes into a folder, and {checkpoint} is none.")
        folder = local_folder(checkpoint, revision)
        measured = evaluate_checkpoint(folder, data, **options)
        claimed, same = claimed_scores(folder, measured.split), is_of_the_cards_data(folder, measured)
        if save and claimed and not same:
            raise ValueError(
                f"{measured.data['source']} is not the data that the card's {measured.split} numbers are of, as "
                "run.json tells; --save is for that data alone. Nothing was written."
            )
        if save:
            typer.echo(f"Written: {measured.save(folder)}, {write_card(folder)}", err=True)
    typer.echo(comparison(measured, claimed, same))
    common = claimed.keys() & measured.scores.keys()
    if same and not all(nearly_equal(measured.scores[name], claimed[name], tolerance) for name in common):
        raise typer.Exit(1)
