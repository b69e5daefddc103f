"""The sections of gpu.py: each takes the sizes and yields what it measures, one job for every case."""

import copy
import gc
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from types import SimpleNamespace as Sizes
from typing import NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
)

from benchmarks.attention import BASELINE, IMPLEMENTATIONS, Problem, random_problem, with_gradient, without_gradient
from benchmarks.generation import generate, pair
from benchmarks.measure import ROOT, elapsed, interleaved_medians, peak_memory, synchronize
from benchmarks.training_step import batch_of, training_step_of
from hf_bidir import signed

STOCK, TANHMAX = "stock softmax", "TanhMax"
BACKENDS = {
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
PASSES = {"forward": without_gradient, "forward + backward": with_gradient}
KINDS = {"plain": {}, "causal": {"causal": True}, "padded 40 %": {"padding": 0.4}}
SECONDS = 180  # after which a process counts as failed


class Measured(NamedTuple):
    """One measurement; without a baseline, `against` is empty."""

    measured: str
    against: str
    own: float
    baseline: float | None
    unit: str

    @property
    def ratio(self) -> float | None:
        return self.own / self.baseline if self.baseline else None

    def __str__(self) -> str:
        if self.ratio is None:
            return f"{self.measured}: {self.own:.4g} {self.unit}"
        numbers = f"{self.own:.4g} / {self.baseline:.4g} {self.unit} = {self.ratio:.3f}"
        return f"{self.measured} / {self.against}: {numbers}"


class Job(NamedTuple):
    """A case of a section, with the function that measures its rows."""

    case: str
    measure: Callable[[], list[Measured]]
    compiles: bool = False


def tests(sizes: Sizes) -> Iterator[Job]:
    if find_spec("pytest") is None:
        print("tests: skipped, because pytest is not installed")
        return
    yield Job("pytest -m gpu", partial(_tests, sizes))


def _tests(sizes: Sizes) -> list[Measured]:
    """One process for each file, because compiling the kernels for the tests takes most of the time."""
    files = sorted(file for pattern in sizes.tests for file in ROOT.glob(pattern))
    start = time.perf_counter()
    with ThreadPoolExecutor(len(files)) as pool:
        outputs = list(pool.map(_test_file, files))
    seconds = time.perf_counter() - start
    counts = dict.fromkeys(("passed", "failed", "error", "skipped"), 0)
    for output in outputs:
        found = re.findall(r"(\d+) (passed|failed|error|skipped)", output.strip().splitlines()[-1])
        for count, kind in found:
            counts[kind] += int(count)
        if {"failed", "error"} & {kind for _, kind in found}:
            print(output[-2000:])
    if not counts["passed"]:
        raise RuntimeError(f"no test passed: {outputs[0][-1000:]}")
    return [*(Measured(kind, "", count, None, "tests") for kind, count in counts.items()),
            Measured("time", "", seconds, None, "s")]  # fmt: skip


def _test_file(file: Path) -> str:
    """What pytest prints for a file."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "--tb=line", "-p", "no:cacheprovider", str(file)]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS).stdout or "1 error"
    except subprocess.TimeoutExpired:
        return f"{file.name}\n1 error: not finished within {SECONDS} s"


def call(sizes: Sizes) -> Iterator[Job]:
    batch, length = sizes.call
    for name in PASSES:
        shape = [batch, sizes.heads, length, sizes.head_dims[0]]
        yield Job(f"{name}, {shape}, without waiting for the GPU", partial(_call, sizes, name))


def _call(sizes: Sizes, name: str) -> list[Measured]:
    problem = problem_of(sizes, sizes.head_dims[0], sizes.call[1], tokens=sizes.call[0] * sizes.call[1])
    tasks = {one: partial(PASSES[name], IMPLEMENTATIONS[one](problem)) for one in (BASELINE, "fused", "auto")}

    def seconds_of(task: Callable[[], None]) -> float:
        synchronize()
        start = time.perf_counter()
        for _ in range(sizes.calls):
            task()
        seconds = time.perf_counter() - start
        synchronize()
        return seconds / sizes.calls

    medians = interleaved_medians(tasks, sizes.repeats, sizes.warm_up, seconds_of)
    return [Measured(one, BASELINE, 1e3 * medians[one], 1e3 * medians[BASELINE], "ms") for one in ("fused", "auto")]


def first(sizes: Sizes) -> Iterator[Job]:
    batch, length = sizes.bert[0]
    yield Job(f"BERT-base, {batch} x {length}, a new process", partial(_first, sizes))


def _first(sizes: Sizes) -> list[Measured]:
    """With an empty folder for compiled kernels, and with the same folder again."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for cache in sizes.caches:
            stock, tanhmax = (_first_step(sizes, name, folder) for name in (STOCK, TANHMAX))
            rows.append(Measured(f"{TANHMAX}, {cache} cache", STOCK, tanhmax, stock, "s"))
    return rows


def _first_step(sizes: Sizes, name: str, cache: str) -> float:
    program = f"from benchmarks import gpu_sections; gpu_sections.print_first_step({vars(sizes)!r}, {name!r})"
    environment = os.environ | {"TRITON_CACHE_DIR": cache, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        raise RuntimeError(f"the first step failed: {done.stderr[-1000:]}")
    return float(done.stdout.split()[-1])


def print_first_step(sizes: dict, name: str) -> None:
    """Print the seconds of the first training step of this process."""
    sizes = Sizes(**sizes)
    step = steps_of(sizes, bert(sizes), *sizes.bert[0], names=(name,))[name]
    synchronize()
    print(elapsed(step))


def training(sizes: Sizes) -> Iterator[Job]:
    cases = [(f"BERT-base, {batch} x {length}", bert, batch, length) for batch, length in sizes.bert]
    cases.append((f"ViT-base, batch {sizes.vit}", vit, sizes.vit, 0))
    cases.append((f"Llama, {sizes.llama[0]} x {sizes.llama[1]}", llama, *sizes.llama))
    for mode, (name, *case) in product(("eager", "compiled"), cases):
        yield Job(f"{name}, {mode}", partial(_training, sizes, *case, mode), mode == "compiled")


def _training(sizes: Sizes, make: Callable, batch: int, length: int, mode: str) -> list[Measured]:
    torch.compiler.reset()
    gc.collect()  # the models of the case before
    steps = steps_of(sizes, make(sizes), batch, length, compiled=mode == "compiled")
    medians = interleaved_medians(steps, sizes.repeats, sizes.warm_up)
    return [Measured(TANHMAX, STOCK, 1e3 * medians[TANHMAX], 1e3 * medians[STOCK], "ms")]


def bert(sizes: Sizes) -> PreTrainedModel:
    dropout = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
    return BertForSequenceClassification(BertConfig(num_hidden_layers=sizes.layers, hidden_size=sizes.width, **dropout))


def vit(sizes: Sizes) -> PreTrainedModel:
    return ViTForImageClassification(ViTConfig(num_hidden_layers=sizes.layers, hidden_size=sizes.width))


def llama(sizes: Sizes) -> PreTrainedModel:
    return pair(sizes.layers, sizes.width)[STOCK]


def steps_of(
    sizes: Sizes, stock: PreTrainedModel, batch: int, length: int, names=(STOCK, TANHMAX), compiled: bool = False
) -> dict[str, Callable[[], None]]:
    """Training steps of the stock model and of its signed copy."""
    options = Sizes(batch=batch, length=length, device=sizes.device, dtype=sizes.dtype)
    inputs = {field: tensor.to(sizes.device) for field, tensor in batch_of(stock, options).items()}
    steps = {}
    for name in names:
        model = stock if name == STOCK else signed(copy.deepcopy(stock))
        model.train().to(sizes.device)
        if compiled:
            model.compile(backend=sizes.backend)
        steps[name] = training_step_of(model, inputs, options)
    return steps


def generation(sizes: Sizes) -> Iterator[Job]:
    for cache, batch in product((None, "static"), sizes.batches):
        case = f"batch {batch}, prompt {sizes.prompt}, {'static cache, compiled' if cache else 'dynamic cache'}"
        yield Job(case, partial(_generation, sizes, batch, cache), cache is not None)


def _generation(sizes: Sizes, batch: int, cache: str | None) -> list[Measured]:
    """`generate` itself compiles a model with a static cache on a GPU."""
    torch.compiler.reset()
    prompt = torch.randint(3, 16384, (batch, sizes.prompt), device=sizes.device)
    given = {"cache_implementation": cache} if cache else {}
    models = decoders(sizes.layers, sizes.width, sizes.device, getattr(torch, sizes.dtype))
    tasks = {name: partial(generate, model, prompt, sizes.new, **given) for name, model in models.items()}
    medians = interleaved_medians(tasks, -(-sizes.repeats // 3), -(-sizes.warm_up // 3))
    rates = {name: batch * sizes.new / seconds for name, seconds in medians.items()}
    return [Measured(name, STOCK, rates[name], rates[STOCK], "tokens/s") for name in rates if name != STOCK]


@lru_cache(1)
def decoders(layers: int, width: int, device: str, dtype: torch.dtype) -> dict[str, PreTrainedModel]:
    return {name: model.to(device, dtype).eval() for name, model in pair(layers, width).items()}


def attention(sizes: Sizes) -> Iterator[Job]:
    for head_dim, length, kind, name in product(sizes.head_dims, sizes.lengths, KINDS, PASSES):
        case = f"head dimension {head_dim}, length {length}, {kind}, {name}"
        yield Job(case, partial(_attention, sizes, head_dim, length, kind, name))


def _attention(sizes: Sizes, head_dim: int, length: int, kind: str, name: str) -> list[Measured]:
    problem = problem_of(sizes, head_dim, length, sizes.tokens, **KINDS[kind])
    run = PASSES[name]
    backend, baseline = fastest(sizes, problem, run)
    own = milliseconds(sizes, partial(run, IMPLEMENTATIONS["fused"](problem)))
    return [Measured("fused", f"softmax, {backend}", own, baseline, "ms")]


def problem_of(sizes: Sizes, head_dim: int, length: int, tokens: int, padding=0.0, causal=False) -> Problem:
    options = Sizes(tokens=tokens, heads=sizes.heads, dtype=sizes.dtype, device=sizes.device, causal=causal)
    return random_problem(head_dim, padding, length, options)


def fastest(sizes: Sizes, problem: Problem, run: Callable) -> tuple[str, float]:
    """The fastest of torch's backends that can compute this, and its milliseconds."""
    found = {}
    for name, backend in BACKENDS.items():
        with suppress(RuntimeError), warnings.catch_warnings(), sdpa_kernel(backend):
            warnings.simplefilter("ignore")  # they name the reasons why a backend cannot
            found[name] = milliseconds(sizes, partial(run, IMPLEMENTATIONS[BASELINE](problem)))
    if not found:
        raise RuntimeError(f"none of torch's backends computes this: {', '.join(BACKENDS)}")
    name = min(found, key=found.get)
    return name, found[name]


def milliseconds(sizes: Sizes, task: Callable[[], None]) -> float:
    if sizes.device == "cpu":
        return 1e3 * interleaved_medians({"": task}, sizes.repeats, sizes.warm_up)[""]
    from triton.testing import do_bench

    return do_bench(task, return_mode="median")


def memory(sizes: Sizes) -> Iterator[Job]:
    for length in sizes.long:
        yield Job(f"forward + backward, length {length}", partial(_memory, sizes, length))


def _memory(sizes: Sizes, length: int) -> list[Measured]:
    problem = problem_of(sizes, sizes.head_dims[0], length, sizes.memory_tokens)
    tasks = {name: partial(with_gradient, IMPLEMENTATIONS[name](problem)) for name in ("fused", "eager", BASELINE)}
    tasks["fused"]()  # compiles
    own = peak_memory(tasks["fused"], sizes.device)
    backend, _ = fastest(sizes, problem, with_gradient)
    with sdpa_kernel(BACKENDS[backend]):
        rows = [Measured("fused", f"softmax, {backend}", own, peak_memory(tasks[BASELINE], sizes.device), "MiB")]
    if length == sizes.long[0]:
        rows.append(Measured("fused", "eager TanhMax", own, peak_memory(tasks["eager"], sizes.device), "MiB"))
    return rows


SECTIONS: dict[str, Callable[[Sizes], Iterator[Job]]] = {
    "tests": tests,
    "call": call,
    "first": first,
    "training": training,
    "generation": generation,
    "attention": attention,
    "memory": memory,
}
