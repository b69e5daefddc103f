"""The checks of one signed model against its stock model, for `benchmarks/families.py`.

A check returns a `Verdict`. It does not apply if the stock model lacks the property too, which is measured.
"""

import copy
import inspect
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from hf_bidir import signed
from hf_bidir.checkpoints.examples import special_tokens
from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.hub.isolated import isolated_forward
from hf_bidir.modeling import modeling_bidir
from hf_bidir.modeling.outside_attention import SOFTMAX_FUNCTIONS, outside_layers
from hf_bidir.modeling.signed_layers import signed_layers

EXACT, CLOSE, MOVED = 1e-5, 1e-4, 1e-3  # tolerances relative to the largest output: λ = 0, other paths, λ = 1
NEW_TOKENS = 5
MIXED = 8  # minimum numbers of queries and keys of a softmax that counts as attention
Inputs = Mapping[str, Any]


class Verdict(NamedTuple):
    """`verdict` is "pass", "fail" or "n/a"; the reason may be empty."""

    verdict: str
    reason: str = ""


class Pair:
    """A stock model in evaluation mode and a signed copy of it, with inputs that both run on."""

    def __init__(self, stock: PreTrainedModel, inputs: Inputs, partial: bool = False):
        self.stock, self.inputs, self.causal = stock, inputs, _is_causal(stock, inputs)
        self.backend = stock.config._attn_implementation
        self.signed = signed(copy.deepcopy(stock), negative_mass=0.0, partial=partial)

    def set(self, backend: str | None = None, negative_mass: float | None = None) -> None:
        if negative_mass is not None:
            self.signed.config.attn_negative_mass = negative_mass
        for model in (self.stock, self.signed) if backend else ():
            model.set_attn_implementation(backend)

    def reset(self) -> None:
        """Restore the default backend of the stock model, if all of its parts support it."""
        with suppress(ValueError):
            self.set(self.backend)

    def in_double(self) -> "Pair":
        """The pair in float64, where differences are errors rather than rounding."""
        pair = copy.copy(self)
        pair.stock, pair.signed = copy.deepcopy(self.stock).double(), copy.deepcopy(self.signed).double()
        pair.inputs = {
            k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in self.inputs.items()
        }
        return pair


def guarded(check: Callable[[Pair], Verdict], pair: Pair) -> Verdict:
    """The verdict of a check; an exception is a failure, and a difference in float32 is checked again in float64."""

    def restored(pair: Pair) -> Verdict:
        pair.reset()
        return check(pair)

    verdict = _caught(restored, pair)
    if verdict.verdict == "fail" and "differ" in verdict.reason:
        again = _caught(restored, pair.in_double())
        if again.verdict == "pass":
            return Verdict("pass", f"in float64; in float32 {verdict.reason}")
    return verdict


def _caught(check: Callable[[Any], Verdict], pair: Any) -> Verdict:
    try:
        return check(pair)
    except Exception as error:
        return Verdict("fail", one_line(error))


def as_stock(check: Callable[[PreTrainedModel, Pair], Verdict]) -> Callable[[Pair], Verdict]:
    """A check of the signed model at λ = 1, which does not apply if the stock model fails it as well."""

    def checked(pair: Pair) -> Verdict:
        pair.set(negative_mass=1.0)
        verdict = _caught(lambda model: check(model, pair), pair.signed)
        if verdict.verdict != "fail":
            return verdict
        stock = _caught(lambda model: check(model, pair), pair.stock)
        lacking = Verdict("n/a", f"the stock model does not either: {stock.reason}")
        return verdict if stock.verdict == "pass" else lacking

    return checked


