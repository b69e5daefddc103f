"""report.md: the paper's numbers beside those of the fair protocol, and all other measures, each with its spread."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader

from hf_bidir.common.files import replacing
from hf_bidir.common.statistics import mean_and_deviation
from hf_bidir.finetune.folder import read_record
from hf_bidir.finetune.record import cpu_model, library_versions
from hf_bidir.paper.cells import FAILURE, Cell
from hf_bidir.paper.deep_measures import RANKINGS
from hf_bidir.paper.experiments import VARIANTS, Experiment
from hf_bidir.paper.measures import WORD_SUMS
from hf_bidir.paper.published import PublishedCell
from hf_bidir.paper.settings import Settings

REPORT, CELLS, TEMPLATE = "report.md", "cells.csv", "report_template.md"
Chosen = dict[str, dict[str, list[Cell]]]  # experiment -> variant -> one cell per seed
TAUS = {
    "tau_a_gradient": "a, gradient", "tau_|a|_gradient": "magnitudes", "tau_au_gradient": "a·u, gradient",
    "tau_a_erasure": "a, deletion", "tau_|a|_erasure": "magnitudes", "tau_au_erasure": "a·u, deletion",
}  # fmt: skip
PUBLISHED = {  # our measure -> the paper's
    "tau_a_gradient": "gradient_tau", "tau_a_erasure": "erasure_tau", "tau_|a|_erasure": "absolute_erasure_tau",
    "permutation": "permutation", "randomisation": "randomisation",
}  # fmt: skip
MOVED = {"permutation": "permutation", "randomisation": "randomisation", "adversary": "adversary, JSD"}
DELETED = {
    "comprehensiveness_au": "comprehensiveness, a·u", "comprehensiveness_|a|": "by \\|a\\|",
    "sufficiency_au": "sufficiency, a·u", "sufficiency_|a|": "by \\|a\\|",
}  # fmt: skip
DEEP = {f"{how}_{name}": f"{how} by {name}" for how in ("deletion", "insertion") for name in RANKINGS}
DEEP_TAUS = {
    "tau_contributions": "τ of contributions", "tau_gradient": "τ of gradient", "tau_attention": "τ of attention",
    "permutation": "permutation", "randomisation": "randomisation",
}  # fmt: skip
HUMAN = {
    "human_sign_a": "oriented a", "human_sign_au": "a·u", "human_positive": "always +",
    "human_tau_a": "τ, oriented a", "human_tau_au": "τ, a·u",
}  # fmt: skip
RESAMPLES = 500
FIGURE_KINDS = ("polarity", "tau", "change", "curves", "overlays")


def write_report(
    experiments: list[Experiment], chosen: Chosen, settings: Settings, published: Sequence[PublishedCell] = ()
) -> Path:
    """Save report.md with the finished cells, and the errors of failed ones, in `settings.root`."""
    root, cells = settings.root, list(_cells(chosen))
    template = Environment(loader=PackageLoader("hf_bidir.paper", "."), autoescape=False).get_template(TEMPLATE)
    flat, deep = ([one for one in experiments if one.deep == deep] for deep in (False, True))
    people = any("human_sign_a" in cell.measures for cell in cells)
    text = template.render(
        settings=settings,
        names=" ".join(one.name for one in experiments),
        machine=f"{cpu_model()}; {', '.join(f'{name} {version}' for name, version in library_versions().items())}.",
        accuracy=accuracy_table(experiments, chosen),
        rates=rate_table(experiments, chosen, settings),
        recalls=recall_table(experiments, chosen),
        published=published_table(published) if published else None,
        published_epochs=published[0].epochs if published else None,
        flat=flat,
        deep=deep,
        rankings=_by_example(flat, chosen, TAUS),
        interventions=_by_example(flat, chosen, MOVED),
        deletion=_by_example(flat, chosen, DELETED),
        curves=_by_example(deep, chosen, DEEP),
        deep_taus=_by_example(deep, chosen, DEEP_TAUS),
        signs=sign_table(experiments, chosen),
        human=_by_example(experiments, chosen, HUMAN) if people else None,
        amount=settings.amount,
        failures=_failures(experiments, root),
        pictures=[
            file.stem for one in experiments for kind in FIGURE_KINDS for file in root.glob(f"{one.name}-{kind}.png")
        ],
    )
    with replacing(root / REPORT) as temporary:
        temporary.write_text(text.rstrip() + "\n", encoding="utf-8")
    write_cells(root / CELLS, chosen)
    return root / REPORT


def write_cells(path: Path, chosen: Chosen) -> None:
    """Save one CSV line per cell: accuracies and measures, averaged over examples."""
    rows = []
    for cell in _cells(chosen):
        numbers = {
            name: _mean(value) if isinstance(value, list) else value
            for name, value in cell.measures.items()
            if isinstance(value, list | float | int)
        }
        which = {"data": cell.experiment.name, "variant": cell.variant, "rate": cell.learning_rate, "seed": cell.seed}
        accuracies = {name: cell.results.get(name) for name in ("eval_accuracy", "test_accuracy")}
        rows.append(which | accuracies | numbers)
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)


def accuracy_table(experiments: list[Experiment], chosen: Chosen) -> str:
    """Test accuracy in percent: the paper's, and mean ± standard deviation over seeds of every variant."""
    variants = [name for name in VARIANTS if any(name in one for one in chosen.values())]
    rows = []
    for experiment in experiments:
        mine = chosen[experiment.name]
        published = [experiment.published.get(name, {}).get("accuracy") for name in ("softmax", "tanhmax")]
        sizes = next((_rows_of(cell) for cells in mine.values() for cell in cells if cell.trained), "")
        seeds = str(max(len(cells) for cells in mine.values()))
        found = [_accuracy(mine.get(variant, [])) for variant in variants]
        rows.append([experiment.title, sizes, seeds, *(_number(value, 1) for value in published), *found])
    return _table(["data", "rows", "seeds", "paper, softmax", "paper, TanhMax", *variants], rows)


