"""Folders of sentence-transformers: a transformer and the modules that pool its states into one vector."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from huggingface_hub import snapshot_download
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import cached_file

from hf_bidir.common.files import Json, read_json
from hf_bidir.modeling.compat import stock_heads

MODULES = "modules.json"
MODEL_SETTINGS = "config_sentence_transformers.json"
TRANSFORMER_SETTINGS, EMBEDDING = "sentence_*_config.json", "feature-extraction"
WITH_DECODER = {"AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq"}  # Auto classes of model types with a decoder
DOWNLOADED = ["*.json", "*.txt", "*.model", "*.jinja", "*.safetensors"]


@dataclass(frozen=True)
class SentenceFolder:
    """A model of sentence-transformers."""

    folder: Path
    path: str  # the subfolder of its transformer, often ""
    modules: tuple[dict[str, str], ...]  # the others, each with its "type" and subfolder "path", which may not exist

    @property
    def transformer(self) -> Path:
        return self.folder / self.path

    @property
    def settings_files(self) -> list[Path]:
        """The files of `settings`."""
        return [*self.folder.glob(MODEL_SETTINGS), *self.transformer.glob(TRANSFORMER_SETTINGS)]

    @property
    def settings(self) -> Json:
        """The settings of the whole model and of its transformer, such as prompts and the longest text."""
        settings: Json = {}
        for file in self.settings_files:
            settings |= read_json(file)
        return settings

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

    def copy_others(self, target: Path) -> None:
        """Copy the other modules, settings and prompts."""
        for module in self.modules:
            path = module["path"]
            if path and (self.folder / path).is_dir():
                shutil.copytree(self.folder / path, target / path, dirs_exist_ok=True)
        for file in self.settings_files:
            shutil.copyfile(file, target / file.relative_to(self.folder))
        shutil.copyfile(self.folder / MODULES, target / MODULES)
        if self.path:  # transformers looks for model code in the top folder
            for file in (target / self.path).glob("*.py"):
                shutil.copyfile(file, target / file.name)


def sentence_folder(source: str | Path) -> SentenceFolder | None:
    """The folder of sentence-transformers, downloaded with its weights from the Hub; None for other checkpoints, and
    ValueError if none of its modules is a transformer, or one is outside the folder."""
    folder = Path(source)
    listed = folder / MODULES
    if not folder.is_dir():
        try:
            listed = Path(cached_file(str(source), MODULES, _raise_exceptions_for_missing_entries=False) or "")
        except (OSError, ValueError):  # no such repository, as reading the config says
            return None
    if not listed.is_file():
        return None
    modules: Any = read_json(listed)
    paths = [Path(module["path"]) for module in modules]
    if any(path.is_absolute() or ".." in path.parts for path in paths):
        raise ValueError(f"{source} has modules outside its folder, as {MODULES} says; such a model is not read.")
    transformer = next((module for module in modules if module["type"].endswith(".Transformer")), None)
    if transformer is None:
        raise ValueError(f"{source} is a model of sentence-transformers without a Transformer, as {MODULES} says.")
    modules.remove(transformer)
    if not folder.is_dir():
        folders = [f"{module['path']}/*" for module in modules]
        folder = Path(snapshot_download(str(source), allow_patterns=[*DOWNLOADED, *folders]))
    return SentenceFolder(folder, transformer["path"], tuple(modules))
