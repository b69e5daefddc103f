"""`hf-bidir`: one thin sub-command per capability, none of which imports torch before it runs."""

from hf_bidir.cli import checkpoints, experiments, explain, hub  # noqa: F401  (each adds its commands)
from hf_bidir.cli.app import app

__all__ = ["app"]
