"""A training task: the dataclasses of its options and its training function."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from transformers import HfArgumentParser

from hf_bidir.common.errors import as_input_error
from hf_bidir.finetune.arguments import RunArguments


@dataclass(frozen=True)
class Task:
    """A training task, called with options by name.

    Attributes:
        options: dataclasses; the last one has the run's options.
        train: takes an instance of each and the given options; returns the content of all_results.json.
    """

    options: tuple[type, ...]
    train: Callable[..., dict[str, Any]]

    def __call__(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Train with the given options and the defaults of all others.

        Returns:
            The content of all_results.json.

        Raises:
            InputError: an option, the data or the checkpoint cannot be used.
        """
        given = self.plain(given)
        return self.train(*self.read(given), given)

    def read(self, given: Mapping[str, Any]) -> tuple[Any, ...]:
        """An instance of each dataclass; InputError for an unknown name or an invalid value."""
        with as_input_error():
            return HfArgumentParser(self.options).parse_dict(self.plain(given))

    def run_options(self, given: Mapping[str, Any]) -> RunArguments:
        """The options of the run itself."""
        return self.read(given)[-1]

    def plain(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options in the dataclasses' types: paths as strings, one file as a list where several are allowed."""
        known = [field for options in self.options for field in fields(options)]
        lists = {field.name for field in known if str(field.type).startswith("list[")}
        plain = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in given.items()}
        return {name: [value] if name in lists and isinstance(value, str) else value for name, value in plain.items()}
