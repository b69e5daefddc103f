"""The scores of several predictions for one text, such as generated tokens or labels: a row for each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.kinds import SEVERAL_LABELS, kind_of
from hf_bidir.explain.forward import ForwardCache
from hf_bidir.explain.inputs.text import Example, percent, shortened, told_apart
from hf_bidir.explain.listing import Listing
from hf_bidir.explain.methods import scored, sink_note
from hf_bidir.explain.readout import predictions, readout_of
from hf_bidir.explain.registry import METHODS
from hf_bidir.explain.request import Request
from hf_bidir.explain.result import Result

IN_ROW = 5  # tokens in the row of a generated token
NO_VERDICT = "There is no verdict: it would need a single prediction, and each row is one."
OUTSIDE = "O"  # the label of a word without one
MOST = 32  # words in a table
TITLE = 200  # characters


@dataclass(frozen=True, eq=False, kw_only=True)
class Alignment(Result):
    """Generated tokens or other predictions, and for each of them a number per source token.

    Attributes:
        example: the source tokens; for a causal model, the prompt and all generated tokens but the last.
        written: the generated tokens in order, or the other predictions.
        row: what a row is of.
        explained: the generated text, or the predictions, in words.
        reading: what the first numbers are, in one sentence.
        scores: `[written, source]` by unit; the first one ranks.
        first_length: source tokens of the first row: all, or those of the prompt, and one more in each next row.
        probabilities: of the generated tokens, where known.
        listing: the tokens of the prompt of a causal model, with the sums of their first scores over all rows.
        sentences: of the prompt, where it has several, by name the first token.
    """

    is_generated: ClassVar = True

    example: Example
    written: list[str]
    explained: str
    reading: str
    scores: Mapping[str, Tensor]
    first_length: int
    row: str = "generated token"
    probabilities: Sequence[float] = ()
    listing: Listing | None = None
    sentences: Mapping[str, int] = field(default_factory=dict)

    @property
    def source(self) -> list[str]:
        """The names of the source tokens."""
        return self.example.tokens

    @property
    def grows(self) -> bool:
        """Whether a row also has the tokens that were generated before it."""
        return self.first_length < len(self.source)

    @property
    def rows(self) -> list[str]:
        """The generated tokens with their probabilities."""
        if not self.probabilities:
            return self.written
        return [f"{word} ({percent(share)})" for word, share in zip(self.written, self.probabilities, strict=True)]

    def row_of(self, scores: Tensor) -> Listing:
        """The source tokens with the scores of a row, `[source]`."""
        return Listing(self.source, scores, self.example.special, has_signs=METHODS[self.method].explains_output)

    def by_sentence(self) -> list[tuple[str, str, Listing]]:
        """The name, the sum as text and the tokens of each sentence of the prompt."""
        if self.listing is None:
            return []
        parted = replace(self.listing, texts=self.sentences)
        return [(name, part.number(part.shown.sum().item()), part) for name, part in parted.by_text()]

    def _findings(self) -> list[str]:
        """The sums of sentences, and a line per generated token with its strongest scores."""
        heading = "Largest magnitude first:"
        if self.grows:
            heading = "Each generated token, explained by the prompt │ by what was generated before it:"
        first_scores = next(iter(self.scores.values()))
        rows = [f"{shortened(word):>16}  {self._row(row)}" for word, row in zip(self.rows, first_scores, strict=True)]
        if not self.sentences:
            return [heading, *rows]
        sums = [f"{total:>8}  {name}" for name, total, _ in self.by_sentence()]
        return ["By sentence:", *sums, heading, *rows]

    def _row(self, scores: Tensor) -> str:
        """The source tokens of largest magnitude `[source]`, those of a prompt before those generated."""
        row = self.row_of(scores)
        prompt: list[str] = []
        generated: list[str] = []
        for index, (name, number) in zip(row.order(), row.strongest(IN_ROW), strict=False):
            part = prompt if index < self.first_length else generated
            part.append(f"{number} {name.strip()}")
        if generated:
            prompt.append("│")
        return "  ".join(prompt + generated)


def alignment_of(
    cache: ForwardCache, request: Request, *, y: str, summed: str = "", notes: Iterable[str] = (), **fields: Any
) -> Alignment:
    """The scores of several outputs for the example in a cache.

    Args:
        request: with a target and, if the model has an output for each token, a position for each row.
        y: what is explained in a row.
        summed: what the sums of the rows are of, if they are listed.
        notes: sentences before those on the scores.
        fields: others of `Alignment`.
    """
    scores, request, note = scored(cache, request)
    (example,), method = cache.examples, request.entry
    by_token = example.by_token(scores, method.additive)
    length = fields.setdefault("first_length", len(example.tokens))
    reading = method.caption(example.part, request.layer, request.head)
    if summed:
        sums = by_token.sum(0)[:length]
        special = example.special[:length]
        fields["listing"] = Listing(example.tokens[:length], sums, special, example.template, method.explains_output)
        reading += f", summed over the {summed}"
    if method.explains_output:
        reading += f"; y is {y}"
    no_verdict = NO_VERDICT if request.verdict else ""
    return Alignment(
        **fields,
        method=str(request.method),
        model=cache.model.config.name_or_path,
        example=example,
        reading=f"{reading}: {method.how_to_read}.",
        scores={method.unit: by_token},
        notes=list(filter(None, [*notes, *cache.notes[0], note, sink_note(request, example, by_token), no_verdict])),
    )


def outputs_of(cache: ForwardCache, request: Request) -> tuple[list[str], Request]:
    """What is explained of a text: a request for one output or several, and the words that they are of, if any.

    Of a tagger without a position the words with a label, or all where none has one; of a model with several labels and
    no target those above one half, or the largest one.
    """
    model, (example, *_) = cache.model, cache.examples
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
    cache: ForwardCache, processor: Any, request: Request, words: Sequence[str], notes: Iterable[str]
) -> Alignment:
    """A row of scores for each output of a request of `outputs_of`."""
    if request.details:
        raise ValueError("details are of a single prediction; choose one by target or position, or leave them out.")
    outputs = ModelOutput(logits=cache.outputs_alone.logits.expand(len(words), *cache.outputs_alone.logits.shape[1:]))
    readout = readout_of(cache, request, outputs)
    found = predictions(cache.model, processor, readout, outputs)
    rows = [f"{word}{prediction.shares}" for word, prediction in zip(words, found, strict=True)]
    return alignment_of(
        cache,
        replace(request, target=readout.targets),
        y="the logit of the label of a row",
        notes=notes,
        written=rows,
        row="prediction",
        explained=shortened(f"{len(rows)} predictions: {'; '.join(rows)}.", TITLE),
    )
