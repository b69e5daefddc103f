"""Text classification with any checkpoint, or a new BERT."""

from collections.abc import Callable
from functools import partial
from typing import Any

from transformers import DataCollatorWithPadding, PretrainedConfig, PreTrainedTokenizerBase, set_seed

from hf_bidir import BidirBertConfig
from hf_bidir.finetune.arguments import PretrainedArguments, RunArguments, ScheduleArguments, TextModelArguments
from hf_bidir.finetune.data.arguments import TextDataArguments
from hf_bidir.finetune.data.masking import JointCollator, JointTrainer
from hf_bidir.finetune.data.splits import Splits
from hf_bidir.finetune.data.text_data import fit_max_length, read_texts, tokenize
from hf_bidir.finetune.data.tokenizer import train_wordpiece
from hf_bidir.finetune.models import (
    build_model,
    check_given,
    checkpoint_config,
    know_padding,
    saved_tokenizer,
    scratch_config,
    starts_as_softmax,
)
from hf_bidir.finetune.run import finetune
from hf_bidir.finetune.schedule_options import check_schedule
from hf_bidir.finetune.task import Task

HEAD = "AutoModelForSequenceClassification"
FromScratch = Callable[[TextDataArguments, Any, Splits], tuple[PreTrainedTokenizerBase, PretrainedConfig]]


def classify_texts(
    from_scratch: FromScratch,
    data: TextDataArguments,
    arguments: PretrainedArguments,
    schedule: ScheduleArguments,
    args: RunArguments,
    given: dict[str, Any],
) -> dict[str, Any]:
    """Fine-tune a checkpoint, or a new model whose tokenizer and config `from_scratch` returns."""
    source = arguments.model_name_or_path
    check_given(arguments, given)
    check_schedule(schedule, arguments, given)
    splits = read_texts(data)
    if source:
        config = checkpoint_config(HEAD, arguments, splits.names)
        tokenizer = saved_tokenizer(source, config)
        know_padding(config, tokenizer)
    else:
        tokenizer, config = from_scratch(data, arguments, splits)
    if data.truncation_side:
        tokenizer.truncation_side = data.truncation_side  # saved with the tokenizer
    set_seed(args.seed)
    model = build_model(HEAD, arguments, config)
    fit_max_length(data, given, model, source)
    return finetune(
        model,
        tokenize(splits, tokenizer, data.max_length),
        task="text-classification",
        args=args,
        data=data,
        given=given,
        processing_class=tokenizer,
        schedule=schedule,
        centre=arguments.centre and starts_as_softmax(source),
        **_collators(arguments, tokenizer),
    )


def _collators(arguments: PretrainedArguments, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """The collators of classification, and the joint ones if masked language modelling has a weight."""
    weight = getattr(arguments, "masked_lm_weight", 0.0)
    plain = DataCollatorWithPadding(tokenizer)
    if not weight:
        return {"collator": plain}
    trainer_class = partial(JointTrainer, masked_lm_weight=weight)
    return {"collator": JointCollator(tokenizer), "eval_collator": plain, "trainer_class": trainer_class}


def _new_bert(
    data: TextDataArguments, arguments: TextModelArguments, splits: Splits
) -> tuple[PreTrainedTokenizerBase, BidirBertConfig]:
    """A tokenizer trained on the training split, and the config of a new model for it."""
    configure = {"pad_token_id": 0, "max_position_embeddings": data.max_length}
    # refuses bad options before the vocabulary is trained
    scratch_config(BidirBertConfig, arguments, splits.names, **configure)
    tokenizer = train_wordpiece(
        splits.train["text"],
        vocab_size=arguments.vocab_size,
        max_length=data.max_length,
        lowercase=arguments.lowercase,
    )
    return tokenizer, scratch_config(BidirBertConfig, arguments, splits.names, vocab_size=len(tokenizer), **configure)


text_classification = Task(
    (TextDataArguments, TextModelArguments, ScheduleArguments, RunArguments), partial(classify_texts, _new_bert)
)
