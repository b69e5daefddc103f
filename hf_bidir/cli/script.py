"""The command line of a training script: one YAML recipe, and options that win over it."""

import json
import os
import sys
from argparse import SUPPRESS, Action, ArgumentDefaultsHelpFormatter, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from hf_bidir.common.errors import InputError, as_input_error, did_you_mean

# of the options of the Trainer, those that `--help` shows
COMMON_RUN_OPTIONS = {
    *("output_dir", "num_train_epochs", "max_steps", "learning_rate", "per_device_train_batch_size"),
    *("early_stopping_patience", "seed", "overwrite_output_dir"),
}
MORE_OPTIONS = (
    "All other options of transformers.TrainingArguments work too: "
    "https://huggingface.co/docs/transformers/main_classes/trainer"
)
UNSET = object()
Options = Sequence[str] | Mapping[str, Any] | None


class Help(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    """Shows the defaults of options, and the description unwrapped."""

    def _get_help_string(self, action: Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


def parse(dataclasses: Iterable[type], options: Options = None, description: str | None = None) -> tuple[Any, ...]:
    """Read `[recipe.yaml] [--option value ...]` into an instance of each dataclass.

    A recipe's keys are the options without dashes; an option on the command line wins over the recipe. The instance of
    `RunArguments`, if there is one, keeps what was given as `typed`.

    Args:
        dataclasses: such as `(TextDataArguments, ModelArguments, RunArguments)`.
        options: the words of a command line, or options by name; by default `sys.argv[1:]`.
        description: the text above the options in `--help`.

    Raises:
        InputError: the recipe is missing, is not a mapping or has an unknown key, or an option is unknown or invalid.
    """
    dataclasses = tuple(dataclasses)
    parser = parser_of(dataclasses, description)
    known = [action.dest for action in parser._actions]
    if isinstance(options, Mapping):
        words = as_words(options, known, "the call")
    else:
        words = list(sys.argv[1:] if options is None else options)
        if words and not words[0].startswith("-"):
            # argparse converts and checks the recipe's options too; the last value wins
            words = as_words(read_recipe(words[0]), known, words[0]) + words[1:]
    unset = Namespace(**dict.fromkeys(known, UNSET))
    parsed, unknown = parser.parse_known_args(words, unset)
    check_known(unknown, known)
    typed = {name: value for name, value in vars(parsed).items() if value is not UNSET}
    instances = []
    for kind in dataclasses:
        values = {field.name: typed[field.name] for field in fields(kind) if field.name in typed}
        with as_input_error():
            instances.append(kind(**values))
        if hasattr(instances[-1], "typed"):
            instances[-1].typed = typed
    return tuple(instances)


def parser_of(dataclasses: tuple[type, ...], description: str | None = None) -> Any:
    """The `HfArgumentParser` of the dataclasses; its `--help` leaves out rare options of the Trainer."""
    from transformers import HfArgumentParser, Seq2SeqTrainingArguments
    from transformers.hf_argparser import string_to_bool

    parser = HfArgumentParser(
        dataclasses,
        usage="%(prog)s [recipe.yaml] [--option value ...]",
        description=description,
        epilog=MORE_OPTIONS,
        formatter_class=Help,
        allow_abbrev=False,
    )
    rare = set(Seq2SeqTrainingArguments.__dataclass_fields__) - COMMON_RUN_OPTIONS
    for action in parser._actions:
        action.option_strings = action.option_strings[:1]  # both spellings of a name work, one is shown
        if action.dest in rare:
            action.help = SUPPRESS
        if action.type is string_to_bool:  # transformers requires a value where the default is None
            action.nargs, action.const = "?", True
        elif action.nargs != 0 and not action.choices:
            action.metavar = "VALUE"
    return parser


def check_known(words: Sequence[str], known: Sequence[str]) -> None:
    """Raise InputError if the parser left words of the command line."""
    if not words:
        return
    if not words[0].startswith("-"):
        raise InputError(f"expected the recipe before all options; {words[0]!r} came after one")
    name = words[0].partition("=")[0]
    hint = did_you_mean(name, ["--help", *(f"--{option}" for option in known)]) or " See --help for the options."
    raise InputError(f"unknown option: {' '.join(words)}.{hint}")


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


def as_words(options: Mapping[str, Any], known: Sequence[str], where: str) -> list[str]:
    """Options as words of a command line; None keeps the default. InputError for a name that is not `known`."""
    words: list[str] = []
    for name, value in options.items():
        if name not in known:
            hint = did_you_mean(str(name), list(known)) or " See --help for the options."
            raise InputError(f"{where} has an unknown option {name!r}.{hint}")
        if isinstance(value, list | tuple):
            words += [f"--{name}", *map(str, value)]
        elif isinstance(value, dict | bool):
            words.append(f"--{name}={json.dumps(value)}")
        elif value is not None:
            words.append(f"--{name}={value}")
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
