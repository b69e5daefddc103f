"""Which model types of transformers can be converted, and do the converted models work?

Every model type of the installed transformers is built tiny and random (`families_build.py`), signed, and checked
beside its stock model (`families_checks.py`): λ = 0 equals stock on sdpa and eager; λ = 1 changes the outputs and
leaves no softmax attention; the backends agree; a padded batch equals its single rows; later tokens do not change
earlier outputs of a causal model; generation is equal with and without cache; a saved model reloads with equal outputs,
for a sample of 14 in an isolated process with only the folder; the signed class loads stock weights. Saves the summary
that `hf-bidir families` prints; runs/families.jsonl has the reason of every check.

    python benchmarks/families.py                    every type, 11 to 20 minutes on 2 cores
    python benchmarks/families.py --only bert llama  only these, printed and not saved

Each type runs in its own process. Types that exceed 60 seconds or 6 GiB are reported as such.
"""

import argparse
import copy
import inspect
import json
import multiprocessing
import os
import re
import resource
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
import transformers
from tqdm import tqdm
from transformers import CONFIG_MAPPING, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from benchmarks.families_build import SHRINKS, built, generative_class, model_class, tiny_config
from benchmarks.families_checks import (
    CHECKS,
    Pair,
    Verdict,
    generates_with_cache,
    guarded,
    one_line,
    reloads_isolated,
    run,
)
from benchmarks.families_inputs import example
from benchmarks.measure import command_line
from hf_bidir import signed
from hf_bidir.checkpoints.families import FAILED, PASSED, SUMMARY
from hf_bidir.common.files import replacing
from hf_bidir.modeling.compat import stock_heads
from hf_bidir.modeling.outside_attention import SOFTMAX_FUNCTIONS, outside_layers
from hf_bidir.modeling.signed_layers import attention_layers

RECORDS = Path("runs/families.jsonl")
SECONDS, MEMORY = 60, 6 * 2**30  # limits of one type; bytes
ISOLATED = (  # deberta-v2 and swin outside the interface
    "bert", "roberta", "modernbert", "esm", "vit", "dinov2", "clip", "gpt2", "llama", "bart", "t5", "wav2vec2",
    "deberta-v2", "swin",
)  # fmt: skip
Record = dict[str, Any]
MARKS = {"pass": PASSED, "fail": FAILED, "n/a": "–"}


def main() -> None:
    options = arguments()
    types = options.only or list(CONFIG_MAPPING_NAMES)
    if unknown := sorted(set(types) - set(CONFIG_MAPPING_NAMES)):
        raise SystemExit(f"error: transformers {transformers.__version__} has no model type {', '.join(unknown)}")
    records = []
    for record in tqdm(_swept(types, options.jobs), total=len(types), unit="type"):
        records.append(record)
        if options.only:
            tqdm.write(json.dumps(record, indent=1, ensure_ascii=False))
    print(Counter(record["status"] for record in records))
    if not options.only:
        lines = [json.dumps(record, ensure_ascii=False) for record in records]
        with replacing(RECORDS) as file:
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        write_summary(records)


def arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these types; records are printed, not saved")
    parser.add_argument("--jobs", type=int, default=2, help="parallel processes, one thread each")
    return parser.parse_args()


def _swept(types: list[str], jobs: int) -> Iterator[Record]:
    """The records of model types, each from a process of its own."""
    tqdm.monitor_interval = 0  # no threads, because this process forks
    torch.set_num_threads(1)
    fork = multiprocessing.get_context("fork")
    with fork.Pool(jobs, _quiet, maxtasksperchild=1) as pool:
        results = {name: pool.apply_async(_limited, (name,)) for name in types}
        for name, result in results.items():
            try:
                yield result.get(2 * SECONDS)
            except multiprocessing.TimeoutError:
                yield _not_built(name, "its process ended without a result")


def _quiet() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.utils.logging.disable_progress_bar()


