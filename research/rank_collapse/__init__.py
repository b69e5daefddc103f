"""Rank collapse: how similar the tokens of a model become with depth, and the share of attention in it."""

from research.rank_collapse.measures import (
    STACKS,
    Stack,
    bare_attention,
    layer_states,
    path_states,
    relative_residual,
    stable_rank,
    transformer_layers,
)

__all__ = [
    "STACKS",
    "Stack",
    "bare_attention",
    "layer_states",
    "path_states",
    "relative_residual",
    "stable_rank",
    "transformer_layers",
]
