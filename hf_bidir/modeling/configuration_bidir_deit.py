"""Config of DeiT with signed attention."""

from transformers import DeiTConfig

# transformers 4.57 fetches only the files that this one imports itself, so both stand here.
from .activations import get_attn_activation  # noqa: F401
from .configuration_bidir import check_bidir_config

_HEADS = {
    "AutoModel": "BidirDeiTModel",
    "AutoModelForImageClassification": "BidirDeiTForImageClassification",
}


class BidirDeiTConfig(DeiTConfig):
    """A `DeiTConfig` with five more fields.

    Args:
        attn_activation: "tanhmax" (default), "softmax", "tanh" or a name given to `register_attn_activation`.
        attn_negative_mass: `λ` of TanhMax in [0, 1] (1 is TanhMax, 0 is softmax): one number, or a list with one
            entry per layer, each a number or a list with one number per head.
        attn_learn_negative_mass: `λ` is a parameter of every head, which starts at `attn_negative_mass` (then
            strictly between 0 and 1) and is saved with the weights.
        attn_scope: "global" (default): every token attends to every one; "window": to those at most `attn_window`
            positions away, on either side.
        attn_window: at least 1, with that scope alone.
        kwargs: the fields of `DeiTConfig`.

    Raises:
        ValueError: an unknown activation, or a negative mass out of range or of the wrong length.
    """

    model_type = "bidir_deit"

    def __init__(
        self,
        attn_activation: str = "tanhmax",
        attn_negative_mass=1.0,
        attn_learn_negative_mass: bool = False,
        attn_scope: str = "global",
        attn_window: int | None = None,
        **kwargs,
    ):
        self.attn_activation = attn_activation
        self.attn_negative_mass = attn_negative_mass
        self.attn_learn_negative_mass = attn_learn_negative_mass
        self.attn_scope = attn_scope
        self.attn_window = attn_window
        # Every head, always: by itself save_pretrained names only the head that was saved.
        kwargs["auto_map"] = {
            "AutoConfig": "configuration_bidir_deit.BidirDeiTConfig",
            **{auto: f"modeling_bidir_deit.{name}" for auto, name in _HEADS.items()},
        }
        super().__init__(**kwargs)
        check_bidir_config(self)


BidirDeiTConfig.register_for_auto_class()
