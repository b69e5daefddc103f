"""`hf-bidir push`, `card` and `evaluate`: publish a checkpoint with measured numbers."""

from pathlib import Path
from typing import Annotated, Any

import typer

from .app import app, running


@app.command()
def push(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Checkpoint folder.")],
    repo_id: Annotated[str, typer.Argument(metavar="REPO_ID", help="owner/name; created if it does not exist.")],
    private: Annotated[bool, typer.Option("--private", help="Create the repository as private.")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch to commit to; by default main.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the card and the files without uploading.")] = False,
) -> None:
    """Publish a checkpoint on the Hub in one commit.

    First loads and runs it in a clean process. Refuses access tokens and local paths, and uploads no pickles. Keeps
    hand-written text in the repository's README.md. Log in with `hf auth login`.

    \b
    hf-bidir push runs/mine me/mine --dry-run
    hf-bidir push runs/mine me/mine --private
    """
    with running("hub"):
        from hf_bidir.hub.push import push_checkpoint

        done: Any = push_checkpoint(folder, repo_id, private=private, revision=revision, dry_run=dry_run)
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
    with running("hub"):
        from hf_bidir.hub.card import card_differences, write_card

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
        typer.Option(min=0, help="Tolerance of the comparison: absolute, relative for numbers above 1."),
    ] = 0.001,
    predictions: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Classifiers: write a row per example, and a page of the worst errors."),
    ] = None,
    save: Annotated[
        bool, typer.Option("--save", help="Save evaluation.json and the card with it; local folders only.")
    ] = False,
) -> None:
    """Evaluate a checkpoint and compare with its recorded scores.

    Exits with 1 if accuracy, macro-F1 or perplexity differ on the same data. For TanhMax models, also prints the share
    of negative attention coefficients, and the accuracy or perplexity without them. --predictions also prints the
    confusion matrix and the ten worst errors, which the page beside the file explains.

    \b
    hf-bidir evaluate distilbert/distilbert-base-uncased-finetuned-sst-2-english --data test.csv
    hf-bidir evaluate model_cards/sst2-minilm-tanhmax --data test.csv --predictions predictions.csv
    """
    with running("explain", "hub", "train"):
        from datasets import disable_progress_bars
        from transformers.utils import logging

        from hf_bidir.hub.card import write_card
        from hf_bidir.hub.evaluate import comparison, evaluate_checkpoint, local_folder
        from hf_bidir.hub.predictions import check_predictions
        from hf_bidir.hub.results import agree, read_results

        logging.disable_progress_bar()  # for loading the weights
        disable_progress_bars()  # of each step from a file to tokens
        if save and not Path(checkpoint).is_dir():
            raise ValueError(f"--save needs a local folder; {checkpoint} is none. Download it first.")
        folder = local_folder(checkpoint, revision)
        if predictions:
            check_predictions(folder, predictions)
        measured = evaluate_checkpoint(
            folder,
            data,
            split=split,
            batch_size=batch_size,
            text_column=column,
            image_column=column,
            label_column=label_column,
            drop_bad_rows=drop_bad_rows or None,
        )
        recorded = read_results(folder)
        same = recorded.is_of(measured.split, measured.data)
        if save and recorded.scores and recorded.split == measured.split and not same:
            raise ValueError(
                f"according to run.json, the card's {measured.split} numbers were not measured on "
                f"{measured.data['source']}; --save needs the card's own data. Nothing was saved."
            )
        if save:
            typer.echo(f"Saved: {measured.save(folder)}, {write_card(folder)}", err=True)
        typer.echo(comparison(measured, recorded))
        if predictions and measured.predictions:
            typer.echo(measured.predictions.summary())
            typer.echo(f"Saved: {predictions}, {measured.predictions.write(predictions)}")
    # not the recall of a class, which one example more or less moves
    claimed = {name: value for name, value in recorded.overall.items() if name in measured.scores}
    if same and not agree(measured.scores, claimed, tolerance):
        raise typer.Exit(1)
