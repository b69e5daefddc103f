"""Folders of sentence-transformers: a transformer and the modules that pool its states into one vector."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from huggingface_hub import snapshot_download
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import cached_file

from hf_bidir.modeling.compat import stock_heads

MODULES = "modules.json"
MODEL_SETTINGS = "config_sentence_transformers.json"
MODEL_FILES = (MODULES, MODEL_SETTINGS)
TRANSFORMER_SETTINGS, EMBEDDING = "sentence_*_config.json", "feature-extraction"
WITH_DECODER = {"AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq"}  # Auto classes of model types with a decoder
WITHOUT_WEIGHTS = ["*.json", "*.txt", "*.model", "*.jinja"]


@dataclass(frozen=True)
class SentenceFolder:
    """A model of sentence-transformers."""

    folder: Path  # local; for a Hub repository at first without weights
    path: str  # the subfolder of its transformer, often ""
    modules: tuple[dict[str, str], ...]  # the others, each with its "type" and subfolder "path", which may not exist
    name: str | None  # on the Hub

    @property
    def transformer(self) -> Path:
        return self.folder / self.path

    @property
    def other_folders(self) -> tuple[str, ...]:
        """The subfolders of the other modules, which may not exist."""
        return tuple(module["path"] for module in self.modules if module["path"])

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the whole model and of its transformer, such as prompts and the longest text."""
        files = [self.folder / MODEL_SETTINGS, *self.transformer.glob(TRANSFORMER_SETTINGS)]
        read = [json.loads(file.read_text("utf-8")) for file in files if file.is_file()]
        return {name: value for settings in read for name, value in settings.items()}

    @property
    def embeds(self) -> bool:
        """Whether its transformer makes states for an embedding, not predictions of a task."""
        return self.settings.get("transformer_task", EMBEDDING) == EMBEDDING

    def head(self, config: PretrainedConfig) -> type[PreTrainedModel] | None:
        """The stock class that sentence-transformers loads for embeddings, whatever the config names; None for other
        tasks. ValueError for an encoder-decoder, whose encoder it always loads as a stock class."""
        if not self.embeds:
            return None
        heads = stock_heads(config.model_type)
        name = heads.get("AutoModel")
        if name is None or config.is_encoder_decoder or WITH_DECODER & heads.keys():
            raise ValueError(
                f"sentence-transformers always loads {config.model_type} models with stock classes, so a signed one "
                f"would be computed with softmax; convert a folder without {MODULES}."
            )
        return getattr(transformers, name)

    def fetch_weights(self) -> None:
        """Download the weights of a Hub repository."""
        if self.name is not None:
            folders = [f"{name}/*" for name in self.other_folders]
            snapshot_download(self.name, allow_patterns=["*.safetensors", *folders])

    def copy_others(self, target: Path) -> None:
        """Copy the other modules, settings and prompts."""
        for name in filter(lambda name: (self.folder / name).is_dir(), self.other_folders):
            shutil.copytree(self.folder / name, target / name, dirs_exist_ok=True)
        settings = self.transformer.glob(TRANSFORMER_SETTINGS)
        for file in (*(self.folder / name for name in MODEL_FILES), *settings):
            if file.is_file():
                shutil.copyfile(file, target / file.relative_to(self.folder))
        if self.path:  # transformers looks for model code in the top folder
            for file in (target / self.path).glob("*.py"):
                shutil.copyfile(file, target / file.name)


def sentence_folder(source: str | Path) -> SentenceFolder | None:
    """The folder of sentence-transformers, downloaded without weights from the Hub; None for other checkpoints, and
    ValueError if none of its modules is a transformer."""
    name = None if Path(source).is_dir() else str(source)
    listed = Path(source, MODULES) if name is None else Path(_on_the_hub(name) or "")
    if not listed.is_file():
        return None
    modules = json.loads(listed.read_text("utf-8"))
    if any(Path(module["path"]).is_absolute() or ".." in Path(module["path"]).parts for module in modules):
        raise ValueError(f"{source} has modules outside its folder, as {MODULES} says; such a model is not converted.")
    transformer = next((module for module in modules if module["type"].endswith(".Transformer")), None)
    if transformer is None:
        raise ValueError(f"{source} is a model of sentence-transformers without a Transformer, as {MODULES} says.")
    folder = listed.parent if name is None else snapshot_download(name, allow_patterns=WITHOUT_WEIGHTS)
    pooling = tuple(module for module in modules if module is not transformer)
    return SentenceFolder(Path(folder), transformer["path"], pooling, name)


def _on_the_hub(name: str) -> str | None:
    """The local path of `modules.json` if the Hub has it; errors are reported later, when the config is read."""
    try:
        return cached_file(name, MODULES, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError):
        return None
