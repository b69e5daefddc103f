"""A stack of attention and skip connections as a sum over paths, by how many heads they go through."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_bidir.checkpoints.projections import projections
from hf_bidir.explain.running import prepared_inputs, record_coefficients
from hf_bidir.rank_collapse.measures import head_maps, transformer_layers


class _SkipAlone(nn.Module):
    """The second half of a BERT layer without MLP: what comes in goes out."""

    def forward(self, _: Tensor, states: Tensor) -> Tensor:
        return states


def bare_attention(model: PreTrainedModel) -> PreTrainedModel:
    """Reduce every layer of a new BERT to `X + Σ_h A_h X W_h`, in place: no MLP, no normalisation, no bias of values.

    That is the network that Dong et al. 2021 (section 2.2) take apart into paths.

    Args:
        model: a bidir BERT with any head, before it is trained.

    Returns:
        The model.

    Raises:
        ValueError: it is no BERT.
    """
    for layer in transformer_layers(model):
        if type(layer).__name__ != "BertLayer":
            raise ValueError(f"expected a BERT; got {type(model).__name__}.")
        layer.attention.output.LayerNorm = nn.Identity()
        layer.intermediate, layer.output = nn.Identity(), _SkipAlone()
    for layer in projections(model):
        layer.value[0][0].linear.bias = layer.output.bias = None
    return model


@torch.no_grad()
def path_states(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor:
    """The states above the last layer, split into what came through 0, 1, ... heads.

    Paths are not sampled: all of a length are added up, by one recursion over the layers.

    Args:
        model: from `bare_attention`.
        inputs: what it takes, a batch.

    Returns:
        `[layers + 1, batch, length, hidden]`; the sum over the first axis is what the model itself computes.
    """
    inputs = prepared_inputs(model, inputs)
    outputs, coefficients = record_coefficients(model, {**inputs, "output_hidden_states": True})
    start = outputs.hidden_states[0]
    by_length = [start] + [torch.zeros_like(start)] * len(coefficients)
    for layer, a in zip(projections(model), coefficients, strict=True):
        into, out_of = head_maps(layer)
        through = [(a @ (states.unsqueeze(1) @ into) @ out_of).sum(1) for states in by_length[:-1]]
        by_length = [by_length[0], *(stay + come for stay, come in zip(by_length[1:], through, strict=True))]
    return torch.stack(by_length)
