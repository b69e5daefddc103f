"""The tiling of each fused kernel: queries and keys of a block, warps, pipeline stages.

By architecture, kernel, mode and head dimension (rounded up to 64, 128 or 256). Those for Hopper and head dimensions up
to 128 were measured on an H200, except that of TanhMax forward at 64, which is the one without spilled registers
(`benchmarks/fused_instructions.py`); the others are only compiled to fit the memory.
`benchmarks/fused_tilings.py --write` measures the GPU that it runs on and rewrites its part. A Python file, because
transformers copies no other files with the code of a checkpoint. A kernel repository has tilings.json beside it, made
from this table, where those of another GPU are added by compute capability, as in "10.0 forward tanhmax 64".
"""

import json
from pathlib import Path

Tiling = tuple[int, int, int, int]

# By compute capability; Blackwell has at least Hopper's memory per block, and GPUs that are not listed have Ada's.
ARCHITECTURES = {
    "8.0": "ampere", "8.6": "ada", "8.9": "ada", "9.0": "hopper", "10.0": "hopper", "10.3": "hopper", "12.0": "ada",
}  # fmt: skip
OTHERS = "ada"
FP32: Tiling = (64, 32, 4, 2)  # three products of tf32 need more registers
# for a GPU with less memory than the tiling of its own needs, as with a bias and large heads
SMALL: tuple[Tiling, ...] = ((64, 32, 4, 2), (32, 32, 4, 1), (32, 16, 4, 1), (16, 16, 4, 1))
DECODE = ((64, 3), (32, 2), (16, 1))  # keys of a block and stages of the decode kernel
HEAD_SIZES = (64, 128, 256)  # head dimensions
ROWS: dict[str, tuple[Tiling, ...]] = {
    "hopper forward tanhmax": ((128, 128, 8, 3), (128, 128, 8, 3), (64, 64, 8, 2)),
    "hopper forward softmax": ((128, 64, 4, 3), (128, 128, 8, 3), (64, 64, 8, 2)),
    "hopper query_gradient tanhmax": ((64, 64, 4, 3), (128, 64, 8, 3), (64, 32, 8, 2)),
    "hopper query_gradient softmax": ((64, 64, 4, 3), (128, 64, 8, 3), (64, 32, 8, 2)),
    "hopper key_value_gradient tanhmax": ((64, 64, 4, 3), (32, 64, 4, 3), (32, 64, 8, 2)),
    "hopper key_value_gradient softmax": ((32, 128, 4, 3), (64, 128, 8, 3), (32, 64, 8, 2)),
    "ampere forward tanhmax": ((128, 64, 4, 2), (128, 64, 8, 2), (64, 64, 8, 2)),
    "ampere forward softmax": ((128, 64, 4, 2), (128, 64, 8, 2), (64, 64, 8, 2)),
    "ampere query_gradient tanhmax": ((64, 64, 4, 2), (64, 64, 8, 2), (64, 32, 8, 2)),
    "ampere query_gradient softmax": ((64, 64, 4, 2), (64, 64, 8, 2), (64, 32, 8, 2)),
    "ampere key_value_gradient tanhmax": ((32, 64, 4, 2), (32, 64, 4, 2), (32, 64, 8, 2)),
    "ampere key_value_gradient softmax": ((32, 64, 4, 2), (32, 64, 4, 2), (32, 64, 8, 2)),
    "ada forward tanhmax": ((128, 64, 4, 2), (64, 64, 4, 2), (64, 32, 4, 2)),
    "ada forward softmax": ((128, 64, 4, 2), (64, 64, 4, 2), (64, 32, 4, 2)),
    "ada query_gradient tanhmax": ((64, 64, 4, 2), (64, 32, 4, 2), (32, 32, 4, 2)),
    "ada query_gradient softmax": ((64, 64, 4, 2), (64, 32, 4, 2), (32, 32, 4, 2)),
    "ada key_value_gradient tanhmax": ((32, 64, 4, 2), (32, 64, 4, 2), (32, 32, 4, 2)),
    "ada key_value_gradient softmax": ((32, 64, 4, 2), (32, 64, 4, 2), (32, 32, 4, 2)),
}
TILINGS = {
    f"{row} {size}": tiling for row, tilings in ROWS.items() for size, tiling in zip(HEAD_SIZES, tilings, strict=True)
}

TUNED = Path(__file__).with_name("tilings.json")
if TUNED.is_file():
    try:
        for _entry, (_queries, _keys, _warps, _stages) in json.loads(TUNED.read_text()).items():
            TILINGS[_entry] = (_queries, _keys, _warps, _stages)
    except (AttributeError, TypeError, ValueError) as error:
        expected = 'entries such as "9.0 forward tanhmax 64": [128, 128, 8, 3]'
        raise ValueError(f"expected {expected} in {TUNED}: {error}.") from None
