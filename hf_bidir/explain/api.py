"""Explain predictions in one call: for a text, an image, a list or stream of them, or generated text."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_bidir.checkpoints.kinds import LONGEST_TEXT, kind_of, text_limit
from hf_bidir.explain.coefficients import head_of_query
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
from hf_bidir.explain.methods import (
    METHODS,
    check_method,
    default_method,
    passes_of,
    scores_by_default,
    sink_note,
    token_scores,
)
from hf_bidir.explain.record import Inputs, Record, SegmentedInputs, check_kind, model_within, reads_images
from hf_bidir.explain.result import Alignment, Explanation, Explanations
from hf_bidir.explain.target import (
    Contrast,
    Prediction,
    Target,
    batches,
    predictions,
    reads_beginning,
    takes_embedding,
    token_level,
)

UNKNOWN = 5  # unknown words in a note
ONE = str | Path | Image.Image
LONGEST_NAME = 255  # longest file name; longer texts cannot be files
IMAGE_NAME = re.compile(r"\S+\.(png|jpe?g|webp|gif|bmp|tiff?)", re.IGNORECASE)
HEADS, TRACED = "heads", ("rollout", "flow")  # figures beside the scores


def explain(
    model: PreTrainedModel,
    processor: Any,
    inputs: ONE | Iterable[ONE],
    method: str | None = None,
    *,
    target: int | str | None = None,
    instead_of: int | str | None = None,
    position: int | None = None,
    layer: int | None = None,
    head: int | None = None,
    size: int | None = None,
    against: str | None = None,
    continuation: str | None = None,
    new_tokens: int | None = None,
    segments: Segments | None = None,
    batch_size: int = 16,
    progress: bool = True,
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
        target: the class to explain in all inputs, by name or index, or a word for a language model; None selects the
            predicted class of each.
        instead_of: another class or word, with which the target is contrasted: y is the logit of the target minus that
            of this one.
        position, layer, head: as in `token_scores`. The default position is that of the mask for masked language
            models, and the last one for causal ones.
        size: for images, as in `read_image`.
        against: for sentence encoders, a second text: y is the similarity of the embeddings. Without it, y is the
            embedding's projection on its own direction.
        segments: score segments of the text in place of words: "sentences", "paragraphs", "messages" of a conversation,
            or a list of them, such as retrieved passages. Erasure removes a segment as a whole; of other methods the
            scores of its words are summed, or the largest one is taken, as for the pieces of a word.
        continuation, new_tokens: for causal language models, explain each token of a given continuation of one prompt,
            or of `new_tokens` generated tokens, as by `explain_continuation`.
        batch_size: texts, or windows of long texts, that run together.
        progress: show a progress bar for several inputs.

    Returns:
        One `Explanation`, or `Explanations`, a list of them in the order of the inputs; for generated text its
        `Alignment` with the source. All show themselves in a notebook.

    Raises:
        ValueError: an empty list, a pair of texts (a tuple), inputs of another type, a prompt that is too long, an
            option that does not apply to the model, and as in `read_text`, `read_image` and `token_scores`; an error
            about one of several inputs begins with its index.
    """
    options: dict[str, Any] = {"target": target, "instead_of": instead_of, "position": position, "layer": layer}
    options |= {"head": head, "size": size, "against": against, "segments": segments, "batch_size": batch_size}
    generation: dict[str, Any] = {"continuation": continuation, "new_tokens": new_tokens}
    if isinstance(inputs, ONE) or _is_conversation(inputs):
        return _explain_one(model, processor, inputs, method, **options, **generation)
    inputs = list(_checked(inputs))
    if not inputs or set(generation.values()) != {None}:
        expected = "a single prompt to continue" if inputs else "at least one text or image"
        raise ValueError(f"expected {expected}, got {'a list' if inputs else 'an empty list'}.")
    explanations = explain_each(model, processor, inputs, method, **options)
    hidden = not progress or len(inputs) <= batch_size
    return Explanations(tqdm(explanations, desc="explaining", total=len(inputs), leave=False, disable=hidden))


def explain_each(
    model: PreTrainedModel,
    processor: Any,
    inputs: Iterable[ONE],
    method: str | None = None,
    *,
    size: int | None = None,
    segments: Segments | None = None,
    batch_size: int = 16,
    **options: Any,
) -> Iterator[Explanation]:
    """`explain`, one `Explanation` after the other, so that a data set need not fit in memory.

    Args:
        inputs: any iterable, such as a column of a streamed data set.
        options: target, instead_of, position, layer, head, against; these and the other arguments are as in `explain`.
    """
    model, chosen = _chosen(model, processor, method, batch_size, **options)
    rows = enumerate(_checked(inputs))
    alone = reads_images(model) or not _pads(model, processor) or kind_of(model).per_token
    while batch := list(islice(rows, 1 if alone else batch_size)):
        examples = []
        for index, one in batch:
            with _naming_input(index):
                examples.append(read(model, processor, parted(processor, one, segments), size))
        with _naming_input(batch[0][0]) if alone else nullcontext():
            yield from _explain_batch(model, processor, examples, method, batch_size, **chosen)


