"""Evaluation of a checkpoint from its files, and comparison with its card."""

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from transformers import (
    DataCollatorWithPadding,
    PreTrainedModel,
    PrinterCallback,
    TrainingArguments,
    default_data_collator,
)

from hf_bidir.checkpoints.kinds import KINDS, kind_of, longest_text
from hf_bidir.checkpoints.layer_hooks import negative_share, without_negatives
from hf_bidir.checkpoints.reading import open_checkpoint
from hf_bidir.common.card import CARD, read_card
from hf_bidir.common.errors import first_line, shared_names
from hf_bidir.common.files import RECORD, read_json, write_json
from hf_bidir.common.images import image_mode
from hf_bidir.common.model_types import is_signed
from hf_bidir.finetune.arguments import BlockArguments, ImageDataArguments, TextDataArguments
from hf_bidir.finetune.data.image_data import IMAGE, ImageCollator, checkpoint_processor, read_image_splits
from hf_bidir.finetune.data.sources import is_table
from hf_bidir.finetune.data.splits import LABEL, labelled_split, sampled, selected
from hf_bidir.finetune.data.text_data import TEXT, cut_into_blocks, read_documents, read_texts, tokenize
from hf_bidir.finetune.metrics import classification_metrics, predicted_classes
from hf_bidir.finetune.models import know_padding, saved_tokenizer
from hf_bidir.finetune.record import PLACE, RESULTS, library_versions, source_of
from hf_bidir.finetune.trainer import CausalTrainer, SignedTrainer
from hf_bidir.hub.card_numbers import METRICS, run_scores, same_data
from hf_bidir.hub.files import digests
from hf_bidir.modeling.configuration_bidir import is_softmax

EVALUATION = "evaluation.json"
FETCHED = ("*.json", "*.safetensors", "*.txt", "*.model", CARD)  # no code, because the package has the models
EVALUATED = ("text-classification", "image-classification", "text-generation")


@dataclass(frozen=True)
class Evaluation:
    """The scores of a checkpoint on one split, and the share of negative attention coefficients there.

    Attributes:
        scores: accuracy, macro_f1 and recall_<class>, each in [0, 1]; perplexity for a language model.
        negative_share: share of negative coefficients among those of magnitude above 1e-3; None for softmax, or if
            there are none.
        accuracy_without_negatives, perplexity_without_negatives: the score with negative coefficients set to 0, without
            further training; None for softmax, and for the other kind of model.
        files: the SHA-256 of each file that the numbers depend on.
    """

    split: str
    data: dict[str, Any]
    scores: dict[str, float]
    negative_share: float | None
    accuracy_without_negatives: float | None
    files: dict[str, str]
    versions: dict[str, str]
    perplexity_without_negatives: float | None = None

    def save(self, folder: str | Path) -> Path:
        """Save evaluation.json, with which `build_model_card` marks the numbers as verified."""
        write_json(Path(folder, EVALUATION), asdict(self))
        return Path(folder, EVALUATION)


def evaluate_checkpoint(
    source: str | Path,
    data: str | None = None,
    *,
    split: str | None = None,
    revision: str | None = None,
    batch_size: int = 64,
    column: str | None = None,
    label_column: str | None = None,
    drop_bad_rows: bool = False,
) -> Evaluation:
    """Evaluate a classifier or a causal language model, signed or softmax, on a split.

    Args:
        source: a folder, or a name on the Hub.
        data: a file or folder in a format of the training scripts, used as the whole split; or the name of a data
            set; by default the data set in the checkpoint's run.json.
        split: train, validation or test; by default test, and validation for a language model.
        revision: a branch, tag or commit on the Hub.
        batch_size: examples per forward pass; no number depends on it.
        column, label_column: the text or image column, and the class column; by default those of the run, or detected.
        drop_bad_rows: leave out rows without usable input or label, or with a label that the model lacks; by default,
            what the run did.

    Raises:
        FileNotFoundError: there is no such checkpoint.
        ValueError: another kind of model, or unusable data (`InputError`).
    """
    folder = local_folder(source, revision)
    model = _load(folder)
    split = split or ("validation" if kind_of(model).causal else "test")
    columns = {"text_column": column, "image_column": column, "label_column": label_column}
    options = columns | {"drop_bad_rows": drop_bad_rows or None}
    examples, described, collator = read_examples(model, folder, data, split, options)
    share: float | None = None
    without: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        trainer = _trainer(model, scratch, batch_size, collator)
        scores = _scores(trainer, examples)
        if is_signed(type(model.config).model_type) and not is_softmax(model.config):
            loader = trainer.get_eval_dataloader(examples)
            share = negative_share(model, ({k: v.to(model.device) for k, v in batch.items()} for batch in loader))
            with without_negatives(model):
                without = _scores(trainer, examples)
    return Evaluation(
        split=split,
        data=described | {"rows": len(examples)},
        scores=scores,
        negative_share=share,
        accuracy_without_negatives=without.get("accuracy"),
        perplexity_without_negatives=without.get("perplexity"),
        files=digests(folder),
        versions=library_versions(),
    )


