"""Changes to layers outside transformers' attention interface, and observers of them."""

from typing import Any

import torch
from torch import Tensor, nn

from hf_bidir.modeling.attention import attend
from hf_bidir.modeling.attention_call import AttentionCall
from hf_bidir.modeling.outside_attention import ADDING, PRODUCT, SignedOperators
from hf_bidir.modeling.signed_layers import Plan, heads_of


class ObservedOperators(SignedOperators):
    """The attention operators of one call of a layer, with `Interventions`."""

    def __init__(self, layer: nn.Module, plan: Plan, changes: Any):
        super().__init__(layer, plan)
        self.changes = changes
        # of the products before the softmax: number of entries, equation of einsum, second factor
        self.products: list[tuple[int, str, Tensor]] = []
        self.weights: Tensor | None = None  # the coefficients until they are multiplied by values

    def __torch_function__(
        self,
        function: Any,
        types: Any,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> Any:
        result = super().__torch_function__(function, types, args, kwargs)
        if self.changes.observers:
            self.follow(function, args, kwargs or {}, result)
        return result

    def coefficients(self, scores: Tensor, keep: Tensor | None) -> Tensor:
        if self.changes.projections:
            raise self.unavailable("a method that changes its queries, keys or values", scores)
        self.weights = super().coefficients(scores, keep)
        if self.changes.edits:
            edited = self.changes.edited(self.by_head(self.weights))
            self.weights = edited.reshape(self.weights.shape)
        return self.weights

    def context(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        keep: Tensor | None,
        call: AttentionCall,
    ) -> Tensor:
        implementation = "eager" if self.changes.edits else "auto"

        def attended(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor | None]:
            context, coefficients = attend(query, key, value, keep, call, implementation)
            return context.transpose(1, 2), coefficients

        context, _ = self.changes.attend_with_changes(self.layer, attended, query, key, value)
        return context.transpose(1, 2)

    def follow(self, function: Any, args: tuple, kwargs: dict, result: Any) -> None:
        """Observe the layer when coefficients are multiplied by values; the first product before was that with keys."""
        if function not in PRODUCT:
            same = args and args[0] is self.weights and isinstance(result, Tensor)
            if same and result.numel() == args[0].numel():  # after dropout, or in another layout
                self.weights = result
            return
        equation = args[0] if function is torch.einsum else ""
        operands: Any = (*args, *kwargs.values())[1 if equation or function in ADDING else 0 :]
        operands = operands[0] if isinstance(operands[0], tuple | list) else operands
        if equation and len(operands) != 2:
            return
        if self.weights is None:
            self.products.append((result.numel(), equation, operands[1]))
        elif operands[0] is self.weights:
            self.observe(equation, operands[0], operands[1], result)
            self.weights, self.products = None, []

    def observe(self, equation: str, weights: Tensor, value: Tensor, context: Tensor) -> None:
        """Observe a product of the coefficients with values."""
        count = weights.numel()
        of_scores = [product for product in self.products if product[0] == count]
        if not of_scores:
            raise self.unavailable("an explanation that needs its keys", weights)
        _, of_keys, key = of_scores[0]
        key = self.by_head(_in_order(of_keys, key, "key"))
        value = self.by_head(_in_order(equation, value, "value"))
        context = self.by_head(_in_order(equation, context, "context"))
        self.changes.observe(self.layer, key, value, context.transpose(1, 2))

    def by_head(self, x: Tensor) -> Tensor:
        """`[batch * heads, ...]` as `[batch, heads, ...]`."""
        heads = heads_of(self.layer)
        if x.dim() == 3 and heads and x.shape[0] % heads == 0:
            x = x.unflatten(0, (-1, heads))
        if x.dim() != 4 or (heads and x.shape[1] != heads):
            raise self.unavailable("this explanation", x)
        return x


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
    shared = [label for label in both if label in labels]
    features = [label for label in labels if label not in both]
    return x.permute([labels.index(label) for label in shared + features])
