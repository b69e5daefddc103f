"""The model of a run: from scratch, from a bidir checkpoint, or from a stock softmax checkpoint."""

import inspect
import logging
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_bidir.checkpoints.adapters import read_adapter
from hf_bidir.checkpoints.auto_classes import bidir_class
from hf_bidir.checkpoints.convert import is_softmax
from hf_bidir.checkpoints.layer_hooks import in_evaluation
from hf_bidir.checkpoints.reading import check_full_precision, check_vocabulary, read_config, with_report
from hf_bidir.checkpoints.timm_vit import TIMM_PREFIX
from hf_bidir.common.errors import InputError, as_input_error
from hf_bidir.finetune.adapter import ATTENTION, LORA, NEGATIVE_MASSES, add_adapter, check_adapter
from hf_bidir.finetune.arguments import AdapterArguments, ModelArguments, PretrainedArguments
from hf_bidir.modeling.activations import WITH_NEGATIVE_MASS
from hf_bidir.modeling.configuration_bidir import bidir_config, check_bidir_config, check_layers
from hf_bidir.modeling.model_types import is_signed, stock_type
from hf_bidir.modeling.signed_layers import heads_of, signed_layers

logger = logging.getLogger(__name__)

UNCHANGED_BY_CHECKPOINTS = (
    *ATTENTION,
    *LORA,
    "model_name_or_path",
    "centre",
    "base_model",
    "license",
    "attn_implementation",
)
KEYS_SHOWN = 3
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout")  # in various configs


def starts_as_softmax(source: str | None) -> bool:
    """Whether a checkpoint's own config says that its attention is softmax; False where there is no checkpoint."""
    if source is None:
        return False
    fields, _ = PretrainedConfig.get_config_dict(source)
    defaults = {"attn_activation": "tanhmax", "attn_negative_mass": 1.0}
    return not is_signed(fields["model_type"]) or is_softmax(SimpleNamespace(**defaults | fields))


def check_given(arguments: PretrainedArguments, given: Collection[str]) -> None:
    """Refuse more than one negative mass, and options that shape a new model when the model comes from a checkpoint.

    Raises:
        InputError: such an option is among the names in `given`, there are several negative masses, or an adapter
            cannot be trained with these options (see `check_adapter`).
    """
    masses = [name for name in NEGATIVE_MASSES if getattr(arguments, name) is not None]
    if len(masses) > 1:
        raise InputError(f"expected one of --{' and --'.join(masses)}; got {len(masses)}")
    shaping = [name for name in vars(arguments) if name not in UNCHANGED_BY_CHECKPOINTS and name in given]
    if arguments.model_name_or_path and shaping:
        raise InputError(
            f"--{', --'.join(shaping)} shape a model from scratch and cannot change the checkpoint "
            f"{arguments.model_name_or_path}; leave them out, or leave out --model_name_or_path"
        )
    source = arguments.model_name_or_path
    if source and not source.startswith(TIMM_PREFIX) and read_adapter(source):
        raise InputError(f"{source} is an adapter; train on from the merged model: hf-bidir merge {source} OUT")
    check_adapter(arguments, given)


def scratch_config(
    config_class: type[PretrainedConfig], arguments: ModelArguments, names: list[str], **more: Any
) -> PretrainedConfig:
    """The config of a new model; `more` are fields specific to this architecture.

    Raises:
        InputError: the config refuses a value, such as an unknown activation.
    """
    if arguments.initializer_range <= 0:
        raise InputError(f"expected initializer_range above 0; got {arguments.initializer_range}")
    if arguments.hidden_size % arguments.num_attention_heads:
        raise InputError(
            f"expected num_attention_heads to divide hidden_size; "
            f"{arguments.num_attention_heads} does not divide {arguments.hidden_size}"
        )
    dropouts = [name for name in DROPOUTS if name in inspect.signature(config_class.__init__).parameters]
    with as_input_error():
        return config_class(
            hidden_size=arguments.hidden_size,
            num_hidden_layers=arguments.num_hidden_layers,
            num_attention_heads=arguments.num_attention_heads,
            intermediate_size=arguments.intermediate_size,
            **dict.fromkeys(dropouts, arguments.dropout),
            initializer_range=arguments.initializer_range,
            attn_scope=arguments.attn_scope,
            attn_window=arguments.attn_window,
            **label_fields(names),
            **attention_fields(arguments),
            **more,
        )


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
        config = read_config(source)
        check_full_precision(config, source, "trained")
        if not is_signed(config.model_type):
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
        kind = stock_type(config.model_type)
        raise InputError(f"{source or 'the model'} is {kind!r}, which has no {auto}; it has {heads}")
    with as_input_error():
        return bidir_class(config.auto_map[auto].rpartition(".")[2])


