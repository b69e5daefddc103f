"""Repeated tokens in a language model: are copies suppressed by negative coefficients?"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from hf_bidir.checkpoints.layer_hooks import edited_coefficients
from hf_bidir.checkpoints.module_hooks import hooked
from research.signs.observed import layers_of, output_maps, share

LIKELY, UNLIKELY, EVENTS, HEADS = 10, 100, 4, 10
FIRST_QUERY, GAP = 16, 2


@dataclass(frozen=True)
class Copy:
    """A token that occurred once, at `key`, likely at `query` and unlikely at the earlier query `before`."""

    text: int
    key: int
    query: int
    before: int


@torch.no_grad()
def copies_of(teacher: PreTrainedModel, texts: Tensor) -> list[Copy]:
    """Up to `EVENTS` random copies of each text `[texts, tokens]`, as the softmax model predicts."""
    events = []
    for index, ids in enumerate(tqdm(texts, leave=False, unit="text")):
        top = teacher(ids[None]).logits[0].topk(UNLIKELY).indices
        places = top[:, None] == ids[:, None]  # [queries, keys, rank]: where the key's token is predicted
        likely, unlikely = places[..., :LIKELY].any(-1), ~places.any(-1)
        here = []
        for query in range(FIRST_QUERY, len(ids)):
            for key in likely[query, 1 : query - GAP + 1].nonzero().flatten().add(1).tolist():
                earlier = unlikely[key + GAP : query, key].nonzero().flatten()
                if (ids[: query + 1] == ids[key]).sum() == 1 and len(earlier):
                    here.append(Copy(index, key, query, key + GAP + int(earlier[-1])))
        order = torch.randperm(len(here), generator=torch.Generator().manual_seed(index))
        events += [here[i] for i in order[:EVENTS].tolist()]
    return events


@torch.no_grad()
def read(model: PreTrainedModel, texts: Tensor, copies: list[Copy]) -> tuple[Tensor, Tensor]:
    """Coefficients on the copy and direct effects on its logit, `[copies, 2, layers, heads]`: at `query`, `before`."""
    unembedding = model.get_output_embeddings().weight.detach()
    unembedding = unembedding - unembedding.mean(0)
    norm, states, events = model.base_model.norm, [], []
    maps = output_maps(model, model.config.num_attention_heads)
    for index, ids in enumerate(tqdm(texts, leave=False, unit="text")):
        here = [copy for copy in copies if copy.text == index]
        if not here:
            continue
        with hooked([norm], before=lambda _, args, kwargs: states.append(args[0][0])):
            _, layers = layers_of(model, {"input_ids": ids[None]})
        state = states.pop()
        for copy in here:
            queries, row = [copy.query, copy.before], unembedding[ids[copy.key]] * norm.weight
            scales = state[queries].pow(2).mean(-1).sqrt()
            a = torch.stack([layer.coefficients[:, queries, copy.key].T for layer in layers], 1)
            each = [
                torch.einsum("hd,hdx,x->h", layer.values[:, copy.key], output, row)
                for layer, output in zip(layers, maps, strict=True)
            ]
            events.append((a, a * torch.stack(each) / scales[:, None, None]))
    coefficients, effects = zip(*events, strict=True)
    return torch.stack(coefficients), torch.stack(effects)


@torch.no_grad()
def removed(model: PreTrainedModel, texts: Tensor, copies: Iterable[Copy], heads: Tensor) -> Tensor:
    """The change of the copy's logit, centred, at the query when the coefficients of heads `[heads, (layer, head)]` on
    the copy are 0 there; `[copies]`."""
    changes = []
    for copy in tqdm(list(copies), leave=False, unit="copy"):
        ids = texts[copy.text, None, : copy.query + 1]

        def logit(ids: Tensor = ids, copy: Copy = copy) -> Tensor:
            logits = model(ids).logits[0, -1]
            return logits[ids[0, copy.key]] - logits.mean()

        before = logit()
        with _without(model, heads, copy):
            changes.append(logit() - before)
    return torch.stack(changes)


@contextmanager
def _without(model: PreTrainedModel, heads: Tensor, copy: Copy) -> Iterator[None]:
    layers = count()

    def edit(coefficients: Tensor) -> Tensor:
        layer, edited = next(layers), coefficients.clone()
        edited[:, heads[heads[:, 0] == layer, 1], copy.query, copy.key] = 0
        return edited

    with edited_coefficients(model, edit):
        yield


def lowering(effects: Tensor, first: Tensor) -> Tensor:
    """The heads `[HEADS, (layer, head)]` that lower the copy most at the query, compared with before."""
    change = (effects[first, 0] - effects[first, 1]).mean(0)
    return torch.stack(torch.unravel_index(change.flatten().argsort()[:HEADS], change.shape), -1)


def rows_of(model: str, coefficients: Tensor, effects: Tensor, first: Tensor, text: Tensor) -> list[dict]:
    """The rows of one model; `first` says which copies choose, and `text` which text a copy is of, `[copies]` both."""
    negative = (coefficients < 0).double()
    difference = (negative[first, 0] - negative[first, 1]).mean(0)
    layer, head = divmod(int(difference.argmax()), difference.shape[1])
    counted = text[~first]

    def by_text(x: Tensor, below: Tensor | None = None) -> dict[str, float]:
        rows = torch.zeros(2, int(counted.max()) + 1, dtype=torch.double)
        rows[0].index_add_(0, counted, x.double())
        rows[1].index_add_(0, counted, (torch.ones_like(x) if below is None else below).double())
        return share(*rows[:, rows[1] != 0])

    rows = []
    if coefficients.min() < 0:
        best = negative[~first][..., layer, head]
        where = f"layer {layer}, head {head}"
        numbers = {"likely": best[:, 0], "unlikely": best[:, 1], "change": best[:, 0] - best[:, 1]}
        rows += [
            {"model": model, "reading": "best head", "where": where, "measure": name, **by_text(x)}
            for name, x in numbers.items()
        ]
        everywhere = negative[~first].mean((2, 3))
        numbers = {
            "likely": everywhere[:, 0],
            "unlikely": everywhere[:, 1],
            "change": everywhere[:, 0] - everywhere[:, 1],
        }
        rows += [{"model": model, "reading": "all heads", "measure": name, **by_text(x)} for name, x in numbers.items()]
    heads = lowering(effects, first)
    chosen = effects[~first][..., heads[:, 0], heads[:, 1]]
    by_negative = chosen * negative[~first][..., heads[:, 0], heads[:, 1]]
    lowered = chosen.clamp_max(0)
    numbers = {
        "effect, likely": (chosen[:, 0].sum(-1), None),
        "effect, unlikely": (chosen[:, 1].sum(-1), None),
        "effect, change": ((chosen[:, 0] - chosen[:, 1]).sum(-1), None),
        "part of negative coefficients": (by_negative[:, 0].clamp_max(0).sum(-1), lowered[:, 0].sum(-1)),
    }
    rows += [
        {"model": model, "reading": "lowering heads", "measure": name, **by_text(*x)} for name, x in numbers.items()
    ]
    return rows
