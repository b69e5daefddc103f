"""transformers' Auto classes find every signed config and model, and make it only when they look for it."""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

# the recurrent models, which have no stock counterpart
_RECURRENT = {
    "BidirRnnConfig": "configuration_bidir_rnn",
    "BidirRnnModel": "modeling_bidir_rnn",
    "BidirRnnForSequenceClassification": "modeling_bidir_rnn",
    "BidirRnnForSeq2SeqLM": "modeling_bidir_seq2seq",
}


_MODELING = [f"hf_bidir.modeling.{home}" for home in ("modeling_bidir", "modeling_bidir_rnn", "modeling_bidir_seq2seq")]


def bidir_class(name: str) -> type:
    """The config or model class of that name; AttributeError with the nearest name where transformers has no such."""
    home = _RECURRENT.get(name, "configuration_bidir" if name.endswith("Config") else "modeling_bidir")
    return getattr(import_module(f"hf_bidir.modeling.{home}"), name)


def register() -> None:
    """Let the Auto classes know, now or as soon as they are imported."""
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
    """Config classes by model type, in place of what others have registered, which remains."""

    def __init__(self, stock: dict[str, str], registered: dict):
        super().__init__(registered)
        self.stock = stock

    def _name(self, model_type: object) -> str | None:
        if not isinstance(model_type, str) or not model_type.startswith("bidir_"):
            return None
        kind = model_type.removeprefix("bidir_")
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
    """Model classes of one Auto class by config class, in place of what others have registered, which remains."""

    def __init__(self, auto: str, registered: dict):
        super().__init__(registered)
        self.auto = auto

    def _name(self, config_class: type) -> str | None:
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

    def values(self) -> list[type]:
        """Include the classes made so far; `pipeline` checks a model against these values."""
        homes = filter(None, map(sys.modules.get, _MODELING))
        made = [one for home in homes for one in vars(home).values() if hasattr(one, "config_class")]
        return [*super().values(), *(one for one in made if self._name(one.config_class) == one.__name__)]


def _when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call `then` with a module, now if it is imported, else right after it will be."""
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _AfterImport(name, then))


class _AfterImport(MetaPathFinder, Loader):
    """Imports one module as it would be without this, and then calls a function."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]):
        self.name, self.then = name, then

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)  # so that the spec is that of others
        try:
            spec = find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        sys.meta_path.remove(self)
        self.then(module)
