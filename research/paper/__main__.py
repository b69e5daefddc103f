"""Run the experiments of the TanhMax paper: softmax, TanhMax, three values of λ in between, tanh and mean pooling.

    python -m research.paper synthetic sst --quick
    python -m research.paper all --data-dir data --seeds 5

All have the same architecture, learning-rate grid and selection on validation data; deep models have softmax and
TanhMax only. Saves report.md with tables and figures, and cells.csv with the numbers of every trained model. Finished
parts are reused, so the same command resumes an interrupted run; failed parts are listed in the report.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hf_bidir.cli.script import run_script
from research.paper.experiments import experiment_names, only_in_folders, read_experiments
from research.paper.run import run_paper
from research.paper.settings import Settings

EXPERIMENTS = (
    "synthetic, synthetic-additive, sst, 20news, 20news-bydate, imdb, agnews (one attention layer; texts: all seven); "
    "vit (Fashion-MNIST, CIFAR-10); multilayer (BERT on IMDB); all, the default"
)


def main(argv: Sequence[str] | None = None) -> None:
    options = read_options(argv)
    root = options.output or Path("runs/paper-quick" if options.quick else "runs/paper")
    seeds = options.seeds or (1 if options.quick else 5)
    settings = Settings(
        root, options.data_dir, seeds, options.quick, options.jobs, options.as_published, options.all_rows
    )
    experiments = read_experiments(experiment_names(options.experiments or ["all"]))
    for experiment in only_in_folders(experiments) if options.data_dir is None else []:
        if experiment.name not in options.experiments:  # requested by name, it is an error
            print(f"Left out: {experiment.name} is not on the Hub; pass its folder as --data-dir.", file=sys.stderr)
            experiments.remove(experiment)
    print(f"Saved: {run_paper(experiments, settings, options.resume)}")


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m research.paper", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=EXPERIMENTS)
    parser.add_argument(
        "--data-dir", type=Path, help="one sub-folder per data set, listed in docs/paper.md; by default the Hub"
    )
    parser.add_argument(
        "--seeds", type=int, help="the first three select the learning rate; by default 5, with --quick 1"
    )
    parser.add_argument("--quick", action="store_true", help="a trial run: little data, one learning rate")
    parser.add_argument(
        "--as-published",
        action="store_true",
        help="also run the paper's own training and evaluation, with its known faults",
    )
    parser.add_argument(
        "--all-rows", action="store_true", help="use all rows of vit and multilayer, which otherwise sample some"
    )
    parser.add_argument("--jobs", type=int, default=2, help="parallel processes, one thread each")
    parser.add_argument("--output", type=Path, help="by default runs/paper, with --quick runs/paper-quick")
    parser.add_argument("--resume", action="store_true", help="continue in a folder with a finished report")
    options = parser.parse_args(argv)
    if options.jobs < 1 or (options.seeds is not None and options.seeds < 1):
        parser.error(f"expected --jobs and --seeds of at least 1; got {options.jobs} and {options.seeds}")
    return options


if __name__ == "__main__":
    run_script(main)
