"""What an encoder-decoder looked at in its source while it wrote."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.explain.alignment import ANSWER, Alignment, visible
from hf_bidir.explain.checkpoint import Example, read_text, text_limit
from hf_bidir.explain.orient import signs_are_free
from hf_bidir.explain.running import attends_between_tokens, check_bidir, record_coefficients
from hf_bidir.modeling.signed_layers import signed_layers

CONTRIBUTION, COEFFICIENT, SIZE = "a · ∂y/∂a", "coefficient a", "mean |a|"


def align(model: PreTrainedModel, tokenizer, text: str, *, num_beams: int = 1) -> Alignment:
    """Let the model write, and show for every token where it looked, and what for.

    The contribution is `a · ∂y/∂a`, where `y` is the written token's logit above the mean of all (logits that all rise
    together change no answer), summed over layers and heads. It is of this step alone, not of what later steps make of
    it, and missing for hard selection, which has no derivative. At `λ = 1` the signs of all coefficients may be swapped
    together with those of the weights that read the context, and no output changes; contributions do not change either.

    Args:
        model: a signed encoder-decoder that reads text, such as a `BidirRnnForSeq2SeqLM` or a BidirBart…, …Marian… or
            …T5ForConditionalGeneration; dropout is off while it writes.
        tokenizer: a fast one; pieces of a word are taken together in the source.
        text: the source, cut where the model's positions end.
        num_beams: of the search; 1 is greedy.

    Returns:
        The contributions and, beside them, what was attended to: the coefficients of a recurrent model, the mean size
        over layers and heads of the cross-attention of others.

    Raises:
        ValueError: a model that does not write or reads no text, or no word in the text.
    """
    check_bidir(model)
    if not model.config.is_encoder_decoder or model.main_input_name != "input_ids":
        raise ValueError(f"expected a signed encoder-decoder that reads text; got {type(model).__name__}.")
    example = read_text(tokenizer, text, text_limit(model, tokenizer))
    with torch.inference_mode(False), torch.enable_grad(), in_evaluation(model):
        inputs = {name: example.inputs[name].clone().to(model.device) for name in ("input_ids", "attention_mask")}
        ids = model.generate(**inputs, num_beams=num_beams)
        coefficients, contributions = _rows(model, inputs, ids)
    hard = getattr(model.config, "attn_selection", "soft") == "hard"
    between_tokens = attends_between_tokens(model)
    attended = {SIZE if between_tokens else COEFFICIENT: coefficients}
    scores = attended if hard else {CONTRIBUTION: contributions} | attended
    return Alignment(
        source=[visible(token) for token in example.tokens],
        written=[visible(token) for token in tokenizer.convert_ids_to_tokens(ids[0, 1:])],
        explained=_explained(model, example, tokenizer.decode(ids[0], skip_special_tokens=True)),
        what="Coefficients a of source words (hard selection has no contributions)"
        if hard
        else f"Contributions a · ∂y/∂a of source words to {ANSWER}",
        scores={unit: example.by_token(rows) for unit, rows in scores.items()},
        read=len(example.tokens),
    )


def _explained(model: PreTrainedModel, example: Example, text: str) -> str:
    cut = f" The last {example.truncated} tokens of the source did not fit and were not read."
    free = " Only contributions have signs of their own: those of all coefficients may be swapped at once."
    shows_signs = signs_are_free(model) and not attends_between_tokens(model)
    return f'Written: "{visible(text)}".{cut if example.truncated else ""}{free if shows_signs else ""}'


def _rows(model: PreTrainedModel, inputs: dict[str, Tensor], ids: Tensor) -> tuple[Tensor, Tensor]:
    """What was attended to, and contributions, `[written, source]` each, of the ids that were written."""
    inputs = inputs | {"decoder_input_ids": ids[:, :-1]}
    between_tokens = attends_between_tokens(model)
    layers = cross_attention(model, inputs) if between_tokens else None
    outputs, recorded = record_coefficients(model, inputs, layers)
    logits, attended, contributions = outputs.logits[0], [], []
    answers = logits.gather(-1, ids[0, 1:, None]).squeeze(-1) - logits.mean(-1)
    for step, y in enumerate(answers):
        # a recurrent model has one query per call of its layer, others have all steps in one
        calls, row = (recorded, step) if between_tokens else ([recorded[step]], 0)
        slopes = torch.autograd.grad(y, calls, retain_graph=True, materialize_grads=True)
        own = torch.stack([a.detach()[0, :, row].float() for a in calls])  # [layers, heads, source]
        contributions.append((own * torch.stack([slope[0, :, row] for slope in slopes])).sum((0, 1)))
        attended.append(own.abs().mean((0, 1)) if between_tokens else own[0, 0])
    return torch.stack(attended).cpu(), torch.stack(contributions).cpu()


@torch.no_grad()
def cross_attention(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> list[nn.Module]:
    """The signed layers whose keys come from the encoder.

    Raises:
        ValueError: there is none.
    """
    found: list[nn.Module] = []

    def look(layer: nn.Module, args: tuple, kwargs: dict) -> None:
        if kwargs.get("key_value_states") is not None or kwargs.get("encoder_hidden_states") is not None:
            found.append(layer)

    hooks = [layer.register_forward_pre_hook(look, with_kwargs=True) for layer in signed_layers(model)]
    try:
        model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if not found:
        raise ValueError(f"{type(model).__name__} has no signed layer whose keys come from the encoder.")
    return found
