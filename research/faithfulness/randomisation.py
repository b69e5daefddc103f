"""Sanity check of explanations: they should change when the weights of the model are randomised."""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_bidir.explain.record import blocks


def randomised_stages(model: PreTrainedModel, seed: int = 0) -> Iterator[tuple[str, PreTrainedModel]]:
    """Randomise the weights of a copy from the top down (Adebayo et al. 2018, "cascading randomization").

    Every weight is drawn from a normal distribution with its own mean and standard deviation, so that hidden states
    keep their scale. Yields the name of the part that was randomised last ("head", the blocks from the last to the
    first, "block 5" for example, then "embeddings"), and the copy, in which all parts so far are random.
    """
    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    parts, seen = blocks(model), set()
    inside = {id(weight) for block in parts for weight in block.parameters()}
    outside = [(name, weight) for name, weight in model.named_parameters() if id(weight) not in inside]
    embeddings = [weight for name, weight in outside if _is_embedding(name)]
    head = [weight for name, weight in outside if not _is_embedding(name)]
    stages: list[tuple[str, list[nn.Parameter]]] = [("head", head)]
    stages += [(f"block {index}", list(block.parameters())) for index, block in reversed(list(enumerate(parts)))]
    for name, weights in [*stages, ("embeddings", embeddings)]:
        for weight in weights:
            if id(weight) not in seen:
                _randomise(weight, generator)
                seen.add(id(weight))
        yield name, model


def _is_embedding(name: str) -> bool:
    return any(part in name for part in ("embed", "wte", "wpe", "cls_token", "register_tokens"))


@torch.no_grad()
def _randomise(weight: Tensor, generator: torch.Generator) -> None:
    spread = weight.float().std(correction=0)
    drawn = weight.float().mean().cpu() + spread.cpu() * torch.randn(weight.shape, generator=generator)
    weight.copy_(drawn)
