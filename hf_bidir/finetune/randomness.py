"""Random numbers that depend on the batch alone, so that a resumed run draws what the uninterrupted one would have."""

import zlib
from collections.abc import Iterable

import torch


def batch_generator(examples: Iterable[bytes]) -> torch.Generator:
    """A generator seeded by a batch's content; every epoch shuffles the batches, and so draws other numbers.

    A stream of random numbers is no substitute: the data loader reads batches ahead of the step that a checkpoint is
    saved after, and every worker has a stream of its own.

    Args:
        examples: the raw content of each example, in the order of the batch.
    """
    seed = 0
    for content in examples:
        seed = zlib.crc32(content, seed)
    return torch.Generator().manual_seed(seed)
