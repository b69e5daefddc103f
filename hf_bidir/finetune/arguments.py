"""Options of data, models, schedules and runs, as dataclasses for `hf_bidir.cli.script.parse`."""

import os
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import TrainingArguments

from hf_bidir.common.errors import InputError


def option(default: Any, help: str, **metadata: Any) -> Any:
    """A dataclass field with a help text."""
    return field(default=default, metadata={"help": help, **metadata})


@dataclass
class SourceArguments:
    """A data set by name, and what is held out of it; files, which override it, are options of sub-classes."""

    _argument_group_name = "data"

    dataset_name: str | None = option(None, "A data set on the Hub, such as stanfordnlp/sst2.")
    dataset_config: str | None = option(None, "The configuration of the data set on the Hub, if it has several.")
    validation_share: float = option(
        0.1, "Share of the training data held out, stratified by class, if there is no validation split."
    )
    drop_bad_rows: bool = option(
        False, "Leave out rows without readable input or label, or of unknown classes; default: an error lists them."
    )

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name.startswith("max_") and value is not None and value < 1:
                raise InputError(f"expected --{name} of at least 1; got {value}")

    @property
    def files(self) -> dict[str, list[str]]:
        """The files of each split that has some."""
        named = {name: getattr(self, f"{name}_file", None) for name in ("train", "validation", "test")}
        return {name: [files] if isinstance(files, str) else files for name, files in named.items() if files}


@dataclass
class DataArguments(SourceArguments):
    """Where the examples come from: files, or a data set by name."""

    train_file: str | None = option(
        None, "Training table, or folder of class folders. Files override --dataset_name; formats: docs/data.md."
    )
    validation_file: str | None = option(
        None, "Examples that select the best checkpoint; default: a held-out share of the training data."
    )
    test_file: str | None = option(None, "Examples for the reported metrics, used once after training.")


@dataclass
class LabelledDataArguments(DataArguments):
    """Data options of classification."""

    label_column: str | None = option(None, "The column with the class; default: label or labels.")
    class_names: list[str] | None = option(
        None, "Names of the classes, in the order of their sorted values, such as negative positive."
    )


@dataclass
class TextDataArguments(LabelledDataArguments):
    """Data options of text classification."""

    text_column: str | None = option(None, "The column with the text; default: text or sentence.")
    max_length: int = option(128, "Longer texts are cut to this many tokens.")
    truncation_side: str | None = option(
        None, "Side to cut: right keeps the beginning (default), left keeps the end.", choices=["right", "left"]
    )


@dataclass
class ImageColumnArguments:
    """Images and their augmentation."""

    image_column: str | None = option(None, "The column with the image; default: image, img or pixels.")
    shift: float = option(0.0, "Augmentation: maximum shift along both axes, in pixels.")
    rotate: float = option(0.0, "Augmentation: maximum rotation in either direction, in degrees.")
    flip: bool = option(False, "Augmentation: mirror left to right with probability 1/2.")


@dataclass
class ImageDataArguments(ImageColumnArguments, LabelledDataArguments):
    """Data options of image classification."""

    image_size: int | None = option(
        None, "Images are resized to a square of this side; default: as the checkpoint does; from scratch 64."
    )


@dataclass
class UnlabelledDataArguments(SourceArguments):
    """Texts or images without labels; existing labels are ignored."""

    train_file: list[str] | None = option(None, "Training files or folders; several are concatenated.")
    validation_file: list[str] | None = option(None, "Validation files; default: a held-out share of the rows.")
    validation_share: float = option(0.05, "Share of the rows held out if there is no validation split.")
    max_eval_samples: int | None = option(500, "Evaluate on a random sample of this many blocks, snippets or images.")
    text_column: str | None = option(None, "The column with the text; default: text or sentence.")


@dataclass
class BlockArguments(UnlabelledDataArguments):
    """Data options of causal language modelling."""

    block_size: int = option(
        256, "Texts, each followed by an end token, are joined and cut into blocks of this many tokens."
    )
    sample_by: str = option(
        "line", "Unit of text in a .txt file: line, paragraph or document (the whole file).",
        choices=["line", "paragraph", "document"],
    )  # fmt: skip


