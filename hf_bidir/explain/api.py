"""Explain predictions in one call: for a text, an image, a list or stream of them, or generated text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_bidir.checkpoints.kinds import LONGEST_TEXT, kind_of, text_limit
from hf_bidir.explain.coefficients import head_of_query
from hf_bidir.explain.forward import ForwardCache, SegmentedInputs, check_kind, passes_of, reads_images, takes_embedding
from hf_bidir.explain.inputs.parts import Parted, Segments, conversation, segmented
from hf_bidir.explain.inputs.text import (
    Example,
    check_prompt,
    merged,
    note,
    read_text,
    shortened,
    visible,
    window,
    windows_of,
)
from hf_bidir.explain.methods import METHODS, scores_by_default, scores_of, sink_note
from hf_bidir.explain.readout import Prediction, at_token, batches, predictions, reads_beginning
from hf_bidir.explain.request import HEADS, TRACED, Request
from hf_bidir.explain.result import Alignment, Explanation, Explanations

UNKNOWN = 5  # unknown words in a note
ONE = str | Path | Image.Image


def explain(
    model: PreTrainedModel,
    processor: Any,
    inputs: ONE | Iterable[ONE],
    method: str | None = None,
    *,
    progress: bool = True,
    **choices: Any,
) -> Explanation | Explanations | Alignment:
    """Explain the prediction for a text or an image, or for each of several; or the text that a model generates.

        explain(model, tokenizer, "a charming film with a weak ending", target="positive")
        explain(lm, tokenizer, "The capital of France is", target="Paris", instead_of="London")
        explain(lm, tokenizer, [{"role": "user", "content": "What is the capital of France?"}], new_tokens=20)
        explain(model, tokenizer, review, segments="sentences")
        explain(encoder, tokenizer, "a charming film", against="a lovely story")

    A text that exceeds the limit of the model is explained in overlapping windows, and y is the mean logit over them.
    Masked language models and sentence encoders see the beginning of the text, and a causal language model refuses it.
    An encoder-decoder is explained as by `align`.

    Args:
        model: a signed model, with any negative mass; `hf_bidir.signed(model, negative_mass=0.0)` makes one of a
            softmax model, with the same outputs.
        processor: its tokenizer, or image processor.
        inputs: a text; the path of an image, or a PIL image; the messages of a conversation, as for
            `apply_chat_template`; or a list of such. `explain_each` takes a stream.
        method: a name of `METHODS`; None selects `default_method`.
        progress: show a progress bar for several inputs.
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
        return _explain_single(model, processor, inputs, request)
    inputs = list(_checked(inputs))
    if not inputs or request.generates:
        expected = "a single prompt to continue" if inputs else "at least one text or image"
        raise ValueError(f"expected {expected}, got {'a list' if inputs else 'an empty list'}.")
    explanations = explain_each(model, processor, inputs, method, **choices)
    hidden = not progress or len(inputs) <= request.batch_size
    return Explanations(tqdm(explanations, desc="explaining", total=len(inputs), leave=False, disable=hidden))


def explain_each(
    model: PreTrainedModel, processor: Any, inputs: Iterable[ONE], method: str | None = None, **choices: Any
) -> Iterator[Explanation]:
    """`explain`, one `Explanation` after the other, so that a data set need not fit in memory.

    Args:
        inputs: any iterable, such as a column of a streamed data set.
        choices: fields of `Request`, without figures; these and the other arguments are as in `explain`.
    """
    request = replace(Request(method, **choices), figures=())
    model = request.model_within(model, processor)
    rows = enumerate(_checked(inputs))
    alone = reads_images(model) or not _pads(model, processor) or kind_of(model).per_token
    while batch := list(islice(rows, 1 if alone else request.batch_size)):
        examples = []
        for index, text_or_image in batch:
            with _naming_input(index):
                examples.append(read(model, processor, text_or_image, request))
        with _naming_input(batch[0][0]) if alone else nullcontext():
            yield from _Batch(model, processor, examples, request).explanations()


def _explain_single(model: Any, processor: Any, text_or_image: Any, request: Request) -> Explanation | Alignment:
    model = request.model_within(model, processor)
    if model.config.is_encoder_decoder or request.generates:
        from hf_bidir.explain.generation import explain_generated

        text = parted(processor, text_or_image, request.segments)
        return explain_generated(model, processor, text, request)
    example = read(model, processor, text_or_image, request)
    return next(_Batch(model, processor, [example], request).explanations())


@contextmanager
def _naming_input(index: int) -> Iterator[None]:
    """Put the index of an input before an error about it."""
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        raise type(error)(f"inputs[{index}]: {error}") from error


