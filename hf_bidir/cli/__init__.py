"""`hf-bidir`: one thin sub-command per capability; none imports torch before it runs."""

from . import explain, checkpoints, deploy, hub  # noqa: F401, I001  (imported in the order of --help)
from .app import app

__all__ = ["app"]
