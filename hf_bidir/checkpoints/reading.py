"""Reads the config, the model and the processors of a checkpoint, signed or stock."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoFeatureExtractor,
    AutoImageProcessor,
    AutoProcessor,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
from transformers.utils import cached_file

from hf_bidir.checkpoints.adapters import Adapter, read_adapter
from hf_bidir.checkpoints.auto_classes import bidir_class
from hf_bidir.checkpoints.kinds import check_vocabulary, few, vocabulary_of
from hf_bidir.common.card import CARD, with_note
from hf_bidir.common.errors import did_you_mean
from hf_bidir.common.model_types import is_signed, stock_type
from hf_bidir.modeling.configuration_bidir import stock_heads

if TYPE_CHECKING:
    from peft import PeftModel

logger = logging.getLogger(__name__)

LICENCES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE")
# audio models have a feature extractor
PROCESSORS = (AutoTokenizer, AutoImageProcessor, AutoFeatureExtractor, AutoProcessor)


def read_config(source: str | Path, revision: str | None = None) -> PretrainedConfig:
    """The config of a checkpoint, stock or bidir; of an adapter, that of its base with the adapter's head and labels.

    Raises:
        FileNotFoundError: the checkpoint, or the base of an adapter, does not exist.
        ValueError: an unknown model type, a newer version's attention fields, or an adapter whose base is not signed.
    """
    path = Path(source)
    if not path.exists() and (path.is_absolute() or (len(path.parts) > 1 and path.parent.is_dir())):
        raise FileNotFoundError(f"expected a checkpoint folder at {source}; there is none.")
    if path.is_file():
        raise ValueError(f"expected a checkpoint folder, got the file {source}; {_instead_of_file(path)}.")
    if adapter := read_adapter(source):
        return adapter.model_config(_base_config(adapter, adapter.base, adapter.revision))
    if path.is_dir() and not (path / "config.json").is_file():
        raise FileNotFoundError(f"{source} has no config.json, so it is not a checkpoint folder.")
    try:
        model_type = PretrainedConfig.get_config_dict(source, revision=revision)[0].get("model_type")
        stock = stock_type(str(model_type))
        if model_type not in CONFIG_MAPPING:
            raise ValueError(
                f"{source} has the model type {model_type!r}, which transformers {transformers.__version__} does not "
                f"know.{did_you_mean(stock, list(CONFIG_MAPPING_NAMES))}"
            )
        return AutoConfig.from_pretrained(source, revision=revision)
    except OSError as error:
        reason = " ".join(str(error).split())
        raise FileNotFoundError(
            f"{source} is not a checkpoint folder, and cannot be read from the Hub: {reason}"
        ) from error


def _instead_of_file(path: Path) -> str:
    """What to do where a file is named in place of a checkpoint folder."""
    if path.suffix == ".gguf":
        load = f'AutoModelForCausalLM.from_pretrained("{path.parent}", gguf_file="{path.name}")'
        return f"in Python, save what {load} and AutoTokenizer likewise read to a folder, and name that"
    return f"name its folder, {path.parent}"


def read_model(source: str | Path, dtype: torch.dtype | str = "auto", **options: Any) -> PreTrainedModel:
    """Load a checkpoint, signed or stock, as the class that it was saved with, in evaluation mode.

    Raises:
        FileNotFoundError: no such checkpoint.
        ValueError: an unknown head, or weights that are missing or unreadable.
    """
    config = read_config(source)
    if is_signed(type(config).model_type):
        return read_bidir(source, dtype, **options)
    return complete_model(stock_head(config, source), source, dtype, **options)


def read_bidir(source: str | Path, dtype: torch.dtype | str = "auto", **options: Any) -> PreTrainedModel:
    """`read_model` for a signed checkpoint; an adapter is merged."""
    if adapter := read_adapter(source):
        return merged(read_adapted(adapter, dtype, **options))
    name = (read_config(source).architectures or ["checkpoint without a class"])[0]
    try:
        return complete_model(bidir_class(name), source, dtype, **options)
    except AttributeError as error:
        raise ValueError(f"{source} is a {name}: {error}") from error


def stock_head(config: PretrainedConfig, source: str | Path) -> type[PreTrainedModel]:
    """The transformers class that a checkpoint was saved with, or the base model if its config names none."""
    name = (config.architectures or [*stock_heads(config.model_type).values(), "model without a class"])[0]
    head = getattr(transformers, name, None)
    if head is None:
        raise ValueError(
            f"{source} is a {name}, which transformers {transformers.__version__} does not have."
            f"{did_you_mean(name, dir(transformers))}"
        )
    return head


def complete_model(
    head: type[PreTrainedModel], source: str | Path, dtype: torch.dtype | str = "auto", **options: Any
) -> PreTrainedModel:
    """Load a checkpoint as `head` in evaluation mode; ValueError unless all weights are present and fit.

    If the checkpoint has no pooler, the model has none.
    """
    try:
        model, report = with_report(head, source, dtype=dtype, **options)
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(
            f"the weights in {source} cannot be read ({error}); if the file is incomplete, copy or download it again."
        ) from error
    missing = sorted(report["missing_keys"])
    if missing and all(name.startswith("pooler.") for name in missing) and "add_pooling_layer" not in options:
        return complete_model(head, source, dtype, add_pooling_layer=False, **options)
    if missing:
        raise ValueError(f"{source} is incomplete: it lacks the weights {missing}.")
    return model.eval()


def with_report(head: type[PreTrainedModel], source: str | Path, **options: Any) -> tuple[PreTrainedModel, dict]:
    """`from_pretrained` with the keys that were missing or did not fit, which it does not log: callers check them.

    One line names the weights that the model has no place for.

    Raises:
        FileNotFoundError: a folder without weights.
    """
    _check_weights(Path(source))
    loader = logging.getLogger(transformers.modeling_utils.__name__)

    def is_other(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    loader.addFilter(is_other)
    try:
        model, report = head.from_pretrained(source, output_loading_info=True, **options)
    finally:
        loader.removeFilter(is_other)
    if left_out := sorted(report["unexpected_keys"]):
        place = f"{len(left_out)} weights in {source} are not part of {head.__name__}"
        logger.warning("%s and were left out: %s", place, few(left_out))
    return model, report


def _check_weights(folder: Path) -> None:
    if folder.is_dir() and not any(file for kind in ("*.safetensors", "*.bin") for file in folder.glob(kind)):
        card = f" Its {CARD} may say how to produce them." if (folder / CARD).is_file() else ""
        raise FileNotFoundError(f"{folder} has no weights (*.safetensors).{card}")


def read_adapted(
    adapter: Adapter, dtype: torch.dtype | str = "auto", base: str | Path | None = None, **options: Any
) -> "PeftModel":
    """Load an adapter on its base model, not merged, in evaluation mode; `base` is the folder or Hub name of the base
    if it is no longer where the adapter says.

    Raises:
        FileNotFoundError: there is no such base model.
        ValueError: the base is not that of the training run, or not a complete signed one in full precision.
    """
    if "quantization_config" in options:
        raise ValueError(
            f"{adapter.source} is an adapter, and can be quantised only when merged: hf-bidir merge {adapter.source} "
            "OUT."
        )
    revision = adapter.revision if base is None else None
    base = adapter.base if base is None else base
    config = _base_config(adapter, base, revision)
    check_full_precision(config, base, "the base of an adapter")
    adapter.check_base(base, config, revision)
    config = adapter.model_config(config)
    options |= {"config": config, "dtype": dtype, "revision": revision, "ignore_mismatched_sizes": True}
    model = _base_model(adapter, base, options)
    if adapter.generation:
        model.generation_config.update(**adapter.generation)
    return adapter.on(model).eval()


def _base_config(adapter: Adapter, base: str | Path, revision: str | None) -> PretrainedConfig:
    if read_adapter(base):
        raise ValueError(
            f"the base model of the adapter {adapter.source}, {base}, is an adapter itself; merge it first."
        )
    return read_config(base, revision)


def _base_model(adapter: Adapter, base: str | Path, options: dict[str, Any]) -> PreTrainedModel:
    """The base model under the adapter's head; ValueError if weights are missing that the adapter does not have."""
    name = options["config"].architectures[0]
    try:
        head: Any = bidir_class(name)
        model, report = with_report(head, base, **options)
    except (AttributeError, SafetensorError, RuntimeError) as error:
        raise ValueError(f"the base model {base} of the adapter {adapter.source} is no {name}: {error}") from error
    keys = {key if isinstance(key, str) else key[0] for key in (*report["missing_keys"], *report["mismatched_keys"])}
    if lacking := sorted(key for key in keys if not adapter.contains(key)):
        raise ValueError(
            f"{base} is incomplete: neither it nor the adapter {adapter.source} has the weights {lacking}."
        )
    return model


