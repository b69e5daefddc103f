"""`hf-bidir explain`: evidence for and against a prediction."""

import json
import os
import re
import sys
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_bidir.cli.app import app, running
from hf_bidir.common.errors import as_input_error
from hf_bidir.explain.registry import METHODS

FILE_NAME = re.compile(r"\S+\.(png|jpe?g|gif|bmp|tiff?|webp|txt|csv|json|pdf)", re.IGNORECASE)
TABLES = (".csv", ".tsv", ".jsonl", ".parquet")


@app.command()
def explain(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="Folder, Hub name or timm:NAME of a signed or softmax model.")
    ],
    source: Annotated[
        str | None,
        typer.Argument(metavar="TEXT|IMAGE|TABLE", help="A text, or the path of an image, or of a table of either."),
    ] = None,
    file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Read the text from a file; - is standard input.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(METHODS)}; by default one for the model (docs/explanations.md)."),
    ] = None,
    pair: Annotated[
        str | None,
        typer.Option(help="A second text, read together with the first: a hypothesis, a passage, a context."),
    ] = None,
    target: Annotated[str | None, typer.Option(help="Class or token to explain; by default the predicted one.")] = None,
    instead_of: Annotated[
        str | None, typer.Option(help="Another class or token: explain why the target, and not this one.")
    ] = None,
    layer: Annotated[
        int | None, typer.Option(help="Only this layer, counted from 0; rollout and flow: the layers up to it.")
    ] = None,
    head: Annotated[int | None, typer.Option(help="Only this head, counted from 0.")] = None,
    position: Annotated[
        str | None,
        typer.Option(
            help="Models with one prediction per token: a word, or the number of a token; by default [MASK] or the "
            "last one, and of taggers each word with a label."
        ),
    ] = None,
    continuation: Annotated[
        str | None, typer.Option(help="Causal language models: explain each token of this continuation.")
    ] = None,
    new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Causal language models: generate this many tokens and explain each.")
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(help="Models of an image and a text: the text or question; several are classes of an image."),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Chat models: TEXT is a message, or a .json file of messages with roles.")
    ] = False,
    segments: Annotated[
        str | None, typer.Option(help="Score sentences, paragraphs or messages (of a chat) in place of words.")
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(help="Images: use the whole image with this shorter side in pixels, instead of the usual crop."),
    ] = None,
    against: Annotated[str | None, typer.Option(help="Sentence encoders: explain the similarity to this text.")] = None,
    column: Annotated[str, typer.Option(help="Tables: the column of texts, or of paths of images.")] = "text",
    pair_column: Annotated[str | None, typer.Option(help="Tables: the column of the second text of each pair.")] = None,
    budget: Annotated[
        int | None,
        typer.Option(help="Forward passes per text up to which the default is erasure: 64, and for tables 0."),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Add one head, all heads, rollout and flow to the page.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the explanation as JSON, and nothing else; write no page.")
    ] = False,
    output: Annotated[
        Path, typer.Option(help="Output folder for the page; for a table a file, .csv or .jsonl.")
    ] = Path("explanation"),
    top: Annotated[int, typer.Option(min=1, help="Number of tokens to print.")] = 10,
) -> None:
    """Explain a prediction: which tokens support or oppose it.

    Prints the scores of largest magnitude, what happens without the strongest words or patches, and whether a second
    method agrees; saves a page, index.html. A token with a positive score supports the
    target, one with a negative score opposes it. Patches are named by row and column, counted from 0. Of a text that
    exceeds the limit of a classifier the beginning is explained. Put -- before a text that begins with a dash.

    Causal language models such as Llama: --target and --instead-of explain why the next token is the one and not the
    other. With --continuation or --new-tokens every token of a text is explained, and the scores of the prompt are
    summed over them. With --chat, TEXT is put into the chat template of the tokenizer. A leading space
    is added to --target. Encoder-decoders: each generated token is explained by the input; of the options only
    --output, --top and --segments apply.
    Question answering: TEXT is the question and --pair its context; --target names another answer of the context.
    Taggers, and models with several labels: each word with a label, or each label above 50 %, has a row of scores;
    --position WORD or --target LABEL explains one.
    Models of an image and a text, such as CLIP, LLaVA and Qwen-VL: --text is the caption, or what is asked; of several
    captions the best one is explained. The image is scored in cells, the strongest in finer ones.
    Folders of sentence-transformers: the embedding is explained, pooled as the folder says, or with --against its
    similarity to a second text.

    A table (.csv, .tsv, .jsonl, .parquet) gets one explanation per row, by the cheap method: --method erasure or
    --budget 64 takes longer. --output keeps its columns and adds the prediction, the explained class, y, the strongest
    words, the explanation as JSON, and for a row that cannot be explained the error (then the exit code is 1). An
    interrupted run continues; accelerate launch -m hf_bidir explain … divides the rows among processes.

    \b
    hf-bidir explain distilbert/distilbert-base-uncased-finetuned-sst-2-english "a charming film with a weak ending"
    hf-bidir explain HuggingFaceTB/SmolLM2-135M "The capital of France is" --target Paris --instead-of London
    hf-bidir explain HuggingFaceTB/SmolLM2-135M-Instruct "What is the capital of France?" --chat --new-tokens 10
    hf-bidir explain cross-encoder/ms-marco-MiniLM-L6-v2 "How large is Berlin?" --pair "Berlin has 3.7 million people."
    hf-bidir explain dslim/bert-base-NER "Anna lives in Paris" --position Paris
    hf-bidir explain HuggingFaceTB/SmolVLM-256M-Instruct cat.jpg --text "Which animal?" --target Cat --instead-of Dog
    hf-bidir explain google/vit-base-patch16-224 cat.jpg --size 448
    hf-bidir explain sentence-transformers/all-MiniLM-L6-v2 "a charming film" --against "a lovely story"
    hf-bidir explain model_cards/sst2-minilm-tanhmax "A dull film. I liked the end." --segments sentences
    hf-bidir explain model_cards/sst2-rnn-tanhmax "a charming film with a weak ending" --target positive
    hf-bidir explain model_cards/imdb-lm-tanhmax "The film was" --new-tokens 20
    hf-bidir explain model_cards/sst2-minilm-tanhmax --file review.txt --json > explanation.json
    hf-bidir explain model_cards/sst2-minilm-tanhmax reviews.csv --column text --output explained.csv
    hf-bidir explain runs/digits-tanhmax runs/digits-tanhmax/digit.png    (after: make demo)
    """
    choices = {
        "method": method,
        "target": target,
        "instead_of": instead_of,
        "position": int(position) if position and position.isdecimal() else position,
        "layer": layer,
        "head": head,
        "continuation": continuation,
        "new_tokens": new_tokens,
        "size": size,
        "against": against,
        "segments": segments,
        "budget": budget,
        "details": details,
    }
    chosen: dict[str, Any] = {name: value for name, value in choices.items() if value is not None}
    is_table = not chat and source is not None and _is_table(source)
    with running("explain", *(["train"] if is_table else [])):
        from transformers.utils import logging

        from hf_bidir.explain import api
        from hf_bidir.explain.draw.page import check_page, write_explanation
        from hf_bidir.explain.draw.terminal import print_words
        from hf_bidir.explain.inputs.checkpoint import load_checkpoint

        logging.disable_progress_bar()  # for loading the weights
        if is_table:
            if text or pair or file or as_json:
                raise ValueError("a table has its texts in columns; leave out --text, --pair, --file and --json.")
            columns = [column, pair_column] if pair_column else [column]
            _explain_rows(checkpoint, Path(str(source)), columns, output, chosen)
            return
        if not as_json:
            check_page(output)  # refuses a folder of something else before an explanation, which may take minutes
        text_or_image = _text(source, file)
        inputs: Any = _messages(text_or_image) if chat else text_or_image
        if text:
            inputs = {"image": text_or_image, "text": text}
        elif pair is not None:
            inputs = (inputs, pair)
        typer.echo(f"Loading {checkpoint} …", err=True)
        model, processor = load_checkpoint(checkpoint)
        for part in inputs if isinstance(inputs, tuple) else [inputs]:
            _check_no_file(model, part)
        typer.echo("Explaining …", err=True)
        explanation: Any = api.explain(model, processor, inputs, **chosen)
        if as_json:
            typer.echo(explanation.to_json())
            return
        written = write_explanation(explanation, output)
    prediction, _, others = explanation.summary(top).partition("\n")
    typer.echo(prediction)
    print_words(explanation)
    typer.echo(others)
    typer.echo(f"Saved{' with the details' if details else ''}: {written}")


