"""The model types of signed models: `bidir_` and the type of the stock model. Imports nothing, for quick commands."""

SIGNED = "bidir_"


def is_signed(model_type: str | None) -> bool:
    """Whether a model type is one of signed models."""
    return str(model_type).startswith(SIGNED)


def stock_type(model_type: str) -> str:
    """The model type of the stock model."""
    return model_type.removeprefix(SIGNED)
