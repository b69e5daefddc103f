"""The experiments of the paper, from data to report: cells in parallel, none of them twice."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import torch
from joblib import Parallel, delayed
from tqdm import tqdm

from hf_bidir.common.errors import InputError
from hf_bidir.common.files import read_json, sha256, write_json
from hf_bidir.paper.cells import Cell, drop_checkpoints, measure_cell, train
from hf_bidir.paper.data import data_files, missing_files, source_files
from hf_bidir.paper.deep_figures import draw_deep
from hf_bidir.paper.experiments import Experiment, only_in_folders, read_experiments
from hf_bidir.paper.figures import draw_all
from hf_bidir.paper.polarity import polarity_of_words
from hf_bidir.paper.published import EPOCHS, PublishedCell, run_published
from hf_bidir.paper.report import REPORT, write_report
from hf_bidir.paper.settings import Settings

VOCABULARY_OF = "sst"  # as published, it serves every data set
MADE = "made-from.json"
PUBLISHED_SEEDS, PUBLISHED_QUICK_EPOCHS = 3, 10
QUICK_OPTIONS = {"recurrent": {}, "bert": {"num_train_epochs": 2}, "images": {"num_train_epochs": 3}}
AnyCell = TypeVar("AnyCell", Cell, PublishedCell)


def check(experiments: Iterable[Experiment], settings: Settings, resume: bool) -> None:
    """Refuse what cannot work, before anything is trained.

    Raises:
        InputError: the folder holds a finished report, the data folder lacks files (all are named), or there is none
            and the Hub has not got the data.
    """
    if (settings.root / REPORT).is_file() and not resume:
        raise InputError(
            f"{settings.root} holds a finished report; give --resume to go on with it, or another --output"
        )
    needed = list(experiments)
    if settings.as_published and any(one.as_published for one in needed):
        needed += [one for one in read_experiments([VOCABULARY_OF]) if one.name not in {two.name for two in needed}]
    if settings.root.is_file():
        raise InputError(f"expected a folder to write to, and {settings.root} is a file; give another --output")
    if settings.data_dir is None:
        if nowhere := [one.name for one in only_in_folders(needed)]:
            raise InputError(
                f"not on the Hub: {', '.join(nowhere)}; give --data-dir, a folder with the data, or leave it out"
            )
        return
    missing = dict.fromkeys(file for experiment in needed for file in missing_files(experiment, settings.data_dir))
    if missing:
        raise InputError(f"{settings.data_dir} lacks: {', '.join(map(str, missing))}; docs/paper.md says what they are")


def run_cells(experiments: list[Experiment], settings: Settings) -> dict[str, dict[str, list[Cell]]]:
    """Choose learning rates with the first seed, train the other seeds, measure all of them.

    Returns:
        By experiment and variant, the cells of the chosen learning rate, one per seed.
    """
    files = {one.name: files_of(one, settings) for one in experiments}

    def cells_of(experiment: Experiment, variant: str, rates: list[float], seeds: Iterable[int]) -> list[Cell]:
        return [Cell(experiment, variant, rate, seed, settings.root) for rate in rates for seed in seeds]

    def all_train(cells: list[Cell], what: str) -> None:
        waiting = [cell for cell in cells if not cell.trained]
        _parallel(lambda cell: _train(cell, files[cell.experiment.name], settings), waiting, settings.jobs, what)

    grid = [
        cell
        for experiment in experiments
        for variant in experiment.variants
        for cell in cells_of(experiment, variant, settings.learning_rates(experiment), [0])
    ]
    all_train(grid, "learning rates")
    chosen = {
        experiment.name: {
            variant: cells_of(
                experiment, variant, [best_rate(grid, experiment, variant)], settings.seeds_of(experiment)
            )
            for variant in experiment.variants
        }
        for experiment in experiments
    }
    cells = [cell for variants in chosen.values() for row in variants.values() for cell in row]
    all_train(cells, "seeds")
    waiting = [cell for cell in cells if cell.trained and not cell.measures]
    _parallel(lambda cell: _measure(cell, files[cell.experiment.name], settings), waiting, settings.jobs, "measures")
    return chosen


def best_rate(grid: list[Cell], experiment: Experiment, variant: str) -> float:
    """The learning rate with the highest validation accuracy; of equal ones the middle one.

    Their loss does not decide: where all answers are right it falls with the size of the weights, so that the largest
    rate would win, at which other seeds fail. Failed cells count as 0.
    """
    mine = [cell for cell in grid if (cell.experiment, cell.variant) == (experiment, variant)]
    accuracies = {cell.learning_rate: cell.results.get("eval_accuracy", 0.0) for cell in mine}
    best = sorted(rate for rate, accuracy in accuracies.items() if accuracy == max(accuracies.values()))
    return best[(len(best) - 1) // 2]


def files_of(experiment: Experiment, settings: Settings) -> dict[str, Path]:
    """The data of an experiment by split, less of it for a quick run or without a GPU.

    Raises:
        InputError: the folder has been made in another way, so that old and new cells could not be compared.
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
            f"{experiment.title} in {settings.root} was made with another value of {changed[0]}: "
            f"{before.get(changed[0])}, now it is {made[changed[0]]}; give another --output"
        )
    files = data_files(experiment, settings.data_dir, folder, rows)
    write_json(folder / MADE, made)
    return files


