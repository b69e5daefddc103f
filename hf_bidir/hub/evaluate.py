"""Evaluation of a checkpoint from its files, and comparison with its recorded scores."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from huggingface_hub import snapshot_download
from transformers import (
    AutoImageProcessor,
    DataCollatorWithPadding,
    PreTrainedModel,
    TrainingArguments,
    default_data_collator,
)
from transformers.trainer_utils import PredictionOutput

from hf_bidir.checkpoints.kinds import kind_of, longest_text
from hf_bidir.checkpoints.layer_hooks import negative_share, without_negatives
from hf_bidir.checkpoints.reading import open_checkpoint
from hf_bidir.common.card import CARD
from hf_bidir.common.errors import shared_names
from hf_bidir.common.files import RECORD, check_place, read_json, write_json
from hf_bidir.common.images import image_mode
from hf_bidir.common.model_types import is_signed
from hf_bidir.finetune.arguments import BlockArguments, ImageDataArguments, TextDataArguments
from hf_bidir.finetune.data.image_data import IMAGE, ImageCollator, read_image_splits
from hf_bidir.finetune.data.sources import SPLITS, is_table
from hf_bidir.finetune.data.splits import LABEL, labelled_split, sampled, selected
from hf_bidir.finetune.data.text_data import TEXT, cut_into_blocks, read_documents, read_texts, tokenize
from hf_bidir.finetune.metrics import classification_metrics, predicted_classes
from hf_bidir.finetune.models import know_padding, saved_tokenizer
from hf_bidir.finetune.record import FILES, PLACE, library_versions, source_of
from hf_bidir.finetune.trainer import CausalTrainer, SignedTrainer
from hf_bidir.modeling.configuration_bidir import is_softmax

from .files import digests
from .predictions import ROW, Predictions
from .results import EVALUATION, PREFIXES, Results, in_words, scores_of

SHORT = 1000  # examples up to which an evaluation shows no bar
FETCHED = ["*.json", "*.safetensors", "*.txt", "*.model", CARD]  # no code, because the package has the models
SUB_FOLDERS = "*/*"
ARGUMENTS: dict[str, Any] = {  # the data options of the training script, by task
    "text-classification": TextDataArguments,
    "image-classification": ImageDataArguments,
    "text-generation": BlockArguments,
}
CollatedData = tuple[Dataset, Callable]  # and the collator that makes batches of them


@dataclass(frozen=True)
class Evaluation:
    """The scores of a checkpoint on one split, and the share of negative attention coefficients there.

    Attributes:
        scores: accuracy, macro_f1 and recall_<class>, each in [0, 1]; perplexity for a language model.
        negative_share: share of negative coefficients among those of magnitude above 1e-3; None for softmax, or if
            there are none.
        without_negatives: the accuracy or perplexity with negative coefficients set to 0, without further training;
            None for softmax.
        files: the SHA-256 of each file that the numbers depend on.
        predictions: what a classifier predicts for each example; None for a language model, and not saved.
    """

    split: str
    data: dict[str, Any]
    scores: dict[str, float]
    negative_share: float | None
    without_negatives: float | None
    files: dict[str, str]
    versions: dict[str, str]
    predictions: Predictions | None = field(default=None, repr=False, compare=False)

    def save(self, folder: str | Path) -> Path:
        """Save evaluation.json, with which `build_model_card` marks the numbers as verified."""
        saved = dict(vars(self))
        del saved["predictions"]
        write_json(Path(folder, EVALUATION), saved)
        return Path(folder, EVALUATION)


def evaluate_checkpoint(
    source: str | Path,
    data: str | None = None,
    *,
    split: str | None = None,
    revision: str | None = None,
    batch_size: int = 64,
    **options: Any,
) -> Evaluation:
    """Evaluate a classifier or a causal language model, signed or softmax, on a split.

    Args:
        source: a folder, or a name on the Hub.
        data: a file or folder in a format of the training scripts, used as the whole split; or the name of a data
            set; by default the data set in the checkpoint's run.json.
        split: train, validation or test; by default test, and validation for a language model.
        revision: a branch, tag or commit on the Hub.
        batch_size: examples per forward pass; no number depends on it.
        options: data options of the training scripts, such as `text_column`, `label_column` and `drop_bad_rows`; by
            default, or where None, those of the run.

    Raises:
        FileNotFoundError: there is no such checkpoint.
        ValueError: another kind of model, or unusable data (`InputError`).
    """
    folder = local_folder(source, revision)
    model = _load(folder)
    split = split or ("validation" if kind_of(model).causal else "test")
    if split not in SPLITS:
        raise ValueError(f"expected {', '.join(SPLITS)} as split; got {split}.")
    examples, described, collator = read_examples(model, folder, data, split, options)
    share: float | None = None
    without: float | None = None
    with tempfile.TemporaryDirectory() as scratch:
        trainer = _trainer(model, scratch, batch_size, collator, disable_tqdm=len(examples) < SHORT)
        output = trainer.predict(examples)
        scores = _scores(output)
        if is_signed(type(model.config).model_type) and not is_softmax(model.config):
            share = negative_share(model, trainer.get_eval_dataloader(examples))
            with without_negatives(model):
                without, *_ = _scores(trainer.predict(examples)).values()
    return Evaluation(
        split=split,
        data=described | {"rows": len(examples)},
        scores=scores,
        negative_share=share,
        without_negatives=without,
        files=digests(folder),
        versions=library_versions(),
        predictions=None if kind_of(model).causal else Predictions(examples.with_format(None), output, model, collator),
    )


def comparison(measured: Evaluation, recorded: Results) -> str:
    """A table of the newly measured scores, and beside them those on record if they are of the same data."""
    compared = recorded.is_of(measured.split, measured.data)
    known = recorded.scores if compared else {}
    heading = f"{measured.data['source']} ({measured.split}, {measured.data['rows']:,} rows)"
    lines = [_row(heading, "measured", *["recorded"] * compared)]
    for name, value in measured.scores.items():
        numbers = [value, known[name]] if name in known else [value]
        lines.append(_row(in_words(name), *(f"{number:.4f}" for number in numbers)))
    if measured.negative_share is not None:
        metric = next(iter(measured.scores))
        lines.append(_row("attention coefficients < 0 (|a| > 0.001)", f"{measured.negative_share:.1%}"))
        lines.append(_row(f"{metric} with those set to 0", f"{measured.without_negatives:.4f}"))
    if not compared:
        lines.append("The checkpoint's records have no scores on these data, so nothing was compared.")
    return "\n".join(lines)


def _row(name: str, *cells: str) -> str:
    return f"{name:<40}" + "".join(f" {cell:>10}" for cell in cells)


def local_folder(source: str | Path, revision: str | None = None) -> Path:
    """The folder of a checkpoint, downloaded if `source` is a name on the Hub.

    Raises:
        FileNotFoundError: there is no such checkpoint, or it cannot be reached.
        ValueError: a revision was given for a folder.
    """
    if Path(source).is_dir():
        if revision:
            raise ValueError(f"{source} is a folder and has no revisions; leave out the revision {revision}.")
        return Path(source)
    check_place(source)
    try:
        folder = snapshot_download(str(source), revision=revision, allow_patterns=FETCHED, ignore_patterns=SUB_FOLDERS)
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"{source} is neither a checkpoint folder nor a model on the Hub that can be read: "
            f"{' '.join(str(error).split())}"
        ) from error
    return Path(folder)


def _load(folder: Path) -> PreTrainedModel:
    checkpoint = open_checkpoint(folder)
    if checkpoint.kind.task not in ARGUMENTS:
        name = (checkpoint.config.architectures or ["model without a class"])[0]
        raise ValueError(
            f"expected a classifier of texts or images, or a causal language model; {folder} is a {name}, which is not "
            "evaluated."
        )
    model = checkpoint.model(torch.float32)
    model.is_quantized = False  # the Trainer refuses to train 8-bit weights, and so even to evaluate them
    return model


def _trainer(
    model: PreTrainedModel,
    scratch: str,
    batch_size: int,
    collator: Callable,
    disable_tqdm: bool,
) -> SignedTrainer:
    causal = kind_of(model).causal
    args = TrainingArguments(
        output_dir=scratch,
        per_device_eval_batch_size=batch_size,
        prediction_loss_only=causal,
        report_to="none",
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        disable_tqdm=disable_tqdm,
    )
    if causal:
        return CausalTrainer(model=model, args=args, data_collator=collator)
    return SignedTrainer(
        model=model,
        args=args,
        data_collator=collator,
        compute_metrics=classification_metrics(_classes(model)),
        preprocess_logits_for_metrics=predicted_classes,
    )


def _scores(output: PredictionOutput) -> dict[str, float]:
    return scores_of(output.metrics or {}, PREFIXES["test"])


def _classes(model: PreTrainedModel) -> list[str]:
    names = [model.config.id2label[index] for index in range(model.config.num_labels)]
    if shared := shared_names(names):
        raise ValueError(f"expected a name of its own for each class in id2label of config.json, got {shared}.")
    return names


def read_examples(
    model: PreTrainedModel,
    folder: Path,
    data: str | None,
    split: str,
    options: dict[str, Any],
) -> tuple[Dataset, dict[str, str], Callable]:
    """The examples of a split, read as in training; what identifies their source; and the collator of batches.

    Args:
        data, options: as in `evaluate_checkpoint`.
    """
    arguments = _data_arguments(model, folder, options)
    source = _choose_data(arguments, data or _data_set_of(folder, split), split)
    read = _read_blocks if kind_of(model).causal else _read_labelled
    examples, collator = read(model, folder, arguments, split)
    return examples, source, collator


def _data_arguments(model: PreTrainedModel, folder: Path, options: dict[str, Any]) -> Any:
    """The data options of the run, without its files and class names, and with the requested options."""
    requested = {name: value for name, value in options.items() if value is not None}
    chosen = read_json(folder / RECORD).get("recipe", {}) | requested
    kind = ARGUMENTS[kind_of(model).task]
    names = {field.name for field in fields(kind)} - {*FILES, "class_names"}
    return kind(**{name: chosen[name] for name in names & chosen.keys()})


def _data_set_of(folder: Path, split: str) -> str:
    """The data set that a run read by name."""
    run = read_json(folder / RECORD)
    recipe = run.get("recipe", {})
    name = recipe.get("dataset_name") or PLACE
    if "train_file" in recipe or name.startswith(PLACE):
        file = run.get("data", {}).get(split, {}).get("source", "none")
        raise ValueError(
            f"expected a data set on the Hub in {folder / RECORD}, got {file}; name a file or a data set with --data."
        )
    return name


def _choose_data(arguments: Any, data: str, split: str) -> dict[str, str]:
    """Set the options to a file, a folder or the name of a data set; return what identifies it."""
    if not Path(data).exists() and not is_table(data):
        if data != arguments.dataset_name:
            arguments.dataset_name, arguments.dataset_config = data, None
        return {"source": data}
    if isinstance(arguments, BlockArguments):
        arguments.train_file = arguments.validation_file = [data]
    else:
        setattr(arguments, f"{split}_file", data)
    return source_of([Path(data)])


def _read_labelled(model: PreTrainedModel, folder: Path, arguments: Any, split: str) -> CollatedData:
    """The examples of a split for a classifier, read as in training."""
    names = _classes(model)
    indices = [str(index) for index in range(len(names))]
    # labels of the training data, else class names, else indices
    orders = [order for order in (read_json(folder / RECORD).get("label_values"), names, indices) if order]
    images = isinstance(arguments, ImageDataArguments)
    column = IMAGE if images else TEXT
    if files := arguments.files.get(split):
        rows = selected(column.read(files[0]), split, arguments, column, LABEL)
    else:
        splits = dict(read_image_splits(arguments) if images else read_texts(arguments))
        if split not in splits:
            raise ValueError(
                f"expected a {split} split with labels in {arguments.dataset_name}, got {', '.join(splits)}; choose "
                "another one with --split."
            )
        rows = splits[split]
    numbered = rows.add_column(ROW, list(range(len(rows))))
    examples = labelled_split(numbered, split, arguments, column, orders)
    if images:
        processor = AutoImageProcessor.from_pretrained(folder)
        return examples, ImageCollator(processor, mode=image_mode(model.config))
    tokenizer = saved_tokenizer(str(folder), model.config)
    know_padding(model.config, tokenizer)
    tokenizer.model_max_length = min(arguments.max_length, longest_text(model) or arguments.max_length)
    tokenized = tokenize(examples, tokenizer, tokenizer.model_max_length)
    read_by_model = [name for name in tokenized.column_names if name != ROW]
    texts = tokenized.add_column(TEXT.name, examples[TEXT.name][:])
    return texts.with_format(columns=read_by_model), DataCollatorWithPadding(tokenizer)


def _read_blocks(model: PreTrainedModel, folder: Path, arguments: BlockArguments, split: str) -> CollatedData:
    """The blocks of a split for a language model, sampled as in the training script."""
    tokenizer = saved_tokenizer(str(folder), model.config)
    blocks = cut_into_blocks(read_documents(arguments), tokenizer, arguments.block_size)
    splits = dict(sampled(blocks, arguments))
    if split not in splits:
        raise ValueError(f"expected train or validation as split of a language model; got {split}.")
    return splits[split], default_data_collator
