"""Explain predictions in one call: for a text, an image, a list or stream of them, or generated text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_bidir.checkpoints.kinds import kind_of, text_limit
from hf_bidir.explain.forward import ForwardCache, check_kind, reads_images, takes_embedding
from hf_bidir.explain.inputs.text import Example, Text, check_prompt, read_text, shortened, visible
from hf_bidir.explain.methods import sink_note
from hf_bidir.explain.prediction import at_token, predictions
from hf_bidir.explain.request import COEFFICIENTS, HEADS, Request, why_fast
from hf_bidir.explain.result import Alignment, Explanation, Explanations

ONE = str | Path | Image.Image


def explain(
    model: PreTrainedModel, processor: Any, inputs: ONE | Iterable[ONE], method: str | None = None, **choices: Any
) -> Explanation | Explanations | Alignment:
    """Explain the prediction for a text or an image, or for each of several; or the text that a model generates.

        explain(model, tokenizer, "a charming film with a weak ending", target="positive")
        explain(lm, tokenizer, "The capital of France is", target="Paris", instead_of="London")
        explain(lm, tokenizer, [{"role": "user", "content": "What is the capital of France?"}], new_tokens=20)
        explain(model, tokenizer, review, segments="sentences")
        explain(encoder, tokenizer, "a charming film", against="a lovely story")
        explain(translator, tokenizer, "This film is good.")  # an encoder-decoder

    Of a text that exceeds the limit of the model the beginning is explained, as a pipeline predicts it; a causal
    language model refuses it.

    Args:
        model: a signed model, with any negative mass; `hf_bidir.signed(model, negative_mass=0.0)` makes one of a
            softmax model, with the same outputs.
        processor: its tokenizer, or image processor.
        inputs: a text; the path of an image, or a PIL image; the messages of a conversation, as for
            `apply_chat_template`; or a list of such. `explain_each` takes a stream.
        method: a name of `METHODS`; None selects `default_method`. Encoder-decoders take contributions.
        choices: target, instead_of, position, layer, head, size, against, segments, continuation, new_tokens, figures,
            batch_size: the fields of `Request`.

    Returns:
        One `Explanation`, or `Explanations`, a list of them in the order of the inputs; for generated text its
        `Alignment` with the source. All show themselves in a notebook.

    Raises:
        ValueError: an empty list, a pair of texts (a tuple), inputs of another type, a prompt that is too long, an
            option that does not apply to the model, and as in `read_text`, `read_image` and `token_scores`; an error
            about one of several inputs begins with its index.
    """
    request = Request(method, **choices)
    if isinstance(inputs, ONE) or _is_conversation(inputs):
        model = request.model_within(model, processor)
        if model.config.is_encoder_decoder or request.generates:
            from hf_bidir.explain.generation import explain_generated

            return explain_generated(model, processor, parted(processor, inputs, request), request)
        return next(_explanations(model, processor, [read(model, processor, inputs, request)], request))
    inputs = list(_several(inputs))
    if not inputs:
        raise ValueError("expected at least one text or image, got an empty list.")
    explanations = explain_each(model, processor, inputs, method, **choices)
    short = len(inputs) <= request.batch_size
    return Explanations(tqdm(explanations, desc="explaining", total=len(inputs), leave=False, disable=short))


def explain_each(
    model: PreTrainedModel, processor: Any, inputs: Iterable[ONE], method: str | None = None, **choices: Any
) -> Iterator[Explanation]:
    """`explain`, one `Explanation` after the other, so that a data set need not fit in memory.

    Args:
        inputs: any iterable, such as a column of a streamed data set.
        choices: fields of `Request`, and the other arguments, as in `explain`.
    """
    request = Request(method, **choices)
    if request.generates:
        raise ValueError("expected a single prompt to continue, got a list; pass `explain` one text.")
    model = request.model_within(model, processor)
    rows = enumerate(_several(inputs))
    alone = reads_images(model) or request.figures or kind_of(model).per_token or not _pads(model, processor)
    while batch := list(islice(rows, 1 if alone else request.batch_size)):
        examples = []
        for index, text_or_image in batch:
            with _naming_input(index):
                examples.append(read(model, processor, text_or_image, request))
        with _naming_input(batch[0][0], known=len(batch) == 1):
            yield from _explanations(model, processor, examples, request)


@contextmanager
def _naming_input(index: int, known: bool = True) -> Iterator[None]:
    """Put the index of an input before an error about it, if it is known which one it is."""
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        if not known:
            raise
        raise type(error)(f"inputs[{index}]: {error}") from error


def _is_conversation(inputs: Any) -> bool:
    return isinstance(inputs, Sequence) and bool(inputs) and all(isinstance(part, Mapping) for part in inputs)


def parted(tokenizer: Any, text_or_image: Any, request: Request) -> Any:
    """A text with the parts that were asked for, a conversation as its chat template writes it, or an image.

    Raises:
        ValueError: segments of an image, and as in `conversation` and `segmented`.
    """
    chat = _is_conversation(text_or_image)
    if not chat and request.segments is None:
        return text_or_image
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ValueError("segments and conversations are for texts; an image has none.")
    from hf_bidir.explain.inputs.parts import conversation, segmented

    text = conversation(tokenizer, text_or_image) if chat else text_or_image
    return text if request.segments is None else segmented(text, request.segments)


def _several(inputs: Any) -> Iterable[ONE]:
    """The inputs. Raises ValueError unless they are a list or a stream; a tuple is a pair, and a table has columns."""
    is_table = getattr(inputs, "ndim", 1) != 1
    if is_table or isinstance(inputs, ONE | Mapping | tuple) or not isinstance(inputs, Iterable):
        raise ValueError(
            f"expected texts or images in a list or a stream, got a {type(inputs).__name__}; pass one column of a "
            "table. A tuple is a pair of texts, which cannot be explained yet. `explain` takes a single text or image "
            "too, and `token_scores` takes tokenized inputs."
        )
    return inputs


def _pads(model: PreTrainedModel, processor: Any) -> bool:
    """Whether texts of different lengths can form a batch: the tokenizer and the config have a padding token."""
    owners = processor, model.config.get_text_config()
    return all(getattr(owner, "pad_token_id", None) is not None for owner in owners)


def read(model: PreTrainedModel, processor: Any, text_or_image: Any, request: Request) -> Example:
    """The model inputs of a text or an image."""
    check_kind(type(model), model.config)
    if takes_embedding(model) and isinstance(text_or_image, str):
        text_or_image = model.prompt + text_or_image
    text = parted(processor, text_or_image, request)
    if reads_images(model):
        from hf_bidir.explain.inputs.image import read_image

        return read_image(model, processor, text, size=request.size)
    if request.size is not None:
        raise ValueError(f"size is for images; {type(model).__name__} takes texts.")
    if not isinstance(text, str | Text):
        raise ValueError(
            f"expected a text for {type(model).__name__}, got {type(text).__name__}; pass the text itself. "
            "Pairs of texts cannot be explained yet."
        )
    example = read_text(processor, text, text_limit(model, processor))
    if kind_of(model).causal:
        check_prompt(model, processor, example)
    return example


def _explanations(
    model: PreTrainedModel, processor: Any, examples: list[Example], request: Request
) -> Iterator[Explanation]:
    """The explanations of examples that run together."""
    kind = kind_of(model)
    if kind.per_token:
        request = at_token(model, processor, examples[0], request)
    cache = ForwardCache(model, *_batch(processor, examples))
    resolved = request.resolved(model, cache.passes)
    if resolved.entry.of_outputs and kind.causal and not request.figures:
        cache.layers = ()  # coefficients of a long prompt are large, and not needed
    note = "" if request.method else why_fast(resolved.method, cache.passes)
    predicted = predictions(cache, resolved, processor)

    def scores_by(choice: Request) -> Tensor:
        rows = cache if choice is resolved else ForwardCache(cache.model, cache.inputs, cache.units)
        return choice.entry.scores(rows, choice)

    scores, used, fallback = request.scores_or_default(resolved, scores_by)
    for example, prediction, row in zip(examples, predicted, scores, strict=True):
        by_token = example.by_token(row[: len(example.token_of_piece)].cpu(), used.entry.additive)
        sink = sink_note(str(used.method), example.tokens, example.special, by_token)
        notes = [*_lost(example, processor), fallback or note, sink]
        explanation = Explanation(
            **vars(prediction),
            example=example,
            method=str(used.method),
            layer=request.layer,
            head=request.head,
            scores=by_token,
            notes=list(filter(None, notes)),
        )
        yield _with_figures(explanation, cache, used) if request.figures else explanation


def _batch(processor: Any, examples: list[Example]) -> tuple[dict[str, Tensor], Tensor | None]:
    """The inputs of all examples, padded on the right, and the segments of their tokens."""
    inputs = examples[0].inputs
    if len(examples) > 1:
        rows = [{name: value[0] for name, value in example.inputs.items()} for example in examples]
        inputs = dict(processor.pad(rows, padding_side="right", return_tensors="pt"))
    units = None
    if examples[0].whole:
        units = pad_sequence([example.token_of_piece for example in examples], batch_first=True, padding_value=-1)
    return inputs, units


def _with_figures(explanation: Explanation, cache: ForwardCache, request: Request) -> Explanation:
    """The explanation with what was asked for beside the scores."""
    coefficients, heads = None, None
    if COEFFICIENTS in request.figures:
        from hf_bidir.explain.coefficients import head_of_query

        coefficients = head_of_query(cache, explanation.example, request)
    if HEADS in request.figures:
        from hf_bidir.explain.methods.contributions import head_contributions

        heads = head_contributions(cache, request)[0].sum(-1)
    return replace(explanation, coefficients=coefficients, heads=heads)


def _lost(example: Example, tokenizer: Any) -> list[str]:
    """A sentence each where a text was cut, and on the words for which the tokenizer has no piece."""
    notes = []
    if example.truncated:
        notes.append(f"The text is too long for the model; its last {example.truncated} word pieces were left out.")
    unknown = getattr(tokenizer, "unk_token_id", None)
    if unknown is not None and example.grid is None:
        read_as_unknown = example.inputs["input_ids"][0] == unknown
        places = example.token_of_piece[read_as_unknown].tolist()
        words = [visible(shortened(example.tokens[at])) for at in places if not example.special[at]]
        if words:
            named = ", ".join(dict.fromkeys(words))
            notes.append(f"Not, or not fully, in the vocabulary; the model reads {tokenizer.unk_token}: {named}.")
    return notes
