"""Train an encoder-decoder on pairs of sequences: a new recurrent one with attention (Bahdanau et al. 2015, Luong et
al. 2015), or a checkpoint of BART, Marian or T5, whose self- and cross-attention become signed.

examples:
  # sort eight numbers
  python -m research.mechanisms.data sorting runs/sorting
  python training/seq2seq.py training/recipes/sorting-rnn-tanhmax.yaml

  # your own pairs, in a table with the columns source and target, character by character
  python training/seq2seq.py --train_file pairs.csv --unit character --max_length 40 --output_dir runs/mine

  # a translation model of the Hub; its negative mass rises over the first half
  python training/seq2seq.py --model_name_or_path Helsinki-NLP/opus-mt-en-de --train_file pairs.csv \\
      --negative_mass_until 0.5 --learning_rate 5e-5 --metric_for_best_model loss --output_dir runs/en-de

A recipe is a YAML file of the options below; options on the command line override it. A run that was
interrupted continues when the same command is given again. The output folder loads with
AutoModelForSeq2SeqLM and AutoTokenizer, with trust_remote_code=True in both;
hf-bidir explain FOLDER "17 4 93" draws the alignment.
"""

import hf_bidir.cli.start  # isort: skip  # noqa: F401  (first: before torch and transformers)

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import (
    DataCollatorForSeq2Seq,
    EvalPrediction,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)

from hf_bidir.cli.script import Options, parse, run_script
from hf_bidir.common.errors import InputError
from hf_bidir.finetune.arguments import (
    AdapterArguments,
    DataArguments,
    RunArguments,
    ScheduleArguments,
    option,
)
from hf_bidir.finetune.data.splits import Column, Splits, raw_splits, unlabelled_splits
from hf_bidir.finetune.data.text_data import fit_max_length
from hf_bidir.finetune.data.tokenizer import UNITS, train_words
from hf_bidir.finetune.models import (
    build_model,
    check_options,
    checkpoint_config,
    saved_tokenizer,
    starts_as_softmax,
)
from hf_bidir.finetune.run import Run
from hf_bidir.finetune.trainer import SignedTrainer
from hf_bidir.hub.card import write_card
from hf_bidir.recurrent.configuration_bidir_rnn import ATTN_SCORES, DECODER_SCOPES, DECODER_STYLES, SCORES_ALONE
from hf_bidir.recurrent.options import RecurrentArguments, recurrent_config

HEAD = "AutoModelForSeq2SeqLM"
SIDES = [Column(name, (name,)) for name in ("source", "target")]


@dataclass
class PairDataArguments(DataArguments):
    """Data options of sequence-to-sequence tasks."""

    source_column: str | None = option(None, "The column of the source texts; default: source.")
    target_column: str | None = option(None, "The column of the target texts; default: target.")
    source_prefix: str = option(
        "",
        "Prefix of every source, as in T5: 'translate English to German: '. Saved as prefix in config.json; "
        "prepend it to sources when using the model.",
    )
    max_length: int = option(64, "Longer sources are cut to this many tokens.")
    max_target_length: int | None = option(
        None, "Maximum tokens of a target, including its end, and of generated text; default: max_length."
    )


@dataclass
class Seq2SeqModelArguments(RecurrentArguments, AdapterArguments):
    """Model options of the recurrent encoder-decoder."""

    attn_score: str = option(
        "general", "From scratch: the alignment score.", choices=[s for s in ATTN_SCORES if s not in SCORES_ALONE]
    )
    bidirectional: bool = option(True, "From scratch: a bidirectional encoder; --no_bidirectional: forward only.")
    embedding_size: int = option(64, "From scratch: the width of the embedding.")
    hidden_size: int = option(64, "From scratch: the width of the encoder, per direction.")
    dropout: float = option(0.0, "From scratch: dropout before the final linear layer.")
    lowercase: bool = option(False, "From scratch: the tokenizer ignores case and accents.")
    unit: str = option("word", "From scratch: the unit of a token.", choices=list(UNITS))
    decoder_style: str = option("luong", "From scratch: the decoder architecture.", choices=list(DECODER_STYLES))
    attn_scope: str = option(
        "global",
        "From scratch: the source positions a step attends to: global, local-m (around the step's own position), "
        "local-p (around a predicted position), none (no attention).",
        choices=list(DECODER_SCOPES),
    )
    attn_window: int | None = option(None, "From scratch: positions on either side, for a local scope.")


@dataclass
class Seq2SeqRunArguments(RunArguments, Seq2SeqTrainingArguments):
    """Run options of encoder-decoders: evaluation generates text and counts exact matches."""

    predict_with_generate: bool = option(True, "Evaluate generated text.")
    metric_for_best_model: str | None = option("exact_match", "Validation metric that selects the best checkpoint.")
    per_device_train_batch_size: int = option(128, "Training examples per process and step.")
    per_device_eval_batch_size: int = option(256, "Evaluation examples per process and step.")

    def __post_init__(self) -> None:
        if not self.predict_with_generate and self.metric_for_best_model == "exact_match":
            raise InputError(
                "without --predict_with_generate no text is generated, so exact_match cannot select the best "
                "checkpoint; choose --metric_for_best_model loss"
            )
        super().__post_init__()


