"""`hf-bidir demo`, `paper` and `rank-collapse`: experiments with signed attention."""

from pathlib import Path
from typing import Annotated

import typer

from hf_bidir.cli.app import app, one_line_errors


@app.command()
def demo(
    attn_activation: Annotated[str, typer.Option(help="tanhmax, softmax or tanh.")] = "tanhmax",
    seed: Annotated[int, typer.Option(help="Of the model's weights.")] = 0,
    output: Annotated[Path | None, typer.Option(help="The folder; by default runs/demo-text-ACTIVATION-SEED.")] = None,
) -> None:
    """Train a small model on synthetic texts, and show what its attention does with them.

    Two words of twelve decide the class. Nothing is downloaded.

    \b
    hf-bidir demo
    hf-bidir demo --attn-activation softmax
    """
    from hf_bidir.cli.text_demo import text_demo

    with one_line_errors():
        folder = output or Path(f"runs/demo-text-{attn_activation}-{seed}")
        typer.echo(text_demo(folder, attn_activation, seed))


@app.command()
def paper(
    experiments: Annotated[
        list[str] | None,
        typer.Argument(
            help="synthetic, synthetic-additive, sst, 20news, imdb, agnews; vit (Fashion-MNIST, CIFAR-10); multilayer "
            "(BERT and MiniLM on IMDB); texts, those with one attention layer; all, the default."
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="A folder with a sub-folder per data set (docs/paper.md lists them); without it the Hub."),
    ] = None,
    minilm: Annotated[
        Path | None, typer.Option(help="The folder of MiniLM, for multilayer; without it the Hub.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, help="From 0 on; the first one also chooses the learning rate. By default 5, or 1 if quick."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Little data, one learning rate: not for conclusions.")
    ] = False,
    as_published: Annotated[
        bool, typer.Option("--as-published", help="Also the paper's own training and evaluation, faults included.")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes, of one thread each.")] = 2,
    output: Annotated[Path | None, typer.Option(help="The folder; by default runs/paper, or runs/paper-quick.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on in a folder that holds a finished report.")] = False,
) -> None:
    """Run the TanhMax paper's experiments under a fair protocol, and write report.md with tables and pictures.

    Softmax, TanhMax, three λ in between, tanh and mean pooling, with the same architecture, learning-rate grid and
    validation selection; deep models with softmax and TanhMax alone. What is finished is not run again, so an
    interrupted run goes on by the same command; what fails is named in the report, and the rest goes on.

    \b
    hf-bidir paper synthetic sst --quick
    hf-bidir paper all --data-dir data --seeds 5
    """
    from hf_bidir.paper.experiments import experiment_names, only_in_folders, read_experiments
    from hf_bidir.paper.run import run_paper
    from hf_bidir.paper.settings import Settings

    root = output or Path("runs/paper-quick" if quick else "runs/paper")
    with one_line_errors():
        settings = Settings(root, data_dir, seeds or (1 if quick else 5), quick, jobs, as_published, minilm)
        wanted = read_experiments(experiment_names(experiments or ["all"]), minilm=minilm)
        for one in only_in_folders(wanted) if data_dir is None else []:
            if one.name not in (experiments or []):  # asked for by itself, it is an error
                typer.echo(
                    f"Left out: {one.name}, which is not on the Hub; --data-dir names a folder with it.", err=True
                )
                wanted.remove(one)
        report = run_paper(wanted, settings, resume)
    typer.echo(f"Written: {report}")


@app.command()
def rank_collapse(
    checkpoint: Annotated[str, typer.Argument(help="A folder, a name on the Hub, or timm:NAME; signed, or softmax.")],
    texts: Annotated[
        Path | None, typer.Option(help="A file with a text per line to measure on; random input without it.")
    ] = None,
    paths: Annotated[int, typer.Option(min=1, help="Random paths of every length.")] = 100,
    output: Annotated[Path, typer.Option(help="The picture to write; the ending chooses the format.")] = Path(
        "rank-collapse.png"
    ),
) -> None:
    """Measure how fast the tokens of a model become one, layer by layer, with parts of the layers left out.

    The relative residual is 0 where all tokens are equal. Softmax attention alone drives it to 0 with depth, skip
    connections keep it up (Dong et al. 2021); docs/rank_collapse.md says what TanhMax does, and why.

    \b
    hf-bidir rank-collapse google-bert/bert-base-uncased
    hf-bidir rank-collapse runs/sst2-tanhmax --texts reviews.txt --output tanhmax.png
    """
    from transformers.utils import logging

    from hf_bidir.rank_collapse.report import draw_rank_collapse, measure_checkpoint

    logging.disable_progress_bar()  # of loading the weights
    with one_line_errors():
        lines = None if texts is None else [line for line in texts.read_text(encoding="utf-8").splitlines() if line]
        if lines == []:
            raise ValueError(f"expected a text per line in {texts}; it has none.")
        measured = measure_checkpoint(checkpoint, lines, paths)
        draw_rank_collapse({Path(checkpoint).name: measured}, output)
    typer.echo(measured.table())
    typer.echo(f"Written: {output}")
