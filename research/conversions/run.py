"""Which conversions of a softmax checkpoint keep its accuracy, and which keep negative coefficients that matter?

    python -m research.conversions.run sst2 --data-dir DATA --model MINILM
    python -m research.conversions.run sst2 ag_news imdb fashion_mnist imdb_lm --data-dir DATA --model MINILM \\
        --only softmax signs --seeds 3 --healings 3

MINILM is sentence-transformers/all-MiniLM-L6-v2 or a folder with its weights. DATA has a folder for each data set, as
research/paper/README.md describes. A run fine-tunes MiniLM with softmax, converts it to signed attention, heals it on
the texts of the task, and measures it on test data; the variant encoder fine-tunes a healed encoder instead.
fashion_mnist and imdb_lm convert the committed softmax checkpoints of model_cards/. Tasks and variants are those of
recipes/. A run becomes a row of results/conversions.csv, and one that has a row is not repeated. Then `make tables`
makes the tables.

Per run: the accuracy, without negative coefficients too; the share of negative coefficients; and the error of the
hidden states after healing.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from datasets import ClassLabel, Dataset
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import AutoImageProcessor, AutoTokenizer, DataCollatorWithPadding, PreTrainedModel

from benchmarks.measure import KEEP_LAST
from hf_bidir.checkpoints.layer_hooks import negative_share, without_negatives
from hf_bidir.checkpoints.reading import open_checkpoint
from hf_bidir.finetune.data.image_data import ImageCollator
from hf_bidir.finetune.data.sources import read_table
from hf_bidir.finetune.models import able_to_pad
from research.paper.data import SPLITS
from research.paper.experiments import read_experiments
from research.runs import ROOT, command_line, recipe, run_grid, train

FILE = Path(__file__).with_name("results") / "conversions.csv"
RECIPES = Path(__file__).with_name("recipes")
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Data:
    """A task of recipes/tasks.yaml, which says what the fields are."""

    title: str
    folder: str
    files: tuple[str, ...] = tuple(f"{split}.parquet" for split in SPLITS)
    rows: dict[str, int] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    heal: dict[str, Any] = field(default_factory=dict)
    teacher: str | None = None
    max_length: int = 64
    labelled: bool = True

    def split(self, name: str, data_dir: Path, runs: Path) -> Path:
        """The file of a split; samples are written to `runs` once."""
        source = data_dir / self.folder / self.files[SPLITS.index(name)]
        if name not in self.rows:
            return source
        sample = runs / f"data/{self.folder}-{name}-{self.rows[name]}.parquet"
        if not sample.is_file():
            sample.parent.mkdir(parents=True, exist_ok=True)
            rows = read_table(str(source)).shuffle(seed=0)
            # validation and training rows may come from one file: one takes the end, the other the beginning
            start = len(rows) - self.rows[name] if name == "validation" else 0
            rows.select(range(start, start + self.rows[name])).to_parquet(str(sample))
        return sample

    def read(self, split: str, data_dir: Path, runs: Path) -> Dataset:
        """The measured rows of a split."""
        file = self.split(split, data_dir, runs)
        if self.folder != "fashion_mnist":
            rows = read_table(str(file))
            return rows if self.labelled else rows.select_columns("text")
        (fashion,) = read_experiments(["vit-fashion-mnist"])
        rows = read_table(str(file)).select(range(2000))
        return rows.cast_column("label", ClassLabel(names=fashion.class_names))


@dataclass(frozen=True)
class Variant:
    """A conversion of recipes/variants.yaml, which says what the fields are."""

    what: str
    heal: dict[str, Any] | None = None
    tune: bool = False
    start: str | None = None


def _read(name: str, kind: type) -> dict[str, Any]:
    content = yaml.safe_load((RECIPES / f"{name}.yaml").read_text(encoding="utf-8"))
    return {name: kind(**fields) for name, fields in content.items()}


TASKS: dict[str, Data] = _read("tasks", Data)
VARIANTS: dict[str, Variant] = _read("variants", Variant)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("tasks", nargs="+", choices=list(TASKS), metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--data-dir", type=Path, required=True, help="holds a folder for each data set")
    parser.add_argument("--model", required=True, help="the softmax MiniLM, a folder or a name on the Hub")
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, default=1, help="of fine-tuning, for each healing")
    parser.add_argument("--healings", type=int, default=1, help="seeds of healing")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/conversions", help="folder of the runs")
    options = parser.parse_args()
    trials = [
        {"task": task, "variant": name, "healing": healing, "seed": seed}
        for task in options.tasks
        for name in options.only
        for seed in range(1 if TASKS[task].teacher else options.seeds)
        for healing in range(options.healings if VARIANTS[name].heal else 1)
    ]
    run_grid(FILE, trials, partial(measured, options))


def measured(
    options: argparse.Namespace, task: str, variant: str, healing: int, seed: int
) -> tuple[dict[str, Any], list[Path]]:
    """Fine-tune, convert, heal and measure; finished parts are reused."""
    data, chosen, numbers = TASKS[task], VARIANTS[variant], {}
    data_dir, runs = options.data_dir, options.runs
    files = {f"{name}_file": str(data.split(name, data_dir, runs)) for name in ("train", "validation")}
    committed = chosen.start or data.teacher
    model = ROOT / "model_cards" / committed if committed else options.model
    if not data.teacher:
        folder = runs / f"{task}-{'softmax' if chosen.heal else variant}-0-{seed}"
        settings = recipe("sst2-minilm-softmax") | files | {"model_name_or_path": str(model), "seed": seed} | KEEP_LAST
        if chosen.start:
            del settings["attn_activation"]  # that of the encoder
        train("bert", settings | data.options, folder)
        model = folder
    if chosen.heal:
        folder = runs / f"{task}-healed-{variant}-{healing}-{seed}"
        settings = recipe("minilm-healed") | {name: [file] for name, file in files.items()}
        settings |= {"model_name_or_path": str(model), "seed": healing, "keep_signs": False, "negative_mass_end": 1.0}
        settings |= {"group_by_length": data.folder != "fashion_mnist"}  # images have no length
        results = train("distill", settings | KEEP_LAST | data.heal | chosen.heal, folder)
        numbers["relative_error"] = results["eval_relative_error"]
        model = folder
    numbers |= signs(Path(model), data.read("test", data_dir, runs), data.max_length)
    return numbers, [data.split(name, data_dir, runs) for name in ("train", "test")]


def signs(folder: Path, rows: Dataset, max_length: int) -> dict[str, float]:
    """Accuracy with and without negative coefficients, and their share.

    For a language model, they are those of the next token. All are in [0, 1].
    """
    model = open_checkpoint(folder).model(torch.float32)
    batches = list(batches_of(folder, rows, max_length))
    inputs = [{name: x for name, x in batch.items() if name != "labels"} for batch in batches[::4]]
    whole = accuracy(model, batches)
    with without_negatives(model):
        without = accuracy(model, batches)
    share = negative_share(model, inputs) or 0.0
    return {"accuracy": whole, "accuracy_without_negatives": without, "negative_share": share}


def batches_of(folder: Path, rows: Dataset, max_length: int) -> Iterator[Batch]:
    """Inputs of 32 examples of similar length, with labels where the rows have them."""
    if "image" in rows.column_names:
        yield from DataLoader(rows, batch_size=32, collate_fn=ImageCollator(AutoImageProcessor.from_pretrained(folder)))
        return
    tokenizer = able_to_pad(AutoTokenizer.from_pretrained(folder), str(folder))
    inputs: list[dict[str, Any]] = []
    for row in rows:
        tokens = tokenizer(row["text"], truncation=True, max_length=max_length, return_token_type_ids=False)
        inputs.append(dict(tokens) | ({"label": row["label"]} if "label" in row else {}))
    inputs.sort(key=lambda tokens: len(tokens["input_ids"]))
    yield from map(dict, DataLoader(inputs, batch_size=32, collate_fn=DataCollatorWithPadding(tokenizer)))


@torch.inference_mode()
def accuracy(model: PreTrainedModel, batches: list[Batch]) -> float:
    """The accuracy of the labels, or of the next token where there are none."""
    hits = []
    for batch in batches:
        predicted = model(**{name: x for name, x in batch.items() if name != "labels"}).logits.argmax(-1)
        if "labels" in batch:
            hits.append(predicted == batch["labels"])
        else:
            keep = batch["attention_mask"][:, 1:].bool()
            hits.append(predicted[:, :-1][keep] == batch["input_ids"][:, 1:][keep])
    return torch.cat(hits).float().mean().item()


if __name__ == "__main__":
    main()
