"""Which tilings of the fused kernels are the fastest on this GPU? For the lists in hf_bidir/modeling/fused_kernels.py.

Times every tiling of a wider list for each kernel, head dimension and length, in bf16,
without masks.

    python benchmarks/fused_tilings.py
    python benchmarks/fused_tilings.py --head-dims 64 --kernels forward --modes tanhmax --lengths 4096
"""

import argparse
import math
from itertools import product
from pathlib import Path

import torch
import triton
from measure import write_table
from tqdm import tqdm

from hf_bidir import bidir_attention
from hf_bidir.modeling import fused_kernels
from hf_bidir.modeling.attention_inputs import INTERPRETED

HEADS, TOKENS = 12, 32768
WARPS_STAGES = ((4, 2), (4, 3), (8, 2), (8, 3))
SIZES = {  # queries, keys
    "forward": ((64, 32), (64, 64), (64, 128), (128, 32), (128, 64), (128, 128)),
    "query_gradient": ((64, 32), (64, 64), (64, 128), (128, 32), (128, 64)),
    "key_value_gradient": ((32, 64), (64, 64), (128, 64), (32, 128), (64, 128)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-dims", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--kernels", nargs="+", choices=SIZES, default=[*SIZES])
    parser.add_argument("--modes", nargs="+", choices=["tanhmax", "softmax"], default=["tanhmax", "softmax"])
    parser.add_argument("--best", type=int, default=6, help="tilings to list per kernel, head dimension and length")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "fused_tilings.md")
    options = parser.parse_args()
    if INTERPRETED or not torch.cuda.is_available():
        parser.error("expected a GPU and Triton's compiler, got none; benchmarks/fused_instructions.py needs no GPU")
    rows = []
    cells = [*product(options.kernels, options.modes, options.head_dims, options.lengths)]
    for cell in tqdm(cells, unit="cell"):
        rows += timed(*cell)[: options.best]
    notes = (
        f"{HEADS} heads, bf16, batch = {TOKENS} // length; medians by triton.testing.do_bench, the fastest "
        f"{options.best} tilings of each list. In use: whether fused_kernels.py lists the tiling."
    )
    header = ["kernel", "mode", "head dimension", "length", "queries x keys", "warps", "stages", "in use",
              "ms", "to the fastest"]  # fmt: skip
    write_table(options.output, "Tilings of the fused kernels", notes, header, rows, "cuda")


def timed(name: str, mode: str, head_dim: int, length: int) -> list[list[str]]:
    """Table rows of one kernel, the fastest tiling first."""
    kernel = getattr(fused_kernels, f"{name}_kernel")
    in_use = kernel.configs
    used = {str(config) for config in in_use}
    try:
        kernel.configs = candidates(name)
        kernel.cache.clear()
        kernel.configs_timings = {}
        attend(mode, head_dim, length, backward=name != "forward")
        medians = {str(config): (config, ms) for config, ms in _medians(kernel)}
    finally:
        kernel.configs = in_use
        kernel.cache.clear()
    ordered = sorted(medians.values(), key=lambda pair: pair[1])
    return [
        [
            name, mode, str(head_dim), str(length), f"{config.kwargs['BLOCK_M']} x {config.kwargs['BLOCK_N']}",
            str(config.num_warps), str(config.num_stages), "yes" if str(config) in used else "",
            f"{ms:.3f}", f"{ms / ordered[0][1]:.3f}",
        ]
        for config, ms in ordered
    ]  # fmt: skip


def candidates(name: str) -> list[triton.Config]:
    return [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=warps, num_stages=stages)
        for (m, n), (warps, stages) in product(SIZES[name], WARPS_STAGES)
    ]


def attend(mode: str, head_dim: int, length: int, backward: bool) -> None:
    shape = (max(1, TOKENS // length), length, HEADS, head_dim)
    query, key, value = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for _ in range(3)
    )
    context = bidir_attention(query, key, value, activation=mode, implementation="fused")[0]
    if backward:
        context.backward(torch.ones_like(context))


def _medians(kernel) -> list[tuple[triton.Config, float]]:
    """Milliseconds of every tiling that compiled and ran in the last tuning."""
    times = [(config, times if isinstance(times, float) else times[0]) for config, times in
             kernel.configs_timings.items()]  # fmt: skip
    return [(config, ms) for config, ms in times if math.isfinite(ms)]


if __name__ == "__main__":
    main()