def _is_conversation(inputs: Any) -> bool:
    return isinstance(inputs, Sequence) and bool(inputs) and all(isinstance(part, Mapping) for part in inputs)


def parted(tokenizer: Any, text_or_image: Any, segments: Segments | None = None) -> Any:
    """A text with the parts that were asked for, a conversation as its chat template writes it, or an image.

    Raises:
        ValueError: segments of an image, and as in `conversation` and `segmented`.
    """
    text = conversation(tokenizer, text_or_image) if _is_conversation(text_or_image) else text_or_image
    if segments is None:
        return text
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ValueError("segments are for texts; leave them out for images.")
    return segmented(text, segments)


def _checked(inputs: Iterable[ONE]) -> Iterable[ONE]:
    """The inputs. Raises ValueError unless they are a list or a stream; a tuple is a pair."""
    if isinstance(inputs, tuple):
        raise ValueError(
            "expected texts or images in a list, got a tuple, which is a pair of texts; pairs cannot be explained yet. "
            "Pass a list to explain each text."
        )
    table = getattr(inputs, "ndim", 1) != 1  # a data frame or a tensor
    if table or isinstance(inputs, ONE | Mapping) or not isinstance(inputs, Iterable):
        raise ValueError(
            f"expected texts or images in a list or a stream, got a {type(inputs).__name__}; pass one column of a "
            "table. `explain` takes a single text or image too, and `token_scores` takes tokenized inputs."
        )
    return inputs


def _pads(model: PreTrainedModel, processor) -> bool:
    """Whether texts of different lengths can form a batch: the tokenizer and the config have a padding token."""
    return all(getattr(part, "pad_token_id", None) is not None for part in (processor, model.config.get_text_config()))


def read(model: PreTrainedModel, processor: Any, text_or_image: Any, request: Request) -> Example:
    """The model inputs of a text or an image; a text is cut only if the model reads the beginning of texts."""
    text_or_image = parted(processor, text_or_image, request.segments)
    check_kind(type(model), model.config)
    if reads_images(model):
        from hf_bidir.explain.inputs.image import read_image

        return read_image(model, processor, text_or_image, size=request.size)
    if request.size is not None:
        raise ValueError(f"size is for images; {type(model).__name__} takes texts.")
    if not isinstance(text_or_image, str):
        raise ValueError(
            f"expected a text for {type(model).__name__}, got {type(text_or_image).__name__}; pass the text itself. "
            "Pairs of texts cannot be explained yet."
        )
    text = text_or_image
    if takes_embedding(model):
        spelled = model.spelled(text)
        text = text.within(spelled) if isinstance(text, Parted) else spelled
    whole = reads_beginning(model) or not processor.is_fast
    example = read_text(processor, text, text_limit(model, processor) if whole else LONGEST_TEXT)
    if kind_of(model).causal:
        check_prompt(model, processor, example)
    return example


class _Batch:
    """Examples whose windows run together, of one request."""

    def __init__(self, model: PreTrainedModel, processor: Any, examples: list[Example], request: Request) -> None:
        self.model, self.processor, self.examples = model, processor, examples
        self.asked = at_token(model, processor, examples[0], request) if len(examples) == 1 else request
        self.size = request.batch_size if _pads(model, processor) else 1
        self.windows = [_windows(model, processor, example) for example in examples]
        self.inputs = _padded(processor, examples, self.windows)
        self.counts = [len(windows) for windows in self.windows]
        self.cache = self._shared_cache()

    def _shared_cache(self) -> ForwardCache | None:
        """One for the prediction, its scores and figures, unless no coefficients are needed, which are large."""
        if sum(self.counts) > 1:
            return None
        figures = bool(self.asked.figures)
        method = self.asked.with_method(self.model, passes_of(self.model, self.inputs)).method
        if METHODS[str(method)].of_outputs and not figures:
            return None
        return ForwardCache(self.model, self.inputs, shared=True, with_graph=HEADS in self.asked.figures)

    def _caches(self) -> Iterator[ForwardCache]:
        """The caches of parts that run together."""
        if self.cache is not None:
            yield self.cache
            return
        for part in batches(self.inputs, self.size):
            yield ForwardCache(self.model, part)

    def explanations(self) -> Iterator[Explanation]:
        predicted = predictions(self.processor, self._caches(), self.asked, self.counts)
        scored = self._scores(predicted)
        for index, pieces in enumerate(scored.scores.split(self.counts)):
            yield self._explanation(index, predicted[index], replace(scored, scores=pieces))

    def _scores(self, predicted: Sequence[Prediction]) -> "_Scores":
        """Scores `[windows, length]` of the predictions."""
        targets = [p.target for p, count in zip(predicted, self.counts, strict=True) for _ in range(count)]
        request = replace(self.asked, instead_of=predicted[0].instead_of)
        scores, method, why = [], "", ""
        for start, cache in enumerate(self._caches()):
            rows = targets[start * self.size : (start + 1) * self.size]
            part = replace(request, target=None if rows[0] is None else torch.tensor(rows))
            values, method, why = scores_by_default(cache, part)
            scores.append(values.cpu())
        return _Scores(torch.cat(scores), method, why)

    def _explanation(self, index: int, prediction: Prediction, scored: "_Scores") -> Explanation:
        example, windows, method = self.examples[index], self.windows[index], METHODS[scored.method]
        pieces = merged(list(scored.scores), windows, len(example.token_of_piece), method.explains_output)
        scores = example.by_token(pieces, method.additive)
        notes = [
            *_lost(example, self.processor),
            *note(windows, method.explains_output),
            scored.why,
            sink_note(scored.method, example.tokens, example.special, scores),
        ]
        explanation = Explanation(
            example=example,
            explained=prediction.explained,
            method=scored.method,
            layer=self.asked.layer,
            head=self.asked.head,
            scores=scores,
            value=prediction.value,
            target=prediction.target,
            instead_of=prediction.instead_of,
            notes=list(filter(None, notes)),
        )
        if explanation.little:
            explanation.notes.append(explanation.little)
        if self.cache is None:  # figures of one of several windows would be of another text
            return explanation
        return _with_figures(explanation, self.cache, replace(self.asked, target=prediction.target))


