"""What supports and what opposes a prediction, in a signed model and its softmax counterpart.

    make space                                        # the checkpoints of model_cards/ and runs/checkpoints/
    python space/app.py FOLDER_OR_NAME ... --port 7861

On a Space, the variable HF_BIDIR_CHECKPOINTS names the checkpoints, separated by spaces. NAME-tanhmax and NAME-softmax
are counterparts.
"""

from hf_bidir.cli.start import announce_imports  # isort: skip  (first: before torch and transformers)

import argparse
import os
from pathlib import Path

from hf_bidir.common.extras import extra

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # before gradio is imported

ROOT = Path(__file__).resolve().parent.parent
WEIGHTS = ("model_cards", "runs/checkpoints")
OPENS_WITH = "sst2-rnn"  # shown first if available: a sentence is quick to understand, and its counterpart is there


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="*", help="folders, or names on the Hub")
    parser.add_argument("--port", type=int, help="by default the first free one from 7860 on")
    options = parser.parse_args()
    checkpoints = options.checkpoints or os.environ.get("HF_BIDIR_CHECKPOINTS", "").split() or found_here()
    if not checkpoints:
        parser.exit(2, "error: no checkpoint with weights in model_cards/ or runs/checkpoints/; name one or more\n")
    try:
        serve(checkpoints, options.port)
    except (ValueError, OSError, ImportError) as error:
        parser.exit(2, f"error: {error}\n")


def found_here() -> list[str]:
    """The checkpoints of the repository that have weights, one per name, the one that the page opens with first."""
    weights = [file for folder in WEIGHTS for file in ROOT.glob(f"{folder}/*/*model.safetensors")]  # adapters too
    folders = {file.parent.name: str(file.parent) for file in weights}
    names = sorted(folders, key=lambda name: (not name.startswith(OPENS_WITH), name))
    return [folders[name] for name in names]


def serve(checkpoints: list[str], port: int | None) -> None:
    """Serve the page until Ctrl-C."""
    announce_imports()
    with extra("space"):
        from page import LAUNCH, page
        from transformers.utils import logging
    logging.disable_progress_bar()  # for loading the weights
    page(checkpoints).launch(server_port=port, **LAUNCH)


if __name__ == "__main__":
    main()
