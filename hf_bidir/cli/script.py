"""The command line of a training script: one YAML recipe, options that win over it, help on one screen."""

import json
import os
import re
import shutil
import sys
from argparse import (
    SUPPRESS,
    Action,
    ArgumentDefaultsHelpFormatter,
    ArgumentParser,
    Namespace,
    RawDescriptionHelpFormatter,
)
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from textwrap import shorten
from typing import Any

import yaml

from hf_bidir.common.errors import InputError, as_input_error, did_you_mean

COMMON_RUN_OPTIONS = {
    *("output_dir", "num_train_epochs", "max_steps", "learning_rate", "per_device_train_batch_size"),
    *("early_stopping_patience", "seed", "overwrite_output_dir"),
}
FROM_SCRATCH = "From scratch: "  # prefix in the help of options that shape a new model
Options = Sequence[str] | Mapping[str, Any] | None


def parse(dataclasses: Iterable[type], options: Options = None, description: str | None = None) -> tuple[Any, ...]:
    """Read `[recipe.yaml] [--option value ...]` into an instance of each dataclass.

    A recipe's keys are the options without dashes; an option on the command line wins over the recipe. The instance of
    `RunArguments`, if there is one, keeps what was given as `typed`.

    Args:
        dataclasses: such as `(TextDataArguments, ModelArguments, RunArguments)`.
        options: the words of a command line, or options by name; by default `sys.argv[1:]`.
        description: the text above the options in `--help`; its paragraphs after the first are examples.

    Raises:
        InputError: the recipe is missing, is not a mapping or has an unknown key, or an option is unknown or invalid.
    """
    dataclasses = tuple(dataclasses)
    typed = typed_options(parser_of(dataclasses, description), options)
    with as_input_error():
        chosen = [
            {field.name: typed[field.name] for field in fields(kind) if field.name in typed} for kind in dataclasses
        ]
        instances = tuple(kind(**values) for kind, values in zip(dataclasses, chosen, strict=True))
    for instance in instances:
        if hasattr(instance, "typed"):
            instance.typed = typed
    return instances


def parser_of(dataclasses: tuple[type, ...], description: str | None = None) -> ArgumentParser:
    """A parser of the fields of dataclasses; actions that are seldom needed have a true `rare`."""
    from transformers import HfArgumentParser, Seq2SeqTrainingArguments
    from transformers.hf_argparser import string_to_bool

    parser = HfArgumentParser(dataclasses, **parser_words(description))
    rare = set(Seq2SeqTrainingArguments.__dataclass_fields__) - COMMON_RUN_OPTIONS
    for action in parser._actions:
        action.rare = action.dest in rare
        if action.type is string_to_bool:  # transformers requires a value where the default is None
            action.nargs, action.const = "?", True
    return parser


def parser_words(description: str | None) -> dict[str, Any]:
    """What parsers of scripts have in common."""
    words = {"usage": "%(prog)s [recipe.yaml] [--option value ...]", "description": description or ""}
    return words | {"formatter_class": FullHelp, "allow_abbrev": False, "add_help": False}


def typed_options(parser: ArgumentParser, options: Options = None) -> dict[str, Any]:
    """The options that were given, by name, those of a recipe too; prints the help where it is asked for.

    Raises:
        InputError: as `parse`.
    """
    known = sorted(action.dest for action in parser._actions)
    parser.add_argument("-h", "--help", action=ShortHelp)
    full = "show every option, with its full help"
    parser.add_argument("--help-all", "--help_all", action="help", default=SUPPRESS, help=full)
    parser.add_argument("recipe", nargs="?", default=SUPPRESS, help="YAML file of options")
    if isinstance(options, Mapping):
        argv = _words(options, known, "the call")
    else:
        argv = list(sys.argv[1:] if options is None else options)
        if argv and not argv[0].startswith("-"):
            # the recipe's options come first: argparse converts and checks both, and the last value wins
            argv = _words(read_recipe(argv[0]), known, argv[0]) + argv[1:]
    unset = object()
    parsed, unknown = parser.parse_known_args(argv, Namespace(**{action.dest: unset for action in parser._actions}))
    if unknown:
        names = ["--help", "--help-all", *(f"--{name}" for name in known)]
        hint = did_you_mean(unknown[0].partition("=")[0], names) or " See --help for the options."
        raise InputError(f"unknown option: {' '.join(unknown)}.{hint}")
    typed = {name: value for name, value in vars(parsed).items() if value is not unset}
    if "recipe" in typed:
        raise InputError(f"expected the recipe before all options; {typed['recipe']!r} came after one")
    return typed


