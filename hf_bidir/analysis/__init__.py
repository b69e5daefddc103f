"""What signed attention does inside a model, in numbers."""

from hf_bidir.analysis.paths import bare_attention, path_states
from hf_bidir.analysis.rank_collapse import (
    STACKS,
    Stack,
    layer_residuals,
    layer_states,
    path_residuals,
    relative_residual,
    stable_rank,
    transformer_layers,
)
from hf_bidir.analysis.signs import negative_share, without_negatives

__all__ = [
    "STACKS",
    "Stack",
    "bare_attention",
    "layer_residuals",
    "layer_states",
    "negative_share",
    "path_residuals",
    "path_states",
    "relative_residual",
    "stable_rank",
    "transformer_layers",
    "without_negatives",
]
