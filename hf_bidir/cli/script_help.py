"""The help of a training script: `--help` fits on one screen, `--help-all` lists every Trainer option."""

import re
import shutil
from argparse import (
    SUPPRESS,
    Action,
    ArgumentDefaultsHelpFormatter,
    ArgumentParser,
    Namespace,
    RawDescriptionHelpFormatter,
)
from textwrap import shorten
from typing import Any

from transformers import Seq2SeqTrainingArguments

COMMON_RUN_OPTIONS = (
    "output_dir",
    "num_train_epochs",
    "max_steps",
    "learning_rate",
    "per_device_train_batch_size",
    "early_stopping_patience",
    "seed",
    "overwrite_output_dir",
)
FROM_SCRATCH = "From scratch: "  # prefix in the help of options that shape a new model
NAME_WIDTH = 32  # width of the column of names


class FullHelp(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    """Shows one spelling and the default of every option, and the description unwrapped."""

    def _get_help_string(self, action: Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)

    def _format_action_invocation(self, action: Action) -> str:
        return " ".join(filter(None, [_name(action), _value(action)]))


class ShortHelp(Action):
    """`--help`: the description, its first example, and one line for each common option."""

    def __init__(self, option_strings: list[str], dest: str, **_: object) -> None:
        super().__init__(option_strings, dest=SUPPRESS, default=SUPPRESS, nargs=0, help="show this message")

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: object, option: str | None = None) -> None:
        print(short_help(parser))
        parser.exit()


def short_help(parser: ArgumentParser) -> str:
    """The text of `--help`: one line per option, as wide as the terminal."""
    width = shutil.get_terminal_size().columns
    description, *examples = (parser.description or "").strip().split("\n\n")
    lines = [parser.format_usage().strip(), "", description, *([] if not examples else ["", examples[0]])]
    for group in parser._action_groups:
        shown = [action for action in group._group_actions if _is_shown(action)]
        new = [action for action in shown if str(action.help).startswith(FROM_SCRATCH)]
        for title, actions in ((group.title, [a for a in shown if a not in new]), ("from scratch", new)):
            lines += ["", f"{title}:", *(_line(action, width) for action in actions)] if actions else []
    return "\n".join(
        [*lines, "", "--help-all shows the full help of these and of all Trainer options, with more examples."]
    )


def _is_shown(action: Action) -> bool:
    """False for rare Trainer options and for the switch of a pair that repeats the default."""
    inherited = action.dest in Seq2SeqTrainingArguments.__dataclass_fields__ and action.dest not in COMMON_RUN_OPTIONS
    return bool(action.option_strings) and action.help is not SUPPRESS and not inherited and not _is_on(action)


def _is_on(action: Action) -> bool:
    return action.default is True and action.nargs == "?"


def _line(action: Action, width: int) -> str:
    """The option and the first clause of its help, with the default."""
    clause = re.split(r"[.;](?:\s|$)", str(action.help).removeprefix(FROM_SCRATCH).strip())[0]
    clause = f"switch off: {clause}" if action.option_strings[0].startswith("--no_") else clause
    if action.choices and not all(str(choice) in clause for choice in action.choices):
        clause += f" ({', '.join(map(str, action.choices))})"
    default = "" if action.default in (None, True, False, SUPPRESS) else f" [{action.default}]"
    clause = clause[:1].upper() + clause[1:]
    text = shorten(clause, max(width - NAME_WIDTH - 4 - len(default), 20), placeholder=" …") + default
    return f"  {' '.join(filter(None, [_name(action), _value(action)])):<{NAME_WIDTH}} {text}"


def _name(action: Action) -> str:
    """The first spelling; transformers' parser also accepts dashes within names."""
    return next((name for name in action.option_strings if name.startswith("--")), action.dest)


def _value(action: Action) -> str:
    if action.nargs in (0, "?") or not action.option_strings:
        return ""
    kinds: dict[Any, str] = {int: "N", float: "X"}
    kind = kinds.get(action.type, "VALUE")
    return f"{kind} ..." if action.nargs in ("+", "*") else kind
