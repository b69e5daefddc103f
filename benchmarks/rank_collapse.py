"""Does a deep stack suffer rank collapse, with softmax and with TanhMax?

    python benchmarks/rank_collapse.py

A BERT-base-shaped stack of 12 layers with random weights, as transformers initialises them, on random tokens; in double
precision. Means over seeds. The table goes to benchmarks/results/rank_collapse.md, the figure to
docs/rank-collapse.png.
"""

import argparse
from pathlib import Path

import torch
from measure import write_table
from tqdm import tqdm

from hf_bidir import BidirBertConfig, BidirBertModel
from hf_bidir.rank_collapse.report import RankCollapse, draw_rank_collapse, measure_rank_collapse

ROOT = Path(__file__).resolve().parent.parent
MASSES = (0.0, 0.25, 0.5, 0.75, 1.0)
HEADER = ["λ", "stack", "input", "layer 1", "layer 2", "layer 3", "layer 6", "layer 12"]
SHOWN = (0, 1, 2, 3, 6, 12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="of weights and tokens")
    parser.add_argument("--length", type=int, default=64, help="tokens")
    parser.add_argument("--paths", type=int, default=20, help="number of random paths per length and seed")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs/rank-collapse.png")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results/rank_collapse.md")
    options = parser.parse_args()
    measured = {f"λ = {mass:g}": measure(mass, options) for mass in tqdm(MASSES, unit="model")}
    rows = []
    for name, found in measured.items():
        mass = name.removeprefix("λ = ")
        rows += [[mass, stack, *(f"{curve[layer]:.1e} ({found.ranks[stack][layer]:.1f})" for layer in SHOWN)]
                 for stack, curve in found.stacks.items()]  # fmt: skip
        middle = found.paths.median(1).values
        rows.append([mass, "paths through this many heads (median)", *(f"{middle[layer]:.1e}" for layer in SHOWN)])
    draw_rank_collapse(measured, options.picture)
    notes = (
        f"Relative residual ‖res(X)‖ / ‖X‖ (Dong et al. 2021) of {options.length} tokens, mean over {options.seeds} "
        "seeds and two sequences each; 0 where all tokens are equal. In brackets the stable rank of the residual, "
        "which is rounding where the residual is below 1e-14. λ = 0 is softmax, λ = 1 is TanhMax. All stacks have "
        "layer normalisation."
    )
    write_table(options.results, "Rank collapse", notes, HEADER, rows, "cpu")


def measure(mass: float, options: argparse.Namespace) -> RankCollapse:
    """The mean over seeds for one negative mass."""
    found = []
    for seed in range(options.seeds):
        torch.manual_seed(seed)
        model = BidirBertModel(BidirBertConfig(attn_negative_mass=mass)).eval()
        inputs = {"input_ids": torch.randint(model.config.vocab_size, (2, options.length))}
        found.append(measure_rank_collapse(model, inputs, options.paths))
    stacks, ranks = (
        {name: torch.stack([part[name] for part in parts]).mean(0) for name in parts[0]}
        for parts in ([one.stacks for one in found], [one.ranks for one in found])
    )
    return RankCollapse(stacks, ranks, torch.cat([one.paths for one in found], 1))


if __name__ == "__main__":
    main()
