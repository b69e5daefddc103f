"""Sequence-to-sequence training of any encoder-decoder of transformers, or a new recurrent one."""

from typing import Any

from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerBase, set_seed

from hf_bidir.common.errors import as_input_error
from hf_bidir.finetune.arguments import ScheduleArguments, Seq2SeqModelArguments, Seq2SeqRunArguments
from hf_bidir.finetune.data.arguments import PairDataArguments
from hf_bidir.finetune.data.pairs import read_pairs, tokenize_pairs
from hf_bidir.finetune.data.splits import Splits
from hf_bidir.finetune.data.text_data import fit_max_length
from hf_bidir.finetune.data.tokenizer import train_words
from hf_bidir.finetune.metrics import sequence_metrics
from hf_bidir.finetune.models import (
    attention_fields,
    build_model,
    check_given,
    checkpoint_config,
    saved_tokenizer,
    starts_as_softmax,
)
from hf_bidir.finetune.run import finetune
from hf_bidir.finetune.schedule_options import check_schedule
from hf_bidir.finetune.task import Task
from hf_bidir.finetune.trainer import FinetuneSeq2SeqTrainer
from hf_bidir.modeling.configuration_bidir_rnn import BidirRnnConfig

HEAD = "AutoModelForSeq2SeqLM"
SHAPE = (
    "encoder",
    "bidirectional",
    "num_rnn_layers",
    "embedding_size",
    "hidden_size",
    "decoder_style",
    "input_feeding",
    "attn_score",
    "attn_scope",
    "attn_window",
    "attn_selection",
    "dropout",
    "embedding_dropout",
)


def _train(
    data: PairDataArguments,
    arguments: Seq2SeqModelArguments,
    schedule: ScheduleArguments,
    args: Seq2SeqRunArguments,
    given: dict[str, Any],
) -> dict[str, Any]:
    check_given(arguments, given)
    check_schedule(schedule, arguments, given)
    splits = read_pairs(data)
    if source := arguments.model_name_or_path:
        config = checkpoint_config(HEAD, arguments, names=[])
        tokenizer = saved_tokenizer(source, config)
    else:
        tokenizer, config = _from_scratch(data, arguments, splits)
    set_seed(args.seed)
    model = build_model(HEAD, arguments, config)
    if data.source_prefix:
        model.config.prefix = data.source_prefix  # the field in which T5 checkpoints keep theirs
    fit_max_length(data, given, model, source)
    longest_target = data.max_target_length or data.max_length
    splits = tokenize_pairs(splits, tokenizer, data.max_length, longest_target, data.source_prefix)
    model.generation_config.max_length = longest_target + 1  # plus the start token
    return finetune(
        model,
        splits,
        task="text2text-generation",
        args=args,
        data=data,
        given=given,
        processing_class=tokenizer,
        collator=DataCollatorForSeq2Seq(tokenizer, model),
        schedule=schedule,
        centre=arguments.centre and starts_as_softmax(source),
        trainer_class=FinetuneSeq2SeqTrainer,
        compute_metrics=sequence_metrics(tokenizer) if args.predict_with_generate else None,
    )


def _from_scratch(
    data: PairDataArguments, arguments: Seq2SeqModelArguments, splits: Splits
) -> tuple[PreTrainedTokenizerBase, BidirRnnConfig]:
    """A tokenizer for sources and targets of the training split, and the config of a new model for it."""
    tokenizer = train_words(
        [*splits.train["source"], *splits.train["target"]],
        vocab_size=arguments.vocab_size,
        max_length=data.max_length,
        lowercase=arguments.lowercase,
        unit=arguments.unit,
        ends=True,
    )
    with as_input_error():
        config = BidirRnnConfig(
            vocab_size=len(tokenizer),
            max_position_embeddings=data.max_length,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            decoder_start_token_id=tokenizer.bos_token_id,
            **{name: getattr(arguments, name) for name in SHAPE},
            **attention_fields(arguments),
        )
    return tokenizer, config


seq2seq = Task((PairDataArguments, Seq2SeqModelArguments, ScheduleArguments, Seq2SeqRunArguments), _train)
