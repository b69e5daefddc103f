"""What run.py needs beyond options: students with chosen signed heads, losses of healing, two ways of fine-tuning."""

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn.functional import kl_div
from transformers import AutoTokenizer, PreTrainedModel

from hf_bidir import register_attn_activation, tanhmax
from hf_bidir.checkpoints.centring import centre_attention
from hf_bidir.checkpoints.layer_hooks import edited_coefficients
from hf_bidir.checkpoints.reading import open_checkpoint
from hf_bidir.finetune.data.sources import read_table
from hf_bidir.finetune.distillation import DistillationTrainer
from hf_bidir.finetune.trainer import SignedTrainer
from hf_bidir.modeling.activations import balanced
from hf_bidir.modeling.signed_layers import heads_of, signed_layers

EXAMPLES, BATCH = 256, 32


def chosen_heads(activation: str, share: float, texts: Path, source: str, folder: Path) -> Path:
    """Save a centred student in which the `share` of heads that moves the outputs least has λ = 1, the others 0."""
    if not (folder / "config.json").is_file():
        checkpoint = open_checkpoint(source)
        model = checkpoint.signed_model(torch.float32, attn_activation=activation)
        tokenizer, *_ = checkpoint.processors(model)
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


SHIFT_WEIGHT, MASS_WEIGHT, MASS_RATE = 0.1, 0.05, 0.05
RISE = 0.6  # share of fine-tuning


class ShiftPenaltyTrainer(DistillationTrainer):
    """Adds the mean square of the sum of a query's coefficients, which a shift of all scores brings to 1.

    TanhMax whose scores have a large positive mean is softmax; with a sum near 0 it has both signs.
    """

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> Tensor:
        sums: list[Tensor] = []

        def record(coefficients: Tensor) -> Tensor:
            sums.append(coefficients.sum(-1).square().mean())
            return coefficients

        with edited_coefficients(model, record):
            loss = super().compute_loss(model, inputs, *args, **kwargs)
        return loss + SHIFT_WEIGHT * torch.stack(sums).mean()


class LearnedMassTrainer(DistillationTrainer):
    """Learns λ of each head with its own learning rate, from 0.5, and penalises every head that stays near softmax."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        heads = [heads_of(layer) for layer in signed_layers(self.model)]
        self.logits = nn.Parameter(torch.zeros(len(heads), heads[0], device=self.args.device))

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        optimizer = super().create_optimizer(model)
        optimizer.add_param_group({"params": [self.logits], "lr": MASS_RATE, "weight_decay": 0.0})
        return optimizer

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> Tensor:
        masses = self.logits.sigmoid()
        model.config.attn_negative_mass = list(masses)
        return super().compute_loss(model, inputs, *args, **kwargs) + MASS_WEIGHT * (1 - masses).mean()

    def _save(self, *args: Any, **kwargs: Any) -> None:
        self.model.config.attn_negative_mass = self.logits.detach().sigmoid().tolist()
        super()._save(*args, **kwargs)


class AttentionTransferTrainer(DistillationTrainer):
    """Matches the output of every attention layer to the teacher's, given the teacher's inputs of that layer.

    The first stage of LoLCATs (Zhang et al. 2024, arXiv:2410.10254); only queries, keys and values get a gradient.
    """

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> Tensor:
        model.eval()
        calls: list[tuple[tuple, dict, Tensor]] = []
        hooks = [
            layer.register_forward_hook(lambda _, *call: calls.append(call), with_kwargs=True)
            for layer in signed_layers(self.teacher)
        ]
        try:
            with torch.no_grad():
                self.teacher(**inputs)
        finally:
            for hook in hooks:
                hook.remove()
        keep, errors = inputs["attention_mask"].unsqueeze(-1), []
        for layer, (given, named, (expected, _)) in zip(signed_layers(model), calls, strict=True):
            found = layer(*given, **named)[0]
            errors.append(((found - expected) * keep).square().sum() / (expected * keep).square().sum())
        return torch.stack(errors).mean()


class LogitsTrainer(DistillationTrainer):
    """Matches hidden states in the first half of healing, and then the teacher's class probabilities."""

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> Tensor:
        if 2 * self.state.global_step < self.state.max_steps:
            return super().compute_loss(model, inputs, *args, **kwargs)
        with torch.no_grad():
            expected = self.teacher(**inputs).logits.log_softmax(-1)
        found = model(**inputs).logits.log_softmax(-1)
        return kl_div(found, expected, reduction="batchmean", log_target=True)


class LoraTrainer(SignedTrainer):
    """Fine-tunes low-rank updates of all linear maps, and merges them: the second stage of LoLCATs."""

    def __init__(self, *, model: nn.Module, **kwargs: Any) -> None:
        config = LoraConfig(
            r=8,
            lora_alpha=16,
            target_modules=["query", "key", "value", "dense"],
            exclude_modules=r".*pooler.*",
            modules_to_save=["classifier", "pooler"],
        )
        super().__init__(model=get_peft_model(model, config), **kwargs)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        self.model.merge_and_unload().save_pretrained(output_dir or self.args.output_dir)
        self.processing_class.save_pretrained(output_dir or self.args.output_dir)


class AnnealedHeadsTrainer(SignedTrainer):
    """Raises the λ of every head from 0 to its own while the model is fine-tuned.

    Chosen heads and annealing are those of DEX (Kong et al. 2025, arXiv:2505.16333), which
    applies a learned differential map to the values of those heads; here λ changes their coefficients instead.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.masses = torch.tensor(self.model.config.attn_negative_mass)

    def compute_loss(self, model: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        progress = self.state.global_step / max(1, self.state.max_steps - 1)
        model.config.attn_negative_mass = (min(1.0, progress / RISE) * self.masses).tolist()
        return super().compute_loss(model, *args, **kwargs)
