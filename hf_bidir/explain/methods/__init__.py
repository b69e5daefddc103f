"""All methods under one signature; the file of a method is imported when the method is first used."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.checkpoints.signing import unwrapped
from hf_bidir.explain.forward import ForwardCache
from hf_bidir.explain.registry import METHODS, NoRule
from hf_bidir.explain.request import Position, Request, Target, check_supported, why_fast

SINK = 0.9  # share of the scores on the first or a special token from which they do not rank the others


def token_scores(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    method: str | None = None,
    target: Target = None,
    *,
    position: Position = None,
    **where: int | None,
) -> Tensor:
    """Scores of one method of `METHODS`, one per token, `[batch, length]`; padding gets zeros.

    Args:
        model: a bidir model, on any attention backend. `load_checkpoint` loads softmax checkpoints as bidir models.
        inputs: a batch of model inputs.
        method: a name of `METHODS`; None selects `default_method`.
        target: the class whose logit is `y`, by index or name: one for all examples, or one index per example. None
            selects the predicted class. For a model without a head, `y` projects its hidden state on itself. Methods
            without signs ignore the target.
        position: for heads with an output per token, the position to explain. For models without a head the default
            is the first token, or the last one in causal attention.
        where: layer and head, as in `Request`.

    Raises:
        ValueError: no input, an unknown method, target, layer or head, a layer or head for a method that takes none, or
            a method that the model does not support.
    """
    model = unwrapped(model)
    request = Request(method, target, position=position, **where)  # type: ignore[arg-type]
    cache = ForwardCache(model, inputs)
    return scores_of(cache, request.with_method(model, cache.passes))


def scores_of(cache: ForwardCache, request: Request) -> Tensor:
    """Scores `[batch, length]` by the method of a request; errors as in `token_scores`."""
    check_supported(cache.model, request)
    assert request.method is not None
    return METHODS[request.method].scores(cache, request)


def scores_by_default(cache: ForwardCache, request: Request) -> tuple[Tensor, str, str]:
    """Scores `[batch, length]` by the method of a request or the default, the method, and why it is another default.

    Where the model has an operation without a rule of the default method, contributions replace it.
    """
    chosen = request.with_method(cache.model, cache.passes)
    try:
        why = "" if request.method else why_fast(chosen.method, cache.passes)
        return scores_of(cache, chosen), str(chosen.method), why
    except NoRule as error:
        if request.method is not None:
            raise
        why = f"The default method, {chosen.method}, does not apply: {error}"
        return scores_of(cache, replace(chosen, method="contributions")), "contributions", why


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