def rate_table(experiments: list[Experiment], chosen: Chosen, settings: Settings) -> str:
    """The selected learning rate of every variant, marked at the ends of the grid."""
    variants = [name for name in VARIANTS if any(name in one for one in chosen.values())]
    rows = []
    for experiment in experiments:
        grid, mine = settings.learning_rates(experiment), chosen[experiment.name]
        ends = {min(grid), max(grid)} if len(grid) > 1 else set()
        rates = [mine[variant][0].learning_rate if variant in mine else None for variant in variants]
        shown = ["" if r is None else f"{r:g}{' *' if r in ends else ''}" for r in rates]
        rows.append([experiment.title, ", ".join(f"{rate:g}" for rate in grid), *shown])
    return _table(["data", "grid", *variants], rows)


def recall_table(experiments: list[Experiment], chosen: Chosen) -> str:
    """Recall of every class in percent, mean over seeds: it shows which class a model prefers."""
    rows = []
    for experiment in experiments:
        for variant, cells in chosen[experiment.name].items():
            found = [cell.results for cell in cells if cell.trained]
            names = [key for key in (found[0] if found else {}) if key.startswith("test_recall_")]
            means = [
                f"{key.removeprefix('test_recall_')} {100 * np.mean([r[key] for r in found]):.1f}" for key in names
            ]
            rows.append([experiment.title, variant, ", ".join(means)])
    return _table(["data", "variant", "recall of each class"], rows)


def published_table(cells: Sequence[PublishedCell]) -> str:
    """The paper's number, its protocol reproduced with the label in the scores, and the same weights without it."""
    groups: dict[tuple[str, str], list[PublishedCell]] = {}
    for cell in cells:
        groups.setdefault((cell.experiment.title, cell.activation), []).append(cell)
    rows = []
    for (title, activation), group in groups.items():
        found = [cell.found for cell in group if cell.found]
        if found:
            paper = group[0].experiment.published.get(activation, {}).get("accuracy")
            leaked = ", ".join(f"{one.leaked:.1f}" for one in found)
            negatives = ", ".join(f"{one.negative_logit:+.2f}" for one in found)
            rows.append(
                [
                    title,
                    activation,
                    _number(paper, 1),
                    leaked,
                    negatives,
                    mean_and_deviation([o.fair for o in found], 1),
                ]
            )
    header = ["data", "activation", "paper", "label in the scores, by seed", "logit of negative texts, by seed"]
    return _table([*header, "same weights without"], rows)


def sign_table(experiments: list[Experiment], chosen: Chosen) -> str:
    """The share of negative coefficients, the consistency of signs, and the separation of polar words."""
    rows = []
    for experiment in experiments:
        for variant, cells in chosen[experiment.name].items():
            measured = [cell.measures for cell in cells if cell.measures]
            if not measured:
                continue
            shares = [_range([found.get(key) for found in measured]) for key in ("negative_share", "orientation_share")]
            apart = [polar_separation(found["words"]) for found in measured if experiment.synthetic]
            errors = [", ".join(f"{one[kind]:.0f}" for one in apart) for kind in ("pos", "neg")]
            rows.append([experiment.title, variant, *shares, *errors])
    header = [
        "data",
        "variant",
        "share of negative a",
        "share of Σ\\|a·u\\| with one sign of u",
        "positive − neutral words, standard errors, by seed",
        "negative − neutral words, standard errors, by seed",
    ]
    return _table(header, rows)


