"""AttnLRP: relevance that flows from the output to the input in one modified backward pass."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.checkpoints.layer_hooks import edited_projections, hooked, in_evaluation, observed_layers
from hf_bidir.explain.methods import NoRule
from hf_bidir.explain.methods.attnlrp_rules import KEY, OTHERS, QUERY, VALUE, RelevanceRules, scaled
from hf_bidir.explain.methods.input_function import InputFunction
from hf_bidir.explain.record import Inputs, attends_between_tokens
from hf_bidir.explain.target import Target


def relevance(
    model: PreTrainedModel,
    inputs: Inputs,
    target: Target = None,
    *,
    position: int | Tensor | None = None,
    through_scores: bool = True,
) -> Tensor:
    """The relevance of every token for `y`: AttnLRP (Achtibat et al. 2024), with a rule for signed attention.

    Computed as input times a modified gradient. A nonlinearity `f` outside the attention counts as `x · f(x)/x` with a
    constant second factor, a norm has a constant scale, a product of two states halves the gradient, and attention
    divides the gradient of query and key by 4 and that of the value by 2. Of the function from scores to coefficients,
    softmax or signed, the Jacobian at the point is used. docs/explanations.md derives the rule. At `λ = 1` it does not
    depend on the arbitrary signs of heads.

    The relevance of an example sums to `y`, except for what biases, position embeddings and the normalisers of the
    attention absorb.

    Other arguments and errors as in `contributions`.

    Args:
        through_scores: whether relevance flows through the coefficients to query and key, as in AttnLRP. If not, the
            coefficients absorb their half of it.

    Returns:
        `[batch, length]`, zero for padding and for the tokens before an image's patches.

    Raises:
        NoRule: an operation without a rule, which is named.
    """
    with _differentiable(model):
        function = InputFunction.of(model, inputs, target, position, one_point=True)
        return function.by_token(function.start * _gradient(function, function.start, through_scores))


def integrated_relevance(
    model: PreTrainedModel,
    inputs: Inputs,
    target: Target = None,
    *,
    position: int | Tensor | None = None,
    steps: int = 2,
    keep_first: bool | None = None,
) -> Tensor:
    """`(x - x')` times the mean of AttnLRP's modified gradient on the line from a baseline x' to the input x.

    Integrated gradients with the modified gradient of AttnLRP, which changes little along the line, so that few steps
    suffice. It is the gradient of no function: unlike integrated gradients, the scores need not sum to the change of
    `y`. The baseline is that of `integrated_gradients`. Other arguments, result and errors as in `relevance`.

    Args:
        steps: points on the line, the midpoints of as many parts; a single example takes one forward and backward pass
            of as many copies, many examples one pass for each point.
        keep_first: as in `integrated_gradients`.
    """
    if steps < 1:
        raise ValueError(f"expected at least one step, got {steps}.")
    with _differentiable(model):
        function = InputFunction.of(model, inputs, target, position, keep_first=keep_first)
        change = function.start - function.baseline
        points = [function.baseline + (step + 0.5) / steps * change for step in range(steps)]
        # all points of one example at once; of many examples fewer, because of memory
        rows = len(change) * max(1, steps // len(change))
        found = torch.cat([_gradient(function, part) for part in torch.cat(points).split(rows)])
        gradient = found.unflatten(0, (steps, -1)).mean(0)
    return function.by_token(change * gradient)


@contextmanager
def _differentiable(model: PreTrainedModel) -> Iterator[None]:
    """Context in which the model computes a relevance.

    Raises:
        NoRule: a recurrent model.
    """
    if not attends_between_tokens(model):
        raise NoRule(f"AttnLRP has no rule for recurrent models such as {type(model).__name__}; {OTHERS}.")
    with torch.inference_mode(False), torch.enable_grad(), in_evaluation(model):
        yield


def _gradient(function: InputFunction, point: Tensor, through_scores: bool = True) -> Tensor:
    """The modified gradient of `y` at one point per example or several, `[points * batch, ...]`, of the same shape."""
    point = point.clone().requires_grad_()
    with relevance_rules(function.model, through_scores):
        y = function.score(point, function.rows.repeat(len(point) // len(function.start)))
    return torch.autograd.grad(y.sum(), point)[0]


@contextmanager
def relevance_rules(model: PreTrainedModel, through_scores: bool = True) -> Iterator[None]:
    """Context in which a forward pass of a signed model builds a graph whose gradient times input is relevance.

    Weights are constants inside the context. A backward pass may follow after it.
    """
    rules = RelevanceRules()

    def projected(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        rules.paused += 1  # until the layer is observed
        shares = (QUERY, KEY, VALUE) if through_scores else (0.0, 0.0, VALUE)
        return tuple(scaled(x, share) for x, share in zip((query, key, value), shares, strict=True))

    def attended(*_: Any) -> None:
        rules.paused -= 1

    with ExitStack() as stack:
        stack.enter_context(edited_projections(model, projected))
        stack.enter_context(observed_layers(model, attended))
        # activations of several operations, such as NewGELU, count as one
        activations = [part for part in model.modules() if type(part).__module__ == "transformers.activations"]
        stack.enter_context(hooked(activations, before=rules.enter_activation, after=rules.leave_activation))
        stack.enter_context(rules)
        yield
