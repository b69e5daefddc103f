"""`hf-bidir push`, `card` and `evaluate`: publish a checkpoint with measured numbers."""

from pathlib import Path
from typing import Annotated, Any

import typer

from hf_bidir.cli.app import app, one_line_errors, options_as, slow_imports

OPTIONS_OF_TRAINING = dict.fromkeys(("--train_file", "--validation_file", "--test_file"), "--data")
OPTIONS_OF_TRAINING |= dict.fromkeys(("--text_column", "--image_column"), "--column")
OPTIONS_OF_TRAINING |= {"--label_column": "--label-column", "--drop_bad_rows": "--drop-bad-rows"}


@app.command()
def push(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Checkpoint folder.")],
    repo_id: Annotated[str, typer.Argument(metavar="REPO_ID", help="owner/name; created if it does not exist.")],
    private: Annotated[bool, typer.Option("--private", help="Create the repository as private.")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch to commit to; by default main.")] = None,
    tag: Annotated[str | None, typer.Option(help="Tag for the commit, such as v1.")] = None,
    replaces: Annotated[
        str | None, typer.Option(metavar="REPO_ID", help="Your earlier model, whose card will name this one.")
    ] = None,
    create_pr: Annotated[bool, typer.Option("--create-pr", help="Open a pull request instead of committing.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the files and the card without uploading.")] = False,
) -> None:
    """Publish a checkpoint on the Hub in one commit.

    First loads and runs it in a clean process. Refuses pickles, access tokens and local paths. Keeps hand-written text
    in the repository's README.md. Log in with `hf auth login`.

    \b
    hf-bidir push runs/mine me/mine --dry-run
    hf-bidir push runs/mine me/mine --private --tag v1
    hf-bidir push runs/better me/better --replaces me/mine
    """
    with slow_imports("hub"):
        from hf_bidir.hub.push import push_checkpoint

    options: dict[str, Any] = {"private": private, "revision": revision, "create_pr": create_pr, "tag": tag}
    options["replaces"] = replaces
    with one_line_errors():
        done: Any = push_checkpoint(folder, repo_id, dry_run=dry_run, **options)
    typer.echo(done if dry_run else f"Published: {done.commit_url}")


@app.command()
def card(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Checkpoint folder of a training run.")],
    check: Annotated[
        bool, typer.Option("--check", help="Only compare card and results; exit with 1 if they differ.")
    ] = False,
) -> None:
    """Write or check the model card of a training run.

    Generates example, scores, data and recipe from the run's files. Keeps hand-written text around the generated part
    of README.md.

    \b
    hf-bidir card runs/mine
    hf-bidir card runs/mine --check
    """
    with slow_imports("hub"):
        from hf_bidir.hub.card import card_differences, write_card

    with one_line_errors():
        if not check:
            typer.echo(f"Saved: {write_card(folder)}")
            return
        differences = card_differences(folder)
    if differences:
        typer.echo("\n".join(["The card and the results of the run differ:", *differences]), err=True)
        raise typer.Exit(1)
    typer.echo("The card matches the results of the run.")


@app.command()
def evaluate(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="Folder or Hub name of a classifier or causal language model.")
    ],
    data: Annotated[
        str | None,
        typer.Option(metavar="FILE|NAME", help="Data file or Hub data set; by default the Hub data set of the run."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Split to evaluate; by default test, or validation for a language model.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the Hub; by default main.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples per forward pass.")] = 64,
    column: Annotated[str | None, typer.Option(help="Text or image column; by default detected.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Class column; by default detected.")] = None,
    drop_bad_rows: Annotated[
        bool, typer.Option("--drop-bad-rows", help="Leave out rows without text or label, or of unknown classes.")
    ] = False,
    tolerance: Annotated[
        float,
        typer.Option(min=0, help="Tolerance when comparing with the card: absolute, relative for numbers above 1."),
    ] = 0.001,
    save: Annotated[
        bool, typer.Option("--save", help="Save evaluation.json and mark the card as verified; local folders only.")
    ] = False,
) -> None:
    """Evaluate a checkpoint and compare with its model card.

    Exits with 1 if accuracy, macro-F1 or perplexity differ on the same data. For TanhMax models, also prints the share
    of negative attention coefficients, and the accuracy or perplexity without them.

    \b
    hf-bidir evaluate runs/digits-tanhmax
    hf-bidir evaluate someone/sst2-tanhmax --revision v1 --data test.parquet
    """
    with slow_imports("explain", "hub", "train"):
        from transformers.utils import logging

        from hf_bidir.hub.card import write_card
        from hf_bidir.hub.card_numbers import nearly_equal, overall
        from hf_bidir.hub.evaluate import (
            claimed_scores,
            comparison,
            evaluate_checkpoint,
            local_folder,
            of_the_cards_data,
        )

    logging.disable_progress_bar()  # for loading the weights
    options: dict[str, Any] = {"split": split, "batch_size": batch_size, "column": column, "label_column": label_column}
    with one_line_errors():
        if save and not Path(checkpoint).is_dir():
            raise ValueError(
                f"--save needs a local folder; {checkpoint} is not one. Download it first, or leave --save out."
            )
        folder = local_folder(checkpoint, revision)
        claimed_scores(folder)  # refuses a card that cannot be read, before the measurement
        with options_as(OPTIONS_OF_TRAINING):
            measured = evaluate_checkpoint(folder, data, drop_bad_rows=drop_bad_rows, **options)
        claimed, same = claimed_scores(folder, measured.split), of_the_cards_data(folder, measured)
        if save and claimed and not same:
            raise ValueError(
                f"according to run.json, the card's {measured.split} numbers were not measured on "
                f"{measured.data['source']}; --save needs the card's own data. Nothing was saved."
            )
        if save:
            typer.echo(f"Saved: {measured.save(folder)}, {write_card(folder)}", err=True)
    typer.echo(comparison(measured, claimed, same))
    common = overall(claimed).keys() & measured.scores.keys()  # one example more or less moves the recall of a class
    if same and not all(nearly_equal(measured.scores[name], claimed[name], tolerance) for name in common):
        raise typer.Exit(1)
