"""Which tilings of the fused kernels are the fastest on this GPU? For the table in hf_bidir/kernels/tilings.json.

Times every tiling of a wider list for each kernel, head dimension and length, in bf16, without masks. By default 192
kernels are compiled; where time is short, pass one head dimension or kernel. Table and entries are saved after each
kernel and head dimension.

    python benchmarks/fused_tilings.py
    python benchmarks/fused_tilings.py --head-dims 64 --kernels forward --lengths 4096
    python benchmarks/fused_tilings.py --write      the fastest become those of this compute capability
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks.measure import command_line, write_table
from hf_bidir import bidir_attention
from hf_bidir.common.files import replacing
from hf_bidir.kernels.fused_path import FEW_ROWS, INTERPRETED

HEADS, TOKENS = 12, 32768
LISTED = 6  # tilings in the table, of a kernel, head dimension and length
WARPS_STAGES = ((4, 2), (4, 3), (8, 2), (8, 3))
SIZES = {  # queries, keys
    "forward": ((64, 32), (64, 64), (64, 128), (128, 32), (128, 64), (128, 128)),
    "query_gradient": ((64, 32), (64, 64), (64, 128), (128, 32), (128, 64)),
    "key_value_gradient": ((32, 64), (64, 64), (128, 64), (32, 128), (64, 128)),
}
Tiling = tuple[int, int, int, int]  # queries, keys, warps, stages


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--head-dims", type=int, nargs="+", choices=[64, 128, 256], default=[64, 128, 256])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--kernels", nargs="+", choices=SIZES, default=[*SIZES])
    parser.add_argument("--write", action="store_true", help="write the fastest into tilings.json")
    parser.add_argument("--output", type=Path, default=Path("runs/fused_tilings.md"))
    options = parser.parse_args()
    if INTERPRETED or not torch.cuda.is_available():
        parser.error("expected a GPU and Triton's compiler, got none; benchmarks/fused_resources.py needs no GPU")
    if min(options.lengths) <= FEW_ROWS:
        parser.error(f"expected lengths above {FEW_ROWS}, up to which another kernel is used; got {options.lengths}")
    from hf_bidir.kernels.fused_launch import TILINGS_FILE

    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    notes = (
        f"{HEADS} heads, bf16, batch = {TOKENS} // length; medians by triton.testing.do_bench of a whole call: "
        f"forward, or backward with the other kernel at its own tiling. The {LISTED} fastest of each list."
    )
    header = ["kernel", "head dimension", "length", "queries x keys", "warps", "stages", "ms", "to the fastest"]
    rows = []
    for name, head_dim in tqdm([*product(options.kernels, options.head_dims)], unit="cell"):
        times = {length: timed(name, head_dim, length) for length in options.lengths}
        for length, of_length in times.items():
            rows += table_rows(name, head_dim, length, of_length)[:LISTED]
        write_table(options.output, "Tilings of the fused kernels", notes, header, rows, "cuda")
        best = fastest(times.values())
        if options.write and best is not None:
            write_entry(TILINGS_FILE, f"{capability} {name} {head_dim}", best)


def write_entry(file: Path, entry: str, tiling: Tiling) -> None:
    """Write one entry into a table of tilings, in place of the one with its name."""
    entries = json.loads(file.read_text(encoding="utf-8")) | {entry: [*tiling]}
    lines = ",\n".join(f'  "{name}": {value}' for name, value in entries.items())
    with replacing(file) as temporary:
        temporary.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def timed(name: str, head_dim: int, length: int) -> dict[Tiling, float]:
    """Milliseconds of a call with each tiling of one kernel; those that do not compile or do not fit are absent."""
    from triton.testing import do_bench

    found = {}
    for (queries, keys), (warps, stages) in product(SIZES[name], WARPS_STAGES):
        tiling = (queries, keys, warps, stages)
        with only_tiling(name, tiling):
            try:
                found[tiling] = do_bench(task_of(name, head_dim, length), return_mode="median")
            except Exception as error:  # Triton's compiler raises errors of many kinds
                if isinstance(error, torch.AcceleratorError):  # nothing runs after a failure on the GPU itself
                    raise
    return found


@contextmanager
def only_tiling(name: str, tiling: Tiling) -> Iterator[None]:
    """One tiling for one kernel; the others keep theirs."""
    from hf_bidir.kernels import fused_launch

    candidates = fused_launch.candidates
    fused_launch.candidates = lambda kernel, *given: (tiling,) if kernel == name else candidates(kernel, *given)
    fused_launch._ready.clear()
    try:
        yield
    finally:
        fused_launch.candidates = candidates
        fused_launch._ready.clear()


def task_of(name: str, head_dim: int, length: int) -> Callable[[], object]:
    """A call forward for the forward kernel, else one backward."""
    shape = (max(1, TOKENS // length), length, HEADS, head_dim)
    inputs = [torch.randn(shape, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(3)]
    attend = partial(bidir_attention, *inputs, implementation="fused")
    if name == "forward":
        return attend
    for tensor in inputs:
        tensor.requires_grad_()
    context = attend()[0]
    return partial(torch.autograd.grad, context, inputs, torch.randn_like(context), retain_graph=True)


def table_rows(name: str, head_dim: int, length: int, times: Mapping[Tiling, float]) -> list[list[str]]:
    """Table rows of one kernel, the fastest tiling first."""
    rows = []
    for tiling in sorted(times, key=times.get):
        queries, keys, warps, stages = tiling
        ms, ratio = times[tiling], times[tiling] / min(times.values())
        rows.append([name, str(head_dim), str(length), f"{queries} x {keys}", str(warps), str(stages)])
        rows[-1] += [f"{ms:.3f}", f"{ratio:.3f}"]
    return rows


def fastest(times: Iterable[Mapping[Tiling, float]]) -> Tiling | None:
    """The tiling with the smallest geometric mean over the lengths, of those that ran at all of them."""
    lengths = list(times)
    common = [tiling for tiling in lengths[0] if all(tiling in one for one in lengths)]
    return min(common, key=lambda tiling: math.prod(one[tiling] for one in lengths), default=None)


if __name__ == "__main__":
    main()
