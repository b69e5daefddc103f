"""The command line of a training script: one YAML recipe, and options that win over it."""

import json
import os
import sys
from argparse import SUPPRESS, Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool

from hf_bidir.cli.script_help import FullHelp, ShortHelp
from hf_bidir.common.errors import InputError, did_you_mean

_NOT_GIVEN = object()


def read_recipe(options: Iterable[type], recipe: str | os.PathLike) -> dict[str, Any]:
    """The options in a recipe, by name; `options` and errors as in `read_command_line`."""
    return read_command_line(options, [os.fspath(recipe)])


def read_command_line(
    options: Iterable[type], argv: Sequence[str] | None = None, description: str = ""
) -> dict[str, Any]:
    """Read `[recipe.yaml] [--option value ...]` into a dict of the given options.

    A recipe's keys are the options without dashes; an option on the command line wins over the recipe.

    Args:
        options: the dataclasses of a `Task`.
        argv: the arguments without the program's name; by default `sys.argv[1:]`.
        description: the text above the options in `--help`.

    Raises:
        InputError: the recipe is missing, is not a mapping or has an unknown key, or an option is unknown.
    """
    parser = HfArgumentParser(
        options,
        description=description,
        usage="%(prog)s [recipe.yaml] [--option value ...]",
        formatter_class=FullHelp,
        allow_abbrev=False,
        add_help=False,
    )
    for action in parser._actions:
        if action.type is string_to_bool:  # transformers demands a value where the default is None
            action.nargs, action.const = "?", True
    known = sorted(action.dest for action in parser._actions)
    parser.add_argument("-h", "--help", action=ShortHelp)
    help_all = {"action": "help", "default": SUPPRESS, "help": "show every option, with its full help"}
    parser.add_argument("--help-all", "--help_all", **help_all)
    parser.add_argument("recipe", nargs="?", default=SUPPRESS, help="YAML file of options")
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv and not argv[0].startswith("-"):
        # The recipe's options come first: argparse converts and checks both, and the last value wins.
        argv = _recipe_options(Path(argv[0]), known) + argv[1:]
    unset = Namespace(**{action.dest: _NOT_GIVEN for action in parser._actions})
    found, unknown = parser.parse_known_args(argv, unset)
    if unknown:
        names = ["--help", "--help-all", *(f"--{name}" for name in known)]
        hint = did_you_mean(unknown[0].partition("=")[0], names) or " See --help for the options."
        raise InputError(f"unknown option: {' '.join(unknown)}.{hint}")
    given = {name: value for name, value in vars(found).items() if value is not _NOT_GIVEN}
    if "recipe" in given:
        raise InputError(f"expected the recipe before all options; {given['recipe']!r} came after one")
    return given


def _recipe_options(path: Path, known: list[str]) -> list[str]:
    """The recipe's entries as command-line tokens; null keeps the default."""
    if not path.is_file():
        raise InputError(f"expected a YAML recipe at {path}; the file does not exist")
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"expected a YAML recipe at {path}; cannot read it: {error}") from error
    if not isinstance(recipe, dict):
        raise InputError(f"expected `option: value` lines in {path}; got a {type(recipe).__name__}")
    tokens: list[str] = []
    for key, value in recipe.items():
        if key not in known:
            hint = did_you_mean(str(key), known) or " See --help for the options."
            raise InputError(f"{path} has an unknown option {key!r}.{hint}")
        if value is not None:
            values = value if isinstance(value, list) else [value]
            tokens += [f"--{key}", *map(_token, values)]
    return tokens


def _token(value: object) -> str:
    return json.dumps(value) if isinstance(value, dict | bool) else str(value)
