"""Which paths of a trained network of attention and skip connections determine its accuracy?

    python -m research.rank_collapse.trained_paths

Three small tasks of Dong, Cordonnier, Loukas 2021: sorting, convex hull and memorization
("Attention is not all you need", section 4), at λ = 0 (softmax), 0.5 and 1 (TanhMax). Rows go to
results/collapse_tasks.csv; a row that is there is not measured again. The figure is beside
them.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from scipy.spatial import ConvexHull, QhullError
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import trange

from benchmarks.runs import check_runs, comparisons, markdown, read_runs, spread, where
from benchmarks.seeds import TESTED
from hf_bidir import BidirBertConfig, BidirBertForTokenClassification
from research import save_figure
from research.rank_collapse import bare_attention, path_states
from research.runs import command_line, grid, run_grid

FILE = Path(__file__).with_name("results") / "collapse_tasks.csv"
SYMBOLS, GRID, LENGTH = 10, 10, 8  # alphabet size, side of the grid of points, tokens per sequence
KEY = ("task", "mass", "seed")
MASSES, SEEDS = (0.0, 0.5, 1.0), 5
LAYERS, HEADS, WIDTH = 6, 2, 48
TRAIN, TEST, BATCH, STEPS = {"memorization": 100}, 1000, 100, 1500  # 20,000 training rows for the other tasks
COLUMNS = {"network": "network", **{f"paths_{length}": str(length) for length in range(LAYERS + 1)}}


def sorting(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random symbols, and the same symbols sorted: tokens and the class of every token, `[rows, LENGTH]` each."""
    tokens = torch.from_numpy(np.random.default_rng(seed).integers(SYMBOLS, size=(rows, LENGTH)))
    return tokens, tokens.sort(-1).values