def _data(experiment: Experiment, settings: Settings) -> str | dict[str, str]:
    """Where the data comes from: of files their SHA-256, so that a folder may move, and may not change."""
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
    """Every cell in one of `jobs` processes of one thread each."""
    done = Parallel(n_jobs=jobs, return_as="generator_unordered")(delayed(_one_thread)(work, cell) for cell in cells)
    for _ in tqdm(done, total=len(cells), desc=what, unit="cell", disable=not cells):
        pass


def _one_thread(work: Callable[[AnyCell], None], cell: AnyCell) -> None:
    threads = torch.get_num_threads()  # of this process, where there is only one
    torch.set_num_threads(1)
    try:
        work(cell)
    finally:
        torch.set_num_threads(threads)


def run_paper(experiments: list[Experiment], settings: Settings, resume: bool = False) -> Path:
    """Run the experiments as far as they are not done, and write report.md with its pictures; return where it is.

    Raises:
        InputError: as in `check` and `data_files`.
    """
    check(experiments, settings, resume)
    settings.root.mkdir(parents=True, exist_ok=True)
    chosen = run_cells(experiments, settings)
    published = run_as_published(experiments, settings) if settings.as_published else []
    for experiment in experiments:
        cells = chosen[experiment.name]
        if experiment.deep:
            draw_deep(experiment, cells, settings.root / "data" / experiment.name / "test.parquet", settings.root)
        else:
            polarity = polarity_of_words(experiment, settings.graded(experiment))
            draw_all(experiment.name, experiment.title, cells, settings.root, polarity)
    return write_report(experiments, chosen, settings, published)


def run_as_published(experiments: list[Experiment], settings: Settings) -> list[PublishedCell]:
    """The experiments that have it by the paper's own protocol; those cells that are there are not run again."""
    every = [one for one in experiments if one.as_published]
    if not every:
        return []
    files = {one.name: files_of(one, settings) for one in every}
    (vocabulary_of,) = read_experiments([VOCABULARY_OF])
    known = files_of(vocabulary_of, settings)["train"]
    seeds, epochs = (1, PUBLISHED_QUICK_EPOCHS) if settings.quick else (PUBLISHED_SEEDS, EPOCHS)
    cells = [
        PublishedCell(one, activation, seed, settings.root, epochs)
        for one in every
        for activation in ("softmax", "tanhmax")
        for seed in range(seeds)
    ]
    _parallel(lambda cell: run_published(cell, files[cell.experiment.name], known), cells, settings.jobs, "published")
    return cells
