"""`hf-bidir`: one thin sub-command per capability; none imports torch before it runs."""

from hf_bidir.cli import checkpoints, deploy, explain, hub  # noqa: F401  (imported in the order of --help)
from hf_bidir.cli.app import app

__all__ = ["app"]
