"""Record the options of all scripts in training/options.json, from which they answer `--help` and mistakes at once.

python -m training.record_options           # make tables does so
"""

import json
from argparse import Action
from pathlib import Path
from typing import Any

import transformers

from hf_bidir.cli.script import parser_of
from hf_bidir.cli.start import RECORD
from hf_bidir.common.files import replacing
from training import (
    causal_lm,
    distill,
    image_classification,
    masked_lm,
    recurrent_classification,
    seq2seq,
    text_classification,
)

FILE = Path(__file__).with_name(RECORD)
SCRIPTS = (
    causal_lm, distill, image_classification, masked_lm, recurrent_classification, seq2seq, text_classification,
)  # fmt: skip


def record() -> dict[str, Any]:
    """The scripts with their dataclasses, these with the numbers of their options, and every option once."""
    kinds = {kind.__name__: kind for script in SCRIPTS for kind in script.OPTIONS}
    described = {name: [*map(_described, parser_of((kind,))._actions)] for name, kind in kinds.items()}
    options = list(dict.fromkeys(json.dumps(one) for found in described.values() for one in found))
    numbers = {name: [options.index(json.dumps(one)) for one in found] for name, found in described.items()}
    return {
        "transformers": transformers.__version__,
        "scripts": {Path(script.__file__).name: [kind.__name__ for kind in script.OPTIONS] for script in SCRIPTS},
        "groups": {name: [kind._argument_group_name, numbers[name]] for name, kind in kinds.items()},
        "options": [*map(json.loads, options)],
    }


def _described(action: Action) -> dict[str, Any]:
    """What help and the check of a command line need of an option."""
    plain = (bool, int, float, str, list, type(None))
    return {
        "flags": action.option_strings,
        "dest": action.dest,
        "nargs": action.nargs,
        "type": getattr(action.type, "__name__", None),
        "choices": None if action.choices is None else [*map(str, action.choices)],
        "default": action.default if isinstance(action.default, plain) else str(action.default),
        "help": action.help,
        "rare": action.rare,  # type: ignore[attr-defined]
    }


def main() -> None:
    """Save the record."""
    with replacing(FILE) as temporary:
        temporary.write_text(json.dumps(record(), indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