@dataclass
class UnlabelledTextArguments(UnlabelledDataArguments):
    """Data options of training on plain text."""

    max_length: int = option(
        64, "Texts are cut into snippets of at most this many tokens; in healing, those of a model that generates text "
        "are joined first.",
    )  # fmt: skip


@dataclass
class DistillationDataArguments(ImageColumnArguments, UnlabelledTextArguments):
    """Data options of distillation, on texts or on images."""

    max_eval_samples: int | None = option(200, "Evaluate on a random sample of this many snippets, blocks or images.")


@dataclass
class PretrainedArguments:
    """The initial checkpoint and its attention."""

    _argument_group_name = "model"

    model_name_or_path: str | None = option(None, "Start from this checkpoint: bidir or stock.")
    attn_activation: str | None = option(
        None, "Activation: tanhmax, balanced, softmax or a registered name. New models: tanhmax; others keep theirs."
    )
    attn_negative_mass: float | None = option(
        None, "Negative mass λ, 0 (softmax) to 1. From scratch: 1; a stock softmax checkpoint keeps 0."
    )
    base_model: str | None = option(
        None,
        "For the model card, and to push an adapter: Hub name of the checkpoint if --model_name_or_path is a folder.",
    )
    license: str | None = option(None, "For the model card: licence of the initial weights, such as apache-2.0.")
    attn_implementation: str | None = option(
        None, "Backend: sdpa (default: an exact one by device and dtype), eager, fused or another of docs/models.md."
    )


@dataclass
class AdapterArguments(PretrainedArguments):
    """The initial checkpoint, and a LoRA adapter (Hu et al. 2021) that is trained in its place."""

    lora_rank: int | None = option(
        None, "Train a LoRA adapter of this rank on the checkpoint, whose own weights do not change. 8 is usual."
    )
    lora_alpha: float | None = option(
        None, "The adapter's output is multiplied by lora_alpha / lora_rank; default: twice the rank."
    )
    lora_dropout: float = option(0.0, "Dropout of the adapter's input.")
    lora_targets: list[str] | None = option(
        None,
        "Linear layers that get an adapter, by the last parts of their names, such as query value; default: all but "
        "the output layer.",
    )


@dataclass
class ModelArguments(AdapterArguments):
    """The initial checkpoint, or the shape of a new transformer."""

    hidden_size: int = option(128, "From scratch: the width of the model.")
    num_hidden_layers: int = option(4, "From scratch: the number of layers.")
    num_attention_heads: int = option(4, "From scratch: the number of heads; must divide hidden_size.")
    intermediate_size: int = option(512, "From scratch: the width of the feed-forward layers.")
    dropout: float = option(0.1, "From scratch: dropout of hidden states and of attention coefficients.")
    initializer_range: float = option(0.02, "From scratch: the standard deviation of new weights.")
    attn_scope: str = option("global", "From scratch: the scope, global or window (attn_window positions).")
    attn_window: int | None = option(None, "From scratch: positions on either side, for attn_scope window.")


@dataclass
class ScheduleArguments:
    """The schedule of the negative mass during training."""

    _argument_group_name = "negative mass schedule"

    negative_mass_until: float | None = option(
        None, "Change the negative mass over this share of training, 0 to 1; default: no change."
    )
    negative_mass_start: float | None = option(
        None, "Initial negative mass; default: the model's, or e^-12 (close to softmax) if that is 0."
    )
    negative_mass_end: float | None = option(None, "Final negative mass; default: 1.")


ROUNDED = "the weights that are evaluated would be rounded, and saved so"
NOT_SUPPORTED = {  # options of TrainingArguments that change what an evaluation sees, or what a run resumes
    "dataloader_drop_last": "an evaluation would lose rows too",
    "dataloader_persistent_workers": "every split would be evaluated on the rows of the first",
    "fp16_full_eval": ROUNDED,
    "bf16_full_eval": ROUNDED,
    "resume_from_checkpoint": "an interrupted run in --output_dir continues by itself",
}


