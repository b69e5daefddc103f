"""Run the experiments of the TanhMax paper: softmax, TanhMax, three values of λ in between, tanh and mean pooling.

    python -m research.paper synthetic sst --quick
    python -m research.paper all --data-dir data --seeds 5

All have the same architecture, learning-rate grid and selection on validation data; deep models have softmax and
TanhMax only. Saves report.md with tables and figures, and cells.csv with the numbers of every trained model. Finished
parts are reused, so the same command resumes an interrupted run; failed parts are listed in the report.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import TypeVar

import torch
from joblib import Parallel, delayed
from tqdm import tqdm

from benchmarks.runs import has_run
from hf_bidir.common.errors import InputError
from hf_bidir.common.files import read_json, sha256, write_json
from research.paper.cells import Cell, Chosen, check_settings, has_rows, save_rows
from research.paper.data import data_files
from research.paper.experiments import EXTENSIONS, Experiment, Settings, experiment_names, read_experiments
from research.paper.figures import draw
from research.paper.published import EPOCHS, PUBLISHED, PublishedCell
from research.paper.report import REPORT, write_report
from research.runs import command_line

VOCABULARY_OF = "sst"  # the vocabulary of every data set in the published protocol
MADE = "made-from.json"
PUBLISHED_QUICK_EPOCHS = 10
EXPERIMENTS = (
    "synthetic, synthetic-additive, sst, 20news, 20news-bydate, imdb, agnews (one attention layer; texts: all seven); "
    "vit (Fashion-MNIST, CIFAR-10); multilayer (BERT on IMDB); all, the default"
)
AnyCell = TypeVar("AnyCell", Cell, PublishedCell)


def main(argv: Sequence[str] | None = None) -> None:
    options = read_options(argv)
    root = options.output or Path("runs/paper-quick" if options.quick else "runs/paper")
    seeds = options.seeds or (1 if options.quick else 5)
    settings = Settings(
        root, options.data_dir, seeds, options.quick, options.jobs, options.as_published, options.all_rows
    )
    experiments = read_experiments(experiment_names(options.experiments or ["all"]))
    if options.data_dir is None:
        for experiment in [one for one in experiments if one.only_in_folder and one.name not in options.experiments]:
            print(f"Left out: {experiment.name} is not on the Hub; pass its folder as --data-dir.", file=sys.stderr)
            experiments.remove(experiment)  # requested by name, it is an error
    print(f"Saved: {run_paper(experiments, settings, options.resume)}")


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.prog = "python -m research.paper"
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=EXPERIMENTS)
    helps = {
        "data-dir": "one sub-folder per data set, listed in research/paper/README.md; by default the Hub",
        "output": "by default runs/paper, with --quick runs/paper-quick",
        "seeds": "the first three select the learning rate; by default 5, with --quick 1",
        "jobs": "parallel processes, one thread each",
        "quick": "a trial run: little data, one learning rate",
        "as-published": "also run the paper's own training and evaluation, with its known faults",
        "all-rows": "use all rows of vit and multilayer, which otherwise sample some",
        "resume": "continue in a folder with a finished report",
    }
    kinds = {"data-dir": {"type": Path}, "output": {"type": Path}, "seeds": {"type": int}}
    kinds["jobs"] = {"type": int, "default": 2}
    for name, text in helps.items():
        parser.add_argument(f"--{name}", help=text, **kinds.get(name, {"action": "store_true"}))
    options = parser.parse_args(argv)
    if options.jobs < 1 or (options.seeds is not None and options.seeds < 1):
        parser.error(f"expected --jobs and --seeds of at least 1; got {options.jobs} and {options.seeds}")
    return options


def run_paper(experiments: list[Experiment], settings: Settings, resume: bool = False) -> Path:
    """Run the unfinished parts, save report.md with its figures, and return its path; errors as in `check`."""
    check(experiments, settings, resume)
    check_settings(settings)
    settings.root.mkdir(parents=True, exist_ok=True)
    unfinished = [one for one in experiments if not has_rows(one, settings)]
    tried, chosen = run_cells(unfinished, settings)
    if settings.as_published:
        run_as_published(experiments, settings)
    for experiment in unfinished:
        draw(experiment, chosen[experiment.name], settings)
    save_rows(unfinished, tried, chosen, settings)
    return write_report(settings.root, experiments)


def check(experiments: Iterable[Experiment], settings: Settings, resume: bool) -> None:
    """Check folders and data before any training.

    Raises:
        InputError: the folder has a finished report, the data folder lacks files (all are named), or without a data
            folder the data are not on the Hub.
    """
    if (settings.root / REPORT).is_file() and not resume:
        raise InputError(f"{settings.root} has a finished report; pass --resume to continue it, or another --output")
    if settings.root.is_file():
        raise InputError(f"expected an output folder; {settings.root} is a file. Pass another --output")
    needed = list(experiments)
    if settings.as_published and any(one.as_published for one in needed):
        needed += read_experiments([VOCABULARY_OF])
    if settings.data_dir is None:
        if nowhere := [one.name for one in needed if one.only_in_folder]:
            advice = "pass a folder with the data as --data-dir, or leave out these experiments"
            raise InputError(f"not on the Hub: {', '.join(nowhere)}; {advice}")
        return
    files = dict.fromkeys(file for one in needed for file in one.source_files(settings.data_dir).values())
    if missing := [str(file) for file in files if not file.is_file()]:
        raise InputError(f"{settings.data_dir} lacks: {', '.join(missing)}; research/paper/README.md describes them")


def run_cells(experiments: list[Experiment], settings: Settings) -> tuple[list[Cell], Chosen]:
    """Select learning rates with the first seeds, train the other seeds and measure all.

    Returns:
        The cells of all learning rates; and those of the selected one by experiment and variant, one per seed.
    """
    files = {one.name: files_of(one, settings) for one in experiments}
    attempted: set[Path] = set()

    def train(cells: list[Cell], what: str) -> None:
        waiting = [cell for cell in cells if not cell.trained and cell.folder not in attempted]
        attempted.update(cell.folder for cell in waiting)
        _parallel(lambda cell: cell.train(files[cell.experiment.name], settings), waiting, settings.jobs, what)

    tried, best = select_rates(experiments, settings, train)

    def seeds_of(one: Experiment, variant: str) -> list[Cell]:
        rate = best[one.name, variant]
        return [Cell(one, variant, rate, seed, settings.root) for seed in range(settings.seeds)]

    chosen = {one.name: {variant: seeds_of(one, variant) for variant in one.variants} for one in experiments}
    cells = [cell for variants in chosen.values() for row in variants.values() for cell in row]
    train(cells, "seeds")
    waiting = [cell for cell in cells if cell.trained and not cell.measures]
    _parallel(lambda cell: cell.measure(files[cell.experiment.name], settings), waiting, settings.jobs, "measures")
    return tried, chosen


def select_rates(
    experiments: list[Experiment], settings: Settings, train: Callable[[list[Cell], str], None]
) -> tuple[list[Cell], dict[tuple[str, str], float]]:
    """Train the cells of all learning rates; a grid is extended, at most `EXTENSIONS` times, until its best is inside.

    Returns:
        The cells, and the selected learning rate by experiment and variant.
    """
    grids = {(one.name, variant): list(settings.learning_rates(one)) for one in experiments for variant in one.variants}
    for extension in range(1 + EXTENSIONS):
        tried = [
            Cell(one, variant, rate, seed, settings.root)
            for one in experiments
            for variant in one.variants
            for rate in grids[one.name, variant]
            for seed in range(settings.rate_seeds)
        ]
        train(tried, "learning rates")
        best = {(one.name, variant): best_rate(tried, one, variant) for one in experiments for variant in one.variants}
        further = {key: rate for key, rates in grids.items() if (rate := beyond(rates, best[key])) is not None}
        if not further or extension == EXTENSIONS:
            break
        for key, rate in further.items():
            grids[key].append(rate)
    return tried, best


def beyond(rates: list[float], best: float) -> float | None:
    """The next learning rate beyond the end of the grid at which the best one lies; None if it lies inside."""
    ordered = sorted(rates)
    if len(ordered) < 2 or best not in (ordered[0], ordered[-1]):
        return None
    neighbour = ordered[1] if best == ordered[0] else ordered[-2]
    return float(f"{best * best / neighbour:.2g}")


def best_rate(cells: list[Cell], experiment: Experiment, variant: str) -> float:
    """The learning rate with the highest mean validation accuracy over seeds; the middle one of several.

    The loss is no criterion: if all predictions are correct it decreases with the norm of the weights, so the largest
    rate would win, at which other seeds fail. Failed cells count as 0.
    """
    accuracies = defaultdict(list)
    for cell in cells:
        if (cell.experiment, cell.variant) == (experiment, variant):
            accuracies[cell.learning_rate].append(cell.results.get("eval_accuracy", 0.0))
    means = {rate: mean(values) for rate, values in accuracies.items()}
    best = sorted(rate for rate, value in means.items() if value == max(means.values()))
    return best[(len(best) - 1) // 2]


def files_of(experiment: Experiment, settings: Settings) -> dict[str, Path]:
    """The data files of an experiment by split, with fewer rows for a quick run or a slow experiment.

    Raises:
        InputError: the folder was created with other settings, so old and new cells would not be comparable.
    """
    rows, folder = settings.rows_of(experiment), settings.root / "data" / experiment.name
    made = {
        "data": _data(experiment, settings), "quick": settings.quick, "rows": rows, "recipe": experiment.recipe,
        "keep_labels": experiment.keep_labels, "class_names": experiment.class_names,
        "validation_share": experiment.validation_share, "graded words": settings.graded(experiment) is not None,
    }  # fmt: skip
    before = read_json(folder / MADE) or made
    if changed := [name for name in made if made[name] != before.get(name)]:
        raise InputError(
            f"{experiment.title} in {settings.root} was created with {changed[0]} {before.get(changed[0])}; "
            f"got {made[changed[0]]}. Pass another --output"
        )
    files = data_files(experiment, settings.data_dir, folder, rows)
    write_json(folder / MADE, made)
    return files


def _data(experiment: Experiment, settings: Settings) -> str | dict[str, str]:
    """The source of the data; for files their SHA-256, so a folder may move but not change."""
    if experiment.synthetic:
        return "made here"
    if settings.data_dir is None:
        return f"{experiment.hub} on the Hub"
    return {split: sha256(file) for split, file in experiment.source_files(settings.data_dir).items()}


def run_as_published(experiments: list[Experiment], settings: Settings) -> None:
    """Run the paper's own protocol where an experiment defines it, unless published.csv has the row."""
    files = {one.name: files_of(one, settings) for one in experiments if one.as_published}
    if not files:
        return
    (vocabulary_of,) = read_experiments([VOCABULARY_OF])
    known = files_of(vocabulary_of, settings)["train"]
    seeds, epochs = (1, PUBLISHED_QUICK_EPOCHS) if settings.quick else (settings.seeds, EPOCHS)
    cells = [
        PublishedCell(one, activation, seed, settings.root, epochs)
        for one in experiments
        for activation in one.as_published
        for seed in range(seeds)
    ]
    waiting = [cell for cell in cells if not has_run(settings.root / PUBLISHED, **cell.key)]
    _parallel(lambda cell: cell.train(files[cell.experiment.name], known), waiting, settings.jobs, "published")


def _parallel(work: Callable[[AnyCell], None], cells: list[AnyCell], jobs: int, what: str) -> None:
    """Run `work` for every cell in `jobs` processes with one thread each."""
    done = Parallel(n_jobs=jobs, return_as="generator_unordered")(delayed(_one_thread)(work, cell) for cell in cells)
    for _ in tqdm(done, total=len(cells), desc=what, unit="cell", disable=not cells):
        pass


def _one_thread(work: Callable[[AnyCell], None], cell: AnyCell) -> None:
    threads = torch.get_num_threads()  # restored below: with one job, the work runs in this process
    torch.set_num_threads(1)
    try:
        work(cell)
    finally:
        torch.set_num_threads(threads)
