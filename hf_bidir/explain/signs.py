"""How much a model has and uses of either sign."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_bidir.checkpoints.layer_hooks import NEGLIGIBLE, at_tokens, counted_signs, signed_parts


@torch.inference_mode()
def negative_share(
    model: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]], threshold: float = NEGLIGIBLE
) -> float | None:
    """The share of negative coefficients among those of magnitude over `threshold`, in [0, 1].

    Counts all layers, heads and queries except padding, in evaluation mode. At `λ = 1` the overall sign of a head is
    arbitrary, but whether it uses both signs is not. None if no coefficient exceeds the threshold.
    """
    with counted_signs(model, threshold) as count:
        for batch in batches:
            count.masks = batch
            model(**batch)
    return count.share


@torch.inference_mode()
def negative_variance_share(model: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]]) -> Tensor:
    """How much of each head's output varies with its negative coefficients, `[layers, heads]` in [0, 1].

    With `o+` and `o-` the contexts of the positive and of the negative coefficients of a head, this is `Var(o-) /
    (Var(o+) + Var(o-))`, the total variance over queries that are not padding. It is 0 for softmax, and for negative
    coefficients whose effect is a constant vector. Flipping the sign of a head (`orient_heads`) turns it into 1 minus
    itself. NaN for a head whose output is constant.
    """
    contexts: dict[int, list[tuple[Tensor, Tensor]]] = defaultdict(list)

    def record(layer: int, positive: Tensor, negative: Tensor) -> None:
        contexts[layer].append((at_tokens(positive, keep), at_tokens(negative, keep)))

    with signed_parts(model, record):
        for batch in batches:
            keep = batch.get("attention_mask")
            model(**batch)
    shares = []
    for layer in sorted(contexts):
        positive, negative = (torch.cat(part).var(0).sum(-1) for part in zip(*contexts[layer], strict=True))
        shares.append(negative / (positive + negative))
    return torch.stack(shares)
