"""The model of a run: from scratch, from a bidir checkpoint, or from a stock softmax checkpoint."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_bidir.convert import is_softmax
from hf_bidir.finetune.arguments import ModelArguments, PretrainedArguments
from hf_bidir.finetune.errors import InputError, as_input_error

UNCHANGED_BY_CHECKPOINTS = (
    "model_name_or_path",
    "attn_activation",
    "attn_negative_mass",
    "learn_negative_mass",
    "centre",
    "base_model",
    "license",
    "attn_implementation",
)
KEYS_SHOWN = 3


@dataclass(frozen=True)
class Family:
    """A bidir head with its config, and the model type of the stock checkpoints that load into it, if any do."""

    head: type[PreTrainedModel]
    config: type[PretrainedConfig]
    stock_type: str | None


def family_of(families: Collection[Family], source: str | None) -> Family:
    """The family that the checkpoint belongs to; the first one where there is no checkpoint, or none fits it."""
    first, *others = families
    if source is None or not others:
        return first
    try:
        fields, _ = PretrainedConfig.get_config_dict(source)
    except OSError:  # reading it for good says what is wrong
        return first
    known = (family for family in families if fields.get("model_type") in (family.stock_type, family.config.model_type))
    return next(known, first)


def starts_as_softmax(source: str | None) -> bool:
    """Whether a checkpoint's own config says that its attention is softmax; False where there is no checkpoint."""
    if source is None:
        return False
    fields, _ = PretrainedConfig.get_config_dict(source)
    defaults = {"attn_activation": "tanhmax", "attn_negative_mass": 1.0, "attn_learn_negative_mass": False}
    return not fields["model_type"].startswith("bidir_") or is_softmax(SimpleNamespace(**defaults | fields))


def check_given(arguments: PretrainedArguments, given: Collection[str]) -> None:
    """Refuse options that shape a new model when the model comes from a checkpoint.

    Raises:
        InputError: such an option is among the names in `given`.
    """
    shaping = [name for name in vars(arguments) if name not in UNCHANGED_BY_CHECKPOINTS and name in given]
    if arguments.model_name_or_path and shaping:
        raise InputError(
            f"--{', --'.join(shaping)} shape a model from scratch and cannot change the checkpoint "
            f"{arguments.model_name_or_path}; leave them out, or leave out --model_name_or_path"
        )


def scratch_config(family: Family, arguments: ModelArguments, names: list[str], **more: Any) -> PretrainedConfig:
    """The config of a new model; `more` is what only this family has.

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
    with as_input_error():
        return family.config(
            hidden_size=arguments.hidden_size,
            num_hidden_layers=arguments.num_hidden_layers,
            num_attention_heads=arguments.num_attention_heads,
            intermediate_size=arguments.intermediate_size,
            hidden_dropout_prob=arguments.dropout,
            attention_probs_dropout_prob=arguments.dropout,
            initializer_range=arguments.initializer_range,
            attn_scope=arguments.attn_scope,
            attn_window=arguments.attn_window,
            **label_fields(names),
            **attention_fields(arguments, {}),
            **more,
        )


def checkpoint_config(family: Family, arguments: PretrainedArguments, names: list[str]) -> PretrainedConfig:
    """The config of a checkpoint, with the labels of this run, if it has any, and the attention that was asked for.

    A stock softmax checkpoint starts at negative mass 0, where signed attention equals its own.

    Raises:
        InputError: there is no checkpoint, it is of another model type, or the config refuses a value.
    """
    source = arguments.model_name_or_path
    if Path(source).exists() and not Path(source, "config.json").is_file():
        raise InputError(f"expected a checkpoint folder with a config.json; {source} has none")
    with as_input_error(f"{source} is neither a checkpoint folder nor a model on the Hub: ", OSError):
        fields, _ = PretrainedConfig.get_config_dict(source)
    accepted = [kind for kind in (family.config.model_type, family.stock_type) if kind]
    if fields.get("model_type") not in accepted:
        raise InputError(f"expected a {' or '.join(accepted)} checkpoint; {source} is {fields.get('model_type')!r}")
    if fields["model_type"] == family.stock_type:
        fields |= {"attn_activation": "tanhmax", "attn_negative_mass": 0.0}
    fields = {name: value for name, value in fields.items() if name not in ("model_type", "architectures", "auto_map")}
    fields |= label_fields(names) | attention_fields(arguments, fields)
    with as_input_error():
        return family.config.from_dict(fields)


def saved_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer beside a checkpoint; InputError where there is none."""
    with as_input_error(f"cannot load the tokenizer of {source}: ", OSError, ValueError):
        return AutoTokenizer.from_pretrained(source)


def label_fields(names: list[str]) -> dict[str, Any]:
    """The config's names of the classes; none for data without labels."""
    if not names:
        return {}
    id2label = dict(enumerate(names))
    return {"id2label": id2label, "label2id": {name: index for index, name in id2label.items()}}


def attention_fields(arguments: PretrainedArguments, present: dict[str, Any]) -> dict[str, Any]:
    """The attention fields that were given, or else those that are present, or else TanhMax."""
    activation = arguments.attn_activation or present.get("attn_activation", "tanhmax")
    mass = arguments.attn_negative_mass
    return {
        "attn_activation": activation,
        "attn_negative_mass": present.get("attn_negative_mass", 1.0) if mass is None else mass,
        "attn_learn_negative_mass": arguments.learn_negative_mass
        or (mass is None and present.get("attn_learn_negative_mass", False)),
    }


def build_model(family: Family, arguments: PretrainedArguments, config: PretrainedConfig) -> PreTrainedModel:
    """The model with random weights, or with those of the checkpoint; call `set_seed` before.

    A classification head of another number of classes is replaced by a new one.

    Raises:
        InputError: the config or the attention implementation is refused, or the checkpoint cannot be read or lacks
            weights of the encoder.
    """
    source = arguments.model_name_or_path
    with as_input_error():
        model = family.head(config) if source is None else _pretrained(family, source, config)
        if arguments.attn_implementation:
            model.set_attn_implementation(arguments.attn_implementation)
    return model


def _pretrained(family: Family, source: str, config: PretrainedConfig) -> PreTrainedModel:
    """The checkpoint's weights under a head that may be new; never an encoder, or a decoder, that stayed random."""
    refused = f"{source} is not a usable checkpoint: "
    with as_input_error(refused, ValueError, OSError, SafetensorError):
        model, report = family.head.from_pretrained(
            source, config=config, ignore_mismatched_sizes=True, output_loading_info=True, dtype=torch.float32
        )
    encoder, whole = family.head.base_model_prefix, model.base_model is model  # a decoder has no part to spare
    for problem in ("missing_keys", "mismatched_keys"):
        keys = sorted(key if isinstance(key, str) else key[0] for key in report[problem])  # or (key, shape, shape)
        inside = (key for key in keys if key.startswith(f"{encoder}.") and not key.startswith(f"{encoder}.pooler."))
        keys = keys if whole else list(inside)
        if keys:
            shown = ", ".join(keys[:KEYS_SHOWN]) + (", ..." if len(keys) > KEYS_SHOWN else "")
            raise InputError(
                f"{refused}expected every weight of the encoder in the shape that config.json describes; "
                f"{len(keys)} {problem.replace('_', ' ')}: {shown}"
            )
    return model
