"""Random numbers that depend only on the batch, so that resumed and uninterrupted runs draw the same ones."""

import zlib
from collections.abc import Iterable

import torch


def batch_generator(examples: Iterable[bytes]) -> torch.Generator:
    """A generator seeded by a batch's content; numbers differ between epochs because batches are shuffled.

    A stateful stream could not be resumed: the data loader prefetches batches beyond the step of a checkpoint, and
    every worker has its own stream.

    Args:
        examples: the raw content of each example, in the order of the batch.
    """
    seed = 0
    for content in examples:
        seed = zlib.crc32(content, seed)
    return torch.Generator().manual_seed(seed)