OPTIONS = (PairDataArguments, Seq2SeqModelArguments, ScheduleArguments, Seq2SeqRunArguments)


def main(options: Options = None) -> dict[str, Any]:
    """Train as the options say, by default those of the command line; return the numbers of all_results.json."""
    data, shape, schedule, args = parse(OPTIONS, options, __doc__)
    check_options(shape, args.typed)
    source = shape.model_name_or_path

    splits = read_pairs(data)
    if source:
        config = checkpoint_config(HEAD, shape, names=[])
        tokenizer = saved_tokenizer(source, config)
    else:
        texts = splits.train["source"][:] + splits.train["target"][:]
        size = {"vocab_size": shape.vocab_size, "max_length": data.max_length}
        tokenizer = train_words(texts, **size, lowercase=shape.lowercase, unit=shape.unit, ends=True)
        config = recurrent_config(shape, tokenizer, data.max_length)
    set_seed(args.seed)
    model = build_model(HEAD, shape, config)
    if data.source_prefix:
        model.config.prefix = data.source_prefix  # the field in which T5 checkpoints keep theirs
    fit_max_length(data, model)
    longest_target = data.max_target_length or data.max_length
    model.generation_config.max_length = longest_target + 1  # plus the start token

    splits = tokenize_pairs(splits, tokenizer, data.max_length, longest_target, data.source_prefix)
    trainer = SignedSeq2SeqTrainer(
        model=model,
        args=args,
        train_dataset=splits.train,
        eval_dataset=splits.validation,
        processing_class=tokenizer,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model),
        compute_metrics=sequence_metrics(tokenizer) if args.predict_with_generate else None,
    )
    run = Run(trainer, "text2text-generation", data, splits, schedule)
    results = run.train_and_save(centre=starts_as_softmax(source))
    if args.should_save:
        print(f"Model card: {write_card(args.output_dir)}")
    return results


def read_pairs(data: PairDataArguments) -> Splits:
    """Read the splits with the columns `source` and `target`.

    Raises:
        InputError: the data cannot be used: no such file or column, or a row without a text.
    """
    return unlabelled_splits(raw_splits(data, *SIDES), data, *SIDES)


def tokenize_pairs(
    splits: Splits, tokenizer: PreTrainedTokenizerBase, max_length: int, max_target_length: int, prefix: str = ""
) -> Splits:
    """The splits with `input_ids`, of at most `max_length` tokens, `attention_mask` and `labels`.

    Args:
        prefix: prepended to every source.

    Raises:
        InputError: a target has more than `max_target_length` tokens: truncating it would change the target.
    """

    def to_ids(batch: dict[str, list]) -> dict[str, list]:
        sources = [prefix + source for source in batch["source"]]
        encoded = tokenizer(sources, truncation=True, max_length=max_length, return_token_type_ids=False)
        targets = tokenizer(text_target=batch["target"], verbose=False)
        return {**encoded, "labels": targets["input_ids"]}

    tokenized = splits.map(to_ids, batched=True, remove_columns=["source", "target"], desc="tokenizing")
    for name, split in tokenized:
        longest = max(map(len, split["labels"][:]))
        if longest > max_target_length:
            raise InputError(
                f"expected targets of at most {max_target_length} tokens (--max_target_length); the longest in the "
                f"{name} split has {longest}"
            )
    return tokenized


def sequence_metrics(tokenizer: PreTrainedTokenizerBase) -> Callable[[EvalPrediction], dict[str, float]]:
    """A `compute_metrics` for text generated by `generate`.

    The metrics are `exact_match`, the share of sequences without a wrong token, and `token_accuracy`, the share of
    target tokens, end included, generated at their position; both in [0, 1]. A target with an unknown word cannot be
    matched.
    """

    def compute(evaluation: EvalPrediction) -> dict[str, float]:
        matched, tokens = [], []
        for generated, padded in zip(evaluation.predictions, evaluation.label_ids, strict=True):
            is_target = (padded != -100) & (padded != tokenizer.pad_token_id)  # the Trainer pads with either
            target = padded[is_target]
            predicted = generated[1 : 1 + len(target)]  # without the start token
            same = predicted == target[: len(predicted)]
            matched.append(np.sum(same & (predicted != tokenizer.unk_token_id)))
            tokens.append(len(target))
        exact = np.equal(matched, tokens)  # the last token of a target is the end token
        return {"exact_match": exact.mean(), "token_accuracy": sum(matched) / sum(tokens)}

    return compute


class SignedSeq2SeqTrainer(SignedTrainer, Seq2SeqTrainer):
    """`SignedTrainer` for generative models: it evaluates generated text."""


if __name__ == "__main__":
    run_script(main)