def _limited(name: str) -> Record:
    """The record of a model type; one that exceeds a limit is reported as such."""

    def too_slow(*_: Any) -> None:
        raise TimeoutError(f"takes longer than {SECONDS} s")

    signal.signal(signal.SIGALRM, too_slow)
    signal.alarm(SECONDS)
    most = psutil.Process().memory_info().vms + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    start = time.perf_counter()
    try:
        record = recorded(name)
    except BaseException as error:
        record = _not_built(name, reason_of(error)) | {"trace": traceback.format_exc()[-2000:]}
    return record | {"seconds": round(time.perf_counter() - start, 1)}


def _outcome(name: str, status: str, reason: str = "", **more: Any) -> Record:
    return {"type": name, "status": status, "reason": reason, **more}


def _not_built(name: str, reason: str) -> Record:
    """The record of a model that was not built; `layers` is 0 if its code computes no softmax attention."""
    stock_class = model_class(name)
    source = inspect.getsource(inspect.getmodule(stock_class))
    layers = {} if any(word in source for word in ("ALL_ATTENTION_FUNCTIONS", *SOFTMAX_FUNCTIONS)) else {"layers": 0}
    return _outcome(name, "not built", reason, model=stock_class.__name__, kind=kind(name, stock_class, None), **layers)


def recorded(name: str) -> Record:
    """The record of one model type.

    `status` is "passed", "failed", "refused" (by `signed`), "part" (no model class of its own) or "not built".
    """
    stock_class = model_class(name)
    if stock_class is None:
        return _outcome(name, "part", "a part of another model, without a class that transformers exports")
    stock, inputs, problem = _runnable(name, stock_class)
    if stock is None:
        return _not_built(name, problem)
    outside = list(outside_layers(stock))
    layers = len(attention_layers(stock)) + len(outside)
    kind_of_model = kind(name, stock_class, stock)
    record = {"model": stock_class.__name__, "kind": kind_of_model, "layers": layers, "outside": outside}
    refusal = _refusal(stock)
    if inputs is None and not refusal:
        return _outcome(name, "not built", problem, **record)
    if inputs is None or (refusal and _refusal(stock, partial=True)):
        return _outcome(name, "refused", refusal, **record)
    pair = Pair(stock, inputs, partial=bool(refusal))
    if record["kind"] in ("encoder", "decoder"):
        record["kind"] = "decoder" if pair.causal else "encoder"
    checks = {check: guarded(each, pair) for check, each in CHECKS.items()} | extra_checks(name, pair)
    if refusal:
        status = "refused"
    else:
        status = "failed" if any(verdict.verdict == "fail" for verdict in checks.values()) else "passed"
    return _outcome(name, status, refusal, **record, checks=checks)


def _refusal(stock: PreTrainedModel, partial: bool = False) -> str:
    """The error of `signed` for a model that it refuses, else an empty text."""
    try:
        signed(copy.deepcopy(stock), partial=partial)
    except ValueError as error:
        return str(error).removesuffix(" `hf-bidir families` lists the model types that can be signed.")
    return ""


def _runnable(name: str, stock_class: type[PreTrainedModel]) -> tuple[PreTrainedModel | None, dict | None, str]:
    """A tiny model, inputs that it runs on (None if it has no attention layers), and else the error."""
    problem, model = "", None
    for shrink in SHRINKS:
        try:
            model = built(stock_class, tiny_config(CONFIG_MAPPING[name], shrink))
            if not attention_layers(model) and not outside_layers(model):
                return model, None, ""
            inputs = example(model)
            outputs = run(model, inputs)
            if not outputs or not all(x.isfinite().any() for x in outputs.values()):
                raise ValueError("the outputs of the random model are not finite")
            return model, inputs, ""
        except Exception as error:
            problem = problem or reason_of(error)
    return model, None, problem


