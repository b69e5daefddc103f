"""How many registers and how much shared memory do the fused kernels need? Read off compiled code; needs no GPU.

python benchmarks/fused_resources.py
python benchmarks/fused_resources.py --arch 80 --head-dims 64 128 256
"""

import os
import re
import subprocess
import tempfile
from itertools import product
from pathlib import Path
from typing import NamedTuple

os.environ["TRITON_INTERPRET"] = "0"

import torch
import triton
from tqdm import tqdm
from triton.backends.compiler import GPUTarget

from benchmarks.measure import command_line, write_table
from hf_bidir.kernels.fused_blocks import Code, Pairs, Problem, Rows
from hf_bidir.kernels.fused_kernels import KeyGradients, QueryGradients, Result
from hf_bidir.kernels.fused_launch import SMALL, built, tilings

TABLED = ("forward", "query_gradient", "key_value_gradient")
SHARED = {80: 163, 86: 99, 89: 99, 90: 227}  # maximum KiB per block, by compute capability
NAMES = {80: "ampere", 86: "ada", 89: "ada", 90: "hopper"}  # of tilings.json
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
NUMBERS = torch.empty(0)  # fp32; kernels are compiled for the types of their arguments
OPTIONAL = {
    "keep": Pairs(torch.empty(0, dtype=torch.uint8), 1, 1, 1), "bias": Pairs(NUMBERS, 1, 1, 1), "shifts": NUMBERS,
    "seed": torch.empty(0, dtype=torch.int64), "cap": 1.0, "window": 1,
}  # fmt: skip


def compiled(name, tiling, given=(), *, arch=90, dtype="bfloat16", head_dim=64, **changes):
    """A kernel's machine code for compute capability `arch / 10`.

    Args:
        tiling: queries, keys, warps, stages.
        given: the optional arguments in use, of the `Problem` and of `QueryGradients`.
        changes: fields of `Code`.
    """
    dtype = getattr(torch, dtype)
    pad = triton.next_power_of_2(head_dim)
    code = Code(
        head_dim, head_dim, pad, pad,
        exact=dtype == torch.float32, levelled=dtype != torch.bfloat16, causal=False, per_key=False, unit=8, wide=False,
        precision=int(dtype == torch.float32), rows=tiling[0], columns=tiling[1],
    )  # fmt: skip
    rows = Rows(torch.empty(0, dtype=dtype), 1, 1, 1)
    optional = {option: value if option in given else None for option, value in OPTIONAL.items()}
    optional["dropout"] = None if optional["seed"] is None else 0.1
    problem = Problem(rows, rows, rows, **optional, heads=1, groups=1, queries=1, keys=1, scale=1.0)
    result = Result(rows, NUMBERS)
    shift = NUMBERS if "grad_shift" in given else None
    bias = OPTIONAL["bias"] if "grad_bias" in given else None
    arguments = {
        "forward": (problem, result),
        "query_gradient": (problem, rows, result, QueryGradients(rows, NUMBERS, shift, bias)),
        "key_value_gradient": (problem, rows, NUMBERS, NUMBERS, KeyGradients(rows, rows)),
        "decode": (problem, Result(Rows(NUMBERS, 1, 1, 1), NUMBERS), 1, 1),
        "merge": (problem, Result(Rows(NUMBERS, 1, 1, 1), NUMBERS), result, 1),
    }
    return built(name, arguments[name], code._replace(**changes), tiling, GPUTarget("cuda", arch, 32))


class Resources(NamedTuple):
    """Shared memory per block in KiB, registers per thread, and spilled bytes."""

    shared: int
    registers: int
    spilled: int


def resources(code) -> Resources:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(code.asm["cubin"])
        command = [TOOLS / "cuobjdump", "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, spilled = (int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "STACK"))
    return Resources(code.metadata.shared // 1024, registers, spilled)


def kernel_rows(arch: int, head_dims: list[int]) -> list[list[str]]:
    rows = []
    for head_dim, name in tqdm([*product(head_dims, TABLED)], unit="kernel"):
        for levelled in (True, False) if name == "forward" else (True,):
            size = max(64, triton.next_power_of_2(head_dim))
            for tiling in (tilings()[f"{NAMES[arch]} {name} {size}"], *SMALL):
                usage = resources(compiled(name, tiling, arch=arch, head_dim=head_dim, levelled=levelled))
                if usage.shared <= SHARED[arch]:
                    break
            label = f"{name.replace('_', ' ')}{'' if levelled else ' without a level'}"
            rows.append([str(head_dim), label, ", ".join(map(str, tiling)), *map(str, usage)])
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--arch", type=int, choices=SHARED, default=90, help="80, 86 Ampere, 89 Ada, 90 Hopper")
    parser.add_argument("--head-dims", type=int, nargs="+", default=[64, 128], help="from 16 to 256")
    parser.add_argument("--output", type=Path, default=Path("runs/fused_resources.md"))
    options = parser.parse_args()
    header = ["head dimension", "kernel", "queries, keys, warps, stages", "shared KiB", "registers", "bytes spilled"]
    notes = (
        f"Compiled for sm_{options.arch} by Triton {triton.__version__}, bf16, without mask, λ = 1, with the tiling of "
        "tilings.json. Without a level is what bf16 uses forward."
    )
    rows = kernel_rows(options.arch, options.head_dims)
    write_table(options.output, "What the fused kernels need", notes, header, rows, "cpu")


if __name__ == "__main__":
    main()
