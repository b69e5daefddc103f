"""How fast is signed attention on this GPU? The tests of the kernels, then speed and memory beside stock softmax.

Needs torch, Triton, transformers and this package, no network, and about eight minutes on an H100. Each row is saved in
gpu.csv as soon as it is measured; rows of this GPU and these versions that are already there are not measured again. A
ratio is own / baseline, both medians of one run: lower is better, except for tokens
per second. The sections, in order; what torch.compile compiles comes after everything else:

    tests        pytest -m gpu: the tests of the kernels that pass and fail (needs pytest and hypothesis)
    call         time of the CPU for one attention call
    first        the first training step of a new process, with a cold and a warm cache of Triton
    training     a whole training step: BERT, ViT, Llama; eager and compiled
    generation   tokens per second of a Llama of 101 million parameters; dynamic and static caches
    attention    attention alone, against the fastest of torch's backends
    memory       peak memory of forward + backward

    python benchmarks/gpu.py                                   everything that is not yet measured
    python benchmarks/gpu.py --only call attention --again     two sections, anew
    python benchmarks/gpu.py --minutes 4                       begins no row after four minutes, and names the rest
    python benchmarks/gpu.py --smoke --output /tmp/gpu         tiny sizes on a CPU, in Triton's interpreter
"""

import csv
import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

if "--smoke" in sys.argv:  # before torch and Triton are imported
    os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")  # a line for each row instead

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where a wheel is installed, and not this clone

import torch

from benchmarks.gpu_sections import SECTIONS, Measured
from benchmarks.measure import RESULTS, command_line
from hf_bidir.common.files import replacing

FULL = {
    "device": "cuda", "dtype": "bfloat16", "heads": 12, "layers": 12, "width": 768, "repeats": 9, "warm_up": 3,
    "tests": ("tests/kernels/test_fused_*.py", "tests/kernels/test_backends.py"),
    "call": (64, 128), "calls": 50, "caches": ("cold", "warm"), "backend": "inductor",
    "bert": ((64, 128), (16, 512)), "vit": 64, "llama": (8, 512), "batches": (1, 8), "prompt": 128, "new": 64,
    "head_dims": (64, 128), "lengths": (1024, 4096), "tokens": 32768, "long": (4096, 16384), "memory_tokens": 16384,
}  # fmt: skip
SMOKE = FULL | {
    "device": "cpu", "heads": 1, "layers": 1, "width": 48, "repeats": 1, "warm_up": 0,
    "tests": ("tests/kernels/test_fused_check.py",),
    "call": (1, 16), "calls": 1, "caches": ("cold",), "backend": "eager",
    "bert": ((2, 16),), "vit": 1, "llama": (1, 16), "batches": (1,), "prompt": 8, "new": 2,
    "head_dims": (16,), "lengths": (16,), "tokens": 16, "long": (16, 32), "memory_tokens": 16,
}  # fmt: skip


class Rows:
    """The rows of gpu.csv in a folder, of all GPUs and versions; new ones are of this GPU and these versions."""

    HEADER = ("section", "case", *Measured._fields[:2], "ratio", *Measured._fields[2:], "card", "versions")

    def __init__(self, folder: Path, device: str):
        self.file = folder / "gpu.csv"
        card = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {platform.machine()}"
        versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "triton", "transformers"))
        self.machine = {"card": card, "versions": versions}
        self.rows: list[dict[str, str]] = []
        if self.file.exists():
            with self.file.open(encoding="utf-8", newline="") as file:
                self.rows = list(csv.DictReader(file))

    def of(self, section: str, case: str) -> list[dict[str, str]]:
        """The rows of a case that were measured on this GPU with these versions."""
        columns = {"section": section, "case": case, **self.machine}
        return [row for row in self.rows if row.items() >= columns.items()]

    def save(self, section: str, case: str, measurements: list[Measured]) -> None:
        """Write the file with these rows in place of earlier ones of the same case."""
        earlier = self.of(section, case)
        self.rows = [row for row in self.rows if row not in earlier]
        for measured in measurements:
            cells = {name: "" if value is None else str(value) for name, value in measured._asdict().items()}
            ratio = "" if measured.ratio is None else f"{measured.ratio:.3f}"
            self.rows.append({"section": section, "case": case, **cells, "ratio": ratio, **self.machine})
        self.rows.sort(key=lambda row: [*SECTIONS].index(row["section"]))
        with replacing(self.file) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self.HEADER)
            writer.writeheader()
            writer.writerows(self.rows)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=[*SECTIONS], metavar="SECTION")
    parser.add_argument("--minutes", type=float, default=8.0, help="after which no row begins")
    parser.add_argument("--again", action="store_true", help="measure rows that are already there")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes on a CPU, to test this file; needs --output")
    parser.add_argument("--output", type=Path, help="folder of gpu.csv; default: benchmarks/results")
    options = parser.parse_args()
    if options.smoke and options.output is None:
        parser.error("expected a folder in --output for --smoke, whose numbers mean nothing")
    if not options.smoke and not torch.cuda.is_available():
        parser.error("expected a GPU, got none; --smoke --output FOLDER runs tiny sizes on a CPU")
    sizes = SimpleNamespace(**(SMOKE if options.smoke else FULL))
    rows = Rows(options.output or RESULTS, sizes.device)
    jobs = [(section, job) for section in SECTIONS if section in options.only for job in SECTIONS[section](sizes)]
    if not options.again:
        jobs = [(section, job) for section, job in jobs if not rows.of(section, job.case)]
    jobs.sort(key=lambda pair: pair[1].compiles)
    end = time.perf_counter() + 60 * options.minutes
    late = []
    failed = []
    for section, job in jobs:
        if time.perf_counter() >= end:
            late.append(f"{section}: {job.case}")
            continue
        print(f"{section}: {job.case}", flush=True)
        start = time.perf_counter()
        try:
            measurements = job.measure()
        except Exception as error:  # the other rows do not depend on this one
            failed.append(f"{section}: {job.case}: {type(error).__name__}: {str(error).strip()[:300]}")
            continue
        rows.save(section, job.case, measurements)
        print(
            *(f"    {measured}" for measured in measurements),
            f"    took {time.perf_counter() - start:.0f} s",
            sep="\n",
            flush=True,
        )
    for heading, names in (("not measured in time", late), ("failed", failed)):
        print(f"{heading}: {len(names)}", *names, sep="\n    ")
    print(f"saved: {rows.file}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
