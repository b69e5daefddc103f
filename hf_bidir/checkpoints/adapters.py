"""LoRA adapters of peft: a folder with the adapter's weights, whose config names the base model.

An adapter keeps the attention of its base. A stock base counts only if the adapter's record has it: otherwise the model
may have been signed in memory, and would silently become softmax.
"""

import copy
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import find_adapter_config_file

from hf_bidir.common.extras import extra
from hf_bidir.common.files import RECORD, Json, check_place, read_json, sha256
from hf_bidir.common.model_types import is_signed
from hf_bidir.modeling.compat import stock_heads
from hf_bidir.modeling.configuration_bidir import ATTENTION_FIELDS

from .kinds import KINDS, NO_HEAD

if TYPE_CHECKING:
    from peft import PeftModel

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# fields of a config that a run does not choose
NOT_CHOSEN = {"_name_or_path", "architectures", "auto_map", "dtype", "transformers_version"}


@dataclass(frozen=True)
class Adapter:
    """A saved adapter."""

    source: str  # the folder or Hub name that it was read from
    folder: Path  # the folder, or its copy in the cache
    config: Json  # adapter_config.json

    @property
    def base(self) -> str:
        """The folder or Hub name of the base model; ValueError if none is named."""
        base = self.config.get("base_model_name_or_path")
        if not base:
            raise ValueError(
                f'{self.source} does not name its base model; set "base_model_name_or_path" in {ADAPTER_CONFIG}.'
            )
        return base

    @property
    def place(self) -> str | Path:
        """Where the base is: the folder that is named, or one of that name beside the adapter; otherwise the Hub."""
        beside = self.folder.parent / Path(self.base).name
        if beside.is_dir() and not Path(self.base).is_dir():
            return beside
        return self.base

    @property
    def revision(self) -> str | None:
        """The revision of the base model on the Hub."""
        return self.config.get("revision")

    @cached_property
    def record(self) -> Json:
        """What its training run recorded; empty for adapters without a record."""
        return read_json(self.folder / RECORD).get("adapter", {})

    def contains(self, weight: str) -> bool:
        """Whether it has a weight of its own in place of the base's, as for a new head."""
        whole = self.config.get("modules_to_save") or []
        return any(f".{module}." in f".{weight}" for module in whole)

    def model_config(self, base: PretrainedConfig) -> PretrainedConfig:
        """The config of its model: a copy of that of the base, with the adapter's head and the fields of the run;
        ValueError if the base may have been signed in memory, or has no head for the adapter's task."""
        if not is_signed(type(base).model_type) and "base" not in self.record:
            raise ValueError(
                f"the base model of the adapter {self.source}, {self.base}, is a stock {base.model_type}. If it was "
                f'signed in memory, save the signed model and name its folder as "base_model_name_or_path" in '
                f"{ADAPTER_CONFIG}; otherwise load it with peft.PeftModel.from_pretrained."
            )
        config = copy.deepcopy(base)
        config.architectures = [self._head(base)]
        for path, value in self.changes.items():
            *parts, name = path.split(".")
            setattr(reduce(getattr, parts, config), name, value)
        return config

    @property
    def changes(self) -> Json:
        """The fields of the model's config that the run changed, by path, such as "text_config.pad_token_id"."""
        changes = dict(self.record.get("config", {}))
        if "id2label" in changes:
            changes["id2label"] = {int(index): name for index, name in changes["id2label"].items()}
        return changes

    @property
    def generation(self) -> Json:
        """The fields of the model's generation config."""
        return self.record.get("generation", {})

    def _head(self, base: PretrainedConfig) -> str:
        """The name of the model class that the adapter was trained on, or of its task's class in the base."""
        if named := (self.config.get("auto_mapping") or {}).get("base_model_class"):
            return named
        task = self.config.get("task_type")
        auto = next((kind.auto for kind in KINDS if kind.peft_task == task), NO_HEAD.auto)
        heads = getattr(base, "auto_map", None) or stock_heads(base.model_type)
        if auto not in heads:
            raise ValueError(
                f"{self.source} is an adapter for {auto}, which its base, a {base.model_type}, does not have."
            )
        return heads[auto].rpartition(".")[2]

    def check_base(self, base: str | Path, config: PretrainedConfig, revision: str | None) -> None:
        """Raise ValueError if the run had another base: other weights, or another attention in its config."""
        if "base" not in self.record:
            return
        facts = base_facts(base, config, revision)
        for name, value in self.record["base"].items():
            if facts.get(name) != value:
                raise ValueError(
                    f"{self.source} is an adapter for another base model than {base}, which has {name} "
                    f"{facts.get(name)}; it was trained on {self.base} with {value}."
                )

    def on(self, model: PreTrainedModel) -> "PeftModel":
        """Put it on its base model, which is changed; an error if it is not LoRA, does not fit, or lacks weights."""
        with extra("lora"):
            from peft import PeftModel, get_peft_model_state_dict

        if self.config.get("peft_type") != "LORA":
            raise ValueError(f"{self.source} is a {self.config.get('peft_type')} adapter; expected LORA.")
        file = self.folder / ADAPTER_WEIGHTS
        if not file.is_file():  # peft would look for a repository of this name
            raise FileNotFoundError(f"the adapter {self.source} has no {ADAPTER_WEIGHTS}.")
        refused = f"the adapter {self.source} does not fit {type(model).__name__}"
        try:
            saved = load_file(file).keys()
            adapted = PeftModel.from_pretrained(model, str(self.folder))
        except (SafetensorError, KeyError, RuntimeError, ValueError) as error:  # incomplete, or other names or shapes
            raise ValueError(f"{refused}, or cannot be read: {error}") from error
        adapted.active_peft_config.base_model_name_or_path = model.name_or_path  # where peft looks for its vocabulary
        if unequal := get_peft_model_state_dict(adapted).keys() ^ saved:
            raise ValueError(f"{refused}: {len(unequal)} weights are only in one of them, such as {min(unequal)}.")
        check_untied(adapted)
        return adapted


