"""Run the experiments of the paper from data to report: cells in parallel, finished ones reused."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean
from typing import TypeVar

import torch
from joblib import Parallel, delayed
from tqdm import tqdm

from hf_bidir.common.errors import InputError
from hf_bidir.common.files import read_json, sha256, write_json
from research.paper.cells import Cell, drop_checkpoints, measure_cell, train
from research.paper.data import data_files, missing_files, source_files
from research.paper.deep_figures import draw_deep
from research.paper.experiments import Experiment, only_in_folders, read_experiments
from research.paper.figures import draw_all
from research.paper.polarity import polarity_of_words
from research.paper.published import EPOCHS, PublishedCell, run_published
from research.paper.report import REPORT, write_report
from research.paper.rows import Chosen, check_settings, has_published_row, has_rows, save_published, save_rows
from research.paper.settings import EXTENSIONS, Settings

VOCABULARY_OF = "sst"  # the vocabulary of every data set in the published protocol
MADE = "made-from.json"
PUBLISHED_QUICK_EPOCHS = 10
QUICK_OPTIONS = {"recurrent": {}, "bert": {"num_train_epochs": 2}, "images": {"num_train_epochs": 3}}
AnyCell = TypeVar("AnyCell", Cell, PublishedCell)


def check(experiments: Iterable[Experiment], settings: Settings, resume: bool) -> None:
    """Check folders and data before any training.

    Raises:
        InputError: the folder has a finished report, the data folder lacks files (all are named), or without a data
            folder the data are not on the Hub.
    """
    if (settings.root / REPORT).is_file() and not resume:
        raise InputError(f"{settings.root} has a finished report; pass --resume to continue it, or another --output")
    needed = list(experiments)
    if settings.as_published and any(one.as_published for one in needed):
        names = {experiment.name for experiment in needed}
        needed += [one for one in read_experiments([VOCABULARY_OF]) if one.name not in names]
    if settings.root.is_file():
        raise InputError(f"expected an output folder; {settings.root} is a file. Pass another --output")
    if settings.data_dir is None:
        if nowhere := [one.name for one in only_in_folders(needed)]:
            raise InputError(
                f"not on the Hub: {', '.join(nowhere)}; pass a folder with the data as --data-dir, or leave out these "
                "experiments"
            )
        return
    missing = dict.fromkeys(file for experiment in needed for file in missing_files(experiment, settings.data_dir))
    if missing:
        raise InputError(f"{settings.data_dir} lacks: {', '.join(map(str, missing))}; docs/paper.md describes them")


def run_cells(experiments: list[Experiment], settings: Settings) -> tuple[list[Cell], Chosen]:
    """Select learning rates with the first seeds, train the other seeds and measure all.

    Returns:
        The cells of all learning rates; and those of the selected one by experiment and variant, one per seed.
    """
    files = {one.name: files_of(one, settings) for one in experiments}
    attempted: set[Path] = set()

    def all_train(cells: list[Cell], what: str) -> None:
        waiting = [cell for cell in cells if not cell.trained and cell.folder not in attempted]
        attempted.update(cell.folder for cell in waiting)
        _parallel(lambda cell: _train(cell, files[cell.experiment.name], settings), waiting, settings.jobs, what)

    grid, best = select_rates(experiments, settings, all_train)
    chosen = {
        one.name: {
            variant: _cells(one, variant, [best[one.name, variant]], range(settings.seeds), settings)
            for variant in one.variants
        }
        for one in experiments
    }
    cells = [cell for variants in chosen.values() for row in variants.values() for cell in row]
    all_train(cells, "seeds")
    waiting = [cell for cell in cells if cell.trained and not cell.measures]
    _parallel(lambda cell: _measure(cell, files[cell.experiment.name], settings), waiting, settings.jobs, "measures")
    return grid, chosen


def select_rates(
    experiments: list[Experiment], settings: Settings, all_train: Callable[[list[Cell], str], None]
) -> tuple[list[Cell], dict[tuple[str, str], float]]:
    """Train the cells of all learning rates; a grid is extended, at most `EXTENSIONS` times, until its best is inside.

    Returns:
        The cells, and the selected learning rate by experiment and variant.
    """
    grids = {(one.name, variant): list(settings.learning_rates(one)) for one in experiments for variant in one.variants}
    for round_number in range(1 + EXTENSIONS):
        grid = [
            cell
            for one in experiments
            for variant in one.variants
            for cell in _cells(one, variant, grids[one.name, variant], range(settings.rate_seeds), settings)
        ]
        all_train(grid, "learning rates")
        best = {(one.name, variant): best_rate(grid, one, variant) for one in experiments for variant in one.variants}
        beyond_best = {key: rate for key, rates in grids.items() if (rate := beyond(rates, best[key])) is not None}
        if not beyond_best or round_number == EXTENSIONS:
            break
        for key, rate in beyond_best.items():
            grids[key].append(rate)
    return grid, best


def _cells(
    experiment: Experiment, variant: str, rates: Iterable[float], seeds: Iterable[int], settings: Settings
) -> list[Cell]:
    return [Cell(experiment, variant, rate, seed, settings.root) for rate in rates for seed in seeds]


def beyond(rates: list[float], best: float) -> float | None:
    """The next learning rate beyond the end of the grid at which the best one lies; None if it lies inside."""
    ordered = sorted(rates)
    if len(ordered) < 2 or best not in (ordered[0], ordered[-1]):
        return None
    neighbour = ordered[1] if best == ordered[0] else ordered[-2]
    return float(f"{best * best / neighbour:.2g}")


def best_rate(grid: list[Cell], experiment: Experiment, variant: str) -> float:
    """The learning rate with the highest mean validation accuracy over seeds; the middle one of several.

    The loss is no criterion: if all predictions are correct it decreases with the norm of the weights, so the largest
    rate would win, at which other seeds fail. Failed cells count as 0.
    """
    accuracies = defaultdict(list)
    for cell in grid:
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
    return {split: sha256(file) for split, file in source_files(experiment, settings.data_dir).items()}


def _train(cell: Cell, files: dict[str, Path], settings: Settings) -> None:
    train(cell, files, QUICK_OPTIONS[cell.experiment.kind] if settings.quick else {})
    drop_checkpoints(cell)


def _measure(cell: Cell, files: dict[str, Path], settings: Settings) -> None:
    measure_cell(cell, files, settings.graded(cell.experiment), settings.amount)


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


def run_paper(experiments: list[Experiment], settings: Settings, resume: bool = False) -> Path:
    """Run the unfinished parts of the experiments, save report.md with its figures, and return its path.

    Raises:
        InputError: as in `check` and `data_files`.
    """
    check(experiments, settings, resume)
    check_settings(settings)
    settings.root.mkdir(parents=True, exist_ok=True)
    unfinished = [one for one in experiments if not has_rows(one, settings)]
    grid, chosen = run_cells(unfinished, settings)
    published = run_as_published(experiments, settings) if settings.as_published else []
    for experiment in unfinished:
        cells = chosen[experiment.name]
        if experiment.deep:
            draw_deep(experiment, cells, settings.root / "data" / experiment.name / "test.parquet", settings.root)
        else:
            polarity = polarity_of_words(experiment, settings.graded(experiment))
            draw_all(experiment.name, experiment.title, cells, settings.root, polarity)
    save_rows(unfinished, grid, chosen, settings)
    save_published(published, settings)
    return write_report(settings.root, experiments)


def run_as_published(experiments: list[Experiment], settings: Settings) -> list[PublishedCell]:
    """Run the paper's own protocol where an experiment defines it, unless a cell has a row; return the new cells."""
    every = [one for one in experiments if one.as_published]
    if not every:
        return []
    files = {one.name: files_of(one, settings) for one in every}
    (vocabulary_of,) = read_experiments([VOCABULARY_OF])
    known = files_of(vocabulary_of, settings)["train"]
    seeds, epochs = (1, PUBLISHED_QUICK_EPOCHS) if settings.quick else (settings.seeds, EPOCHS)
    cells = [
        PublishedCell(one, activation, seed, settings.root, epochs)
        for one in every
        for activation in ("softmax", "tanhmax")
        for seed in range(seeds)
        if not has_published_row(PublishedCell(one, activation, seed, settings.root, epochs))
    ]
    _parallel(lambda cell: run_published(cell, files[cell.experiment.name], known), cells, settings.jobs, "published")
    return cells
