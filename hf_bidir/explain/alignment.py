"""Several predictions for one text, a row of scores for each: generated tokens, the words of a tagger, or labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.kinds import SEVERAL_LABELS, kind_of

from .forward import AnyCache, ForwardCache
from .inputs.text import percent, shortened, told_apart
from .listing import Listing
from .methods import scored, sink_note
from .readout import predictions, readout_of
from .request import Request
from .result import Result

IN_ROW = 5  # tokens in the row of a generated token
NO_VERDICT = "There is no verdict: it would need a single prediction, and each row is one."
OUTSIDE = "O"  # the label of a word without one
MOST = 32  # words in a table
TITLE = 200  # characters


@dataclass(frozen=True, eq=False, kw_only=True)
class Alignment(Result):
    """Generated tokens or other predictions, and for each of them a number per source token.

    Attributes:
        written: the generated tokens in order, or the other predictions.
        row: what a row is of.
        explained: the generated text, or the predictions, in words.
        reading: what the first numbers are, in one sentence.
        scores: `[written, source]` by unit; the first one ranks.
        first_length: source tokens of the first row: all, or those of the prompt, and one more in each next row.
        probabilities: of the generated tokens, where known.
        summed: whether the sums over the rows are scores of the source, as for a prompt.
        sentences: of the prompt, where it has several, by name the first token.
    """

    is_generated: ClassVar = True

    written: list[str]
    explained: str
    reading: str
    scores: Mapping[str, Tensor]
    first_length: int
    row: str = "generated token"
    probabilities: Sequence[float] = ()
    summed: bool = False
    sentences: Mapping[str, int] = field(default_factory=dict)

    @property
    def source(self) -> list[str]:
        """The source tokens; for a causal model, the prompt and all generated tokens but the last."""
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

    @property
    def listing(self) -> Listing | None:
        """The tokens of a prompt with the sums of their first scores over all rows."""
        return self.row_of(self.scores[self.unit].sum(0)).part(0, self.first_length) if self.summed else None

    def by_sentence(self) -> list[tuple[str, str, Listing]]:
        """The name, the sum as text and the tokens of each sentence of a prompt."""
        assert self.listing is not None
        parted = replace(self.listing, texts=self.sentences)
        return [(name, part.number(part.shown.sum().item()), part) for name, part in parted.by_text()]

    def _findings(self) -> list[str]:
        """The sums of sentences, and a line per generated token with its strongest scores."""
        heading = "Largest magnitude first:"
        if self.grows:
            heading = "Each generated token, explained by the prompt │ by what was generated before it:"
        rows = zip(self.rows, self.scores[self.unit], strict=True)
        lines = [f"{shortened(word):>16}  {self._row(scores)}" for word, scores in rows]
        if not self.sentences:
            return [heading, *lines]
        sums = [f"{total:>8}  {name}" for name, total, _ in self.by_sentence()]
        return ["By sentence:", *sums, heading, *lines]

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
    cache: AnyCache,
    request: Request,
    *,
    y: str,
    summed: str = "",
    **fields: Any,
) -> Alignment:
    """The scores of several outputs for the example in a cache.

    Args:
        request: with a target and, if the model has an output for each token, a position for each row.
        y: what is explained in a row.
        summed: what the sums of the rows are of, if they are listed.
        fields: others of `Alignment`.
    """
    scores, request, note = scored(cache, request)
    (example,), method = cache.examples, request.entry
    by_token = example.by_token(scores.cpu(), method.additive)
    reading = method.caption(example.part, request.layer, request.head)
    if summed:
        reading += f", summed over the {summed}"
    if method.explains_output:
        reading += f"; y is {y}"
    notes = [*example.notes, *cache.notes[0], note, sink_note(request, example, by_token)]
    if request.verdict:
        notes.append(NO_VERDICT)
    alignment = Alignment(
        **{"first_length": len(example.tokens)} | fields,
        method=str(request.method),
        model=cache.model.config.name_or_path,
        example=example,
        reading=f"{reading}: {method.how_to_read}.",
        scores={method.unit: by_token},
        summed=bool(summed),
        notes=list(filter(None, notes)),
    )
    outweighed = [special for row in by_token if (special := alignment.row_of(row).outweighing)]
    if outweighed and not example.template:
        names = ", ".join(dict.fromkeys(outweighed))
        alignment.notes.insert(0, f"In {len(outweighed)} of {len(by_token)} rows {names} outweighs every word.")
    return alignment


def outputs_of(cache: AnyCache, request: Request) -> tuple[list[str], Request]:
    """What is explained of a text: a request for one output or several, and the words of a tagger that they are of.

    Of a tagger without a position the words with a label, or all where none has one; of a model with several labels and
    no target those above one half, or the largest one.
    """
    model, (example, *_) = cache.model, cache.examples
    if kind_of(model).task == "token-classification":
        if request.position is None:
            request = replace(request, position=_labelled(cache))
        position: Any = request.position
        names = [told_apart(example.tokens)[token] for token in example.token_of_piece[position].reshape(-1)]
        return [f"{name}: " for name in names], request
    if model.config.problem_type == SEVERAL_LABELS and request.target is None and example.grid is None:
        (logits,) = cache.outputs_alone.logits
        labels = (logits >= logits.max().clamp(max=0)).nonzero().flatten()
        return [""] * len(labels), replace(request, target=labels)
    return [""], request


def _labelled(cache: ForwardCache) -> Tensor:
    """The first pieces of words with a label, or of all where none has one."""
    (example,), labels = cache.examples, cache.model.config.id2label
    firsts = torch.searchsorted(example.token_of_piece, torch.tensor(example.words))
    predicted = cache.outputs_alone.logits[0].argmax(-1)[firsts].tolist()
    places = [place for place, label in enumerate(predicted) if labels[label] != OUTSIDE]
    places = places or list(range(len(predicted)))
    if len(places) > MOST:
        cache.notes[0].append(f"Only the first {MOST} of {len(places)} words have a row; choose others by position.")
    return firsts[places[:MOST]]


def table_of(cache: AnyCache, processor: Any, request: Request, words: Sequence[str]) -> Alignment:
    """A row of scores for each output of a request of `outputs_of`."""
    if request.details:
        raise ValueError("details are of a single prediction; choose one by target or position, or leave them out.")
    outputs = ModelOutput(logits=cache.outputs_alone.logits.expand(len(words), *cache.outputs_alone.logits.shape[1:]))
    readout = readout_of(cache, request, outputs)
    predicted = predictions(cache.model, processor, readout, outputs)
    rows = [f"{word}{prediction.shares}" for word, prediction in zip(words, predicted, strict=True)]
    return alignment_of(
        cache,
        replace(request, target=readout.targets),
        y="the logit of the label of a row",
        written=rows,
        row="prediction",
        explained=shortened(f"{len(rows)} predictions: {'; '.join(rows)}.", TITLE),
    )
