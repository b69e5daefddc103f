"""Registers signed classes with transformers' Auto classes by name: each is created only when it is looked up.

`AutoConfig.register` takes a class, and there is one for each of some 500 model types. But the Auto classes keep names
of classes by model type, and modules where these are found. Signed types are entered there with signed names, and with
`hf_bidir` as their module, whose `__getattr__` creates a class.

Tables of other libraries by model type get the signed types as soon as the library is imported.
"""

import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from hf_bidir.common.model_types import SIGNED, is_signed

RECURRENT = {  # signed classes that have no stock counterpart
    "AutoConfig": "BidirRnnConfig",
    "AutoModel": "BidirRnnModel",
    "AutoModelForSequenceClassification": "BidirRnnForSequenceClassification",
    "AutoModelForSeq2SeqLM": "BidirRnnForSeq2SeqLM",
}
RECURRENT_TYPE = f"{SIGNED}rnn"


def _register_configs(configuration_auto: ModuleType) -> None:
    mapping = configuration_auto.CONFIG_MAPPING
    names = {SIGNED + kind: f"Bidir{name}" for kind, name in mapping._mapping.items()}
    names[RECURRENT_TYPE] = RECURRENT["AutoConfig"]
    mapping._mapping = mapping._mapping | names  # a copy: tables of tokenizers are made from the stock one
    _find_here(mapping, names)


def _register_heads(modeling_auto: ModuleType) -> None:
    import_module("hf_bidir.modeling.compat").register_heads()
    for auto in filter(lambda name: name.startswith("Auto"), modeling_auto.__all__):
        mapping = getattr(getattr(modeling_auto, auto), "_model_mapping", None)
        if mapping is None:
            continue
        heads, config_names = mapping._model_mapping, mapping._config_mapping.items()
        kinds = {f"Bidir{name}": SIGNED + kind for kind, name in config_names if SIGNED + kind in heads}
        if auto in RECURRENT:
            heads[RECURRENT_TYPE] = RECURRENT[auto]
            kinds[RECURRENT["AutoConfig"]] = RECURRENT_TYPE
        mapping._reverse_config_mapping |= kinds
        _find_here(mapping, kinds.values())


def _find_here(mapping: Any, kinds: Iterable[str]) -> None:
    """Let the classes of these model types be found in this package."""
    modules = (kind.replace("-", "_") for kind in kinds)
    mapping._modules |= dict.fromkeys(modules, sys.modules["hf_bidir"])


def _register_adapters(peft_utils: ModuleType) -> None:
    """Give signed types the modules that peft adapts by default in stock types."""
    for name, table in vars(peft_utils).items():
        if name.startswith("TRANSFORMERS_MODELS_TO_"):
            table.update({SIGNED + kind: entry for kind, entry in table.items() if not is_signed(kind)})


_REGISTER: dict[str, Callable[[ModuleType], Any]] = {
    "transformers.models.auto.configuration_auto": _register_configs,
    "transformers.models.auto.modeling_auto": _register_heads,
    "peft.utils": _register_adapters,
    # faster paths, which enter themselves in the tables of these modules
    "hf_bidir.modeling.attention": lambda module: import_module("hf_bidir.kernels.fused_path"),
    "hf_bidir.modeling.signed_layers": lambda module: import_module("hf_bidir.kernels.backends"),
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


def register() -> None:
    """Register now, or as soon as the modules are imported."""
    for name, then in _REGISTER.items():
        if name in sys.modules:
            then(sys.modules[name])
    sys.meta_path.insert(0, _Registering())
