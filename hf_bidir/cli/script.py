"""What every training script does: read its command line, train, and describe the result."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from hf_bidir.cli.recipe import read_command_line
from hf_bidir.common.errors import InputError
from hf_bidir.finetune.task import Task
from hf_bidir.hub.model_card import write_card


def train(task: Task, argv: Sequence[str] | None, description: str | None) -> dict[str, Any]:
    """Train as the command line says, and write the model card.

    Args:
        task, argv, description: as in `read_command_line`.

    Returns:
        The numbers of all_results.json.

    Raises:
        InputError: an option, the data or the checkpoint cannot be used.
    """
    given = read_command_line(task.options, argv, description or "")
    *options, args = task.read(given)
    results = task.train(*options, args, given)
    if args.should_save:
        print(f"Described in {write_card(Path(args.output_dir))}.")
    return results


def run_script(main: Callable[[], object]) -> None:
    """Run a script's `main`; an `InputError` becomes one line on stderr, of the first process, and exit 2.

    So does Ctrl-C, with the exit status 130 that shells give it.
    """
    try:
        main()
    except InputError as error:
        _say(f"error: {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        _say("interrupted; the same command goes on from the last checkpoint")
        sys.exit(130)
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _say(line: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(line, file=sys.stderr)
