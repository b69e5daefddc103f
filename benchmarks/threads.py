"""How fast is a training step with one CPU thread, compared with all cores, by size of the model?

A BERT of four layers with TanhMax and a ViT of the same shape take steps of AdamW; the two numbers of threads are
interleaved. `hf_bidir/finetune/threads.py` therefore leaves two threads to small models, not one.

    python benchmarks/threads.py
"""

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel

from benchmarks.measure import interleaved_medians, write_table
from hf_bidir import BidirBertConfig, BidirBertForSequenceClassification, BidirViTConfig, BidirViTForImageClassification

WIDTHS = (64, 128, 192, 256, 384)
LAYERS, BATCH, LENGTH, VOCABULARY = 4, 32, 64, 8000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "threads.md")
    options = parser.parse_args()
    cores, rows = os.cpu_count() or 1, []
    for width in WIDTHS:
        shape = {
            "hidden_size": width,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "intermediate_size": 4 * width,
        }
        for model, inputs in (text_model(shape), image_model(shape)):
            step = training_step(model, inputs)
            tasks = {str(threads): partial(with_threads, threads, step) for threads in (1, cores)}
            seconds = interleaved_medians(tasks, options.repeats)
            ratio = seconds["1"] / seconds[str(cores)]
            rows.append([type(model).__name__, str(width), f"{model.num_parameters() / 1e6:.1f}", f"{ratio:.2f}"])
    notes = f"Batches of {BATCH}, {LENGTH} tokens or patches; medians of {options.repeats} interleaved steps."
    header = ["model", "hidden size", "million parameters", f"time of 1 thread / time of {cores}"]
    write_table(options.output, "Threads of a training step on a CPU", notes, header, rows, "cpu")


def text_model(shape: dict[str, int]) -> tuple[PreTrainedModel, dict[str, torch.Tensor]]:
    model = BidirBertForSequenceClassification(BidirBertConfig(vocab_size=VOCABULARY, **shape))
    return model, {"input_ids": torch.randint(VOCABULARY, (BATCH, LENGTH))}


def image_model(shape: dict[str, int]) -> tuple[PreTrainedModel, dict[str, torch.Tensor]]:
    model = BidirViTForImageClassification(BidirViTConfig(image_size=32, patch_size=4, **shape))
    return model, {"pixel_values": torch.randn(BATCH, 3, 32, 32)}


def training_step(model: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> Callable[[], None]:
    optimizer, labels = torch.optim.AdamW(model.parameters()), torch.randint(2, (BATCH,))

    def step() -> None:
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def with_threads(threads: int, step: Callable[[], None]) -> None:
    torch.set_num_threads(threads)
    step()


if __name__ == "__main__":
    main()
