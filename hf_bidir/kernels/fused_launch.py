"""Launches the Triton kernels: compiled code by a small key, and a fixed tiling for each kernel and GPU.

Triton's own launcher looks at the value of every argument in every call, and an autotuner compiles several tilings for
every kind of input.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from threading import Timer
from typing import Any, NamedTuple

import torch
from transformers.utils import logging

from hf_bidir.kernels.fused_blocks import triton
from hf_bidir.kernels.fused_kernels import (
    decode_kernel,
    forward_kernel,
    key_value_gradient_kernel,
    merge_kernel,
    query_gradient_kernel,
)
from hf_bidir.kernels.fused_path import INTERPRETED
from hf_bidir.kernels.fused_tilings import ARCHITECTURES, DECODE, FP32, OTHERS, SMALL, TILINGS, Tiling

logger = logging.get_logger(__name__)

KERNELS = {
    "forward": forward_kernel,
    "query_gradient": query_gradient_kernel,
    "key_value_gradient": key_value_gradient_kernel,
    "decode": decode_kernel,
    "merge": merge_kernel,
}
SILENT_SECONDS = 2.0  # a compilation that takes longer is announced


class Variant(NamedTuple):
    """What a kernel is compiled for apart from its tiling; the fields are the first constants of the kernels."""

    HEAD: int
    VALUE: int
    HEAD_PAD: int
    VALUE_PAD: int
    SIGNED: bool
    EXACT: bool
    LEVELLED: bool
    CAUSAL: bool
    PER_KEY: bool
    SHIFTED: bool
    UNIT: int
    PRECISION: str


class Ready(NamedTuple):
    """Compiled code, the rows of a program, and the values of the kernel's constants."""

    compiled: Any
    rows: int
    constants: tuple


_ready: dict[tuple, Ready] = {}


def launch(name: str, variant: tuple, kinds: tuple, arguments: tuple, sequences: int, longest: int = 1) -> None:
    """Run a kernel of KERNELS on all blocks of rows of `sequences` sequences, of which the longest has `longest` rows.

    `variant` is a `Variant`; for "merge" its own constants, for "decode" a `Variant` and the rows of its one block.
    `kinds` is what else compiled code depends on: the device, dtypes, and which optional arguments are None.
    """
    if sequences * longest == 0:
        return
    key = (name, variant, kinds)
    if key not in _ready:
        _ready[key] = _compiled(name, variant, arguments)
    compiled, rows, constants = _ready[key]
    grid = (sequences * -(-longest // rows), 1, 1)
    if _several_gpus():
        with torch.cuda.device_of(arguments[0]):  # Triton launches kernels on the current device
            compiled[grid](*arguments, *constants)
    else:
        compiled[grid](*arguments, *constants)


@lru_cache
def _several_gpus() -> bool:
    return torch.cuda.is_available() and torch.cuda.device_count() > 1


def _compiled(name: str, variant: tuple, arguments: tuple) -> Ready:
    """A kernel compiled for these arguments, with the first tiling for which the GPU has enough memory."""
    failure: Exception | None = None
    for tiling in candidates(name, variant, _gpu(arguments[0].device)):
        queries, keys, warps, stages = tiling
        constants = variant if name == "merge" else (*variant[: len(Variant._fields)], queries, keys)
        rows = {"decode": 1, "merge": 1, "key_value_gradient": keys}.get(name, queries)
        if INTERPRETED:
            return Ready(KERNELS[name], rows, constants)
        # fused multiply-add is no longer Triton's default since 3.10
        options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
        try:
            with torch.cuda.device_of(arguments[0]), _announced(name):
                compiled = KERNELS[name].warmup(*arguments, *constants, grid=(1,), **options)
                compiled[1, 1, 1]  # loads the code, and so finds out whether it fits
            return Ready(compiled, rows, constants)
        except triton.runtime.errors.OutOfResources as error:
            failure = error
    raise ValueError(f'no tiling of the {name} kernel fits this GPU: {failure}; use "eager".')


def candidates(name: str, variant: tuple, gpu: str) -> tuple[Tiling, ...]:
    """The tilings to try, the best first; `gpu` is a compute capability or an architecture."""
    if name == "merge":
        return ((0, 0, 4, 1),)
    if name == "decode":
        *_, rows = variant
        return tuple((rows, keys, 4, stages) for keys, stages in (((16, 1),) if INTERPRETED else DECODE))
    if INTERPRETED:
        return ((16, 16, 4, 1),)
    compiled_for = Variant(*variant)
    if compiled_for.EXACT:
        return (FP32, *SMALL)
    mode = "tanhmax" if compiled_for.SIGNED else "softmax"
    size = max(64, compiled_for.HEAD_PAD, compiled_for.VALUE_PAD)
    entry = f"{name} {mode} {size}"
    return (TILINGS.get(f"{gpu} {entry}") or TILINGS[f"{ARCHITECTURES.get(gpu, OTHERS)} {entry}"], *SMALL)


def _gpu(device: torch.device) -> str:
    """The compute capability, such as "9.0"; of one without tilings OTHERS."""
    if INTERPRETED:
        return OTHERS
    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    if capability in ARCHITECTURES or any(entry.startswith(f"{capability} ") for entry in TILINGS):
        return capability
    logger.warning_once(f"signed attention: no tilings for compute capability {capability}; uses those of {OTHERS}.")
    return OTHERS


@contextmanager
def _announced(name: str) -> Iterator[None]:
    """Log one line if what happens inside takes longer than SILENT_SECONDS."""
    text = f"signed attention: compiling the {name} kernel for this GPU; Triton keeps it on disk for later runs."
    timer = Timer(SILENT_SECONDS, logger.warning, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
