"""A stack of attention and skip connections as a sum over paths, by the number of heads on a path."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_bidir.checkpoints.projections import projections
from hf_bidir.explain.record import prepared_inputs, record_coefficients
from research.rank_collapse.measures import head_maps, transformer_layers


class _SkipAlone(nn.Module):
    """The second half of a BERT layer without MLP: the identity of its second input."""

    def forward(self, _: Tensor, states: Tensor) -> Tensor:
        return states


def bare_attention(model: PreTrainedModel) -> PreTrainedModel:
    """Reduce every layer of a new BERT to `X + Σ_h A_h X W_h`, in place: no MLP, no normalisation, no bias of values.

    This is the network that Dong et al. 2021 (section 2.2) decompose into paths. Raises ValueError for another model.
    """
    for layer in transformer_layers(model):
        if type(layer).__name__ != "BertLayer":
            raise ValueError(f"expected a BERT; got {type(model).__name__}.")
        layer.attention.output.LayerNorm = nn.Identity()
        layer.intermediate, layer.output = nn.Identity(), _SkipAlone()
    for layer in projections(model):
        layer.value[0][0].linear.bias = layer.output.bias = None  # type: ignore[union-attr]  # BERT has outputs
    return model


@torch.no_grad()
def path_states(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor:
    """The output of a `bare_attention` model's last layer, split into the parts that passed through 0, 1, ... heads.

    `[layers + 1, batch, length, hidden]`; the sum over the first axis is the output of the model. Exact: one recursion
    over the layers sums all paths of each length.
    """
    inputs = prepared_inputs(model, inputs)
    outputs, coefficients = record_coefficients(model, {**inputs, "output_hidden_states": True})
    start = outputs.hidden_states[0]
    by_length = [start] + [torch.zeros_like(start)] * len(coefficients)
    for layer, a in zip(projections(model), coefficients, strict=True):
        into, out_of = head_maps(layer)
        through = [(a @ (states.unsqueeze(1) @ into) @ out_of).sum(1) for states in by_length[:-1]]
        by_length = [by_length[0], *(past + new for past, new in zip(by_length[1:], through, strict=True))]
    return torch.stack(by_length)
