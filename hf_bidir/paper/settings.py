"""How the experiments are run: where, on which data, how many seeds, and how much of everything is measured."""

from dataclasses import dataclass
from pathlib import Path

import torch

from hf_bidir.paper.experiments import Experiment
from hf_bidir.paper.measures import QUICK, Amount

GRADED_BY_PEOPLE = {"sst": "sst_trees/test.parquet"}  # by experiment, words of its test texts with people's grades
QUICK_ROWS = {
    "recurrent": {"train": 1500, "validation": 500, "test": 1000},
    "bert": {"train": 200, "validation": 100, "test": 200},
    "images": {"train": 1500, "validation": 500, "test": 1000},
}


@dataclass(frozen=True)
class Settings:
    """How the experiments are run.

    Attributes:
        root: the folder of runs and report.
        data_dir: a folder with a sub-folder per data set; None reads the Hub.
        seeds: how many, from 0 on.
        quick: little data, one learning rate.
        jobs: processes.
        as_published: also the paper's own protocol.
        minilm: the folder of MiniLM; None reads the Hub.
    """

    root: Path
    data_dir: Path | None = None
    seeds: int = 5
    quick: bool = False
    jobs: int = 2
    as_published: bool = False
    minilm: Path | None = None

    @property
    def amount(self) -> Amount:
        return QUICK if self.quick else Amount()

    @property
    def command(self) -> str:
        """What makes the same report, but for the names of experiments and of folders."""
        options = {
            "--data-dir DATA": self.data_dir, "--minilm MINILM": self.minilm, "--quick": self.quick,
            "--as-published": self.as_published, f"--seeds {self.seeds}": True,
        }  # fmt: skip
        return " ".join(option for option, given in options.items() if given)

    def learning_rates(self, experiment: Experiment) -> list[float]:
        """Those that are tried."""
        rates = experiment.learning_rates
        return [rates[len(rates) // 2]] if self.quick else rates

    def seeds_of(self, experiment: Experiment) -> range:
        """Fewer of slow experiments where there is no GPU."""
        most = None if torch.cuda.is_available() else experiment.seeds
        return range(min(self.seeds, most or self.seeds))

    def rows_of(self, experiment: Experiment) -> dict[str, int]:
        """The most rows of a split; none named where all are used."""
        if self.quick:
            return QUICK_ROWS[experiment.kind]
        return {} if torch.cuda.is_available() else experiment.rows

    def graded(self, experiment: Experiment) -> Path | None:
        """The file in which people grade the words of an experiment, if there is one."""
        if self.data_dir is None or experiment.name not in GRADED_BY_PEOPLE:
            return None
        file = self.data_dir / GRADED_BY_PEOPLE[experiment.name]
        return file if file.is_file() else None
