"""The files that make up a checkpoint, and those that describe it."""

import hashlib
import json
from pathlib import Path

from hf_bidir.checkpoints.adapters import ADAPTER_CONFIG
from hf_bidir.checkpoints.reading import LICENCES
from hf_bidir.common.card import CARD
from hf_bidir.common.files import read_json, sha256

CODE = ("*.py",)
MODULES = ("[0-9]_*/*.json", "[0-9]_*/*.safetensors")  # sentence-transformers keeps them in numbered folders
COMPUTED_FROM = (
    *("config.json", ADAPTER_CONFIG, "generation_config.json", "*.safetensors", "model.safetensors.index.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("vocab.txt", "vocab.json", "merges.txt", "*.model"),
    *("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"),
    *("modules.json", "config_sentence_transformers.json", "sentence_*_config.json", *MODULES),
)
# fields that say where the code or the base of a checkpoint is
NOT_COMPUTED_FROM = {"config.json": {"auto_map"}, ADAPTER_CONFIG: {"base_model_name_or_path", "revision"}}
RECORDS = ("all_results.json", "run.json", "previous_run.json", "evaluation.json")
REPORTS = (CARD, *LICENCES, "*.png", *RECORDS)


def matching(folder: Path, patterns: tuple[str, ...]) -> dict[str, Path]:
    """The files that match a pattern, by their path in the folder, sorted."""
    paths = {path for pattern in patterns for path in folder.glob(pattern)}
    files = sorted(path for path in paths if path.is_file())
    return {file.relative_to(folder).as_posix(): file for file in files}


def digests(folder: Path, patterns: tuple[str, ...] = COMPUTED_FROM) -> dict[str, str]:
    """The SHA-256 of every file that decides what the checkpoint computes, by name.

    Of a config, the fields of `NOT_COMPUTED_FROM` are left out: publishing changes them.
    """
    return {name: _digest(name, path) for name, path in matching(folder, patterns).items()}


def _digest(name: str, path: Path) -> str:
    if name not in NOT_COMPUTED_FROM:
        return sha256(path)
    fields = read_json(path)
    names = sorted(fields.keys() - NOT_COMPUTED_FROM[name])
    content = json.dumps({name: fields[name] for name in names})
    return hashlib.sha256(content.encode()).hexdigest()
