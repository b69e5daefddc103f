"""Does the sign of a coefficient give the sign of its contribution?"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from research.signs.observed import VIGINTILES, layers_of, share

SAMPLES = 100  # texts whose coefficients give the thresholds


def read(model: PreTrainedModel, inputs: Sequence[Mapping[str, Tensor]], first: Tensor) -> Tensor:
    """Sums of |contribution| by the side of the coefficient and the sign of the contribution, + before -, by text.

    Of a classifier of two classes: `[texts, thresholds, layers, heads, 2, 2]`; contributions are those to the logit
    difference. The side is that of a threshold: 0, or a vigintile of the head's coefficients over the texts of `first`.
    """

    def explained(text: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
        _, layers = layers_of(model, text, lambda outputs: outputs.logits[0, 1] - outputs.logits[0, 0])
        return [(layer.coefficients, layer.gradient @ layer.values.mT) for layer in layers]

    samples = [explained(inputs[index]) for index in tqdm(first.nonzero().flatten()[:SAMPLES].tolist(), leave=False)]
    thresholds = []
    for layer in zip(*samples, strict=True):
        reached = [a.flatten(1)[:, (gradients != 0).any(0).flatten()] for a, gradients in layer]
        quantiles = torch.cat(reached, 1).quantile(VIGINTILES, dim=1)
        thresholds.append(torch.cat([torch.zeros(1, quantiles.shape[1]), quantiles]))
    texts = []
    for text in tqdm(inputs, leave=False, unit="text"):
        layers = zip(explained(text), thresholds, strict=True)
        texts.append(torch.stack([by_side(a, gradients, below) for (a, gradients), below in layers], 1))
    return torch.stack(texts)


def by_side(coefficients: Tensor, gradients: Tensor, thresholds: Tensor) -> Tensor:
    """The sums `[thresholds, heads, 2, 2]` of coefficients and their gradients `[heads, queries, keys]`.

    `thresholds` are `[thresholds, heads]`.
    """
    contributions = (coefficients * gradients).flatten(1)
    parts = torch.stack([contributions.clamp_min(0), (-contributions).clamp_min(0)], -1)
    above = coefficients.flatten(1) > thresholds[..., None]
    sums = above.to(parts.dtype)[..., None, :] @ parts
    return torch.cat([sums, parts.sum(1, keepdim=True) - sums], -2)


def rows_of(model: str, sums: Tensor, first: Tensor) -> list[dict]:
    """Right by the sign of the coefficient or by the side of a threshold, and by the usual sign of the head: for all
    heads, and for the head with the largest advantage; chosen on the texts of `first`, counted on the others."""
    sums = sums.double()
    sides = torch.stack([sums[..., 0, 0] + sums[..., 1, 1], sums[..., 0, 1] + sums[..., 1, 0]], -1)
    usual, total = _right(sums[:, 0].sum(-2), first), sums[:, 0].sum((-1, -2))
    rows = []
    for ending, options in (("", sides[:, 0]), (", threshold", sides.movedim(1, -2).flatten(-2))):
        right = _right(options, first)
        numbers = {"sign": right, "usual sign": usual, "advantage": right - usual}
        on_first = numbers["advantage"][first].sum(0) / total[first].sum(0)
        best = divmod(int(on_first.argmax()), on_first.shape[1])
        for measure, x in numbers.items():
            row = {"model": model, "measure": measure}
            everywhere = share(x[~first].sum((1, 2)), total[~first].sum((1, 2)))
            rows.append(row | {"reading": f"all heads{ending}"} | everywhere)
            if on_first[best] > 1e-6:  # with softmax the sign is no better than the usual sign in any head
                at_best = share(x[~first][(slice(None), *best)], total[~first][(slice(None), *best)])
                rows.append(
                    row | {"reading": f"best head{ending}", "where": "layer {}, head {}".format(*best)} | at_best
                )
    return rows


def _right(options: Tensor, first: Tensor) -> Tensor:
    """Of options `[texts, layers, heads, options]`, for each head the one with the largest sum over the first texts."""
    best = options[first].sum(0).argmax(-1)
    return options.gather(-1, best[None, ..., None].expand(*options.shape[:-1], 1))[..., 0]