def polar_separation(words: dict[str, list[float]]) -> dict[str, float]:
    """Distance in standard errors of the mean coefficients of positive and negative words from neutral ones.

    Args:
        words: the sums of `WORD_SUMS` of each word of a synthetic set.

    Returns:
        "pos" and "neg"; NaN if a kind of word does not occur.
    """
    kinds = {
        kind: [values for word, values in words.items() if word.startswith(kind)] for kind in ("pos", "neg", "word")
    }
    sums = {kind: dict(zip(WORD_SUMS, np.sum(values, axis=0), strict=True)) for kind, values in kinds.items() if values}
    if len(sums) < len(kinds):
        return {"pos": float("nan"), "neg": float("nan")}
    means = {kind: total["coefficient"] / total["count"] for kind, total in sums.items()}
    errors = {  # squared standard errors of the means
        kind: max(total["squared coefficient"] / total["count"] - means[kind] ** 2, 0.0) / total["count"]
        for kind, total in sums.items()
    }
    return {
        kind: (means[kind] - means["word"]) / max((errors[kind] + errors["word"]) ** 0.5, 1e-12)
        for kind in ("pos", "neg")
    }


def _by_example(experiments: list[Experiment], chosen: Chosen, columns: dict[str, str]) -> str:
    rows = []
    for experiment in experiments:
        for variant, published in experiment.published.items():
            theirs = [published.get(PUBLISHED.get(key, "")) for key in columns]
            if any(value is not None for value in theirs):
                rows.append([experiment.title, f"{variant}, paper", *(_number(value, 3) for value in theirs)])
        for variant, cells in chosen[experiment.name].items():
            measured = [cell.measures for cell in cells]
            found = [interval(measured, key) for key in columns]
            if any(found):
                rows.append([experiment.title, variant, *found])
    return _table(["data", "variant", *columns.values()], rows)


def interval(measured: Sequence[dict[str, Any]], key: str) -> str:
    """The mean of a measure and its 95 % bootstrap interval, resampling examples and seeds."""
    rows = [found[key] for found in measured if key in found]
    if not rows:
        return ""
    values = np.array([[np.nan if value is None else value for value in row] for row in rows])
    values = values[:, ~np.isnan(values).all(0)]
    if not values.size:
        return "not defined"
    generator, (seeds, examples) = np.random.default_rng(0), values.shape
    draws = (
        values[generator.integers(seeds, size=(seeds, 1)), generator.integers(examples, size=examples)]
        for _ in range(RESAMPLES)
    )
    means = [np.nanmean(draw) for draw in draws if not np.isnan(draw).all()]
    low, high = np.percentile(means, [2.5, 97.5])
    return f"{np.nanmean(values):.3f} [{low:.3f}, {high:.3f}]"


def _rows_of(cell: Cell) -> str:
    """Training, validation and test rows."""
    return " / ".join(f"{split['rows']:,}" for split in read_record(cell.run)["data"].values())


def _failures(experiments: list[Experiment], root: Path) -> list[tuple[Path, str]]:
    """Folder and error of every failed cell, at all learning rates."""
    files = [file for one in experiments for file in root.glob(f"{one.name}/*/*/{FAILURE}")]
    files += [file for one in experiments for file in root.glob(f"as-published/{one.name}-*/{FAILURE}")]
    return [(file.parent.relative_to(root), file.read_text(encoding="utf-8").splitlines()[0]) for file in sorted(files)]


def _accuracy(cells: list[Cell]) -> str:
    values = [100 * cell.results["test_accuracy"] for cell in cells if "test_accuracy" in cell.results]
    failed = sum(cell.failure is not None and not cell.trained for cell in cells)
    text = mean_and_deviation(values, 1) if values else ""
    return f"{text}{f' ({failed} failed)' if failed else ''}".strip()


def _cells(chosen: Chosen) -> Iterable[Cell]:
    return (cell for variants in chosen.values() for cells in variants.values() for cell in cells)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _range(values: Iterable[float | None]) -> str:
    """Mean, smallest and largest value; empty without values."""
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.3f} ({min(known):.2f} to {max(known):.2f})" if known else ""


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _table(header: list[str], rows: list[list[str]]) -> str:
    """The rows as a Markdown table, without empty columns."""
    shown = [index for index in range(len(header)) if any(row[index] for row in rows)]
    lines = [[row[index] for index in shown] for row in (header, ["---"] * len(header), *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
