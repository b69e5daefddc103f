"""A task: the dataclasses of its options, and what trains a model with them."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from transformers import HfArgumentParser

from hf_bidir.common.errors import as_input_error
from hf_bidir.finetune.arguments import RunArguments


@dataclass(frozen=True)
class Task:
    """Something a model can be trained for; call it with the options by name.

    Attributes:
        options: dataclasses, of which the last describes the run.
        train: trains with an instance of each and with the options that were given, and returns all_results.json.
    """

    options: tuple[type, ...]
    train: Callable[..., dict[str, Any]]

    def __call__(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Train with the options that are given, by name, and the defaults of the others.

        Returns:
            The numbers of all_results.json.

        Raises:
            InputError: an option, the data or the checkpoint cannot be used.
        """
        given = self.plain(given)
        return self.train(*self.read(given), given)

    def read(self, given: Mapping[str, Any]) -> tuple[Any, ...]:
        """An instance of each dataclass; InputError for a name that none of them has, or a value that one refuses."""
        with as_input_error():
            return HfArgumentParser(self.options).parse_dict(self.plain(given))

    def run_options(self, given: Mapping[str, Any]) -> RunArguments:
        """The options of the run itself."""
        return self.read(given)[-1]

    def plain(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options as the dataclasses hold them: paths as strings, and one file in a list where many may come."""
        known = [field for options in self.options for field in fields(options)]
        lists = {field.name for field in known if str(field.type).startswith("list[")}
        plain = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in given.items()}
        return {name: [value] if name in lists and isinstance(value, str) else value for name, value in plain.items()}
