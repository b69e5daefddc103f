"""How fast the tokens of a stack of attention layers become equal (Dong, Cordonnier, Loukas 2021, "Attention is not all
you need")."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.checkpoints.linear_maps import weight_of
from hf_bidir.checkpoints.projections import Projections, projections
from hf_bidir.explain.forward import forward_pass, keep_mask_of, prepared_inputs


@dataclass(frozen=True)
class Stack:
    """The parts of a Transformer layer kept beside attention."""

    skip: bool
    mlp: bool


STACKS = {
    "attention only": Stack(skip=False, mlp=False),
    "with skip connections": Stack(skip=True, mlp=False),
    "with MLP": Stack(skip=False, mlp=True),
    "with both": Stack(skip=True, mlp=True),
}


def relative_residual(states: Tensor, keep: Tensor | None = None) -> Tensor:
    """`‖res(X)‖ / ‖X‖` in the norm `√(‖·‖_1 ‖·‖_∞)`: 0 if all tokens are equal, about 1 if they share nothing.

    `res(X) = X - 1 x̄ᵀ` with the mean token `x̄`; `‖·‖_1` is the largest column sum of magnitudes, `‖·‖_∞` the largest
    row sum (Dong et al. 2021, section 2). From states `[..., length, hidden]` and a boolean keep-mask `[..., length]`,
    `[...]`; NaN for states that are all 0.
    """
    residual, tokens = _residual(states, keep)
    return _norm(residual) / _norm(tokens)


def stable_rank(states: Tensor, keep: Tensor | None = None) -> Tensor:
    """`‖res(X)‖_F² / ‖res(X)‖_2²`: the effective number of directions of the residual, at least 1.

    The relative residual measures how far tokens are from their mean, the stable rank in how many directions.
    Arguments and result as in `relative_residual`; NaN without a residual, as for a single token.
    """
    values = torch.linalg.svdvals(_residual(states, keep)[0])
    return values.square().sum(-1) / values[..., 0].square()


def _residual(states: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    """`res(X)` and `X`, with zeros for padding."""
    if keep is None:
        keep = torch.ones(states.shape[:-1], dtype=torch.bool, device=states.device)
    weight = keep.unsqueeze(-1).to(states.dtype)
    mean = (states * weight).sum(-2, keepdim=True) / weight.sum(-2, keepdim=True)
    return (states - mean) * weight, states * weight


def _norm(matrix: Tensor) -> Tensor:
    magnitudes = matrix.abs()
    return (magnitudes.sum(-2).amax(-1) * magnitudes.sum(-1).amax(-1)).sqrt()


@torch.no_grad()
def layer_states(model: PreTrainedModel, inputs: Mapping[str, Tensor], stack: Stack) -> tuple[Tensor, Tensor]:
    """The input of the first layer and the output of every layer, with only some parts of the layers.

    Args:
        model: a bidir BERT, ViT or DeiT; `load_checkpoint` loads softmax checkpoints as such. Others are a ValueError.
        inputs: a batch of model inputs.
        stack: the parts of the layers to keep. With both, the stack is the model itself.

    Returns:
        `[layers + 1, batch, length, hidden]`, and the keep-mask, boolean `[batch, length]`.
    """
    inputs = prepared_inputs(model, inputs)
    layers = transformer_layers(model)
    with in_evaluation(model):
        states = [model(**inputs, output_hidden_states=True, return_dict=True).hidden_states[0]]
        keep = keep_mask_of(inputs, states[0].shape[1])
        for layer in layers:
            states.append(_step(layer, states[-1], keep[:, None, None], stack))
    return torch.stack(states), keep


def transformer_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The layers of a BERT, ViT or DeiT, from the bottom up; ValueError for other models."""
    layers = [module for module in model.modules() if type(module).__name__ in ("BertLayer", "ViTLayer", "DeiTLayer")]
    if not layers:
        raise ValueError(
            f"expected a BERT, ViT or DeiT; got {type(model).__name__}. Other models cannot be split into parts."
        )
    return layers


def _step(layer: nn.Module, states: Tensor, keep: Tensor, stack: Stack) -> Tensor:
    if type(layer).__name__ == "BertLayer":  # normalises after the skip connection, also where that is removed

        def half(output: nn.Module, changed: Tensor, states: Tensor) -> Tensor:
            return output.LayerNorm(output.dense(changed) + (states if stack.skip else 0))

        mixed = half(layer.attention.output, layer.attention.self(states, keep)[0], states)
        return half(layer.output, layer.intermediate(mixed), mixed) if stack.mlp else mixed
    # a ViT normalises the inputs of attention and MLP, not their outputs
    mixed = layer.attention(layer.layernorm_before(states))
    mixed = mixed[0] if isinstance(mixed, tuple) else mixed  # from transformers 5 on, with the coefficients
    mixed = mixed + states if stack.skip else mixed
    if not stack.mlp:
        return mixed
    normalised = layer.layernorm_after(mixed)
    changed = layer.mlp(normalised) if hasattr(layer, "mlp") else layer.output.dense(layer.intermediate(normalised))
    return changed + mixed if stack.skip else changed


def head_maps(layer: Projections) -> tuple[Tensor, Tensor]:
    """The value and output maps of all heads, `[heads, hidden, head_dim]` and `[heads, head_dim, hidden]`.

    Raises:
        ValueError: the values or the output are not computed by one linear map.
    """
    if layer.output is None or not all(len(maps) == 1 and maps[0].direct for maps in layer.value):
        raise ValueError(
            f"expected linear maps to the values and from the heads; {type(layer.layer).__name__} has others."
        )
    into = torch.stack([weight_of(features.linear)[features.indices].T for (features,) in layer.value])
    out_of = weight_of(layer.output).unflatten(1, (layer.heads, -1)).permute(1, 2, 0)
    return into.repeat_interleave(layer.heads // len(into), 0), out_of


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
    outputs, coefficients, _ = forward_pass(model, {**inputs, "output_hidden_states": True})
    start = outputs.hidden_states[0]
    by_length = [start] + [torch.zeros_like(start)] * len(coefficients)
    for layer, a in zip(projections(model), coefficients, strict=True):
        into, out_of = head_maps(layer)
        through = [(a @ (states.unsqueeze(1) @ into) @ out_of).sum(1) for states in by_length[:-1]]
        by_length = [by_length[0], *(past + new for past, new in zip(by_length[1:], through, strict=True))]
    return torch.stack(by_length)
