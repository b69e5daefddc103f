"""Which paths of a trained network matter, and does a network without skip connections collapse?

    python benchmarks/collapse_tasks.py
    python benchmarks/collapse_tasks.py --only circle

The four small tasks of Dong, Cordonnier, Loukas 2021: sorting, convex hull, memorization and the circle
(hf_bidir/rank_collapse/collapse_tasks.py), at λ = 0 (softmax), 0.5 and 1 (TanhMax). Tables go to
benchmarks/results/collapse_tasks.md and collapse_circle.md, figures to docs/.
"""

import argparse
from itertools import product
from pathlib import Path

import torch
from matplotlib.figure import Figure
from measure import write_table
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm, trange

from hf_bidir import BidirBertConfig, BidirBertForTokenClassification, bidir_attention
from hf_bidir.common.files import replacing
from hf_bidir.common.statistics import mean_and_deviation
from hf_bidir.rank_collapse import bare_attention, path_states, relative_residual
from hf_bidir.rank_collapse.collapse_tasks import LENGTH, TOKEN_TASKS, circle

ROOT = Path(__file__).resolve().parent.parent
MASSES = (0.0, 0.5, 1.0)
LAYERS, HEADS, WIDTH = 6, 2, 48
TRAIN, TEST, BATCH, STEPS = {"memorization": 100}, 1000, 100, 1500  # 20,000 training rows for the other tasks
CIRCLE_STACKS = {"attention only": (False, False), "with skip": (True, False), "with MLP": (False, True)}
# Points off the circle never occur in the path itself, so errors would grow with every step: noise is added.
WAY, NOISE, CIRCLE_STEPS = 100, 0.05, 3000
SHOWN_STEPS = (1, 10, 50, 100, 200)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=["paths", "circle"], default=["paths", "circle"])
    parser.add_argument("--seeds", type=int, default=3, help="of the networks")
    parser.add_argument("--pictures", type=Path, default=ROOT / "docs", help="where the pictures go")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results", help="where the tables go")
    options = parser.parse_args()
    if "paths" in options.only:
        report_paths(options)
    if "circle" in options.only:
        report_circle(options)


# paths


def report_paths(options: argparse.Namespace) -> None:
    cells = list(product(TOKEN_TASKS, MASSES))
    found = {
        (task, mass): torch.stack([paths_of(task, mass, seed) for seed in range(options.seeds)])
        for task, mass in tqdm(cells, unit="cell")
    }
    rows = []
    for (task, mass), accuracies in found.items():
        spread = [mean_and_deviation(column, 1) for column in (100 * accuracies.T).tolist()]
        rows.append([task, f"{mass:g}", f"{100 * constant(task):.1f}", *spread])
    notes = (
        f"Accuracy by token in percent, mean ± standard deviation over {options.seeds} seeds, of networks of {LAYERS} "
        f"layers with {HEADS} heads and width {WIDTH}, without MLP and normalisation; and of the sum of their paths "
        f"through this many heads. Sequences of {LENGTH} tokens; sorting and convex hull on {TEST} new ones, "
        "memorization on its training data. `constant` is the best prediction without the tokens."
    )
    header = ["task", "λ", "constant", "network", *(str(length) for length in range(LAYERS + 1))]
    write_table(options.results / "collapse_tasks.md", "Paths by length", notes, header, rows, "cpu")
    draw_paths(found, options.pictures / "collapse-tasks.png")


def paths_of(task: str, mass: float, seed: int) -> Tensor:
    """The accuracy of a trained network and of its paths of each length, `[1 + layers + 1]`."""
    _, tokens, classes = TOKEN_TASKS[task]
    train, test = data_of(task)
    model = trained(train, tokens, classes, mass, seed)
    with torch.no_grad():
        logits = [model(input_ids=test[0]).logits]
        logits += [model.classifier(states) for states in path_states(model, {"input_ids": test[0]})]
    return torch.stack([(one.argmax(-1) == test[1]).float().mean() for one in logits])


