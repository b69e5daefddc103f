"""The model of a run: from scratch, from a bidir checkpoint, or from a stock softmax checkpoint; or with an adapter."""

import inspect
import logging
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

import hf_bidir
from hf_bidir.checkpoints.adapters import check_untied, read_adapter
from hf_bidir.checkpoints.kinds import BY_AUTO_CLASS
from hf_bidir.checkpoints.reading import check_vocabulary, lacking, open_checkpoint, with_report
from hf_bidir.common.errors import InputError, as_input_error
from hf_bidir.common.extras import extra
from hf_bidir.modeling.configuration_bidir import bidir_config, check_bidir_config, is_softmax
from hf_bidir.modeling.signed_layers import signed_layers

from .arguments import AdapterArguments, ModelArguments, PretrainedArguments

logger = logging.getLogger(__name__)

NEEDS = {  # required option: options that have no effect without it
    "negative_mass_until": {"negative_mass_start", "negative_mass_end"},
    "lora_rank": {"lora_alpha", "lora_dropout", "lora_targets"},
    "model_name_or_path": {"lora_rank"},
}
CONFLICTS = [  # an adapter has the attention of its base model
    ("negative_mass_until", "attn_negative_mass"),
    ("negative_mass_until", "lora_rank"),
    ("lora_rank", "attn_activation"),
    ("lora_rank", "attn_negative_mass"),
]
CLASSIFIERS = ("AutoModelForSequenceClassification", "AutoModelForImageClassification")
SHAPE = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("initializer_range", "attn_scope", "attn_window"),
)
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout")  # in various configs


def starts_as_softmax(source: str | None) -> bool:
    """Whether a checkpoint's own config says that its attention is softmax; False where there is no checkpoint."""
    if source is None:
        return False
    checkpoint = open_checkpoint(source)
    return not checkpoint.is_signed or is_softmax(checkpoint.config)


def check_options(arguments: PretrainedArguments, typed: Iterable[str]) -> None:
    """Refuse options of the model and of the schedule that contradict each other or have no effect.

    Args:
        typed: the names of the options that the user gave.

    Raises:
        InputError: options that shape a new model beside a checkpoint; one of `NEEDS` or `CONFLICTS`; a checkpoint that
            is an adapter, or a folder that does not exist.
    """
    typed, source = set(typed), arguments.model_name_or_path
    shaping = typed & (vars(arguments).keys() - AdapterArguments.__dataclass_fields__.keys())
    if source and shaping:
        raise InputError(
            f"--{', --'.join(sorted(shaping))} shape a model from scratch and cannot change the checkpoint "
            f"{source}; leave them out, or leave out --model_name_or_path"
        )
    with as_input_error("", OSError):
        if source and read_adapter(source):
            raise InputError(f"{source} is an adapter; merge it and train the result: hf-bidir merge {source} OUT")
    for needed, options in NEEDS.items():
        if needed not in typed and typed & options:
            raise InputError(f"--{min(typed & options)} needs --{needed}")
    for option, other in CONFLICTS:
        if {option, other} <= typed:
            raise InputError(f"--{option} and --{other} contradict each other; leave out one of them")


def scratch_config(
    config_class: type[PretrainedConfig],
    arguments: ModelArguments,
    names: list[str],
    **more: Any,
) -> PretrainedConfig:
    """The config of a new transformer; `more` are fields specific to this architecture.

    Raises:
        InputError: the config refuses a value, such as an unknown activation.
    """
    fields = {name: getattr(arguments, name) for name in SHAPE}
    dropouts = [name for name in DROPOUTS if name in inspect.signature(config_class.__init__).parameters]
    fields |= dict.fromkeys(dropouts, arguments.dropout) | label_fields(names) | attention_fields(arguments)
    with as_input_error():
        return config_class(**fields, **more)


