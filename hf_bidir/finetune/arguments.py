"""Options of the model and of the run, as dataclasses for `HfArgumentParser`."""

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
    DECODER_SCOPES,
    DECODER_STYLES,
    SCORES_ALONE,
)


@dataclass
class CentringArguments:
    """How weights of a softmax model get negative mass."""

    centre: bool = option(
        True,
        "When a softmax checkpoint gets negative mass: first subtract mean keys and values, which the softmax model "
        "does not notice; --no_centre does not.",
    )


@dataclass
class PretrainedArguments(CentringArguments):
    """The checkpoint to start from, and its attention."""

    _argument_group_name = "model"

    model_name_or_path: str | None = option(None, "The checkpoint to start from: bidir, or stock softmax.")
    attn_activation: str | None = option(
        None, "tanhmax, softmax or a registered name. From scratch: tanhmax; a checkpoint keeps its own."
    )
    attn_negative_mass: float | None = option(
        None,
        "0 is softmax, 1 is TanhMax. From scratch: 1; a stock softmax checkpoint starts unchanged, at 0.",
    )
    attn_negative_mass_by_layer: list[float] | None = field(
        default=None,
        metadata={"help": "In place of one number: one for each layer with signed attention, from the first."},
    )
    attn_negative_mass_by_head: list[float] | None = field(
        default=None,
        metadata={"help": "In place of one number: one for each head, the same in every layer, such as 0 0 0 1."},
    )
    base_model: str | None = option(
        None,
        "For the card: the Hub's name of the checkpoint that --model_name_or_path comes from, where that is a folder.",
    )
    license: str | None = option(
        None, "For the card: the licence of weights that come from elsewhere, such as apache-2.0."
    )
    attn_implementation: str | None = option(
        None, "How attention is computed: sdpa (the fastest exact path), eager, fused."
    )


@dataclass
class ModelArguments(PretrainedArguments):
    """Options of attention, and the checkpoint to start from or the shape of a new model."""

    hidden_size: int = option(128, "From scratch: the width of the model.")
    num_hidden_layers: int = option(4, "From scratch: the number of layers.")
    num_attention_heads: int = option(4, "From scratch: the number of heads; it divides hidden_size.")
    intermediate_size: int = option(512, "From scratch: the width of the feed-forward layers.")
    dropout: float = option(0.1, "From scratch: dropout of hidden states and of attention coefficients.")
    initializer_range: float = option(0.02, "From scratch: the standard deviation of new weights.")
    attn_scope: str = option(
        "global", "From scratch: global, or window (tokens at most attn_window away).", choices=["global", "window"]
    )
    attn_window: int | None = option(None, "From scratch: positions on either side, for attn_scope window.")


@dataclass
class TextModelArguments(ModelArguments):
    """Model options of text classification."""

    vocab_size: int = option(8000, "From scratch: the size of the WordPiece vocabulary.")
    lowercase: bool = option(True, "From scratch: the tokenizer ignores case and accents; --no_lowercase keeps them.")
    masked_lm_weight: float = option(
        0.0, "Mask words of a text in training, to be guessed too: the weight of that loss."
    )

    def __post_init__(self) -> None:
        if self.masked_lm_weight < 0:
            raise InputError(f"expected masked_lm_weight of at least 0; got {self.masked_lm_weight}")


@dataclass
class RecurrentArguments(PretrainedArguments):
    """Model options of every recurrent model."""

    encoder: str = option("gru", "From scratch: the recurrent layers, lstm or gru.")
    bidirectional: bool = option(False, "From scratch: an encoder that reads both ways.")
    num_rnn_layers: int = option(1, "From scratch: the layers of the encoder.")
    embedding_size: int = option(200, "From scratch: the width of the embedding.")
    hidden_size: int = option(100, "From scratch: the width of encoder (per direction), queries, keys and values.")
    attn_selection: str = option(
        "soft", "From scratch: soft (all values), or hard (one value, drawn).", choices=list(ATTN_SELECTIONS)
    )
    dropout: float = option(0.5, "From scratch: dropout before the last, linear layer.")
    embedding_dropout: float = option(0.0, "From scratch: dropout of the embeddings.")
    vocab_size: int = option(8000, "From scratch: the most entries of the vocabulary.")
    lowercase: bool = option(True, "From scratch: the tokenizer ignores case and accents; --no_lowercase keeps them.")


