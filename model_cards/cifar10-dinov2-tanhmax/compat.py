"""The private names of transformers that the modeling files use: their purpose, first version, and substitutes.

This file travels with checkpoints, so it runs with versions of transformers that do not exist yet. A name that such a
version lacks never stops an import: it has a substitute here, or its user raises an error when it is called.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from transformers import PretrainedConfig

SIGNED = "bidir_"  # before the model type of the stock model, in files and in tables
PREFIX = "Bidir"  # before the name of a class of transformers


def _private(name: str, *modules: str, default: Any = None) -> Any:
    """A name of the first of these modules of transformers that has it."""
    for module in modules:
        try:
            return getattr(import_module(f"transformers.{module}"), name)
        except (ImportError, AttributeError):
            continue
    return default


# Outputs that each model class records. Constructors register them, but `signed(model)` calls no constructor, so the
# entry of a `Bidir…` class is set when the class is made. Since 5.0. Without it, such a model may return no attentions
# or hidden states.
_PLACES = "utils.output_capturing", "utils.generic", "modeling_utils"
CAN_RECORD: dict = _private("_CAN_RECORD_REGISTRY", *_PLACES, default={})

# Names of weights in checkpoints of a class or model type, where they differ from those in the model. Since 5.0.
# Without them, weights have the same names in both.
_NAMES = "conversion_mapping"
checkpoint_names: Callable = _private("get_checkpoint_conversion_mapping", _NAMES, default=lambda kind: None)
register_checkpoint_names: Callable = _private(
    "register_checkpoint_conversion_mapping", _NAMES, default=lambda *_, **__: None
)

# Where a config keeps the name of its attention implementation, and a module its function for gradient checkpointing.
# Since 4.56. Without the first, its property is read, which is slower; without the second, a layer that gradient
# checkpointing runs again does not see the changes of the forward pass.
ATTN_IMPLEMENTATION = "_attn_implementation_internal"
CHECKPOINT_FUNCTION = "_gradient_checkpointing_func"

# of a config with "__dict__": all its fields, without the Python call of its `__getattribute__`
raw_attribute = object.__getattribute__


def attn_implementation(config: PretrainedConfig) -> str | None:
    """The name of a config's attention implementation; None if none is chosen yet."""
    return raw_attribute(config, "__dict__").get(ATTN_IMPLEMENTATION) or getattr(config, "_attn_implementation", None)


def register_heads() -> None:
    """Enter the names of signed classes beside stock ones in the tables of class names by task and model type.

    By these the Trainer shifts labels that it smooths, and pipelines decide what a model can do.
    """
    for name, table in vars(import_module("transformers.models.auto.modeling_auto")).items():
        if not name.startswith("MODEL_") or not name.endswith("_MAPPING_NAMES"):
            continue
        stock = {kind: heads for kind, heads in table.items() if not kind.startswith(SIGNED)}
        for kind, heads in stock.items():
            signed = PREFIX + heads if isinstance(heads, str) else tuple(PREFIX + head for head in heads)
            table[SIGNED + kind] = signed


@cache
def stock_heads(model_type: str) -> dict[str, str]:
    """Model classes of a model type by Auto class, for example `{"AutoModelForMaskedLM": "BertForMaskedLM"}`.

    They are in private mappings of the Auto classes. Without these, a checkpoint loads by its own class only.
    """
    modeling_auto = import_module("transformers.models.auto.modeling_auto")
    heads = {}
    for auto in (name for name in modeling_auto.__all__ if name.startswith("Auto")):
        mapping = getattr(getattr(getattr(modeling_auto, auto), "_model_mapping", None), "_model_mapping", {})
        head = mapping.get(model_type)
        if head is not None:
            heads[auto] = head if isinstance(head, str) else head[0]
    return heads
