"""Generated text, explained token by token: of an encoder-decoder by its source, of others by earlier tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_bidir.checkpoints.kinds import device_of
from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.modeling.signed_layers import signed_layers

from .alignment import NO_VERDICT, Alignment, alignment_of
from .forward import AnyCache, ForwardCache, attends_between_tokens, forward_pass
from .inputs.parts import segmented
from .inputs.text import Example, Text, check_prompt, spelled, told_apart, visible
from .registry import METHODS
from .request import Request

LOGIT = "the logit of each generated token minus the mean of all logits"
CONTRIBUTION = METHODS["contributions"].unit
MAGNITUDE = "mean |a|"
COEFFICIENT = "coefficient a"


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


def answer_of(cache: AnyCache, tokenizer: Any, request: Request) -> Alignment:
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
    parted = segmented(Text(example.text, tuple(example.parts)), "sentences")
    starts: dict[int | None, int] = {}
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
