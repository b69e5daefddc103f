"""Other ways to train for run.py: losses of healing, and two of fine-tuning."""

from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn.functional import kl_div

from hf_bidir.checkpoints.layer_hooks import edited_coefficients
from hf_bidir.finetune.heal import DistillationTrainer
from hf_bidir.finetune.trainer import SignedTrainer
from hf_bidir.modeling.signed_layers import heads_of, signed_layers

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


class BothSignsTrainer(DistillationTrainer):
    """Penalises a head unless both signs contribute to its output, by at least a quarter of the variance each."""

    needed_signs_weight = 0.0


class EqualSignsTrainer(BothSignsTrainer):
    """Penalises contributions outside 0.4 to 0.6 of the variance."""

    both_signs_weight, most_unequal = 0.5, 1.5


class StrictlyEqualSignsTrainer(BothSignsTrainer):
    """Penalises all unequal contributions, with a weight that outweighs the hidden states."""

    both_signs_weight, most_unequal = 2.0, 1.0


class NeededSignsTrainer(DistillationTrainer):
    """Penalises only predictions that stay the same without negative coefficients."""

    both_signs_weight = 0.0


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
