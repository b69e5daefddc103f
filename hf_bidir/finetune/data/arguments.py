"""Options of the data, as dataclasses for `HfArgumentParser`."""

from dataclasses import dataclass, field
from typing import Any

from hf_bidir.common.errors import InputError


def option(default: Any, help: str, **metadata: Any) -> Any:
    """A dataclass field with a help text."""
    return field(default=default, metadata={"help": help, **metadata})


def _check_share(share: float) -> None:
    if not 0 < share < 1:
        raise InputError(f"expected a validation_share between 0 and 1; got {share}")


@dataclass
class DataArguments:
    """Where the examples come from: files, or a data set by name."""

    _argument_group_name = "data"

    train_file: str | None = option(
        None, "Training table, or folder of class folders. Files override --dataset_name; formats: docs/training.md."
    )
    validation_file: str | None = option(
        None,
        "Examples that select the best checkpoint; default: a held-out share of the training data.",
    )
    test_file: str | None = option(None, "Examples for the reported metrics, used once after training.")
    dataset_name: str | None = option(None, "A data set on the Hub, such as stanfordnlp/sst2.")
    dataset_config: str | None = option(None, "The configuration of the data set on the Hub, if it has several.")
    validation_share: float = option(
        0.1, "Share of the training data held out, stratified by class, if there is no validation split."
    )
    split_seed: int = option(0, "Seed for choosing the held-out examples, independent of --seed.")
    max_train_samples: int | None = option(None, "Train on a random sample of this size, for a quick trial.")
    drop_bad_rows: bool = option(
        False,
        "Leave out rows without readable input or label, or of unusable classes; by default, an error lists them.",
    )

    @property
    def files(self) -> dict[str, str]:
        """The file of each split that has one."""
        files = {"train": self.train_file, "validation": self.validation_file, "test": self.test_file}
        return {name: file for name, file in files.items() if file}

    def __post_init__(self) -> None:
        if self.max_train_samples is not None and self.max_train_samples < 1:
            raise InputError(f"expected max_train_samples of at least 1; got {self.max_train_samples}")
        _check_share(self.validation_share)


@dataclass
class LabelledDataArguments(DataArguments):
    """Data options of classification."""

    label_column: str | None = option(None, "The column with the class; default: label or labels.")
    class_names: list[str] | None = field(
        default=None,
        metadata={"help": "Names of the classes, in the order of their sorted values, such as negative positive."},
    )


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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length < 2:
            raise InputError(f"expected max_length of at least 2, a token and the end; got {self.max_length}")


@dataclass
class TextDataArguments(LabelledDataArguments):
    """Data options of text classification."""

    text_column: str | None = option(None, "The column with the text; default: text or sentence.")
    max_length: int = option(128, "Longer texts are cut to this many tokens.")
    truncation_side: str | None = option(
        None, "Side to cut: right keeps the beginning (default), left keeps the end.", choices=["right", "left"]
    )
    remove_repeated: bool = option(
        False, "Remove validation and test texts that repeat a text of an earlier split; by default a note counts them."
    )


@dataclass
class ImageColumnArguments:
    """Images and their augmentation."""

    image_column: str | None = option(None, "The column with the image; default: image, img or pixels.")
    shift: float = option(0.0, "Augmentation: maximum shift along both axes, in pixels.")
    rotate: float = option(0.0, "Augmentation: maximum rotation in either direction, in degrees.")
    flip: bool = option(False, "Augmentation: mirror left to right with probability 1/2.")
    augment: str | None = option(None, "Augmentation by timm: a policy such as rand-m6-n2-mstd0.5-inc1, or augmix-m3.")
    erase: float = option(0.0, "Augmentation by timm: probability of erasing a rectangle.")
    check_images: bool = option(
        True, "Decoding of every image before training; --no_check_images skips this for a large data set."
    )


@dataclass
class ImageDataArguments(ImageColumnArguments, LabelledDataArguments):
    """Data options of image classification."""


@dataclass
class UnlabelledDataArguments:
    """Texts or images without labels; existing labels are ignored."""

    _argument_group_name = "data"

    train_file: list[str] | None = field(
        default=None, metadata={"help": "Training files or folders; several are concatenated."}
    )
    validation_file: list[str] | None = field(
        default=None, metadata={"help": "Validation files; default: a held-out share of the rows."}
    )
    dataset_name: str | None = option(None, "A data set on the Hub, such as stanfordnlp/imdb.")
    dataset_config: str | None = option(None, "The configuration of the data set on the Hub, if it has several.")
    validation_share: float = option(0.05, "Share of the rows held out if there is no validation split.")
    split_seed: int = option(0, "Seed for choosing held-out rows and samples.")
    max_train_samples: int | None = option(None, "Train on a random sample of this many rows.")
    max_eval_samples: int | None = option(500, "Evaluate on a random sample of this many blocks, snippets or images.")

    def __post_init__(self) -> None:
        _check_share(self.validation_share)
        for name in ("max_train_samples", "max_eval_samples"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise InputError(f"expected {name} of at least 1; got {count}")


@dataclass
class PlainTextArguments(UnlabelledDataArguments):
    """Plain texts."""

    text_column: str | None = option(None, "The column with the text; default: text or sentence.")


@dataclass
class BlockArguments(PlainTextArguments):
    """Data options of causal language modelling."""

    block_size: int = option(
        256, "Texts, each followed by an end token, are joined and cut into blocks of this many tokens."
    )
    sample_by: str = option(
        "line", "Unit of text in a .txt file: line, paragraph or document (the whole file).",
        choices=["line", "paragraph", "document"],
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block_size < 3:
            raise InputError(f"expected block_size of at least 3; got {self.block_size}")


@dataclass
class UnlabelledTextArguments(PlainTextArguments):
    """Data options of training on plain text."""

    max_length: int = option(64, "Texts are cut into snippets of at most this many tokens.")


@dataclass
class DistillationDataArguments(ImageColumnArguments, UnlabelledTextArguments):
    """Data options of distillation, on texts or on images."""

    max_eval_samples: int | None = option(
        None,
        "Evaluate on a random sample of this many snippets or images; default: at most 500, and so few that all "
        "evaluations take about a tenth of the time.",
    )
