"""How much does signed attention cost beside softmax attention, by implementation and length?

Attention alone on random projections: time of forward and of forward + backward as a ratio to torch's SDPA softmax on
the same inputs, all implementations taking turns in one run, and the peak memory of forward + backward.

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
    parser.add_argument("--implementations", nargs="+", default=["auto", "chunked", "compiled", "lift", "eager"])
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
        f"Times are ratios to {BASELINE} (lower is better); its own times are in the last column."
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
    attend = {BASELINE: lambda: F.scaled_dot_product_attention(*inputs, keep)}
    for name in options.implementations:
        attend[name] = partial(lambda name: bidir_attention(*inputs, keep, implementation=name)[0], name)
    forward = {name: partial(_without_gradient, fn) for name, fn in attend.items()}
    both = {name: partial(_with_gradient, fn, inputs, upstream) for name, fn in attend.items()}
    forward_time = interleaved_medians(forward, options.repeats)
    both_time = interleaved_medians(both, options.repeats)
    rows = []
    for name in attend:
        memory = peak_memory(both[name], options.device)
        row = [str(length), name]
        row += [f"{times[name] / times[BASELINE]:.2f}" for times in (forward_time, both_time)]
        row.append("" if memory is None else f"{memory:.0f}")
        row.append(f"{1e3 * forward_time[name]:.2f} / {1e3 * both_time[name]:.2f}" if name == BASELINE else "")
        rows.append(row)
    return rows


def _without_gradient(attend) -> None:
    with torch.no_grad():
        attend()


def _with_gradient(attend, inputs, upstream) -> None:
    torch.autograd.grad(attend(), inputs, upstream)


if __name__ == "__main__":
    main()