def convex_hull(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Distinct points of a grid, and the corners of their convex hull.

    Arguments as in `sorting`; a token is `GRID * row + column`, a class 1 for a corner, else 0.
    """
    generator = np.random.default_rng(seed)
    tokens, labels = np.empty((rows, LENGTH), np.int64), np.zeros((rows, LENGTH), np.int64)
    for row in range(rows):
        corners = None
        while corners is None:
            tokens[row] = generator.choice(GRID * GRID, LENGTH, replace=False)
            corners = _corners(tokens[row])
        labels[row, corners] = 1
    return torch.from_numpy(tokens), torch.from_numpy(labels)


def _corners(tokens: np.ndarray) -> np.ndarray | None:
    """Indices of the corners; None if all points are collinear."""
    try:
        return ConvexHull(np.stack(np.divmod(tokens, GRID), -1)).vertices
    except QhullError:
        return None


def memorization(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Sequences of symbols with random classes, which can only be memorised.

    Arguments as in `sorting`; the classes are 0 and 1. Evaluated on the training rows.
    """
    generator = np.random.default_rng(seed)
    tokens, labels = (generator.integers(high, size=(rows, LENGTH)) for high in (GRID * GRID, 2))
    return torch.from_numpy(tokens), torch.from_numpy(labels)


# name -> task, vocabulary size, number of classes
TOKEN_TASKS: dict[str, tuple[Callable[..., tuple[Tensor, Tensor]], int, int]] = {
    "sorting": (sorting, SYMBOLS, SYMBOLS),
    "convex hull": (convex_hull, GRID * GRID, 2),
    "memorization": (memorization, GRID * GRID, 2),
}


def main() -> None:
    command_line(__doc__).parse_args()
    run_grid(FILE, grid(seed=range(SEEDS), task=TOKEN_TASKS, mass=MASSES), accuracies, KEY)
    draw(read_runs(FILE), FILE.with_suffix(".png"))


def accuracies(task: str, mass: float, seed: int) -> tuple[dict[str, float], tuple]:
    """The accuracy of a constant, of a trained network, and of its paths of each length."""
    _, tokens, classes = TOKEN_TASKS[task]
    train, test = data_of(task)
    model = trained(train, tokens, classes, mass, seed)
    with torch.no_grad():
        logits = [model(input_ids=test[0]).logits]
        logits += [model.classifier(states) for states in path_states(model, {"input_ids": test[0]})]
    seeds = [(part.argmax(-1) == test[1]).double().mean().item() for part in logits]
    return {"constant": constant(task)} | dict(zip(COLUMNS, seeds, strict=True)), ()


def data_of(task: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test rows."""
    make = TOKEN_TASKS[task][0]
    train = make(TRAIN.get(task, 20_000))
    return train, train if task in TRAIN else make(TEST, seed=1)


def constant(task: str) -> float:
    """The accuracy of the most frequent class of every position."""
    train, test = data_of(task)
    return (test[1] == train[1].mode(0).values).double().mean().item()


def trained(
    train: tuple[Tensor, Tensor], tokens: int, classes: int, mass: float, seed: int
) -> BidirBertForTokenClassification:
    torch.manual_seed(seed)
    config = BidirBertConfig(
        vocab_size=tokens, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_labels=classes,
        max_position_embeddings=LENGTH, attn_negative_mass=mass, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, initializer_range=0.1,
    )  # fmt: skip
    model = bare_attention(BidirBertForTokenClassification(config))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=STEPS, pct_start=0.1)
    for _ in trange(STEPS, leave=False, desc=f"λ = {mass:g}, seed {seed}"):
        rows = torch.randint(len(train[0]), (BATCH,))
        logits = model(input_ids=train[0][rows]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), train[1][rows].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


def differences(runs: pd.DataFrame) -> str:
    """TanhMax minus softmax."""
    check_runs(runs, ("task", "mass"), SEEDS)
    tests = comparisons(runs, ("task",), "mass", (1.0, 0.0), dict.fromkeys(COLUMNS, 100))
    rows = [[task, COLUMNS[column], *part.cells()] for (task, column), part in tests.items()]
    return markdown(["task", "paths through", *TESTED], rows)


def table(runs: pd.DataFrame) -> str:
    """Accuracies of every task and λ."""
    check_runs(runs, ("task", "mass"), SEEDS)
    rows = []
    for (task, mass), seeds in runs.groupby(["task", "mass"], sort=False):
        spreads = [spread(seeds, column, 100) for column in COLUMNS]
        rows.append([task, f"{mass:g}", f"{100 * seeds['constant'].mean():.1f}", *spreads])
    return markdown(["task", "λ", "constant", *COLUMNS.values()], rows)


def draw(runs: pd.DataFrame, file: Path) -> None:
    figure, lengths = Figure(figsize=(11, 3.6), layout="constrained"), range(LAYERS + 1)
    for panel, task in zip(figure.subplots(1, len(TOKEN_TASKS), sharey=True), TOKEN_TASKS, strict=True):
        for index, mass in enumerate(MASSES):
            seeds = where(runs, task=task, mass=mass)[list(COLUMNS)]
            middle, deviation = seeds.mean(), seeds.std()
            bars = {"marker": "o", "markersize": 4, "capsize": 2, "color": f"C{index}", "label": f"λ = {mass:g}"}
            panel.errorbar(lengths, middle.iloc[1:], deviation.iloc[1:], **bars)
            panel.axhline(middle["network"], color=f"C{index}", linestyle=":")
        panel.axhline(where(runs, task=task)["constant"].mean(), color="0.7", linewidth=1)
        panel.set(title=task, xlabel="heads on the path", ylim=(0, 1.02), xticks=lengths)
    figure.axes[0].set_ylabel("accuracy")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center")
    figure.supxlabel(
        "mean ± standard deviation over seeds; dotted: the network, all paths together; grey: the best constant "
        "prediction",
        fontsize=8,
    )
    save_figure(figure, file)


if __name__ == "__main__":
    main()