def checkpoint_config(auto: str, arguments: PretrainedArguments, names: list[str]) -> PretrainedConfig:
    """The bidir config of a checkpoint, with the labels of this run, if it has any, and the attention asked for.

    A stock softmax checkpoint starts at negative mass 0, where signed attention equals its own.

    Args:
        auto: the Auto class of the head, such as "AutoModelForSequenceClassification".

    Raises:
        InputError: there is no checkpoint, its model type is unknown or has no such head, or a value is refused.
    """
    source = str(arguments.model_name_or_path)
    with as_input_error("", OSError, ValueError):
        checkpoint = open_checkpoint(source)
        checkpoint.check_full_precision("trained")
        config = checkpoint.config
        if not checkpoint.is_signed:
            config = bidir_config(config, attn_negative_mass=0.0)
        if names:  # the checkpoint's labels and problem type do not apply to this run
            config.problem_type = None
        for name, value in (label_fields(names) | attention_fields(arguments, config)).items():
            setattr(config, name, value)
        check_bidir_config(config)
        head_class(auto, config, source)
    return config


def head_class(auto: str, config: PretrainedConfig, source: str | None = None) -> type[PreTrainedModel]:
    """The bidir class that an Auto class, such as "AutoModelForMaskedLM", has for a bidir config.

    Raises:
        InputError: models of this type, of which `source` is one, have no such head; the message lists those they have.
    """
    if auto not in config.auto_map:
        heads = ", ".join(name for name in config.auto_map if name != "AutoConfig")
        raise InputError(f"{source or 'the model'} is {config.model_type!r}, which has no {auto}; it has {heads}")
    with as_input_error():
        return getattr(hf_bidir, config.auto_map[auto].rpartition(".")[2])


def saved_tokenizer(source: str, config: PretrainedConfig) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint, with a padding token; InputError if there is none that fits the model."""
    with as_input_error(f"cannot load the tokenizer of {source}: ", OSError, ValueError, KeyError, TypeError):
        tokenizer = AutoTokenizer.from_pretrained(source)
    with as_input_error():
        check_vocabulary(tokenizer, getattr(config.get_text_config(), "vocab_size", None), source)
    return able_to_pad(tokenizer, source)


def able_to_pad(tokenizer: PreTrainedTokenizerBase, source: str) -> PreTrainedTokenizerBase:
    """The tokenizer; if it has no padding token, its end token becomes one. InputError if it has neither."""
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise InputError(f"the tokenizer of {source} has neither a padding token nor one that ends a text; add one")
        tokenizer.pad_token = tokenizer.eos_token
        logger.warning("%s has no padding token; texts are padded with its %s.", source, tokenizer.eos_token)
    return tokenizer


def know_padding(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Set a missing `pad_token_id`: a decoder's classifier takes the last token before padding as input."""
    text_config = config.get_text_config()
    if getattr(text_config, "pad_token_id", None) is None:
        text_config.pad_token_id = tokenizer.pad_token_id


def label_fields(names: Sequence[str]) -> dict[str, Any]:
    """The config fields with the class names; empty for data without labels."""
    if not names:
        return {}
    return {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}


def attention_fields(arguments: PretrainedArguments, present: PretrainedConfig | None = None) -> dict[str, Any]:
    """The given attention fields, or those of the config `present`, or TanhMax."""
    mass = arguments.attn_negative_mass
    return {
        "attn_activation": arguments.attn_activation or getattr(present, "attn_activation", "tanhmax"),
        "attn_negative_mass": getattr(present, "attn_negative_mass", 1.0) if mass is None else mass,
    }


