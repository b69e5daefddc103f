"""`hf-bidir`: one thin sub-command per capability; none imports torch before it runs."""

from hf_bidir.cli import explain, checkpoints, deploy, hub  # noqa: F401, I001  (imported in the order of --help)
from hf_bidir.cli.app import app

__all__ = ["app"]
