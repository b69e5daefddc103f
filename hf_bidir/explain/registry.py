"""The table of methods of explanation, with the cost, the needs and the meaning of each; importing it is fast."""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from hf_bidir.common.extras import extra

if TYPE_CHECKING:
    from torch import Tensor

    from .forward import ForwardCache
    from .request import Request

NO_PASS = "none"
LAYER_DEFAULT = "contributions"
DEFAULTS = {  # by kind of model: the best method, and a cheap one for long texts and for whole data sets
    "text": ("erasure", "attnlrp"),
    "image": ("attnlrp", "attnlrp"),
    "image with text": ("deletion", "deletion"),
}
NOT_Y = "the scores need not sum to y"


class NoRule(ValueError):
    """A model or operation without a rule of AttnLRP."""


@dataclass(frozen=True)
class Method:
    """A method of `token_scores`: description, unit, cost and requirements."""

    what: str  # {part} is a word, patch or cell, {baseline} what texts or images are compared with
    unit: str
    cost: str  # passes through a model for n tokens, beside the forward pass that computes y
    function: str  # file and name, such as "erasure.erasure"
    layers: Literal["all layers", "last layer", "through all layers", None] = None  # None: takes no layer or head
    explains_output: bool = True  # + supports y and − opposes it; False: scores of at least 0, which only rank
    additive: bool = True  # a word's score is the sum of its pieces
    between_tokens: bool = False  # needs attention from every token to every token
    one_query: bool = False  # starts at a single token, from which the output is read
    by_head: bool = True  # a method that takes a layer takes a head as well
    shared: bool = False  # several outputs of one text take no more passes than one
    sums: str = NOT_Y  # what the scores of an example sum to, if they are for or against y

    def scores(self, cache: "ForwardCache", request: "Request") -> "Tensor":
        """One number per token, `[batch, length]`."""
        file, name = self.function.split(".")
        with extra("explain"):
            function = getattr(import_module(f"hf_bidir.explain.methods.{file}"), name)
        return function(cache, request)

    @property
    def takes_head(self) -> bool:
        """Whether the scores of one layer and head can be chosen."""
        return self.layers is not None and self.by_head

    @property
    def how_to_read(self) -> str:
        """The meaning of the scores, without a full stop."""
        if self.explains_output:
            return "+ (red) supports y, − (blue) opposes it"
        return "the stronger the colour, the larger; there are no signs, so support and opposition look the same"

    def caption(self, part: str = "word", layer: int | None = None, head: int | None = None) -> str:
        """The description, with layers and heads, and the baseline of texts or images."""
        baseline = {"patch": "the mean colour", "word or cell": "the mean colour and padding"}.get(part, "padding")
        what = self.what.format(part=part, baseline=baseline)
        what = what[0].upper() + what[1:]
        if self.layers is None:
            return what
        where = self.layers
        if layer is not None:
            where = f"through layers 0 to {layer}" if where == "through all layers" else f"layer {layer}"
        heads = "all heads" if head is None else f"head {head}"
        return f"{what}; {where}{f', {heads}' if self.by_head else ''}"


METHODS: dict[str, Method] = {
    "attnlrp": Method(
        "AttnLRP: relevance for y, propagated backwards", "relevance", "1 backward", "attnlrp.relevance",
        between_tokens=True,
    ),
    "contributions": Method(
        "contribution a · ∂y/∂a, summed over queries", "a · ∂y/∂a", "1 backward", "contributions.contributions",
        layers="all layers",
    ),
    "chefer": Method(
        "gradient-weighted attention (Chefer et al. 2021): relevance for y minus that for −y", "relevance",
        "1 backward", "contributions.chefer", layers="through all layers", between_tokens=True,
    ),
    "erasure": Method(
        "fall of y when no layer attends to the {part}", "Δy", "n forward",
        "erasure.erasure", shared=True,
    ),
    "deletion": Method(
        "fall of y when the {part} is removed from the input", "Δy", "n forward", "erasure.deletion",
    ),
    "integrated-gradients": Method(
        "integrated gradients from {baseline}", "part of y",
        "50 forward, 50 backward", "gradients.integrated_gradients",
        sums="they sum to the change of y from the baseline, up to the error of the integral",
    ),
    "attention": Method(
        "magnitude |a| of the coefficients of the query read by the output", "|a|", NO_PASS,
        "attention.attention", layers="last layer", explains_output=False,
    ),
    "rollout": Method(
        "rollout of |a|", "rollout", NO_PASS, "attention.rollout", layers="through all layers",
        explains_output=False, between_tokens=True,
    ),
    "flow": Method(
        "maximum flow through |a|", "flow", NO_PASS, "flow.flow", layers="through all layers",
        explains_output=False, additive=False, between_tokens=True, one_query=True,
    ),
    "values": Method(
        "norm ‖a v W_o‖ of the weighted values of the query read by the output", "‖a v W_o‖", NO_PASS,
        "contributions.values", layers="last layer", explains_output=False, between_tokens=True,
    ),
    "alti": Method(
        "ALTI: rollout of each token's share in attention, skip connection and norm", "share", NO_PASS,
        "alti.alti", layers="through all layers", explains_output=False, between_tokens=True, by_head=False,
    ),
}  # fmt: skip
