"""How long does an explanation take, and how much memory does it need?

A published MiniLM, and models of the shapes of BERT-base, ViT-base and SmolLM2-135M with random weights, read a
sentence of 20 words, an image of 224 pixels and a prompt of 20 tokens: one input by default, with verdict, page and
picture, and one of many inputs, on one core, on the threads that torch uses by default, or on a GPU. Each is a row of
results/explanation_times.csv, and one that has a row is not measured again; `make tables` makes the table of
docs/explanations.md.

    python -m benchmarks.explanation_times
    python -m benchmarks.explanation_times --device cuda
    python -m benchmarks.explanation_times --layers 1 --repeats 1 --file /tmp/times.csv    # to test this file
"""

from argparse import Namespace
from functools import partial
from io import BytesIO
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from pandas import DataFrame
from PIL import Image
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
)

from benchmarks.measure import RESULTS, ROOT, command_line, elapsed, peak_memory, run_grid
from benchmarks.runs import markdown, where
from benchmarks.tools import SENTENCE, bert
from hf_bidir.explain import Explanation, explain, load_checkpoint
from hf_bidir.finetune.record import cpu_model

SMOLLM2 = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9,
    "num_key_value_heads": 3, "tie_word_embeddings": True,
}  # fmt: skip
COLUMNS = {  # of the table: place and measure
    "one core, s": ("one core", "seconds"),
    "all threads, s": ("all threads", "seconds"),
    "memory, MiB": ("all threads", "MiB"),
    "GPU, s": ("GPU", "seconds"),
    "GPU memory, MiB": ("GPU", "MiB"),
}


def vit(layers: int = 12) -> tuple[PreTrainedModel, Any]:
    """A classifier of the shape of ViT-base, and its image processor."""
    return ViTForImageClassification(ViTConfig(num_hidden_layers=layers)), ViTImageProcessor()


def llama(layers: int = 30) -> tuple[PreTrainedModel, Any]:
    """A language model of the shape of SmolLM2-135M, and a tokenizer."""
    config = LlamaConfig(**SMOLLM2, num_hidden_layers=layers)
    return LlamaForCausalLM(config), AutoTokenizer.from_pretrained(ROOT / "model_cards/imdb-lm-softmax")


def minilm(layers: int = 6) -> tuple[PreTrainedModel, Any]:
    """A TanhMax classifier with its weights, and its tokenizer."""
    return load_checkpoint(ROOT / "model_cards/sst2-minilm-tanhmax")


def shown(model: PreTrainedModel, processor: Any, example: Any) -> Explanation:
    """The default explanation, with its page and picture."""
    explanation = explain(model, processor, example)
    explanation.page()
    explanation.plot().savefig(BytesIO(), format="png")
    return explanation


CHOICES = {"default": shown, "of many": partial(explain, verdict=False, budget=0)}
MODELS = {"MiniLM": minilm, "BERT-base": bert, "ViT-base": vit, "Llama, 135 M": llama}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--repeats", type=int, default=3, help="runs after the first one")
    parser.add_argument("--layers", type=int, help="fewer layers than the models have")
    parser.add_argument("--file", type=Path, default=RESULTS / "explanation_times.csv")
    options = parser.parse_args()
    places = ["GPU"] if options.device == "cuda" else ["one core", "all threads"]
    rows = product(MODELS, CHOICES, places)
    trials = [{"model": model, "choice": choice, "place": place} for model, choice, place in rows]
    run_grid(options.file, trials, partial(measured, options, torch.get_num_threads()))


def measured(
    options: Namespace, threads: int, model: str, choice: str, place: str
) -> tuple[dict[str, Any], list[Path]]:
    """The numbers of one row, which is printed."""
    torch.set_num_threads(1 if place == "one core" else threads)
    network, processor = MODELS[model](*filter(None, [options.layers]))
    example = SENTENCE if network.main_input_name == "input_ids" else Image.linear_gradient("L").convert("RGB")
    task = partial(CHOICES[choice], network.eval().to(options.device), processor, example)
    row = {
        "method": task().method,  # the first run imports and compiles
        "seconds": median(elapsed(task) for _ in range(options.repeats)),
        "MiB": peak_memory(task, options.device),
        "threads": torch.get_num_threads(),
        "machine": torch.cuda.get_device_name() if options.device == "cuda" else cpu_model(),
    }
    print(model, choice, place, row, flush=True)
    return row, []


def table(runs: DataFrame) -> str:
    """Two rows a model; memory is its growth during an explanation."""
    rows = []
    for model, choice in product(MODELS, CHOICES):
        measures = where(runs, model=model, choice=choice)
        numbers = [cell(where(measures, place=place)[column]) for place, column in COLUMNS.values()]
        rows.append([model, choice, *numbers])
    return markdown(["model", "method", *COLUMNS], rows)


def cell(numbers: Any) -> str:
    """The only number of a column to two digits, if there is one."""
    return f"{float(f'{numbers.iloc[0]:.2g}'):g}" if len(numbers.dropna()) else "not measured"


if __name__ == "__main__":
    main()
