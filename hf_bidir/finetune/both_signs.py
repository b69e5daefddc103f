"""A penalty on heads whose output comes from coefficients of one sign."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from hf_bidir.checkpoints.layer_hooks import at_tokens, signed_parts

SMALLEST = 1e-6  # squared distance, and share


@contextmanager
def one_sidedness(model: nn.Module, keep: Tensor | None, most_unequal: float) -> Iterator[list[Tensor]]:
    """Inside the context, collect for every call of a signed layer how far its heads are from using both signs.

    The contexts of the positive and of the negative coefficients of a head have squared distances `d+` and `d-` from
    their means over the tokens of the batch. The share of a sign is the mean over tokens of its part of `d+ + d-`, in
    which a token of large values, such as the first one, counts as much as the others. Collected is the mean over heads
    of `max(0, |log share+ - log share-| - log most_unequal)`. Where a part is 0 everywhere, as the negative one at
    `λ = 0`, no gradient could change it, and the head counts as 0. The backward pass may run outside the context,
    except with gradient checkpointing.

    Args:
        keep: attention mask of a batch of texts, `[batch, length]`; None counts every position.
        most_unequal: ratio of the shares from which on a head is penalised; 3 asks for a quarter from either sign.
    """
    penalties: list[Tensor] = []

    def record(*parts: Tensor) -> None:
        contexts = torch.stack([at_tokens(part, keep).float() for part in parts])  # [signs, tokens, heads, head_dim]
        means = contexts.mean(1, keepdim=True)
        distances = (contexts - means).square().sum(-1)
        of_both_signs = distances.sum(0).clamp_min(SMALLEST)
        shares = (distances / of_both_signs).mean(1)
        positive, negative = shares.add(SMALLEST).log()
        penalty = (positive - negative).abs() - math.log(most_unequal)
        uses_both = (shares > 0).all(0)
        penalties.append((penalty.clamp_min(0) * uses_both).mean())

    with signed_parts(model, record):
        yield penalties
