"""Students of run.py that need more than options: chosen signed heads, the mean of the values."""

from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from hf_bidir import register_attn_activation, tanhmax
from hf_bidir.checkpoints.centring import centre_attention
from hf_bidir.checkpoints.convert import signed_model
from hf_bidir.finetune.data.sources import read_table
from hf_bidir.modeling.activations import balanced
from hf_bidir.modeling.signed_layers import heads_of, signed_layers

EXAMPLES, BATCH = 256, 32


def chosen_heads(activation: str, share: float, texts: Path, source: str, folder: Path) -> Path:
    """Save a centred student in which the `share` of heads that moves the outputs least has λ = 1, the others 0."""
    if not (folder / "config.json").is_file():
        model, (tokenizer, *_), _ = signed_model(source, attn_activation=activation, dtype=torch.float32)
        batches = batches_of(tokenizer, texts)
        centre_attention(model, batches)
        errors = head_errors(model, batches[:4])
        kept = errors.flatten().argsort()[: round(share * errors.numel())]
        masses = torch.zeros_like(errors).flatten().index_fill(0, kept, 1.0).view_as(errors)
        model.config.attn_negative_mass = masses.tolist()
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


@torch.inference_mode()
def head_errors(model: PreTrainedModel, batches: list[dict[str, Tensor]]) -> Tensor:
    """`[layers, heads]`: the relative squared error of the last hidden state when a head alone has λ = 1."""
    counts = [heads_of(layer) for layer in signed_layers(model)]
    masses = torch.zeros(len(counts), counts[0])
    before, errors = _states(model, batches, masses), torch.zeros_like(masses)
    for layer, head in torch.cartesian_prod(*(torch.arange(size) for size in masses.shape)).tolist():
        masses[layer, head] = 1.0
        errors[layer, head] = (_states(model, batches, masses) - before).square().sum() / before.square().sum()
        masses[layer, head] = 0.0
    return errors


def _states(model: PreTrainedModel, batches: list[dict[str, Tensor]], masses: Tensor) -> Tensor:
    model.config.attn_negative_mass = masses.tolist()
    model.eval()
    return torch.cat([model(**batch).last_hidden_state[batch["attention_mask"].bool()] for batch in batches])


def batches_of(tokenizer: AutoTokenizer, texts: Path) -> list[dict[str, Tensor]]:
    rows = read_table(str(texts)).shuffle(seed=0).select(range(EXAMPLES))["text"]
    options = {"padding": True, "truncation": True, "max_length": 64, "return_tensors": "pt"}
    return [dict(tokenizer(rows[first : first + BATCH], **options)) for first in range(0, EXAMPLES, BATCH)]


def with_mean(coefficients: Tensor, keep: Tensor | None, share: float) -> Tensor:
    """The coefficients plus `share` of the uniform average over the kept keys."""
    if keep is None:
        return coefficients + share / coefficients.shape[-1]
    kept = keep.expand_as(coefficients)
    return coefficients + share * kept / kept.sum(-1, keepdim=True).clamp_min(1)


for _share in (0.5, 1.0):
    for _name, _fn in (("balanced", balanced), ("tanhmax", tanhmax)):
        register_attn_activation(
            f"{_name}+{_share:g}mean",
            lambda scores, keep=None, dim=-1, fn=_fn, share=_share: with_mean(fn(scores, keep, dim), keep, share),
        )
