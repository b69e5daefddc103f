"""ALTI: the share of every token in the output of an attention with its skip connection and norm."""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_bidir.checkpoints.layer_hooks import observed_layers
from hf_bidir.checkpoints.linear_maps import parameter_of, weight_of
from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.checkpoints.projections import Projections, projections
from hf_bidir.explain.forward import ForwardCache, record_coefficients, sequence_length
from hf_bidir.explain.methods.attention import attention_rollout, chosen_layers, from_source
from hf_bidir.explain.request import Request
from hf_bidir.modeling.activations import upcast

QUERIES = 16  # rows whose transformed vectors are in memory at a time


@dataclass
class _Run:
    """One run of an attention with what surrounds it."""

    maps: Projections
    value: Tensor
    source: Tensor  # what values are computed from, `[batch, length, hidden]`
    before_norm: Tensor | None  # the input of the norm whose output is the source
    added: Tensor | None = None  # the output of the attention
    total: Tensor | None = None  # the input of the next norm
    norm: nn.Module | None = None

    @property
    def residual(self) -> Tensor | None:
        """What the skip connection carries: the source in a post-norm model, else the input of its norm; or unknown."""
        return next((state for state in (self.source, self.before_norm) if self._completes(state)), None)

    @property
    def post_norm(self) -> bool:
        return self._completes(self.source)

    def _completes(self, state: Tensor | None) -> bool:
        if state is None or self.added is None or self.total is None or state.shape != self.added.shape:
            return False
        return self.total.shape == state.shape and torch.allclose(state + self.added, self.total, 1e-3, 1e-4)


def alti(cache: ForwardCache, request: Request) -> Tensor:
    """The product of the `token_shares` up to the requested layer, at the position that the output is read from."""
    shares = [layer.unsqueeze(1) for layer in token_shares(cache)]
    layers = chosen_layers(shares, cache, request)
    return from_source(attention_rollout(layers, cache.keep, residual=0), cache, request)


@torch.no_grad()
def token_shares(cache: ForwardCache) -> tuple[Tensor, ...]:
    """Token-to-token shares of every attention block (ALTI, Ferrando et al. 2022, equations 9 and 10).

    The output of attention i with its skip connection, and in a post-norm model with its norm, is the sum of vectors
    `T_i(x_j)` and biases, where the norm has a constant scale. The share of token j is `max(0, ‖y_i‖₁ - ‖y_i -
    T_i(x_j)‖₁)`, divided by the sum over j. Invariant under sign flips of heads.

    Returns:
        `[batch, queries, keys]` for each run of a layer, in order; rows sum to 1, or are 0 where no token adds
        anything.

    Raises:
        ValueError: something between attention and skip connection, such as a gate or a norm.
    """
    model, inputs = cache.model, cache.inputs
    recorder = _Recorder(model, inputs)
    with recorder.hooks, observed_layers(model, recorder.observe):
        _, coefficients = record_coefficients(model, inputs)
    sequence_length(model, inputs, coefficients)
    for run in recorder.runs:
        _check(model, run)
    return tuple(_shares(upcast(a), run) for a, run in zip(coefficients, recorder.runs, strict=True))


