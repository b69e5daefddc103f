"""A model that trains a LoRA adapter: peft's low-rank updates of the linear layers of a signed checkpoint."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from transformers import PretrainedConfig, PreTrainedModel

from hf_bidir.checkpoints.adapters import check_untied
from hf_bidir.checkpoints.kinds import BY_AUTO_CLASS
from hf_bidir.common.errors import InputError, as_input_error
from hf_bidir.common.extras import extra
from hf_bidir.finetune.arguments import AdapterArguments
from hf_bidir.modeling.model_types import is_signed
from hf_bidir.modeling.signed_layers import signed_layers

if TYPE_CHECKING:
    from peft import PeftModel

LORA = ("lora_rank", "lora_alpha", "lora_dropout", "lora_targets")
NEGATIVE_MASSES = ("attn_negative_mass", "attn_negative_mass_by_layer", "attn_negative_mass_by_head")
ATTENTION = ("attn_activation", *NEGATIVE_MASSES)
CLASSIFIERS = ("AutoModelForSequenceClassification", "AutoModelForImageClassification")


def check_adapter(arguments: Any, given: Collection[str]) -> None:
    """Refuse options of an adapter that cannot be used; does nothing where none is asked for.

    Raises:
        InputError: an option without --lora_rank, a value out of range, options that change the attention, or a
            checkpoint that is missing or not signed.
    """
    if getattr(arguments, "lora_rank", None) is None:
        if named := [name for name in LORA if name in given]:
            raise InputError(f"--{named[0]} needs --lora_rank")
        return
    source, rank, alpha, dropout = (
        arguments.model_name_or_path, arguments.lora_rank, arguments.lora_alpha, arguments.lora_dropout
    )  # fmt: skip
    if rank < 1 or (alpha is not None and alpha <= 0) or not 0 <= dropout < 1:
        raise InputError(
            "expected lora_rank of at least 1, lora_alpha above 0 and lora_dropout in [0, 1); "
            f"got {rank}, {alpha} and {dropout}"
        )
    if source is None:
        raise InputError("--lora_rank trains an adapter for a checkpoint; name one as --model_name_or_path")
    if changed := [name for name in ATTENTION if getattr(arguments, name) is not None]:
        raise InputError(f"an adapter has the attention of its base model; leave out --{changed[0]}")
    with as_input_error("", OSError, ValueError):
        model_type = PretrainedConfig.get_config_dict(source)[0].get("model_type", "")
    if not is_signed(model_type):
        raise InputError(
            f"an adapter needs a signed base model, and {source} is a stock {model_type}; sign it first, for instance "
            f"by hf-bidir convert {source} OUT --heal FILE, then --model_name_or_path OUT"
        )
    if model_type == "bidir_rnn":
        raise InputError(f"{source} is recurrent; adapters are for transformers. Leave out --lora_rank")


def add_adapter(
    model: PreTrainedModel, arguments: AdapterArguments, rank: int, auto: str, new: list[str]
) -> "PeftModel":
    """Put a new adapter on a model, which then trains alone; a classifier is trained whole beside it.

    Args:
        rank: of the low-rank matrices.
        auto: the Auto class of the head.
        new: weights that the checkpoint does not have.

    Raises:
        InputError: no layer is called like one of `lora_targets`, one of them shares its weight with the embeddings, or
            the checkpoint of a language model lacks weights.
        ModuleNotFoundError: peft is not installed.
    """
    if new and auto not in CLASSIFIERS:  # a new output layer may share its weights with the embeddings
        raise InputError(
            f"{arguments.model_name_or_path} lacks {len(new)} weights of {type(model).__name__}, such as {new[0]}; an "
            "adapter needs a checkpoint with the output layer of its task. Train without --lora_rank first"
        )
    with extra("lora"):
        from peft import LoraConfig, get_peft_model

    whole = _outermost({*_heads(model, auto), *(name.rpartition(".")[0] for name in new)})
    alpha: Any = arguments.lora_alpha  # peft accepts fractions too
    config = LoraConfig(
        task_type=BY_AUTO_CLASS[auto].peft_task,
        r=rank,
        lora_alpha=2 * rank if alpha is None else alpha,
        lora_dropout=arguments.lora_dropout,
        target_modules=arguments.lora_targets or "all-linear",
        modules_to_save=whole or None,
        base_model_name_or_path=arguments.model_name_or_path,
        auto_mapping={"base_model_class": type(model).__name__, "parent_library": type(model).__module__},
    )
    with as_input_error("--lora_targets: " if arguments.lora_targets else ""):
        adapted = get_peft_model(model, config)
        check_untied(adapted)
    # the folder has a card of this package
    adapted.create_or_update_model_card = lambda output_dir: None  # type: ignore[method-assign]
    return adapted


def _heads(model: PreTrainedModel, auto: str) -> list[str]:
    """The parts of a classifier beside its encoder, which is the part with attention."""
    if auto not in CLASSIFIERS:
        return []
    parts = model.named_children()
    return [name for name, part in parts if any(True for _ in part.parameters()) and not signed_layers(part)]


def _outermost(names: set[str]) -> list[str]:
    """The names of modules, without those that are inside another one, sorted."""
    return sorted(name for name in names if not any(name.startswith(f"{other}.") for other in names))
