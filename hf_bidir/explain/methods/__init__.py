"""All methods under one signature; the file of a method is imported when the method is first used."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.explain.forward import ForwardCache
from hf_bidir.explain.registry import METHODS
from hf_bidir.explain.request import Request, Target, check_position

SINK = 0.9  # share of the scores on the first or a special token from which they do not rank the others


def token_scores(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    method: str | None = None,
    target: Target = None,
    **choices: Any,
) -> Tensor:
    """Scores of one method of `METHODS`, one per token, `[batch, length]`; padding gets zeros.

    Args:
        model: a bidir model, on any attention backend. `load_checkpoint` loads softmax checkpoints as bidir models.
        inputs: a batch of model inputs.
        method: a name of `METHODS`; None selects `default_method`.
        target: the class whose logit is `y`, by index or name: one for all examples, or one index per example. None
            selects the predicted class. For a model without a head, `y` projects its hidden state on itself. Methods
            without signs ignore the target.
        choices: position, layer, head and instead_of, as in `Request`. For models without a head the default position
            is the first token, or the last one in causal attention.

    Raises:
        ValueError: no input, an unknown method, target, layer or head, a layer or head for a method that takes none, or
            a method that the model does not support.
    """
    cache = ForwardCache(model, inputs)
    request = Request(method, target, **choices).resolved(cache.model, cache.passes)
    check_position(cache.model, request.position)
    return request.entry.scores(cache, request)


def sink_note(method: str, tokens: Sequence[str], special: Sequence[bool], scores: Tensor) -> str:
    """One sentence where a sink of the attention holds almost all of the scores `[..., tokens]`, else ""."""
    totals = scores.reshape(-1, len(tokens)).sum(0)
    largest = int(totals.argmax())
    share = (totals[largest] / totals.sum()).item()
    is_sink = share >= SINK and (largest == 0 or special[largest])  # False where all scores are 0
    if METHODS[method].explains_output or not is_sink:
        return ""
    return (
        f'"{tokens[largest]}", a sink of the attention, holds {share:.0%} of the scores of {method}; they do not rank '
        "the other tokens."
    )