@dataclass
class RunArguments(TrainingArguments):
    """`TrainingArguments` with defaults that evaluate, keep the best checkpoint and resume automatically.

    Attributes:
        typed: every option that the user gave, of all dataclasses, by name; the record of the run has them.
    """

    _argument_group_name = "training (transformers.TrainingArguments)"

    output_dir: str = option("runs/finetuned", "Output folder: checkpoint, model card, metrics.")
    overwrite_output_dir: bool = option(False, "Start again in a folder that holds a run, replacing its files.")
    early_stopping_patience: int = option(
        0, "Stop after this many evaluations without a better metric_for_best_model; 0 disables it."
    )
    learning_rate: float = option(
        1.5e-4, "The peak learning rate; the default suits pretrained encoders, new small models take 1e-3 to 3e-3."
    )
    warmup_ratio: float | None = option(0.1, "Share of the steps over which the learning rate rises from 0.")
    per_device_train_batch_size: int = option(32, "Training examples per process and step.")
    per_device_eval_batch_size: int = option(64, "Evaluation examples per process and step.")
    eval_strategy: str = option("epoch", "When to evaluate: no, steps or epoch.")
    save_strategy: str = option("epoch", "When to save: no, steps, epoch or best.")
    save_total_limit: int | None = option(2, "Number of checkpoints to keep; the best one is always kept.")
    load_best_model_at_end: bool = option(True, "Load the best checkpoint at the end instead of the last one.")
    metric_for_best_model: str | None = option("accuracy", "Validation metric that selects the best checkpoint.")
    logging_steps: float = option(0.02, "Steps between logged losses; below 1: a share of all steps.")
    logging_nan_inf_filter: bool = option(
        False, "Log the mean of earlier losses in place of a NaN; by default a NaN stops the run."
    )
    restore_callback_states_from_checkpoint: bool = option(
        True, "Restore the state of early stopping on resume; otherwise patience restarts."
    )
    group_by_length: bool = option(
        False, "Batch texts of similar length together: less padding and faster, but less random batches."
    )
    bf16: bool | None = option(None, "bfloat16 mixed precision; default: on a GPU that supports it.")
    report_to: str | None = option("none", "Further loggers, which also get λ: tensorboard, wandb, ...")

    def __post_init__(self) -> None:
        for name, reason in NOT_SUPPORTED.items():
            if getattr(self, name):
                raise InputError(f"--{name} is not supported, because {reason}; leave it out")
        if not torch.cuda.is_available():
            self.dataloader_pin_memory = False
            if int(os.environ.get("WORLD_SIZE", "1")) > 1:
                # otherwise accelerate, with a CUDA build of torch, joins no process group: each would train alone
                self.use_cpu = True
        if self.bf16 is None:
            on_gpu = torch.cuda.is_available() and not self.use_cpu
            self.bf16 = on_gpu and not self.fp16 and torch.cuda.is_bf16_supported(including_emulation=False)
        # transformers accepts a share in warmup_steps
        self.warmup_steps = self.warmup_steps or self.warmup_ratio or 0  # type: ignore[has-type]  # inherited
        self.warmup_ratio = None
        if self.group_by_length:  # the name of this option in transformers
            self.train_sampling_strategy = "group_by_length"
        if self.metric_for_best_model in ("perplexity", "relative_error"):  # transformers infers this for losses only
            self.greater_is_better = bool(self.greater_is_better)  # type: ignore[has-type]  # inherited
        super().__post_init__()
        self.typed: dict[str, Any] = {}


@dataclass
class StepArguments(RunArguments):
    """Run options of a fixed number of steps, which keeps the last checkpoint."""

    max_steps: int = option(300, "The number of optimizer steps; -1 counts epochs instead.")
    learning_rate: float = option(2.5e-4, "The peak learning rate.")
    warmup_ratio: float | None = option(0.05, "Share of the steps over which the learning rate rises from 0.")
    per_device_train_batch_size: int = option(24, "Snippets or images per process and step.")
    eval_strategy: str = option("steps", "When to evaluate: no, steps or epoch.")
    eval_steps: float | None = option(0.2, "Steps between evaluations; below 1: a share of all steps.")
    save_strategy: str = option("steps", "When to save: no, steps, epoch or best.")
    save_steps: float = option(0.2, "Steps between checkpoints; below 1: a share of all steps.")
    load_best_model_at_end: bool = option(False, "Load the best checkpoint at the end instead of the last one.")
    metric_for_best_model: str | None = option("loss", "Validation metric that selects the best checkpoint.")
