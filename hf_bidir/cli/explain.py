"""`hf-bidir explain`: evidence for and against a prediction."""

import json
import os
import re
import sys
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Context, Option, echo

from hf_bidir.common.errors import as_input_error
from hf_bidir.explain.registry import METHODS

from .app import app, running

FILE_NAME = re.compile(r"\S+\.(png|jpe?g|gif|bmp|tiff?|webp|txt|pdf|csv|tsv|jsonl?|parquet)", re.IGNORECASE)
MESSAGES = re.compile(r"\s*\[\s*\{")  # a list of them in JSON


@app.command()
def explain(
    context: Context,
    checkpoint: Annotated[str, Argument(help="Folder, Hub name or timm:NAME of a signed or softmax model.")],
    source: Annotated[
        str | None,
        Argument(metavar="TEXT|IMAGE|TABLE", help="A text, or the path of an image, or of a table of either."),
    ] = None,
    file: Annotated[str | None, Option(metavar="FILE", help="Read the text from a file; - is standard input.")] = None,
    method: Annotated[
        str | None,
        Option(help=f"{', '.join(METHODS)}; by default one for the model (docs/explanations.md)."),
    ] = None,
    target: Annotated[str | None, Option(help="Class or token to explain; by default the predicted one.")] = None,
    instead_of: Annotated[
        str | None, Option(help="Another class or token: explain why the target, and not this one.")
    ] = None,
    layer: Annotated[
        int | None, Option(help="Only this layer, counted from 0; rollout and flow: the layers up to it.")
    ] = None,
    head: Annotated[int | None, Option(help="Only this head, counted from 0.")] = None,
    position: Annotated[
        str | None,
        Option(
            help="Models with one prediction per token: a word, or the number of a token; by default [MASK] or the "
            "last one, and of taggers each word with a label."
        ),
    ] = None,
    continuation: Annotated[
        str | None, Option(help="Causal language models: explain each token of this continuation.")
    ] = None,
    new_tokens: Annotated[
        int | None, Option(min=1, help="Causal language models: generate this many tokens and explain each.")
    ] = None,
    text: Annotated[
        list[str] | None,
        Option(
            help="Second text of a pair, context of a question, or text for an image; several are choices of an "
            "answer, or classes of an image."
        ),
    ] = None,
    chat: Annotated[
        bool, Option("--chat", help="Chat models: TEXT is a message, or messages with roles in JSON.")
    ] = False,
    segments: Annotated[
        str | None, Option(help="Score sentences, paragraphs or messages (of a chat) in place of words.")
    ] = None,
    size: Annotated[
        int | None,
        Option(help="Images: use the whole image with this shorter side in pixels, instead of the usual crop."),
    ] = None,
    against: Annotated[str | None, Option(help="Sentence encoders: explain the similarity to this text.")] = None,
    column: Annotated[
        list[str] | None,
        Option(help="Tables: the column of texts, or of paths of images, by default text; twice for pairs."),
    ] = None,
    details: Annotated[
        bool, Option("--details", help="Add one head, and the contributions of all heads, to the page.")
    ] = False,
    as_json: Annotated[
        bool, Option("--json", help="Print the explanation as JSON, and nothing else; write no page.")
    ] = False,
    output: Annotated[Path, Option(help="Output folder for the page; for a table a new file, FILE.csv.")] = Path(
        "explanation"
    ),
    top: Annotated[int, Option(min=1, help="Number of tokens to list.")] = 10,
) -> None:
    """Explain a prediction: which tokens support or oppose it.

    Prints the scores of largest magnitude, what happens without the strongest words or patches, and whether a second
    method agrees; saves a page, index.html. A token with a positive score supports the target, one with a negative
    score opposes it. Patches are named by row and column, counted from 0. Of a text that exceeds the limit of a
    classifier the beginning is explained. Put -- before a text that begins with a dash.

    Causal language models such as Llama: --target and --instead-of explain why the next token is the one and not the
    other. With --continuation or --new-tokens every token of a text is explained, and the scores of the prompt are
    summed over them. With --chat, TEXT is put into the chat template of the tokenizer. A leading space is added to
    --target. Encoder-decoders: each generated token is explained by the input; of the options only --output, --top and
    --segments apply.
    Pairs of texts: --text is the second one. Question answering: TEXT is the question and --text its context; --target
    names another answer of the context. Multiple choice: --text for each choice; the best one is explained.
    Taggers, and models with several labels: each word with a label, or each label above 50 %, has a row of scores;
    --position WORD explains one word, and --target LABEL one of several labels.
    Models of an image and a text, such as CLIP, LLaVA and Qwen-VL: --text is the caption, or what is asked; of several
    captions the best one is explained. The image is scored in cells, the strongest in finer ones.
    Folders of sentence-transformers: the embedding is explained, pooled as the folder says, or with --against its
    similarity to a second text.

    A table (.csv, .tsv, .jsonl, .parquet) with --output FILE.csv gets one explanation per row, by the cheap method;
    --method erasure takes longer. FILE.csv has its columns, and the prediction, the explained class, y, the strongest
    words, the explanation as JSON, and for a row that cannot be explained the error (then the exit code is 1). An
    interrupted run continues; accelerate launch -m hf_bidir explain … divides the rows among processes.

    \b
    hf-bidir explain distilbert/distilbert-base-uncased-finetuned-sst-2-english "a charming film with a weak ending"
    hf-bidir explain HuggingFaceTB/SmolLM2-135M "The capital of France is" --target Paris --instead-of London
    hf-bidir explain HuggingFaceTB/SmolLM2-135M-Instruct "What is the capital of France?" --chat --new-tokens 10
    hf-bidir explain cross-encoder/ms-marco-MiniLM-L6-v2 "How large is Berlin?" --text "Berlin has 3.7 million people."
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
    is_table = output.suffix == ".csv"
    with running("explain", *(["train"] if is_table else [])):
        if is_table:
            if source is None or file or text or chat or as_json:
                raise ValueError("a table has its texts in columns; leave out --file, --text, --chat and --json.")
            if output.exists():
                raise ValueError(f"expected a new file for --output; {output} exists. Choose another, or move it away.")
            from .rows import explain_rows

            explain_rows(checkpoint, Path(source), column or ["text"], output, _choices(context), top)
            return
        inputs = _inputs(source, file, text, chat)  # an error in them is told before the slow imports
        from hf_bidir.explain.draw.page import check_page, write_explanation
        from hf_bidir.explain.draw.terminal import print_words

        if not as_json:
            check_page(output)  # refuses a folder of something else before an explanation, which may take minutes
        explanation = _explained(checkpoint, inputs, [source, *(text or [])], _choices(context))
        if as_json:
            echo(explanation.to_json())
            return
        written = write_explanation(explanation, output)
    prediction, _, others = explanation.summary(top).partition("\n")
    echo(prediction)
    print_words(explanation)
    echo(others)
    echo(f"Saved: {written}")


def _choices(context: Context) -> dict[str, Any]:
    """The options that were given, by the fields of `Request`."""
    from hf_bidir.explain.request import Request

    given = context.params
    return {field.name: given[field.name] for field in fields(Request) if given.get(field.name) is not None}


def _inputs(source: str | None, file: str | None, texts: list[str] | None, chat: bool) -> Any:
    """A text, messages or the path of an image; with a second text, or classes of an image, as a tuple."""
    if (source is None) == (file is None):
        raise ValueError("expected either a text (or the path of an image or a table) or --file with a text.")
    first: Any = source
    if file is not None:
        with as_input_error(f"expected a text in UTF-8 in {file}; cannot read it: ", ValueError, OSError):
            text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8-sig")
        first = text.rstrip("\r\n")
    if chat:
        with as_input_error("expected messages in JSON; cannot read them: "):
            first = json.loads(first) if MESSAGES.match(first) else [{"role": "user", "content": first}]
    if not texts:
        return first
    return first, texts if len(texts) > 1 else texts[0]


def _explained(checkpoint: str, inputs: Any, texts: list[str | None], choices: dict[str, Any]) -> Any:
    """The explanation; raises ValueError for the name of a file, which need not exist, among texts for a text model."""
    from transformers.utils import logging

    from hf_bidir.explain import explain, load_checkpoint

    logging.disable_progress_bar()  # for loading the weights
    echo(f"Loading {checkpoint} …", err=True)
    model, processor = load_checkpoint(checkpoint)
    for text in texts:
        exists = os.path.isfile(str(text))
        names_file = exists or FILE_NAME.fullmatch(str(text))
        if names_file and "pixel_values" not in signature(model.forward).parameters:
            missing = "" if exists else " that does not exist"
            raise ValueError(
                f"expected a text, got the name of a file{missing}, {text}; {type(model).__name__} is a model of "
                "texts, so pass the text, its file with --file, or for a table --output FILE.csv."
            )
    echo("Explaining …", err=True)
    return explain(model, processor, inputs, **choices)
