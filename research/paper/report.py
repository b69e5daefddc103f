"""report.md: the paper's numbers beside those of the fair protocol, and all other measures, from the rows of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader

from benchmarks.runs import PAIR, SEED, VERSIONS, check_runs, comparisons, markdown, read_runs, spread, where
from benchmarks.seeds import TESTED_BY_SEED, Comparison
from hf_bidir.common.errors import InputError
from hf_bidir.common.files import read_json, replacing
from research.paper.cells import CELLS, CHOSEN, MACHINE, RATE, SETTINGS
from research.paper.experiments import EXTENSIONS, VARIANTS, Experiment, experiment_names, read_experiments
from research.paper.measures import RANKINGS
from research.paper.published import LENGTH, PUBLISHED

REPORT, TEMPLATE = "report.md", "report_template.md"
TAUS = {
    "tau_a_gradient": "a, gradient", "tau_|a|_gradient": "\\|a\\|, gradient", "tau_au_gradient": "a·u, gradient",
    "tau_a_erasure": "a, deletion", "tau_|a|_erasure": "\\|a\\|, deletion", "tau_au_erasure": "a·u, deletion",
    "tau_a_zeroing": "a, zeroing", "tau_|a|_zeroing": "\\|a\\|, zeroing",
}  # fmt: skip
PAPERS = {  # our measure -> the paper's
    "tau_|a|_gradient": "gradient_tau", "tau_a_zeroing": "erasure_tau", "tau_|a|_zeroing": "absolute_erasure_tau",
    "permutation": "permutation", "randomisation": "randomisation",
}  # fmt: skip
INTERVENTIONS = {"permutation": "permutation", "randomisation": "randomisation", "adversary": "adversary, JSD"}
DELETIONS = {
    "comprehensiveness_au": "comprehensiveness, a·u", "comprehensiveness_|a|": "comprehensiveness, \\|a\\|",
    "sufficiency_au": "sufficiency, a·u", "sufficiency_|a|": "sufficiency, \\|a\\|",
}  # fmt: skip
DEEP = {f"{how}_{name}": f"{how} by {name}" for how in ("deletion", "insertion") for name in RANKINGS}
DEEP_TAUS = {
    "tau_contributions": "τ of a·u", "tau_gradient": "τ of gradient", "tau_|contributions|": "τ of \\|a·u\\|",
    "tau_|gradient|": "τ of \\|gradient\\|", "tau_|attention|": "τ of \\|a\\|",
    "permutation": "permutation", "randomisation": "randomisation",
}  # fmt: skip
SIGNS = {
    "rarer_sign": "share of the rarer sign of a", "orientation_share": "share of Σ\\|a·u\\| with one sign of u",
    "polar_positive": "positive − neutral words", "polar_negative": "negative − neutral words",
}  # fmt: skip
HUMAN = {
    "human_sign_a": "oriented a", "human_sign_au": "a·u", "human_positive": "always +",
    "human_tau_a": "τ, oriented a", "human_tau_au": "τ, a·u",
}  # fmt: skip
DIFFERENCE = ["TanhMax − softmax", "p", "g"]
FIGURE_KINDS = ("polarity", "tau", "change", "curves", "overlays")


@dataclass(frozen=True)
class Results:
    """The saved rows and settings of a folder: cells of all learning rates and of the paper's own protocol.

    `settings` is the content of settings.json; the experiments are those that have rows, in the order of `GROUPS`.
    """

    cells: pd.DataFrame
    published: pd.DataFrame
    settings: dict[str, Any]
    experiments: list[Experiment]

    @property
    def chosen(self) -> pd.DataFrame:
        """The rows of the selected learning rates."""
        return self.cells[self.cells[CHOSEN]]

    def of(self, experiment: Experiment, **settings: object) -> pd.DataFrame:
        """The chosen rows of an experiment."""
        return where(self.chosen, data=experiment.name, **settings)


def read_results(root: Path, experiments: Sequence[Experiment] = ()) -> Results:
    """The results that are saved in a folder; `experiments` are those that are not among the recipes.

    Raises:
        InputError: there are none, or rows of one table have different versions of libraries or data.
    """
    cells, settings = read_runs(root / CELLS), read_json(root / SETTINGS)
    if cells.empty:
        raise InputError(
            f"expected {CELLS} with trained models in {root}; found none. Run python -m research.paper --output {root}"
        )
    names = [name for name in experiment_names(["all"]) if name in set(cells["data"])]
    known = {one.name: one for one in [*read_experiments(names), *experiments]}
    if "negative_share" in cells:  # the overall sign of a model with one head is arbitrary
        cells["rarer_sign"] = cells["negative_share"].where(cells["negative_share"] < 0.5, 1 - cells["negative_share"])
    results = Results(cells, read_runs(root / PUBLISHED), settings, list(known.values()))
    seeds = {name: 0 if one["failures"] else one["seeds"] for name, one in settings["experiments"].items()}
    check_runs(results.chosen, ["data", "variant"], seeds)
    return results


def write_report(root: Path, experiments: Sequence[Experiment] = ()) -> Path:
    """Save report.md in the folder of results; arguments and errors as in `read_results`."""
    with replacing(root / REPORT) as temporary:
        temporary.write_text(report_text(root, experiments), encoding="utf-8")
    return root / REPORT


def report_text(root: Path, experiments: Sequence[Experiment] = ()) -> str:
    """The report from the rows of a folder; arguments and errors as in `read_results`."""
    results = read_results(root, experiments)
    template = Environment(loader=PackageLoader("research.paper", "."), autoescape=False).get_template(TEMPLATE)
    flat, deep = ([one for one in results.experiments if one.deep == deep] for deep in (False, True))
    text = template.render(
        settings=results.settings,
        amount=results.settings["amount"],
        names=" ".join(one.name for one in results.experiments),
        machine=machines(results),
        extensions=EXTENSIONS,
        published_length=LENGTH,
        tested=TESTED_BY_SEED,
        accuracy=accuracy_table(results),
        rates=rate_table(results),
        recalls=recall_table(results),
        published=published_table(results) if len(results.published) else None,
        published_epochs=results.published["epochs"].iloc[0] if len(results.published) else None,
        flat=flat,
        deep=deep,
        rankings=measure_table(results, flat, TAUS),
        interventions=measure_table(results, flat, INTERVENTIONS),
        deletion=measure_table(results, flat, DELETIONS),
        curves=measure_table(results, deep, DEEP),
        deep_taus=measure_table(results, deep, DEEP_TAUS),
        signs=measure_table(results, results.experiments, SIGNS, compared=False),
        human=measure_table(results, flat, HUMAN) if "human_sign_a" in results.cells else None,
        failures=[one for own in results.settings["experiments"].values() for one in own["failures"]],
        pictures=[
            file.stem
            for one in results.experiments
            for kind in FIGURE_KINDS
            for file in root.glob(f"{one.name}-{kind}.png")
        ],
    )
    return text.rstrip() + "\n"


def machines(results: Results) -> str:
    """The processors and versions behind the rows, and apart from them those behind rates that were not selected."""
    chosen, others = (
        " and ".join(dict.fromkeys(f"{row[MACHINE]}; {row[VERSIONS]}" for _, row in found.iterrows()))
        for found in (results.chosen, results.cells[~results.cells[CHOSEN]])
    )
    return chosen if others in ("", chosen) else f"{chosen}. Models of learning rates that were not selected: {others}"


def accuracy_table(results: Results) -> str:
    """Test accuracy in percent: the paper's, mean ± standard deviation of every variant, and TanhMax minus softmax."""
    tested = comparisons(results.chosen, ["data"], "variant", PAIR, {"test_accuracy": 100})
    variants, rows = _variants(results), []
    for one in results.experiments:
        own = results.of(one)
        splits = [name for name in ("rows_train", "rows_validation", "rows_test") if name in own]
        sizes = [f"{int(own[name].iloc[0]):,}" for name in splits]
        removed = results.settings["experiments"][one.name]["removed"]
        found = tested.get((one.name, "test_accuracy"))
        rows.append(
            [
                *(one.title, " / ".join(sizes), f"{removed['validation']} / {removed['test']}" if removed else ""),
                str(own[SEED].nunique()),
                *(_number(one.published.get(name, {}).get("accuracy"), 1) for name in PAIR[::-1]),
                *(spread(where(own, variant=name), "test_accuracy", 100) for name in variants),
                *(found.cells() if found else [""] * 3),
            ]
        )
    first = ["data", "rows", "repeated", "seeds", "paper, softmax", "paper, TanhMax"]
    return markdown([*first, *variants, *DIFFERENCE], rows)


