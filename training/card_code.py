"""Write this version's model code into the folders of model_cards/ that hold weights:

    python -m training.card_code

A folder that is copied out of the repository then loads with transformers alone and trust_remote_code=True. The files
are copies; tests/hub/test_card_code.py compares them.
"""

import hf_bidir.cli.start  # isort: skip  # noqa: F401  (first: before torch and transformers)

from pathlib import Path

from hf_bidir.hub.push import write_code

CARDS = Path(__file__).resolve().parent.parent / "model_cards"


def main() -> None:
    for weights in sorted(CARDS.glob("*/model.safetensors")):
        write_code(weights.parent)
        print(f"Written: {len(list(weights.parent.glob('*.py')))} files in {weights.parent}")


if __name__ == "__main__":
    main()
