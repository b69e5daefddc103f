"""AttnLRP: relevance that flows from the output to the input in one modified backward pass."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from hf_bidir.checkpoints.layer_hooks import edited_projections, in_evaluation, observed_layers
from hf_bidir.explain.input_function import InputFunction
from hf_bidir.explain.readout import Target
from hf_bidir.explain.running import attends_between_tokens

# Shares of the relevance of `a v`: the product gives half to the values and half to the coefficients, which give what
# their normaliser does not absorb to query and key, half each.
QUERY, KEY, VALUE = 0.25, 0.25, 0.5


class NoRule(ValueError):
    """A model or operation without a rule of AttnLRP."""


OTHERS = "use contributions, erasure or integrated-gradients instead, which need no rules"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# The rules, by the name of the operation. Gradient times input of linear operations is their relevance; in-place forms,
# such as add_ and __iadd__, follow the rule of their operation.
LINEAR = _names(
    """__get__ __getitem__ __neg__ __setitem__ adaptive_avg_pool1d adaptive_avg_pool2d add alias amax amin
    as_strided atleast_2d avg_pool1d avg_pool2d bfloat16 broadcast_to cat chunk clone concat concatenate
    constant_pad_nd contiguous conv1d conv2d conv3d conv_transpose2d copy cpu cuda cumsum diagonal double dropout
    embedding expand expand_as feature_dropout flatten flip float fold gather half hstack index_add index_copy
    index_put index_select interpolate lerp masked_fill masked_scatter masked_select max max_pool1d
    max_pool2d mean min moveaxis movedim narrow neg negative new_tensor pad permute positive prod
    repeat repeat_interleave requires_grad reshape reshape_as roll rot90 rsub scatter scatter_add select sort split
    split_with_sizes squeeze stack sub subtract sum swapaxes swapdims t take_along_dim tensor_split tile to topk
    transpose tril triu type type_as unbind unflatten unfold unsqueeze upsample_bicubic2d view view_as
    view_as_complex view_as_real vstack where"""
)
# Their Jacobian at the point: normalisers, as in AttnLRP, and functions with f(0) ≠ 0, whose f(x)/x has no limit at 0.
AS_GRADIENT = _names("softmax log_softmax logsumexp cos exp hardsigmoid log logsigmoid sigmoid softplus")
ELEMENTWISE = _names(
    """abs celu clamp clamp_max clamp_min clip elu erf gelu hardswish hardtanh leaky_relu log1p
    mish pow relu relu6 selu silu sin softsign sqrt square tanh threshold"""
)
PRODUCTS = frozenset(
    {"_grouped_mm", "baddbmm", "bmm", "einsum", "linear", "addmm", "matmul", "mm", "mul", "multiply", "mv", "dot"}
)
QUOTIENTS = frozenset({"div", "divide", "true_divide", "truediv"})
CONSTANT = frozenset({"reciprocal", "rsqrt", "std", "std_mean", "var", "var_mean", "norm", "vector_norm", "rtruediv"})


def relevance(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    target: Target = None,
    *,
    position: int | Tensor | None = None,
    through_scores: bool = True,
) -> Tensor:
    """The relevance of every token for `y`: AttnLRP (Achtibat et al. 2024), with a rule for signed attention.

    Computed as input times a modified gradient. Every nonlinearity `f` counts as `x · f(x)/x` with a constant second
    factor, every norm has a constant scale, a product of two states halves the gradient, and attention divides the
    gradient of query and key by 4 and that of the value by 2. Of softmax and of the sinh/cosh normaliser, the Jacobian
    at the point is used. docs/explanations.md derives the rule. At `λ = 1` it does not depend on the arbitrary signs of
    heads.

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
    inputs: Mapping[str, Tensor],
    target: Target = None,
    *,
    position: int | Tensor | None = None,
    steps: int = 2,
) -> Tensor:
    """`(x - x')` times the mean of AttnLRP's modified gradient on the line from a baseline x' to the input x.

    Integrated gradients with the gradient of AttnLRP, which is smooth enough for a few steps. The baseline is that of
    `integrated_gradients`. Other arguments, result and errors as in `relevance`.

    Args:
        steps: points on the line, the midpoints of as many parts; each one forward and backward pass.
    """
    with _differentiable(model):
        function = InputFunction.of(model, inputs, target, position)
        change, gradient = function.start - function.baseline, torch.zeros_like(function.start)
        for step in range(steps):
            gradient += _gradient(function, function.baseline + (step + 0.5) / steps * change) / steps
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
    """The modified gradient of `y` at a point, of the same shape."""
    point = point.clone().requires_grad_()
    with relevance_rules(function.model, through_scores):
        y = function.score(point, function.rows)
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
        stack.enter_context(_frozen(model))
        stack.enter_context(edited_projections(model, projected))
        stack.enter_context(observed_layers(model, attended))
        for module in model.modules():
            # activations of several operations, such as NewGELU, count as one
            if type(module).__module__ == "transformers.activations":
                stack.enter_context(module.register_forward_pre_hook(rules.enter_activation))
                stack.enter_context(module.register_forward_hook(rules.leave_activation))
        stack.enter_context(rules)
        yield


