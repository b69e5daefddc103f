"""Several predictions for one text, each with a row of scores: the words of a tagger, or the labels that apply."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.kinds import SEVERAL_LABELS, kind_of
from hf_bidir.explain.alignment import NO_VERDICT, Alignment
from hf_bidir.explain.forward import ForwardCache
from hf_bidir.explain.generation import prediction_scores
from hf_bidir.explain.inputs.text import Example, shortened, told_apart
from hf_bidir.explain.methods import scored, sink_note
from hf_bidir.explain.readout import predictions, readout_of
from hf_bidir.explain.request import Request

OUTSIDE = "O"  # the label of a word without one
MOST = 32  # words in a table
TITLE = 200  # characters


def outputs_of(cache: ForwardCache, example: Example, request: Request) -> tuple[list[str], Request]:
    """What is explained of a text: a request for one output or several, and the words that they are of, if any.

    Of a tagger without a position the words with a label, or all where none has one; of a model with several labels and
    no target those above one half, or the largest one.
    """
    model = cache.model
    if kind_of(model).task == "token-classification" and request.position is None:
        firsts = torch.searchsorted(example.token_of_piece, torch.tensor(example.words))
        labels = cache.outputs_alone.logits[0].argmax(-1)[firsts].tolist()
        labelled = [place for place, label in enumerate(labels) if model.config.id2label[label] != OUTSIDE]
        listed = labelled or list(range(len(labels)))
        if len(listed) > MOST:
            cache.notes[0].append(
                f"Only the first {MOST} of {len(listed)} words have a row; choose others by position."
            )
        chosen, names = listed[:MOST], told_apart(example.tokens)
        return [f"{names[example.words[place]]}: " for place in chosen], replace(request, position=firsts[chosen])
    if model.config.problem_type == SEVERAL_LABELS and request.target is None and example.grid is None:
        (logits,) = cache.outputs_alone.logits
        labels = (logits >= logits.max().clamp(max=0)).nonzero().flatten()
        return [""] * len(labels), replace(request, target=labels)
    return [""], request


def table_of(
    cache: ForwardCache, processor: Any, example: Example, request: Request, words: Sequence[str], notes: Sequence[str]
) -> Alignment:
    """A row of scores for each output of a request of `outputs_of`."""
    if request.details:
        raise ValueError("details are of a single prediction; choose one by target or position, or leave them out.")
    outputs = ModelOutput(logits=cache.outputs_alone.logits.expand(len(words), *cache.outputs_alone.logits.shape[1:]))
    readout = readout_of(cache, request, outputs)
    found = predictions(cache.model, processor, readout, outputs)
    score = partial(prediction_scores, targets=readout.targets, positions=request.position)
    scores, used, note = scored(cache, request, score)
    method, by_token = used.entry, example.by_token(scores, used.entry.additive)
    rows = [f"{word}{prediction.shares}" for word, prediction in zip(words, found, strict=True)]
    y = "; y is the logit of the label of a row" if method.explains_output else ""
    no_verdict = NO_VERDICT if request.verdict else ""
    return Alignment(
        method=str(used.method),
        model=cache.model.config.name_or_path,
        source=example.tokens,
        special=example.special,
        written=rows,
        row="prediction",
        explained=shortened(f"{len(rows)} predictions: {'; '.join(rows)}.", TITLE),
        reading=f"{method.caption(example.part, request.layer, request.head)}{y}: {method.how_to_read}.",
        scores={method.unit: by_token},
        first_length=len(example.tokens),
        has_signs=method.explains_output,
        notes=list(filter(None, [*notes, *cache.notes[0], note, sink_note(used, example, by_token), no_verdict])),
    )