def rate_table(results: Results) -> str:
    """The selected learning rate of every variant with the number tried, marked where it is an end of those tried."""
    variants, rows = _variants(results), []
    for one in results.experiments:
        rates = sorted(where(results.cells, data=one.name)[RATE].unique())
        cells = [f"{rates[0]:g} to {rates[-1]:g}" if len(rates) > 1 else f"{rates[0]:g}"]
        for variant in variants:
            tried = where(results.cells, data=one.name, variant=variant)
            rates, picked = sorted(tried[RATE].unique()), tried[tried[CHOSEN]][RATE].unique()
            end = len(rates) > 1 and picked.size and picked[0] in (rates[0], rates[-1])
            cells.append(f"{picked[0]:g}{' *' if end else ''} of {len(rates)}" if picked.size else "")
        rows.append([one.title, *cells])
    return markdown(["data", "tried", *variants], rows)


def recall_table(results: Results) -> str:
    """Recall of every class in percent, mean over seeds: it shows which class a model prefers."""
    names = [name for name in results.cells if name.startswith("test_recall_")]
    rows = []
    for one in results.experiments:
        for variant in one.variants:
            means = (100 * results.of(one, variant=variant)[names].mean()).dropna()
            shown = ", ".join(f"{name.removeprefix('test_recall_')} {value:.1f}" for name, value in means.items())
            rows.append([one.title, variant, shown])
    return markdown(["data", "variant", "recall of each class"], rows)


