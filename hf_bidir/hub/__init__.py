"""Checkpoints as others meet them: the model card, and the folder alone in another process."""

from hf_bidir.hub.isolated import isolated_forward
from hf_bidir.hub.model_card import build_model_card

__all__ = ["build_model_card", "isolated_forward"]
