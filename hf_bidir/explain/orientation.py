"""Orientation that lasts: the config of a model says which target its heads are oriented towards."""

import hashlib
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_bidir.explain.readout import Target
from hf_bidir.explain.running import attention_config
from hf_bidir.explain.sentence_encoder import transformer_of

PREDICTED = "predicted class"  # orientation without a fixed target


def record_orientation(model: PreTrainedModel, target: Target, consistent: float) -> None:
    """Write to `model.config.attn_oriented` that the heads are oriented.

    Args:
        target: as given to `orient_heads`; the field has its name.
        consistent: the share of heads with a consistent sign, in [0, 1].
    """
    names = getattr(model.config, "id2label", None) or {}
    named = PREDICTED if target is None else names.get(target, target) if isinstance(target, int) else target
    fields = {"target": named if isinstance(named, str) else str(named), "consistent": round(consistent, 3)}
    model.config.attn_oriented = fields | {"weights": fingerprint(model)}


def oriented_towards(model: PreTrainedModel) -> str | None:
    """The target of the recorded orientation; None if there is none, or if any weight has changed since.

    Weights that were loaded in another precision have changed too.
    """
    recorded: dict[str, Any] | None = getattr(attention_config(model), "attn_oriented", None)
    if not recorded or recorded.get("weights") != fingerprint(model):
        return None
    return recorded["target"]


@torch.no_grad()
def fingerprint(model: nn.Module) -> str:
    """A hash of the names and values of all weights in single precision, 16 characters; of what attends alone."""
    found = hashlib.sha256()
    for name, weight in sorted(transformer_of(model).named_parameters()):
        found.update(name.encode())
        found.update(weight.detach().float().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]