@torch.no_grad()
def check_reads_no_future(model: PreTrainedModel, source: str | None) -> None:
    """Raise InputError where a token changes what the model, read from `source`, predicts before it: an encoder."""
    ids = torch.zeros(2, 2, dtype=torch.long, device=model.device)
    ids[1, 1] = 1
    with in_evaluation(model):
        first, second = model(input_ids=ids, use_cache=False).logits[:, 0]
    if not torch.allclose(first, second, rtol=1e-3, atol=1e-5):
        raise InputError(
            f"{source or 'the model'} is an encoder, whose tokens attend to later tokens, so it would learn to copy "
            "the next token; choose a decoder, or train it by training/masked_lm.py"
        )


def saved_tokenizer(source: str, config: PretrainedConfig) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint, with a padding token; InputError if there is none that fits the model."""
    with as_input_error(f"cannot load the tokenizer of {source}: ", OSError, ValueError, KeyError, TypeError):
        tokenizer = AutoTokenizer.from_pretrained(source)
    with as_input_error():
        check_vocabulary(tokenizer, getattr(config.get_text_config(), "vocab_size", None), source)
    return able_to_pad(tokenizer, source)


def able_to_pad(tokenizer: PreTrainedTokenizerBase, source: str) -> PreTrainedTokenizerBase:
    """The tokenizer; if it has no padding token, its end token becomes one.

    Raises:
        InputError: it has neither token.
    """
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


def label_fields(names: list[str]) -> dict[str, Any]:
    """The config fields with the class names; empty for data without labels."""
    if not names:
        return {}
    id2label = dict(enumerate(names))
    return {"id2label": id2label, "label2id": {name: index for index, name in id2label.items()}}


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
    model with an adapter, which passes everything on to the model within.

    Args:
        auto: the Auto class of the head, such as "AutoModelForSequenceClassification".

    Raises:
        InputError: there is no such head, the config or the attention implementation is refused, or the checkpoint
            cannot be read or lacks weights of the encoder.
    """
    source = arguments.model_name_or_path
    head = head_class(auto, config, source)
    with as_input_error():
        model, new = (head(config), []) if source is None else _pretrained(head, source, config)
        if arguments.attn_implementation:
            model.set_attn_implementation(arguments.attn_implementation)
        _set_masses(model, arguments)
    if isinstance(arguments, AdapterArguments) and arguments.lora_rank is not None:
        return cast(PreTrainedModel, add_adapter(model, arguments, arguments.lora_rank, auto, new))
    return model


def _set_masses(model: PreTrainedModel, arguments: PretrainedArguments) -> None:
    """Set the negative mass of each layer or head, if the options give it."""
    by_layer, by_head = arguments.attn_negative_mass_by_layer, arguments.attn_negative_mass_by_head
    if by_layer is None and by_head is None:
        return
    if model.config.attn_activation not in WITH_NEGATIVE_MASS:
        raise InputError(
            f"only {' and '.join(WITH_NEGATIVE_MASS)} have a negative mass; the activation is "
            f"{model.config.attn_activation}"
        )
    heads = [heads_of(layer) for layer in signed_layers(model)]
    masses: list[Any] = by_layer or [by_head] * len(heads)
    check_layers(masses, heads)
    model.config.attn_negative_mass = masses
    check_bidir_config(model.config)


def _pretrained(
    head: type[PreTrainedModel], source: str, config: PretrainedConfig
) -> tuple[PreTrainedModel, list[str]]:
    """The checkpoint's weights under a head that may be new, and the names of the weights that are.

    Refuses an encoder or decoder with random weights.
    """
    new: list[str] = []
    refused = f"{source} is not a usable checkpoint: "
    with as_input_error(refused, ValueError, OSError, SafetensorError):
        model, report = with_report(head, source, config=config, ignore_mismatched_sizes=True, dtype=torch.float32)
    for problem in ("missing_keys", "mismatched_keys"):
        keys = sorted(key if isinstance(key, str) else key[0] for key in report[problem])  # or (key, shape, shape)
        new += [key for key in keys if not _belongs_to_checkpoint(key, model)]
        keys = [key for key in keys if key not in new]
        if keys:
            shown = ", ".join(keys[:KEYS_SHOWN]) + (", ..." if len(keys) > KEYS_SHOWN else "")
            raise InputError(
                f"{refused}expected every weight of the encoder in the shape that config.json describes; "
                f"{len(keys)} {problem.replace('_', ' ')}: {shown}"
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
