"""The transformers model inside what compiles, distributes or adapts it."""

from typing import Any

from torch import nn
from transformers import PreTrainedModel

SHARDED = {"FullyShardedDataParallel", "FSDPModule"}


def unwrapped(model: Any) -> PreTrainedModel:
    """The model inside `torch.compile`, `DataParallel`, `DistributedDataParallel` or peft, with its adapter in place.

    Raises:
        ValueError: no transformers model, one with sharded weights, or an adapter outside the model, such as a prompt.
    """
    name = type(model).__name__
    if SHARDED & {base.__name__ for base in type(model).__mro__}:
        raise ValueError(f"the weights of this {name} are sharded; use the model as it was before, or its checkpoint.")
    if isinstance(model, PreTrainedModel):
        return model
    if hasattr(type(model), "get_base_model"):  # peft
        if model.active_peft_config.is_prompt_learning:
            raise ValueError(f"this {name} adds a prompt, which is outside the model; pass model.get_base_model().")
        return unwrapped(model.get_base_model())
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrapped(model.module)
    if isinstance(model, nn.Module) and "_orig_mod" in model._modules:  # torch.compile
        return unwrapped(model._orig_mod)
    raise ValueError(f"expected a transformers model, got a {name}; load one with AutoModel.from_pretrained.")