@dataclass
class RnnModelArguments(RecurrentArguments):
    """Model options of recurrent text classification."""

    encoder: str = option("none", "From scratch: none (attention over the embeddings), lstm, gru.")
    attn_score: str = option("per_token", "From scratch: the alignment score.", choices=list(ATTN_SCORES))
    attn_query: str = option("learned", "From scratch: what the states are compared with.", choices=list(ATTN_QUERIES))
    attn_scale: float = option(5.0, "From scratch: what the per-token score is divided by.")


@dataclass
class Seq2SeqModelArguments(RecurrentArguments):
    """Model options of the recurrent encoder-decoder."""

    attn_score: str = option(
        "general", "From scratch: the alignment score.", choices=[s for s in ATTN_SCORES if s not in SCORES_ALONE]
    )
    bidirectional: bool = option(True, "From scratch: an encoder that reads both ways; --no_bidirectional: one way.")
    embedding_size: int = option(64, "From scratch: the width of the embedding.")
    hidden_size: int = option(64, "From scratch: the width of the encoder, per direction.")
    dropout: float = option(0.0, "From scratch: dropout before the last, linear layer.")
    lowercase: bool = option(False, "From scratch: the tokenizer ignores case and accents.")
    unit: str = option("word", "From scratch: what a token is.", choices=list(UNITS))
    decoder_style: str = option(
        "luong", "From scratch: how the decoder moves.", choices=[style for style in DECODER_STYLES if style]
    )
    input_feeding: bool = option(
        True, "From scratch: the decoder of Luong also reads the attentional vector of the step before."
    )
    attn_scope: str = option(
        "global",
        "From scratch: where a step looks: global, local-m (around its own number), local-p (a place it predicts).",
        choices=["global", *DECODER_SCOPES],
    )
    attn_window: int | None = option(None, "From scratch: positions on either side, for a local scope.")


@dataclass
class CausalModelArguments(ModelArguments):
    """Model options of causal language modelling; a new model has the shape of Llama."""

    hidden_size: int = option(192, "From scratch: the width of the model.")
    num_hidden_layers: int = option(6, "From scratch: the number of layers.")
    num_attention_heads: int = option(6, "From scratch: the number of heads; it divides hidden_size.")
    num_key_value_heads: int | None = option(
        None, "From scratch: the heads of keys and values, which divide the others; by default as many."
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
        "From scratch: images are resized to a square of this side; guessed from the first one, at most 224.",
    )
    patch_size: int = option(4, "From scratch: the side of a patch, which divides image_size.")


@dataclass
class ScheduleArguments:
    """How the negative mass moves in the course of training."""

    _argument_group_name = "negative mass schedule"

    negative_mass_until: float | None = option(
        None, "Move the negative mass until this share of training, 0 to 1; without it, it stays where it is."
    )
    negative_mass_start: float | None = option(
        None, "Its first value; without one, that of the model, or e^-12 (nearly softmax) where that is 0."
    )
    negative_mass_end: float = option(1.0, "Its last value.")


