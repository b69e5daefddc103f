"""The command line of a training script: one YAML recipe, and options that win over it."""

import json
import os
import sys
from argparse import ArgumentDefaultsHelpFormatter, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from hf_bidir.common.errors import InputError, as_input_error, did_you_mean

INTERRUPTED = "interrupted; run the same command again to continue from what was saved, or the start"
UNSET = object()
Options = Sequence[str] | Mapping[str, Any] | None


class Help(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    """Shows the defaults of options, and the description unwrapped."""


def parse(dataclasses: Iterable[type], options: Options = None, description: str | None = None) -> tuple[Any, ...]:
    """Read `[recipe.yaml] [--option value ...]` into an instance of each dataclass.

    A recipe's keys are the options without dashes; an option on the command line wins over the recipe. The instance of
    `RunArguments`, if there is one, keeps what was given as `typed`.

    Args:
        dataclasses: such as `(TextDataArguments, ModelArguments, RunArguments)`.
        options: the words of a command line, or options by name; by default `sys.argv[1:]`.
        description: the text above the options in `--help`.

    Raises:
        InputError: the recipe is missing or is not a mapping, or an option is unknown or invalid.
    """
    dataclasses = tuple(dataclasses)
    parser = _parser(dataclasses, description)
    names = [action.dest for action in parser._actions]
    words, unknown = parser.parse_known_args(_words(options), Namespace(**dict.fromkeys(names, UNSET)))
    if unknown:
        name = unknown[0].partition("=")[0]
        hint = did_you_mean(name, ["--help", *(f"--{known}" for known in names)])
        raise InputError(f"unknown option: {' '.join(unknown)}.{hint or ' See --help for the options.'}")
    typed = {name: value for name, value in vars(words).items() if value is not UNSET}
    instances = []
    for kind in dataclasses:
        values = {field.name: typed[field.name] for field in fields(kind) if field.name in typed}
        with as_input_error():
            instances.append(kind(**values))
        if hasattr(instances[-1], "typed"):
            instances[-1].typed = typed
    return tuple(instances)


def _parser(dataclasses: tuple[type, ...], description: str | None) -> Any:
    """The `HfArgumentParser` of the dataclasses."""
    from transformers import HfArgumentParser
    from transformers.hf_argparser import string_to_bool

    usage = "%(prog)s [recipe.yaml] [--option value ...]"
    parser = HfArgumentParser(
        dataclasses, usage=usage, description=description, formatter_class=Help, allow_abbrev=False
    )
    for action in parser._actions:
        if action.type is string_to_bool:  # transformers requires a value where the default is None
            action.nargs, action.const = "?", True
    return parser


def _words(options: Options) -> list[str]:
    """The options as words of a command line, those of a recipe first: of two with one name the last wins."""
    if isinstance(options, Mapping):
        return _as_words(options)
    words = list(sys.argv[1:] if options is None else options)
    if words and not words[0].startswith("-"):
        return _as_words(read_recipe(words[0])) + words[1:]
    return words


def read_recipe(path: str | os.PathLike) -> dict[str, Any]:
    """The options in a YAML recipe or in the run.json of a run, by name; InputError for another file or none."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"expected a YAML recipe at {path}; the file does not exist")
    with as_input_error(f"expected a YAML recipe at {path}; cannot read it: ", yaml.YAMLError, UnicodeDecodeError):
        recipe = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    if not isinstance(recipe, dict):
        raise InputError(f"expected `option: value` lines in {path}; got a {type(recipe).__name__}")
    return recipe.get("recipe", recipe)


def _as_words(options: Mapping[str, Any]) -> list[str]:
    """Options as words of a command line; None keeps the default."""
    words: list[str] = []
    for name, value in options.items():
        if isinstance(value, list | tuple):
            words += [f"--{name}", *map(str, value)]
        elif isinstance(value, dict | bool):
            words.append(f"--{name}={json.dumps(value)}")
        elif value is not None:
            words.append(f"--{name}={value}")
    return words


def run_script(main: Callable[[], object]) -> None:
    """Run a script's `main`; turn an `InputError` into one line on stderr and exit code 2, Ctrl-C into 130."""
    try:
        main()
    except InputError as error:
        stop(2, f"error: {error}")
    except KeyboardInterrupt:
        stop(130, INTERRUPTED)


def stop(code: int, line: str) -> None:
    """Exit with a code after a line, which of several processes the first one prints."""
    if os.environ.get("RANK", "0") == "0":
        print(line, file=sys.stderr)
    sys.exit(code)
