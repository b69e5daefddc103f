"""Settings of a run of the experiments: folders, data, seeds, and the number of measured examples."""

from dataclasses import dataclass
from pathlib import Path

from research.paper.experiments import Experiment
from research.paper.measures import QUICK, Amount

RATE_SEEDS = 3
EXTENSIONS = 2  # of a grid of learning rates, at most
GRADED_BY_PEOPLE = {"sst": "sst_trees/test.parquet"}  # experiment -> file with human grades of words in its test texts
QUICK_ROWS = {
    "recurrent": {"train": 1500, "validation": 500, "test": 1000},
    "bert": {"train": 200, "validation": 100, "test": 200},
    "images": {"train": 1500, "validation": 500, "test": 1000},
}


@dataclass(frozen=True)
class Settings:
    """Settings of a run of the experiments.

    Attributes:
        root: the output folder of runs and report.
        data_dir: a folder with a sub-folder per data set; None downloads from the Hub.
        seeds: the number of seeds, counted from 0.
        quick: use little data and one learning rate.
        jobs: the number of processes.
        as_published: also run the paper's own protocol.
        all_rows: use all rows of the image and BERT experiments, which otherwise sample some.
    """

    root: Path
    data_dir: Path | None = None
    seeds: int = 5
    quick: bool = False
    jobs: int = 2
    as_published: bool = False
    all_rows: bool = False

    @property
    def amount(self) -> Amount:
        return QUICK if self.quick else Amount()

    @property
    def rate_seeds(self) -> int:
        """The number of seeds that select the learning rate."""
        return 1 if self.quick else min(self.seeds, RATE_SEEDS)

    @property
    def command(self) -> str:
        """The options that reproduce the report, without names of experiments and folders."""
        options = {
            "--data-dir DATA": self.data_dir, "--quick": self.quick,
            "--as-published": self.as_published, "--all-rows": self.all_rows, f"--seeds {self.seeds}": True,
        }  # fmt: skip
        return " ".join(option for option, given in options.items() if given)

    def learning_rates(self, experiment: Experiment) -> list[float]:
        """The learning rates to try."""
        rates = experiment.learning_rates
        return [rates[len(rates) // 2]] if self.quick else rates

    def rows_of(self, experiment: Experiment) -> dict[str, int]:
        """The maximum rows by split; empty if all are used."""
        if self.quick:
            return QUICK_ROWS[experiment.kind]
        return {} if self.all_rows else experiment.rows

    def graded(self, experiment: Experiment) -> Path | None:
        """The file with human grades of the words of an experiment, or None."""
        if self.data_dir is None or experiment.name not in GRADED_BY_PEOPLE:
            return None
        file = self.data_dir / GRADED_BY_PEOPLE[experiment.name]
        return file if file.is_file() else None
