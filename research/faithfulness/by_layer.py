"""Which attention measure ranks tokens as erasure does, layer by layer? The table of Abnar & Zuidema 2020.

    python -m research.conversions.run agreement --data-dir DIR --model MINILM --only softmax tanhmax --seeds 3
    python -m research.faithfulness.by_layer --data-dir DIR

DIR holds sva_linzen/test.parquet (the number of the verb behind [MASK]). Spearman correlation over the word pieces of a
sentence between the magnitudes of a measure and those of erasure, the change of the predicted class's logit when the
piece is deleted. Rows go to results/faithfulness_by_layer.csv, one for each model, seed and measure, with the mean over
sentences by layer; a row that is there is not measured again. results/agreement.png shows raw attention, rollout and
flow of seed 0 on one sentence.
"""

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from scipy.stats import spearmanr
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.runs import check_runs, comparisons, markdown, where
from benchmarks.seeds import TESTED, mean_in_interval
from hf_bidir.explain import read_text, token_scores
from hf_bidir.explain.inputs.text import Example
from research import save_figure
from research.explanations.tasks import SEEDS, TASKS, add_options, folder_of, load, models, sample
from research.runs import command_line, run_grid

FILE = Path(__file__).with_name("results") / "faithfulness_by_layer.csv"
TASK, KEY = "agreement", ("model", "measure", "seed")
MODELS = {"softmax": "softmax", "converted": "TanhMax, converted"}  # and their names in tables
BY_LAYER = ("attention", "rollout", "flow", "values", "contributions")
SHOWN, LONGEST = ("attention", "rollout", "flow"), 12  # words of the sentence in the figure


def main() -> None:
    parser = command_line(__doc__)
    add_options(parser)
    parser.add_argument("--sentences", type=int, default=200, help="of the test split")
    options = parser.parse_args()
    file = TASKS[TASK].file(options.data_dir, "test")
    rows = sample(file, options.sentences)

    def measured(model: str, seed: int) -> tuple[list[dict[str, object]], list[Path]]:
        texts = [row[TASKS[TASK].text] for row in rows]
        return correlations(*load(folder_of(options.runs, TASK, model, seed)), texts), [file]

    trials = [{"model": name, "seed": seed} for name, seed, _ in models(options, TASK, MODELS)]
    run_grid(FILE, trials, measured, KEY)
    folders = {name: folder_of(options.runs, TASK, name, seed=0) for name in MODELS}
    if all(folder.is_dir() for folder in folders.values()):
        draw(folders, [row for row in rows if row["n_attractors"]], FILE.with_name("agreement.png"))


def correlations(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> list[dict[str, object]]:
    """A row for each measure: its mean correlation with erasure by layer."""
    layers = range(model.config.num_hidden_layers)
    correlation = {measure: np.full((len(layers), len(texts)), np.nan) for measure in BY_LAYER}
    for number, text in enumerate(tqdm(texts, leave=False, unit="sentence")):
        example = read_text(tokenizer, text, model.config.max_position_embeddings)
        target = model(**example.inputs).logits.argmax(-1)
        words = ~torch.tensor(example.special)[example.token_of_piece]
        erased = token_scores(model, example.inputs, "deletion", target)[0, words].abs()
        for measure, values in correlation.items():
            for layer in layers:
                scores = token_scores(model, example.inputs, measure, target, layer=layer)[0, words].detach().abs()
                values[layer, number] = spearmanr(scores, erased).statistic
    return [
        {"measure": measure} | {f"layer_{layer}": np.nanmean(values[layer]) for layer in layers}
        for measure, values in correlation.items()
    ]


def table(runs: pd.DataFrame) -> str:
    """Means by layer."""
    check_runs(runs, ("model", "measure"), SEEDS)
    layers = sorted(runs.filter(like="layer_").columns)
    rows = []
    for name, measure in product(MODELS, BY_LAYER):
        seeds = where(runs, model=name, measure=measure)
        rows.append([MODELS[name], measure, *(mean_in_interval(seeds[layer], 2) for layer in layers)])
    return markdown(["model", "measure", *(layer.replace("_", " ") for layer in layers)], rows)


def differences(runs: pd.DataFrame) -> str:
    """Converted minus softmax in the first and the last layer; corrected together."""
    layers = sorted(runs.filter(like="layer_").columns)
    tested = dict.fromkeys((layers[0], layers[-1]), 1)
    tests = comparisons(runs, ("measure",), "model", ("converted", "softmax"), tested)
    rows = [[measure, layer.replace("_", " "), *test.cells(2)] for (measure, layer), test in tests.items()]
    return markdown(["measure", "layer", *TESTED], rows)


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
    data = TASKS[TASK]
    networks, tokenizers = zip(*loaded.values(), strict=True)
    for row in rows:
        inputs = tokenizers[0](row[data.text], return_tensors="pt")
        short = len(row[data.text].split()) <= LONGEST
        if short and all(model(**inputs).logits.argmax() == row["label"] for model in networks):
            return row[data.text], networks[0].config.id2label[row["label"]]
    raise ValueError(
        f"expected a sentence of at most {LONGEST} words that all models predict correctly; none of {len(rows)} is. "
        "Pass more --sentences"
    )


def by_word(model, example: Example, measure: str, layer: int) -> Tensor:
    scores = token_scores(model, example.inputs, measure, None, layer=layer)[0]
    return example.by_token(scores, add=measure != "flow")


if __name__ == "__main__":
    main()