def published_table(results: Results) -> str:
    """The paper's number, its protocol reproduced with the label in the scores, and the same weights without it."""
    tested, rows = comparisons(results.published, ["data"], "activation", PAIR, {"fair": 1}), []
    for one in results.experiments:
        for activation in PAIR[::-1]:
            found = where(results.published, data=one.name, activation=activation)
            if found.empty:
                continue
            difference = tested.get((one.name, "fair")) if activation == "tanhmax" else None
            rows.append(
                [
                    *(one.title, activation, _number(one.published.get(activation, {}).get("accuracy"), 1)),
                    ", ".join(f"{value:.1f}" for value in found["leaked"]),
                    ", ".join(f"{value:+.2f}" for value in found["negative_logit"]),
                    spread(found, "fair"),
                    *(difference.cells() if difference else [""] * 3),
                ]
            )
    header = ["data", "activation", "paper", "label in the scores, by seed", "logit of negative texts, by seed"]
    return markdown([*header, "same weights without", *DIFFERENCE], rows)


def measure_table(
    results: Results, experiments: Sequence[Experiment], columns: Mapping[str, str], compared: bool = True
) -> str:
    """Mean ± standard deviation over seeds of each measure, the paper's numbers, and TanhMax minus softmax."""
    cells = results.chosen[results.chosen["data"].isin([one.name for one in experiments])]
    present = {key: 1.0 for key in columns if key in cells}
    tested = comparisons(cells, ["data"], "variant", PAIR, present) if compared and len(cells) else {}
    rows = []
    for one in experiments:
        for variant, papers in one.published.items():
            theirs = [_number(papers.get(PAPERS.get(key, "")), 3) for key in columns]
            rows += [[one.title, f"{variant}, paper", *theirs]] if any(theirs) else []
        for variant in one.variants:
            own = results.of(one, variant=variant)
            found = [spread(own, key, digits=3) for key in columns]
            rows += [[one.title, variant, *found]] if any(found) else []
        difference = [_tested(tested.get((one.name, key))) for key in columns]
        rows += [[one.title, "TanhMax − softmax", *difference]] if any(difference) else []
    return markdown(["data", "variant", *columns.values()], rows)


def _tested(found: Comparison | None) -> str:
    """Difference, p-value and g in one cell."""
    named = zip(("", "p ", "g "), found.cells(3) if found else (), strict=False)
    return "; ".join(f"{name}{cell}" for name, cell in named if cell)


def _variants(results: Results) -> list[str]:
    return [name for name in VARIANTS if name in set(results.chosen["variant"])]


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