@dataclass
class HealingScheduleArguments(ScheduleArguments):
    """A schedule that is on by default."""

    negative_mass_until: float | None = option(
        0.0, "The negative mass moves until this share of training, 0 to 1, and then stays; 0 sets it at once."
    )


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
        0, "Stop after this many evaluations without a better value of metric_for_best_model; 0 trains to the end."
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
    logging_nan_inf_filter: bool = option(
        False, "Log the mean of earlier losses in place of a NaN; without, a NaN stops the run."
    )
    restore_callback_states_from_checkpoint: bool = option(
        True, "Resume early stopping where it was as well; otherwise its patience starts again."
    )
    group_by_length: bool = option(
        False, "Batch texts of similar length together: less padding, so faster, at the price of less random batches."
    )
    bf16: bool | None = option(None, "bfloat16 mixed precision. By default: on a GPU that supports it.")
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
        self.warmup_steps = self.warmup_steps or self.warmup_ratio or 0  # transformers takes a share there, too
        self.warmup_ratio = None
        if self.group_by_length:  # which has this name there
            self.train_sampling_strategy = "group_by_length"
        super().__post_init__()


@dataclass
class HealingArguments(RunArguments):
    """Run options with the defaults of healing: a number of steps, and the last checkpoint."""

    max_steps: int = option(700, "The number of optimizer steps; -1 counts epochs instead.")
    learning_rate: float = option(2.5e-4, "The peak learning rate.")
    warmup_ratio: float | None = option(0.05, "Share of the steps over which the learning rate rises from 0.")
    per_device_train_batch_size: int = option(24, "Snippets or images per process and step.")
    eval_strategy: str = option("steps", "When to evaluate: no, steps or epoch.", choices=["no", "steps", "epoch"])
    eval_steps: float | None = option(0.2, "Steps between two evaluations; below 1, a share of all steps.")
    save_strategy: str = option(
        "steps", "When to save: no, steps, epoch or best.", choices=["no", "steps", "epoch", "best"]
    )
    save_steps: float = option(0.2, "Steps between two checkpoints; below 1, a share of all steps.")
    save_total_limit: int | None = option(1, "How many checkpoints to keep.")
    load_best_model_at_end: bool = option(False, "Finish with the best checkpoint rather than the last one.")
    metric_for_best_model: str | None = option("loss", "What makes a checkpoint the best one.")

    def __post_init__(self) -> None:
        if self.greater_is_better is None and self.metric_for_best_model in ("perplexity", "relative_error"):
            self.greater_is_better = False  # transformers thinks so of losses alone
        super().__post_init__()


@dataclass
class CausalRunArguments(HealingArguments):
    """Run options of causal language modelling: epochs, and a rate that falls to 0."""

    max_steps: int = option(-1, "The number of optimizer steps; -1 counts epochs instead.")
    num_train_epochs: float = option(1.0, "How often the text is read.")
    learning_rate: float = option(1e-3, "The peak learning rate: for new weights; for a checkpoint rather 5e-5.")
    lr_scheduler_type: str = option("cosine", "How the learning rate falls after its peak.")
    weight_decay: float = option(0.1, "Of weights; not of biases and norms.")
    per_device_train_batch_size: int = option(12, "Blocks per process and step.")
    per_device_eval_batch_size: int = option(12, "Blocks per process and step of an evaluation.")


@dataclass
class Seq2SeqRunArguments(RunArguments, Seq2SeqTrainingArguments):
    """Run options of models that write: an evaluation lets them, and counts what is right from beginning to end."""

    predict_with_generate: bool = option(True, "Evaluate what the model writes by itself, word after word.")
    generation_num_beams: int | None = option(
        None, "Beams of the search in evaluations; by default as the checkpoint says, or one, which is greedy."
    )
    metric_for_best_model: str | None = option("exact_match", "What makes a checkpoint the best one.")
    per_device_train_batch_size: int = option(128, "Training examples per process and step.")
    per_device_eval_batch_size: int = option(256, "Evaluation examples per process and step.")

    def __post_init__(self) -> None:
        if not self.predict_with_generate and self.metric_for_best_model == "exact_match":
            raise InputError(
                "without --predict_with_generate nothing is written, so exact_match cannot choose the best checkpoint; "
                "choose --metric_for_best_model loss"
            )
        super().__post_init__()
