"""Rank collapse: how similar the tokens of a model become with depth, and the share of attention in it."""

from research.rank_collapse.measures import (
    STACKS,
    WITHOUT_NORM,
    Stack,
    bare_attention,
    layer_residuals,
    layer_states,
    path_residuals,
    path_states,
    relative_residual,
    stable_rank,
    transformer_layers,
)

__all__ = [
    "STACKS",
    "WITHOUT_NORM",
    "Stack",
    "bare_attention",
    "layer_residuals",
    "layer_states",
    "path_residuals",
    "path_states",
    "relative_residual",
    "stable_rank",
    "transformer_layers",
]