def reason_of(error: BaseException) -> str:
    """The reason why a model was not built or did not run."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return "takes more memory than the limit"
    if isinstance(error, TimeoutError):
        return text
    if package := re.search(r"requires the (\S+) library", text):
        return f"needs the package {package[1]}"
    if 'missing the required "forward"' in text:
        return "has no forward pass of its own"
    if needs := re.search(r" needs (.*), for which there is no example", text):
        return f"the sweep has no such inputs: {needs[1]}"
    return f"the sweep finds no small config and inputs that it runs on; the first attempt: {text[:160]}"


def extra_checks(name: str, pair: Pair) -> dict[str, Verdict]:
    """Generation with the generative class; and for a sample, reloading in an isolated process."""
    checks = {"generation": Verdict("n/a", "does not generate"), "isolated": Verdict("n/a", "not in the sample")}
    if (generative := generative_class(name)) is not None:
        checks["generation"] = guarded(lambda pair: _generates(generative, pair), pair)
    if name in ISOLATED:
        checks["isolated"] = guarded(reloads_isolated, pair)
    return checks


def _generates(generative: type[PreTrainedModel], pair: Pair) -> Verdict:
    try:
        model = built(generative, tiny_config(type(pair.stock.config)))
        inputs = example(model)
    except Exception as error:
        return Verdict("n/a", f"{generative.__name__} was not built: {one_line(error)}")
    return generates_with_cache(Pair(model, inputs, pair.signed.config.attn_partial))


def kind(name: str, stock_class: type[PreTrainedModel], model: PreTrainedModel | None) -> str:
    """The kind of a model by the arguments of `forward`: encoder, decoder, encoder-decoder, vision, ... or other."""
    takes = " ".join(inspect.signature(stock_class.forward).parameters)
    text, has_decoder = "input_ids" in takes, "decoder_input_ids" in takes
    vision = any(word in takes for word in ("pixel_values", "grid_thw", "flattened_patches"))
    audio = any(word in takes for word in ("input_values", "input_features", "audio", "spectrogram"))
    if ((text or audio) and vision) or (text and audio and not has_decoder):
        return "multimodal"
    if audio or vision:
        return "audio" if audio else "vision"
    if not text:
        return "other"
    if has_decoder:
        return "encoder-decoder"
    layers = attention_layers(model) if model else ()
    causal = any(getattr(layer, "is_causal", False) is True for layer in layers)
    heads = stock_heads(name)
    generates = "AutoModelForCausalLM" in heads and "AutoModelForMaskedLM" not in heads
    return "decoder" if causal or generates else "encoder"


def write_summary(records: list[Record]) -> None:
    """Write `hf_bidir/checkpoints/families.json`, which `hf-bidir families` prints."""
    names = next(list(record["checks"]) for record in records if record.get("checks"))
    types = {record["type"]: _summary(record, names) for record in sorted(records, key=lambda record: record["type"])}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in types.items())
    head = json.dumps({"transformers": transformers.__version__, "torch": torch.__version__, "checks": names})[:-1]
    SUMMARY.write_text(f'{head}, "types": {{\n{lines}\n}}}}\n', encoding="utf-8")
    print(f"saved: {SUMMARY}")


def _summary(record: Record, names: list[str]) -> Record:
    checks, status, reason = record.get("checks") or {}, record["status"], record["reason"]
    failed = [f"{name}: {why}" for name, (verdict, why) in checks.items() if verdict == "fail"]
    reason = "; ".join(failed) if status == "failed" else reason
    summary = {
        "supported": status == "passed",
        "kind": record.get("kind", "part"),
        "model": record.get("model"),
        "reason": {"passed": None, "refused": reason}.get(status, f"{status}: {reason}"),
    }
    if status == "refused" and checks:
        summary["partial"] = not failed
    return summary | ({"checks": "".join(MARKS[checks[name][0]] for name in names)} if checks else {})


if __name__ == "__main__":
    main()
