"""The common part of all training scripts: read the command line, train, write the model card."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hf_bidir.cli.recipe import read_command_line
from hf_bidir.common.errors import InputError
from hf_bidir.finetune.task import Task
from hf_bidir.hub.card import write_card


def train(task: Task, argv: Sequence[str] | None, description: str | None) -> dict[str, Any]:
    """Train with the options of the command line and write the model card.

    Args:
        task, argv, description: as in `read_command_line`.

    Returns:
        The numbers of all_results.json.

    Raises:
        InputError: an option, the data or the checkpoint is unusable.
    """
    return train_with_card(task, read_command_line(task.options, argv, description or ""))


def train_with_card(task: Task, given: Mapping[str, Any]) -> dict[str, Any]:
    """Train with these options and write the model card; result and errors as in `train`."""
    *options, args = task.read(given)
    results = task.train(*options, args, task.plain(given))
    if args.should_save:
        print(f"Model card: {write_card(Path(args.output_dir))}")
    return results


def run_script(main: Callable[[], object]) -> None:
    """Run a script's `main`; turn an `InputError` into one line on stderr and exit code 2, Ctrl-C into 130.

    With several processes, only the first one prints.
    """
    try:
        main()
        sys.stdout.flush()
    except InputError as error:
        _say(f"error: {error}")
        sys.exit(2)
    except BrokenPipeError:  # the reader of the output, such as head, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        _say("interrupted; run the same command again to continue from the last checkpoint, or else from the start")
        sys.exit(130)
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _say(line: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(line, file=sys.stderr)
