"""Value zeroing: how much the output of a whole block changes at each token when the value of another one is 0."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from tqdm import tqdm
from transformers import Cache, PreTrainedModel

from hf_bidir.checkpoints.layer_hooks import edited_projections, in_evaluation
from hf_bidir.checkpoints.module_hooks import hooked
from hf_bidir.explain.methods import Request
from hf_bidir.explain.methods.attention import rolled_out
from hf_bidir.explain.record import Inputs, Record, blocks, check_exists, sequence_length
from hf_bidir.modeling.activations import upcast

Call = tuple[nn.Module, tuple, dict[str, Any], Tensor]


@torch.no_grad()
def value_zeroing(
    model: PreTrainedModel, inputs: Inputs, *, layer: int | None = None, progress: bool = True
) -> tuple[Tensor, ...]:
    """`1 - cos(y_i, y_i without v_j)` of every block, normalised over j (Mohebbi et al. 2023, equation 6).

    The value of token j is set to 0 in all heads of one layer, the coefficients stay, and `y_i` is the output of the
    block with its feed-forward part and norms. Invariant under sign flips of heads.

    Args:
        layer: the last block to measure, counted from 0 in the order in which blocks run; by default all.

    Returns:
        `[batch, queries, keys]` for each run of a block, in order; every row sums to 1, or is 0 where nothing changes.

    Raises:
        ValueError: as in `contributions`; an attention layer outside a list of blocks, a layer that does not exist, or
            attention in windows.
    """
    record = Record.of(model, inputs)
    with in_evaluation(model):
        sequence_length(model, record.inputs, record.coefficients)  # refuses layers that differ
        calls = _block_calls(model, record.inputs)
        check_exists("layer", layer, len(calls))
        calls = calls[: None if layer is None else layer + 1]
        lengths = [output.shape[1] for *_, output in calls]
        bar = tqdm(total=sum(lengths), desc="value zeroing", unit="call", leave=False, delay=1, disable=not progress)
        with bar:
            return tuple(_changes(call, bar) for call in calls)


def by_value_zeroing(request: Request) -> Tensor:
    return rolled_out(value_zeroing(request.record.model, request.record, layer=request.layer), request)


def _changes(call: Call, bar: tqdm) -> Tensor:
    block, args, kwargs, output = call
    columns = []
    for token in range(output.shape[1]):

        def zeroed(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            others = torch.arange(value.shape[2], device=value.device) != token  # noqa: B023
            return query, key, value * others[:, None]

        with edited_projections(block, zeroed):
            changed = _states(block(*args, **kwargs))
        # double precision, because 1 - cos of almost equal states would be noise in fp32
        cosine = nn.functional.cosine_similarity(output.double(), changed.double(), dim=-1)
        columns.append((1 - cosine).to(upcast(output).dtype))
        bar.update()
    distances = torch.stack(columns, -1).clamp_min(0)  # rounding can make a distance negative
    return distances / distances.sum(-1, keepdim=True).clamp_min(torch.finfo(distances.dtype).tiny)


def _block_calls(model: PreTrainedModel, inputs: dict[str, Tensor]) -> list[Call]:
    """Every run of a block, with its arguments and output `[batch, length, hidden]`."""
    calls: list[Call] = []

    def is_cache(argument: Any) -> bool:
        return isinstance(argument, Cache)

    def record(block: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        # an exporter of transformers may have registered caches as containers of tensors
        args, kwargs = tree_map(lambda x: None if is_cache(x) else x, (args, kwargs), is_leaf=is_cache)
        calls.append((block, args, kwargs, _states(output).clone()))

    with hooked(blocks(model), after=record):
        model(**inputs, return_dict=True)
    return calls


def _states(output: Any) -> Tensor:
    """The hidden states of a block that returns them alone or with other values."""
    return output if isinstance(output, Tensor) else output[0]
