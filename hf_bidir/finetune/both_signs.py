"""A penalty on heads whose output comes from coefficients of one sign."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from hf_bidir.checkpoints.layer_hooks import at_tokens, signed_parts

SMALLEST = 1e-6  # variance


@contextmanager
def one_sidedness(model: nn.Module, keep: Tensor | None, most_unequal: float) -> Iterator[list[Tensor]]:
    """Inside the context, collect for every call of a signed layer how far its heads are from using both signs.

    With `o+` and `o-` the contexts of the positive and of the negative coefficients of a head, and variances over the
    tokens of the batch, that is the mean over heads of `max(0, |log Var(o+) - log Var(o-)| - log most_unequal)`. Where
    a part is 0 everywhere, as the negative one at `λ = 0`, no gradient could change it, and the head counts as 0. The
    backward pass may run outside the context, except with gradient checkpointing.

    Args:
        keep: attention mask of a batch of texts, `[batch, length]`; None counts every position.
        most_unequal: ratio of the variances from which on a head is penalised; 3 asks for a quarter from either sign.
    """
    penalties: list[Tensor] = []

    def record(layer: int, *parts: Tensor) -> None:
        variances = torch.stack([at_tokens(part, keep).float().var(0).sum(-1) for part in parts])
        logarithms = variances.add(SMALLEST).log()
        penalty = (logarithms[0] - logarithms[1]).abs() - math.log(most_unequal)
        penalties.append((penalty.clamp_min(0) * (variances > 0).all(0)).mean())

    with signed_parts(model, record):
        yield penalties
