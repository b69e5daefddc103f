"""Where a model keeps the linear maps around its attention."""

from collections.abc import Iterator

from torch import nn
from transformers import PreTrainedModel


def projections(model: PreTrainedModel) -> Iterator[tuple[nn.Module, nn.Module, nn.Module]]:
    """Key, value and output projection of every attention layer, wherever this transformers version keeps them."""
    for name, attention in model.named_modules():
        if not isinstance(attention, model.signed_attention):
            continue
        if hasattr(attention, "o_proj"):
            yield attention.k_proj, attention.v_proj, attention.o_proj
        else:
            around = model.get_submodule(name.rpartition(".")[0])
            yield attention.key, attention.value, around.output.dense
