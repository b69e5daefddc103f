"""`hf-bidir`: one thin sub-command per capability, none of which imports torch before it runs."""

from hf_bidir.cli import checkpoints, explain, hub, models, experiments, doctor  # noqa: F401, I001  (each adds its commands, in this order)
from hf_bidir.cli.app import app

__all__ = ["app"]
