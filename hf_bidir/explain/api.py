"""Explain predictions in one call: for a text, a pair, an image, a list or stream of them, or generated text."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from PIL import Image
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import PreTrainedModel

from hf_bidir.checkpoints.kinds import SEVERAL_LABELS, kind_of, takes_one_row, text_limit
from hf_bidir.common.files import RECORD, read_json

from .alignment import Alignment, outputs_of, table_of
from .forward import (
    AnyCache,
    ForwardCache,
    chooses_text,
    names_tokens,
    reads_image_text,
    reads_images,
    takes_embedding,
    translates,
)
from .generation import answer_of, continued, translated
from .image_text_cache import ImageTextCache
from .inputs.image import read_image
from .inputs.image_text import ImageText, read_image_text
from .inputs.parts import conversation, segmented
from .inputs.questions import read_choice, read_question
from .inputs.text import Example, Text, check_prompt, read_tensors, read_text, shortened, visible
from .methods import scored, sink_note
from .readout import predictions, readout_of
from .request import Request
from .result import Explanation, Explanations
from .verdict import OPPOSITE, baseline_note, verdict_of

ONE = str | Path | Image.Image | tuple | Mapping


def explain(
    model: PreTrainedModel, processor: Any, inputs: ONE | Iterable[ONE], method: str | None = None, **choices: Any
) -> Explanation | Explanations | Alignment:
    """Explain the prediction for a text, a pair of texts or an image, or for each of several; or generated text.

        explain(model, tokenizer, "a charming film with a weak ending", target="positive")
        explain(lm, tokenizer, "The capital of France is", target="Paris", instead_of="London")
        explain(lm, tokenizer, [{"role": "user", "content": "What is the capital of France?"}], new_tokens=20)
        explain(model, tokenizer, review, segments="sentences")
        explain(model, tokenizer, ("A man sleeps.", "Nobody is awake."))  # a pair of texts
        explain(model, tokenizer, tokenizer("a charming film", return_tensors="pt"))
        explain(encoder, tokenizer, "a charming film", against="a lovely story")
        explain(clip, processor, ("photo.jpg", "a red car"))  # an image with a text, or with a list of classes
        explain(chooser, tokenizer, ("Where do fish live?", ["in trees", "in water"]))  # a question and its choices
        explain(translator, tokenizer, "This film is good.")  # an encoder-decoder

    Of a text that exceeds the limit of the model the beginning is explained, as a pipeline predicts it; a causal
    language model refuses it.

    Args:
        model: a model of transformers, or a signed one with any negative mass; it is the same afterwards.
        processor: its tokenizer, image processor, or processor of both.
        inputs: a text; a pair of texts, or a question with a list of choices, as a tuple; the path of an image, or a
            PIL image; the messages of a conversation, as for `apply_chat_template`; a row of tensors, as the tokenizer
            returns it, whose pieces get a score each; or a list of these, each explained as it is alone, by default
            without a verdict: verdict=True adds one. `explain_each` takes a stream.
        method: a name of `METHODS`; None selects `default_method`. Encoder-decoders take contributions.
        choices: target, instead_of, position, layer, head, size, against, segments, continuation, new_tokens, details,
            verdict, budget, batch_size: the fields of `Request`.

    Returns:
        One `Explanation`, or `Explanations`, a list of them in the order of the inputs; for generated text its
        `Alignment` with the source, and for the words of a tagger, or several labels that apply, one with a row for
        each. All show themselves in a notebook.

    Raises:
        ValueError: an empty list, inputs of another type, a prompt that is too long, an option that does not apply to
            the model, and as in `read_text`, `read_image` and `token_scores`; an error about one of several inputs
            begins with its index.
    """
    if isinstance(inputs, ONE) or _is_conversation(inputs):
        request = Request(method, **{"verdict": True} | choices)
        with request.checked(model, processor) as model:
            example = read(model, processor, inputs, request)
            if (translates(model) or request.generates) and not isinstance(example, ImageText):
                generated = translated if translates(model) else continued
                return generated(model, processor, example, request)
            return next(_explanations(model, processor, [example], request))
    inputs = list(_several(inputs))
    if not inputs:
        raise ValueError("expected at least one text or image, got an empty list.")
    explanations = explain_each(model, processor, inputs, method, **{"budget": Request.budget} | choices)
    return Explanations(tqdm(explanations, desc="explaining", total=len(inputs), leave=False, delay=1))


def explain_each(
    model: PreTrainedModel, processor: Any, inputs: Iterable[ONE], method: str | None = None, **choices: Any
) -> Iterator[Explanation | Alignment]:
    """`explain`, one `Explanation` after the other, so that a data set need not fit in memory.

    The default method is the cheap one, as notes say; budget=64 gives that of a single text, without batches.

    Args:
        inputs: any iterable, such as a column of a streamed data set.
        choices: fields of `Request`, and the other arguments, as in `explain`.
    """
    request = Request(method, **{"budget": 0} | choices)
    with request.checked(model, processor) as model:
        for index, outcome in enumerate(outcomes(model, processor, _several(inputs), request)):
            if isinstance(outcome, Exception):
                raise type(outcome)(f"inputs[{index}]: {outcome}") from outcome
            yield outcome


def outcomes(
    model: PreTrainedModel, processor: Any, inputs: Iterable[ONE], request: Request
) -> Iterator[Explanation | Alignment | Exception]:
    """For each input its explanation, or the error about it.

    Args:
        model: as `request.checked` yields it.
    """
    if request.generates:
        raise ValueError("expected a single prompt to continue, got a list; pass `explain` one text.")
    stream = iter(inputs)
    by_length = request.method is None and request.budget  # the default method of each text
    alone = request.details or request.verdict or by_length or not _forms_batches(model, processor)
    while batch := list(islice(stream, 1 if alone else request.batch_size)):
        examples = [_or_error(read, model, processor, each, request) for each in batch]
        readable = [example for example in examples if isinstance(example, Example)]
        explained = _explanations(model, processor, readable, request) if readable else iter(())
        for example in examples:
            if isinstance(example, Exception):
                yield example
            else:
                yield _or_error(next, explained) if alone else next(explained)


def _or_error(function: Callable, *arguments: Any) -> Any:
    """What a function returns, or its error about an input."""
    try:
        return function(*arguments)
    except (ValueError, FileNotFoundError) as error:
        return error


def _forms_batches(model: PreTrainedModel, processor: Any) -> bool:
    """Whether texts of different lengths form a batch: the tokenizer pads, and the model has one output per text."""
    pads = getattr(processor, "pad_token_id", None) is not None
    several = kind_of(model).per_token or model.config.problem_type == SEVERAL_LABELS
    return pads and not takes_one_row(model) and not several


def _is_conversation(inputs: Any) -> bool:
    """Whether these are messages; a list of images with texts, or of tensors, is none."""
    messages = isinstance(inputs, Sequence) and bool(inputs) and all(isinstance(part, Mapping) for part in inputs)
    return messages and not any(part.keys() & {"image", "input_ids"} for part in inputs)


def text_of(model: PreTrainedModel, tokenizer: Any, given: Any, request: Request) -> Text:
    """A text, a pair or a conversation, with the segments that were asked for.

    Raises:
        ValueError: something else, or a pair for a model of single texts.
    """
    name, embeds = type(model).__name__, takes_embedding(model)
    match given:
        case str() if not chooses_text(model):
            text = Text(model.prompt + given if embeds else given)
        case [str(first), str(second)]:
            text = Text.of_texts(first, second)
        case _ if _is_conversation(given):
            text = conversation(tokenizer, given)
        case _:
            got = shortened(repr(given))
            texts = "a question and its choices" if chooses_text(model) else "a text"
            raise ValueError(f"expected {texts} for {name}, or a pair of texts as a tuple (one --text); got {got}.")
    if text.pair and (embeds or translates(model) or kind_of(model).causal):
        raise ValueError(
            f"{name} reads one text, not a pair (--text); sentence encoders compare it by against (--against)."
        )
    return text if request.segments is None else segmented(text, request.segments)


def _several(inputs: Any) -> Iterable[ONE]:
    """The inputs. Raises ValueError unless they are a list or a stream; a tuple is a pair, and a table has columns."""
    columns: Any = getattr(inputs, "column_names", getattr(inputs, "columns", None))
    is_table = columns is not None or getattr(inputs, "ndim", 1) != 1
    if is_table or isinstance(inputs, ONE) or not isinstance(inputs, Iterable):
        named = f": {', '.join(map(str, columns))}" if columns is not None else ""
        raise ValueError(
            f"expected texts, pairs or images in a list or a stream, got a {type(inputs).__name__}; pass one column of "
            f"a table{named}, and tensors as the tokenizer returns them, by name. `explain` takes a single one too."
        )
    return inputs


def read(model: PreTrainedModel, processor: Any, given: Any, request: Request) -> Example:
    """The model inputs of a text, an image, or an image with a text."""
    if reads_image_text(model):
        return read_image_text(model, processor, given)
    if reads_images(model):
        return read_image(model, processor, given, size=request.size)
    example = _read_text(model, processor, given, request)
    return replace(example, notes=[*example.notes, *_lost(example, processor)])


def _read_text(model: PreTrainedModel, tokenizer: Any, given: Any, request: Request) -> Example:
    """The model inputs of a text, a pair, a conversation or tensors."""
    answers = kind_of(model).task == "question-answering"
    if isinstance(given, Mapping) and not answers:
        if request.segments is not None:
            raise ValueError("segments are parts of a text; pass the text, and not its tensors.")
        return read_tensors(tokenizer, given)
    limit = text_limit(model, tokenizer)
    match given:
        case (question, [_, _, *_] as choices) if chooses_text(model):
            pairs = [text_of(model, tokenizer, (question, choice), request) for choice in choices]
            return read_choice(model, tokenizer, pairs, limit)
    text = text_of(model, tokenizer, given, request)
    if answers:
        return read_question(model, tokenizer, text, limit, request)
    example = read_text(tokenizer, text, limit)
    if kind_of(model).causal:
        check_prompt(model, tokenizer, example)
    return example


def _explanations(
    model: PreTrainedModel, processor: Any, examples: list[Example], request: Request
) -> Iterator[Explanation | Alignment]:
    """The explanations of examples that run together."""
    tokenizer = getattr(processor, "tokenizer", processor)
    if kind_of(model).per_token or names_tokens(model):
        request = request.at_token(model, tokenizer, examples[0])
    cache: AnyCache = _cache_of(model, processor, examples, request)
    if request.generates:
        yield answer_of(cache, tokenizer, request)
        return
    words, request = outputs_of(cache, request)
    if len(words) > 1:
        yield table_of(cache, tokenizer, request, words)
        return
    scores, request, note = scored(cache, request)
    readout = readout_of(cache, request, cache.outputs_alone)
    predicted = predictions(cache.model, tokenizer, readout, cache.outputs_alone)
    for index, (example, prediction) in enumerate(zip(cache.examples, predicted, strict=True)):
        row = scores[index, : len(example.token_of_piece)].cpu()
        by_token = example.by_token(row, request.entry.additive)
        notes = [*example.notes, note, sink_note(request, example, by_token), *cache.notes[index]]
        judged = request.verdict and len(example.words) > 1
        if request.verdict:
            notes.append(baseline_note(cache, request, tokenizer))
            notes.append("" if judged else "A single word, segment or patch has no verdict.")
        more = _details(cache, example, request) if request.details else {}
        explanation = Explanation(
            **vars(prediction) | {"explained": f"{words[0]}{prediction.explained}"},
            example=example,
            method=str(request.method),
            model=model.config.name_or_path,
            layer=request.layer,
            head=request.head,
            scores=by_token,
            notes=list(filter(None, notes)),
            **more,
        )
        if judged:
            explanation = replace(explanation, verdict=verdict_of(cache, request, tokenizer, explanation))
            explanation.notes.extend(note for note in cache.notes[index] if note not in notes)
        elif explanation.is_opposite:
            explanation.notes.append(OPPOSITE)
        yield explanation


def _cache_of(
    model: PreTrainedModel, processor: Any, examples: list[Example], request: Request
) -> ForwardCache | ImageTextCache:
    """The cache of examples, padded on the right, with the word or segment of each token of texts."""
    example, *others = examples
    if isinstance(example, ImageText):
        return ImageTextCache(model, example, request.new_tokens)
    inputs, units = example.inputs, None
    if others:
        rows = [{name: value[0] for name, value in each.inputs.items()} for each in examples]
        inputs = processor.pad(rows, padding_side="right", return_tensors="pt")
    if example.grid is None:
        units = pad_sequence([each.token_of_piece for each in examples], batch_first=True, padding_value=-1)
    return ForwardCache(model, inputs, units, examples)


def _details(cache: ForwardCache, example: Example, request: Request) -> dict[str, Any]:
    """What a page folds, by name."""
    from .coefficients import head_of_query
    from .methods.contributions import head_contributions

    return {
        "coefficients": head_of_query(cache, example, request),
        "heads": head_contributions(cache, request)[0].sum(-1),
    }


def _lost(example: Example, tokenizer: Any) -> list[str]:
    """A sentence each where a text was cut, or is longer than those of the training, and on words without a piece."""
    notes = []
    if example.truncated:
        of_pair = ", of the longer text and then of both" if len(example.texts) > 1 else ""
        notes.append(f"Too long for the model: the last {example.truncated} word pieces were left out{of_pair}.")
    length, folder = len(example.token_of_piece), tokenizer.name_or_path  # "" of a tokenizer built in memory
    match read_json(Path(folder, RECORD)) if folder else {}:
        case {"recipe": {"max_length": int(longest)}} if length > longest:
            notes.append(f"The text has {length} word pieces; the model was trained on at most {longest}.")
    if tokenizer.unk_token_id is not None:
        places = example.token_of_piece[example.inputs["input_ids"][0].cpu() == tokenizer.unk_token_id].tolist()
        words = [visible(shortened(example.tokens[at])) for at in places if not example.special[at]]
        if words:
            named = ", ".join(dict.fromkeys(words))
            notes.append(f"Not, or not fully, in the vocabulary; the model reads {tokenizer.unk_token}: {named}.")
    return notes
