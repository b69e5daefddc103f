"""A signed model in the bridge of TransformerLens."""

from functools import partial
from typing import Any

from transformers import PreTrainedModel

from hf_bidir.common.extras import extra
from hf_bidir.common.model_types import is_signed
from hf_bidir.modeling.modeling_bidir import BidirMixin, stock_base
from hf_bidir.modeling.outside_attention import outside_class


def bridged(model: PreTrainedModel, tokenizer: Any = None, **options: Any) -> Any:
    """A signed model in TransformerLens's bridge: `hook_pattern` gets the signed coefficients, and edits change the
    output where the bridge computes attention itself, as for GPT-2 and Llama.

    Args:
        model: a signed model of an architecture that TransformerLens knows; the bridge replaces its modules.
        tokenizer: that of the model; without one, TransformerLens loads that of the model's name.
        options: of `TransformerBridge.boot_transformers`.

    Returns:
        The `TransformerBridge`, on the device of the model. Its compatibility mode folds no value biases by default.

    Raises:
        ValueError: the model is not signed, or TransformerLens does not know the stock architecture.
    """
    with extra("bridge"):
        from transformer_lens.model_bridge import TransformerBridge
        from transformer_lens.model_bridge.generalized_components import AttentionBridge

    if not isinstance(model, BidirMixin):
        advice = "is not signed; call TransformerBridge.boot_transformers yourself"
        if is_signed(type(model.config).model_type):
            advice = "runs the code that came with its checkpoint; import hf_bidir before you load it"
        raise ValueError(f"{type(model).__name__} {advice}.")
    if tokenizer is None and not model.name_or_path:
        raise ValueError(f"this {type(model).__name__} has no name by which a tokenizer is found; pass its tokenizer.")
    overrides = {"architectures": [stock_base(type(model)).__name__], **options.pop("hf_config_overrides", {})}
    options = {"hf_model": model, "hf_config_overrides": overrides, "tokenizer": tokenizer, **options}
    bridge = TransformerBridge.boot_transformers(model.name_or_path, **{"device": model.device, **options})
    for attention in bridge.modules():  # a module of the bridge has the attributes of the layer that it replaces
        computes = isinstance(attention, AttentionBridge) and type(attention).forward is not AttentionBridge.forward
        if computes and hasattr(attention, "signed_view"):  # it is like a layer outside transformers' interface
            attention.__class__ = outside_class(type(attention))  # type: ignore[arg-type]
    # value biases can be folded into those of the output only if coefficients sum to 1
    bridge.enable_compatibility_mode = partial(bridge.enable_compatibility_mode, fold_value_biases=False)
    return bridge
