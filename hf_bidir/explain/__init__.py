"""Signed token scores of a model's predictions, and figures of them.

`explain` explains a prediction in one call; `token_scores` computes one number per token by any method of `METHODS`. No
score depends on the arbitrary signs of TanhMax heads.

Each name is imported on first use, so that each use loads what it needs.
"""

from importlib import import_module
from typing import Any

from hf_bidir.common.extras import extra

_NAMES = {
    "api": "explain explain_each",
    "draw.figures": "image_heatmap score_grid",
    "draw.page": "text_heatmap",
    "forward": "ForwardCache",
    "generation": "align explain_continuation",
    "head_score": "explain_head",
    "inputs.checkpoint": "load_checkpoint",
    "inputs.image": "read_image",
    "inputs.text": "read_text",
    "methods": "token_scores",
    "methods.alti": "token_shares",
    "methods.attention": "attention_rollout",
    "methods.attnlrp": "integrated_relevance relevance",
    "methods.chefer": "cross_rollout gradient_rollout",
    "methods.contributions": "contributions edge_contributions head_contributions value_weighted",
    "methods.erasure": "erasure",
    "methods.flow": "attention_flow",
    "methods.gradients": "integrated_gradients",
    "registry": "METHODS",
    "request": "Request default_method",
    "result": "Alignment Explanation Explanations",
    "tables": "WordTable word_table",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULES)  # pyright: ignore


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with extra("explain"):
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
