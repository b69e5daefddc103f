"""Several predictions for one text, a row of scores for each: generated tokens, the words of a tagger, or labels.

The tokens that an encoder-decoder generates are explained by the source, those of a causal model by earlier tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hf_bidir.checkpoints.kinds import SEVERAL_LABELS, device_of, kind_of
from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.modeling.signed_layers import signed_layers

from .forward import ForwardCache, attends_between_tokens, forward_pass
from .image_text_cache import ImageTextCache
from .inputs.parts import segmented
from .inputs.text import (
    Example,
    Text,
    check_prompt,
    percent,
    shortened,
    spelled,
    told_apart,
    visible,
)
from .listing import Listing
from .methods import scored, sink_note
from .readout import predictions, readout_of
from .registry import METHODS
from .request import Request
from .result import Result

IN_ROW = 5  # tokens in the row of a generated token
NO_VERDICT = "There is no verdict: it would need a single prediction, and each row is one."
OUTSIDE = "O"  # the label of a word without one
MOST = 32  # words in a table
TITLE = 200  # characters
LOGIT = "the logit of each generated token minus the mean of all logits"
CONTRIBUTION = METHODS["contributions"].unit
MAGNITUDE = "mean |a|"
COEFFICIENT = "coefficient a"


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
    cache: ForwardCache | ImageTextCache,
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


def outputs_of(cache: ForwardCache, request: Request) -> tuple[list[str], Request]:
    """What is explained of a text: a request for one output or several, and the words of a tagger that they are of.

    Of a tagger without a position the words with a label, or all where none has one; of a model with several labels and
    no target those above one half, or the largest one.
    """
    model, (example, *_) = cache.model, cache.examples
    if kind_of(model).task == "token-classification":
        if request.position is None:
            request = replace(request, position=_labelled(cache))
        names = [told_apart(example.tokens)[token] for token in example.token_of_piece[request.position].reshape(-1)]
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


def table_of(cache: ForwardCache, processor: Any, request: Request, words: Sequence[str]) -> Alignment:
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


def translated(model: PreTrainedModel, tokenizer: Any, example: Example, request: Request) -> Alignment:
    """Generate text greedily, and explain each generated token by the source tokens.

    Their contributions are `a · ∂y/∂a`, summed over the layers and heads of cross-attention. `y` is the generated
    token's logit minus the mean of all logits, because a shift of all logits changes no prediction. It covers this step
    alone, without its effect on later steps. At `λ = 1` negating all coefficients and the weights applied to the
    context changes neither outputs nor contributions.

    With them come the coefficients of a model with one query per step, or the mean magnitude over layers and heads.
    """
    if model.main_input_name != "input_ids" or not model.can_generate():
        raise ValueError(f"expected a signed encoder-decoder that generates text; got {type(model).__name__}.")
    with torch.inference_mode(False), torch.enable_grad(), in_evaluation(model):
        inputs = _on_device(model, example)
        ids = model.generate(**inputs, num_beams=1, do_sample=False)
        scores = _contributions(model, inputs | {"decoder_input_ids": ids[:, :-1]}, ids[0, 1:])
    generated = tokenizer.decode(ids[0], skip_special_tokens=True)
    notes = [*example.notes]
    if request.verdict:
        notes.append(NO_VERDICT)
    return Alignment(
        method="contributions",
        model=model.config.name_or_path,
        example=replace(example, special=[False] * len(example.tokens)),  # those of a source are listed
        written=spelled(tokenizer, ids[0, 1:].tolist()),
        explained=f'Generated: "{visible(generated)}".',
        reading=f"Contributions {CONTRIBUTION} of source words to y, {LOGIT}: {METHODS['contributions'].how_to_read}.",
        scores={unit: example.by_token(rows.cpu()) for unit, rows in scores.items()},
        first_length=len(example.tokens),
        notes=notes,
    )


def _on_device(model: PreTrainedModel, example: Example) -> dict[str, Tensor]:
    device = device_of(model)
    return {name: example.inputs[name].to(device) for name in ("input_ids", "attention_mask")}


def _contributions(model: PreTrainedModel, inputs: Mapping[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
    """Contributions of source tokens to generated ids, `[generated, source]`, and the attention to them, by unit."""
    between_tokens = attends_between_tokens(model)
    logits, maps = _crossing_maps(model, inputs)

    def joined(parts: Sequence[Tensor]) -> Tensor:
        """`[layers * heads, generated, source]`: a model with one query per step runs its layer for each of them."""
        return torch.cat(list(parts), 1 if between_tokens else 2)[0].detach().float()

    coefficients, contributions = joined(maps), []
    for step, (row, index) in enumerate(zip(logits, ids, strict=True)):
        y = row[index] - row.mean()
        slopes = joined(torch.autograd.grad(y, maps, retain_graph=True, materialize_grads=True))
        contributions.append((coefficients[:, step] * slopes[:, step]).sum(0))
    unit, attended = MAGNITUDE, coefficients.abs().mean(0)
    if not between_tokens:
        unit, (attended,) = COEFFICIENT, coefficients
    return {CONTRIBUTION: torch.stack(contributions), unit: attended}


def _crossing_maps(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The logits `[generated, vocabulary]`, and the coefficients of the runs of layers that attend to the source."""
    crossing = set()

    def note(layer: nn.Module, args: tuple, kwargs: dict) -> None:
        if kwargs.get("key_value_states") is not None or kwargs.get("encoder_hidden_states") is not None:
            crossing.add(layer)

    with hooked(signed_layers(model), before=note):
        outputs, maps, values = forward_pass(model, inputs)
    if attends_between_tokens(model):
        runs = zip(maps, values, strict=True)
        maps = [coefficients for coefficients, (layer, _) in runs if layer in crossing]
    if not maps:
        raise ValueError(f"{type(model).__name__} has no signed layer whose keys come from the encoder.")
    return outputs.logits[0], maps


