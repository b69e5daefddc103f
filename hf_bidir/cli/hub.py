"""`hf-bidir push`, `card` and `evaluate`: publish a checkpoint with measured numbers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_bidir.cli.app import app, one_line_errors

if TYPE_CHECKING:
    from hf_bidir.hub.evaluation import Evaluation


@app.command()
def push(
    folder: Annotated[Path, typer.Argument(help="The folder of a checkpoint.")],
    repo_id: Annotated[str, typer.Argument(metavar="REPO_ID", help="owner/name; created if it does not exist.")],
    private: Annotated[bool, typer.Option("--private", help="Create it as private.")] = False,
    revision: Annotated[str | None, typer.Option(help="The branch; by default the main one.")] = None,
    tag: Annotated[str | None, typer.Option(help="A name for the commit, such as v1.")] = None,
    create_pr: Annotated[bool, typer.Option("--create-pr", help="Propose it as a pull request instead.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show files and card, and change nothing.")] = False,
) -> None:
    """Publish a checkpoint on the Hub, in one commit, after running it in a clean process.

    Refuses pickles, tokens and paths of this machine. What a person wrote in the repository's README.md stays. Log in
    first with `hf auth login`.

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
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if card and results differ.")] = False,
) -> None:
    """Write the model card of a checkpoint from the files of its run: example, numbers, data, recipe.

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
    typer.echo("The card agrees with the results of its run.")


DataOption = Annotated[
    str | None,
    typer.Option(metavar="FILE|NAME", help="The examples; by default the data set that the run read by name."),
]
SplitOption = Annotated[
    str | None,
    typer.Option(help="The split to evaluate; by default test, or validation for a language model."),
]
ColumnOption = Annotated[
    str | None,
    typer.Option("--column", "--text_column", "--image_column", help="The text or image column; by default guessed."),
]
LabelOption = Annotated[
    str | None,
    typer.Option("--label-column", "--label_column", help="The column of the class; by default guessed."),
]
SaveOption = Annotated[
    bool,
    typer.Option("--save", help="Write evaluation.json and the card, which then says: verified (folders only)."),
]


@app.command()
def evaluate(
    checkpoint: Annotated[
        str, typer.Argument(help="The folder of a classifier or causal language model, or its name on the Hub.")
    ],
    data: DataOption = None,
    split: SplitOption = None,
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit on the Hub.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples per forward pass.")] = 64,
    column: ColumnOption = None,
    label_column: LabelOption = None,
    tolerance: Annotated[
        float, typer.Option(min=0, help="Tolerance when comparing with the card; relative for numbers above 1.")
    ] = 0.001,
    save: SaveOption = False,
) -> None:
    """Measure a checkpoint again, and print its card's numbers beside the new ones.

    Exits with 1 if they differ although the data is the same. For TanhMax models it also prints the share of negative
    attention coefficients, and the accuracy or perplexity without them.

    \b
    hf-bidir evaluate runs/digits-tanhmax
    hf-bidir evaluate someone/sst2-tanhmax --revision v1 --data test.parquet
    """
    from transformers.utils import logging

    from hf_bidir.hub import evaluation
    from hf_bidir.hub.card_numbers import nearly_equal

    logging.disable_progress_bar()  # of loading the weights
    options = {"split": split, "batch_size": batch_size, "column": column, "label_column": label_column}
    with one_line_errors():
        if save and not Path(checkpoint).is_dir():
            raise ValueError(f"--save writes into a folder, and {checkpoint} is not one.")
        folder = evaluation.local_folder(checkpoint, revision)
        measured = evaluation.evaluate_checkpoint(folder, data, **options)
        claimed = evaluation.claimed_scores(folder, measured.split)
        same = evaluation.is_of_the_cards_data(folder, measured)
        if save:
            _save(measured, folder, may_save=same or not claimed)
    typer.echo(evaluation.comparison(measured, claimed, same))
    common = claimed.keys() & measured.scores.keys()
    if same and not all(nearly_equal(measured.scores[name], claimed[name], tolerance) for name in common):
        raise typer.Exit(1)


def _save(measured: "Evaluation", folder: Path, may_save: bool) -> None:
    """Write evaluation.json and the card.

    Raises:
        ValueError: the evaluation used other data than the card.
    """
    from hf_bidir.hub.model_card import write_card

    if not may_save:
        raise ValueError(
            f"according to run.json, the card's {measured.split} numbers were not measured on "
            f"{measured.data['source']}; --save takes only the card's own data. Nothing was written."
        )
    typer.echo(f"Written: {measured.save(folder)}, {write_card(folder)}", err=True)
