"""Signed token scores of a model's predictions, and figures of them.

`explain` explains a prediction in one call; `token_scores` computes one number per token by any method of `METHODS`,
and each method is also a function of its own. A signed method either does not depend on the arbitrary signs of TanhMax
heads, or its documentation says that it needs oriented heads.

Files are imported on first use, so that each use loads what it needs; `__init__.pyi` tells editors and type checkers
what they hold.
"""

from importlib import import_module
from typing import Any

from hf_bidir.common.extras import extra

_FILES = {
    "api": "explain explain_each",
    "draw.figures": "alignment_grid image_heatmap layer_head_grid word_scatter",
    "draw.photo": "head_maps photo_heatmap vision_maps",
    "draw.text": "text_heatmap",
    "generation": "align explain_continuation prediction_scores",
    "inputs.checkpoint": "load_checkpoint",
    "inputs.image": "read_image",
    "inputs.text": "read_text",
    "methods": "default_method token_scores",
    "methods.alti": "alti",
    "methods.attention": "attention_rollout",
    "methods.attnlrp": "integrated_relevance relevance",
    "methods.contributions": "contributions edge_contributions pooled_contributions value_weighted",
    "methods.erasure": "erasure",
    "methods.flow": "attention_flow",
    "methods.gradients": "grad_cam gradient_times_input integrated_gradients smooth_grad",
    "methods.value_zeroing": "value_zeroing",
    "orient": "flip_heads orient_heads oriented_towards",
    "registry": "METHODS",
    "result": "Explanation Explanations",
    "tables": "WordTable word_table",
}
_HOMES = {name: file for file, names in _FILES.items() for name in names.split()}
__all__ = sorted(_HOMES)  # pyright: ignore


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with extra("explain"):
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
