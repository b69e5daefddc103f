"""Healing: distillation without labels that restores the hidden states of the softmax model."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import BaseImageProcessor, DataCollatorWithPadding, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from hf_bidir.checkpoints.convert import is_softmax
from hf_bidir.checkpoints.reading import LICENCES, documents
from hf_bidir.checkpoints.sentence_folder import sentence_folder
from hf_bidir.checkpoints.timm_vit import TIMM_PREFIX
from hf_bidir.common.card import CARD, parsed_card
from hf_bidir.common.errors import InputError
from hf_bidir.common.images import image_mode
from hf_bidir.finetune.arguments import CentringArguments, HealingArguments, HealingScheduleArguments
from hf_bidir.finetune.data.arguments import DistillationDataArguments, option
from hf_bidir.finetune.data.image_data import ImageCollator
from hf_bidir.finetune.data.splits import Splits
from hf_bidir.finetune.data.text_data import check_max_length
from hf_bidir.finetune.data.unlabelled_data import read_snippets, read_unlabelled_images
from hf_bidir.finetune.distillation import DistillationTrainer, student_and_teacher
from hf_bidir.finetune.metrics import distillation_metrics
from hf_bidir.finetune.run import finetune
from hf_bidir.finetune.task import Task

logger = logging.getLogger(__name__)
FEWEST_TEXTS, CHECKED_TEXTS = 100, 500
FEWEST_EVALUATED, MOST_EVALUATED = 32, 500  # examples
TRAINED_PER_EVALUATED = 35  # a tenth of the time: 7 evaluations, and training costs twice the evaluation of an example
MOST_UNKNOWN = 0.2  # share of unknown pieces
SHORT_PIECES = 2.0  # characters; words of an unknown alphabet become pieces of one letter


@dataclass
class StudentArguments(CentringArguments):
    """The student and its teacher."""

    _argument_group_name = "model"

    model_name_or_path: str | None = option(
        None, 'Initial student: a softmax checkpoint, "timm:NAME", or a bidir checkpoint.'
    )
    teacher_name_or_path: str | None = option(
        None, "Softmax teacher, required if the student already has negative mass."
    )
    attn_activation: str | None = option(
        None, "Activation of the student, tanhmax or balanced; default: the checkpoint's, tanhmax for a softmax one."
    )
    keep_signs: bool | None = option(
        None,
        "Penalise heads that use one sign, and predictions that stay the same without negative coefficients; default: "
        "true, but false for models that generate text, which lose accuracy by it, and for recurrent ones.",
    )


def _keeps_signs(student: PreTrainedModel, asked: bool | None) -> bool:
    """Whether to add the penalties on signs; the default depends on the model, and a warning says if it is False."""
    recurrent = not getattr(student, "attends_between_tokens", True)
    if asked and recurrent:
        raise InputError(
            "expected keep_signs false for a recurrent model, which has no layers to penalise; leave it out"
        )
    if asked is not None:
        return asked
    if not recurrent and not student.can_generate():
        return True
    reason = "is recurrent" if recurrent else "generates text, and keep_signs cost a small language model 6.5 points"
    logger.warning("%s %s: healing without keep_signs", type(student).__name__, reason)
    return False


def _train(
    data: DistillationDataArguments,
    arguments: StudentArguments,
    schedule: HealingScheduleArguments,
    args: HealingArguments,
    given: dict[str, Any],
) -> dict[str, Any]:
    if not arguments.model_name_or_path:
        raise InputError("expected --model_name_or_path: a softmax checkpoint, timm:NAME or a bidir checkpoint")
    source = arguments.model_name_or_path
    student, teacher, processors = student_and_teacher(
        source, arguments.teacher_name_or_path, arguments.attn_activation
    )
    splits, collators, processor = prepared(data, args, source, student, processors)
    keep_signs = _keeps_signs(student, arguments.keep_signs)
    unused = "image_column" if isinstance(processor, PreTrainedTokenizerBase) else "text_column"
    given = {name: value for name, value in given.items() if name != unused}
    if licence := _licence(source):
        given = {"license": licence} | given
    set_seed(args.seed)
    results = finetune(
        student,
        splits,
        task="distillation",
        args=args,
        data=data,
        given=given,
        processing_class=processor,
        collator=collators[0],
        eval_collator=collators[1],
        schedule=schedule,
        centre=arguments.centre and is_softmax(student.config),
        trainer_class=DistillationTrainer,
        teacher=teacher,
        keep_signs=keep_signs,
        compute_metrics=distillation_metrics(student.can_generate()),
    )
    if args.should_save and not source.startswith(TIMM_PREFIX):
        for name, content in documents(source).items():
            if name in LICENCES:
                Path(args.output_dir, name).write_bytes(content)
        if sentences := sentence_folder(source):
            sentences.copy_others(Path(args.output_dir))
    return results


def prepared(
    data: DistillationDataArguments, args: HealingArguments, source: str, student: PreTrainedModel, processors: list
) -> tuple[Splits, tuple[Callable, Callable], PreTrainedTokenizerBase | BaseImageProcessor]:
    """The splits, the collators for training and evaluation, and the tokenizer or image processor."""
    data.max_eval_samples = data.max_eval_samples or _evaluated(args)
    for processor in processors:
        if isinstance(processor, PreTrainedTokenizerBase):
            check_max_length(data.max_length, student, source)
            collator = DataCollatorWithPadding(processor)
            splits = read_snippets(data, processor)
            _check_texts(splits.train, processor, source)
            return splits, (collator, collator), processor
        if isinstance(processor, BaseImageProcessor):
            args.remove_unused_columns = False  # the collator, not the model, takes the image column
            mode = image_mode(student.config)
            collators = ImageCollator.of(processor, data, mode), ImageCollator(processor, mode=mode)
            return read_unlabelled_images(data), collators, processor
    raise InputError(f"{source} has neither a tokenizer nor an image processor; save one in its folder")


def _licence(source: str) -> str | None:
    """The licence that the card of the source names, which is that of the healed weights too."""
    card = {} if source.startswith(TIMM_PREFIX) else documents(source)
    if CARD not in card:
        return None
    try:
        return parsed_card(card[CARD], CARD, ignore_metadata_errors=True).data.get("license")
    except InputError:
        return None


def _evaluated(args: HealingArguments) -> int:
    """The default number of examples in an evaluation."""
    if args.max_steps < 1:
        return MOST_EVALUATED
    trained = args.max_steps * args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    return min(max(trained // TRAINED_PER_EVALUATED, FEWEST_EVALUATED), MOST_EVALUATED)


def _check_texts(snippets: Dataset, tokenizer: PreTrainedTokenizerBase, source: str) -> None:
    """Raise InputError for too few texts, and for texts in a language or script that the tokenizer does not know."""
    if len(snippets) < FEWEST_TEXTS:
        raise InputError(
            f"expected at least {FEWEST_TEXTS} texts to heal with, besides those held out for validation; got "
            f"{len(snippets)}. Any text without labels will do"
        )
    pieces = list(chain.from_iterable(snippets.select(range(min(CHECKED_TEXTS, len(snippets))))["input_ids"]))
    unknown = sum(piece == tokenizer.unk_token_id for piece in pieces) / len(pieces)
    if unknown > MOST_UNKNOWN:
        raise InputError(
            f"the tokenizer of {source} does not know {unknown:.0%} of the texts' pieces; heal with texts in a "
            "language that the model was trained on"
        )
    lengths = [len(token.lstrip("#Ġ▁")) for token in tokenizer.convert_ids_to_tokens(pieces)]
    if (length := sum(lengths) / len(lengths)) < SHORT_PIECES:
        logger.warning(
            "the tokenizer of %s cuts the texts into pieces of %.1f characters; the model may not know their language",
            source,
            length,
        )


distillation = Task((DistillationDataArguments, StudentArguments, HealingScheduleArguments, HealingArguments), _train)
