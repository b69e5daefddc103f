"""Registers all signed classes with transformers' Auto classes; each is created only when it is looked up.

`AutoConfig.register` takes a class, and there is one for each of some 500 model types. So the dictionaries in which the
Auto classes keep what was registered are replaced by ones that create a signed class on its first look-up.

Tables of other libraries by model type get the signed types as soon as the library is imported.
"""

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from hf_bidir.common.model_types import SIGNED, is_signed, stock_type

_MODELING = "hf_bidir.modeling.modeling_bidir"
_WITHOUT_STOCK: dict[str, str] = {}  # modules of the signed classes that have no stock counterpart, by name


def bidir_class(name: str) -> type:
    """The config or model class of this name; AttributeError with the closest name if transformers has none."""
    made_in = "hf_bidir.modeling.configuration_bidir" if name.endswith("Config") else _MODELING
    return getattr(import_module(_WITHOUT_STOCK.get(name, made_in)), name)


class _OnDemand(dict):
    """Registered classes, those of other packages included, and signed ones, which are created on their first look-up;
    `name_of` gives the name of the signed class for a key, None if there is none."""

    def __init__(self, registered: dict, name_of: Callable[[Any], str | None]):
        super().__init__(registered)
        self.name_of = name_of

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or self.name_of(key) is not None

    def __missing__(self, key: Any) -> type:
        name = self.name_of(key)
        if name is None:
            raise KeyError(key)
        return bidir_class(name)

    def values(self) -> list[type]:  # type: ignore[override]  # a list in place of a view
        """All classes, including the signed ones created so far, which `pipeline` checks a model against."""
        homes = filter(None, map(sys.modules.get, {_MODELING, *_WITHOUT_STOCK.values()}))
        created = [item for home in homes for item in vars(home).values() if hasattr(item, "config_class")]
        return [*super().values(), *(item for item in created if self.name_of(item.config_class) == item.__name__)]


def _config_name(stock: dict[str, str], model_type: Any) -> str | None:
    if not isinstance(model_type, str) or not is_signed(model_type):
        return None
    kind = stock_type(model_type)
    name = f"Bidir{stock.get(kind, f'{kind.capitalize()}Config')}"
    return name if kind in stock or name in _WITHOUT_STOCK else None


def _head_name(auto: str, config_class: Any) -> str | None:
    if not getattr(config_class, "__module__", "").startswith("hf_bidir."):
        return None  # a stock class, or one that came with a checkpoint
    return config_class.remote_code.get(auto, "").rpartition(".")[2] or None


def _register_configs(configuration_auto: ModuleType) -> None:
    mapping, stock = configuration_auto.CONFIG_MAPPING, configuration_auto.CONFIG_MAPPING_NAMES
    mapping._extra_content = _OnDemand(mapping._extra_content, partial(_config_name, stock))


def _register_heads(modeling_auto: ModuleType) -> None:
    for auto in filter(lambda name: name.startswith("Auto"), modeling_auto.__all__):
        mapping = getattr(getattr(modeling_auto, auto), "_model_mapping", None)
        if mapping is not None:
            mapping._extra_content = _OnDemand(mapping._extra_content, partial(_head_name, auto))


def _register_types(tables: str, module: ModuleType) -> None:
    """Give signed types the entries of stock types in the tables whose names begin so."""
    for name, table in vars(module).items():
        if name.startswith(tables) and isinstance(table, dict):
            table.update({SIGNED + kind: entry for kind, entry in table.items() if not is_signed(kind)})


def _register_kernels(home: str, module: ModuleType) -> None:
    """Import the file of `hf_bidir.kernels` that enters faster paths in the tables of this module."""
    import_module(f"hf_bidir.kernels.{home}")


_REGISTER: dict[str, Callable[[ModuleType], None]] = {
    "transformers.models.auto.configuration_auto": _register_configs,
    "transformers.models.auto.modeling_auto": _register_heads,
    "hf_bidir.modeling.attention": partial(_register_kernels, "fused_path"),
    "hf_bidir.modeling.signed_layers": partial(_register_kernels, "backends"),
    "peft.utils": partial(_register_types, "TRANSFORMERS_MODELS_TO_"),  # modules that are adapted by default
}


class _Registering(MetaPathFinder):
    """Registers right after a module is imported, so that `import hf_bidir` imports neither it nor torch."""

    def find_spec(self, name: str, path: Any, target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name in _REGISTER else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _REGISTER[name](module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def register(without_stock: dict[str, str]) -> None:
    """Register now, or as soon as the modules are imported.

    Args:
        without_stock: the modules of signed classes that have no stock counterpart, by name; the config of the model
            type `bidir_x` is `BidirXConfig`.
    """
    _WITHOUT_STOCK.update(without_stock)
    for name, then in _REGISTER.items():
        if name in sys.modules:
            then(sys.modules[name])
    sys.meta_path.insert(0, _Registering())