def data_of(task: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test rows."""
    make = TOKEN_TASKS[task][0]
    train = make(TRAIN.get(task, 20_000))
    return train, train if task in TRAIN else make(TEST, seed=1)


def constant(task: str) -> Tensor:
    """The accuracy of the most frequent class of every position."""
    train, test = data_of(task)
    return (test[1] == train[1].mode(0).values).float().mean()


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


def draw_paths(found: dict[tuple[str, float], Tensor], file: Path) -> None:
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    for panel, task in zip(figure.subplots(1, len(TOKEN_TASKS), sharey=True), TOKEN_TASKS, strict=True):
        for index, mass in enumerate(MASSES):
            accuracies = found[task, mass].mean(0)
            panel.plot(range(LAYERS + 1), accuracies[1:], marker="o", color=f"C{index}", label=f"λ = {mass:g}")
            panel.axhline(accuracies[0], color=f"C{index}", linestyle=":")
        panel.axhline(constant(task), color="0.7", linewidth=1)
        panel.set(title=task, xlabel="heads on the path", ylim=(0, 1.02))
    figure.axes[0].set_ylabel("accuracy")
    figure.axes[0].legend()
    figure.supxlabel("dotted: the network, all paths together; grey: the best constant prediction", fontsize=8)
    with replacing(file) as temporary:
        figure.savefig(temporary, dpi=100)


# circle


class Step(nn.Module):
    """One layer that moves the points: linear to `width`, attention, optionally an MLP, linear to two."""

    def __init__(self, mass: float, skip: bool, mlp: bool, width: int = 32):
        super().__init__()
        self.mass, self.skip = mass, skip
        self.enter, self.leave = nn.Linear(2, width), nn.Linear(width, 2)
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)) if mlp else None

    def forward(self, points: Tensor) -> Tensor:
        states = self.enter(points)
        heads = [linear(states).unsqueeze(1) for linear in (self.query, self.key, self.value)]
        context, _ = bidir_attention(*heads, negative_mass=self.mass, implementation="eager")
        mixed = self.output(context.squeeze(1)) + (states if self.skip else 0)
        return self.leave(mixed if self.mlp is None else self.mlp(mixed))


def report_circle(options: argparse.Namespace) -> None:
    walks = {
        (name, mass): torch.stack([walk(mass, *CIRCLE_STACKS[name], seed) for seed in range(options.seeds)])
        for name, mass in tqdm(list(product(CIRCLE_STACKS, MASSES)), unit="cell")
    }
    rows = []
    for (name, mass), found in walks.items():
        residuals = relative_residual(found)  # [seeds, steps + 1]
        error = (found[:, : WAY + 1] - circle(WAY)).norm(dim=-1).mean()
        shown = (f"{residuals[:, step].mean():.1e}" for step in SHOWN_STEPS)
        rows.append([name, f"{mass:g}", f"{error:.3f}", *shown])
    notes = (
        f"One layer learns to move two opposite points along a circle of radius 0.3, half of it in {WAY} steps, and is "
        f"then applied repeatedly to its own output. Mean distance to the correct points over {WAY} steps, and the "
        "relative residual of the two points after each number of steps (1: opposite, 0: equal); mean over "
        f"{options.seeds} seeds. Training points have noise of {NOISE}."
    )
    header = ["stack", "λ", "distance", *(f"residual, step {step}" for step in SHOWN_STEPS)]
    write_table(options.results / "collapse_circle.md", "The circle", notes, header, rows, "cpu")
    draw_circle(walks, options.pictures / "collapse-circle.png")


def walk(mass: float, skip: bool, mlp: bool, seed: int) -> Tensor:
    """The path of a trained layer applied to its own output, `[steps + 1, 2, 2]`."""
    torch.manual_seed(seed)
    way, layer = circle(WAY), Step(mass, skip, mlp)
    optimizer = torch.optim.Adam(layer.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, CIRCLE_STEPS)
    for _ in trange(CIRCLE_STEPS, leave=False, desc=f"λ = {mass:g}, seed {seed}"):
        shaken = way[:-1] + NOISE * torch.randn_like(way[:-1])
        loss = F.mse_loss(layer(shaken), way[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    points = [way[:1]]
    with torch.no_grad():
        for _ in range(max(SHOWN_STEPS)):
            points.append(layer(points[-1]))
    return torch.cat(points)


def draw_circle(walks: dict[tuple[str, float], Tensor], file: Path) -> None:
    figure = Figure(figsize=(3 * len(MASSES), 3 * len(CIRCLE_STACKS)), layout="constrained")
    panels = figure.subplots(len(CIRCLE_STACKS), len(MASSES), sharex=True, sharey=True).flat
    for panel, ((name, mass), found) in zip(panels, walks.items(), strict=True):
        for point in range(2):
            panel.plot(*circle(WAY)[:, point].T, color="0.85", linewidth=5, zorder=0, label="target path")
            panel.plot(*found[0, :, point].T, linewidth=1, label=f"point {point + 1}")
            panel.plot(*found[0, -1, point], "ko", markersize=4, label=f"after {len(found[0]) - 1} steps")
        panel.set(title=f"{name}, λ = {mass:g}", xlim=(-0.4, 0.4), ylim=(-0.4, 0.4), aspect="equal")
    handles = dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=len(handles), fontsize=9)
    with replacing(file) as temporary:
        figure.savefig(temporary, dpi=100)


if __name__ == "__main__":
    main()
