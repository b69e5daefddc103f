"""Signed attention in layers that compute attention by themselves, outside transformers' attention interface.

Inside the `forward` of such a layer a torch function mode replaces the softmax over keys, and torch's own attention, by
the signed activation. Everything else, such as position terms in the scores and dropout, stays the layer's.

A mask is part of the scores there. A very low score has no weight in a softmax, but a large negative one in a signed
activation. So a key whose score is at most `FLOOR` is dropped, and a mask that is added to scores is lowered to the
smallest number first, because models also mask with -100, which scores of real models reach. A maximum subtracted from
the scores does not change a softmax, but does change a signed activation: that subtraction is left out.
"""

import functools
import inspect
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .activations import WITH_NEGATIVE_MASS
from .attention import attend
from .attention_call import MASKED, attention_call, is_captured
from .eager_attention import activated, grouped_matmul
from .interventions import NONE, Interventions, running_call
from .signed_attention import Plan, heads_of, plan_of

FLOOR = -1000.0  # scores of at most this drop their key; masks of -1e4 and of the smallest fp16 number stay below it
MASKS = ("attention_mask", "attn_mask")  # parameters of the `forward` of layers
SOFTMAX = {F.softmax, torch.softmax, torch.special.softmax, Tensor.softmax}
ADDING = {torch.baddbmm, Tensor.baddbmm}  # they add a product to their first argument
PRODUCT = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.einsum} | ADDING
MAXIMUM = {torch.amax, Tensor.amax, torch.max, Tensor.max}
DIFFERENCE = {torch.sub, Tensor.sub, Tensor.__sub__}
SUM = {torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__}
# torch's function for `nn.MultiheadAttention`, without the detour through a mode, so that its softmax is seen
_multi_head_attention = FunctionType(
    F.multi_head_attention_forward.__code__, vars(F) | {"has_torch_function": lambda _: False}
)
_multi_head_attention.__defaults__ = F.multi_head_attention_forward.__defaults__
_multi_head_attention.__kwdefaults__ = F.multi_head_attention_forward.__kwdefaults__


class OutsideAttention(nn.Module):
    """What signing adds to the class of a layer outside the interface; see `outside_class`."""

    signed_index: int
    stock_class: type[nn.Module]
    mask_found = False  # whether a call has had a mask that reached the scores

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        compiling = torch.compiler.is_compiling()
        plan, (changes, _) = plan_of(self, compiling), running_call(self, compiling)
        if changes.softmax:
            plan, changes = plan.to_softmax(), changes.to_softmax()
        if plan.softmax and changes is NONE:
            return super().forward(*args, **kwargs)
        if plan.window is not None:
            raise ValueError(
                f"{type(self).__name__} computes its own attention, which takes no attn_window; set attn_window=None "
                'and attn_scope="global".'
            )
        operators = SignedOperators(self, plan, changes)
        with operators:
            outputs = super().forward(*args, **kwargs)
        if operators.multiplied and not operators.found:
            raise ValueError(
                f"{type(self).__name__} computed no softmax over keys that signed attention could replace; set its "
                "negative mass to 0, or sign the model with partial=True."
            )
        if not (compiling or self.mask_found or operators.keep is None or is_captured(operators.keep)):
            self.check_mask(operators.keep, args, kwargs)
        return outputs

    def check_mask(self, keep: Tensor, args: tuple, kwargs: dict) -> None:
        """Raise ValueError if a call has a mask that drops keys, and all scores are kept."""
        given = _signature(self.stock_class).bind(self, *args, **kwargs).arguments  # type: ignore[arg-type]
        masks = [x for name, x in given.items() if name in MASKS and isinstance(x, Tensor) and x.is_floating_point()]
        if not any((mask <= MASKED).any() for mask in masks):
            return
        if keep.all():
            raise ValueError(
                f"{type(self).__name__} applies its attention mask where signed attention does not see it, so that "
                "padding would have weights; call the model without padding, or sign it with partial=True."
            )
        self.mask_found = True

    def __reduce_ex__(self, protocol: Any) -> tuple:
        return _restored, (self.stock_class,), self.__getstate__()


@functools.cache
def _signature(stock: type[nn.Module]) -> inspect.Signature:
    return inspect.signature(stock.forward)