class RelevanceRules(TorchFunctionMode):
    """Replaces each operation by one with the same value, and the gradient of its relevance rule."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = 0  # depth of parts with a rule of their own

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if self.paused or not torch.is_grad_enabled():
            return function(*args, **kwargs)
        depends = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if not depends:
            return function(*args, **kwargs)
        return _apply(function, _operation(function), len(depends), args, kwargs)

    def enter_activation(self, module: nn.Module, args: tuple) -> None:
        self.paused += 1

    def leave_activation(self, module: nn.Module, args: tuple, output: Tensor) -> Tensor:
        self.paused -= 1
        with torch._C.DisableTorchFunction():
            return _identity(args[0], output)


def _operation(function: Callable) -> str:
    """The name of the operation, without the marks of its in-place and operator forms."""
    name = function.__name__
    if name.startswith("__") and name not in LINEAR:
        name = name.strip("_")
        return name[1:] if name in ("iadd", "isub", "imul", "itruediv", "radd", "rmul", "ipow") else name
    return name if name.startswith("__") else name.removesuffix("_").removeprefix("linalg_")


def _apply(function: Callable, name: str, dependent: int, args: tuple, kwargs: dict) -> Any:
    """The operation with the gradient of its rule; `dependent` is the number of its operands that depend on the input.

    Raises:
        NoRule: an operation without a rule.
    """
    if name == "layer_norm":
        return _layer_norm(*args, **kwargs)
    if name in QUOTIENTS and _depends(args[1]):
        return function(args[0], args[1].detach(), *args[2:], **kwargs)
    if name == "scaled_dot_product_attention":
        query, key, value, *others = args
        return function(scaled(query, QUERY), scaled(key, KEY), scaled(value, VALUE), *others, **kwargs)
    output = function(*args, **kwargs)
    if name in LINEAR or name in AS_GRADIENT or name in QUOTIENTS:
        return output
    if name in PRODUCTS and dependent <= 2:
        return output if dependent == 1 else scaled(output, 1 / dependent)
    constant = name in CONSTANT or (name == "pow" and not _depends(args[1]) and args[1] < 0)
    if not constant and (name in ELEMENTWISE or name == "rms_norm"):
        return _identity(args[0], output)
    if constant:
        return torch.utils._pytree.tree_map(Tensor.detach, output)
    if any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in tree_leaves(output)):
        raise NoRule(f"AttnLRP has no rule for the operation {function.__name__}{_inside()}; {OTHERS}.")
    return output


def _depends(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _inside() -> str:
    """The class of the module that is running, as " in …"."""
    frame = inspect.currentframe()
    while frame is not None:
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module):
            return f" in {type(module).__name__}"
        frame = frame.f_back
    return ""


def _identity(x: Tensor, output: Tensor) -> Tensor:
    """`output` as `x · (output / x)` with a constant second factor; 0 has no relevance to pass on."""
    ratio = torch.where(x == 0, 0, output / x).detach()
    return output.detach() + ratio * (x - x.detach())


def _layer_norm(
    x: Tensor, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Layer norm with a constant standard deviation."""
    dims = tuple(range(-len(shape), 0))
    centred = x - x.mean(dims, keepdim=True)
    normed = centred * (centred.detach().pow(2).mean(dims, keepdim=True) + eps).rsqrt()
    normed = normed if weight is None else normed * weight
    return normed if bias is None else normed + bias


def scaled(x: Tensor, factor: float) -> Tensor:
    """`x`, with its gradient scaled by the factor."""
    return _Scaled.apply(x, factor)


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:  # type: ignore[override]
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient * ctx.factor, None


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Context in which no weight requires a gradient, so that only what depends on the input does."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