class _Recorder:
    """Follows the order in which norms, value maps, attentions and output maps run."""

    def __init__(self, model: PreTrainedModel, inputs: dict[str, Tensor]):
        self.maps = {found.layer: found for found in projections(model, {k: v[:1] for k, v in inputs.items()})}
        self.runs: list[_Run] = []
        self.norms: list[tuple[Tensor, Tensor]] = []  # inputs and outputs of the norms since the last attention
        self.source = torch.empty(0)
        norms = [module for module in model.modules() if "Norm" in type(module).__name__]
        outputs = {found.output for found in self.maps.values() if found.output is not None}
        values = {f.linear for found in self.maps.values() for head in found.value for f in head}
        self.hooks = ExitStack()
        self.hooks.enter_context(hooked(norms, after=self._after_norm))
        self.hooks.enter_context(hooked(outputs, after=self._after_output))
        self.hooks.enter_context(hooked(values, before=self._before_value))

    def _before_value(self, linear: nn.Module, args: tuple, kwargs: dict) -> None:
        self.source = args[0]

    def observe(self, layer: nn.Module, key: Tensor, value: Tensor, context: Tensor) -> None:
        before = (into for into, out in reversed(self.norms) if out is self.source)
        self.runs.append(_Run(self.maps[layer], value, self.source, next(before, None)))
        self.norms = []

    def _after_output(self, linear: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> None:
        if self.runs and self.runs[-1].added is None:
            self.runs[-1].added = output

    def _after_norm(self, norm: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> None:
        if self.runs and self.runs[-1].added is not None and self.runs[-1].total is None:
            self.runs[-1].total, self.runs[-1].norm = args[0], norm
        self.norms.append((args[0], output))


def _check(model: PreTrainedModel, run: _Run) -> None:
    """Raise ValueError unless the next norm reads the sum of attention and skip connection."""
    if run.residual is None:
        raise ValueError(
            f"alti needs attention that a skip connection adds to the hidden states before the next norm; around the "
            f"{type(run.maps.layer).__name__} of {type(model).__name__} there is something else. Use "
            "contributions instead."
        )
    if run.post_norm:
        norm, total = run.norm, run.total
        bias = parameter_of(norm, "bias")
        found = _normalise(norm, upcast(total), upcast(total)) + (0 if bias is None else upcast(bias))  # type: ignore
        if not torch.allclose(found, upcast(norm(total)), 1e-3, 1e-4):  # type: ignore[misc]
            raise ValueError(
                f"alti knows layer norm and RMS norm; the {type(norm).__name__} of {type(model).__name__} is another "
                "one. Use contributions instead."
            )


def _shares(coefficients: Tensor, run: _Run) -> Tensor:
    """`[batch, queries, keys]` from coefficients `[batch, heads, queries, keys]`."""
    residual, total = upcast(run.residual), upcast(run.total)  # type: ignore[arg-type]  # _check
    heads = coefficients.shape[1]
    weight = upcast(weight_of(run.maps.output)).unflatten(1, (heads, -1))
    values = upcast(run.value).repeat_interleave(heads // run.value.shape[1], 1)
    vectors = torch.einsum("bhkd,ohd->bhko", values, weight)
    normalise = partial(_normalise, run.norm) if run.post_norm else None
    rows = []
    for queries in torch.arange(coefficients.shape[2]).split(QUERIES):
        parts = torch.einsum("bhqk,bhko->bqko", coefficients[:, :, queries], vectors)
        parts[:, torch.arange(len(queries)), queries] += residual[:, queries]
        whole = total[:, queries]
        if normalise:
            parts, whole = normalise(parts, whole.unsqueeze(2)), upcast(run.norm(whole.to(run.value.dtype)))  # type: ignore[misc]
        left = (whole.unsqueeze(2) - parts).abs().sum(-1)
        rows.append((whole.abs().sum(-1, keepdim=True) - left).clamp_min(0))
    shares = torch.cat(rows, 1)
    return shares / shares.sum(-1, keepdim=True).clamp_min(torch.finfo(shares.dtype).tiny)


def _normalise(norm: nn.Module, parts: Tensor, total: Tensor) -> Tensor:
    """The norm of each part, with the scale of the total."""
    eps, weight = getattr(norm, "eps", getattr(norm, "variance_epsilon", 1e-6)), parameter_of(norm, "weight")
    if isinstance(norm, nn.LayerNorm):
        scale = (total.var(-1, keepdim=True, correction=0) + eps).rsqrt()
        parts = parts - parts.mean(-1, keepdim=True)
    else:
        scale = (total.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
    return parts * scale * (1 if weight is None else upcast(weight))
