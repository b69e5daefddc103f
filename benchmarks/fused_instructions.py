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

import triton
from tqdm import tqdm
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks.measure import command_line, write_table
from hf_bidir.kernels.fused_blocks import ALIGNED
from hf_bidir.kernels.fused_launch import KERNELS, SMALL, TILINGS, Variant

COUNTED = ("exponentials", "floating point", "all instructions", "passed over")
TABLED = ("forward", "query_gradient", "key_value_gradient")
SHARED = {80: 163, 86: 99, 89: 99, 90: 227}  # maximum KiB per block, by compute capability
NAMES = {80: "ampere", 86: "other", 89: "ada", 90: "hopper"}  # of fused_tilings.py
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
# arguments that are no integers; those of OPTIONAL may be None
FP32 = ("normaliser", "delta", "parts", "log_totals")
FLOATS = ("scale", "shift", "cap", "dropout")
OPTIONAL = {
    "keep": "*u8", "bias": "*fp32", "shifts": "*fp32", "seed": "*i64", "query_starts": "*i32", "key_starts": "*i32",
    "grad_shift": "*fp32", "grad_bias": "*fp32", "cap": "fp32", "window": "i32",
}  # fmt: skip


def compiled(name, tiling, *, arch=90, dtype="bf16", head_dim=64, value_dim=None, given=(), **changes):
    """A kernel's machine code for compute capability `arch / 10`.

    Args:
        tiling: one of `fused_tilings.py`.
        given: the optional arguments in use.
        changes: fields of `Variant`.
    """
    value_dim, exact = value_dim or head_dim, dtype == "fp32"
    variant = Variant(
        HEAD=head_dim, VALUE=value_dim, HEAD_PAD=triton.next_power_of_2(head_dim),
        VALUE_PAD=triton.next_power_of_2(value_dim), SIGNED=True, EXACT=exact, LEVELLED=dtype != "bf16", CAUSAL=False,
        PER_KEY=False, SHIFTED="shifts" in given, UNIT=8, PRECISION="tf32x3",
    )._replace(**changes)  # fmt: skip
    queries, keys, warps, stages = tiling
    constants = variant._asdict() | {"BLOCK_M": queries, "BLOCK_N": keys}
    constants |= {option: None for option in OPTIONAL if option not in given}
    kernel, signature, attributes = KERNELS[name], {}, {}
    for index, argument in enumerate(kernel.arg_names):
        pointer = f"*{dtype}" if argument in ALIGNED else "*fp32" if argument in FP32 else OPTIONAL.get(argument)
        number = "fp32" if argument in FLOATS else "i32"
        signature[argument] = "constexpr" if argument in constants else pointer or number
        if argument in ALIGNED:
            attributes[(index,)] = [["tt.divisibility", 16]]
    constants = {argument: value for argument, value in constants.items() if argument in kernel.arg_names}
    return built(kernel, signature, constants, attributes, arch, warps, stages)


def built(function, signature, constants, attributes, arch: int, warps: int, stages: int):
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
    source = ASTSource(function, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


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
        for way in ("softmax", "tanhmax", *(["tanhmax without a level"] if name == "forward" else [])):
            mode, size = way.split()[0], max(64, triton.next_power_of_2(head_dim))
            changes = {"head_dim": head_dim, "SIGNED": mode == "tanhmax", "LEVELLED": way == mode}
            tilings = (TILINGS[f"{NAMES[arch]} {name} {mode} {size}"], *SMALL)
            codes = ((tiling, compiled(name, tiling, arch=arch, **changes)) for tiling in tilings)
            tiling, code = next(found for found in codes if found[1].metadata.shared <= SHARED[arch] * 1024)
            held = resources(code)
            rows.append([
                str(head_dim), name.replace("_", " "), way, f"{tiling[0]} x {tiling[1]}, {tiling[2]}, {tiling[3]}",
                *(f"{count:.1f}" for count in per_score(code, tiling)), str(held.registers), str(held.spilled),
                str(held.shared // 1024),
            ])  # fmt: skip
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--arch", type=int, choices=SHARED, default=90, help="80, 86 Ampere, 89 Ada, 90 Hopper")
    parser.add_argument("--head-dims", type=int, nargs="+", default=[64, 128], help="from 16 to 256")
    parser.add_argument("--output", type=Path, default=Path("runs/fused_instructions.md"))
    options = parser.parse_args()
    if not all(16 <= head_dim <= 256 for head_dim in options.head_dims):
        parser.error(f"expected head dimensions in 16 to 256, got {options.head_dims}")
    header = ["head dimension", "kernel", "mode", "block, warps, stages", *COUNTED, "registers", "bytes spilled",
              "shared KiB"]  # fmt: skip
    notes = (
        f"Compiled for sm_{options.arch} by Triton {triton.__version__}, bf16, without mask, λ = 1, with the tiling of "
        "fused_tilings.py. Instructions per score of the loop over whole blocks, without those that a branch skips "
        "unless all scores of a row are small. Without a level is what bf16 uses forward."
    )
    write_table(options.output, "What a signed score costs, in instructions", notes, header,
                kernel_rows(options.arch, options.head_dims), "cpu")  # fmt: skip


if __name__ == "__main__":
    main()
