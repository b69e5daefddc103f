"""Signed token scores of a model's predictions, and figures of them.

`explain` explains a prediction in one call; `token_scores` computes one number per token by any method of `METHODS`. No
score depends on the arbitrary signs of TanhMax heads.

Each name is imported on first use, so that each use loads what it needs.
"""

from importlib import import_module
from typing import Any

from hf_bidir.common.extras import extra

_HOMES = {
    "Alignment": "alignment",
    "Explanation": "result",
    "Explanations": "result",
    "ForwardCache": "forward",
    "METHODS": "registry",
    "Request": "request",
    "Verdict": "verdict",
    "attention_flow": "methods.flow",
    "attention_rollout": "methods.attention",
    "contributions": "methods.contributions",
    "default_method": "request",
    "deletion": "methods.erasure",
    "edge_contributions": "methods.contributions",
    "erasure": "methods.erasure",
    "explain": "api",
    "explain_each": "api",
    "gradient_rollout": "methods.contributions",
    "head_contributions": "methods.contributions",
    "image_heatmap": "draw.figures",
    "integrated_gradients": "methods.gradients",
    "load_checkpoint": "inputs.checkpoint",
    "read_image": "inputs.image",
    "read_text": "inputs.text",
    "relevance": "methods.attnlrp",
    "score_grid": "draw.figures",
    "token_scores": "methods",
    "token_shares": "methods.alti",
    "value_weighted": "methods.contributions",
}
__all__ = sorted(_HOMES)  # pyright: ignore


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with extra("explain"):
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
