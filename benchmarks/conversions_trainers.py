"""Other losses of healing for benchmarks/conversions.py: a penalty on shifts, learned masses, attention outputs."""

from typing import Any

import torch
from torch import Tensor, nn

from hf_bidir.checkpoints.layer_hooks import edited_coefficients
from hf_bidir.finetune.distillation import DistillationTrainer
from hf_bidir.modeling.signed_layers import heads_of, signed_layers

SHIFT_WEIGHT, MASS_WEIGHT, MASS_RATE = 0.1, 0.05, 0.05


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
    """Learns λ of each head with its own learning rate, from 0.5, and pays for every head that stays near softmax."""

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
