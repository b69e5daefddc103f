"""What does signed attention cost compared with softmax attention, by implementation and length?

Attention alone on random projections: time of forward and of forward + backward as a ratio to another implementation on
the same inputs in interleaved runs, the peak memory of forward + backward, and the distance of the context from
float64. On a GPU: bf16, long sequences, head dimensions 64 and 128, and the fused kernel beside its
alternatives.

    python benchmarks/attention.py
    python benchmarks/attention.py --causal        causal masks; also four query heads per key head
    python benchmarks/attention.py --lengths 128 --padding 0.4 --repeats 50
"""

import argparse
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.measure import interleaved_medians, peak_memory, write_table
from hf_bidir import bidir_attention
from hf_bidir.kernels.fused_path import INTERPRETED

BASELINE = "SDPA softmax"
DEFAULTS = {
    "cpu": {
        "lengths": [64, 128, 197, 512, 1024, 2048], "tokens": 2048, "head_dims": [64], "padding": [0.0],
        "implementations": ["auto", "lift", "eager"], "dtype": "float32",
    },
    "cuda": {
        "lengths": [128, 197, 512, 1024, 2048, 4096, 8192, 16384], "tokens": 32768, "head_dims": [64, 128],
        "padding": [0.0, 0.4], "dtype": "bfloat16",
        "implementations": ["fused", "lift", "compiled", "naive"],
    },
}  # fmt: skip
CAUSAL = {
    "cpu": {"lengths": [512, 1024, 2048], "implementations": ["auto", "grouped", "eager"]},
    "cuda": {"implementations": ["fused", "grouped", "lift", "compiled", "naive"]},
}
# the baseline of each implementation; of those not listed, BASELINE alone
BESIDE = {"fused": [BASELINE, "lift"], "grouped": ["auto"]}


class Problem(NamedTuple):
    """Query, key, value `[batch, heads, length, head_dim]`; with padding, also the keep-mask and the lengths."""

    query: Tensor
    key: Tensor
    value: Tensor
    keep: Tensor | None
    lengths: Tensor | None
    causal: bool = False


def main() -> None:
    options = arguments()
    header = ["head dimension", "padding", "length", "implementation", "beside", "forward", "forward + backward",
              "peak MiB", "error", "baseline ms"]  # fmt: skip
    notes = (
        f"{options.heads} heads, {options.dtype}, batch = {options.tokens} // length, medians of {options.repeats} "
        "interleaved runs. Times are ratios to the implementation in the column `beside` (lower is better); that one's "
        "own times, measured in the same turns, are in the last column (forward / both). Error: of the context, "
        "relative to float64."
    )
    rows = []
    for head_dim, padding, length in product(options.head_dims, options.padding, options.lengths):
        rows += measure(head_dim, padding, length, options)
        # saved after every length, so a failure in a long run loses nothing
        write_table(options.output, "Attention alone", notes, header, rows, options.device)


def arguments() -> argparse.Namespace:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # --causal is parsed first, because defaults depend on it
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--causal", action="store_true", help="query i attends to the keys j <= i")
    default = DEFAULTS[device] | (CAUSAL[device] if parser.parse_known_args()[0].causal else {})
    parser = argparse.ArgumentParser(
        parents=[parser], description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=default["lengths"])
    parser.add_argument("--tokens", type=int, default=default["tokens"], help="batch = tokens // length, at least 1")
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--head-dims", type=int, nargs="+", default=default["head_dims"])
    parser.add_argument("--padding", type=float, nargs="+", default=default["padding"], help="shares of padded keys")
    parser.add_argument("--implementations", nargs="+", choices=IMPLEMENTATIONS, default=default["implementations"])
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default=default["dtype"])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--device", default=device)
    parser.add_argument("--output", type=Path, help="default: results/attention[-gpu][-causal][-padded].md")
    options = parser.parse_args()
    if options.heads % 4:
        parser.error(f"expected a number of heads that four divides, for grouped; got {options.heads}")
    if not all(0 <= share <= 0.5 for share in options.padding):
        parser.error(f"expected shares of padding in 0 to 0.5, got {options.padding}")
    if options.device == "cpu" and not INTERPRETED and "fused" in options.implementations:
        parser.error("fused needs a GPU")
    if options.output is None:
        name = f"attention{'-gpu' * (options.device == 'cuda')}{'-causal' * options.causal}"
        name += f"{'-padded' * (0.0 not in options.padding)}.md"
        options.output = Path(__file__).parent / "results" / name
    return options


def measure(head_dim: int, padding: float, length: int, options: argparse.Namespace) -> list[list[str]]:
    """One row per implementation and its baseline."""
    torch.compiler.reset()  # after eight recompilations torch.compile would silently fall back to eager mode
    problem = random_problem(head_dim, padding, length, options)
    rows = []
    for name in options.implementations:
        for other in BESIDE.get(name, [BASELINE]):
            try:
                cells = compare(IMPLEMENTATIONS[name], IMPLEMENTATIONS[other], problem, options)
            except torch.OutOfMemoryError:
                cells = ["out of memory", "", "", "", ""]
            except RuntimeError as error:
                cells = [f"failed: {str(error).splitlines()[0][:60]}", "", "", "", ""]
            rows.append([str(head_dim), f"{padding:.0%}", str(length), name, other, *cells])
    return rows


