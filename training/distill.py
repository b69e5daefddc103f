"""Heal a converted model: the signed student learns to have the hidden states of its softmax teacher.

examples:
  # an encoder from the Hub, on any text without labels (txt, parquet, csv, tsv, json, jsonl)
  python training/distill.py --model_name_or_path google-bert/bert-base-uncased --train_file wiki.txt \\
      --output_dir runs/bert-healed

  # MiniLM on reviews
  python training/distill.py training/recipes/minilm-healed.yaml --train_file imdb.parquet sst2.parquet

  # a decoder, with the logits of the next token
  python training/distill.py --model_name_or_path HuggingFaceTB/SmolLM2-135M --train_file wiki.txt \\
      --output_dir runs/smol-healed

  # a vision model of transformers, or a ViT of timm, on images
  python training/distill.py --model_name_or_path google/vit-base-patch16-224 --train_file photos/ \\
      --output_dir runs/vit-healed
  python training/distill.py --model_name_or_path timm:vit_tiny_patch16_224 --train_file photos/ \\
      --output_dir runs/vit-tiny-healed

The student starts as the teacher, with mean keys and values moved out of its attention, which changes nothing in
softmax (in layers without biases, such as Llama's, they stay). Then its negative mass becomes 1, at once or slowly
(--negative_mass_until), and it learns to keep the hidden states of every layer, and the logits. No labels are needed,
and one healed checkpoint serves every later task: fine-tune it with text_classification.py, causal_lm.py or
image_classification.py --model_name_or_path FOLDER.

The relative error that is told is the squared distance of the hidden states (and the logits) to the teacher's, as a
share of their squared norm: 0 is equal.

How long to heal is a choice: the longer, the nearer to the teacher, and the fewer coefficients remain negative.

A recipe is a YAML file of the options below; options on the command line win over it. A run that was
interrupted continues when the same command is given again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import BaseImageProcessor, DataCollatorWithPadding, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from hf_bidir.convert import is_softmax
from hf_bidir.finetune.arguments import (
    CentringArguments,
    DistillationDataArguments,
    HealingArguments,
    HealingScheduleArguments,
    option,
)
from hf_bidir.finetune.distillation import DistillationTrainer, student_and_teacher
from hf_bidir.finetune.errors import InputError, run_script
from hf_bidir.finetune.image_data import ImageCollator
from hf_bidir.finetune.metrics import relative_error_metrics
from hf_bidir.finetune.recipe import parse_recipe
from hf_bidir.finetune.run import finetune
from hf_bidir.finetune.splits import Splits
from hf_bidir.finetune.text_data import check_max_length
from hf_bidir.finetune.unlabelled_data import read_snippets, read_unlabelled_images


@dataclass
class StudentArguments(CentringArguments):
    """The student and its teacher."""

    _argument_group_name = "model"

    model_name_or_path: str | None = option(
        None, 'Where the student starts: a softmax checkpoint, "timm:NAME", or a bidir checkpoint.'
    )
    teacher_name_or_path: str | None = option(
        None, "The softmax teacher, when the student starts from a checkpoint that has negative mass already."
    )


OPTIONS = (DistillationDataArguments, StudentArguments, HealingScheduleArguments, HealingArguments)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the script with the command line `argv`; return the numbers of all_results.json."""
    data, arguments, schedule, args, given = parse_recipe(OPTIONS, argv, __doc__)
    if not arguments.model_name_or_path:
        raise InputError("expected --model_name_or_path: a softmax checkpoint, timm:NAME or a bidir checkpoint")
    source = arguments.model_name_or_path
    student, teacher, processors = student_and_teacher(source, arguments.teacher_name_or_path)
    splits, collators, processor = prepared(data, args, source, student, processors)
    set_seed(args.seed)
    return finetune(
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
        compute_metrics=relative_error_metrics,
    )


def prepared(
    data: DistillationDataArguments, args: HealingArguments, source: str, student: PreTrainedModel, processors: list
) -> tuple[Splits, tuple[Callable, Callable], PreTrainedTokenizerBase | BaseImageProcessor]:
    """The splits, the collators for training and evaluation, and the tokenizer or image processor."""
    for processor in processors:
        if isinstance(processor, PreTrainedTokenizerBase):
            check_max_length(data.max_length, student, source)
            collator = DataCollatorWithPadding(processor)
            return read_snippets(data, processor), (collator, collator), processor
        if isinstance(processor, BaseImageProcessor):
            args.remove_unused_columns = False  # the collator, not the model, takes the image column
            collator = ImageCollator.of(processor, data)
            return read_unlabelled_images(data), (collator, ImageCollator(processor)), processor
    raise InputError(f"{source} has neither a tokenizer nor an image processor beside it; save one there")


if __name__ == "__main__":
    run_script(main)
