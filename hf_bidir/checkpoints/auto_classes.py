"""Registers all signed classes with transformers' Auto classes; each is created only when it is looked up."""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from hf_bidir.modeling.model_types import is_signed, stock_type

# modules of the recurrent models, which have no stock counterpart
_RECURRENT = {
    "BidirRnnConfig": "configuration_bidir_rnn",
    "BidirRnnModel": "modeling_bidir_rnn",
    "BidirRnnForSequenceClassification": "modeling_bidir_rnn",
    "BidirRnnForSeq2SeqLM": "modeling_bidir_seq2seq",
}


_MODELING = [f"hf_bidir.modeling.{home}" for home in ("modeling_bidir", "modeling_bidir_rnn", "modeling_bidir_seq2seq")]


def bidir_class(name: str) -> type:
    """The config or model class of this name; AttributeError with the closest name if transformers has none."""
    home = _RECURRENT.get(name, "configuration_bidir" if name.endswith("Config") else "modeling_bidir")
    return getattr(import_module(f"hf_bidir.modeling.{home}"), name)


def register() -> None:
    """Register with the Auto classes, now or as soon as they are imported."""
    _when_imported("transformers.models.auto.configuration_auto", _register_configs)
    _when_imported("transformers.models.auto.modeling_auto", _register_heads)


def _register_configs(configuration_auto: ModuleType) -> None:
    stock = configuration_auto.CONFIG_MAPPING_NAMES
    mapping = configuration_auto.CONFIG_MAPPING
    mapping._extra_content = _Configs(stock, mapping._extra_content)


def _register_heads(modeling_auto: ModuleType) -> None:
    for auto in filter(lambda name: name.startswith("Auto"), modeling_auto.__all__):
        mapping = getattr(getattr(modeling_auto, auto), "_model_mapping", None)
        if mapping is not None:
            mapping._extra_content = _Heads(auto, mapping._extra_content)


class _Configs(dict):
    """Config classes by model type; keeps the classes that other packages have registered."""

    def __init__(self, stock: dict[str, str], registered: dict):
        super().__init__(registered)
        self.stock = stock

    def _name(self, model_type: object) -> str | None:
        if not isinstance(model_type, str) or not is_signed(model_type):
            return None
        kind = stock_type(model_type)
        name = "RnnConfig" if kind == "rnn" else self.stock.get(kind)
        return None if name is None else f"Bidir{name}"

    def __contains__(self, model_type: object) -> bool:
        return super().__contains__(model_type) or self._name(model_type) is not None

    def __missing__(self, model_type: str) -> type:
        name = self._name(model_type)
        if name is None:
            raise KeyError(model_type)
        return bidir_class(name)


class _Heads(dict):
    """Model classes of one Auto class by config class; keeps the classes that other packages have registered."""

    def __init__(self, auto: str, registered: dict):
        super().__init__(registered)
        self.auto = auto

    def _name(self, config_class: Any) -> str | None:
        if not getattr(config_class, "__module__", "").startswith("hf_bidir.modeling."):
            return None  # a stock class, or one that came with a checkpoint
        return config_class.remote_code.get(self.auto, "").rpartition(".")[2] or None

    def __contains__(self, config_class: object) -> bool:
        return super().__contains__(config_class) or self._name(config_class) is not None

    def __missing__(self, config_class: type) -> type:
        name = self._name(config_class)
        if name is None:
            raise KeyError(config_class)
        return bidir_class(name)

    def values(self) -> list[type]:  # type: ignore[override]  # a list in place of a view
        """All classes, including the signed ones created so far, which `pipeline` checks a model against."""
        modules = filter(None, map(sys.modules.get, _MODELING))
        created = [item for module in modules for item in vars(module).values() if hasattr(item, "config_class")]
        return [*super().values(), *(item for item in created if self._name(item.config_class) == item.__name__)]


def _when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call `then` with a module, now if it is imported, else right after its import."""
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _AfterImport(name, then))


class _AfterImport(MetaPathFinder, Loader):
    """Imports one module with its usual loader, and then calls a function."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]):
        self.name, self.then = name, then
        self.loader: Any = None

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)  # find the spec with the other finders
        try:
            spec = find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None:
            self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__.loader = module.__loader__ = self.loader  # type: ignore[union-attr]  # set by the import
        self.loader.exec_module(module)
        sys.meta_path.remove(self)
        self.then(module)
