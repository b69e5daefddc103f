"""The number of CPU threads that suits a model."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel, TrainingArguments

logger = logging.getLogger(__name__)

SMALL_MODEL = 5_000_000  # parameters
FEW = 2  # threads; two are faster than one even for 0.2 million parameters (benchmarks/threads.py)


@contextmanager
def suitable_threads(model: PreTrainedModel, args: TrainingArguments) -> Iterator[None]:
    """Compute with at most two CPU threads if the model is small: synchronising many takes longer than its operations.

    OMP_NUM_THREADS, if set, and a GPU take precedence. The number of threads is restored at the end.
    """
    before = torch.get_num_threads()
    small = model.num_parameters() < SMALL_MODEL
    if small and before > FEW and args.device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(FEW)
        logger.warning(
            "Using %d of %d CPU threads for a model of %s parameters; OMP_NUM_THREADS overrides it.",
            *(FEW, before, f"{model.num_parameters():,}"),
        )
    try:
        yield
    finally:
        torch.set_num_threads(before)
