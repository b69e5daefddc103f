"""Signed attention in layers that compute attention by themselves, outside transformers' attention interface.

Inside the `forward` of such a layer a torch function mode replaces the softmax over keys, and torch's own attention, by
the signed activation. Everything else, such as position terms in the scores and dropout, stays the layer's.

A mask is part of the scores there. A very low score has no weight in a softmax, but a large negative one in a signed
activation. So a key whose score is at most `FLOOR` is dropped, and a mask that is added to scores is lowered to the
smallest number first, because models also mask with -100, which scores of real models reach. A maximum subtracted from
the scores does not change a softmax, but does change a signed activation: that subtraction is left out.
"""

from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .activations import activated
from .attention import attend
from .attention_call import MASKED, AttentionCall, attention_call, keep_and_bias
from .signed_layers import Plan, attention_layers, code_of

FLOOR = -1000.0  # scores of at most this drop their key; masks of -1e4 and of the smallest fp16 number stay below it
SOFTMAX = {F.softmax, torch.softmax, torch.special.softmax, Tensor.softmax}
ADDING = {torch.baddbmm, Tensor.baddbmm}  # they add a product to their first argument
PRODUCT = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.einsum} | ADDING
MAXIMUM = {torch.amax, Tensor.amax, torch.max, Tensor.max}
DIFFERENCE = {torch.sub, Tensor.sub, Tensor.__sub__}
IN_PLACE = {Tensor.add_, Tensor.__iadd__}
SUM = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__} | IN_PLACE
# torch's function for `nn.MultiheadAttention`, without the detour through a mode, so that its softmax is seen
_multi_head_attention = FunctionType(
    F.multi_head_attention_forward.__code__,
    vars(F) | {"has_torch_function": lambda _: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)

SOFTMAX_FUNCTIONS = {"softmax", "Softmax", "scaled_dot_product_attention", "multi_head_attention_forward"}
# Softmax in these classes, recognised by the end of their name, gives no coefficients of keys, and stays.
NO_ATTENTION = ("AttentionMap", "AssignAttention", "AttentiveStatisticsPooling", "GatedAttention", "AttentionGRUCell",
                "LinearSelfAttention", "AdditiveAttention")  # fmt: skip
# Attention that cannot be signed although it computes a softmax, by the end of its class name, with the reason.
UNSIGNABLE = {
    "NystromformerSelfAttention": "its coefficients are a product of three softmax matrices",
    "MptAttention": "its position biases count from the end of the text, so that signs would depend on its length",
    "BlockSparseAttention": 'the model replaces it for short texts; load it with attention_type="original_full"',
}


def outside_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that compute attention by themselves, by name, in the order of `model.modules()`."""
    inside = set(attention_layers(model))
    others = [(name, module) for name, module in model.named_modules() if module not in inside]
    return {name: module for name, module in others if _attends(type(module))}  # type: ignore[arg-type]


@cache
def _attends(module_class: type[nn.Module]) -> bool:
    """Whether the code of a module names a softmax, and its class attention."""
    name = module_class.__name__
    if issubclass(module_class, nn.MultiheadAttention):
        return True
    if "Att" not in name or name.endswith(NO_ATTENTION):
        return False
    classes = (base for base in module_class.__mro__ if issubclass(base, nn.Module) and base is not nn.Module)
    methods = (method for base in classes for method in vars(base).values() if callable(method))
    return any(SOFTMAX_FUNCTIONS & set(code_of(method).co_names) for method in methods)


def unsignable(module_class: type[nn.Module]) -> str | None:
    """The reason why attention of this class cannot be signed; None if it can."""
    return next((why for end, why in UNSIGNABLE.items() if module_class.__name__.endswith(end)), None)


class OutsideAttention(nn.Module):
    """What signing adds to the class of a layer outside the interface; see `outside_class`."""

    stock_class: type[nn.Module]
    signed_view: Any

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        plan = self.signed_view.plan()
        change = self.signed_view.change()
        operators: SignedOperators | None = None
        if change is not None:
            plan, operators = change.operators(self, plan)
        elif not plan.softmax:
            operators = SignedOperators(self, plan)
        if operators is None:
            return super().forward(*args, **kwargs)
        if plan.window is not None:
            raise ValueError(
                f"{type(self).__name__} computes its own attention, which takes no attn_window; set attn_window=None "
                'and attn_scope="global".'
            )
        with operators:
            outputs = super().forward(*args, **kwargs)
        if operators.multiplied and not operators.replaced:
            raise ValueError(
                f"{type(self).__name__} computed no softmax over keys that signed attention could replace; set its "
                "negative mass to 0, or sign the model with partial=True."
            )
        return outputs

    def __reduce_ex__(self, protocol: Any) -> tuple:
        return _restored, (self.stock_class,), self.__getstate__()


@cache
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

    def __init__(self, layer: OutsideAttention, plan: Plan):
        super().__init__()
        self.layer = layer
        self.plan = plan
        self.multiplied = False  # whether there was a product of tensors
        self.replaced = False  # whether there was a softmax over keys
        self.maximum: Tensor | None = None  # the last maximum of a tensor

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
            first, second = args
            second = lowered(second, first)
            if function not in IN_PLACE:
                first = lowered(first, second)
            args = first, second
        if function in DIFFERENCE and self.maximum is not None and args[1] is self.maximum:
            return args[0]
        result = function(*args, **kwargs)
        if function in MAXIMUM:
            self.maximum = result if isinstance(result, Tensor) else result[0]
        elif function is Tensor.detach and args[0] is self.maximum:
            self.maximum = result
        self.multiplied = self.multiplied or function in PRODUCT
        return result

    def softmax(
        self, function: Any, input: Tensor, dim: int | None = None, *more: Any, dtype: Any = None, **options: Any
    ) -> Tensor:
        """The coefficients for scores `[..., keys]`; softmax itself over another dimension."""
        dtype = next((x for x in more if isinstance(x, torch.dtype)), dtype)  # third argument of torch.softmax
        if dim not in (-1, input.dim() - 1):
            return function(input, dim, dtype=dtype)
        self.replaced = True
        scores = input if dtype is None else input.to(dtype)
        return self.coefficients(scores, None if self.plan.softmax else ~(scores <= FLOOR))

    def coefficients(self, scores: Tensor, keep: Tensor | None) -> Tensor:
        """The coefficients for scores."""
        return activated(scores, keep, self.plan.activation, self.mass(scores))

    def mass(self, scores: Tensor) -> float | Tensor:
        """The negative mass, broadcastable to the scores: `[batch, heads, ...]`, `[batch * heads, queries, keys]`, or
        with the heads in another dimension."""
        mass = self.plan.negative_mass
        if not isinstance(mass, list):
            return mass
        heads = len(mass)
        by_head = torch.tensor(mass, device=scores.device)
        if scores.dim() == 3 and scores.shape[0] % heads == 0:
            return by_head.repeat(scores.shape[0] // heads)[:, None, None]
        axes = [axis for axis in range(1, scores.dim() - 1) if scores.shape[axis] == heads]
        if not axes:
            raise self.unavailable(f"a negative mass for each of {heads} heads", scores)
        behind = scores.dim() - 1 - axes[0]
        return by_head.view(-1, *[1] * behind)

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Tensor:
        """torch's attention, `[batch, heads, length, head_dim]`."""
        if query.dim() != 4:
            raise self.unavailable("torch's attention", query)
        self.replaced = True
        if attn_mask is not None:
            attn_mask = attn_mask[(None,) * (4 - attn_mask.dim())]
        keep, bias = keep_and_bias(attn_mask)
        call = attention_call(
            query,
            key,
            self.plan.activation,
            self.plan.negative_mass,
            scaling=options.get("scale"),
            dropout=dropout_p,
            causal=is_causal,
            bias=bias,
        )
        return self.context(query, key, value, keep, call)

    def context(self, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, call: AttentionCall) -> Tensor:
        context, _ = attend(query, key, value, keep, call)
        return context

    def unavailable(self, what: str, x: Tensor) -> ValueError:
        return ValueError(
            f"{type(self.layer).__name__} computes its own attention, with {tuple(x.shape)} for [batch, heads, "
            f"queries, keys]; {what} is not available for it."
        )


def lowered(term: Any, scores: Any) -> Any:
    """A mask with the smallest number of its dtype in place of what drops a key; any other term as it is.

    A mask is a tensor of zeros and of numbers of at most `MASKED`, added to scores with as many keys.
    """
    if not isinstance(term, Tensor) or not isinstance(scores, Tensor):
        return term
    if not term.is_floating_point() or term.dim() < 2 or term.shape[-1] == 1 or scores.shape[-1:] != term.shape[-1:]:
        return term
    dropped = term <= MASKED
    is_mask = ((term == 0) | dropped).all() & ~dropped.all()  # a tensor: the CPU does not wait for a GPU
    return term.masked_fill(dropped & is_mask, torch.finfo(term.dtype).min)
