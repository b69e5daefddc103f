"""Does a network without skip connections or MLP collapse when it is applied repeatedly?

    python -m research.rank_collapse.circle

The circle of Dong, Cordonnier, Loukas 2021: one layer learns to move two opposite points along a circle, at λ = 0
(softmax), 0.5 and 1 (TanhMax). Rows go to results/collapse_circle.csv; a row that is there is not measured
again. The figure of seed 0 is beside them.
"""

from functools import cache
from itertools import product
from pathlib import Path

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import trange

from benchmarks.runs import check_runs, comparisons, markdown, spread
from benchmarks.seeds import TESTED
from hf_bidir import bidir_attention
from hf_bidir.common.files import save_figure
from research.rank_collapse import relative_residual
from research.runs import command_line, grid, run_grid

FILE = Path(__file__).with_name("results") / "collapse_circle.csv"
KEY = ("stack", "mass", "seed")
STACKS = {"attention only": (False, False), "with skip": (True, False), "with MLP": (False, True)}
MASSES, SEEDS = (0.0, 0.5, 1.0), 5
# Points off the circle never occur in the path itself, so errors would grow with every step: noise is added.
PATH_STEPS, NOISE, TRAINING_STEPS = 100, 0.05, 3000
RADIUS = 0.3
SHOWN, MET = (1, 10, 50, 100, 200), 0.01  # steps; residual below which the points have met


def circle(steps: int = 1000) -> Tensor:
    """Two opposite points moving half way around a circle, counter-clockwise, `[steps + 1, 2, 2]`."""
    angle = torch.linspace(0, torch.pi, steps + 1, dtype=torch.float64)
    angles = torch.stack([angle, angle + torch.pi], -1)
    return RADIUS * torch.stack([angles.cos(), angles.sin()], -1).float()


def main() -> None:
    command_line(__doc__).parse_args()
    trials = grid(seed=range(SEEDS), stack=STACKS, mass=MASSES)
    run_grid(FILE, trials, lambda **trial: (measured(walk(**trial)), ()), KEY)
    walks = {(stack, mass): walk(stack, mass, 0) for stack, mass in product(STACKS, MASSES)}
    draw(walks, FILE.with_suffix(".png"))


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


@cache
def walk(stack: str, mass: float, seed: int) -> Tensor:
    """The path of a trained layer applied to its own output, `[steps + 1, 2, 2]`."""
    torch.manual_seed(seed)
    path, layer = circle(PATH_STEPS), Step(mass, *STACKS[stack])
    optimizer = torch.optim.Adam(layer.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, TRAINING_STEPS)
    for _ in trange(TRAINING_STEPS, leave=False, desc=f"λ = {mass:g}, seed {seed}"):
        noisy = path[:-1] + NOISE * torch.randn_like(path[:-1])
        loss = F.mse_loss(layer(noisy), path[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    points = [path[:1]]
    with torch.no_grad():
        for _ in range(max(SHOWN)):
            points.append(layer(points[-1]))
    return torch.cat(points)


def measured(points: Tensor) -> dict[str, float | None]:
    """Mean distance to the path, residual after some steps, and the step at which the points meet, None if never."""
    residuals = relative_residual(points)
    met = (residuals < MET).nonzero()
    return {
        "distance": (points[: PATH_STEPS + 1] - circle(PATH_STEPS)).norm(dim=-1).mean().item(),
        "meeting": met[0].item() if len(met) else None,
        **{f"residual_{step}": residuals[step].item() for step in SHOWN},
    }


def differences(runs: pd.DataFrame) -> str:
    """TanhMax minus softmax."""
    check_runs(runs, ("stack", "mass"), SEEDS)
    tests = comparisons(runs, ("stack",), "mass", (1.0, 0.0), {"distance": 1, "meeting": 1})
    rows = [[stack, {"meeting": "step of meeting"}.get(column, column), *one.cells(3)]
            for (stack, column), one in tests.items()]  # fmt: skip
    return markdown(["stack", "measure", *TESTED], rows)


def table(runs: pd.DataFrame) -> str:
    """Means of every stack and λ."""
    check_runs(runs, ("stack", "mass"), SEEDS)
    rows = []
    for (stack, mass), found in runs.groupby(["stack", "mass"], sort=False):
        residuals = [f"{found[f'residual_{step}'].mean():.1e}" for step in SHOWN]
        rows.append([stack, f"{mass:g}", spread(found, "distance", digits=3), spread(found, "meeting"), *residuals])
    return markdown(["stack", "λ", "distance", "step of meeting", *(f"residual, step {step}" for step in SHOWN)], rows)


def draw(walks: dict[tuple[str, float], Tensor], file: Path) -> None:
    figure = Figure(figsize=(3 * len(MASSES), 3 * len(STACKS)), layout="constrained")
    panels = figure.subplots(len(STACKS), len(MASSES), sharex=True, sharey=True).flat
    for panel, ((stack, mass), found) in zip(panels, walks.items(), strict=True):
        for point in range(2):
            panel.plot(*circle(PATH_STEPS)[:, point].T, color="0.85", linewidth=5, zorder=0, label="target path")
            panel.plot(*found[:, point].T, linewidth=1, label=f"point {point + 1}")
            panel.plot(*found[-1, point], "ko", markersize=4, label=f"after {len(found) - 1} steps")
        panel.set(title=f"{stack}, λ = {mass:g}", xlim=(-0.4, 0.4), ylim=(-0.4, 0.4), aspect="equal")
    handles = dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=len(handles), fontsize=9)
    save_figure(figure, file)


if __name__ == "__main__":
    main()
