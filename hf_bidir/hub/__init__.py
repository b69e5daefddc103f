"""Checkpoints as others meet them: the model card, the folder alone in another process, and the way to the Hub."""

from hf_bidir.hub.card_callback import CardCallback
from hf_bidir.hub.evaluation import evaluate_checkpoint
from hf_bidir.hub.isolated import isolated_forward
from hf_bidir.hub.model_card import build_model_card
from hf_bidir.hub.push import PushError, push_checkpoint

__all__ = [
    "CardCallback",
    "PushError",
    "build_model_card",
    "evaluate_checkpoint",
    "isolated_forward",
    "push_checkpoint",
]
