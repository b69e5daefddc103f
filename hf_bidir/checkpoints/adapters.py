"""LoRA adapters of peft on signed models: a folder with the adapter's weights, whose config names the base model.

An adapter keeps the attention of its base, so a base is always a signed checkpoint.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import snapshot_download
from safetensors import safe_open
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import find_adapter_config_file

from hf_bidir.common.extras import extra
from hf_bidir.common.files import read_json, sha256

if TYPE_CHECKING:
    from peft import PeftModel

ADAPTER_CONFIG, ADAPTER_WEIGHTS, RECORD = "adapter_config.json", "adapter_model.safetensors", "run.json"
AUTO_CLASSES = {  # by peft's task type
    "CAUSAL_LM": "AutoModelForCausalLM",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
}


def adapter_config(source: str | Path) -> dict[str, Any]:
    """The adapter_config.json of a folder or Hub repository; empty if it is no adapter.

    A local folder with a config.json is a complete model, as in transformers.
    """
    if Path(source, "config.json").is_file():
        return {}
    try:
        file = find_adapter_config_file(str(source))
    except OSError:  # neither a folder nor a name on the Hub; reading its config says so
        return {}
    return json.loads(Path(file).read_text(encoding="utf-8")) if file else {}


def base_of(source: str | Path) -> str:
    """The base model that an adapter names; ValueError if it names none."""
    base = adapter_config(source).get("base_model_name_or_path")
    if not base:
        raise ValueError(f'{source} does not name its base model; set "base_model_name_or_path" in {ADAPTER_CONFIG}.')
    return base


def weights_digests(source: str | Path) -> dict[str, str]:
    """The SHA-256 of the files of weights in a checkpoint folder or Hub repository, by name."""
    folder = Path(source)
    if not folder.is_dir():
        folder = Path(snapshot_download(str(source), allow_patterns=["model*.safetensors"]))
    return {file.name: sha256(file) for file in sorted(folder.glob("model*.safetensors"))}


def adapted_config(source: str | Path, config: PretrainedConfig) -> PretrainedConfig:
    """The config of an adapter's model, made from that of its base: with the adapter's head and labels.

    Raises:
        ValueError: the base is not signed, or has no head for the adapter's task.
    """
    if not config.model_type.startswith("bidir_"):
        raise ValueError(
            f"{source} is an adapter for a {config.model_type} model without signed attention; load it with "
            "peft.PeftModel.from_pretrained."
        )
    found = adapter_config(source)
    head = (found.get("auto_mapping") or {}).get("base_model_class")
    if head is None:
        auto = AUTO_CLASSES.get(found.get("task_type") or "", "AutoModel")
        if auto not in config.auto_map:
            raise ValueError(f"{source} is an adapter for {auto}, which its base, {config.model_type}, does not have.")
        head = config.auto_map[auto].rpartition(".")[2]
    config.architectures = [head]
    if labels := read_json(_local(source) / RECORD).get("label_names"):
        config.id2label = dict(enumerate(labels))
        config.label2id = {name: index for index, name in enumerate(labels)}
        config.problem_type = None
    config.attn_oriented = None  # holds for the weights of the base
    return config


def check_base(source: str | Path, base: str | Path) -> None:
    """Raise ValueError if an adapter's record says that it was trained on other weights than those of `base`."""
    expected = read_json(_local(source) / RECORD).get("base_weights", {})
    found = weights_digests(base) if expected else {}
    if sorted(expected.values()) != sorted(found.values()):
        raise ValueError(
            f"{source} is an adapter for another base model than {base}: its weights have the SHA-256 "
            f"{_short(found)}, and it was trained on {_short(expected)} ({base_of(source)})."
        )


def with_adapter(model: PreTrainedModel, source: str | Path) -> "PeftModel":
    """Put a saved adapter on its base model; the model is changed.

    Raises:
        ValueError: the adapter does not fit the model.
        ModuleNotFoundError: peft is not installed.
    """
    with extra("lora"):
        from peft import PeftModel, get_peft_model_state_dict

    folder = _local(source)
    try:
        adapted = PeftModel.from_pretrained(model, str(folder))
    except (RuntimeError, ValueError) as error:  # other shapes, or none of the layers
        reason = str(error).strip().splitlines()[-1].strip()
        raise ValueError(f"the adapter {source} does not fit {type(model).__name__}: {reason}") from error
    with safe_open(folder / ADAPTER_WEIGHTS, "pt") as weights:
        unequal = get_peft_model_state_dict(adapted).keys() ^ weights.keys()
    if unequal:
        raise ValueError(
            f"the adapter {source} does not fit {type(model).__name__}: {len(unequal)} weights are only in one of "
            f"them, such as {sorted(unequal)[0]}."
        )
    return adapted


def covers(source: str | Path, weight: str) -> bool:
    """Whether an adapter brings a weight of its own in place of the base's, as it does for a new head."""
    whole = adapter_config(source).get("modules_to_save") or []
    return any(f".{module}." in f".{weight}" for module in whole)


def _local(source: str | Path) -> Path:
    """The folder of an adapter, downloaded if it is on the Hub."""
    if Path(source).is_dir():
        return Path(source)
    return Path(snapshot_download(str(source), allow_patterns=[ADAPTER_CONFIG, ADAPTER_WEIGHTS, RECORD]))


def _short(digests: dict[str, str]) -> str:
    return ", ".join(digest[:12] for digest in digests.values()) or "none"