def explain_checkpoint(
    source: str | Path | tuple[PreTrainedModel, Any],
    text_or_image: str | Sequence[Mapping[str, Any]],
    *,
    method: str | None = None,
    figures: Sequence[str] = (),
    **options: Any,
) -> Explanation | Alignment:
    """Explain the prediction of a checkpoint, signed or softmax, for a text or an image file.

    Args:
        source: as in `load_checkpoint`, or its result.
        figures: "heads", the contribution of each layer and head; "rollout" and "flow", whose time grows fast with the
            length.
        method, options: as in `explain`, such as target, layer and continuation.

    Raises:
        FileNotFoundError, ValueError: as in `load_checkpoint` and `explain`; a file for a text model, or an unknown
            figure.
    """
    for name in figures:
        if name not in (HEADS, *TRACED):
            raise ValueError(f"expected figures {', '.join((HEADS, *TRACED))}, got {name!r}.")
    if not isinstance(source, tuple):
        from hf_bidir.explain.inputs.checkpoint import load_checkpoint

        source = load_checkpoint(source)
    processor, model = source[1], model_within(*source)
    if isinstance(text_or_image, str) and not reads_images(model) and _is_file_name(text_or_image):
        raise ValueError(
            f"expected a text in quotation marks, got the file {text_or_image}; {type(model).__name__} takes the text "
            "itself."
        )
    return _explain_one(model, processor, text_or_image, method, figures=figures, **options)


def _explain_one(
    model: PreTrainedModel,
    processor: Any,
    text_or_image: Any,
    method: str | None,
    *,
    size: int | None = None,
    segments: Segments | None = None,
    continuation: str | None = None,
    new_tokens: int | None = None,
    batch_size: int = 16,
    figures: Sequence[str] | None = None,
    **options: Any,
) -> Explanation | Alignment:
    """The explanation of one input, with contributions of heads and `figures` if given, or the alignment of a text."""
    model, chosen = _chosen(model, processor, method, batch_size, **options)
    text_or_image = parted(processor, text_or_image, segments)
    generation = {"continuation": continuation, "new_tokens": new_tokens}
    if not model.config.is_encoder_decoder and set(generation.values()) == {None}:
        example = read(model, processor, text_or_image, size)
        return next(_explain_batch(model, processor, [example], method, batch_size, figures, **chosen))
    from hf_bidir.explain.generation import align, explain_continuation

    if model.config.is_encoder_decoder:
        _check_left_out(model, **chosen, size=size, **generation)
        return align(model, processor, text_or_image, method=method or "contributions")
    if not kind_of(model).causal:
        raise ValueError(f"{type(model).__name__} does not generate text; leave out continuation and new_tokens.")
    if None not in generation.values():
        raise ValueError("expected a continuation (a given text) or new_tokens (generate one), got both.")
    _check_left_out(model, target=chosen.pop("target"), position=chosen.pop("position"), size=size)
    following = {} if new_tokens is None else {"new_tokens": new_tokens}
    return explain_continuation(model, processor, text_or_image, continuation, method=method, **following, **chosen)


def _check_left_out(model: PreTrainedModel, **choices: Any) -> None:
    """Raise ValueError for options that do not apply to generated text."""
    if isinstance(contrast := choices.get("target"), Contrast):
        choices |= contrast._asdict()
    named = [name for name, value in choices.items() if value is not None]
    if named:
        what = "generated token" if model.config.is_encoder_decoder else "token that follows"
        raise ValueError(f"{type(model).__name__} is explained for each {what}; leave out {', '.join(named)}.")


def _chosen(
    model: Any, processor: Any, method: str | None, batch_size: int, *, target: Any = None, position: int | None = None,
    layer: int | None = None, head: int | None = None, against: str | None = None, instead_of: Any = None,
) -> tuple[PreTrainedModel, dict[str, Any]]:  # fmt: skip
    """The model, or the sentence encoder compared with the text `against`; and the other options, once checked."""
    model = model_within(model, processor)
    for one in (target, instead_of):
        if not isinstance(one, Integral | str | None):
            raise ValueError(f"expected one target for all inputs, a name or an index; got a {type(one).__name__}.")
    target = target if instead_of is None else Contrast(target, instead_of)
    if against is not None and not takes_embedding(model):
        raise ValueError(
            f"a second text is compared by sentence encoders: folders of sentence-transformers, as load_checkpoint "
            f"loads them; {type(model).__name__} is none. Leave out against."
        )
    if batch_size < 1:
        raise ValueError(f"expected a batch_size of at least 1, got {batch_size}.")
    check_method(method or default_method(model, layer, head), layer, head)
    model = model if against is None else model.compared_with(processor, against)
    return model, {"target": target, "position": position, "layer": layer, "head": head}


@contextmanager
def _naming_input(index: int) -> Iterator[None]:
    """Put the index of an input before an error about it."""
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        raise type(error)(f"inputs[{index}]: {error}") from error


def _is_file_name(text: str) -> bool:
    """Whether a text is the name of a file, or of an image that does not exist."""
    return len(text) < LONGEST_NAME and (Path(text).is_file() or IMAGE_NAME.fullmatch(text) is not None)