def continued(model: PreTrainedModel, tokenizer: Any, example: Example, request: Request) -> Alignment:
    """Explain each token after a prompt, of a given text or of the generated one, by the tokens before it.

    One row per following token, over the prompt and the tokens generated before it, and 0 for later tokens.
    """
    generated = _following(model, tokenizer, example, request)
    written = spelled(tokenizer, generated.tolist())
    source = _extended(example, generated[:-1], written[:-1])
    cache = ForwardCache(model, source.inputs, source.token_of_piece[None], [source])
    positions = torch.arange(len(generated)) + len(example.token_of_piece) - 1
    return _explained(
        cache,
        tokenizer,
        replace(request, position=positions),
        generated,
        cache.outputs_alone.logits[0, positions].cpu(),
        "answer" if example.template else "continuation",
        first_length=len(example.tokens),
        sentences=_sentences(example) if request.segments is None else {},
    )


def answer_of(cache: ImageTextCache, tokenizer: Any, request: Request) -> Alignment:
    """Explain each token of what is generated about an image and a text."""
    outputs = cache.outputs_alone
    return _explained(cache, tokenizer, request, outputs.ids, outputs.logits.cpu(), "answer")


def _explained(
    cache: Any, tokenizer: Any, request: Request, ids: Tensor, logits: Tensor, what: str, **fields: Any
) -> Alignment:
    """The alignment of ids that follow, each with its logits `[following, vocabulary]`."""
    text = visible(tokenizer.decode(ids, skip_special_tokens=True).strip())
    return alignment_of(
        cache,
        replace(request, target=ids),
        y=LOGIT,
        summed=what,
        written=spelled(tokenizer, ids.tolist()),
        explained=f'{what.capitalize()}: "{text}".',
        probabilities=logits.float().softmax(-1)[range(len(ids)), ids].tolist(),
        **fields,
    )


def _sentences(example: Example) -> dict[str, int]:
    """The sentences of a prompt of words, if it has several, and the first token of each."""
    if not example.places:  # of a tokenizer without character offsets
        return {}
    parted, starts = segmented(Text(example.text, example.parts), "sentences"), {}
    for token in example.words:
        starts.setdefault(parted.part_at(example.places[token][0]), token)
    if not len(starts) == len(parted.names) > 1:  # a tokenizer that does not split words
        return {}
    _, *others = starts.values()
    return dict(zip(told_apart(parted.names), [0, *others], strict=True))


def _extended(example: Example, ids: Tensor, names: list[str]) -> Example:
    """The example with generated tokens behind it."""
    input_ids = torch.cat([example.inputs["input_ids"][0], ids])[None]
    following = len(example.tokens) + torch.arange(len(ids))
    return replace(
        example,
        inputs={"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)},
        tokens=[*example.tokens, *names],
        special=[*example.special, *[False] * len(names)],
        token_of_piece=torch.cat([example.token_of_piece, following]),
        places=[*example.places, *[None] * len(names)],
    )


def _following(model: PreTrainedModel, tokenizer: Any, example: Example, request: Request) -> Tensor:
    """The ids of the tokens that follow the prompt, given or generated."""
    text, continuation = example.text, request.continuation
    if continuation is None:
        check_prompt(model, tokenizer, example, request.new_tokens or 0)
        inputs = _on_device(model, example)
        with in_evaluation(model):
            ids = model.generate(**inputs, max_new_tokens=request.new_tokens, do_sample=False, num_beams=1)
        return ids[0, len(example.token_of_piece) :].cpu()
    ends = example.template or text[-1:].isspace() or continuation[:1].isspace()
    encoding = tokenizer(
        text + ("" if ends else " ") + continuation,
        add_special_tokens=not example.template,
        return_offsets_mapping=True,
        verbose=False,
    )
    pairs = zip(encoding["input_ids"], encoding["offset_mapping"], strict=True)
    following = [token for token, (_, end) in pairs if end > len(text)]
    if not continuation.strip() or not following:
        raise ValueError(f"expected a continuation with at least one word, got {continuation!r}.")
    check_prompt(model, tokenizer, example, len(following))
    return torch.tensor(following)
