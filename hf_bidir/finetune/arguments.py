"""Options of the model and of the run, as dataclasses for `HfArgumentParser`."""

import os
from dataclasses import dataclass, field

import torch
from transformers import Seq2SeqTrainingArguments, TrainingArguments

from hf_bidir.common.errors import InputError
from hf_bidir.finetune.data.arguments import option
from hf_bidir.finetune.data.tokenizer import UNITS
from hf_bidir.modeling.configuration_bidir_rnn import (
    ATTN_QUERIES,
    ATTN_SCORES,
    ATTN_SELECTIONS,
    CLASSIFIER_SCOPES,
    DECODER_SCOPES,
    DECODER_STYLES,
    SCORES_ALONE,
)


@dataclass
class CentringArguments:
    """How a softmax checkpoint is prepared for negative mass."""

    centre: bool = option(
        True,
        "Subtraction of mean keys and values before a softmax checkpoint gets negative mass, which leaves the softmax "
        "model's outputs unchanged; --no_centre skips this.",
    )


@dataclass
class PretrainedArguments(CentringArguments):
    """The initial checkpoint and its attention."""

    _argument_group_name = "model"

    model_name_or_path: str | None = option(None, "Start from this checkpoint: bidir or stock.")
    attn_activation: str | None = option(
        None,
        "Activation: tanhmax, balanced, softmax or a registered name. New models: tanhmax; others keep theirs.",
    )
    attn_negative_mass: float | None = option(
        None,
        "Negative mass λ, 0 (softmax) to 1. From scratch: 1; a stock softmax checkpoint keeps 0.",
    )
    attn_negative_mass_by_layer: list[float] | None = field(
        default=None,
        metadata={"help": "Negative mass of each layer with signed attention, first layer first."},
    )
    attn_negative_mass_by_head: list[float] | None = field(
        default=None,
        metadata={"help": "Negative mass of each head, the same in every layer, such as 0 0 0 1."},
    )
    base_model: str | None = option(
        None,
        "For the model card: Hub name of the original checkpoint if --model_name_or_path is a folder.",
    )
    license: str | None = option(None, "For the model card: licence of the initial weights, such as apache-2.0.")
    attn_implementation: str | None = option(None, "Backend: sdpa, eager or fused. sdpa is the fastest exact one.")


@dataclass
class AdapterArguments(PretrainedArguments):
    """The initial checkpoint, and a LoRA adapter (Hu et al. 2021) that is trained in its place."""

    lora_rank: int | None = option(
        None, "Train a LoRA adapter of this rank on a signed checkpoint, whose own weights do not change. 8 is usual."
    )
    lora_alpha: float | None = option(
        None, "The adapter's output is multiplied by lora_alpha / lora_rank; default: twice the rank."
    )
    lora_dropout: float = option(0.0, "Dropout of the adapter's input.")
    lora_targets: list[str] | None = field(
        default=None,
        metadata={
            "help": "Linear layers that get an adapter, by the last parts of their names, such as query value; "
            "default: all but the output layer."
        },
    )


@dataclass
class ModelArguments(AdapterArguments):
    """The initial checkpoint, or the shape of a new model."""

    hidden_size: int = option(128, "From scratch: the width of the model.")
    num_hidden_layers: int = option(4, "From scratch: the number of layers.")
    num_attention_heads: int = option(4, "From scratch: the number of heads; must divide hidden_size.")
    intermediate_size: int = option(512, "From scratch: the width of the feed-forward layers.")
    dropout: float = option(0.1, "From scratch: dropout of hidden states and of attention coefficients.")
    initializer_range: float = option(0.02, "From scratch: the standard deviation of new weights.")
    attn_scope: str = option(
        "global",
        "From scratch: the scope, global or window (attn_window positions).",
        choices=["global", "window"],
    )
    attn_window: int | None = option(None, "From scratch: positions on either side, for attn_scope window.")


@dataclass
class TextModelArguments(ModelArguments):
    """Model options of text classification."""

    vocab_size: int = option(8000, "From scratch: the size of the WordPiece vocabulary.")
    lowercase: bool = option(True, "From scratch: the tokenizer ignores case and accents; --no_lowercase keeps them.")
    masked_lm_weight: float = option(0.0, "Weight of an additional masked language modelling loss during training.")

    def __post_init__(self) -> None:
        if self.masked_lm_weight < 0:
            raise InputError(f"expected masked_lm_weight of at least 0; got {self.masked_lm_weight}")


