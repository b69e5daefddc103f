"""Folders of sentence-transformers: a transformer and the modules that pool its states into one vector."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import transformers
from huggingface_hub import snapshot_download
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import cached_file

from hf_bidir.modeling.configuration_bidir import stock_heads

MODULES = "modules.json"
MODEL_FILES = (MODULES, "config_sentence_transformers.json")
TRANSFORMER_SETTINGS, EMBEDDING = "sentence_*_config.json", "feature-extraction"
WITH_DECODER = {"AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq"}  # Auto classes of model types with a decoder
WITHOUT_WEIGHTS = ["*.json", "*.txt", "*.model", "*.jinja"]


@dataclass(frozen=True)
class SentenceFolder:
    """A model of sentence-transformers.

    Attributes:
        folder: the local folder; for a Hub repository at first without weights.
        path: the subfolder of its transformer, often "".
        other_folders: the subfolders of its other modules, which may not exist.
        name: the name on the Hub; None for a local folder.
    """

    folder: Path
    path: str
    other_folders: tuple[str, ...]
    name: str | None

    @property
    def transformer(self) -> Path:
        return self.folder / self.path

    def head(self, config: PretrainedConfig) -> type[PreTrainedModel] | None:
        """The stock class that sentence-transformers loads for embeddings, whatever the config names; None for other
        tasks.

        Raises:
            ValueError: an encoder-decoder, whose encoder sentence-transformers always loads as a stock class.
        """
        settings = [json.loads(file.read_text("utf-8")) for file in self.transformer.glob(TRANSFORMER_SETTINGS)]
        if any(setting.get("transformer_task", EMBEDDING) != EMBEDDING for setting in settings):
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
        """Download the weights of a Hub repository, as safetensors or else pickled."""
        if self.name is None:
            return
        _download(self.name, ["*.safetensors", *(f"{other}/*" for other in self.other_folders)])
        if not any(self.transformer.glob("*.safetensors")):
            _download(self.name, ["*.bin", "*.bin.index.json"])

    def copy_others(self, target: Path) -> None:
        """Copy the other modules, settings and prompts, but neither the transformer nor the README."""
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
    """The folder of sentence-transformers, downloaded without weights from the Hub; None for other checkpoints.

    Raises:
        ValueError: none of its modules is a transformer.
    """
    name = None if Path(source).is_dir() else str(source)
    listed = Path(source, MODULES) if name is None else Path(_on_the_hub(name) or "")
    if not listed.is_file():
        return None
    kinds = {module["path"]: module["type"].rpartition(".")[2] for module in json.loads(listed.read_text("utf-8"))}
    if outside := [path for path in kinds if Path(path).is_absolute() or ".." in Path(path).parts]:
        raise ValueError(
            f"{source} has modules outside its folder ({', '.join(outside)}); such a model is not converted."
        )
    path = next((path for path, kind in kinds.items() if kind == "Transformer"), None)
    if path is None:
        raise ValueError(
            f"{source} is a model of sentence-transformers without a Transformer module, so it has no attention to "
            f"sign; its modules are {', '.join(kinds.values())}."
        )
    folder = listed.parent if name is None else _download(name, WITHOUT_WEIGHTS)
    return SentenceFolder(folder, path, tuple(other for other in kinds if other not in ("", path)), name)


def _on_the_hub(name: str) -> str | None:
    """The local path of `modules.json` if the Hub has it; errors are reported later, when the config is read."""
    try:
        return cached_file(name, MODULES, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError):
        return None


def _download(name: str, patterns: list[str]) -> Path:
    """Download the files of a Hub repository that match a pattern; returns the local folder."""
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # errors of the client and of its HTTP library
        raise OSError(f"{name} could not be downloaded from the Hub ({error}); run the command again.") from error
