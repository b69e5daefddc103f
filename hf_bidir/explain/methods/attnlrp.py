"""AttnLRP: relevance that flows from the output to the input in one modified backward pass.

Each operation computes the same value, with a derivative whose product with the input is relevance.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only
from transformers import PreTrainedModel

from hf_bidir.checkpoints.layer_hooks import edited_projections, in_evaluation, observed_layers
from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.modeling.activations import upcast
from hf_bidir.modeling.signed_layers import signed_layers

from ..forward import ForwardCache, attends_between_tokens
from ..readout import readout_of
from ..registry import NoRule
from ..request import Request
from .gradients import InputFunction

# Shares of the relevance of `a v`: the product gives half to the values and half to the coefficients, which give what
# their normaliser does not absorb to query and key, half each.
QUERY, KEY, VALUE = 0.25, 0.25, 0.5


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Operations by name, without underscores: add stands for add_ and __add__, iadd for __iadd__.
LINEAR = _names(
    """adaptive_avg_pool1d adaptive_avg_pool2d add alias amax amin as_strided atleast_2d avg_pool1d avg_pool2d
    batch_norm bfloat16 broadcast_to cat chunk clone concat concatenate constant_pad_nd contiguous conv1d conv2d conv3d
    conv_transpose2d copy cpu cuda cumsum diagonal double dropout embedding expand expand_as feature_dropout
    flatten flip float fold gather get getitem half hstack iadd index_add index_copy index_put index_select
    interpolate isub masked_fill masked_scatter masked_select max max_pool1d max_pool2d mean min moveaxis movedim
    narrow neg negative new_tensor pad permute positive radd repeat repeat_interleave requires_grad reshape
    reshape_as roll rot90 rsub scatter scatter_add select setitem sort split split_with_sizes squeeze stack sub
    subtract sum swapaxes swapdims t take_along_dim tensor_split tile to topk transpose tril triu type type_as
    unbind unflatten unfold unsqueeze upsample_bicubic2d view view_as view_as_complex view_as_real vstack where"""
)
# Their Jacobian at the point: normalisers, as in AttnLRP, and functions with f(0) ≠ 0, whose f(x)/x has no limit at 0.
AS_GRADIENT = _names("softmax log_softmax logsumexp cos exp hardsigmoid log logsigmoid sigmoid softplus")
PROPORTIONAL = _names(  # x times a constant f(x)/x
    """abs celu clamp clamp_max clamp_min clip elu erf gelu hardswish hardtanh leaky_relu log1p mish normalize pow relu
    relu6 rms_norm selu silu sin softsign sqrt square tanh threshold"""
)
PRODUCTS = _names("bmm dot einsum grouped_mm imul linear matmul mm mul multiply mv rmul")
SUMS_OF_PRODUCTS = _names("addmm baddbmm addbmm addmv")  # the first operand is added
QUOTIENTS = _names("div divide idiv true_divide truediv")
CONSTANT = _names("rdiv reciprocal rsqrt rtruediv std var norm vector_norm")  # the scales of norms


def relevance(cache: ForwardCache, request: Request) -> Tensor:
    """The relevance of every token for `y`: AttnLRP (Achtibat et al. 2024), with a rule for signed attention.

    Computed as input times a modified gradient. A nonlinearity `f` outside the attention counts as `x · f(x)/x` with a
    constant second factor, a norm has a constant scale, a product of two states halves the gradient, and attention
    divides the gradient of query and key by 4 and that of the value by 2. Of the function from scores to coefficients,
    softmax or signed, the Jacobian at the point is used. docs/explanations.md derives the rule. At `λ = 1` it does not
    depend on the arbitrary signs of heads.

    The relevance of an example sums to `y`, except for what biases, position embeddings and the normalisers of the
    attention absorb.

    Returns:
        `[batch, length]`, zero for padding and for the tokens before an image's patches.

    Raises:
        NoRule: an operation without a rule, which is named.
    """
    with torch.inference_mode(False), torch.enable_grad(), in_evaluation(cache.model):
        function = InputFunction(cache, request)
        start = function.start.clone().requires_grad_()
        with relevance_rules(cache.model):
            outputs = function.run(start, function.rows)
            y = readout_of(cache, request, outputs)(outputs)
        (gradient,) = torch.autograd.grad(y.sum(), start)
        return function.by_token(function.start * gradient)


@contextmanager
def relevance_rules(model: PreTrainedModel) -> Iterator[None]:
    """Context in which a forward pass of a signed model builds a graph whose gradient times input is relevance.

    Weights are constants inside the context. A backward pass may follow after it. Raises NoRule for a model with a
    single query, and for attention outside transformers' interface.
    """
    if not attends_between_tokens(model):
        raise _no_rule(f"{type(model).__name__}, whose tokens do not attend to each other")
    for layer in signed_layers(model):
        if hasattr(layer, "stock_class"):
            raise _no_rule(f"layers with attention of their own, such as {type(layer).__name__}")
    rules = RelevanceRules()

    def entered(*_: Any) -> None:
        rules.paused += 1

    def projected(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        entered()
        return _scaled(query, QUERY), _scaled(key, KEY), _scaled(value, VALUE)

    def left(*_: Any) -> None:
        rules.paused -= 1

    def activated(module: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> Tensor:
        left()
        with torch._C.DisableTorchFunction():
            return Proportional.apply(args[0], output)

    # activations of several operations, such as NewGELU, count as one
    activations = [part for part in model.modules() if type(part).__module__ == "transformers.activations"]
    with (
        edited_projections(model, projected),
        observed_layers(model, left),
        hooked(activations, before=entered, after=activated),
        rules,
    ):
        yield


class RelevanceRules(TorchFunctionMode):
    """Replaces each operation by one with the same value, and the derivative of its rule."""

    paused = 0  # depth of parts with a rule of their own

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if not torch.is_grad_enabled():  # such as accelerate's, which puts weights in their place
            return function(*args, **kwargs)
        # weights are constants
        args, kwargs = tree_map_only(nn.Parameter, Tensor.detach, (args, kwargs))
        if self.paused or not _dependent(args, kwargs):
            return function(*args, **kwargs)
        name = function.__name__.strip("_").removeprefix("linalg_")
        return _apply(function, name, args, kwargs)


def _dependent(*operands: Any) -> int:
    """The number of tensors that depend on the input."""
    return sum(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in tree_leaves(operands))


def _apply(function: Callable, name: str, args: tuple, kwargs: dict) -> Any:
    """The operation with the derivative of its rule. Raises NoRule for one without."""
    if name == "layer_norm":
        return _layer_norm(*args, **kwargs)
    if name in QUOTIENTS:
        dividend, *divisor = args
        return function(dividend, *tree_map_only(Tensor, Tensor.detach, divisor), **kwargs)
    if name in PROPORTIONAL:
        return _proportional(function, name, args, kwargs)
    output = function(*args, **kwargs)
    if name in LINEAR or name in AS_GRADIENT or not _dependent(output):
        return output
    states = _dependent(args[1:3] if name in SUMS_OF_PRODUCTS else args, kwargs)
    if name in PRODUCTS and states == 2:
        output.register_hook(lambda gradient: gradient / 2)
        return output
    if name in PRODUCTS | SUMS_OF_PRODUCTS and states < 2:
        return output
    if name in CONSTANT:
        return output.detach()
    if name in ("std_mean", "var_mean"):
        return output[0].detach(), output[1]
    raise _no_rule(f"the operation {function.__name__}")


def _proportional(function: Callable, name: str, args: tuple, kwargs: dict) -> Tensor:
    """A function `f` of one tensor as `x · f(x)/x`; a negative power is the constant scale of a norm."""
    x, *more = args or (kwargs.pop("input"),)
    overwritten = function.__name__ == f"{name}_"
    if overwritten or _dependent(x) == 0 or _dependent(more) > 0:
        raise _no_rule(f"the operation {function.__name__}")
    if "inplace" in kwargs:
        kwargs["inplace"] = False
    output = function(x, *more, **kwargs)
    exponent = kwargs.get("exponent", more[0] if more else 1)
    if name == "pow" and isinstance(exponent, int | float) and exponent < 0:
        return output.detach()
    return Proportional.apply(x, output)


def _layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Layer norm with a constant standard deviation; the parameters are those of torch."""
    dims = tuple(range(-len(normalized_shape), 0))
    states = upcast(input)
    centred = states - states.mean(dims, keepdim=True)
    variance = centred.detach().pow(2).mean(dims, keepdim=True)
    normed = centred * (variance + eps).rsqrt()
    if weight is not None:
        normed = normed * weight
    if bias is not None:
        normed = normed + bias
    return normed.to(input.dtype)


def _no_rule(what: str) -> NoRule:
    return NoRule(
        f"AttnLRP has no rule for {what}; use contributions, erasure or integrated-gradients instead, which need no "
        "rules."
    )


class Proportional(torch.autograd.Function):
    """The output as `x` times a constant `output / x`; no relevance is passed on where that is not finite."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, output: Tensor) -> Tensor:
        ratio = output / x
        ctx.save_for_backward(torch.where(ratio.isfinite(), ratio, 0))
        return output.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (ratio,) = ctx.saved_tensors
        return gradient * ratio, None


def _scaled(x: Tensor, factor: float) -> Tensor:
    """`x`, with its gradient scaled by the factor."""
    x = x.view_as(x)
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient * factor)
    return x