def random_problem(head_dim: int, padding: float, length: int, options: argparse.Namespace) -> Problem:
    batch = max(1, options.tokens // length)
    shape, dtype = (batch, length, options.heads, head_dim), getattr(torch, options.dtype)
    tensors = [
        torch.randn(shape, device=options.device, dtype=dtype).transpose(1, 2).requires_grad_() for _ in range(3)
    ]
    if not padding:
        return Problem(*tensors, None, None, options.causal)
    kept = torch.linspace(1, 1 - 2 * padding, batch) if batch > 1 else torch.tensor([1 - padding])
    lengths = kept.to(options.device).mul(length).round().clamp_min(1)
    keep = (torch.arange(length, device=options.device) < lengths.unsqueeze(1))[:, None, None]
    return Problem(*tensors, keep, lengths.int(), options.causal)


def compare(attend: Callable, other: Callable, problem: Problem, options: argparse.Namespace) -> list[str]:
    """Cells: ratios of forward and of both, peak memory, error, times of the baseline."""
    # Interleave only pairs: next to an implementation that allocates gigabytes, every other one is slower.
    tasks = [prepared(problem) for prepared in (attend, other)]
    forward = _pair([partial(without_gradient, task) for task in tasks], options.repeats)
    error = f"{relative_error(attend, problem):.1e}"
    both_tasks = [partial(with_gradient, task) for task in tasks]
    both = _pair(both_tasks, options.repeats)
    memory = peak_memory(both_tasks[0], options.device)
    return [
        f"{forward[0] / forward[1]:.2f}",
        f"{both[0] / both[1]:.2f}",
        "" if memory is None else f"{memory:.0f}",
        error,
        f"{1e3 * forward[1]:.2f} / {1e3 * both[1]:.2f}",
    ]


class Prepared(NamedTuple):
    """The measured call, without arguments, and the tensors that get gradients."""

    run: Callable[[], Tensor]
    inputs: tuple[Tensor, ...]


def padded(attend: Callable, problem: Problem) -> Prepared:
    query, key, value, keep, _, causal = problem
    return Prepared(partial(attend, query, key, value, keep, causal), (query, key, value))


def grouped(problem: Problem) -> Prepared:
    """Four query heads per key head."""
    key, value = (x.detach()[:, : x.shape[1] // 4].requires_grad_() for x in (problem.key, problem.value))
    return padded(partial(signed, "auto"), problem._replace(key=key, value=value))


def sdpa(problem: Problem) -> Prepared:
    """torch's softmax attention; with padding, the mask is computed once, as in a model."""
    query, key, value, keep, _, causal = problem
    if causal and keep is not None:
        keep = keep & torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=keep.device).tril()
    options = {"attn_mask": keep, "is_causal": causal and keep is None}
    return Prepared(partial(F.scaled_dot_product_attention, query, key, value, **options), (query, key, value))


def signed(implementation: str, query, key, value, keep, causal, activation: str = "tanhmax") -> Tensor:
    options = {"activation": activation, "causal": causal, "implementation": implementation}
    return bidir_attention(query, key, value, keep, **options)[0]


@lru_cache
def compiled() -> Callable:
    return torch.compile(partial(signed, "eager"), dynamic=True)


def naive(query, key, value, keep, causal) -> Tensor:
    """The paper's formula as in its code, without protection from overflow."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    up, down = scores.exp(), (-scores).exp()
    if causal:
        up, down = up.tril(), down.tril()
    if keep is not None:
        up, down = up * keep, down * keep
    return (up - down) / (up + down).sum(-1, keepdim=True) @ value


IMPLEMENTATIONS = {
    BASELINE: sdpa,
    **{name: partial(padded, partial(signed, name)) for name in ("auto", "eager", "chunked", "lift", "fused")},
    "compiled": lambda problem: padded(compiled(), problem),
    "grouped": grouped,
    "naive": partial(padded, naive),
}


def relative_error(attend: Callable, problem: Problem) -> float:
    """Relative distance from float64 of the first head (grouped: four) of the last example, which has most padding."""
    heads = 4 if attend is grouped else 1
    one = [x[-1:, :heads].detach() for x in problem[:3]]
    lengths = None if problem.lengths is None else problem.lengths[-1:]
    keep = None if problem.keep is None else problem.keep[-1:]
    softmax = attend is IMPLEMENTATIONS[BASELINE]
    with torch.no_grad():
        query, key, value = (x.double() for x in one)
        if attend is grouped:
            key, value = key[:, :1], value[:, :1]
        exact = signed("eager", query, key, value, keep, problem.causal, "softmax" if softmax else "tanhmax")
        context = attend(Problem(*one, keep, lengths, problem.causal)).run().double()
    return ((context - exact).norm() / exact.norm()).item()


def _pair(tasks: list[Callable], repeats: int) -> list[float]:
    return list(interleaved_medians(dict(zip(("one", "other"), tasks, strict=True)), repeats).values())


def without_gradient(task: Prepared) -> None:
    with torch.no_grad():
        task.run()


def with_gradient(task: Prepared) -> None:
    context = task.run()
    torch.autograd.grad(context, task.inputs, torch.ones_like(context))


if __name__ == "__main__":
    main()
