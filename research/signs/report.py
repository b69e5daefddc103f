"""The tables of README.md, from results/signs.csv."""

import pandas as pd
from pandas import DataFrame

from benchmarks.runs import markdown, where

PERCENT, NUMBER, POINTS = (100, "{:.0f}"), (1, "{:.2f}"), (100, "{:+.0f}")
Form = tuple[float, str]
MODELS = {"softmax": "softmax", "signed": "signed", "signed − softmax": "signed − softmax", "tokens": "all tokens"}
PAIRS = {
    "sst2": "MiniLM on SST-2",
    "encoder": "encoder, fine-tuned on SST-2",
    "minilm": "MiniLM",
    "smollm2": "SmolLM2-135M-Instruct",
}
MEASURES: dict[str, dict[str, tuple[str, Form]]] = {  # by study: heading and format, by the measure in the file
    "negations": {
        "plain": ("without the negation", PERCENT),
        "other": ("without another word", PERCENT),
        "negated": ("with the negation", PERCENT),
        "change": ("change", POINTS),
        "change where the prediction changes": ("change where the prediction changes", POINTS),
        "change, elsewhere": ("change at another word", POINTS),
    },
    "quiet": {
        "quiet": ("quiet queries", PERCENT),
        "sinks": ("on sinks", PERCENT),
        "without a sink": ("without a sink", PERCENT),
        "mass": ("Σ\\|a\\|", NUMBER),
        "balance": ("\\|Σa\\| / Σ\\|a\\|", NUMBER),
        "unsigned": ("factor without signs", NUMBER),
        "permuted": ("factor with permuted signs", NUMBER),
    },
    "effects": {
        "sign": ("sign of a, or side", PERCENT),
        "usual sign": ("usual sign", PERCENT),
        "advantage": ("advantage", POINTS),
    },
    "copies": {
        "likely": ("copy likely", PERCENT),
        "unlikely": ("copy unlikely", PERCENT),
        "change": ("change", POINTS),
        "effect, likely": ("effect, copy likely", NUMBER),
        "effect, unlikely": ("effect, copy unlikely", NUMBER),
        "part of negative coefficients": ("of it by negative a, %", PERCENT),
        "logit without them": ("copy's logit without them", NUMBER),
    },
}


def table(runs: DataFrame, study: str) -> str:
    """One row for each reading of each model, one column for each measure, with its interval."""
    chosen = where(runs, study=study).fillna({"reading": "", "where": ""})
    chosen = chosen[chosen["measure"].isin(MEASURES[study])]
    chosen = chosen[(chosen["pair"] != "encoder") | (chosen["model"] != "softmax")]  # that of sst2
    rows = []
    for (pair, model), rows_of_model in by_model(chosen):
        for reading, rows_of_reading in rows_of_model.groupby("reading", sort=False):
            numbers = rows_of_reading.set_index("measure")
            cells = [
                text(numbers.loc[measure], *form) if measure in numbers.index else ""
                for measure, (_, form) in MEASURES[study].items()
            ]
            rows.append([PAIRS[pair], MODELS[model], reading, rows_of_reading["where"].max(), *cells])
    return markdown(["models", "model", "read", "chosen", *(heading for heading, _ in MEASURES[study].values())], rows)


def by_model(runs: DataFrame) -> list[tuple[tuple[str, str], DataFrame]]:
    """The rows of each pair and model, softmax before signed."""
    order = [*PAIRS], [*MODELS]
    return sorted(
        runs.groupby(["pair", "model"]), key=lambda group: [x.index(y) for x, y in zip(order, group[0], strict=True)]
    )


def text(row: pd.Series, factor: float, form: str) -> str:
    """A number with its interval."""
    value, low, high = (form.format(factor * row[name]) for name in ("value", "low", "high"))
    value, low, high = (x if float(x) else x.lstrip("+-") for x in (value, low, high))
    return value if low == value == high else f"{value} [{low}, {high}]"
