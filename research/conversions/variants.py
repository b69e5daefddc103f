"""The conversions that run.py compares."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hf_bidir.finetune.heal import DistillationTrainer
from hf_bidir.finetune.trainer import SignedTrainer
from research.conversions.students import chosen_heads
from research.conversions.trainers import (
    AnnealedHeadsTrainer,
    AttentionTransferTrainer,
    BothSignsTrainer,
    EqualSignsTrainer,
    LearnedMassTrainer,
    LogitsTrainer,
    LoraTrainer,
    NeededSignsTrainer,
    ShiftPenaltyTrainer,
    StrictlyEqualSignsTrainer,
)


@dataclass(frozen=True)
class Variant:
    """One conversion.

    Attributes:
        what: a description.
        heal: options of training/distill.py; None starts fine-tuning from the softmax checkpoint.
        tune: options of fine-tuning; None converts and heals the fine-tuned softmax model instead, on the texts of the
            task without their labels, and does not fine-tune it again.
        student: makes the student before healing; takes a file of texts, the softmax checkpoint and the new folder.
        trainer, tuner: train the student in healing and in fine-tuning.
        own_texts: heal on the texts of the task.
    """

    what: str
    heal: dict[str, Any] | None = None
    tune: dict[str, Any] | None = field(default_factory=dict)
    student: Callable[[Path, str, Path], Path] | None = None
    trainer: type[DistillationTrainer] = DistillationTrainer
    tuner: type[SignedTrainer] = SignedTrainer
    own_texts: bool = False

    @property
    def afterwards(self) -> bool:
        return self.tune is None


AS_IT_IS = {"negative_mass_until": None}  # keeps the negative masses of the student
SWAPPED = {"max_steps": 1, "learning_rate": 0.0, "warmup_ratio": 0.0}
TANHMAX = {"attn_activation": "tanhmax", "attn_negative_mass": 1.0}
KEEP_SIGNS = {"keep_signs": True}
BALANCED = {"attn_activation": "balanced"}


def mass(value: float) -> dict[str, Any]:
    return BALANCED | {"negative_mass_end": value}


def steps(number: int) -> dict[str, Any]:
    return {"max_steps": number}


def afterwards(what: str, heal: dict[str, Any], **others: Any) -> Variant:
    return Variant(f"afterwards: {what}", heal, tune=None, own_texts=True, **others)


VARIANTS = {
    "softmax": Variant("softmax throughout", tune={"attn_activation": "softmax"}),
    "softmax-high-rate": Variant(
        "softmax, learning rate 1e-4", tune={"attn_activation": "softmax", "learning_rate": 1e-4}
    ),
    # converted, then fine-tuned
    "tanhmax-direct": Variant("TanhMax at once", tune=TANHMAX | {"centre": False}),
    "tanhmax-own": Variant("TanhMax, centred on the task's texts", tune=TANHMAX),
    "tanhmax": Variant("TanhMax, centred on the texts of healing", SWAPPED),
    "tanhmax-30": Variant("TanhMax, healed for 30 steps", steps(30)),
    "tanhmax-signs": Variant("TanhMax, both signs required and needed, healed for 300 steps", KEEP_SIGNS | steps(300)),
    "tanhmax-30-own": Variant("TanhMax, healed for 30 steps on the task's texts", steps(30), own_texts=True),
    "tanhmax-unshifted-30": Variant(
        "TanhMax, healed for 30 steps with a penalty on shifts", steps(30), trainer=ShiftPenaltyTrainer
    ),
    "tanhmax-mean-30": Variant(
        "TanhMax plus half the mean of the values, healed for 30 steps",
        AS_IT_IS | steps(30) | {"attn_activation": "tanhmax+0.5mean"},
    ),
    "tanhmax-heads-30": Variant(
        "TanhMax in half of the heads, healed for 30 steps",
        steps(30),
        student=partial(chosen_heads, "tanhmax", 0.5),
    ),
    "quarter": Variant("balanced, λ = 0.25", mass(0.25) | SWAPPED),
    "half": Variant("balanced, λ = 0.5", mass(0.5) | SWAPPED),
    "half-30": Variant("balanced, λ = 0.5, healed for 30 steps", mass(0.5) | steps(30)),
    "half-annealed": Variant(
        "balanced, λ rises to 0.5 over 60 % of fine-tuning", tune=mass(0.5) | {"negative_mass_until": 0.6}
    ),
    "three-quarters": Variant("balanced, λ = 0.75", mass(0.75) | SWAPPED),
    "three-quarters-30": Variant("balanced, λ = 0.75, healed for 30 steps", mass(0.75) | steps(30)),
    "balanced": Variant("balanced, λ = 1", BALANCED | SWAPPED),
    "balanced-high-rate": Variant("balanced, λ = 1, learning rate 1e-4", BALANCED | SWAPPED, {"learning_rate": 1e-4}),
    "balanced-30": Variant("balanced, λ = 1, healed for 30 steps", BALANCED | steps(30)),
    "balanced-300": Variant("balanced, λ = 1, healed for 300 steps", BALANCED | steps(300)),
    "balanced-annealed": Variant(
        "balanced, λ rises to 1 over 60 % of fine-tuning", tune=BALANCED | {"negative_mass_until": 0.6}
    ),
    "balanced-heads-annealed": Variant(
        "balanced in half of the heads, their λ rises to 1 over 60 % of fine-tuning",
        AS_IT_IS | SWAPPED,
        student=partial(chosen_heads, "balanced", 0.5),
        tuner=AnnealedHeadsTrainer,
    ),
    "balanced-heads": Variant(
        "balanced, λ = 1 in half of the heads", SWAPPED, student=partial(chosen_heads, "balanced", 0.5)
    ),
    "balanced-heads-30": Variant(
        "balanced, λ = 1 in half of the heads, healed for 30 steps",
        steps(30),
        student=partial(chosen_heads, "balanced", 0.5),
    ),
    "balanced-mean": Variant(
        "balanced, λ = 1, plus the mean of the values", AS_IT_IS | SWAPPED | {"attn_activation": "balanced+1mean"}
    ),
    "balanced-half-mean": Variant(
        "balanced, λ = 1, plus half the mean of the values",
        AS_IT_IS | SWAPPED | {"attn_activation": "balanced+0.5mean"},
    ),
    "balanced-learned-300": Variant(
        "balanced, λ of each head learned in 300 steps of healing",
        steps(300),
        student=partial(chosen_heads, "balanced", 1.0),
        trainer=LearnedMassTrainer,
    ),
    "balanced-transfer-lora": Variant(
        "balanced, λ = 1, attention outputs matched for 300 steps, then LoRA",
        BALANCED | steps(300),
        {"learning_rate": 5e-4},
        trainer=AttentionTransferTrainer,
        tuner=LoraTrainer,
    ),
    "softmax-lora": Variant(
        "softmax, LoRA",
        tune={"attn_activation": "softmax", "learning_rate": 5e-4},
        tuner=LoraTrainer,
    ),
    # fine-tuned, then converted
    "after-tanhmax": afterwards("TanhMax, healed for 30 steps", steps(30)),
    "after-tanhmax-300": afterwards("TanhMax, healed for 300 steps", steps(300)),
    "after-tanhmax-unshifted": afterwards(
        "TanhMax, healed for 300 steps with a penalty on shifts", steps(300), trainer=ShiftPenaltyTrainer
    ),
    "after-tanhmax-slow": afterwards(
        "TanhMax, healed for 300 steps with a fifth of the learning rate", steps(300) | {"learning_rate": 5e-5}
    ),
    "after-half": afterwards("balanced, λ = 0.5, healed for 30 steps", mass(0.5) | steps(30)),
    "after-three-quarters": afterwards("balanced, λ = 0.75, healed for 300 steps", mass(0.75) | steps(300)),
    "after-balanced": afterwards("balanced, λ = 1, healed for 30 steps", BALANCED | steps(30)),
    "after-balanced-300": afterwards("balanced, λ = 1, healed for 300 steps", BALANCED | steps(300)),
    "after-balanced-logits": afterwards(
        "balanced, λ = 1, healed for 300 steps, half of them by the logits",
        BALANCED | steps(300),
        trainer=LogitsTrainer,
    ),
    "after-balanced-both": afterwards(
        "balanced, λ = 1, both signs required, healed for 300 steps",
        BALANCED | KEEP_SIGNS | steps(300),
        trainer=BothSignsTrainer,
    ),
    "after-tanhmax-both": afterwards(
        "TanhMax, both signs required, healed for 300 steps", KEEP_SIGNS | steps(300), trainer=BothSignsTrainer
    ),
    "after-tanhmax-equal": afterwards(
        "TanhMax, equal signs required, healed for 300 steps",
        KEEP_SIGNS | steps(300),
        trainer=EqualSignsTrainer,
    ),
    "after-tanhmax-needed": afterwards(
        "TanhMax, negatives needed, healed for 300 steps", KEEP_SIGNS | steps(300), trainer=NeededSignsTrainer
    ),
    "after-tanhmax-signs": afterwards(
        "TanhMax, both signs required and needed, healed for 300 steps", KEEP_SIGNS | steps(300)
    ),
    "after-tanhmax-strictly": afterwards(
        "TanhMax, strictly equal signs required, healed for 300 steps",
        KEEP_SIGNS | steps(300),
        trainer=StrictlyEqualSignsTrainer,
    ),
}
