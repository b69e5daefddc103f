"""What a command or script does before it imports torch and transformers, by importing this file first.

A script answers `--help` and mistakes in its options from the record beside it, options.json, because these imports
take seconds. The record is used where it was made with the installed transformers; `make tables` renews it. A package
that a script lacks is reported in one line, with the extra that installs it.

Deprecations in the code of libraries are not printed, because the user of a command cannot change that code. For
example, transformers imports torchao where it is installed, and torch 2.14 logs a deprecation about torchao 0.18.

Threads of GNU OpenMP spin while they wait for each other; here they sleep sooner. On cores that other programs use, a
step otherwise takes longer.
"""

import json
import logging
import os
import sys
import warnings
from argparse import ArgumentParser
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any

from hf_bidir.common.extras import missing

warnings.filterwarnings("ignore", category=FutureWarning)
logging.getLogger("torch.utils._pytree").addFilter(lambda record: "is deprecated" not in record.msg)
os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def answer() -> None:
    """End the process of a script with its help or an error, if that is what its command line gets."""
    script = Path(getattr(sys.modules["__main__"], "__file__", None) or os.devnull)
    if not script.with_name(RECORD).is_file():
        return
    sys.excepthook = name_extra
    record = json.loads(script.with_name(RECORD).read_text(encoding="utf-8"))
    if record["transformers"] == _installed() and script.name in record["scripts"]:
        from hf_bidir.cli.script import run_script, typed_options

        parser = recorded_parser(record, script.name, sys.modules["__main__"].__doc__)
        run_script(lambda: typed_options(parser))
    announce_imports()


def announce_imports() -> None:
    """Say on a terminal what takes the next seconds."""
    if sys.stderr.isatty() and "torch" not in sys.modules and os.environ.get("RANK", "0") == "0":
        print("importing torch and transformers …", file=sys.stderr)


def name_extra(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the command that installs a package which a script's imports lack, in place of a traceback."""
    reason = missing(error, "train") if isinstance(error, ModuleNotFoundError) else None
    if reason is None:
        sys.__excepthook__(kind, error, trace)
    else:
        print(f"error: {reason}", file=sys.stderr)


def recorded_parser(record: dict[str, Any], script: str, description: str | None) -> ArgumentParser:
    """The parser of a script, without the checks of values other than numbers."""
    from hf_bidir.cli.script import parser_words

    parser = ArgumentParser(**parser_words(description))
    for name in record["scripts"][script]:
        title, numbers = record["groups"][name]
        group = parser.add_argument_group(title)
        for one in map(record["options"].__getitem__, numbers):
            fields = {"help": one["help"], "default": one["default"], "dest": one["dest"]}
            if one["nargs"] == 0:
                action = group.add_argument(*one["flags"], action="store_false", **fields)
            else:
                fields |= {key: one[key] for key in ("nargs", "choices")} | {"type": NUMBERS.get(one["type"])}
                action = group.add_argument(*one["flags"], const=True if one["nargs"] == "?" else None, **fields)
            action.rare = one["rare"]  # type: ignore[attr-defined]
    return parser


def _installed() -> str | None:
    try:
        return version("transformers")
    except PackageNotFoundError:
        return None


RECORD, NUMBERS = "options.json", {"int": int, "float": float}
answer()
