"""`python -m hf_bidir` is `hf-bidir`, for programs that start modules, such as `accelerate launch -m`."""

from hf_bidir.cli import app

app(prog_name="hf-bidir")
