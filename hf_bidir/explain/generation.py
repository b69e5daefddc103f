"""Explain generated text token by token: for encoder-decoders by the source, for causal models by earlier tokens."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedModel

from hf_bidir.checkpoints.kinds import device_of, text_limit
from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.checkpoints.signing import unwrapped
from hf_bidir.explain.coefficients import strongest_head
from hf_bidir.explain.inputs.text import Example, check_prompt, is_template, read_text, spelled, visible
from hf_bidir.explain.methods import METHODS, check_method, default_method, passes_of, sink_note, token_scores, why_fast
from hf_bidir.explain.methods.attnlrp import relevance_rules
from hf_bidir.explain.methods.chefer import cross_rollout
from hf_bidir.explain.record import (
    SegmentedInputs,
    attends_between_tokens,
    model_within,
    record_coefficients,
    record_maps,
    units_of,
)
from hf_bidir.explain.result import Alignment
from hf_bidir.modeling.activations import upcast
from hf_bidir.modeling.signed_layers import signed_layers

LOGIT = "the logit of the token of a row, minus the mean of all logits"
ROWS = 16  # generated tokens explained in one batch
CONTRIBUTION, RELEVANCE, CHEFER = "a · ∂y/∂a", "relevance", "relevance for y minus that for −y"
COEFFICIENT, MAGNITUDE = "coefficient a", "mean |a|"
METHODS_OF_TEXTS = ("contributions", "attnlrp", "chefer")
SUPPORTS = "+ (red) supports the generated token, − (blue) opposes it; the signs are comparable"
MEANING = {  # what the numbers are, and how to read them
    CONTRIBUTION: (f"Contributions a · ∂y/∂a of source words to y, {LOGIT}", SUPPORTS),
    RELEVANCE: (f"Relevance (AttnLRP) of source words for y, {LOGIT}", SUPPORTS),
    CHEFER: (f"Gradient-weighted attention (Chefer et al. 2021) of source words for y, {LOGIT}", SUPPORTS),
    COEFFICIENT: (
        "Coefficients a of source words (hard selection has no contributions)",
        "+ (red) and − (blue) are the signs of coefficients, which do not say support or opposition",
    ),
    MAGNITUDE: (
        "Magnitudes |a| of the attention to source words",
        "the larger, the more attention; there are no signs",
    ),
}


def align(
    model: PreTrainedModel, tokenizer, text: str, *, method: str = "contributions", num_beams: int = 1
) -> Alignment:
    """Generate text, and explain each generated token by the source tokens.

    The contribution is `a · ∂y/∂a`, summed over layers and heads. `y` is the generated token's logit minus the mean of
    all logits, because a shift of all logits changes no prediction. It covers this step alone, without its effect on
    later steps, and is missing for hard selection, which has no derivative. At `λ = 1` negating all coefficients and
    the weights applied to the context changes neither outputs nor contributions.

    Args:
        model: a signed encoder-decoder of text, such as a BidirBart…, …Marian… or …T5ForConditionalGeneration;
            dropout is off while it generates.
        tokenizer, text: a fast tokenizer; the source, truncated to the model's positions. A word's pieces are summed.
        method: "contributions"; "attnlrp", the relevance of the source's embeddings (`relevance`); or "chefer", traced
            through all layers (`cross_rollout`).
        num_beams: beams of the search; 1 is greedy.

    Returns:
        The contributions and the attention: the coefficients of a model with one query per step, or the mean magnitude
        over layers and heads of cross-attention.

    Raises:
        ValueError: a model that is no encoder-decoder of text, or a text without words.
    """
    model = model_within(model, tokenizer)
    if method not in METHODS_OF_TEXTS:
        raise ValueError(
            f"{type(model).__name__} is explained by one of {', '.join(METHODS_OF_TEXTS)}; got the method {method!r}."
        )
    if method == "chefer" and not attends_between_tokens(model):
        raise ValueError(f"chefer needs attention between tokens; {type(model).__name__} has none. Use contributions.")
    if not (model.config.is_encoder_decoder and model.main_input_name == "input_ids" and model.can_generate()):
        raise ValueError(f"expected a signed encoder-decoder that generates text; got {type(model).__name__}.")
    example = read_text(tokenizer, text, text_limit(model, tokenizer))
    with torch.inference_mode(False), torch.enable_grad(), in_evaluation(model):
        inputs = {name: example.inputs[name].clone().to(device_of(model)) for name in ("input_ids", "attention_mask")}
        ids = model.generate(**inputs, num_beams=num_beams)
        coefficients, contributions, y = _rows(model, inputs, ids)
        traced = {"attnlrp": (RELEVANCE, _relevance_rows), "chefer": (CHEFER, _chefer_rows)}.get(method)
        relevance = {} if traced is None else {traced[0]: traced[1](model, inputs, ids)}
    attended = {MAGNITUDE if attends_between_tokens(model) else COEFFICIENT: coefficients}
    hard = getattr(model.config, "attn_selection", "soft") == "hard"
    scores = attended if hard else {CONTRIBUTION: contributions} | attended
    scores = relevance | scores
    what, how_to_read = MEANING[next(iter(scores))]
    explained = f'Generated: "{visible(tokenizer.decode(ids[0], skip_special_tokens=True))}".'
    if example.truncated:
        explained += f" The source was truncated by {example.truncated} tokens."
    if COEFFICIENT in scores and (coefficients < 0).any():
        explained += " Signs of coefficients are not comparable between models."
    return Alignment(
        source=[visible(token) for token in example.tokens],
        written=spelled(tokenizer, ids[0, 1:].tolist()),
        explained=explained,
        what=what,
        scores={unit: example.by_token(rows) for unit, rows in scores.items()},
        first_length=len(example.tokens),
        how_to_read=how_to_read,
        values=[] if hard else y,
    )


def _rows(model: PreTrainedModel, inputs: dict[str, Tensor], ids: Tensor) -> tuple[Tensor, Tensor, list[float]]:
    """Attention and contributions, `[generated, source]` each, of the generated ids, and their `y`."""
    inputs = inputs | {"decoder_input_ids": ids[:, :-1]}
    between_tokens = attends_between_tokens(model)
    outputs, recorded = record_coefficients(model, inputs, cross_attention(model, inputs) if between_tokens else None)
    attended, contributions = [], []
    explained = _explained_logits(outputs.logits[0], ids)
    for step, y in enumerate(explained):
        # a model with one query per step calls its layer for each, others once for all
        calls, row = (recorded, step) if between_tokens else ([recorded[step]], 0)
        gradients = torch.autograd.grad(y, calls, retain_graph=True, materialize_grads=True)
        own = torch.stack([a.detach()[0, :, row].float() for a in calls])  # [layers, heads, source]
        contributions.append((own * torch.stack([gradient[0, :, row] for gradient in gradients])).sum((0, 1)))
        attended.append(own.abs().mean((0, 1)) if between_tokens else own[0, 0])
    return torch.stack(attended).cpu(), torch.stack(contributions).cpu(), explained.tolist()


def _explained_logits(logits: Tensor, ids: Tensor) -> Tensor:
    """`y` of every generated id, `[generated]`, from logits `[generated, vocabulary]`."""
    return logits.gather(-1, ids[0, 1:, None]).squeeze(-1) - logits.mean(-1)


def _relevance_rows(model: PreTrainedModel, inputs: dict[str, Tensor], ids: Tensor) -> Tensor:
    """The relevance of the source tokens for each generated id, `[generated, source]`, with the ids before it given."""
    embedding = model.get_encoder().get_input_embeddings()
    start = embedding(inputs["input_ids"]).detach().requires_grad_()
    calls: list[nn.Module] = []

    def first_call_of_the_encoder(module: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> Tensor:
        calls.append(module)  # the decoder may share the embedding
        return start.clone() if len(calls) == 1 else output

    with hooked([embedding], after=first_call_of_the_encoder), relevance_rules(model):
        logits = model(**inputs, decoder_input_ids=ids[:, :-1]).logits[0]
    rows = [torch.autograd.grad(y, start, retain_graph=True)[0] for y in _explained_logits(logits, ids)]
    return torch.stack([(start * row)[0].sum(-1).detach() for row in rows]).cpu()


def _chefer_rows(model: PreTrainedModel, inputs: dict[str, Tensor], ids: Tensor) -> Tensor:
    """The relevance of the source tokens for each generated id by `cross_rollout`, `[generated, source]`."""
    inputs = inputs | {"decoder_input_ids": ids[:, :-1]}
    crossing, encoding = set(cross_attention(model, inputs)), set(model.get_encoder().modules())
    outputs, maps, values = record_maps(model, inputs)
    places: list[Any] = [
        "cross" if layer in crossing else "encoder" if layer in encoding else "decoder" for layer, _ in values
    ]
    rows = []
    for step, y in enumerate(_explained_logits(outputs.logits[0], ids)):
        gradients = torch.autograd.grad(y, maps, retain_graph=True, materialize_grads=True)
        edges = [upcast(a.detach()) * upcast(gradient) for a, gradient in zip(maps, gradients, strict=True)]
        rows.append(cross_rollout(list(zip(places, edges, strict=True)))[0, step])
    return torch.stack(rows).cpu()


@torch.no_grad()
def cross_attention(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> list[nn.Module]:
    """The signed layers whose keys come from the encoder.

    Raises:
        ValueError: the model has no such layer.
    """
    found: list[nn.Module] = []

    def record(layer: nn.Module, args: tuple, kwargs: dict) -> None:
        if kwargs.get("key_value_states") is not None or kwargs.get("encoder_hidden_states") is not None:
            found.append(layer)

    with hooked(signed_layers(model), before=record):
        model(**inputs)
    if not found:
        raise ValueError(f"{type(model).__name__} has no signed layer whose keys come from the encoder.")
    return found


def explain_continuation(
    model: PreTrainedModel,
    tokenizer,
    prompt: str,
    continuation: str | None = None,
    *,
    new_tokens: int = 20,
    method: str | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> Alignment:
    """Explain each token after a prompt, of a given text or of the generated one, by the tokens before it.

    Args:
        model: a signed causal language model, in any attention backend.
        tokenizer: a fast one; the pieces of a word in the prompt are summed.
        continuation, new_tokens: the text to explain, separated from the prompt by a space; None generates at most
            `new_tokens` tokens greedily.
        method, layer, head: as in `token_scores`.

    Returns:
        One row per following token, over the prompt and the tokens generated before it, and 0 for later tokens: the
        scores of the method, and the coefficients of one head for the position before that token.

    Raises:
        ValueError: an empty prompt or continuation, more tokens than the model has positions, and as in `token_scores`.
    """
    model = model_within(model, tokenizer)
    check_method(method or default_method(model, layer, head), layer, head)
    example, ids = _generated(model, tokenizer, prompt, continuation, new_tokens)
    start = len(example.token_of_piece)
    generated, positions = ids[start:], torch.arange(start - 1, len(ids) - 1)
    inputs: Mapping[str, Tensor] = {"input_ids": ids[None, :-1].to(device_of(model))}
    inputs = {**inputs, "attention_mask": torch.ones_like(inputs["input_ids"])}
    if example.whole:
        following = len(example.tokens) + torch.arange(len(generated) - 1)
        inputs = SegmentedInputs(inputs, torch.cat([example.token_of_piece, following])[None])
    passes = passes_of(model, inputs)
    chosen = method or default_method(model, layer, head, passes)
    scores = prediction_scores(model, inputs, generated, positions, chosen, layer=layer, head=head)

    # of a conversation the messages, not what its template wrote
    shown = [at for at, special in enumerate(example.special) if not (special and is_template(prompt))]

    def by_source(rows: Tensor, add: bool = True) -> Tensor:
        return torch.cat([example.by_token(rows[:, :start], add)[:, shown], rows[:, start : len(ids) - 1]], dim=1)

    by_token = by_source(scores, METHODS[chosen].additive)
    pieces = spelled(tokenizer, generated.tolist())
    source = [*(example.tokens[at] for at in shown), *pieces[:-1]]
    sink = sink_note(chosen, source, [*(example.special[at] for at in shown), *[False] * len(pieces[:-1])], by_token)
    where = METHODS[chosen].caption(layer, head) + f"; y is {LOGIT}" * METHODS[chosen].explains_output
    largest = "" if head is not None else ", in the head of its layer with the largest Σ |a| ‖v‖"
    logits, attended, place = _attended(model, inputs, positions.to(device_of(model)), layer, head)
    y = logits.gather(-1, generated[:, None]).squeeze(-1) - logits.mean(-1)
    whole = METHODS[chosen].explains_output and (layer, head) == (None, None)
    return Alignment(
        source=source,
        written=pieces,
        explained=" → ".join(
            visible(part.strip()) for part in (getattr(prompt, "spoken", prompt), tokenizer.decode(generated))
        ),
        what=" ".join(filter(None, ["" if method else why_fast(chosen, passes), sink, where])),
        scores={METHODS[chosen].unit: by_token, f"a of {place}": by_source(attended)},
        first_length=len(shown),
        how_to_read=f"{METHODS[chosen].how_to_read}; a is the coefficient for the position before{largest}",
        has_signs=METHODS[chosen].explains_output,
        probabilities=logits.softmax(-1).gather(-1, generated[:, None]).squeeze(-1).tolist(),
        values=y.tolist() if whole else (),
    )


@torch.no_grad()
def _attended(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], positions: Tensor, layer: int | None, head: int | None
) -> tuple[Tensor, Tensor, str]:
    """Logits and coefficients at the positions, `[positions, vocabulary]` and `[positions, length]`, with their head.

    The coefficients are those of a single layer, because those of all would take the memory of as many maps.
    """
    layers = signed_layers(model)
    index = len(layers) - 1 if layer is None else layer
    outputs, recorded, values = record_maps(model, inputs, [layers[index]])
    rows = recorded[-1][0, :, positions].float()  # [heads, positions, keys]
    head = strongest_head(rows, values[-1][1][0]) if head is None else head
    return outputs.logits[0, positions].float().cpu(), rows[head].cpu(), f"layer {index}, head {head}"


def prediction_scores(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    targets: Tensor,
    positions: Tensor,
    method: str | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    batch_size: int = ROWS,
) -> Tensor:
    """`token_scores` of several output tokens of one text, `[targets, length]`, computed in batches.

    Args:
        inputs: the text, `[1, length]`.
        targets, positions: `[targets]`, the token ids to explain, and the position that predicts each of them.
        method, layer, head: as in `token_scores`.
        batch_size: output tokens in one batch; methods with a forward pass per token compute all outputs at once.
    """
    model = unwrapped(model)
    method = method or default_method(model, layer, head, passes_of(model, inputs))
    batch_size = len(targets) if METHODS[method].shared else batch_size
    parts = list(zip(targets.split(batch_size), positions.split(batch_size), strict=True))
    rows = []
    for chosen, places in tqdm(parts, desc=method, unit="batch", leave=False, delay=1, disable=len(parts) < 2):
        batch = {name: value.expand(len(chosen), *value.shape[1:]) for name, value in inputs.items()}
        options = {"position": places.to(device_of(model)), "layer": layer, "head": head}
        if (units := units_of(inputs)) is not None:
            batch = SegmentedInputs(batch, units.expand(len(chosen), -1))
        rows.append(token_scores(model, batch, method, chosen.to(device_of(model)), **options).detach().cpu())
    return torch.cat(rows)


def _generated(model, tokenizer, prompt: str, continuation: str | None, new_tokens: int) -> tuple[Example, Tensor]:
    """The prompt, and the ids of the prompt and the tokens that follow, `[length]`."""
    example = read_text(tokenizer, prompt, text_limit(model, tokenizer))
    start = example.inputs["input_ids"][0]
    if continuation is None:
        check_prompt(model, tokenizer, example, new_tokens)
        with in_evaluation(model):
            inputs = {name: example.inputs[name].to(device_of(model)) for name in ("input_ids", "attention_mask")}
            options = {"max_new_tokens": new_tokens, "do_sample": False, "num_beams": 1}
            return example, model.generate(**inputs, **options)[0].cpu()
    blank = "" if is_template(prompt) or prompt[-1:].isspace() or continuation[:1].isspace() else " "
    options = {"return_offsets_mapping": True, "verbose": False, "add_special_tokens": not is_template(prompt)}
    whole = tokenizer(f"{prompt}{blank}{continuation}", **options)
    pairs = zip(whole["input_ids"], whole["offset_mapping"], strict=True)
    following = [token for token, (_, end) in pairs if end > len(prompt)]
    if not continuation.strip() or not following:
        raise ValueError(f"expected a continuation with at least one word, got {continuation!r}.")
    check_prompt(model, tokenizer, example, len(following))
    return example, torch.cat([start, torch.tensor(following)])