@dataclass
class RecurrentArguments(PretrainedArguments):
    """Model options of every recurrent model."""

    encoder: str = option("gru", "From scratch: the recurrent layers, lstm or gru.")
    bidirectional: bool = option(False, "From scratch: a bidirectional encoder.")
    num_rnn_layers: int = option(1, "From scratch: the layers of the encoder.")
    embedding_size: int = option(200, "From scratch: the width of the embedding.")
    hidden_size: int = option(100, "From scratch: the width of encoder (per direction), queries, keys and values.")
    attn_selection: str = option(
        "soft",
        "From scratch: the selection, soft (all values) or hard (one drawn value).",
        choices=list(ATTN_SELECTIONS),
    )
    dropout: float = option(0.5, "From scratch: dropout before the final linear layer.")
    embedding_dropout: float = option(0.0, "From scratch: dropout of the embeddings.")
    vocab_size: int = option(8000, "From scratch: the maximum size of the vocabulary.")
    lowercase: bool = option(True, "From scratch: the tokenizer ignores case and accents; --no_lowercase keeps them.")


@dataclass
class RnnModelArguments(RecurrentArguments):
    """Model options of recurrent text classification."""

    encoder: str = option("none", "From scratch: the encoder, none (attention over the embeddings), lstm or gru.")
    attn_score: str = option("per_token", "From scratch: the alignment score.", choices=list(ATTN_SCORES))
    attn_query: str = option("learned", "From scratch: the query of attention.", choices=list(ATTN_QUERIES))
    attn_scale: float = option(5.0, "From scratch: the divisor of the per-token score.")
    attn_scope: str = option(
        "global",
        "From scratch: the positions attended to, global or local-p (around a predicted position).",
        choices=list(CLASSIFIER_SCOPES),
    )
    attn_window: int | None = option(None, "From scratch: positions on either side, for attn_scope local-p.")


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
    decoder_style: str = option(
        "luong", "From scratch: the decoder architecture.", choices=[style for style in DECODER_STYLES if style]
    )
    input_feeding: bool = option(
        True, "From scratch: the Luong decoder also takes the previous attentional vector as input."
    )
    attn_scope: str = option(
        "global",
        "From scratch: the source positions a step attends to: global, local-m (around the step's own position), "
        "local-p (around a predicted position), none (no attention).",
        choices=list(DECODER_SCOPES),
    )
    attn_window: int | None = option(None, "From scratch: positions on either side, for a local scope.")


@dataclass
class CausalModelArguments(ModelArguments):
    """Model options of causal language modelling; a new model has the shape of Llama."""

    hidden_size: int = option(192, "From scratch: the width of the model.")
    num_hidden_layers: int = option(6, "From scratch: the number of layers.")
    num_attention_heads: int = option(6, "From scratch: the number of heads; must divide hidden_size.")
    num_key_value_heads: int | None = option(
        None, "From scratch: the number of key and value heads; must divide num_attention_heads, which is the default."
    )
    dropout: float = option(0.0, "From scratch: dropout of attention coefficients.")
    vocab_size: int = option(4096, "From scratch: the size of the byte-level vocabulary.")


@dataclass
class ImageModelArguments(ModelArguments):
    """Model options of image classification."""

    hidden_size: int = option(64, "From scratch: the width of the model.")
    intermediate_size: int = option(256, "From scratch: the width of the feed-forward layers.")
    dropout: float = option(0.0, "From scratch: dropout of hidden states and of attention coefficients.")
    image_size: int | None = option(
        None,
        "From scratch: images are resized to a square of this side; default: the first image's, at most 64.",
    )
    patch_size: int | None = option(
        None, "From scratch: the side of a patch; must divide image_size; default: at least 7 x 7 patches."
    )


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
    negative_mass_end: float = option(1.0, "Final negative mass.")


@dataclass
class HealingScheduleArguments(ScheduleArguments):
    """A schedule that is enabled by default."""

    negative_mass_until: float | None = option(
        0.0, "Change the negative mass over this share of training, 0 to 1; 0 sets the final value at once."
    )


