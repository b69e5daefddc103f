"""Opens a checkpoint, signed or stock: what its files say is read once, its weights when they are asked for.

A model of sentence-transformers is downloaded completely when it is opened.
"""

import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoFeatureExtractor,
    AutoImageProcessor,
    AutoProcessor,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.utils import cached_file

import hf_bidir
from hf_bidir.common.card import CARD, with_note
from hf_bidir.common.files import check_place
from hf_bidir.common.model_types import is_signed
from hf_bidir.modeling.compat import stock_heads

from .adapters import Adapter, read_adapter
from .kinds import BY_AUTO_CLASS, Kind, check_vocabulary, kind_of, vocabulary_of
from .sentence_folder import SentenceFolder, sentence_folder
from .signing import signed
from .timm_vit import TIMM_PREFIX, read_timm, vit_from_timm

if TYPE_CHECKING:
    from peft import PeftModel

LICENCES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE")
# audio models have a feature extractor
PROCESSORS = (AutoTokenizer, AutoImageProcessor, AutoFeatureExtractor, AutoProcessor)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint, as `open_checkpoint` reads it.

    Attributes:
        source: the folder, the Hub name, or "timm:NAME".
        config: of the model, stock or signed; of an adapter, that of its base with the adapter's head and labels.
        revision: on the Hub.
        adapter: the adapter, if it is one.
        base: the base model of the adapter.
        sentences: the other modules, if it is a folder of sentence-transformers.
        vit: the stock model and the image processor that a timm model became.
    """

    source: str | Path
    config: PretrainedConfig
    revision: str | None = None
    adapter: Adapter | None = None
    base: "Checkpoint | None" = None
    sentences: SentenceFolder | None = None
    vit: tuple[PreTrainedModel, Any] | None = None

    @property
    def transformer(self) -> str | Path:
        """The folder or Hub name of the transformer, which in a folder of sentence-transformers may be a subfolder."""
        return self.sentences.transformer if self.sentences else self.source

    @property
    def is_signed(self) -> bool:
        """Whether its model type is a signed one."""
        return is_signed(type(self.config).model_type)

    @property
    def head(self) -> type[PreTrainedModel]:
        """The class that it was saved with, by default that of the model without a head; ValueError if unknown."""
        heads = () if self.is_signed else stock_heads(self.config.model_type).values()
        name = (self.config.architectures or [*heads, "model without a class"])[0]
        try:
            return getattr(hf_bidir if self.is_signed else transformers, name)
        except AttributeError as error:
            raise ValueError(f"{self.source} is a {name}: {error}") from error

    @property
    def kind(self) -> Kind:
        """The kind of its class, by name; a class that its config does not name has no head."""
        return kind_of((self.config.architectures or ["none"])[0])

    @property
    def auto_class(self) -> str:
        """The Auto class that loads its class, preferably one of `kinds`."""
        head = (self.config.architectures or ["none"])[0]
        auto_map = getattr(self.config, "auto_map", None) or {}  # a stock config has none
        names = [name for name, path in auto_map.items() if path.endswith(f".{head}")]
        names.append(self.kind.auto)
        return next((name for name in names if name in BY_AUTO_CLASS), names[0])

    def check_full_precision(self, what: str) -> None:
        """Raise ValueError for quantised weights; `what` says what they cannot be, such as "converted"."""
        if getattr(self.config, "quantization_config", None) is not None:
            raise ValueError(
                f"{self.source} has quantised weights, which cannot be {what}; use the checkpoint that it was made "
                "from, and quantise last."
            )

    def model(self, dtype: torch.dtype | str = "auto", **options: Any) -> PreTrainedModel:
        """The model with its weights, as the class that it was saved with, in evaluation mode; an adapter is merged.

        Raises:
            FileNotFoundError: there are no weights.
            ValueError: an unknown head, or weights that are missing or unreadable.
        """
        return self._loaded(self.head, dtype, options)

    def signed_model(
        self,
        dtype: torch.dtype | str = "auto",
        *,
        negative_mass: Any = 0.0,
        **attention: Any,
    ) -> PreTrainedModel:
        """The model, if it is signed; else the softmax model, signed, which at the default λ = 0 has the same outputs.

        Args:
            dtype: of its weights.
            negative_mass, attention: for a softmax model, as in `signed`.

        Raises:
            FileNotFoundError: as in `model`.
            ValueError: as in `model` and `signed`.
        """
        if self.is_signed:
            return self.model(dtype)
        head = (self.sentences and self.sentences.head(self.config)) or self.head
        return signed(self._loaded(head, dtype, {}), negative_mass, **attention)

    def adapted(self, dtype: torch.dtype | str = "auto", **options: Any) -> "PeftModel":
        """The adapter on its base model, not merged, in evaluation mode.

        Raises:
            FileNotFoundError: there are no weights.
            ValueError: the base is not that of the training run, or not a complete one in full precision.
        """
        adapter, base = self.adapter, self.base
        if adapter is None or base is None:
            raise ValueError(f"{self.source} is not an adapter: it has a config.json of its own.")
        if "quantization_config" in options:
            raise ValueError(f"{self.source} is an adapter; merge it before it is quantised: hf-bidir merge.")
        base.check_full_precision("the base of an adapter")
        adapter.check_base(base.source, base.config, base.revision)
        options |= {"config": self.config, "dtype": dtype, "revision": base.revision, "ignore_mismatched_sizes": True}
        model, report = with_report(self.head, base.source, **options)
        if needed := [key for key in lacking(report) if not adapter.contains(key)]:
            raise ValueError(
                f"{base.source} is incomplete: neither it nor the adapter {self.source} has the weights {needed}."
            )
        if adapter.generation:
            model.generation_config.update(**adapter.generation)
        return adapter.on(model).eval()

    def processors(self, model: PreTrainedModel) -> list:
        """The tokenizer, image processor, feature extractor and combined processor, if any.

        Raises:
            ValueError: a tokenizer has tokens without an embedding in the model.
        """
        if self.vit:
            return [self.vit[1]]
        by_class: dict[type, Any] = {}
        for auto in PROCESSORS:
            # each Auto class raises a different error for what the checkpoint lacks
            with suppress(OSError, ValueError, KeyError, ImportError, AttributeError, TypeError):
                processor = auto.from_pretrained(self.transformer, config=self.config)
                by_class.setdefault(type(processor), processor)
        for processor in by_class.values():
            check_vocabulary(processor, vocabulary_of(model), self.transformer)
        return list(by_class.values())

    def _loaded(
        self,
        head: type[PreTrainedModel],
        dtype: torch.dtype | str,
        options: dict[str, Any],
    ) -> PreTrainedModel:
        if self.vit:
            return self.vit[0]
        if self.adapter:
            return self.adapted(dtype, **options).merge_and_unload().eval()
        if isinstance(self.config, head.config_class):  # not where a checkpoint of two parts is read as one of them
            options = {"config": self.config} | options
        return complete_model(head, self.transformer, dtype, **options)


def open_checkpoint(
    source: str | Path | nn.Module,
    *,
    weights: str | Path | None = None,
    base: str | Path | None = None,
    revision: str | None = None,
) -> Checkpoint:
    """Open a checkpoint, signed or stock, an adapter, a folder of sentence-transformers, or a timm ViT.

    Args:
        source: a folder, a name on the Hub, "timm:NAME", or an instantiated timm VisionTransformer.
        weights: for "timm:NAME", a file of weights.
        base: for an adapter, the folder or Hub name of its base, if that is not where the adapter says.
        revision: on the Hub.

    Raises:
        FileNotFoundError: the checkpoint, or the base of an adapter, does not exist.
        ValueError: an unknown model type, a newer version's attention fields, an adapter whose base may have been
            signed in memory, or a timm model that is no plain ViT.
    """
    named = str(source).startswith(TIMM_PREFIX)
    timm_model = read_timm(str(source), weights) if named else source
    if isinstance(timm_model, nn.Module):
        vit = vit_from_timm(timm_model)
        return Checkpoint(str(source), vit[0].config, vit=vit)
    if weights is not None:
        raise ValueError(f"weights={weights} is for timm models only; {source} has its own.")
    check_place(source)
    sentences = sentence_folder(source)
    folder = sentences.transformer if sentences else source
    adapter = read_adapter(folder)
    if adapter is None:
        return Checkpoint(source, _own_config(folder, revision), revision, sentences=sentences)
    base_revision = None
    if base is None:
        base, base_revision = adapter.place, adapter.revision
    if read_adapter(base):
        raise ValueError(f"the base model of the adapter {source}, {base}, is an adapter itself; merge it first.")
    base_model = Checkpoint(base, _own_config(base, base_revision), base_revision)
    config = adapter.model_config(base_model.config)
    return Checkpoint(source, config, revision, adapter, base_model, sentences)


def _own_config(source: str | Path, revision: str | None) -> PretrainedConfig:
    """The config in config.json."""
    try:
        return AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
    except OSError as error:
        reason = " ".join(str(error).split())
        raise FileNotFoundError(
            f"expected a folder with config.json, or a model on the Hub, got {source}: {reason}"
        ) from error


def complete_model(
    head: type[PreTrainedModel],
    source: str | Path,
    dtype: torch.dtype | str = "auto",
    **options: Any,
) -> PreTrainedModel:
    """Load a checkpoint as `head` in evaluation mode; ValueError unless all weights are present and fit.

    If the checkpoint has no pooler, the model has none.
    """
    model, report = with_report(head, source, dtype=dtype, **options)
    missing = sorted(report["missing_keys"])
    if missing and all(name.startswith("pooler.") for name in missing) and "add_pooling_layer" not in options:
        return complete_model(head, source, dtype, add_pooling_layer=False, **options)
    if missing:
        raise ValueError(f"{source} is incomplete: it lacks the weights {missing}.")
    return model.eval()


def with_report(head: type[PreTrainedModel], source: str | Path, **options: Any) -> tuple[PreTrainedModel, dict]:
    """`from_pretrained` with the keys that were missing or did not fit, which transformers does not log then.

    Raises:
        FileNotFoundError: a folder without weights.
        ValueError: weights that cannot be read.
    """
    folder = Path(source)
    if folder.is_dir() and not any(file.suffix in (".safetensors", ".bin") for file in folder.iterdir()):
        raise FileNotFoundError(f"{folder} has no weights (*.safetensors); its {CARD} may say how to produce them.")
    log = logging.getLogger("transformers.modeling_utils")
    log.disabled = True
    try:
        return head.from_pretrained(source, output_loading_info=True, **options)
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(
            f"{head.__name__} cannot read the weights in {source} ({error}); if a file is incomplete, copy or download "
            "it again."
        ) from error
    finally:
        log.disabled = False


def lacking(report: dict[str, Any]) -> list[str]:
    """The names of weights that a checkpoint lacks or has in another shape, by the report of `with_report`."""
    keys = (*report["missing_keys"], *report["mismatched_keys"])
    return sorted({key if isinstance(key, str) else key[0] for key in keys})  # or (key, shape, shape)


def documents(source: str | Path, note: str = "") -> dict[str, bytes]:
    """The card, with a note after its header, and the licence of a checkpoint, as far as it has them, by name."""
    files: dict[str, bytes] = {}
    for name in (CARD, *LICENCES):
        with suppress(OSError, ValueError):
            if path := cached_file(source, name, _raise_exceptions_for_missing_entries=False):
                files[name] = Path(path).read_bytes()
    if note and CARD in files:
        files[CARD] = with_note(files[CARD], note)
    return files
