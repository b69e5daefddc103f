"""A question: with its context, in windows that a model can read, and with choices; and which answer is explained."""

from collections.abc import Sequence
from dataclasses import replace
from math import exp
from operator import itemgetter
from typing import Any

import torch
from transformers import PreTrainedModel

from ..forward import ForwardCache
from ..request import Request
from .text import Answer, Example, Text, encoded, example_of, offsets_of, percent, read_text, shortened, visible

LONGEST, OVERLAP = 30, 128  # tokens of an answer, and those that two windows share
WINDOWS = (
    "The context is longer than the model reads: of {} windows that overlap, the one with the answer is explained."
)


CHOSEN = "Explained is the most likely choice: {}; others: {}. A pair with the question explains another one."
Span = tuple[float, str, Example, list[int]]  # logarithm of its probability, text, window, first and last position


def read_question(model: PreTrainedModel, tokenizer: Any, text: Text, limit: int, request: Request) -> Example:
    """The window of a context that holds the most likely answer, or the target, with at most `limit` tokens.

    Raises:
        ValueError: no pair of a question and its context, a question that leaves no room for the context, or a target
            that is no span of the context.
    """
    if not text.pair or (request.position, request.instead_of) != (None, None):
        raise ValueError(
            f"expected a question and its context for {type(model).__name__}, as a tuple (--text CONTEXT); choose "
            "another answer by target alone."
        )
    asked = len(tokenizer(text.pair[0], add_special_tokens=False)["input_ids"])
    room = limit - asked - tokenizer.num_special_tokens_to_add(pair=True)
    if room < 2:
        raise ValueError(f"the question has {asked} tokens; with its context the model reads at most {limit}.")
    options = {"stride": min(OVERLAP, room // 2), "return_overflowing_tokens": True}
    encoding = encoded(tokenizer, text, truncation="only_second", max_length=limit, **options)
    count = len(encoding["input_ids"])
    spans = [span for row in range(count) for span in _spans(model, tokenizer, text, encoding, row)]
    best, *_ = spans = sorted(spans, key=itemgetter(0), reverse=True)
    if request.target is not None:
        spans = [span for span in spans if span[1] == request.target]
    if not spans:
        raise ValueError(
            f"expected a target that occurs in the context, of at most {LONGEST} tokens, got {request.target!r}."
        )
    _, written, window, positions = spans[0]
    texts = dict(zip(("question", "context"), window.texts.values(), strict=True))
    answer = Answer(visible(written), positions, visible(best[1]), exp(best[0]))
    return replace(window, texts=texts, answer=answer, notes=[WINDOWS.format(count)] if count > 1 else [])


def read_choice(model: PreTrainedModel, tokenizer: Any, texts: Sequence[Text], limit: int) -> Example:
    """The pair of a question and the choice with the largest logit, of pairs with each choice."""
    examples = [read_text(tokenizer, text, limit) for text in texts]
    logits = torch.cat([ForwardCache(model, example.inputs).outputs_alone.logits[0] for example in examples])
    shares = logits.float().softmax(0).tolist()
    choices = []
    for text, share in zip(texts, shares, strict=True):
        _, choice = text.pair
        choices.append(f'"{shortened(choice)}", {percent(share)}')
    best = int(logits.argmax())
    chosen = choices.pop(best)
    starts = dict(zip(("question", "choice"), examples[best].texts.values(), strict=True))
    return replace(examples[best], texts=starts, notes=[CHOSEN.format(chosen, "; ".join(choices))])


def _spans(model: PreTrainedModel, tokenizer: Any, text: Text, encoding: Any, row: int) -> list[Span]:
    """The spans of the context in a window."""
    window = example_of(tokenizer, text, encoding, row)
    outputs: Any = ForwardCache(model, window.inputs).outputs_alone
    logits = torch.stack([outputs.start_logits[0], outputs.end_logits[0]]).float()
    starts, ends = logits.log_softmax(-1).tolist()
    places = offsets_of(text, encoding, row)
    inside = [place for place, owner in enumerate(encoding.sequence_ids(row)) if owner == 1]
    spans = []
    for first in inside:
        for last in inside[first - inside[0] :][:LONGEST]:
            written = text.content[places[first][0] : places[last][1]].strip()
            spans.append((starts[first] + ends[last], written, window, [first, last]))
    return spans
