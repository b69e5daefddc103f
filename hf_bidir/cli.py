"""`hf-bidir`: one thin sub-command per capability."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

# the keys of hf_bidir.explain.METHODS, which is slow to import
METHOD_NAMES = (
    *("contributions", "erasure", "erasure-mask", "erasure-token", "gradient", "integrated-gradients"),
    *("signed-attention", "signed-rollout", "signed-flow", "attention", "rollout", "flow", "values"),
)
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback()
def main() -> None:
    """Signed attention for Hugging Face models."""


@app.command()
def convert(
    source: Annotated[
        str, typer.Argument(help="A folder or a name on the Hub, of any supported model; or timm:NAME, of a plain ViT.")
    ],
    output_dir: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write, new or empty.")],
    attn_activation: Annotated[str, typer.Option(help="The activation of the copy.")] = "tanhmax",
    negative_mass: Annotated[float, typer.Option(min=0, max=1, help="λ: 0 is softmax, 1 is TanhMax.")] = 0.0,
    weights: Annotated[Path | None, typer.Option(help="A file of weights for timm:NAME.")] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Accept models in which some attention stays softmax.")
    ] = False,
    to_softmax: Annotated[
        bool, typer.Option("--to-softmax", help="The way back: from λ = 0 to a stock model.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what OUT holds.")] = False,
) -> None:
    """Write a signed copy of a softmax checkpoint, with its tokenizer or processors.

    A folder of sentence-transformers stays one. At λ = 0, the default, the copy computes what the source computes: the
    outputs of both on random input are compared before anything is written. At λ > 0 they differ, and the difference
    is printed. training/distill.py then makes them nearly equal.

    \b
    hf-bidir convert FacebookAI/roberta-base runs/roberta-signed
    hf-bidir convert sentence-transformers/all-MiniLM-L6-v2 runs/minilm-signed
    hf-bidir convert timm:vit_tiny_patch16_224 runs/vit-signed --negative-mass 0.1
    hf-bidir convert runs/roberta-signed runs/roberta-stock --to-softmax
    """
    from hf_bidir.convert import convert_checkpoint, restore_softmax  # slow to import, so not for --help

    options = {
        "attn_activation": attn_activation,
        "negative_mass": negative_mass,
        "weights": weights,
        "partial": partial,
    }
    with one_line_errors():
        if to_softmax and list(options.values()) != ["tanhmax", 0.0, None, False]:
            raise ValueError("--to-softmax takes neither an activation, nor a negative mass, weights or --partial.")
        if to_softmax:
            restore_softmax(source, output_dir, overwrite=overwrite)
        else:
            convert_checkpoint(source, output_dir, overwrite=overwrite, **options)
    typer.echo(f"Written to {output_dir}")


@app.command()
def explain(
    checkpoint: Annotated[str, typer.Argument(help="A folder, a name on the Hub, or timm:NAME; signed, or softmax.")],
    text_or_image: Annotated[str, typer.Argument(metavar="TEXT|IMAGE", help="A text, or the file of an image.")],
    method: Annotated[str, typer.Option(help=f"One of: {', '.join(METHOD_NAMES)}.")] = "contributions",
    target: Annotated[
        str | None, typer.Option(help="The class or token to explain; by default the predicted one.")
    ] = None,
    layer: Annotated[
        int | None, typer.Option(help="This layer alone, counted from 0; for rollout and flow, up to it.")
    ] = None,
    head: Annotated[int | None, typer.Option(help="This head alone, counted from 0.")] = None,
    position: Annotated[
        int | None,
        typer.Option(help="For heads that answer per token: whose answer; by default that of [MASK], or the last."),
    ] = None,
    continuation: Annotated[
        str | None, typer.Option(help="For models that write on: explain each token of this text.")
    ] = None,
    new_tokens: Annotated[
        int | None, typer.Option(min=1, help="For models that write on: let it write so many tokens, and explain each.")
    ] = None,
    output: Annotated[Path, typer.Option(help="The folder for figures and page.")] = Path("explanation"),
    top: Annotated[int, typer.Option(min=1, help="How many tokens to print.")] = 10,
) -> None:
    """Show what speaks for and against an answer of a model, token by token.

    Prints the tokens with the largest signed scores, and writes scores.png, rollout-flow.png, heads.png and index.html,
    a page of its own with all of them. Positive scores speak for the target, negative ones against it; attention,
    rollout, flow and values have no sign and say how much, not what for. Patches are counted from row 0, column 0. A
    text that begins with a dash goes behind --.

    Of a model that writes on, such as Llama, the answer is the next token; --continuation and --new-tokens explain one
    token after the other, in alignment.png and on the page. A target is taken with the blank before it, as a word
    stands in a text. An encoder-decoder writes its own text, and shown is what every token of it took from
    yours; there --method, --target, --layer, --head, --position, --continuation and --new-tokens are refused.

    \b
    hf-bidir explain runs/digits-tanhmax runs/digits-tanhmax/digit.png       (after make demo)
    hf-bidir explain runs/sst2-tanhmax "not a good film, but the acting is a delight"
    hf-bidir explain runs/sst2-tanhmax "a dull film" --target negative --method erasure
    hf-bidir explain google/vit-base-patch16-224 cat.png --layer 11 --head 3
    hf-bidir explain HuggingFaceTB/SmolLM2-135M "The capital of France is" --target Paris
    hf-bidir explain runs/imdb-lm-tanhmax "The film was" --new-tokens 20
    hf-bidir explain runs/dates-rnn-tanhmax "the 5th of March 1998"
    """
    from transformers.utils import logging

    from hf_bidir.explain.report import explain_checkpoint, write_explanation  # slow to import, so not for --help

    logging.disable_progress_bar()  # of loading the weights
    chosen = {"target": target, "position": position, "layer": layer, "head": head}
    chosen |= {"continuation": continuation, "new_tokens": new_tokens}
    with one_line_errors():
        explanation = explain_checkpoint(checkpoint, text_or_image, method=method, **chosen)
        written = write_explanation(explanation, output)
    typer.echo(explanation.summary(top))
    typer.echo(f"Written: {', '.join(map(str, written))}")


@app.command()
def families(
    name: Annotated[str | None, typer.Argument(help="A model type of transformers, such as roberta.")] = None,
) -> None:
    """List the model types that can be signed, or say of one whether it can, what was checked, and if not, why.

    \b
    hf-bidir families
    hf-bidir families roberta
    """
    from hf_bidir.families import about, overview

    with one_line_errors():
        typer.echo(overview() if name is None else about(name))


@contextmanager
def one_line_errors() -> Iterator[None]:
    """What is wrong with the input becomes one line, and exit code 2."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error


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