@dataclass
class RunArguments(TrainingArguments):
    """`TrainingArguments` with defaults that evaluate, keep the best checkpoint and resume automatically."""

    _argument_group_name = "training (transformers.TrainingArguments)"

    output_dir: str = option("runs/finetuned", "Output folder: checkpoint, model card, metrics, loss curve.")
    overwrite_output_dir: bool = option(False, "Start again in a folder that holds a run, replacing its files.")
    resume_from_checkpoint: str | None = option(
        "auto",
        "auto (continue an interrupted run in output_dir), never, or the folder of a checkpoint.",
    )
    early_stopping_patience: int = option(
        0,
        "Stop after this many evaluations without a better metric_for_best_model; 0 disables it. Of equal "
        "scores, that with the lower loss counts as best. A new classifier or encoder-decoder stops early by default "
        "unless the number of epochs or steps is given.",
    )
    num_train_epochs: float = option(
        3.0,
        "Passes over the training data. A new classifier trains until validation stops improving.",
    )
    learning_rate: float = option(5e-4, "The peak learning rate.")
    warmup_ratio: float | None = option(0.1, "Share of the steps over which the learning rate rises from 0.")
    per_device_train_batch_size: int = option(32, "Training examples per process and step.")
    per_device_eval_batch_size: int = option(64, "Evaluation examples per process and step.")
    eval_strategy: str = option("epoch", "When to evaluate: no, steps or epoch.", choices=["no", "steps", "epoch"])
    save_strategy: str = option(
        "epoch", "When to save: no, steps, epoch or best.", choices=["no", "steps", "epoch", "best"]
    )
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
    use_cpu: bool = option(False, "Compute on the CPU even if there is a GPU.")
    bf16: bool | None = option(None, "bfloat16 mixed precision; default: on a GPU that supports it.")
    report_to: str | None = option("none", "Further loggers: tensorboard, wandb, ...")

    def __post_init__(self) -> None:
        if self.early_stopping_patience and not self.load_best_model_at_end:
            raise InputError(
                "expected load_best_model_at_end with early_stopping_patience "
                f"{self.early_stopping_patience}; it is false. Set it to true, or early_stopping_patience to 0."
            )
        if self.bf16 is None:
            on_gpu = torch.cuda.is_available() and not self.use_cpu
            self.bf16 = on_gpu and not self.fp16 and torch.cuda.is_bf16_supported(including_emulation=False)
        if not torch.cuda.is_available():
            self.dataloader_pin_memory = False
            # otherwise accelerate, with a CUDA build of torch, joins no process group: each process would train alone
            if int(os.environ.get("WORLD_SIZE", "1")) > 1:
                self.use_cpu = True
        # transformers accepts a share in warmup_steps
        self.warmup_steps = self.warmup_steps or self.warmup_ratio or 0  # type: ignore[has-type]  # inherited
        self.warmup_ratio = None
        if self.group_by_length:  # the name of this option in transformers
            self.train_sampling_strategy = "group_by_length"
        super().__post_init__()


@dataclass
class HealingArguments(RunArguments):
    """Run options with the defaults of healing: a fixed number of steps, and the last checkpoint."""

    max_steps: int = option(300, "The number of optimizer steps; -1 counts epochs instead.")
    learning_rate: float = option(2.5e-4, "The peak learning rate.")
    warmup_ratio: float | None = option(0.05, "Share of the steps over which the learning rate rises from 0.")
    per_device_train_batch_size: int = option(24, "Snippets or images per process and step.")
    eval_strategy: str = option("steps", "When to evaluate: no, steps or epoch.", choices=["no", "steps", "epoch"])
    eval_steps: float | None = option(0.2, "Steps between evaluations; below 1: a share of all steps.")
    save_strategy: str = option(
        "steps", "When to save: no, steps, epoch or best.", choices=["no", "steps", "epoch", "best"]
    )
    save_steps: float = option(0.2, "Steps between checkpoints; below 1: a share of all steps.")
    save_total_limit: int | None = option(1, "How many checkpoints to keep.")
    load_best_model_at_end: bool = option(False, "Load the best checkpoint at the end instead of the last one.")
    metric_for_best_model: str | None = option("loss", "Validation metric that selects the best checkpoint.")

    def __post_init__(self) -> None:
        if self.metric_for_best_model in ("perplexity", "relative_error"):
            # transformers infers this for losses only
            self.greater_is_better = bool(self.greater_is_better)  # type: ignore[has-type]  # inherited
        super().__post_init__()


@dataclass
class CausalRunArguments(HealingArguments):
    """Run options of causal language modelling: epochs, and a learning rate that decays to 0."""

    max_steps: int = option(-1, "The number of optimizer steps; -1 counts epochs instead.")
    num_train_epochs: float = option(1.0, "Number of passes over the text.")
    learning_rate: float = option(1e-3, "The peak learning rate, for new weights; 5e-5 suits a checkpoint.")
    lr_scheduler_type: str = option("cosine", "Learning rate schedule after warm-up.")
    weight_decay: float = option(0.1, "Weight decay, except of biases and norms.")
    per_device_train_batch_size: int = option(12, "Blocks per process and step.")
    per_device_eval_batch_size: int = option(12, "Evaluation blocks per process and step.")


@dataclass
class Seq2SeqRunArguments(RunArguments, Seq2SeqTrainingArguments):
    """Run options of encoder-decoders: evaluation generates text and counts exact matches."""

    predict_with_generate: bool = option(True, "Evaluate generated text.")
    generation_num_beams: int | None = option(
        None, "Number of beams in evaluation; default: the checkpoint's, or 1 (greedy)."
    )
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
