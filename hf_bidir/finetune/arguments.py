"""The options of the training scripts, as dataclasses for `HfArgumentParser`."""

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from packaging.version import Version
from transformers import TrainingArguments

from hf_bidir.finetune.errors import InputError


def option(default: Any, help: str, **metadata: Any) -> Any:
    """A dataclass field with a help text."""
    return field(default=default, metadata={"help": help, **metadata})


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
    label_column: str | None = option(None, "The column with the class; guessed when it is called label.")
    class_names: list[str] | None = field(
        default=None,
        metadata={"help": "Names for the classes, in the order of their sorted values: negative positive"},
    )
    validation_share: float = option(
        0.1, "Share of the training data held out, stratified by class, when there is no validation split."
    )
    split_seed: int = option(0, "Chooses the held-out examples; the same whatever --seed is.")
    max_train_samples: int | None = option(None, "Train on a random sample of this size, for a quick trial.")

    def __post_init__(self) -> None:
        if self.max_train_samples is not None and self.max_train_samples < 1:
            raise InputError(f"expected max_train_samples of at least 1; got {self.max_train_samples}")


@dataclass
class TextDataArguments(DataArguments):
    """Data options of text classification."""

    text_column: str | None = option(None, "The column with the text; guessed when it is called text or sentence.")
    max_length: int = option(128, "Longer texts are cut to this many tokens.")


@dataclass
class ImageDataArguments(DataArguments):
    """Data options of image classification."""

    image_column: str | None = option(
        None, "The column with the image; guessed when it is called image, img or pixels."
    )
    shift: float = option(0.0, "Augmentation: shift a training image by up to this many pixels along both axes.")
    rotate: float = option(0.0, "Augmentation: turn a training image by up to this many degrees, either way.")
    flip: bool = option(False, "Augmentation: mirror each training image, left to right, with probability 1/2.")
    check_images: bool = option(
        True, "Decode every image once before training; --no_check_images trusts a large data set."
    )


@dataclass
class ModelArguments:
    """Options of attention, and the checkpoint to start from."""

    _argument_group_name = "model"

    model_name_or_path: str | None = option(
        None, "Start from this checkpoint (bidir, or stock softmax) instead of from scratch."
    )
    attn_activation: str | None = option(
        None, "tanhmax, softmax or a registered name. From scratch: tanhmax; a checkpoint keeps its own."
    )
    attn_negative_mass: float | None = option(
        None,
        "0 is softmax, 1 is TanhMax. From scratch: 1; a stock softmax checkpoint starts unchanged, at 0.",
    )
    attn_implementation: str | None = option(None, "How attention is computed: sdpa (the fastest exact path), eager.")
    hidden_size: int = option(128, "From scratch: the width of the model.")
    num_hidden_layers: int = option(4, "From scratch: the number of layers.")
    num_attention_heads: int = option(4, "From scratch: the number of heads; it divides hidden_size.")
    intermediate_size: int = option(512, "From scratch: the width of the feed-forward layers.")
    dropout: float = option(0.1, "From scratch: dropout of hidden states and of attention coefficients.")


@dataclass
class TextModelArguments(ModelArguments):
    """Model options of text classification."""

    vocab_size: int = option(8000, "From scratch: the size of the WordPiece vocabulary.")
    lowercase: bool = option(True, "From scratch: the tokenizer ignores case and accents; --no_lowercase keeps them.")


@dataclass
class ImageModelArguments(ModelArguments):
    """Model options of image classification."""

    hidden_size: int = option(64, "From scratch: the width of the model.")
    intermediate_size: int = option(256, "From scratch: the width of the feed-forward layers.")
    dropout: float = option(0.0, "From scratch: dropout of hidden states and of attention coefficients.")
    image_size: int | None = option(
        None,
        "From scratch: images are resized to a square of this side; guessed from the first one, at most 224.",
    )
    patch_size: int = option(4, "From scratch: the side of a patch, which divides image_size.")


@dataclass
class RunArguments(TrainingArguments):
    """`TrainingArguments` with defaults that evaluate, keep the best checkpoint and resume by themselves."""

    _argument_group_name = "training (transformers.TrainingArguments)"

    output_dir: str = option("runs/finetuned", "The folder of the run: checkpoint, model card, numbers, curve.")
    overwrite_output_dir: bool = option(False, "Start again in a folder that holds a run, and replace its files.")
    resume_from_checkpoint: str | None = option(
        "auto",
        "auto continues an interrupted run in output_dir; never does not; or the folder of a checkpoint.",
    )
    early_stopping_patience: int = option(
        0, "Stop after this many evaluations without a better accuracy; 0 trains to the end."
    )
    learning_rate: float = option(5e-4, "The peak learning rate.")
    warmup_ratio: float | None = option(0.1, "Share of the steps over which the learning rate rises from 0.")
    per_device_train_batch_size: int = option(32, "Training examples per process and step.")
    per_device_eval_batch_size: int = option(64, "Evaluation examples per process and step.")
    eval_strategy: str = option("epoch", "When to evaluate: no, steps or epoch.", choices=["no", "steps", "epoch"])
    save_strategy: str = option(
        "epoch", "When to save: no, steps, epoch or best.", choices=["no", "steps", "epoch", "best"]
    )
    save_total_limit: int | None = option(2, "How many checkpoints to keep; the best one always stays.")
    load_best_model_at_end: bool = option(True, "Finish with the best checkpoint rather than the last one.")
    metric_for_best_model: str | None = option("accuracy", "What makes a checkpoint the best one.")
    logging_steps: float = option(0.02, "Steps between two logged losses; below 1, a share of all steps.")
    restore_callback_states_from_checkpoint: bool = option(
        True, "Resume early stopping where it was as well; otherwise its patience starts again."
    )
    bf16: bool | None = option(None, "bfloat16 mixed precision. By default: on a GPU that supports it.")
    ddp_find_unused_parameters: bool | None = option(False, "Every parameter of these models is used.")
    report_to: str | None = option("none", "Where to log as well: tensorboard, wandb, ...")

    def __post_init__(self) -> None:
        if self.early_stopping_patience and not self.load_best_model_at_end:
            raise InputError(
                "expected load_best_model_at_end with early_stopping_patience "
                f"{self.early_stopping_patience}; it is false. Set it to true, or early_stopping_patience to 0."
            )
        if self.bf16 is None:
            on_gpu = torch.cuda.is_available() and not self.use_cpu
            self.bf16 = on_gpu and not self.fp16 and torch.cuda.is_bf16_supported(including_emulation=False)
        self.dataloader_pin_memory = self.dataloader_pin_memory and torch.cuda.is_available()
        if Version(transformers.__version__).major >= 5:  # where a share of the steps is a fractional warmup_steps
            self.warmup_steps = self.warmup_steps or self.warmup_ratio or 0
            self.warmup_ratio = None
        super().__post_init__()
