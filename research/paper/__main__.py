"""`python -m research.paper`."""

from hf_bidir.cli.script import run_script
from research.paper.run import main

if __name__ == "__main__":
    run_script(main)
