"""Does the sign of a coefficient give the sign of its contribution?"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from research.signs.observed import layers_of, share


def read(model: PreTrainedModel, inputs: Iterable[Mapping[str, Tensor]]) -> Tensor:
    """Sums of |contribution| by the sign of the coefficient and that of the contribution, + before -, by text.

    Of a classifier of two classes: `[texts, layers, heads, 2, 2]`; contributions are those to the difference of logits.
    """
    texts = []
    for one in tqdm(inputs, leave=False, unit="text"):
        _, layers = layers_of(model, one, lambda outputs: outputs.logits[0, 1] - outputs.logits[0, 0])
        texts.append(torch.stack([by_sign(layer.coefficients, layer.gradient @ layer.values.mT) for layer in layers]))
    return torch.stack(texts)


def by_sign(coefficients: Tensor, gradients: Tensor) -> Tensor:
    """The sums `[heads, 2, 2]` of coefficients and their gradients, `[heads, queries, keys]`."""
    contributions = coefficients * gradients
    of = torch.stack([coefficients > 0, coefficients < 0]).to(contributions.dtype)
    parts = torch.stack([contributions.clamp_min(0), (-contributions).clamp_min(0)])
    return torch.einsum("chqk,shqk->hcs", of, parts)


def rows_of(model: str, sums: Tensor, first: Tensor) -> list[dict]:
    """Right by the sign of the coefficient, and by the usual sign of the head: for all heads, and for the head with the
    largest advantage of the former; chosen on the texts of `first`, counted on the others."""
    sums = sums.double()
    agree, differ = sums[..., 0, 0] + sums[..., 1, 1], sums[..., 0, 1] + sums[..., 1, 0]
    sign, usual = (_right(x, first) for x in (torch.stack([agree, differ], -1), sums.sum(-2)))
    total, advantage = sums.sum((-1, -2)), sign - usual
    on_first = advantage[first].sum(0) / total[first].sum(0)
    best = divmod(int(on_first.argmax()), on_first.shape[1])
    numbers = {"sign": sign, "usual sign": usual, "advantage": advantage}
    rows = []
    for measure, right in numbers.items():
        everywhere = share(right[~first].sum((1, 2)), total[~first].sum((1, 2)))
        at_best = share(right[~first][(slice(None), *best)], total[~first][(slice(None), *best)])
        rows.append({"model": model, "measure": measure, "reading": "all heads", **everywhere})
        where = "layer {}, head {}".format(*best)
        rows.append({"model": model, "measure": measure, "reading": "best head", "where": where, **at_best})
    return rows


def _right(options: Tensor, first: Tensor) -> Tensor:
    """Of two options `[texts, layers, heads, 2]`, for each head the one with the larger sum over the first texts."""
    better = options[first].sum(0).argmax(-1)
    return options.gather(-1, better[None, ..., None].expand(*options.shape[:-1], 1))[..., 0]