def merged(adapted: "PeftModel") -> PreTrainedModel:
    """A model of its own class with the adapter's weights added to those of its base, which is changed."""
    return adapted.merge_and_unload().eval()


def check_full_precision(config: PretrainedConfig, source: str | Path, what: str) -> None:
    """Raise ValueError if a checkpoint has quantised weights; `what` says what they cannot be, such as "converted"."""
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(
            f"{source} has quantised weights, which cannot be {what}; use the checkpoint that it was made from, and "
            "quantise last."
        )


def checkpoint_processors(source: str | Path, model: PreTrainedModel) -> list:
    """The tokenizer, image processor, feature extractor and combined processor of a model's checkpoint, if any."""
    found: dict[type, Any] = {}
    for auto in PROCESSORS:
        try:
            processor = auto.from_pretrained(source)
        # each Auto class raises a different error
        except (OSError, ValueError, KeyError, ImportError, AttributeError, TypeError):
            logger.info("%s has nothing for %s", source, auto.__name__)
        else:
            found.setdefault(type(processor), processor)
    for processor in found.values():
        check_vocabulary(processor, vocabulary_of(model), source)
    return list(found.values())


def documents(source: str | Path, note: str = "") -> dict[str, bytes]:
    """The card, with a note after its header, and the licence of a checkpoint, as far as it has them, by name."""
    found: dict[str, bytes] = {}
    for name in (CARD, *LICENCES):
        try:
            path = cached_file(source, name, _raise_exceptions_for_missing_entries=False)
        except (OSError, ValueError) as error:
            logger.info("%s of %s cannot be read: %s", name, source, error)
            continue
        found |= {name: Path(path).read_bytes()} if path else {}
    if note and CARD in found:
        found[CARD] = with_note(found[CARD], note)
    return found