@app.command()
def demo(
    text: Annotated[
        bool, typer.Option("--text", help="Texts; the only demo of this command (images: make demo).")
    ] = True,
    attn_activation: Annotated[str, typer.Option(help="tanhmax, softmax or tanh.")] = "tanhmax",
    seed: Annotated[int, typer.Option(help="Of the model's weights.")] = 0,
    output: Annotated[Path | None, typer.Option(help="The folder; by default runs/demo-text-ACTIVATION-SEED.")] = None,
) -> None:
    """Train a small model on synthetic texts, and show what its attention does with them.

    Two words of twelve decide the class. Nothing is downloaded.

    \b
    hf-bidir demo --text
    hf-bidir demo --text --attn-activation softmax
    """
    from hf_bidir.demo import text_demo

    with one_line_errors():
        folder = output or Path(f"runs/demo-text-{attn_activation}-{seed}")
        typer.echo(text_demo(folder, attn_activation, seed))


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

    from hf_bidir.analysis.rank_report import draw_rank_collapse, measure_checkpoint

    logging.disable_progress_bar()  # of loading the weights
    with one_line_errors():
        lines = None if texts is None else [line for line in texts.read_text(encoding="utf-8").splitlines() if line]
        if lines == []:
            raise ValueError(f"expected a text per line in {texts}; it has none.")
        measured = measure_checkpoint(checkpoint, lines, paths)
        draw_rank_collapse({Path(checkpoint).name: measured}, output)
    typer.echo(measured.table())
    typer.echo(f"Written: {output}")


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
    interrupted run goes on by the same command; what fails is named in the report, and the rest goes on. The
    experiments are those of training/paper/ in a clone of the repository; an installed package alone has not got them.

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
