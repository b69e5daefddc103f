"""How long to train a new model when no option says so."""

import math
from collections.abc import Collection

from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from hf_bidir.finetune.arguments import RunArguments

# options that say how long to train, or how to choose the checkpoint: with one of them the defaults below do not apply
DURATION = {
    "num_train_epochs",
    "max_steps",
    "early_stopping_patience",
    "eval_strategy",
    "save_strategy",
    "load_best_model_at_end",
}
MOST_EPOCHS = {"image-classification": 100, "text-classification": 30, "text2text-generation": 30}
PATIENCE = {"image-classification": 10, "text-classification": 5, "text2text-generation": 5}
LOGS_PER_EPOCH = 2
FEWEST_STEPS = 20  # between evaluations; a small data set has several epochs between them


def set_scratch_duration(args: RunArguments, task: str, given: Collection[str], examples: int) -> str | None:
    """Let a new model train until validation stops improving, unless an option says how long to train.

    It is evaluated after every epoch, and on small data sets after every `FEWEST_STEPS` steps: a few steps per
    evaluation would end training before it has begun.

    The learning rate then stays at its peak after the warm-up: a rate that falls over all epochs would not have
    fallen when training stops early.

    Args:
        args: changed in place.
        task: the pipeline's name.
        given: the names of the options that the user gave.
        examples: the number of training examples.

    Returns:
        What was decided, in a sentence; None if nothing was.
    """
    if "model_name_or_path" in given or DURATION & set(given) or task not in MOST_EPOCHS:
        return None
    most, patience, round_name = MOST_EPOCHS[task], PATIENCE[task], "epochs"
    args.num_train_epochs, args.early_stopping_patience = most, patience
    per_step = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    if (steps := math.ceil(examples / per_step)) < FEWEST_STEPS:
        round_name = f"evaluations, one every {FEWEST_STEPS} steps,"
        args.num_train_epochs = math.ceil(most * FEWEST_STEPS / steps)
        args.eval_strategy, args.save_strategy = IntervalStrategy.STEPS, SaveStrategy.STEPS
        args.eval_steps = args.save_steps = FEWEST_STEPS
    if "lr_scheduler_type" not in given:
        args.lr_scheduler_type = type(args.lr_scheduler_type)("constant_with_warmup")
    if not {"warmup_ratio", "warmup_steps"} & set(given):
        args.warmup_steps = 1 / most
    if "logging_steps" not in given:
        args.logging_steps = 1 / (LOGS_PER_EPOCH * most)
    return (
        f"Training stops after {patience} {round_name} without a better validation {args.metric_for_best_model}, and "
        f"after {args.num_train_epochs:.0f} epochs at the latest; --num_train_epochs trains for a fixed time instead."
    )