def one_line(error: BaseException, most: int = 200) -> str:
    """The type of an error and the beginning of its message."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:most]


def equals_stock(pair: Pair, backend: str) -> Verdict:
    """At λ = 0 the signed model has the outputs of the stock model."""
    if (reason := _refused(pair.stock, backend)) is not None:
        return Verdict("n/a", reason)
    pair.set(backend, 0.0)
    try:
        expected = run(pair.stock, pair.inputs)
    except Exception as error:
        return Verdict("n/a", f"the stock model does not run with {backend}: {one_line(error, 100)}")
    if not all(x.isfinite().any() for x in expected.values()):
        return Verdict("n/a", f"the stock model gives NaN with {backend}")
    verdict = _near(run(pair.signed, pair.inputs), expected, EXACT, pair.inputs)
    if verdict.verdict == "fail" and "attention_mask" in pair.inputs:
        inputs = {name: x for name, x in pair.inputs.items() if name != "attention_mask"}
        again = _near(run(pair.signed, inputs), run(pair.stock, inputs), EXACT)
        if again.verdict == "pass":
            return Verdict("pass", f"without padding; with it {verdict.reason}")
    return verdict


def moves(pair: Pair) -> Verdict:
    """At λ = 1 the outputs differ; the verdict names the number of signed layers that ran."""
    ran: set[Any] = set()
    pair.set(negative_mass=1.0)
    layers = signed_layers(pair.signed)
    with hooked(layers, after=lambda layer, *_: ran.add(layer)):
        outputs = run(pair.signed, pair.inputs)
    distance, _ = difference(outputs, run(pair.stock, pair.inputs), pair.inputs)
    idle = f"{len(layers) - len(ran)} of {len(layers)} signed layers did not run" if len(ran) < len(layers) else ""
    if not distance > MOVED:
        return Verdict("fail", "; ".join(filter(None, [f"the outputs move by {distance:.1e} only", idle])))
    return Verdict("pass", idle)


def no_softmax_left(pair: Pair) -> Verdict:
    """At λ = 1 no attention computes a softmax."""
    pair.set(negative_mass=1.0)
    watch = _SoftmaxWatch(pair.signed, pair.inputs)
    with hooked(watch.names, before=watch.enter, after=watch.leave), watch:
        run(pair.signed, pair.inputs)
    known = {*attention_outside(pair.signed), *(watch.names[layer] for layer in signed_layers(pair.signed))}
    left = sorted(watch.names_found - known)
    return Verdict("fail", f"softmax in {', '.join(left[:3])}") if left else Verdict("pass")


@as_stock
def backends_agree(model: PreTrainedModel, pair: Pair) -> Verdict:
    """sdpa and eager agree."""
    outputs = []
    for backend in ("sdpa", "eager"):
        if (reason := _refused(pair.stock, backend)) is not None:
            return Verdict("n/a", reason)
    for backend in ("sdpa", "eager"):
        model.set_attn_implementation(backend)
        outputs.append(run(model, pair.inputs))
    return _near(*outputs, CLOSE, pair.inputs)


@as_stock
def padding_has_no_effect(model: PreTrainedModel, pair: Pair) -> Verdict:
    """A row of a padded batch equals the single row; decoders are padded on the left, others on the right."""
    if "input_ids" not in pair.inputs or "attention_mask" not in pair.inputs:
        return Verdict("n/a", "no padded text")
    rows = {k: v for k, v in pair.inputs.items() if k != "attention_mask"}
    if any(v.shape[0] != 2 for v in rows.values()) or len(torch.unique(rows["input_ids"][:, 2])) < 2:  # placeholders
        rows = {k: v for k, v in rows.items() if k in ("input_ids", "decoder_input_ids")}
    ids, left = rows["input_ids"], pair.causal
    length, pad = ids.shape[1], ids.shape[1] // 3
    alone_at = slice(pad, None) if left else slice(None, length - pad)
    keep = torch.ones_like(ids)
    keep[1] = 0
    keep[1, alone_at] = 1
    with_places = left and "position_ids" in inspect.signature(model.forward).parameters
    places = {"position_ids": (keep.cumsum(-1) - 1).clamp(min=0)} if with_places else {}
    padded = run(model, {**rows, "attention_mask": keep, **places})
    worst = Verdict("pass")
    for row, part in ((0, slice(None)), (1, alone_at)):
        alone = {k: v[row : row + 1] for k, v in rows.items()}
        alone["input_ids"] = alone["input_ids"][:, part]
        alone["attention_mask"] = torch.ones_like(alone["input_ids"])
        batch = {n: x[row : row + 1] for n, x in padded.items() if x.dim() > 1 and x.shape[0] == 2}
        batch = {n: x[:, part] if x.shape[1] == length else x for n, x in batch.items()}
        shared = {n: x for n, x in run(model, alone).items() if n in batch and batch[n].shape == x.shape}
        if not shared:
            return Verdict("fail", "no output has a row for each text")
        worst = max(worst, _near({n: batch[n] for n in shared}, shared, CLOSE), key=lambda v: v.verdict != "pass")
    return worst


def earlier_outputs_stay(pair: Pair) -> Verdict:
    """In a causal model, outputs do not depend on later tokens."""
    name = "decoder_input_ids" if "decoder_input_ids" in pair.inputs else "input_ids"
    if name not in pair.inputs:
        return Verdict("n/a", "no text")
    verdict = as_stock(lambda model, pair: _causality(model, pair.inputs, name))(pair)
    return Verdict("n/a", "not causal") if verdict.verdict == "n/a" and "differs" in verdict.reason else verdict


def _is_causal(stock: PreTrainedModel, inputs: Inputs) -> bool:
    """Whether a text model is a decoder: its earlier outputs do not depend on later tokens."""
    if "input_ids" not in inputs or "decoder_input_ids" in inputs:
        return False
    return _caught(lambda stock: _causality(stock, inputs, "input_ids"), stock).verdict == "pass"


def _causality(model: PreTrainedModel, inputs: Inputs, name: str) -> Verdict:
    inputs = {k: v for k, v in inputs.items() if k != "attention_mask" or name == "decoder_input_ids"}
    ids = inputs[name].clone()
    length = ids.shape[1]
    later = length // 2 if length < 8 else length - 4
    ids[:, later:] = ids[:, later:].flip(0)
    if torch.equal(ids, inputs[name]):
        ids[:, later:] = ids[:, later:].roll(1, 1)
    before, after = (
        {n: x[:, :later] for n, x in run(model, changed).items() if x.dim() > 2 and x.shape[1] == length}
        for changed in (inputs, {**inputs, name: ids})
    )
    return _near(after, before, CLOSE) if before else Verdict("fail", "no output for each token")


@as_stock
def reloads(model: PreTrainedModel, pair: Pair) -> Verdict:
    """A model saved by `save_pretrained` is restored by `from_pretrained`."""
    return _reloaded(model, type(model), pair.inputs)


def loads_stock_weights(pair: Pair) -> Verdict:
    """The signed class loads a stock checkpoint and equals the stock model at λ = 0."""
    made = modeling_bidir.signed_class(type(pair.stock))
    options = {"attn_negative_mass": 0.0, "attn_partial": pair.signed.config.attn_partial}
    if (verdict := _reloaded(pair.stock, type(pair.stock), pair.inputs)).verdict != "pass":
        return Verdict("n/a", f"the stock model does not either: {verdict.reason}")
    return _reloaded(pair.stock, made, pair.inputs, **options)


def _reloaded(model: PreTrainedModel, as_class: type, inputs: Inputs, **options: Any) -> Verdict:
    with tempfile.TemporaryDirectory(prefix="families-") as folder:
        model.save_pretrained(folder)
        loaded = as_class.from_pretrained(folder, **options).to(model.dtype).eval()
    with suppress(ValueError):  # as `Pair.reset`
        loaded.set_attn_implementation(model.config._attn_implementation)
    return _near(run(loaded, inputs), run(model, inputs), EXACT, inputs)


@as_stock
def generates_with_cache(model: PreTrainedModel, pair: Pair) -> Verdict:
    """Greedy generation gives the same tokens and logits with and without a cache."""
    inputs = {k: v for k, v in pair.inputs.items() if not k.startswith("decoder_")}
    if not model.config.is_encoder_decoder and set(inputs) == {"input_ids", "attention_mask"}:
        inputs["attention_mask"] = inputs["attention_mask"].flip(1)
    options = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False, "num_beams": 1}
    if special := sorted({t for t in special_tokens(model.config) if isinstance(t, int) and t > 99}):
        options["suppress_tokens"] = special  # placeholders of images
    if model.config.is_encoder_decoder and model.generation_config.decoder_start_token_id is None:
        options["decoder_start_token_id"] = 1
    generated = []
    for use_cache in (False, True):
        torch.manual_seed(0)
        options |= {"use_cache": use_cache, "return_dict_in_generate": True, "output_logits": True}
        outputs = model.generate(**inputs, **options)
        tokens, logits = (outputs, None) if isinstance(outputs, Tensor) else (outputs.sequences, outputs.get("logits"))
        generated.append((tokens, {str(step): x for step, x in enumerate(logits or ())}))
    (tokens, logits), (cached_tokens, cached_logits) = generated
    if tokens.shape != cached_tokens.shape or not torch.equal(tokens, cached_tokens):
        return Verdict("fail", "other tokens with a cache than without")
    return _near(cached_logits, logits, CLOSE)


def _refused(model: PreTrainedModel, backend: str) -> str | None:
    """The reason why the stock model does not run with a backend, or None."""
    try:
        model.set_attn_implementation(backend)
    except (ValueError, ImportError) as error:
        return f"the stock model has no {backend}: {one_line(error, 100)}"
    return None


@torch.no_grad()
def run(model: PreTrainedModel, inputs: Inputs) -> dict[str, Tensor]:
    """The floating-point outputs of a model by name, without caches."""
    torch.manual_seed(0)  # for models that sample
    return dict(_tensors(model(**inputs)))


def _tensors(outputs: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors by name, with the names of the parts that they are in, since parts have outputs of the same name."""
    if isinstance(outputs, Tensor):
        if outputs.is_floating_point() and outputs.numel():
            yield name or "output", outputs
    elif isinstance(outputs, Mapping | list | tuple):
        for key, value in outputs.items() if isinstance(outputs, Mapping) else enumerate(outputs):
            yield from _tensors(value, f"{name}.{key}" if name else str(key))


