"""Do the scores of patches say what happens without them? Methods x models, on images of 49 patches.

    python -m research.explanations.patches --data-dir DIR

trains small ViTs with patches of 4 x 4 pixels on 12,000 images of Fashion-MNIST, unless they are finished, and measures
every method with signs on 100 test images. A method explains the predicted class instead of the second one; y is the
difference of their logits. No method compares with what replaces a patch here: the *blur* of the image itself, or the
same patches of *other* images, the mean over eight. Rows go to results/patches.csv, one for each model, seed, method
and half of the images: one half chooses the default method ("choice"), the other reports it ("report").

    opposite        share of the images whose scores, without that of the class token, sum to another sign than y
    falls_blur      y minus y once the tenth of the patches with the largest scores is replaced by the blur, mean
    rises_blur      y once the tenth with the smallest scores is, minus y, mean
    falls_other, rises_other    the same with patches of other images
    lead            falls + rises, minus those of integrated gradients on the same image, mean over blur and other
    seconds         median time of an image, one thread
    accuracy        of the model, on 1000 test images

Columns NAME_error are standard errors over images.
"""

import argparse
import math
import statistics
import time
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from pyarrow import parquet
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedModel

from benchmarks.measure import KEEP_LAST
from benchmarks.runs import where
from hf_bidir.explain import token_scores
from hf_bidir.explain.inputs.image import patch_grid
from hf_bidir.explain.registry import METHODS as REGISTRY
from research.explanations.tasks import MODELS, TASKS, add_options, examples_of, load
from research.explanations.words import HALVES, by_settings, summary
from research.runs import command_line, grid, recipe, run_grid, train

FILE = Path(__file__).with_name("results") / "patches.csv"
KEY = ("model", "seed", "method", "half")
TASK, PREDICTED, IMAGES, OTHERS = "fashion", 1000, 100, 8
SHAPE = {"patch_size": 4, "hidden_size": 64, "intermediate_size": 128}
TRAINING = {"flip": False, "num_train_epochs": 4, "per_device_train_batch_size": 32}
TRAINED_ON = 12_000  # images
BLUR = 13  # pixels, almost half of the image
REPLACED = 0.1  # of the patches
METHODS = [name for name, method in REGISTRY.items() if method.explains_output]
REFERENCE = "integrated-gradients"
FILLINGS = ("blur", "other")
MEANS = {
    "opposite": ("opposite, %", 100, 0),
    **{f"{what}_{filling}": (f"{what}, {filling}", 1, 2) for filling in FILLINGS for what in ("falls", "rises")},
    "lead": ("lead", 1, 2),
}
CHANGES = [name for name in MEANS if name.startswith(("falls", "rises"))]


def main() -> None:
    parser = command_line(__doc__)
    add_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    file = TASKS[TASK].file(options.data_dir, "test")

    def run(model: str, seed: int) -> tuple[list[dict[str, Any]], list[Path]]:
        folder = trained(model, seed, options)
        return measured(folder, options.data_dir), [file]

    run_grid(FILE, grid(seed=range(options.seeds), model=MODELS), run, KEY)


def trained(name: str, seed: int, options: argparse.Namespace) -> Path:
    """The folder of a model, which is trained unless it is finished."""
    data = options.runs / "patches.parquet"
    if not data.is_file():
        options.runs.mkdir(parents=True, exist_ok=True)
        rows = parquet.read_table(TASKS[TASK].file(options.data_dir, "train"))
        parquet.write_table(rows.slice(0, TRAINED_ON), data)
    folder = options.runs / f"patches-{name}-{seed}"
    settings = recipe(f"fashion-mnist-small-{name}") | SHAPE | TRAINING | KEEP_LAST
    train("images", settings | {"train_file": data, "seed": seed}, folder)
    return folder


def measured(folder: Path, data_dir: Path) -> list[dict[str, Any]]:
    """The rows of a model, two for each method."""
    model, processor = load(folder)
    examples = list(examples_of(TASK, model, processor, data_dir, PREDICTED))
    accuracy = statistics.mean(explained.predicted == explained.label for explained in examples)
    images = torch.cat([explained.example.inputs["pixel_values"] for explained in examples[:IMAGES]])
    found = {}
    for method in METHODS:
        numbers = tqdm(range(IMAGES), desc=f"{folder.name}, {method}")
        found[method] = pd.DataFrame([effects(model, images.roll(-number, 0), method) for number in numbers])
    rows = []
    for method, half in product(METHODS, HALVES):
        own, reference = (found[name][HALVES.index(half) :: 2] for name in (method, REFERENCE))
        lead = (own[CHANGES] - reference[CHANGES]).sum(axis=1) / len(FILLINGS)
        rows.append({"method": method, "half": half, "accuracy": accuracy} | summary(own.assign(lead=lead), MEANS))
    return rows


def effects(model: PreTrainedModel, images: Tensor, method: str) -> dict[str, float]:
    """What the scores of the first image say, and what happens without its patches; the next images replace them."""
    pixels, others = images[:1], images[1 : 1 + OTHERS]
    with torch.no_grad():
        target, foil = model(pixel_values=pixels).logits[0].topk(2).indices.tolist()
    start = time.perf_counter()
    of_tokens = token_scores(model, {"pixel_values": pixels}, method, target, instead_of=foil)[0]
    seconds = time.perf_counter() - start

    def y(images: Tensor) -> Tensor:
        logits = model(pixel_values=images).logits
        return logits[:, target] - logits[:, foil]

    grid = patch_grid(model, pixels)
    scores = of_tokens[-math.prod(grid) :].cpu()
    ranked, count = scores.argsort(descending=True), round(REPLACED * len(scores))
    fillings = torch.cat([blurred(pixels), others])
    falls = y(pixels) - y(replaced(pixels, fillings, ranked[:count], grid))
    rises = y(replaced(pixels, fillings, ranked[-count:], grid)) - y(pixels)
    changes = [change.item() for change in (falls[0], rises[0], falls[1:].mean(), rises[1:].mean())]
    return {"opposite": (scores.sum() < 0).item(), "seconds": seconds} | dict(zip(CHANGES, changes, strict=True))


def blurred(pixels: Tensor) -> Tensor:
    """Images whose pixels are means over a wide window, of the part inside the image."""
    return nn.functional.avg_pool2d(pixels, BLUR, stride=1, padding=BLUR // 2, count_include_pad=False)


def replaced(pixels: Tensor, fillings: Tensor, patches: Tensor, grid: tuple[int, int]) -> Tensor:
    """An image `[1, channels, height, width]` with some of its patches from each of the fillings."""
    chosen = torch.zeros(math.prod(grid)).index_fill(0, patches, 1)
    mask = nn.functional.interpolate(chosen.view(1, 1, *grid), pixels.shape[2:])
    return torch.where(mask.bool(), fillings, pixels)


def table(runs: pd.DataFrame, half: str = "report", by_model: bool = False) -> str:
    """A row for each method, the mean over models and seeds; or for each model and method."""
    runs = where(runs, half=half)
    if by_model:
        return by_settings(runs, grid(model=MODELS, method=METHODS), MEANS)
    means = runs.groupby(["method", "seed"], as_index=False).mean(numeric_only=True)
    return by_settings(means, grid(method=METHODS), MEANS)


if __name__ == "__main__":
    main()
