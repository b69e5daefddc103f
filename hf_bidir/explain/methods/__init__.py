"""All methods under one signature; the file of a method is imported when the method is first used."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.checkpoints.kinds import kind_of
from hf_bidir.checkpoints.signing import unwrapped
from hf_bidir.explain.record import Inputs, Record, attends_between_tokens, reads_images, units_of
from hf_bidir.explain.registry import CAUSAL_DEFAULT, CAUSAL_FAST, IMAGE_DEFAULT, LAYER_DEFAULT, METHODS, TEXT_DEFAULT
from hf_bidir.explain.target import Position, Target, check_position, takes_embedding

AFFORDABLE = 64  # forward passes up to which CAUSAL_DEFAULT is the default
SINK = 0.9  # share of the scores on the first or a special token from which they do not rank the others


class NoRule(ValueError):
    """A model or operation without a rule of AttnLRP."""


class Request(NamedTuple):
    """A batch, a target, and a layer and head; None means all layers or heads, or the method's default."""

    record: Record
    target: Target = None
    position: Position = None
    layer: int | None = None
    head: int | None = None


def token_scores(
    model: PreTrainedModel,
    inputs: Inputs,
    method: str | None = None,
    target: Target = None,
    *,
    position: Position = None,
    layer: int | None = None,
    head: int | None = None,
) -> Tensor:
    """Scores of one method of `METHODS`, one per token, `[batch, length]`.

    Args:
        method: a name of `METHODS`; None selects `default_method`.
        model, inputs, target, position: as in `contributions`. Methods without signs ignore the target. They start at
            the position: by default the first token, in causal attention the last.
        layer: contributions, values and attention use this layer alone (default except for contributions: the last);
            rollout, flow, ALTI and Chefer use the layers up to it.
        head: use this head alone; by default all.

    Raises:
        ValueError: an unknown method, layer or head, a layer or head for a method that takes none, or a method that
            the model does not support.
    """
    model = unwrapped(model)
    method = method or default_method(model, layer, head, passes_of(model, inputs))
    check_method(method, layer, head)
    record = Record.of(model, inputs)
    if method not in methods_of(model):
        needed = "an output that is read from a single token" if pools_tokens(model) else "attention between tokens"
        raise ValueError(
            f"{method} needs {needed}, which {type(model).__name__} does not have; choose one of "
            f"{', '.join(methods_of(model))}."
        )
    check_position(model, position)
    return METHODS[method].scores(Request(record, target, position, layer, head))


def pools_tokens(model: PreTrainedModel) -> bool:
    """Whether the output of a sentence encoder is read from several tokens."""
    return takes_embedding(model) and bool((model.pooling_weights(torch.ones(1, 2)) % 1).any())


def methods_of(model: PreTrainedModel) -> list[str]:
    """The methods available for a model, by its inputs and its attention; `align` explains encoder-decoders."""
    if model.config.is_encoder_decoder:
        return ["contributions"]
    missing = {
        "between_tokens": not attends_between_tokens(model),
        "one_query": pools_tokens(model),
    }
    needs = [need for need, lacks in missing.items() if lacks]
    return [name for name, method in METHODS.items() if not any(getattr(method, need) for need in needs)]


def default_method(model: PreTrainedModel, layer: int | None = None, head: int | None = None, passes: int = 1) -> str:
    """An eligible method whose mean rank in research/explanations/run.py ties with the best one.

    For causal language models it is the most faithful method of research/explanations/causal.py; where that needs more
    than `AFFORDABLE` forward passes (`passes`, one per token), the most faithful one of a single backward pass. For a
    layer or head, a model with a single query and an encoder-decoder it is contributions.
    """
    if reads_images(model):
        best = IMAGE_DEFAULT
    elif kind_of(model).causal:
        best = CAUSAL_DEFAULT if passes <= AFFORDABLE else CAUSAL_FAST
    else:
        best = TEXT_DEFAULT
    return best if best in methods_of(model) and layer is None and head is None else LAYER_DEFAULT


def passes_of(model: PreTrainedModel, inputs: Inputs) -> int:
    """The forward passes that erasure takes per text, one for each token or segment, whatever the number of explained
    outputs."""
    units = units_of(inputs)
    if units is not None:
        return int((units.diff() != 0).sum(-1).max()) + 1
    inputs = inputs.inputs if isinstance(inputs, Record) else inputs
    main = inputs.get(model.main_input_name) if isinstance(inputs, Mapping) else None
    return main.shape[-1] if isinstance(main, Tensor) else 1


def why_fast(method: str, passes: int) -> str:
    """One sentence where the default of a causal language model is the fast one, else ""."""
    return (
        f"{CAUSAL_DEFAULT}, the default of causal language models, would need {passes} forward passes; {method} needs "
        f'one backward pass and is less faithful. Choose method="{CAUSAL_DEFAULT}" '
        f"(--method {CAUSAL_DEFAULT}) to wait for it."
        if method == CAUSAL_FAST
        else ""
    )


def scores_by_default(
    model: PreTrainedModel, inputs: Inputs, method: str | None, **where: Any
) -> tuple[Tensor, str, str]:
    """Scores `[batch, length]` by `method` or the default, the method used, and the reason if it is another default.

    Where the model has an operation without a rule of the default method, contributions replace it.
    """
    passes = passes_of(model, inputs)
    chosen = method or default_method(model, where.get("layer"), where.get("head"), passes)
    try:
        return token_scores(model, inputs, chosen, **where), chosen, "" if method else why_fast(chosen, passes)
    except NoRule as error:
        if method is not None:
            raise
        why = f"The default method, {chosen}, does not apply: {error}"
        return token_scores(model, inputs, "contributions", **where), "contributions", why


def sink_note(method: str, tokens: Sequence[str], special: Sequence[bool], scores: Tensor) -> str:
    """One sentence where a sink of the attention holds almost all of the scores `[..., tokens]`, else ""."""
    shares = scores.abs().reshape(-1, scores.shape[-1]).sum(0)
    largest = int(shares.argmax())
    share = shares[largest].item() / max(shares.sum().item(), torch.finfo(torch.float32).tiny)
    if METHODS[method].explains_output or len(tokens) < 2 or share < SINK or (largest and not special[largest]):
        return ""
    return (
        f'"{tokens[largest]}", a sink of the attention, holds {share:.0%} of the scores of {method}; they do '
        "not rank the other tokens."
    )


def check_method(method: str, layer: int | None = None, head: int | None = None) -> None:
    """Raise ValueError for an unknown method, or a layer or head for a method that takes none."""
    if method not in METHODS:
        from hf_bidir.common.errors import did_you_mean

        raise ValueError(
            f"unknown method {method!r}; choose one of {', '.join(METHODS)}.{did_you_mean(method, list(METHODS))}"
        )
    if METHODS[method].layers is None and (layer is not None or head is not None):
        raise ValueError(f"{method} covers the whole model; leave out layer and head, or choose another method.")
    if head is not None and not METHODS[method].takes_head:
        raise ValueError(f"{method} covers all heads of a layer; leave out head, or choose another method.")