def _is_conversation(inputs: Any) -> bool:
    return isinstance(inputs, Sequence) and bool(inputs) and all(isinstance(one, Mapping) for one in inputs)


def parted(tokenizer: Any, given: Any, segments: Segments | None = None) -> Any:
    """A text with the parts that were asked for, a conversation as its chat template writes it, or an image.

    Raises:
        ValueError: segments of an image, and as in `conversation` and `segmented`.
    """
    text = conversation(tokenizer, given) if _is_conversation(given) else given
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


def read(model: PreTrainedModel, processor: Any, text_or_image: ONE, size: int | None = None) -> Example:
    """The model inputs of a text or an image; a text is cut only if the model reads the beginning of texts."""
    check_kind(type(model), model.config)
    if reads_images(model):
        from hf_bidir.explain.inputs.image import read_image

        return read_image(model, processor, text_or_image, size=size)
    if size is not None:
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


def _explain_batch(
    model: PreTrainedModel,
    processor,
    examples: list[Example],
    method: str | None,
    batch_size: int,
    figures: Sequence[str] | None = None,
    **chosen: Any,
) -> Iterator[Explanation]:
    """The explanations of examples whose windows run together; of a single one with `figures`, if they are given."""
    batch_size = batch_size if _pads(model, processor) else 1
    if len(examples) == 1:
        level = token_level(model, processor, examples[0], chosen["target"], chosen["position"])
        chosen |= dict(zip(("target", "position"), level, strict=True))
    windows = [_windows(model, processor, example) for example in examples]
    inputs, counts = _padded(processor, examples, windows), [len(own) for own in windows]
    # one forward pass serves the prediction, its scores and figures, unless no coefficients are needed, which are large
    used = method or default_method(model, chosen["layer"], chosen["head"], passes_of(model, inputs))
    drawn = figures is not None
    single = sum(counts) == 1 and (drawn or not METHODS[used].of_outputs)
    record = Record(model, inputs, kept=True, differentiable=drawn) if single else None
    parts: list[Inputs] = [record] if record else list(batches(inputs, batch_size))
    predicted = predictions(model, processor, parts, chosen["target"], chosen["position"], counts)
    scores, used, why = _scores(model, parts, method, batch_size, predicted, counts, chosen)
    about = [why] if why else []
    shares, layer, head = METHODS[used].explains_output, chosen["layer"], chosen["head"]
    for example, own, one, pieces in zip(examples, windows, predicted, scores.split(counts), strict=True):
        length = len(example.token_of_piece)
        by_token = example.by_token(merged(list(pieces), own, length, shares), METHODS[used].additive)
        sink = filter(None, [sink_note(used, example.tokens, example.special, by_token)])
        notes = [*_lost(example, processor), *note(own, shares), *about, *sink]
        explained = example, one.explained, used, layer, head, by_token, one.value, one.target, notes
        attended = None if record is None else head_of_query(record, example, chosen["position"], layer, head)
        explanation = Explanation(*explained, coefficients=attended, instead_of=one.instead_of)
        if explanation.little:
            notes.append(explanation.little)
        if figures is not None and record is not None:  # figures of one of several windows would be of another text
            explanation = _with_figures(explanation, record, figures, chosen)
        yield explanation


def _scores(
    model: PreTrainedModel,
    parts: Sequence[Inputs],
    method: str | None,
    batch_size: int,
    predicted: Sequence[Prediction],
    counts: Sequence[int],
    chosen: Mapping[str, Any],
) -> tuple[Tensor, str, str]:
    """Scores `[windows, length]` of the predictions, by parts; the method, and why it is not the usual default."""
    rows = [one.target for one, count in zip(predicted, counts, strict=True) for _ in range(count)]
    found, used, why = [], "", ""
    for start, part in enumerate(parts):
        own = rows[start * batch_size : (start + 1) * batch_size]
        explained = None if own[0] is None else torch.tensor(own)
        contrast = isinstance(chosen["target"], Contrast)
        target: Target = Contrast(explained, predicted[0].instead_of) if contrast else explained
        scores, used, why = scores_by_default(model, part, method, **{**chosen, "target": target})
        found.append(scores.cpu())
    return torch.cat(found), used, why


def _with_figures(
    explanation: Explanation, record: Record, figures: Sequence[str], chosen: Mapping[str, Any]
) -> Explanation:
    """The explanation with the contributions of heads, and the scores of rollout and flow, as far as asked for."""
    example, notes, traced, heads = explanation.example, list(explanation.notes), {}, None
    if HEADS in figures:
        from hf_bidir.explain.methods.contributions import contributions

        heads = contributions(record.model, record, chosen["target"], position=chosen["position"])[0].sum(-1)
    for name in (name for name in TRACED if name in figures):
        scores = example.by_token(token_scores(record.model, record, name, **chosen)[0], METHODS[name].additive)
        traced[name] = scores
        notes += filter(None, [sink_note(name, example.tokens, example.special, scores)])
    return replace(explanation, notes=notes, heads=heads, traced=traced)


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
