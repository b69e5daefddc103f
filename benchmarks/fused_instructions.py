"""How many machine instructions does a signed score cost in the fused kernels? Counted in compiled code; needs no GPU.

The kernels are compiled for a given GPU, and the instructions of their loop over whole blocks are counted per score:
those of the special-function unit (exponentials), of the floating-point unit, and all. On Hopper a
quarter of a multiprocessor starts one instruction for 32 scores in a cycle, and the special-function unit takes eight
cycles for one; the tensor cores need 8 cycles for the two products at head dimension 64, 16 at 128.

    python benchmarks/fused_instructions.py
    python benchmarks/fused_instructions.py --arch 80 --head-dims 64 128 256
"""

import os
import re
import subprocess
import tempfile
from collections import Counter
from itertools import product
from pathlib import Path
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "0"

import torch
import triton
from tqdm import tqdm
from triton.backends.compiler import GPUTarget

from benchmarks.measure import command_line, write_table
from hf_bidir.kernels.fused_blocks import Code, Pairs, Problem, Rows
from hf_bidir.kernels.fused_kernels import KeyGradients, QueryGradients, Result
from hf_bidir.kernels.fused_launch import SMALL, built, tilings

COUNTED = ("exponentials", "floating point", "all instructions", "passed over")
TABLED = ("forward", "query_gradient", "key_value_gradient")
SHARED = {80: 163, 86: 99, 89: 99, 90: 227}  # maximum KiB per block, by compute capability
NAMES = {80: "ampere", 86: "ada", 89: "ada", 90: "hopper"}  # of tilings.json
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
NUMBERS = torch.empty(0)  # fp32; kernels are compiled for the types of their arguments
OPTIONAL = {
    "keep": Pairs(torch.empty(0, dtype=torch.uint8), 1, 1, 1), "bias": Pairs(NUMBERS, 1, 1, 1), "shifts": NUMBERS,
    "seed": torch.empty(0, dtype=torch.int64), "cap": 1.0, "window": 1,
}  # fmt: skip


def compiled(name, tiling, *, arch=90, dtype="bfloat16", head_dim=64, value_dim=None, given=(), **changes):
    """A kernel's machine code for compute capability `arch / 10`.

    Args:
        tiling: queries, keys, warps, stages.
        given: the optional arguments in use, of the `Problem` and of `QueryGradients`.
        changes: fields of `Code`.
    """
    value_dim, dtype = value_dim or head_dim, getattr(torch, dtype)
    code = Code(
        head_dim, value_dim, triton.next_power_of_2(head_dim), triton.next_power_of_2(value_dim),
        exact=dtype == torch.float32, levelled=dtype != torch.bfloat16, causal=False, per_key=False, unit=8, wide=False,
        precision="tf32x3" if dtype == torch.float32 else "tf32", rows=tiling[0], columns=tiling[1],
    )  # fmt: skip
    rows = Rows(torch.empty(0, dtype=dtype), 1, 1, 1)
    optional = {option: value if option in given else None for option, value in OPTIONAL.items()}
    optional["dropout"] = None if optional["seed"] is None else 0.1
    problem = Problem(rows, rows, rows, **optional, heads=1, groups=1, queries=1, keys=1, scale=1.0)
    result = Result(rows, NUMBERS)
    shift, bias = NUMBERS if "grad_shift" in given else None, OPTIONAL["bias"] if "grad_bias" in given else None
    arguments = {
        "forward": (problem, result),
        "query_gradient": (problem, rows, result, QueryGradients(rows, NUMBERS, shift, bias)),
        "key_value_gradient": (problem, rows, NUMBERS, NUMBERS, KeyGradients(rows, rows)),
        "decode": (problem, Result(Rows(NUMBERS, 1, 1, 1), NUMBERS), 1, 1),
        "merge": (problem, Result(Rows(NUMBERS, 1, 1, 1), NUMBERS), result, 1),
    }
    return built(name, arguments[name], code._replace(**changes), tiling, GPUTarget("cuda", arch, 32))


def resources(code) -> SimpleNamespace:
    """Shared memory per block in bytes, registers per thread, and spilled bytes."""
    usage = tool("cuobjdump", "-res-usage", code)
    return SimpleNamespace(
        shared=code.metadata.shared,
        registers=int(re.search(r"REG:(\d+)", usage)[1]),
        spilled=int(re.search(r"STACK:(\d+)", usage)[1]),
    )