def claimed_scores(folder: Path, split: str = "test") -> dict[str, float]:
    """The checkpoint's own numbers of a split in its card, by name; none without a card.

    Overall numbers are those of the model index. It lacks the recall of each class, which comes from all_results.json.
    """
    if not (folder / CARD).is_file():
        return {}
    card = read_card(folder / CARD)
    results = card.data.get("eval_results") or []
    claimed = {result.metric_name: result.metric_value for result in results if result.dataset_split == split}
    recorded = run_scores(read_json(folder / RESULTS), split) if claimed else {}
    return claimed | {name: value for name, value in recorded.items() if name not in METRICS}


def of_the_cards_data(folder: Path, evaluation: Evaluation) -> bool:
    """Whether an evaluation used the data that the checkpoint's run names for this split."""
    return same_data(read_json(folder / RECORD).get("data", {}).get(evaluation.split), evaluation.data)


def comparison(measured: Evaluation, claimed: dict[str, float], same: bool) -> str:
    """A table of the newly measured numbers, and beside them those of the card if they are of the same data."""
    kind, compared = "blocks" if "perplexity" in measured.scores else "examples", bool(claimed) and same
    where = f"{measured.data['source']} ({measured.split}, {measured.data['rows']:,} {kind})"
    heading = f"{'card':>8} {'measured':>10} {'difference':>12}" if compared else f"{'measured':>10}"
    lines = [f"{where:<40} {heading}"]
    if claimed and not same:
        lines.insert(0, "According to run.json, the card's numbers were measured on other data; nothing is compared.")
    for name, value in measured.scores.items():
        cells = f"{value:>10.4f}"
        if compared:
            card = claimed.get(name)
            cells = f"{'–':>8} {cells}" if card is None else f"{card:>8.4f} {cells} {value - card:>+12.4f}"
        lines.append(f"{name.replace('_', ' '):<40} {cells}")
    if measured.negative_share is not None:
        accuracy, perplexity = measured.accuracy_without_negatives, measured.perplexity_without_negatives
        without = f"perplexity is {perplexity:.4f}" if accuracy is None else f"accuracy is {accuracy:.4f}"
        lines.append(
            f"{measured.negative_share:.1%} of the attention coefficients with a magnitude above 0.001 are negative; "
            f"with those set to 0, the {without}."
        )
    if not claimed:
        lines.append(f"No card claims a number for the {measured.split} split, so nothing was compared.")
    return "\n".join(lines)


def local_folder(source: str | Path, revision: str | None = None) -> Path:
    """The folder of a checkpoint, downloaded if `source` is a name on the Hub.

    Raises:
        FileNotFoundError: there is no such checkpoint, or it cannot be reached.
        ValueError: a revision was given for a folder.
    """
    if Path(source).is_dir():
        if revision is not None:
            raise ValueError(f"{source} is a folder and has no revisions; leave out the revision {revision}.")
        if not any(Path(source).glob("*.safetensors")):
            raise FileNotFoundError(f"{source} has no weights (*.safetensors), so there is nothing to measure.")
        return Path(source)
    try:
        chosen: dict[str, Any] = {"allow_patterns": list(FETCHED), "ignore_patterns": ["*/*"]}  # without sub-folders
        return Path(snapshot_download(str(source), revision=revision, **chosen))
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise FileNotFoundError(
            f"{source} is neither a checkpoint folder nor a model on the Hub that you can access "
            f"({first_line(error)}). Check the name, the revision, and your account with `hf auth whoami`."
        ) from error


def _load(folder: Path) -> PreTrainedModel:
    checkpoint = open_checkpoint(folder)
    if checkpoint.kind.task not in EVALUATED:
        endings = ", ".join(kind.ending for kind in KINDS if kind.task in EVALUATED)
        raise ValueError(
            f"{folder} is a {(checkpoint.config.architectures or ['none'])[0]}; only classifiers and causal language "
            f"models are evaluated ({endings})."
        )
    model = checkpoint.model(torch.float32)
    model.is_quantized = False  # the Trainer refuses to train 8-bit weights, and so even to evaluate them
    return model


