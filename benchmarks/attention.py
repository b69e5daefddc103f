"""How much does signed attention cost beside softmax attention, by implementation and length?

Attention alone on random projections: time of forward and of forward + backward as a ratio to torch's SDPA softmax on
the same inputs, each implementation taking turns with it, and the peak memory of forward + backward.

    python benchmarks/attention.py
    python benchmarks/attention.py --lengths 128 --padding 0.4 --repeats 50
"""

import argparse
from functools import partial
from pathlib import Path

import torch
from measure import interleaved_medians, peak_memory, write_table
from torch.nn import functional as F

from hf_bidir import bidir_attention

BASELINE = "SDPA softmax"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 197, 512, 1024, 2048])
    parser.add_argument("--tokens", type=int, default=2048, help="batch = tokens // length, at least 1")
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--padding", type=float, default=0.0, help="share of the keys that a padding mask drops")
    parser.add_argument("--implementations", nargs="+", default=["auto", "compiled", "lift", "eager"])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, help="default: results/attention[-padded].md")
    options = parser.parse_args()
    name = f"attention{'-padded' if options.padding else ''}.md"
    output = options.output or Path(__file__).parent / "results" / name
    rows = [row for length in options.lengths for row in measure_length(length, options)]
    header = ["length", "implementation", "forward", "forward + backward", "peak MiB", "baseline ms"]
    notes = (
        f"{options.heads} heads of {options.head_dim}, fp32, batch = {options.tokens} // length, "
        f"{options.padding:.0%} padding, medians of {options.repeats} interleaved runs. "
        f"Times are ratios to {BASELINE} (lower is better); its own times, measured in the same turns, are in the last "
        "column (forward / both)."
    )
    write_table(output, "Attention alone", notes, header, rows, options.device)


def measure_length(length: int, options: argparse.Namespace) -> list[list[str]]:
    """One table row per implementation."""
    batch = max(1, options.tokens // length)
    shape = (batch, length, options.heads, options.head_dim)
    inputs = [torch.randn(shape, device=options.device).transpose(1, 2).detach().requires_grad_() for _ in range(3)]
    upstream = torch.randn(shape, device=options.device).transpose(1, 2)
    keep = None
    if options.padding:
        kept = torch.linspace(1, 1 - 2 * options.padding, batch, device=options.device).mul(length).round().clamp_min(1)
        keep = (torch.arange(length, device=options.device) < kept.unsqueeze(1))[:, None, None]
    softmax = partial(F.scaled_dot_product_attention, *inputs, keep)
    rows = []
    for name in options.implementations:
        signed = partial(_signed, inputs, keep, name)
        # Each in turns with the baseline alone: beside a path that allocates gigabytes, every other one looks slow.
        forward = [partial(_without_gradient, attend) for attend in (softmax, signed)]
        both = [partial(_with_gradient, attend, inputs, upstream) for attend in (softmax, signed)]
        forward_times, both_times = (_pair(tasks, options.repeats) for tasks in (forward, both))
        ratios = [f"{signed_time / softmax_time:.2f}" for softmax_time, signed_time in (forward_times, both_times)]
        memory = peak_memory(both[1], options.device)
        baseline = f"{1e3 * forward_times[0]:.2f} / {1e3 * both_times[0]:.2f}"
        rows.append([str(length), name, *ratios, "" if memory is None else f"{memory:.0f}", baseline])
    return rows


def _pair(tasks, repeats: int) -> list[float]:
    return list(interleaved_medians(dict(zip((BASELINE, "signed"), tasks, strict=True)), repeats).values())


def _signed(inputs, keep, implementation: str) -> torch.Tensor:
    return bidir_attention(*inputs, keep, implementation=implementation)[0]


def _without_gradient(attend) -> None:
    with torch.no_grad():
        attend()


def _with_gradient(attend, inputs, upstream) -> None:
    torch.autograd.grad(attend(), inputs, upstream)


if __name__ == "__main__":
    main()