def difference(outputs: Inputs, reference: Inputs, inputs: Inputs | None = None) -> tuple[float, str]:
    """The largest distance relative to the largest output of the same name, and that name, without padding."""
    worst = (0.0, "")
    keep = (inputs or {}).get("attention_mask")
    for name, expected in reference.items():
        got = outputs.get(name)
        if got is None or got.shape != expected.shape:
            return float("inf"), f"{name} {None if got is None else tuple(got.shape)} for {tuple(expected.shape)}"
        if keep is not None and expected.shape[:2] == keep.shape:
            got, expected = got[keep.bool()], expected[keep.bool()]
        gap = torch.where(got == expected, 0, (got - expected).abs())
        finite = expected[expected.isfinite() & (expected.abs() < 1e30)]
        scale = finite.abs().max().item() if finite.numel() else 1.0
        distance = gap.max().item() / max(scale, 1e-12)
        worst = max(worst, (float("inf") if distance != distance else distance, name))
    return worst


def _near(outputs: Inputs, reference: Inputs, tolerance: float, inputs: Inputs | None = None) -> Verdict:
    distance, name = difference(outputs, reference, inputs)
    return Verdict("pass") if distance <= tolerance else Verdict("fail", f"{name} differs by {distance:.1e}")


class _SoftmaxWatch(TorchFunctionMode):
    """Records the modules that compute torch's attention, or a softmax over scores `[…, queries, keys]`.

    A softmax counts in any module with "Att" in its class name, elsewhere if it has as many entries as tokens.
    """

    def __init__(self, model: PreTrainedModel, inputs: Inputs):
        super().__init__()
        self.names = {module: name for name, module in model.named_modules()}
        self.running: list[Any] = []
        self.names_found: set[str] = set()
        self.lengths = {x.shape[1] for name, x in inputs.items() if name in ("input_ids", "decoder_input_ids")}

    def enter(self, module: Any, *_: Any) -> None:
        self.running.append(module)

    def leave(self, *_: Any) -> None:
        self.running.pop()

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function.__name__ in SOFTMAX_FUNCTIONS and self.running:
            shape, module = args[0].shape if args and isinstance(args[0], Tensor) else (MIXED,) * 4, self.running[-1]
            whole = function.__name__ != "softmax" or shape[-1] in self.lengths
            if len(shape) > 3 and min(shape[-2:]) >= MIXED and (whole or "Att" in type(module).__name__):
                self.names_found.add(self.names[module])
        return result


