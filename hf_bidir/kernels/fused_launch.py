"""Compiles and launches the Triton kernels: code by a small key, and a fixed tiling for each kernel and GPU.

Triton's own launcher looks at the value of every argument in every call, and an autotuner compiles several tilings for
every kind of input.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers.utils import logging

from hf_bidir.kernels import fused_kernels

from .fused_blocks import Code, Pairs, Rows, triton
from .fused_path import INTERPRETED
from .fused_problem import Prepared

logger = logging.get_logger(__name__)

KERNELS = {
    "forward": fused_kernels.forward_kernel,
    "query_gradient": fused_kernels.query_gradient_kernel,
    "key_value_gradient": fused_kernels.key_value_gradient_kernel,
    "decode": fused_kernels.decode_kernel,
    "merge": fused_kernels.merge_kernel,
}
POINTERS = {
    torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.float64: "*fp64",
    torch.uint8: "*u8", torch.int64: "*i64",
}  # fmt: skip

Tiling = tuple[int, int, int, int]  # queries and keys of a block, warps, pipeline stages
# By architecture or compute capability, kernel, and head dimension rounded up to 64, 128 or 256. Those for Hopper and
# head dimensions up to 128 were measured on an H200, except the forward pass at 64, which is the one without spilled
# registers (`benchmarks/fused_resources.py`); the others are only compiled to fit the memory.
# `benchmarks/fused_tilings.py --write` measures the GPU that it runs on and writes its entries.
TILINGS_FILE = Path(__file__).with_name("tilings.json")
# By compute capability; Blackwell has at least Hopper's memory per block, and GPUs that are not listed have Ada's.
ARCHITECTURES = {
    "8.0": "ampere", "8.6": "ada", "8.9": "ada", "9.0": "hopper", "10.0": "hopper", "10.3": "hopper", "12.0": "ada",
}  # fmt: skip
OTHERS = "ada"
FP32: Tiling = (64, 32, 4, 2)  # three products of tf32 need more registers
# for a GPU with less memory than the tiling of its own needs, as with a bias and large heads
SMALL: tuple[Tiling, ...] = (
    (64, 32, 4, 2),
    (32, 32, 4, 1),
    (32, 16, 4, 1),
    (16, 16, 4, 1),
)
DECODE = ((64, 3), (32, 2), (16, 1))  # keys of a block and stages of the decode kernel


class Ready(NamedTuple):
    """Compiled code, and its constants, with the rows and columns of a block."""

    compiled: Any
    code: Code


_ready: dict[tuple, Ready] = {}


def launch(
    name: str,
    call: Prepared,
    arguments: tuple,
    sequences: int,
    length: int = 1,
) -> None:
    """Run a kernel of KERNELS.

    Args:
        call: what kernels share; its code has no tiling.
        arguments: of the kernel, between the `Problem` and the code.
        length: of each of the sequences, which the kernel divides into blocks.
    """
    arguments = (call.problem, *arguments)
    key = (name, call.code, call.kinds)
    if key not in _ready:
        _ready[key] = _compiled(name, arguments, call.code)
    compiled, code = _ready[key]
    block = code.columns if name == "key_value_gradient" else code.rows
    grid = (sequences * -(-length // block), 1, 1)
    with torch.cuda.device_of(call.problem.query.pointer):  # Triton launches kernels on the current device
        compiled[grid](*arguments, code)


def _compiled(name: str, arguments: tuple, code: Code) -> Ready:
    """A kernel compiled for these arguments, with the first tiling for which the GPU has enough memory."""
    failure: Exception | None = None
    query = arguments[0].query.pointer
    for tiling in candidates(name, code, _gpu(query.device)):
        tiled = code._replace(rows=tiling[0], columns=tiling[1])
        if INTERPRETED:
            return Ready(KERNELS[name], tiled)
        logger.info(f"signed attention: compiling the {name} kernel for this GPU")
        try:
            with torch.cuda.device_of(query):
                compiled = built(name, arguments, tiled, tiling)
                compiled[1, 1, 1]  # loads the code, and so finds out whether it fits
            return Ready(compiled, tiled)
        except triton.runtime.errors.OutOfResources as error:
            failure = error
    raise ValueError(f'no tiling of the {name} kernel fits this GPU: {failure}; use "eager".')


def built(
    name: str,
    arguments: tuple,
    code: Code,
    tiling: Tiling,
    target: Any = None,
) -> Any:
    """A kernel compiled by Triton, without specialising on the values of numbers, for the current GPU or a target."""
    kernel = KERNELS[name]
    constants: dict[tuple, Any] = {(len(arguments),): code}
    aligned = {}
    stride: Any = "i64" if code.wide else "i32"

    def type_of(argument: Any, path: tuple[int, ...]) -> Any:
        if isinstance(argument, Rows | Pairs):
            if isinstance(argument, Rows) and code.unit > 1:
                aligned[(*path, 0)] = [["tt.divisibility", 16]]
            return type(argument)(POINTERS[argument.pointer.dtype], stride, stride, stride)
        if isinstance(argument, tuple):
            return type(argument)(*(type_of(part, (*path, place)) for place, part in enumerate(argument)))
        if argument is None:
            constants[path] = None
            return "constexpr"
        if isinstance(argument, int | float):
            return "i32" if isinstance(argument, int) else "fp32"
        return POINTERS[argument.dtype]

    types = [type_of(argument, (place,)) for place, argument in enumerate(arguments)]
    signature = dict(zip(kernel.arg_names, [*types, "constexpr"], strict=True))
    source = triton.compiler.ASTSource(kernel, signature, constants, aligned)
    *_, warps, stages = tiling
    # fused multiply-add is no longer Triton's default since 3.10
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
    return triton.compile(source, target=target, options=options)


def candidates(name: str, code: Code, gpu: str) -> tuple[Tiling, ...]:
    """The tilings to try, the best first; `gpu` is a compute capability or an architecture."""
    if name == "merge":
        return ((1, 1, 4, 1),)
    if name == "decode":
        sizes = DECODE[-1:] if INTERPRETED else DECODE
        return tuple((code.rows, keys, 4, stages) for keys, stages in sizes)
    if INTERPRETED:
        return ((16, 16, 4, 1),)
    if code.exact:
        return (FP32, *SMALL)
    entry = f"{name} {max(64, code.head_pad, code.value_pad)}"
    tiling = tilings().get(f"{gpu} {entry}") or tilings()[f"{ARCHITECTURES.get(gpu, OTHERS)} {entry}"]
    return (tiling, *SMALL)


@lru_cache
def tilings() -> dict[str, Tiling]:
    """The entries of TILINGS_FILE, such as "hopper forward 64" or "10.0 forward 64"."""
    entries = json.loads(TILINGS_FILE.read_text(encoding="utf-8"))
    return {entry: tuple(tiling) for entry, tiling in entries.items()}


def _gpu(device: torch.device) -> str:
    """The compute capability, such as "9.0"."""
    return OTHERS if INTERPRETED else ".".join(map(str, torch.cuda.get_device_capability(device)))