def read_adapter(source: str | Path) -> Adapter | None:
    """The adapter in a folder or Hub repository; None if there is none, or a config.json, which is of a whole model."""
    check_place(source)
    folder = Path(source)
    if (folder / "config.json").is_file():
        return None
    try:
        file = find_adapter_config_file(str(source))
    except OSError:  # neither a folder nor a name on the Hub; reading its config says so
        return None
    if file is None:
        return None
    if not folder.is_dir():
        folder = Path(snapshot_download(str(source), allow_patterns=[ADAPTER_CONFIG, ADAPTER_WEIGHTS, RECORD]))
    return Adapter(str(source), folder, read_json(folder / ADAPTER_CONFIG))


def base_facts(base: str | Path, config: PretrainedConfig, revision: str | None = None) -> Json:
    """What an adapter depends on: the SHA-256 of the base's weights, and its attention."""
    folder = Path(base)
    if not folder.is_dir():
        folder = Path(snapshot_download(str(base), revision=revision, allow_patterns=["model*.safetensors"]))
    hashes = sorted(sha256(file) for file in folder.glob("model*.safetensors"))
    attention = {name: getattr(config, name, None) for name in ATTENTION_FIELDS}
    return {"sha256": hashes, **attention}


def chosen_fields(config: PretrainedConfig, base: PretrainedConfig) -> Json:
    """The fields of a config that differ from those of its base, by path."""
    before = base.to_dict()
    chosen: Json = {}
    for name, value in config.to_dict().items():
        part, base_part = getattr(config, name, None), getattr(base, name, None)
        if isinstance(part, PretrainedConfig) and isinstance(base_part, PretrainedConfig):
            chosen |= {f"{name}.{path}": inner for path, inner in chosen_fields(part, base_part).items()}
        elif name not in NOT_CHOSEN and (name not in before or before[name] != value):
            chosen[name] = value
    return chosen


def check_untied(adapted: "PeftModel") -> None:
    """Raise ValueError if LoRA changes one of two layers that share a weight: merged, it would change both."""
    model = adapted.get_base_model()
    if model.get_output_embeddings() is None:
        return
    layers = model.get_input_embeddings(), model.get_output_embeddings()
    weights = [getattr(layer, "base_layer", layer).weight for layer in layers]
    if weights[0] is weights[1] and any(hasattr(layer, "base_layer") for layer in layers):
        raise ValueError("the embeddings and the output layer share one weight; choose other layers for an adapter.")