def _is_table(source: str) -> bool:
    """Whether it is the name of a table, and not a text that ends with one."""
    return Path(source).suffix.lower() in TABLES and (" " not in source or os.path.isfile(source))


def _explain_rows(checkpoint: str, source: Path, columns: list[str], output: Path, choices: dict[str, Any]) -> None:
    """Explain each row of a table; exits with 1 if some cannot be explained."""
    from datasets import disable_progress_bars

    from hf_bidir.explain.inputs.checkpoint import load_checkpoint
    from hf_bidir.explain.request import Request
    from hf_bidir.explain.rows import Rows, explain_rows
    from hf_bidir.finetune.data.sources import read_table

    disable_progress_bars()  # of reading the table
    rows = Rows(source, read_table(str(source)), columns, output)
    rows.check()
    typer.echo(f"Loading {checkpoint} …", err=True)
    failed = explain_rows(*load_checkpoint(checkpoint), rows, Request(**{"budget": 0} | choices))
    if failed is None:  # another process writes the output
        return
    typer.echo(f"Saved: {output}")
    if failed:
        typer.echo(
            f"{failed:,} of {len(rows.table):,} rows could not be explained; their column error says why.", err=True
        )
        raise typer.Exit(1)


def _text(source: str | None, file: str | None) -> str:
    """The text, or the content of the file, without the line breaks at its end."""
    if (source is None) == (file is None):
        raise ValueError("expected either a text (or the path of an image or a table) or --file with a text.")
    if file is None:
        return str(source)
    text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8-sig")
    return text.rstrip("\r\n")


def _check_no_file(model: Any, text: Any) -> None:
    """Raise ValueError for the name of a file, which need not exist, where a text is expected."""
    takes_files = "pixel_values" in signature(model.forward).parameters
    if isinstance(text, str) and not takes_files and (os.path.isfile(text) or FILE_NAME.fullmatch(text)):
        raise ValueError(
            f"expected a text, got the file name {text}; {type(model).__name__} is a model of texts, so pass the text, "
            "or its file with --file."
        )


def _messages(text: str) -> list[dict[str, str]]:
    """The messages of a JSON file, or the text as the message of a user."""
    if not text.endswith(".json") or " " in text:
        return [{"role": "user", "content": text}]
    expected = f'expected a list of messages {{"role": "user", "content": "…"}} in {text}'
    with as_input_error(f"{expected}; it is no JSON: "):
        messages = json.loads(Path(text).read_text(encoding="utf-8"))
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ValueError(f"{expected}.")
    return messages