def tool(name: str, option: str, code) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(code.asm["cubin"])
        return subprocess.run([TOOLS / name, option, file.name], capture_output=True, text=True, check=True).stdout


def main_loop(code) -> tuple[list[str], int]:
    """The instructions of the loop over whole blocks, the first that multiplies matrices; and the number of further
    instructions that a branch may skip, which only rows of small scores need."""
    labels, instructions = {}, []
    for line in tool("nvdisasm", "-c", code).splitlines():
        if label := re.match(r"\s*(\.L_\w+):", line):
            labels[label[1]] = len(instructions)
        elif instruction := re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?(.*?);", line):
            instructions.append(instruction[1])
    found = ((re.search(r"BRA.*`\((\.L_\w+)\)", text), index) for index, text in enumerate(instructions))
    jumps = {index: labels[jump[1]] for jump, index in found if jump}
    loops = (range(first, last + 1) for last, first in jumps.items() if first < last)
    loop = next(loop for loop in loops if any("MMA" in instructions[index] for index in loop))
    inside = [(start, end) for start, end in jumps.items() if start in loop and end in loop]
    passed = {index for start, end in inside for index in range(start + 1, end)}
    return [instructions[index] for index in loop if index not in passed], len(passed)


def per_score(code, tiling) -> list[float]:
    """The number of instructions of the main loop per score, as in COUNTED."""
    queries, keys, warps, _ = tiling
    scores = queries * keys / (32 * warps)  # scores per thread
    loop, passed = main_loop(code)
    names = Counter(text.split()[0].split(".")[0] for text in loop)
    floating = sum(names[name] for name in ("FADD", "FMUL", "FFMA", "FMNMX", "FSETP", "FSEL", "F2FP"))
    return [count / scores for count in (names["MUFU"], floating, len(loop), passed)]


def kernel_rows(arch: int, head_dims: list[int]) -> list[list[str]]:
    rows = []
    for head_dim, name in tqdm([*product(head_dims, TABLED)], unit="kernel"):
        for levelled in (True, False) if name == "forward" else (True,):
            size = max(64, triton.next_power_of_2(head_dim))
            chosen = (tilings()[f"{NAMES[arch]} {name} {size}"], *SMALL)
            codes = (
                (tiling, compiled(name, tiling, arch=arch, head_dim=head_dim, levelled=levelled)) for tiling in chosen
            )
            tiling, code = next(pair for pair in codes if pair[1].metadata.shared <= SHARED[arch] * 1024)
            usage = resources(code)
            queries, keys, warps, stages = tiling
            rows.append(
                [
                    str(head_dim),
                    f"{name.replace('_', ' ')}{'' if levelled else ' without a level'}",
                    f"{queries} x {keys}, {warps}, {stages}",
                    *(f"{count:.1f}" for count in per_score(code, tiling)),
                    str(usage.registers),
                    str(usage.spilled),
                    str(usage.shared // 1024),
                ]
            )
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--arch", type=int, choices=SHARED, default=90, help="80, 86 Ampere, 89 Ada, 90 Hopper")
    parser.add_argument("--head-dims", type=int, nargs="+", default=[64, 128], help="from 16 to 256")
    parser.add_argument("--output", type=Path, default=Path("runs/fused_instructions.md"))
    options = parser.parse_args()
    if not all(16 <= head_dim <= 256 for head_dim in options.head_dims):
        parser.error(f"expected head dimensions in 16 to 256, got {options.head_dims}")
    header = ["head dimension", "kernel", "block, warps, stages", *COUNTED, "registers", "bytes spilled", "shared KiB"]
    notes = (
        f"Compiled for sm_{options.arch} by Triton {triton.__version__}, bf16, without mask, λ = 1, with the tiling of "
        "tilings.json. Instructions per score of the loop over whole blocks, without those that a branch skips "
        "unless all scores of a row are small. Without a level is what bf16 uses forward."
    )
    write_table(options.output, "What a signed score costs, in instructions", notes, header,
                kernel_rows(options.arch, options.head_dims), "cpu")  # fmt: skip


if __name__ == "__main__":
    main()
