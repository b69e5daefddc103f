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

    train_file: str | None = option(None, "Training examples. Files win over --dataset_name.")
    validation_file: str | None = option(
        None,
        "Examples that choose the best checkpoint; without them a share of the training data is held out.",
    )
    test_file: str | None = option(None, "Examples used once, at the very end, for the reported numbers.")
    dataset_name: str | None = option(None, "A data set on the Hub, such as stanfordnlp/sst2.")
    dataset_config: str | None = option(None, "The configuration of the data set on the Hub, when it has several.")
    validation_share: float = option(
        0.1, "Share of the training data held out (stratified by class) when there is no validation split."
    )
    split_seed: int = option(0, "Chooses the held-out examples; the same whatever --seed is.")
    max_train_samples: int | None = option(None, "Train on a random sample of this size, for a quick trial.")

    def __post_init__(self) -> None:
        if self.max_train_samples is not None and self.max_train_samples < 1:
            raise InputError(f"expected max_train_samples of at least 1; got {self.max_train_samples}")
        _check_share(self.validation_share)


@dataclass
class LabelledDataArguments(DataArguments):
    """Data options of classification."""

    label_column: str | None = option(None, "The column with the class; guessed when it is called label.")
    class_names: list[str] | None = field(
        default=None,
        metadata={"help": "Names for the classes, in the order of their sorted values: negative positive"},
    )


@dataclass
class PairDataArguments(DataArguments):
    """Data options of one sequence to another."""

    source_column: str | None = option(None, "The column to read from; guessed when it is called source.")
    target_column: str | None = option(None, "The column to write; guessed when it is called target.")
    source_prefix: str = option(
        "", "Put before every source, as T5 was trained to read: 'translate English to German: '."
    )
    max_length: int = option(64, "Longer sources are cut to this many tokens.")
    max_target_length: int | None = option(
        None, "The most tokens of a target, its end included, and of what is written; by default as max_length."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length < 2:
            raise InputError(f"expected max_length of at least 2, a token and the end; got {self.max_length}")


@dataclass
class TextDataArguments(LabelledDataArguments):
    """Data options of text classification."""

    text_column: str | None = option(None, "The column with the text; guessed when it is called text or sentence.")
    max_length: int = option(128, "Longer texts are cut to this many tokens.")
    truncation_side: str | None = option(
        None, "Where: right keeps the beginning (by default), left the end.", choices=["right", "left"]
    )


@dataclass
class ImageColumnArguments:
    """Which images, and how they are varied in training."""

    image_column: str | None = option(
        None, "The column with the image; guessed when it is called image, img or pixels."
    )
    shift: float = option(0.0, "Augmentation: shift a training image by up to this many pixels along both axes.")
    rotate: float = option(0.0, "Augmentation: turn a training image by up to this many degrees, either way.")
    flip: bool = option(False, "Augmentation: mirror each training image, left to right, with probability 1/2.")
    augment: str | None = option(None, "Augmentation by timm: a policy such as rand-m6-n2-mstd0.5-inc1, or augmix-m3.")
    erase: float = option(0.0, "Augmentation by timm: the probability that a rectangle of a training image is erased.")
    check_images: bool = option(
        True, "Decode every image once before training; --no_check_images trusts a large data set."
    )


@dataclass
class ImageDataArguments(ImageColumnArguments, LabelledDataArguments):
    """Data options of image classification."""


@dataclass
class UnlabelledDataArguments:
    """Texts or images without labels; labels that are there are not read."""

    _argument_group_name = "data"

    train_file: list[str] | None = field(
        default=None, metadata={"help": "Files or folders to train on, as many as you like; they are joined."}
    )
    validation_file: list[str] | None = field(
        default=None, metadata={"help": "Files for the evaluation; without them a share of the rows is held out."}
    )
    dataset_name: str | None = option(None, "A data set on the Hub, such as stanfordnlp/imdb.")
    dataset_config: str | None = option(None, "The configuration of the data set on the Hub, when it has several.")
    validation_share: float = option(0.05, "Share of the rows held out when there is no validation split.")
    split_seed: int = option(0, "Chooses the rows that are held out or left out.")
    max_train_samples: int | None = option(None, "Train on a random sample of this many rows.")
    max_eval_samples: int = option(500, "Evaluate on a random sample of so many blocks, snippets or images.")

    def __post_init__(self) -> None:
        _check_share(self.validation_share)
        for name in ("max_train_samples", "max_eval_samples"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise InputError(f"expected {name} of at least 1; got {count}")


@dataclass
class PlainTextArguments(UnlabelledDataArguments):
    """Which texts."""

    text_column: str | None = option(None, "The column with the text; guessed when it is called text or sentence.")


@dataclass
class BlockArguments(PlainTextArguments):
    """Data options of causal language modelling."""

    block_size: int = option(
        256, "Texts, each with the token that ends one, are joined and cut into blocks of so many tokens."
    )
    sample_by: str = option(
        "line", "What a text is in a .txt file: a line, a paragraph, or the whole document.",
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
