"""Which files of a folder make a checkpoint, and which tell about it."""

from pathlib import Path

from hf_bidir.finetune.files import sha256

CODE = ("*.py",)
COMPUTED_FROM = (
    *("config.json", "*.safetensors", "model.safetensors.index.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"),
    *("preprocessor_config.json", "processor_config.json"),
)
TOLD = ("README.md", "*.png", "all_results.json", "run.json", "previous_run.json", "evaluation.json", "seeds.json")


def digests(folder: Path, patterns: tuple[str, ...] = COMPUTED_FROM) -> dict[str, str]:
    """The SHA-256 of every file that decides what the checkpoint computes, by name."""
    return {file.name: sha256(file) for file in sorted(file for pattern in patterns for file in folder.glob(pattern))}
