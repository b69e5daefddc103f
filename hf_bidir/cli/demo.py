"""`hf-bidir demo`, `paper` and `rank-collapse`: experiments with signed attention."""

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


@app.command()
def paper(
    experiments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="EXPERIMENTS",
            help="synthetic, synthetic-additive, sst, 20news, 20news-bydate, imdb, agnews (one attention layer; texts: "
            "all seven); vit (Fashion-MNIST, CIFAR-10); multilayer (BERT on IMDB); all, the default.",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder with one sub-folder per data set, listed in docs/paper.md; by default the Hub."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of seeds; the first three select the learning rate. By default 5, with --quick 1."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A trial run: little data, one learning rate.")] = False,
    as_published: Annotated[
        bool,
        typer.Option("--as-published", help="Also run the paper's own training and evaluation, with its known faults."),
    ] = False,
    all_rows: Annotated[
        bool, typer.Option("--all-rows", help="Use all rows of vit and multilayer, which otherwise sample some.")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Parallel processes, one thread each.")] = 2,
    output: Annotated[
        Path | None, typer.Option(help="Output folder; by default runs/paper, with --quick runs/paper-quick.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue in a folder with a finished report.")] = False,
) -> None:
    """Run the experiments of the TanhMax paper.

    Compares softmax, TanhMax, three values of λ in between, tanh and mean pooling with the same architecture,
    learning-rate grid and selection on validation data; deep models with softmax and TanhMax only. Saves report.md with
    tables and figures, and cells.csv with the numbers of every trained model. Finished parts are reused, so the same
    command resumes an interrupted run; failed parts are listed in the report.

    \b
    hf-bidir paper synthetic sst --quick
    hf-bidir paper all --data-dir data --seeds 5
    """
    with slow_imports("explain", "hub", "train"):
        from hf_bidir.paper.experiments import experiment_names, only_in_folders, read_experiments
        from hf_bidir.paper.run import run_paper
        from hf_bidir.paper.settings import Settings

    root = output or Path("runs/paper-quick" if quick else "runs/paper")
    with one_line_errors():
        settings = Settings(root, data_dir, seeds or (1 if quick else 5), quick, jobs, as_published, all_rows)
        wanted = read_experiments(experiment_names(experiments or ["all"]))
        for one in only_in_folders(wanted) if data_dir is None else []:
            if one.name not in (experiments or []):  # requested by name, it is an error
                typer.echo(f"Left out: {one.name} is not on the Hub; pass a folder with it as --data-dir.", err=True)
                wanted.remove(one)
        report = run_paper(wanted, settings, resume)
    typer.echo(f"Saved: {report}")


@app.command()
def rank_collapse(
    checkpoint: Annotated[
        str,
        typer.Argument(metavar="CHECKPOINT", help="Folder, Hub name or timm:NAME of a signed or softmax model."),
    ],
    texts: Annotated[
        Path | None, typer.Option(help="File with one text per line to measure on; by default random input.")
    ] = None,
    paths: Annotated[int, typer.Option(min=1, help="Number of random paths of each length.")] = 100,
    output: Annotated[Path, typer.Option(help="Output figure; the suffix sets the format.")] = Path(
        "rank-collapse.png"
    ),
) -> None:
    """Measure how similar a model's tokens become with depth.

    Prints and draws the relative residual after each layer, for the whole model and with parts of its layers removed;
    it is 0 where all tokens are equal. Softmax attention alone drives it to 0 with depth, skip connections prevent that
    (Dong et al. 2021). docs/rank_collapse.md has the results for TanhMax.

    \b
    hf-bidir rank-collapse google-bert/bert-base-uncased
    hf-bidir rank-collapse model_cards/sst2-minilm-tanhmax --texts reviews.txt --output tanhmax.png
    """
    with slow_imports("explain"):
        from transformers.utils import logging

        from hf_bidir.rank_collapse.report import draw_rank_collapse, measure_checkpoint

    logging.disable_progress_bar()  # for loading the weights
    with one_line_errors():
        lines = None if texts is None else [line for line in texts.read_text(encoding="utf-8").splitlines() if line]
        if lines == []:
            raise ValueError(f"expected one text per line in {texts}; the file is empty.")
        measured = measure_checkpoint(checkpoint, lines, paths)
        draw_rank_collapse({Path(checkpoint).name: measured}, output)
    typer.echo(measured.table())
    typer.echo(f"Saved: {output}")
