"""Healing: distillation that restores the hidden states of the softmax model in a converted, signed student."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import BaseImageProcessor, DataCollatorWithPadding, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from hf_bidir.checkpoints.reading import LICENCES, documents, open_checkpoint
from hf_bidir.checkpoints.sentence_folder import sentence_folder
from hf_bidir.common.card import CARD, parsed_card
from hf_bidir.common.errors import InputError, as_input_error
from hf_bidir.common.images import image_mode
from hf_bidir.modeling.configuration_bidir import is_softmax

from .arguments import DistillationDataArguments, ScheduleArguments, StepArguments, option
from .data.image_data import ImageCollator, read_unlabelled_images
from .data.splits import Splits, sampled
from .data.text_data import cut_into_blocks, cut_into_snippets, fit_max_length, read_documents
from .distillation import PREDICTIONS, STATES, DistillationTrainer
from .metrics import distillation_metrics
from .models import able_to_pad, know_padding
from .run import Run

FINAL_MASS = {"balanced": 0.2}  # the default λ of an activation; that of others is 1
LEAST_STEPS, MOST_STEPS = 300, 1000  # several passes over few texts, a part of one over many


@dataclass
class StudentArguments:
    """The student and its teacher."""

    _argument_group_name = "model"

    model_name_or_path: str | None = option(
        None, 'Initial student: a softmax checkpoint, "timm:NAME", or a bidir checkpoint.'
    )
    base_model: str | None = option(
        None, "For the model card: Hub name of the original checkpoint if --model_name_or_path is a folder."
    )
    teacher_name_or_path: str | None = option(
        None, "Softmax teacher, required if the student already has negative mass."
    )
    attn_activation: str | None = option(
        None,
        "Activation of the student, tanhmax or balanced; default: the checkpoint's; for a softmax one tanhmax, or "
        "balanced if it generates text.",
    )
    match: str | None = option(
        None,
        "What the student matches: states (the hidden states of all layers and the logits) or logits (the divergence "
        "of predicted tokens or classes); default: logits for models that generate text, else states.",
        choices=[STATES, PREDICTIONS],
    )
    keep_signs: bool = option(
        False,
        "Penalise heads that use one sign, and predictions that stay the same without negative coefficients: these "
        "then matter, and the student predicts less often like its teacher.",
    )
    centre: bool = option(
        True, "Subtraction of mean keys and values before a softmax checkpoint is healed; --no_centre skips this."
    )


@dataclass
class HealingScheduleArguments(ScheduleArguments):
    """A schedule that is enabled by default."""

    negative_mass_until: float | None = option(
        0.0, "Change the negative mass over this share of training, 0 to 1; 0 sets the final value at once."
    )
    negative_mass_end: float | None = option(None, "Final negative mass; default: 1, with balanced attention 0.2.")


@dataclass
class DistillationArguments(StepArguments):
    """Run options of distillation, which keeps the checkpoint that predicts most like the teacher."""

    max_steps: int = option(
        0, "Optimizer steps, -1 counts epochs; default: one pass over the data, 300 to 1,000 steps."
    )
    group_by_length: bool = option(True, "Batch texts of similar length together: less padding and faster.")
    eval_on_start: bool = option(True, "Evaluate before the first step.")
    eval_steps: float | None = option(0.1, "Steps between evaluations; below 1: a share of all steps.")
    save_steps: float = option(0.1, "Steps between checkpoints; below 1: a share of all steps.")
    load_best_model_at_end: bool = option(True, "Load the best checkpoint at the end instead of the last one.")


HEALING = (DistillationDataArguments, StudentArguments, HealingScheduleArguments, DistillationArguments)


def heal(
    data: DistillationDataArguments,
    arguments: StudentArguments,
    schedule: ScheduleArguments,
    args: StepArguments,
    *,
    card: Callable[[str], Path] | None = None,
) -> dict[str, Any]:
    """Convert a checkpoint, heal it on texts or images without labels, and save it in `args.output_dir`.

    Licence files, and the other modules of a folder of sentence-transformers, are copied from the source.

    Args:
        data, arguments, schedule, args: the options, instances of `HEALING`.
        card: writes the model card of the finished folder, such as `hf_bidir.hub.card.write_card`.

    Returns:
        The content of all_results.json.

    Raises:
        InputError: the checkpoint, its teacher or the data cannot be used, or the folder holds another run.
    """
    source = arguments.model_name_or_path
    if not source:
        raise InputError("expected --model_name_or_path: a softmax checkpoint, timm:NAME or a bidir checkpoint")
    student, teacher, processors = student_and_teacher(
        source, arguments.teacher_name_or_path, arguments.attn_activation
    )
    splits, processor, collators = healing_data(data, args, source, student, processors)
    args.max_steps = args.max_steps or steps_for(len(splits.train), args)
    args.typed["max_steps"] = args.max_steps
    files = documents(source)
    if licence := _licence(files.get(CARD)):
        args.typed.setdefault("license", licence)
    if schedule.negative_mass_end is None:
        schedule.negative_mass_end = FINAL_MASS.get(student.config.attn_activation, 1.0)
    set_seed(args.seed)
    trainer = DistillationTrainer(
        model=student,
        teacher=teacher,
        match=arguments.match or (PREDICTIONS if student.can_generate() else STATES),
        keep_signs=arguments.keep_signs,
        args=args,
        train_dataset=splits.train,
        eval_dataset=splits.validation,
        processing_class=processor,
        compute_metrics=distillation_metrics,
        **collators,
    )
    run = Run(trainer, "distillation", data, splits, schedule)
    results = run.train_and_save(centre=arguments.centre and is_softmax(student.config))
    if args.should_save:
        folder = Path(args.output_dir)
        for name in files.keys() & set(LICENCES):
            (folder / name).write_bytes(files[name])
        if sentences := sentence_folder(source):
            sentences.copy_others(folder)
        if card:
            print(f"Model card: {card(args.output_dir)}")
    return results


def steps_for(rows: int, args: StepArguments) -> int:
    """The steps of one pass over the rows, within `LEAST_STEPS` and `MOST_STEPS`."""
    one_pass = rows // (args.world_size * args.train_batch_size * args.gradient_accumulation_steps)
    return min(max(one_pass, LEAST_STEPS), MOST_STEPS)


def student_and_teacher(
    source: str,
    teacher: str | None,
    activation: str | None = None,
) -> tuple[PreTrainedModel, PreTrainedModel, list]:
    """The signed student, its softmax teacher, and the student's tokenizer or image processor.

    Args:
        source: a softmax checkpoint (converted here), "timm:NAME", or a bidir checkpoint.
        teacher: a softmax or `λ = 0` checkpoint of the same shape; None takes `source` for the teacher, too.
        activation: of the student; None keeps that of a bidir checkpoint; a softmax one becomes TanhMax, or balanced
            if it generates text.

    Raises:
        InputError: a source that cannot be converted or has no states to match, a teacher of another shape or with
            negative mass.
    """
    student, processors = _signed(source)
    softmax_model = copy.deepcopy(student) if teacher is None else _signed(teacher)[0]
    if student.config.is_encoder_decoder:
        raise InputError(
            f"{source} is a {type(student).__name__}, an encoder-decoder; only encoders and decoders can be healed"
        )
    if not is_softmax(softmax_model.config):
        raise InputError(
            f"{teacher or source} computes {softmax_model.config.attn_activation} with negative mass "
            f"{softmax_model.config.attn_negative_mass}, so it is not a softmax teacher; heal its original softmax "
            "checkpoint, or name that to training/distill.py with --teacher_name_or_path"
        )
    shapes = [[weight.shape for weight in model.parameters()] for model in (student, softmax_model)]
    if shapes[0] != shapes[1]:
        raise InputError(
            f"expected a teacher of the student's shape; the weights of {teacher} have other shapes. Name the softmax "
            "checkpoint that the student was made from to training/distill.py with --teacher_name_or_path"
        )
    if is_softmax(student.config):
        student.config.attn_activation = activation or student.config.attn_activation.replace("softmax", "tanhmax")
        student.config.attn_negative_mass = 0.0
    elif activation not in (None, student.config.attn_activation):
        raise InputError(
            f"{source} was trained with {student.config.attn_activation}, which cannot become {activation}"
        )
    return student, softmax_model, processors


def _signed(source: str) -> tuple[PreTrainedModel, list]:
    """The checkpoint as a signed model in fp32, converted if need be, and its tokenizer or image processor."""
    with as_input_error("", ValueError, OSError, ImportError):
        checkpoint = open_checkpoint(source)
        checkpoint.check_full_precision("trained" if checkpoint.is_signed else "converted")
        model = checkpoint.signed_model(torch.float32)
        if not checkpoint.is_signed and model.can_generate():
            # healing did not recover it from TanhMax: research/healing/README.md
            model.config.attn_activation = "balanced"
        processors = checkpoint.processors(model)
    for processor in processors:
        if isinstance(processor, PreTrainedTokenizerBase):
            know_padding(model.config, able_to_pad(processor, source))
    return model, processors


def healing_data(
    data: DistillationDataArguments,
    args: StepArguments,
    source: str,
    student: PreTrainedModel,
    processors: list,
) -> tuple[Splits, PreTrainedTokenizerBase | BaseImageProcessor, dict[str, Callable]]:
    """The splits, the tokenizer or image processor, and the collators of the Trainer.

    Raises:
        InputError: the data cannot be used, or the student has neither tokenizer nor image processor.
    """
    for processor in processors:
        if isinstance(processor, PreTrainedTokenizerBase):
            fit_max_length(data, student)
            splits = read_documents(data)
            if student.can_generate():  # it was pretrained on joined texts, which need no padding
                splits = cut_into_blocks(splits, processor, data.max_length, ["input_ids"])
            else:
                splits = cut_into_snippets(splits, processor, data.max_length)
            return sampled(splits, data), processor, {"data_collator": DataCollatorWithPadding(processor)}
        if isinstance(processor, BaseImageProcessor):
            args.remove_unused_columns = False  # the collator, not the model, takes the image column
            args.group_by_length, args.train_sampling_strategy = False, "random"  # images have no length
            mode = image_mode(student.config)
            collators: dict[str, Callable] = {
                "data_collator": ImageCollator(processor, data, mode),
                "eval_collator": ImageCollator(processor, mode=mode),
            }
            return read_unlabelled_images(data), processor, collators
    raise InputError(f"{source} has neither a tokenizer nor an image processor; save one in its folder")


def _licence(card: bytes | None) -> str | None:
    """The licence that the card of the source names, which is that of the healed weights too."""
    try:
        return parsed_card(card, CARD).data.get("license") if card else None
    except InputError:
        return None
