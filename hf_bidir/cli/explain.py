"""`hf-bidir explain`: what speaks for and against an answer."""

from pathlib import Path
from typing import Annotated

import typer

from hf_bidir.cli.app import app, one_line_errors

# the keys of hf_bidir.explain.METHODS, which is slow to import
METHOD_NAMES = (
    *("contributions", "erasure", "erasure-mask", "erasure-token", "gradient", "integrated-gradients"),
    *("signed-attention", "signed-rollout", "signed-flow", "attention", "rollout", "flow", "values"),
)


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

    from hf_bidir.explain.report import (  # slow to import, so not for --help
        explain_checkpoint,
        holds_explanation,
        write_explanation,
    )

    logging.disable_progress_bar()  # of loading the weights
    chosen = {"target": target, "position": position, "layer": layer, "head": head}
    chosen |= {"continuation": continuation, "new_tokens": new_tokens}
    with one_line_errors():
        replaces = holds_explanation(output)  # first, because an explanation may take minutes
        explanation = explain_checkpoint(checkpoint, text_or_image, method=method, **chosen)
        written = write_explanation(explanation, output)
    typer.echo(explanation.summary(top))
    told = f"Replaced the earlier explanation in {output}" if replaces else "Written"
    typer.echo(f"{told}: {', '.join(map(str, written))}")