def _trainer(model: PreTrainedModel, scratch: str, batch_size: int, collator: Callable) -> SignedTrainer:
    causal = kind_of(model).causal
    args = TrainingArguments(
        output_dir=scratch,
        per_device_eval_batch_size=batch_size,
        prediction_loss_only=causal,
        report_to="none",
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    if causal:
        trainer: SignedTrainer = CausalTrainer(model=model, args=args, data_collator=collator)
    else:
        metrics: dict[str, Any] = {
            "compute_metrics": classification_metrics(_classes(model)),
            "preprocess_logits_for_metrics": predicted_classes,
        }
        trainer = SignedTrainer(model=model, args=args, data_collator=collator, **metrics)
    trainer.remove_callback(PrinterCallback)  # which the Trainer adds where transformers logs errors alone
    return trainer


def _classes(model: PreTrainedModel) -> list[str]:
    names = [model.config.id2label[index] for index in range(model.config.num_labels)]
    if shared := shared_names(names):
        raise ValueError(f"expected a name of its own for each class in id2label of config.json, got {shared}.")
    return names


def _scores(trainer: SignedTrainer, examples: Dataset) -> dict[str, float]:
    measured = trainer.evaluate(examples, metric_key_prefix="eval")
    kept = ("eval_accuracy", "eval_macro_f1", "eval_perplexity", "eval_recall_")
    return {name.removeprefix("eval_"): value for name, value in measured.items() if name.startswith(kept)}


def read_examples(
    model: PreTrainedModel, folder: Path, data: str | None, split: str, options: dict[str, Any]
) -> tuple[Dataset, dict[str, Any], Callable]:
    """The examples of a split, read as in training; their source, and the collator that makes batches of them.

    Args:
        data: a file, a folder or the name of a data set; by default the data set that the checkpoint's run names.
        options: data options of the training scripts; those that are None are as in the run.
    """
    run = read_json(folder / RECORD)
    data = data or _data_set_of(run, split)
    file = data if Path(data).exists() or is_table(data) else None
    described = source_of([Path(file)]) if file else {"source": data}
    if kind_of(model).causal:
        blocks = _read_blocks(model, folder, _data_arguments(BlockArguments, run, options), data, file, split)
        return blocks, described, default_data_collator
    images, names = model.main_input_name == "pixel_values", _classes(model)
    arguments = _data_arguments(ImageDataArguments if images else TextDataArguments, run, options)
    column = IMAGE if images else TEXT
    if file:
        setattr(arguments, f"{split}_file", file)  # which errors name
        rows = selected(column.read(file), split, arguments, column, LABEL)
    else:
        rows = _read_data_set(arguments, data, split, images)
    indices = [str(index) for index in range(len(names))]
    # what stands for a class: what stood for it in training, or its name, or for want of a record its index
    orders = [order for order in (run.get("label_values"), names, indices) if order]
    examples = labelled_split(rows, split, arguments, column, orders)
    if images:
        mode = image_mode(model.config)
        return examples, described, ImageCollator(checkpoint_processor(str(folder), model.config), mode=mode)
    tokenizer = saved_tokenizer(str(folder), model.config)
    know_padding(model.config, tokenizer)
    length = min(arguments.max_length, longest_text(model) or arguments.max_length)
    return tokenize(examples, tokenizer, length), described, DataCollatorWithPadding(tokenizer)


def _read_data_set(arguments: Any, data: str, split: str, images: bool) -> Dataset:
    """A split of a data set by name, as in training."""
    if data != arguments.dataset_name:
        arguments.dataset_name, arguments.dataset_config = data, None
    arguments.class_names = None
    splits = dict((read_image_splits if images else read_texts)(arguments))
    if split not in splits:
        raise ValueError(f"{data} has no {split} split with labels; choose another by --split.")
    return splits[split]


def _read_blocks(
    model: PreTrainedModel, folder: Path, arguments: BlockArguments, data: str, file: str | None, split: str
) -> Dataset:
    """The blocks of a split for a language model, sampled as in the training script."""
    arguments.dataset_name = data
    if file is not None:
        arguments.train_file = arguments.validation_file = [file]
        split = "validation"
    tokenizer = saved_tokenizer(str(folder), model.config)
    blocks = sampled(cut_into_blocks(read_documents(arguments), tokenizer, arguments.block_size), arguments)
    if split not in dict(blocks):
        raise ValueError(f"a language model is evaluated on the train or validation split; got {split}.")
    return dict(blocks)[split]


def _data_arguments(kind: type, run: dict[str, Any], options: dict[str, Any]) -> Any:
    """The data options of the run, without its files, and with the requested options."""
    known = {field.name for field in fields(kind) if not field.name.endswith("_file")}
    chosen = run.get("recipe", {}) | {name: value for name, value in options.items() if value is not None}
    return kind(**{name: value for name, value in chosen.items() if name in known})


def _data_set_of(run: dict[str, Any], split: str) -> str:
    """The data set that a run read by name."""
    recipe = run.get("recipe", {})
    if "train_file" in recipe or (recipe.get("dataset_name") or PLACE).startswith(PLACE):
        file = run.get("data", {}).get(split, {}).get("source")
        raise ValueError(f"name the data with --data{f'; the run read {file}' if file else ''}.")
    return recipe["dataset_name"]
