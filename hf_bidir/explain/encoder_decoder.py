"""Alignment of an encoder-decoder's generated text with its source."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_bidir.checkpoints.kinds import text_limit
from hf_bidir.checkpoints.layer_hooks import hooked, in_evaluation
from hf_bidir.checkpoints.projections import check_differentiable
from hf_bidir.explain.alignment import LOGIT, Alignment
from hf_bidir.explain.checkpoint import Example, read_text, spelled
from hf_bidir.explain.colors import visible
from hf_bidir.explain.orient import signs_are_free
from hf_bidir.explain.relevance import relevance_rules
from hf_bidir.explain.relevance_rules import NoRule
from hf_bidir.explain.running import attends_between_tokens, model_within, record_coefficients
from hf_bidir.modeling.signed_layers import signed_layers

CONTRIBUTION, RELEVANCE, COEFFICIENT, MAGNITUDE = "a · ∂y/∂a", "relevance", "coefficient a", "mean |a|"
METHODS_OF_TEXTS = ("contributions", "attnlrp")
READING = {
    RELEVANCE: "+ (red) supports the generated token, − (blue) opposes it; the signs are comparable",
    CONTRIBUTION: "+ (red) supports the generated token, − (blue) opposes it; the signs are comparable",
    COEFFICIENT: "+ (red) and − (blue) are the signs of coefficients, which do not say support or opposition",
}
WHAT = {
    CONTRIBUTION: "Contributions a · ∂y/∂a of source words to {}",
    RELEVANCE: "Relevance (AttnLRP) of source words for {}",
    COEFFICIENT: "Coefficients a of source words (hard selection has no contributions)",
    MAGNITUDE: "Magnitudes |a| of the attention to source words",
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
        model: a signed encoder-decoder of text, such as a `BidirRnnForSeq2SeqLM` or a BidirBart…, …Marian… or
            …T5ForConditionalGeneration; dropout is off while it generates.
        tokenizer: a fast one; the pieces of a word in the source are summed.
        text: the source, truncated to the model's positions.
        method: "contributions", or "attnlrp", the relevance of the source's embeddings (`relevance`).
        num_beams: beams of the search; 1 is greedy.

    Returns:
        The contributions and the attention: the coefficients of a recurrent model, or the mean magnitude over layers
        and heads of cross-attention.

    Raises:
        ValueError: a model that is no encoder-decoder of text, or a text without words.
    """
    model = model_within(model, tokenizer)
    check_differentiable(model)
    if method not in METHODS_OF_TEXTS:
        raise ValueError(
            f"{type(model).__name__} is explained by {' or '.join(METHODS_OF_TEXTS)}; got the method {method!r}."
        )
    if not model.config.is_encoder_decoder or model.main_input_name != "input_ids":
        raise ValueError(f"expected a signed encoder-decoder of text; got {type(model).__name__}.")
    example = read_text(tokenizer, text, text_limit(model, tokenizer))
    with torch.inference_mode(False), torch.enable_grad(), in_evaluation(model):
        inputs = {name: example.inputs[name].clone().to(model.device) for name in ("input_ids", "attention_mask")}
        ids = model.generate(**inputs, num_beams=num_beams)
        coefficients, contributions = _rows(model, inputs, ids)
        relevance = _relevance_rows(model, inputs, ids) if method == "attnlrp" else None
    hard = getattr(model.config, "attn_selection", "soft") == "hard"
    between_tokens = attends_between_tokens(model)
    attended = {MAGNITUDE if between_tokens else COEFFICIENT: coefficients}
    scores = attended if hard else {CONTRIBUTION: contributions} | attended
    if relevance is not None:
        scores = {RELEVANCE: relevance} | scores
    return Alignment(
        source=[visible(token) for token in example.tokens],
        written=spelled(tokenizer, ids[0, 1:].tolist()),
        explained=_explained(model, example, tokenizer.decode(ids[0], skip_special_tokens=True)),
        what=WHAT[next(iter(scores))].format(f"y, {LOGIT}"),
        scores={unit: example.by_token(rows) for unit, rows in scores.items()},
        first_length=len(example.tokens),
        how_to_read=READING.get(next(iter(scores)), "the larger, the more attention; there are no signs"),
    )


def _explained(model: PreTrainedModel, example: Example, text: str) -> str:
    cut = f" The source was truncated by {example.truncated} tokens."
    free = " Raw signs are not comparable between models: negating all coefficients changes no output."
    shows_signs = signs_are_free(model) and not attends_between_tokens(model)
    return f'Generated: "{visible(text)}".{cut if example.truncated else ""}{free if shows_signs else ""}'


def _rows(model: PreTrainedModel, inputs: dict[str, Tensor], ids: Tensor) -> tuple[Tensor, Tensor]:
    """Attention and contributions, `[generated, source]` each, of the generated ids."""
    inputs = inputs | {"decoder_input_ids": ids[:, :-1]}
    between_tokens = attends_between_tokens(model)
    layers = cross_attention(model, inputs) if between_tokens else None
    outputs, recorded = record_coefficients(model, inputs, layers)
    logits, attended, contributions = outputs.logits[0], [], []
    chosen = _explained_logits(logits, ids)
    for step, y in enumerate(chosen):
        # a recurrent model calls its layer once per step, others once for all steps
        calls, row = (recorded, step) if between_tokens else ([recorded[step]], 0)
        gradients = torch.autograd.grad(y, calls, retain_graph=True, materialize_grads=True)
        own = torch.stack([a.detach()[0, :, row].float() for a in calls])  # [layers, heads, source]
        contributions.append((own * torch.stack([gradient[0, :, row] for gradient in gradients])).sum((0, 1)))
        attended.append(own.abs().mean((0, 1)) if between_tokens else own[0, 0])
    return torch.stack(attended).cpu(), torch.stack(contributions).cpu()


def _explained_logits(logits: Tensor, ids: Tensor) -> Tensor:
    """`y` of every generated id, `[generated]`, from logits `[generated, vocabulary]`."""
    return logits.gather(-1, ids[0, 1:, None]).squeeze(-1) - logits.mean(-1)


def _relevance_rows(model: PreTrainedModel, inputs: dict[str, Tensor], ids: Tensor) -> Tensor:
    """The relevance of the source tokens for each generated id, `[generated, source]`; what is generated is given."""
    if not attends_between_tokens(model):
        raise NoRule(f"AttnLRP has no rule for recurrent models such as {type(model).__name__}; use contributions.")
    embedding = model.get_encoder().get_input_embeddings()
    start = embedding(inputs["input_ids"]).detach().requires_grad_()
    calls: list[nn.Module] = []

    def first_call_of_the_encoder(module: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> Tensor:
        calls.append(module)  # the decoder may share the embedding
        return start.clone() if len(calls) == 1 else output

    with hooked([embedding], after=first_call_of_the_encoder), relevance_rules(model):
        logits = model(**inputs, decoder_input_ids=ids[:, :-1]).logits[0]
    chosen = _explained_logits(logits, ids)
    rows = [torch.autograd.grad(y, start, retain_graph=True)[0] for y in chosen]
    return torch.stack([(start * row)[0].sum(-1).detach() for row in rows]).cpu()


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
