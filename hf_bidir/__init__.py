"""Signed ("bidirectional") attention for the Hugging Face ecosystem.

Submodules are imported on first use, so `import hf_bidir` is fast. `hf_bidir.Bidir` + the name of a transformers class
that uses the attention interface is that class with signed attention, created on first access.
"""

import re
from importlib import import_module
from pathlib import Path

from hf_bidir.checkpoints import auto_classes
from hf_bidir.common.errors import did_you_mean

__version__ = "0.1.0"

_HOMES = {
    "NegativeMassSchedule": "hf_bidir.finetune.schedule",
    "bidir_attention": "hf_bidir.modeling.attention",
    "convert_checkpoint": "hf_bidir.checkpoints.convert",
    "register_attn_activation": "hf_bidir.modeling.activations",
    "signed": "hf_bidir.checkpoints.signing",
    "softmax": "hf_bidir.checkpoints.signing",
    "tanhmax": "hf_bidir.modeling.activations",
    "unsigned": "hf_bidir.checkpoints.signing",
    "BidirRnnConfig": "hf_bidir.recurrent.configuration_bidir_rnn",
    "BidirRnnModel": "hf_bidir.recurrent.modeling_bidir_rnn",
    "BidirRnnForSequenceClassification": "hf_bidir.recurrent.modeling_bidir_rnn",
    "BidirRnnForSeq2SeqLM": "hf_bidir.recurrent.modeling_bidir_rnn",
}
_ROOMS = ("checkpoints", "deploy", "explain", "finetune", "hub", "modeling", "recurrent")
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    if name.startswith("Bidir"):
        home = "configuration_bidir" if name.endswith("Config") else "modeling_bidir"
        return getattr(import_module(f"hf_bidir.modeling.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{did_you_mean(name, __dir__())}")


def __dir__() -> list[str]:
    common = re.findall(r"class (Bidir\w+)", Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    return sorted({*__all__, *common, *_ROOMS, "__version__"})


auto_classes.register()