@dataclass(frozen=True)
class _Scores:
    scores: Tensor  # [windows, length]
    method: str
    why: str  # why it is not the usual default


def _with_figures(explanation: Explanation, cache: ForwardCache, request: Request) -> Explanation:
    """The explanation with the coefficients of a head, and the requested figures."""
    example, traced, heads = explanation.example, {}, None
    if HEADS in request.figures:
        from hf_bidir.explain.methods.contributions import head_contributions

        heads = head_contributions(cache, request)[0].sum(-1)
    for name in (name for name in TRACED if name in request.figures):
        scores = scores_of(cache, replace(request, method=name))[0]
        traced[name] = example.by_token(scores, METHODS[name].additive)
        if sink := sink_note(name, example.tokens, example.special, traced[name]):
            explanation.notes.append(sink)
    coefficients = head_of_query(cache, example, request)
    return replace(explanation, heads=heads, traced=traced, coefficients=coefficients)


def _windows(model: PreTrainedModel, processor, example: Example) -> list[Tensor]:
    """The positions of a text's windows; a single one for an image, and where only the beginning of a text is read."""
    if example.grid is not None or reads_beginning(model):
        return [torch.arange(len(example.token_of_piece))]
    return windows_of(example, text_limit(model, processor))


def _padded(processor, examples: list[Example], windows: list[list[Tensor]]) -> Mapping[str, Tensor]:
    """All windows of all examples as one batch, padded on the right, with the segments of their tokens."""
    if len(examples) == 1 and len(windows[0]) == 1:
        inputs = examples[0].inputs
    else:
        parts = [window(example, own) for example, some in zip(examples, windows, strict=True) for own in some]
        if len({len(part["input_ids"]) for part in parts}) == 1:  # needs no padding token
            inputs = {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
        else:
            inputs = dict(processor.pad(parts, padding_side="right", return_tensors="pt"))
    if not examples[0].whole:
        return inputs
    units = [example.token_of_piece[own] for example, some in zip(examples, windows, strict=True) for own in some]
    return SegmentedInputs(inputs, torch.nn.utils.rnn.pad_sequence(units, batch_first=True, padding_value=-1))


def _lost(example: Example, tokenizer) -> list[str]:
    """A sentence each where a text was cut, and on the words for which the tokenizer has no piece."""
    cut = f"The text is too long for the model; its last {example.truncated} word pieces were left out."
    notes = [cut] if example.truncated else []
    if "input_ids" not in example.inputs or (piece := getattr(tokenizer, "unk_token_id", None)) is None:
        return notes
    places = example.token_of_piece[example.inputs["input_ids"][0] == piece].tolist()
    words = list(dict.fromkeys(example.tokens[place] for place in places if not example.special[place]))
    named = ", ".join(visible(shortened(word)) for word in words[:UNKNOWN]) + ", …" * (len(words) > UNKNOWN)
    read = f"Not, or not fully, in the vocabulary; the model reads {tokenizer.unk_token}: {named}."
    return [*notes, read] if words else notes