def reloads_isolated(pair: Pair) -> Verdict:
    """The saved model has the same outputs in a process with the folder and transformers, without `hf_bidir`."""
    pair.set("sdpa", 1.0)
    with tempfile.TemporaryDirectory(prefix="families-") as folder:
        pair.signed.save_pretrained(folder)
        outputs = isolated_forward(folder, "AutoModel", pair.inputs)
    expected = {name: x for name, x in run(pair.signed, pair.inputs).items() if name in outputs}
    return _near(outputs, expected, EXACT, pair.inputs) if expected else Verdict("fail", "it has no outputs")


# all checks but generation and reloading in an isolated process, by name
CHECKS: dict[str, Callable[[Pair], Verdict]] = {
    "λ = 0, sdpa": lambda pair: equals_stock(pair, "sdpa"),
    "λ = 0, eager": lambda pair: equals_stock(pair, "eager"),
    "λ = 1 moves": moves,
    "no softmax left": no_softmax_left,
    "backends": backends_agree,
    "padding": padding_has_no_effect,
    "causal": earlier_outputs_stay,
    "save": reloads,
    "stock weights": loads_stock_weights,
}


def attention_outside(model: PreTrainedModel) -> list[str]:
    """The names of the layers that compute attention by themselves, and are not signed."""
    return [name for name, module in outside_layers(model).items() if not hasattr(module, "signed_index")]
