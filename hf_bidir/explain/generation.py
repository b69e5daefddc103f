"""Explain generated text token by token: for encoder-decoders by the source, for causal models by earlier tokens."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedModel

from hf_bidir.checkpoints.kinds import device_of, text_limit
from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.explain.forward import ForwardCache, attends_between_tokens, check_exists, record_maps
from hf_bidir.explain.inputs.text import Example, Text, check_prompt, read_text, spelled, visible
from hf_bidir.explain.methods import sink_note
from hf_bidir.explain.registry import METHODS
from hf_bidir.explain.request import COEFFICIENTS, Request, methods_of, why_fast
from hf_bidir.explain.result import Alignment
from hf_bidir.modeling.signed_layers import signed_layers

LOGIT = "the logit of the token of a row, minus the mean of all logits"
ROWS = 16  # generated tokens explained in one batch
CONTRIBUTION, RELEVANCE, MAGNITUDE, COEFFICIENT = "a · ∂y/∂a", "relevance", "mean |a|", "coefficient a"
SUPPORTS = "+ (red) supports the generated token, − (blue) opposes it; the signs are comparable"


def explain_generated(model: PreTrainedModel, tokenizer: Any, text: str | Text, request: Request) -> Alignment:
    """The alignment of what an encoder-decoder generates, or of what follows a prompt, once the request is checked."""
    if model.config.is_encoder_decoder:
        return _translated(model, tokenizer, text, request.method or "contributions")
    return _continued(model, tokenizer, Text(text) if isinstance(text, str) else text, request)


def _translated(model: PreTrainedModel, tokenizer: Any, text: str | Text, method: str) -> Alignment:
    """Generate text greedily, and explain each generated token by the source tokens.

    By "contributions" `a · ∂y/∂a`, summed over the layers and heads of cross-attention, or by "attnlrp" the relevance
    of the source's embeddings. `y` is the generated token's logit minus the mean of all logits, because a shift of all
    logits changes no prediction. It covers this step alone, without its effect on later steps. At `λ = 1` negating all
    coefficients and the weights applied to the context changes neither outputs nor contributions.

    With them come the coefficients of a model with one query per step, or the mean magnitude over layers and heads.
    """
    name = type(model).__name__
    if method not in methods_of(model):
        raise ValueError(f"{name} is explained by {' or '.join(methods_of(model))}; got the method {method!r}.")
    if model.main_input_name != "input_ids" or not model.can_generate():
        raise ValueError(f"expected a signed encoder-decoder that generates text; got {name}.")
    example = read_text(tokenizer, text, text_limit(model, tokenizer))
    with torch.inference_mode(False), torch.enable_grad(), in_evaluation(model):
        inputs = _on_device(model, example)
        ids = model.generate(**inputs, num_beams=1, do_sample=False)
        inputs["decoder_input_ids"] = ids[:, :-1]
        if method == "attnlrp":
            unit, rows = RELEVANCE, _relevance(model, inputs, ids)
            scores, what = {unit: rows}, "Relevance (AttnLRP)"
        else:
            contributions, attended = _contributions(model, inputs, ids)
            attention = MAGNITUDE if attends_between_tokens(model) else COEFFICIENT
            scores, what = {CONTRIBUTION: contributions, attention: attended}, f"Contributions {CONTRIBUTION}"
    cut = f" The source was truncated by {example.truncated} tokens." if example.truncated else ""
    return Alignment(
        source=[visible(token) for token in example.tokens],
        written=spelled(tokenizer, ids[0, 1:].tolist()),
        explained=f'Generated: "{visible(tokenizer.decode(ids[0], skip_special_tokens=True))}".{cut}',
        what=f"{what} of source words to y, {LOGIT}",
        scores={unit: example.by_token(rows.cpu()) for unit, rows in scores.items()},
        first_length=len(example.tokens),
        how_to_read=SUPPORTS,
    )


def _on_device(model: PreTrainedModel, example: Example) -> dict[str, Tensor]:
    return {name: example.inputs[name].clone().to(device_of(model)) for name in ("input_ids", "attention_mask")}


def _explained_logits(logits: Tensor, ids: Tensor) -> Tensor:
    """`y` of every id `[generated]`, from logits `[generated, vocabulary]`."""
    return logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - logits.mean(-1)


def _contributions(model: PreTrainedModel, inputs: dict[str, Tensor], ids: Tensor) -> tuple[Tensor, Tensor]:
    """Contributions of the source tokens for each generated id, and the attention to them, `[generated, source]`."""
    crossing, between_tokens = set[nn.Module](), attends_between_tokens(model)

    def note(layer: nn.Module, args: tuple, kwargs: dict) -> None:
        if kwargs.get("key_value_states") is not None or kwargs.get("encoder_hidden_states") is not None:
            crossing.add(layer)

    with hooked(signed_layers(model), before=note):
        outputs, maps, values = record_maps(model, inputs)
    if between_tokens:
        maps = [a for a, (layer, _) in zip(maps, values, strict=True) if layer in crossing]
    if not maps:
        raise ValueError(f"{type(model).__name__} has no signed layer whose keys come from the encoder.")
    contributions, attended = [], []
    for step, y in enumerate(_explained_logits(outputs.logits[0], ids[0, 1:])):
        # a model with one query per step calls its layer for each, others once for all
        calls, query = (maps, step) if between_tokens else ([maps[step]], 0)
        gradients = torch.autograd.grad(y, calls, retain_graph=True, materialize_grads=True)
        coefficients = torch.stack([a.detach()[0, :, query].float() for a in calls])  # [layers, heads, source]
        slopes = torch.stack([gradient[0, :, query].float() for gradient in gradients])
        contributions.append((coefficients * slopes).sum((0, 1)))
        attended.append(coefficients.abs().mean((0, 1)) if between_tokens else coefficients[0, 0])
    return torch.stack(contributions), torch.stack(attended)


def _relevance(model: PreTrainedModel, inputs: dict[str, Tensor], ids: Tensor) -> Tensor:
    """The relevance of the source tokens for each generated id, `[generated, source]`, with the ids before it given."""
    from hf_bidir.explain.methods.attnlrp import relevance_rules

    embedding = model.get_encoder().get_input_embeddings()
    start = embedding(inputs["input_ids"]).detach().requires_grad_()
    calls: list[nn.Module] = []

    def first_call_of_the_encoder(module: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> Tensor:
        calls.append(module)  # the decoder may share the embedding
        return start.clone() if len(calls) == 1 else output

    with hooked([embedding], after=first_call_of_the_encoder), relevance_rules(model):
        logits = model(**inputs).logits[0]
    rows = []
    for y in _explained_logits(logits, ids[0, 1:]):
        (gradient,) = torch.autograd.grad(y, start, retain_graph=True)
        rows.append((start * gradient)[0].sum(-1).detach())
    return torch.stack(rows)


def _continued(model: PreTrainedModel, tokenizer: Any, prompt: Text, request: Request) -> Alignment:
    """Explain each token after a prompt, of a given text or of the generated one, by the tokens before it.

    One row per following token, over the prompt and the tokens generated before it, and 0 for later tokens.
    """
    example = read_text(tokenizer, prompt, text_limit(model, tokenizer))
    start = len(example.token_of_piece)
    ids = torch.cat([example.inputs["input_ids"][0], _following(model, tokenizer, prompt, example, request)])
    generated = ids[start:]
    text = {"input_ids": ids[None, :-1], "attention_mask": torch.ones_like(ids[None, :-1])}
    units = None
    if example.whole:
        following = len(example.tokens) + torch.arange(len(generated) - 1)
        units = torch.cat([example.token_of_piece, following])[None]
    layers = signed_layers(model)
    check_exists("layer", request.layer, len(layers))
    attending = layers[-1 if request.layer is None else request.layer]
    cache = ForwardCache(model, text, units, layers=[attending] if COEFFICIENTS in request.figures else [])
    chosen = request.resolved(model, cache.passes)
    chosen = replace(chosen, target=generated, position=torch.arange(start - 1, len(ids) - 1))
    name, method = str(chosen.method), METHODS[str(chosen.method)]
    scores = prediction_scores(model, text, chosen, units)
    # of a conversation the messages, not what its template wrote
    shown = [at for at, special in enumerate(example.special) if not (special and prompt.template)]

    def by_source(rows: Tensor, add: bool = True) -> Tensor:
        return torch.cat([example.by_token(rows[:, :start], add)[:, shown], rows[:, start:]], dim=1)

    pieces = spelled(tokenizer, generated.tolist())
    source = [*(example.tokens[at] for at in shown), *pieces[:-1]]
    special = [*(example.special[at] for at in shown), *[False] * len(pieces[:-1])]
    by_unit = {method.unit: by_source(scores, method.additive)}
    sink = sink_note(name, source, special, by_unit[method.unit])
    if COEFFICIENTS in request.figures:
        place, rows = _attended(cache, chosen, layers.index(attending))
        by_unit[f"a of {place}"] = by_source(rows)
    with torch.no_grad():
        probabilities = cache.outputs.logits[0, chosen.position].float().softmax(-1).cpu()
    return Alignment(
        source=source,
        written=pieces,
        explained=" → ".join(visible(part.strip()) for part in (prompt.spoken, tokenizer.decode(generated))),
        what=method.caption(request.layer, request.head) + f"; y is {LOGIT}" * method.explains_output,
        scores=by_unit,
        first_length=len(shown),
        how_to_read=method.how_to_read,
        has_signs=method.explains_output,
        probabilities=probabilities.gather(-1, generated[:, None]).squeeze(-1).tolist(),
        notes=list(filter(None, ["" if request.method else why_fast(name, cache.passes), sink])),
    )


@torch.no_grad()
def _attended(cache: ForwardCache, request: Request, layer: int) -> tuple[str, Tensor]:
    """A head in words, and its coefficients at the positions, `[positions, length]`, of the layer that was recorded."""
    from hf_bidir.explain.coefficients import strongest_head

    rows = cache.coefficients[-1][0, :, request.position].float()  # [heads, positions, keys]
    head = strongest_head(rows, cache.values[-1][1][0]) if request.head is None else request.head
    return f"layer {layer}, head {head}", rows[head].cpu()


def prediction_scores(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    request: Request,
    units: Tensor | None = None,
    batch_size: int = ROWS,
) -> Tensor:
    """Scores of several output tokens of one text, `[targets, length]`, computed in batches.

    Args:
        inputs: the text, `[1, length]`.
        request: with its method; target and position are `[targets]`, the token ids to explain, and the position that
            predicts each of them.
        units: its segments, `[1, length]`, as in `ForwardCache`.
        batch_size: output tokens in one batch; methods with a forward pass per token compute all outputs at once.
    """
    method, targets = METHODS[str(request.method)], torch.as_tensor(request.target)
    batch_size = len(targets) if method.shared else batch_size
    parts = torch.arange(len(targets)).split(batch_size)
    rows = []
    for part in tqdm(parts, desc=request.method, unit="batch", leave=False, delay=1, disable=len(parts) < 2):
        batch = {name: value.expand(len(part), -1) for name, value in inputs.items()}
        of_rows = None if units is None else units.expand(len(part), -1)
        device = device_of(model)
        aim = replace(request, target=targets[part].to(device), position=request.position[part].to(device))
        rows.append(method.scores(ForwardCache(model, batch, of_rows), aim).detach().cpu())
    return torch.cat(rows)


def _following(model: PreTrainedModel, tokenizer: Any, prompt: Text, example: Example, request: Request) -> Tensor:
    """The ids of the tokens that follow the prompt, given or generated."""
    start = len(example.token_of_piece)
    if request.continuation is None:
        check_prompt(model, tokenizer, example, request.new_tokens or 0)
        with in_evaluation(model):
            options = {"max_new_tokens": request.new_tokens, "do_sample": False, "num_beams": 1}
            return model.generate(**_on_device(model, example), **options)[0, start:].cpu()
    text, continuation = prompt.written, request.continuation
    blank = "" if prompt.template or text[-1:].isspace() or continuation[:1].isspace() else " "
    options = {"return_offsets_mapping": True, "verbose": False, "add_special_tokens": not prompt.template}
    whole = tokenizer(f"{text}{blank}{continuation}", **options)
    pairs = zip(whole["input_ids"], whole["offset_mapping"], strict=True)
    following = [token for token, (_, end) in pairs if end > len(text)]
    if not continuation.strip() or not following:
        raise ValueError(f"expected a continuation with at least one word, got {continuation!r}.")
    check_prompt(model, tokenizer, example, len(following))
    return torch.tensor(following)