def build_model(auto: str, arguments: PretrainedArguments, config: PretrainedConfig) -> PreTrainedModel:
    """The model with random weights, or with those of the checkpoint; call `set_seed` before.

    A classification head of another number of classes is replaced by a new one. With `lora_rank` the result is peft's
    model with an adapter, which delegates to the model within.

    Args:
        auto: the Auto class of the head, such as "AutoModelForSequenceClassification".

    Raises:
        InputError: there is no such head, the config or the attention implementation is refused, or the checkpoint
            cannot be read or lacks weights of the encoder.
    """
    source = arguments.model_name_or_path
    head = head_class(auto, config, source)
    new: list[str] = []
    with as_input_error():
        if source is None:
            model = head(config)
        else:
            model, new = _pretrained(head, source, config)
        if arguments.attn_implementation:
            model.set_attn_implementation(arguments.attn_implementation)
    if isinstance(arguments, AdapterArguments) and arguments.lora_rank is not None:
        return _add_adapter(model, arguments, auto, new)
    return model


def _pretrained(
    head: type[PreTrainedModel],
    source: str,
    config: PretrainedConfig,
) -> tuple[PreTrainedModel, list[str]]:
    """The checkpoint's weights under a head that may be new, and the names of the weights that are new.

    Raises InputError if weights of the encoder or decoder would be random.
    """
    refused = f"{source} is not a usable checkpoint: "
    with as_input_error(refused, ValueError, OSError):
        model, report = with_report(head, source, config=config, ignore_mismatched_sizes=True, dtype=torch.float32)
    new = lacking(report)
    needed = [key for key in new if _belongs_to_checkpoint(key, model)]
    if needed:
        raise InputError(
            f"{refused}expected every weight of the encoder in the shape that config.json describes; "
            f"{len(needed)} are missing or of another shape: {', '.join(needed)}"
        )
    if new:
        logger.warning("%s has no weights of this shape for %s; new ones are trained.", source, ", ".join(new))
    return model, new


def _belongs_to_checkpoint(key: str, model: PreTrainedModel) -> bool:
    """Whether a weight must come from the checkpoint: it is neither in a head nor in a pooler."""
    part, _, rest = key.partition(".")
    if "pooler" in rest.split("."):
        return False
    if model.base_model is not model:
        return part == model.base_model_prefix
    # an encoder-decoder has no new part; in other models the part with attention is the encoder
    return model.config.is_encoder_decoder or bool(signed_layers(getattr(model, part)))


def _add_adapter(model: PreTrainedModel, arguments: AdapterArguments, auto: str, new: list[str]) -> Any:
    """Put a new adapter on a model, which then trains alone; a classifier is trained whole beside it.

    Args:
        new: weights that the checkpoint does not have.
    """
    if new and auto not in CLASSIFIERS:  # a new output layer may share its weights with the embeddings
        raise InputError(
            f"{arguments.model_name_or_path} lacks {len(new)} weights of {type(model).__name__}, such as {new[0]}; an "
            "adapter needs a checkpoint with the output layer of its task. Train without --lora_rank first"
        )
    with extra("lora"):
        from peft import LoraConfig, get_peft_model

    rank: Any = arguments.lora_rank
    with as_input_error("--lora_*: "):
        config = LoraConfig(
            task_type=BY_AUTO_CLASS[auto].peft_task,
            r=rank,
            lora_alpha=arguments.lora_alpha or 2 * rank,  # type: ignore[arg-type]  # peft accepts fractions too
            lora_dropout=arguments.lora_dropout,
            target_modules=arguments.lora_targets or "all-linear",
            modules_to_save=_trained_whole(model, auto, new) or None,
            base_model_name_or_path=arguments.model_name_or_path,
        )
        adapted = get_peft_model(model, config)
        check_untied(adapted)
    # the folder has a card of this package
    adapted.create_or_update_model_card = lambda output_dir: None  # type: ignore[method-assign]
    return adapted


def _trained_whole(model: PreTrainedModel, auto: str, new: list[str]) -> list[str]:
    """The outermost parts that train beside an adapter: new ones, and those of a classifier without attention."""
    whole = {name.rpartition(".")[0] for name in new}
    if auto in CLASSIFIERS:
        for name, part in model.named_children():
            if list(part.parameters()) and not signed_layers(part):
                whole.add(name)
    return sorted(name for name in whole if not any(name.startswith(f"{outer}.") for outer in whole))
