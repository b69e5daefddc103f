"""The number of CPU threads that suits a model."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel, TrainingArguments

logger = logging.getLogger(__name__)

SMALL_MODEL = 5_000_000  # parameters


@contextmanager
def suitable_threads(model: PreTrainedModel, args: TrainingArguments) -> Iterator[None]:
    """Compute with one CPU thread if the model is small, whose operations are shorter than synchronising threads.

    OMP_NUM_THREADS, if set, and a GPU take precedence. The number of threads is restored at the end.
    """
    before = torch.get_num_threads()
    small = model.num_parameters() < SMALL_MODEL
    if small and before > 1 and args.device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
        logger.warning(
            "Using one CPU thread, which is faster for a model of %s parameters; OMP_NUM_THREADS overrides it.",
            f"{model.num_parameters():,}",
        )
    try:
        yield
    finally:
        torch.set_num_threads(before)
