"""Publishing checkpoints: the model card, the check in a clean process, evaluation, and the upload to the Hub."""

from importlib import import_module

from hf_bidir.common.extras import extra

_HOMES = {  # imported when first used
    "PushError": "push",
    "build_model_card": "card",
    "evaluate_checkpoint": "evaluate",
    "isolated_forward": "isolated",
    "push_checkpoint": "push",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name in _HOMES:
        with extra("explain", "hub", "train"):  # evaluation needs all three
            return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
