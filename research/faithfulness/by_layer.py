"""Which attention measure ranks tokens as erasure and gradients do, layer by layer? The table of Abnar & Zuidema 2020.

    python -m research.explanations.models --data-dir DIR --model MINILM
    python -m research.faithfulness.by_layer --data-dir DIR

DIR holds sst2/test.parquet and sva_linzen/test.parquet (the number of the verb behind [MASK]). Spearman correlation
over the word pieces of a sentence between the magnitudes of a measure and those of two references: the change of the
predicted class's logit when the piece is deleted ("erasure"), and input times gradient ("gradient"). Rows go to
results/faithfulness_by_layer.csv, one for each task, model, seed, reference and measure, with the mean
over sentences by layer; a row that is there is not measured again. results/agreement.png shows raw attention, rollout
and flow of seed 0 on one sentence of subject-verb agreement.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from scipy.stats import spearmanr
from torch import Tensor
from tqdm import tqdm

from benchmarks.runs import check_runs, comparisons, markdown, where
from benchmarks.seeds import TESTED, Comparison, mean_in_interval
from hf_bidir.common.files import save_figure
from hf_bidir.explain import read_text, token_scores
from hf_bidir.explain.inputs.text import Example
from research.explanations.tasks import (
    CONVERTED,
    MODELS,
    SEEDS,
    TASKS,
    add_options,
    folder_of,
    load,
    models,
    sample,
)
from research.paper.gradients import gradient_times_input
from research.runs import command_line, run_grid

KEY_WITHOUT_SEED = ("task", "model", "reference", "measure")
FILE = Path(__file__).with_name("results") / "faithfulness_by_layer.csv"
KEY = (*KEY_WITHOUT_SEED, "seed")
BY_LAYER = ("attention", "rollout", "flow", "values", "contributions")
REFERENCES = {"erasure": partial(token_scores, method="erasure-token"), "gradient": gradient_times_input}
MEASURED = ("sst2", "agreement")
SHOWN, LONGEST = ("attention", "rollout", "flow"), 12  # words of the sentence in the figure


def main() -> None:
    parser = command_line(__doc__)
    add_options(parser)
    parser.add_argument("--sentences", type=int, default=200, help="of each test split")
    parser.add_argument("--figure-only", action="store_true", help="measure nothing, draw results/agreement.png")
    options = parser.parse_args()

    def measured(task: str, model: str, seed: int) -> tuple[list[dict[str, object]], list[Path]]:
        file = TASKS[task].file(options.data_dir, "test")
        texts = [row[TASKS[task].text] for row in sample(file, options.sentences)]
        return correlations(*load(folder_of(options.runs, task, model, seed)), texts), [file]

    trials = [
        {"task": task, "model": name, "seed": seed}
        for task in ([] if options.figure_only else MEASURED)
        for name, seed, _ in models(options, task, CONVERTED)
    ]
    run_grid(FILE, trials, measured, KEY)
    folders = {name: folder_of(options.runs, "agreement", name, seed=0) for name in CONVERTED}
    if all(folder.is_dir() for folder in folders.values()):
        rows = sample(TASKS["agreement"].file(options.data_dir, "test"), options.sentences)
        draw(folders, [row for row in rows if row["n_attractors"]], FILE.with_name("agreement.png"))


def correlations(model, tokenizer, texts: list[str]) -> list[dict[str, object]]:
    """A row for each reference and measure: its mean correlation by layer."""
    layers = range(model.config.num_hidden_layers)
    found = {(reference, measure): [[] for _ in layers] for reference in REFERENCES for measure in BY_LAYER}
    for text in tqdm(texts, leave=False, unit="sentence"):
        example = read_text(tokenizer, text, model.config.max_position_embeddings)
        target = model(**example.inputs).logits.argmax(-1)
        words = ~torch.tensor(example.special)[example.token_of_piece]

        def sizes(function, **options):
            scores = function(model, example.inputs, target=target, **options)  # noqa: B023
            return scores[0, words].detach().abs().numpy()  # noqa: B023

        references = {reference: sizes(function) for reference, function in REFERENCES.items()}
        for measure in BY_LAYER:
            for layer in layers:
                measured = sizes(token_scores, method=measure, layer=layer)
                for reference, values in references.items():
                    found[reference, measure][layer].append(spearmanr(measured, values).statistic)
    return [
        {"reference": reference, "measure": measure}
        | {
            f"layer_{layer}": None if np.isnan(values).all() else np.nanmean(values)
            for layer, values in enumerate(by_layer)
        }
        for (reference, measure), by_layer in found.items()
    ]


def columns(runs: pd.DataFrame) -> list[str]:
    return sorted(runs.filter(like="layer_").columns)


def differences(runs: pd.DataFrame, reference: str) -> str:
    """Converted minus softmax in the first and the last layer."""
    check_runs(runs, KEY_WITHOUT_SEED, SEEDS)
    rows = [[TASKS[task].title, measure, layer.replace("_", " "), *one.cells(2)]
            for (task, measure, layer), one in compared(runs, reference).items()]  # fmt: skip
    return markdown(["task", "measure", "layer", *TESTED], rows)


def table(runs: pd.DataFrame, reference: str, tasks: Sequence[str] = MEASURED) -> str:
    """Means of the tasks by layer."""
    check_runs(runs, KEY_WITHOUT_SEED, SEEDS)
    runs = where(runs, reference=reference)
    rows = [
        [TASKS[task].title, MODELS[name], measure]
        + [mean_in_interval(where(runs, task=task, model=name, measure=measure)[layer], 2) for layer in columns(runs)]
        for task in tasks for name in CONVERTED for measure in BY_LAYER
    ]  # fmt: skip
    return markdown(["task", "model", "measure", *(name.replace("_", " ") for name in columns(runs))], rows)


def compared(runs: pd.DataFrame, reference: str) -> dict[tuple, Comparison]:
    """Converted minus softmax in the first and the last layer, by task, measure and layer; corrected together."""
    ends = dict.fromkeys((columns(runs)[0], columns(runs)[-1]), 1)
    return comparisons(where(runs, reference=reference), ("task", "measure"), "model", CONVERTED[::-1], ends)


# the figure


def draw(folders: dict[str, Path], rows: list[dict], file: Path) -> None:
    """Raw attention, rollout and flow of seed 0 on one sentence; a row of panels for each model."""
    loaded = {name: load(folder) for name, folder in folders.items()}
    text, predicted = chosen(loaded, rows)
    figure = Figure(figsize=(12, 5.2), layout="constrained")
    panels = figure.subplots(len(loaded), len(SHOWN), sharex=True, sharey=True)
    for row, (name, (model, tokenizer)) in zip(panels, loaded.items(), strict=True):
        example = read_text(tokenizer, text, model.config.max_position_embeddings)
        words = [
            index for index, special in enumerate(example.special) if not special or example.tokens[index] == "[MASK]"
        ]
        layers = range(model.config.num_hidden_layers)
        for panel, measure in zip(row, SHOWN, strict=True):
            scores = torch.stack([by_word(model, example, measure, layer) for layer in layers])[:, words]
            image = panel.imshow(scores / scores.sum(1, keepdim=True), cmap="Reds", vmin=0, aspect="auto")
            panel.set_title(f"{MODELS[name]}: {'raw attention' if measure == 'attention' else measure}", fontsize=10)
            panel.set_xticks(range(len(words)), [example.tokens[index] for index in words], rotation=60, ha="right")
            panel.set_yticks(layers)
            figure.colorbar(image, ax=panel)
        row[0].set_ylabel("layer")
    figure.supxlabel(f"share of a layer's sum over words; both models predict a {predicted} verb", fontsize=9)
    save_figure(figure, file)


def chosen(loaded: dict[str, tuple], rows: list[dict]) -> tuple[str, str]:
    """The first short sentence with an attractor that all models get right, and its class."""
    data = TASKS["agreement"]
    for row in rows:
        inputs = next(iter(loaded.values()))[1](row[data.text], return_tensors="pt")
        short = len(row[data.text].split()) <= LONGEST
        if short and all(model(**inputs).logits.argmax() == row["label"] for model, _ in loaded.values()):
            return row[data.text], data.classes[row["label"]]
    raise ValueError(
        f"expected a sentence of at most {LONGEST} words that all models predict correctly; none of {len(rows)} is. "
        "Pass more --sentences"
    )


def by_word(model, example: Example, measure: str, layer: int) -> Tensor:
    scores = token_scores(model, example.inputs, measure, None, layer=layer)[0]
    return example.by_token(scores, add=measure != "flow")


if __name__ == "__main__":
    main()
