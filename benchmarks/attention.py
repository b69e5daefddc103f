"""What does signed attention cost compared with softmax attention, by implementation and length?

Attention alone on random projections: time of forward and of forward + backward as a ratio to torch's softmax attention
on the same inputs in interleaved runs, the peak memory of forward + backward, and the distance of the context from
float64.

    python benchmarks/attention.py
    python benchmarks/attention.py --implementations auto grouped eager --causal --output results/attention-causal.md
    python benchmarks/attention.py --lengths 128 --padding 0.4 --repeats 50
"""

import argparse
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.measure import interleaved_medians, options_of, peak_memory, write_table
from hf_bidir import bidir_attention

BASELINE = "SDPA softmax"
HEADER = ["head dimension", "length", "implementation", "forward", "forward + backward", "peak MiB", "error",
          "baseline ms"]  # fmt: skip


class Problem(NamedTuple):
    """Query, key, value `[batch, heads, length, head_dim]`; with padding, also the keep-mask."""

    query: Tensor
    key: Tensor
    value: Tensor
    keep: Tensor | None = None
    causal: bool = False


class Prepared(NamedTuple):
    """The measured call, without arguments, and the tensors that get gradients."""

    run: Callable[[], Tensor]
    inputs: tuple[Tensor, ...]


def main() -> None:
    options = options_of(
        __doc__,
        "attention",
        on_device=True,
        lengths={"type": int, "nargs": "+", "default": [64, 128, 197, 512, 1024, 2048]},
        head_dims={"type": int, "nargs": "+", "default": [64]},
        implementations={"nargs": "+", "choices": IMPLEMENTATIONS, "default": ["auto", "lift", "eager"]},
        tokens={"type": int, "default": 2048, "help": "batch = tokens // length, at least 1"},
        heads={"type": int, "default": 12, "help": "a multiple of four, for grouped"},
        padding={"type": float, "default": 0.0, "help": "share of padded keys, at most 0.5"},
        causal={"action": "store_true", "help": "query i attends to the keys j <= i"},
        repeats=15,
    )
    notes = (
        f"{options.heads} heads, {options.dtype}, batch = {options.tokens} // length, {options.padding:.0%} padding"
        f"{', causal' * options.causal}, medians of {options.repeats} interleaved runs. Times are ratios to torch's "
        "softmax attention (lower is better), whose own times, measured in the same turns, are in the last column "
        "(forward / both). Error: of the context, relative to float64."
    )
    rows = []
    for head_dim, length in product(options.head_dims, options.lengths):
        torch.compiler.reset()  # after eight recompilations torch.compile would silently fall back to eager mode
        problem = random_problem(head_dim, options.padding, length, options)
        for name in options.implementations:
            rows.append([str(head_dim), str(length), name, *measured(name, problem, options)])
        # saved after every length, so a failure in a long run loses nothing
        write_table(options.output, "Attention alone", notes, HEADER, rows, options.device)


def random_problem(head_dim: int, padding: float, length: int, options: argparse.Namespace) -> Problem:
    batch = max(1, options.tokens // length)
    shape = (batch, length, options.heads, head_dim)
    dtype = getattr(torch, options.dtype)
    drawn = [torch.randn(shape, device=options.device, dtype=dtype) for _ in range(3)]
    query, key, value = (x.transpose(1, 2).requires_grad_() for x in drawn)
    if not padding:
        return Problem(query, key, value, causal=options.causal)
    kept = torch.linspace(1, 1 - 2 * padding, batch) if batch > 1 else torch.tensor([1 - padding])
    lengths = kept.mul(length).round().clamp_min(1)
    keep = torch.arange(length) < lengths.unsqueeze(1)
    return Problem(query, key, value, keep[:, None, None].to(options.device), options.causal)


def measured(name: str, problem: Problem, options: argparse.Namespace) -> list[str]:
    """Ratios of forward and of both, peak memory, error, times of the baseline."""
    # only pairs are interleaved: next to an implementation that allocates gigabytes, every other one is slower
    tasks = {which: IMPLEMENTATIONS[which](problem) for which in (BASELINE, name)}
    try:
        forward = interleaved_medians(
            {which: partial(without_gradient, task) for which, task in tasks.items()}, options.repeats
        )
        both = interleaved_medians(
            {which: partial(with_gradient, task) for which, task in tasks.items()}, options.repeats
        )
        memory = peak_memory(partial(with_gradient, tasks[name]), options.device)
    except torch.OutOfMemoryError:
        return ["out of memory", "", "", "", ""]
    return [
        f"{forward[name] / forward[BASELINE]:.2f}",
        f"{both[name] / both[BASELINE]:.2f}",
        "" if memory is None else f"{memory:.0f}",
        f"{relative_error(name, problem):.1e}",
        f"{1e3 * forward[BASELINE]:.2f} / {1e3 * both[BASELINE]:.2f}",
    ]


def without_gradient(task: Prepared) -> None:
    with torch.no_grad():
        task.run()


def with_gradient(task: Prepared) -> None:
    context = task.run()
    torch.autograd.grad(context, task.inputs, torch.ones_like(context))


def relative_error(name: str, problem: Problem) -> float:
    """Relative distance from float64 of the last example, which has most padding; of its first four heads."""
    keep = None if problem.keep is None else problem.keep[-1:]
    query, key, value = (x[-1:, :4].detach() for x in problem[:3])
    part = Problem(query, key, value, keep, problem.causal)
    with torch.no_grad():
        context = IMPLEMENTATIONS[name](part).run()
        if name == "grouped":
            key, value = key[:, :1], value[:, :1]
        exact = tanhmax("eager", query.double(), key.double(), value.double(), keep, problem.causal)
    return ((context - exact).norm() / exact.norm()).item()


def sdpa(problem: Problem) -> Prepared:
    """torch's softmax attention; with padding, the mask is computed once, as in a model."""
    query, key, value, keep, causal = problem
    if causal and keep is not None:
        keep = keep & torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=keep.device).tril()
    options = {"attn_mask": keep, "is_causal": causal and keep is None}
    return Prepared(partial(F.scaled_dot_product_attention, query, key, value, **options), (query, key, value))


def tanhmax(implementation: str, query, key, value, keep, causal) -> Tensor:
    return bidir_attention(query, key, value, keep, causal=causal, implementation=implementation)[0]


def prepared(attend: Callable, problem: Problem) -> Prepared:
    return Prepared(partial(attend, *problem), problem[:3])


def grouped(problem: Problem) -> Prepared:
    """Four query heads per key head."""
    key, value = (x.detach()[:, : x.shape[1] // 4].requires_grad_() for x in (problem.key, problem.value))
    return prepared(partial(tanhmax, "auto"), problem._replace(key=key, value=value))


@lru_cache
def compiled() -> Callable:
    return torch.compile(partial(tanhmax, "eager"), dynamic=True)


IMPLEMENTATIONS = {
    BASELINE: sdpa,
    **{name: partial(prepared, partial(tanhmax, name)) for name in ("auto", "eager", "chunked", "lift", "fused")},
    "compiled": lambda problem: prepared(compiled(), problem),
    "grouped": grouped,
}


if __name__ == "__main__":
    main()