def read_recipe(path: str | os.PathLike) -> dict[str, Any]:
    """The options in a YAML recipe, by name; InputError if there is no such file, or it holds something else."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"expected a YAML recipe at {path}; the file does not exist")
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"expected a YAML recipe at {path}; cannot read it: {error}") from error
    if not isinstance(recipe, dict):
        raise InputError(f"expected `option: value` lines in {path}; got a {type(recipe).__name__}")
    return recipe


def _words(options: Mapping[str, Any], known: list[str], where: str) -> list[str]:
    """Options as words of a command line; None keeps the default."""
    words: list[str] = []
    for key, value in options.items():
        if key not in known:
            hint = did_you_mean(str(key), known) or " See --help for the options."
            raise InputError(f"{where} has an unknown option {key!r}.{hint}")
        if isinstance(value, list | tuple):
            words += [f"--{key}", *map(str, value)]
        elif value is not None:
            words.append(f"--{key}={json.dumps(value) if isinstance(value, dict | bool) else value}")
    return words


def run_script(main: Callable[[], object]) -> None:
    """Run a script's `main`; turn an `InputError` into one line on stderr and exit code 2, Ctrl-C into 130.

    With several processes, only the first one prints.
    """
    try:
        main()
        sys.stdout.flush()
    except InputError as error:
        _exit(2, f"error: {error}")
    except BrokenPipeError:  # the reader of the output, such as head, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        again = "run the same command again to continue from the last checkpoint, or else from the start"
        _exit(130, f"interrupted; {again}")
    finally:
        torch = sys.modules.get("torch")
        if torch and torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _exit(code: int, line: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(line, file=sys.stderr)
    sys.exit(code)


class FullHelp(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    """Shows one spelling and the default of every option, and the description unwrapped."""

    def _get_help_string(self, action: Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)

    def _format_action_invocation(self, action: Action) -> str:
        name = next((name for name in action.option_strings if name.startswith("--")), action.dest)
        if action.nargs in (0, "?") or not action.option_strings:
            return name
        kind = {int: "N", float: "X"}.get(action.type, "VALUE")  # type: ignore[call-overload]
        return f"{name} {kind} ..." if action.nargs in ("+", "*") else f"{name} {kind}"


class ShortHelp(Action):
    """`--help`: the description, its first example, and one line for each option but rare ones of the Trainer."""

    def __init__(self, option_strings: list[str], dest: str, **_: object) -> None:
        super().__init__(option_strings, dest=SUPPRESS, default=SUPPRESS, nargs=0, help="show this message")

    def __call__(self, parser: Any, *_: object) -> None:
        text, *examples = (parser.description or "").strip().split("\n\n")
        lines = [parser.format_usage().strip(), "", text, *(["", examples[0]] if examples else [])]
        for group in parser._action_groups:
            shown = [a for a in group._group_actions if a.option_strings and not getattr(a, "rare", False)]
            shown = [action for action in shown if not (action.default is True and action.nargs == "?")]  # already on
            new = [action for action in shown if str(action.help).startswith(FROM_SCRATCH)]
            for title, actions in ((group.title, [a for a in shown if a not in new]), ("from scratch", new)):
                lines += ["", f"{title}:", *map(_line, actions)] if actions else []
        print(*lines, "", "--help-all shows the full help of these and of all Trainer options.", sep="\n")
        parser.exit()


def _line(action: Action) -> str:
    """The option and the first clause of its help, with the default."""
    clause = re.split(r"[.;](?:\s|$)", str(action.help).removeprefix(FROM_SCRATCH).strip())[0]
    clause = f"switch off: {clause}" if action.option_strings[0].startswith("--no_") else clause
    if action.choices and not all(str(choice) in clause for choice in action.choices):
        clause += f" ({', '.join(map(str, action.choices))})"
    default = "" if action.default in (None, True, False, SUPPRESS) else f" [{action.default}]"
    room = max(shutil.get_terminal_size().columns - len(default) - 36, 20)
    name = FullHelp("")._format_action_invocation(action)
    return f"  {name:<32} {shorten(clause[:1].upper() + clause[1:], room, placeholder=' …')}{default}"
