"""Checkpoints as others meet them: the model card, the folder alone in another process, and the way to the Hub."""

from hf_bidir.hub.isolated import isolated_forward
from hf_bidir.hub.model_card import build_model_card
from hf_bidir.hub.push import PushError, push_checkpoint

__all__ = ["PushError", "build_model_card", "isolated_forward", "push_checkpoint"]