@functools.cache
def outside_class(stock: type[nn.Module]) -> type[nn.Module]:
    """The class of a layer, of the same name, whose softmax is signed."""
    names = {name: getattr(stock, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(stock.__name__, (OutsideAttention, stock), names | {"stock_class": stock})


def _restored(stock: type[nn.Module]) -> nn.Module:
    """An empty layer, for copies and pickles."""
    made: Any = outside_class(stock)  # type: ignore[arg-type]
    return made.__new__(made)


class SignedOperators(TorchFunctionMode):
    """Replaces the attention operators of one call of a layer, as its plan says."""

    def __init__(self, layer: OutsideAttention, plan: Plan, changes: Interventions):
        super().__init__()
        self.layer, self.plan, self.changes = layer, plan, changes
        self.multiplied = self.found = False  # whether there was a product of tensors, and a softmax over keys
        self.maximum: Tensor | None = None  # the last maximum of a tensor
        self.keep: Tensor | None = None  # which of the last scores were not masked
        # of the products before the softmax: number of entries, equation of einsum, second factor
        self.products: list[tuple[int, str, Tensor]] = []
        self.coefficients: Tensor | None = None  # until they are multiplied by values

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if function in SOFTMAX:
            return self.softmax(function, *args, **kwargs)
        if function is F.scaled_dot_product_attention:
            return self.attention(*args, **kwargs)
        if function is F.multi_head_attention_forward:
            with self:
                return _multi_head_attention(*args, **kwargs)
        if function in SUM and len(args) == 2:
            args = args[0], lowered(args[1], args[0])
            if function not in (Tensor.add_, Tensor.__iadd__):
                args = lowered(args[0], args[1]), args[1]
        if function in DIFFERENCE and args[1] is self.maximum and self.maximum is not None:
            return args[0]
        result = function(*args, **kwargs)
        if function in MAXIMUM:
            self.maximum = result if isinstance(result, Tensor) else result[0]
        elif function is Tensor.detach and args[0] is self.maximum:
            self.maximum = result
        self.multiplied = self.multiplied or function in PRODUCT
        if self.changes.observe:
            self.follow(function, args, kwargs, result)
        return result

    def softmax(
        self, function: Any, input: Tensor, dim: int | None = None, *more: Any, dtype: Any = None, **options: Any
    ) -> Tensor:
        """The coefficients for scores `[..., keys]`; softmax itself over another dimension."""
        dtype = next((x for x in more if isinstance(x, torch.dtype)), dtype)  # third argument of torch.softmax
        if dim not in (-1, input.dim() - 1):
            return function(input, dim, dtype=dtype)
        if self.changes.project:
            raise self.unavailable("a method that changes its queries, keys or values", input)
        self.found = True
        scores = input if dtype is None else input.to(dtype)
        keep = self.keep = None if self.plan.softmax else ~(scores <= FLOOR)
        if self.changes.keep is not None:
            keep = self.changes.kept(keep)
        activation = "softmax" if self.plan.softmax else self.plan.activation
        coefficients = activated(scores, keep, activation, self.mass(scores))
        if self.changes.edit:
            coefficients = self.changes.edit(self.by_head(coefficients)).reshape(coefficients.shape)
        self.coefficients = coefficients
        return coefficients

    def mass(self, scores: Tensor) -> float | Tensor:
        """The negative mass, broadcastable to the scores: `[batch, heads, ...]`, `[batch * heads, queries, keys]`, or
        with the heads in another dimension."""
        mass = self.plan.negative_mass
        if not isinstance(mass, list) or self.plan.activation not in WITH_NEGATIVE_MASS:
            return mass  # type: ignore[return-value]
        heads, shape = len(mass), scores.shape
        by_head = torch.tensor(mass, device=scores.device)
        if scores.dim() == 3 and shape[0] % heads == 0:
            return by_head.repeat(shape[0] // heads)[:, None, None]
        axes = [axis for axis in range(1, scores.dim() - 1) if shape[axis] == heads]
        if not axes:
            raise self.unavailable(f"a negative mass for each of {heads} heads", scores)
        return by_head.view(-1, *[1] * (scores.dim() - 1 - axes[0]))

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """torch's attention, `[batch, heads, length, head_dim]`."""
        if query.dim() != 4:
            raise self.unavailable("torch's attention", query)
        self.found = True
        if self.changes.project:
            query, key, value = self.changes.project(query, key, value)
        keep, bias = attn_mask, None
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            attn_mask = lowered(attn_mask)
            keep = ~(attn_mask <= FLOOR)
            bias = attn_mask.masked_fill(~keep, 0)
        while keep is not None and keep.dim() < 4:
            keep = keep.unsqueeze(0)
        keep = self.changes.kept(keep)
        call = attention_call(
            query, key, self.plan.activation, self.plan.negative_mass, scale, dropout_p, is_causal, bias=bias
        )
        context, coefficients = attend(query, key, value, keep, call, "eager" if self.changes.edit else "auto")
        if self.changes.edit and coefficients is not None:
            context = grouped_matmul(self.changes.edit(coefficients), value)
        if self.changes.observe:
            self.changes.observe(self.layer, key, value, context.transpose(1, 2))
        return context

    def follow(self, function: Any, args: tuple, kwargs: dict, result: Any) -> None:
        """Observe the layer when coefficients are multiplied by values; the first product before was that with keys."""
        if function not in PRODUCT:
            same = args and args[0] is self.coefficients and isinstance(result, Tensor)
            if same and result.numel() == args[0].numel():  # after dropout, or in another layout
                self.coefficients = result
            return
        equation = args[0] if function is torch.einsum else ""
        operands: Any = (*args, *kwargs.values())[1 if equation or function in ADDING else 0 :]
        operands = operands[0] if isinstance(operands[0], tuple | list) else operands
        if equation and len(operands) != 2:
            return
        if self.coefficients is None:
            self.products.append((result.numel(), equation, operands[1]))
        elif operands[0] is self.coefficients:
            found: Any = (x for count, *x in self.products if count == self.coefficients.numel())
            of_keys, key = next(found, ("", None))
            if key is None:
                raise self.unavailable("an explanation that needs its keys", self.coefficients)
            key = self.by_head(_in_order(of_keys, key, "key"))
            value = self.by_head(_in_order(equation, operands[1], "value"))
            context = self.by_head(_in_order(equation, result, "context"))
            self.changes.observe(self.layer, key, value, context.transpose(1, 2))  # type: ignore[misc]
            self.coefficients, self.products = None, []

    def by_head(self, x: Tensor) -> Tensor:
        """`[batch * heads, ...]` as `[batch, heads, ...]`."""
        heads = heads_of(self.layer)
        if x.dim() == 3 and heads and x.shape[0] % heads == 0:
            x = x.unflatten(0, (-1, heads))
        if x.dim() != 4 or (heads and x.shape[1] != heads):
            raise self.unavailable("this explanation", x)
        return x

    def unavailable(self, what: str, x: Tensor) -> ValueError:
        return ValueError(
            f"{type(self.layer).__name__} computes its own attention, with {tuple(x.shape)} for [batch, heads, "
            f"queries, keys]; {what} is not available for it."
        )


def lowered(term: Any, scores: Any = None) -> Any:
    """A mask with the smallest number of its dtype in place of what drops a key; any other term as it is.

    A mask is a tensor of zeros and of numbers of at most `MASKED`, added to scores with as many keys.
    """
    if not isinstance(term, Tensor) or not term.is_floating_point() or term.dim() < 2 or term.shape[-1] == 1:
        return term
    if scores is not None and not (isinstance(scores, Tensor) and scores.dim() and scores.shape[-1] == term.shape[-1]):
        return term
    dropped = term <= MASKED
    is_mask = ((term == 0) | dropped).all() & ~dropped.all()  # a tensor: the CPU does not wait for a GPU
    return term.masked_fill(dropped & is_mask, torch.finfo(term.dtype).min)


def _in_order(equation: str, x: Tensor, role: str) -> Tensor:
    """The key or value as `[..., heads, keys, head_dim]`, or the context as `[..., heads, queries, head_dim]`.

    Args:
        equation: of `torch.einsum` of query and key, or of coefficients and value; empty for another product.
        x: the second factor or, for the context, the product.
    """
    if not equation:
        return x.mT if role == "key" else x
    inputs, output = equation.replace(" ", "").split("->")
    first, second = inputs.split(",")
    both = first if role != "key" else output  # of scores or coefficients: batch, heads, queries, keys
    labels = output if role == "context" else second
    features = [label for label in labels if label not in both]
    return x.permute([labels.index(label) for label in [c for c in both if c in labels] + features])
