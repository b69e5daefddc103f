"""Which conversions from a softmax checkpoint to TanhMax keep its accuracy? MiniLM on SST-2, side by side.

    python training/distill.py training/recipes/minilm-healed.yaml        # once, for the healed variants
    python training/distill.py training/recipes/minilm-healed.yaml --max_steps 250 \\
        --output_dir runs/minilm-healed-briefly
    python training/distill.py training/recipes/minilm-healed.yaml --max_steps 30 \\
        --output_dir runs/minilm-healed-barely
    python training/compare_conversions.py --data-dir DIR

`DIR` holds train.parquet, validation.parquet and test.parquet. Runs go to --runs. Results of a finished
run go to a small file under --results, and such a run is not repeated; an interrupted run continues. Several processes
may share the work, with different names in --only. Table and figure are saved at the end, from all finished runs.
"""

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, BatchEncoding, DataCollatorWithPadding, PreTrainedModel, TrainerState

from hf_bidir import BidirBertForSequenceClassification
from hf_bidir.cli.recipe import read_recipe
from hf_bidir.common.files import replacing, write_json
from hf_bidir.explain.signs import negative_share, without_negatives
from hf_bidir.finetune.data.sources import read_table
from hf_bidir.finetune.data.splits import find_column
from hf_bidir.finetune.data.text_data import TEXT_COLUMNS
from hf_bidir.finetune.folder import RESULTS, last_checkpoint, read_record
from hf_bidir.finetune.tasks.text_classification import text_classification

ROOT = Path(__file__).resolve().parent.parent
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Variant:
    """One conversion: a description, a recipe, changes to its options, the number of seeds, and the checkpoint."""

    what: str
    recipe: str
    options: dict[str, Any] = field(default_factory=dict)
    seeds: int = 1
    start: str = "model"


def annealed(what: str, centre: bool = False, seeds: int = 1, **options: Any) -> Variant:
    return Variant(what, "sst2-minilm-annealed", {"centre": centre, **options}, seeds)


DIRECT = {"attn_activation": "tanhmax", "attn_negative_mass": 1.0, "centre": False}
CENTRED = DIRECT | {"centre": True}
HEALED = "sst2-minilm-healed"
FEW = {"max_train_samples": 3000, "num_train_epochs": 2}
VARIANTS = {
    "softmax": Variant("softmax throughout", "sst2-minilm-softmax", seeds=3),
    "direct": Variant("λ = 1 at once", "sst2-minilm-softmax", DIRECT, seeds=3),
    "centred": Variant("centred, then λ = 1 at once", "sst2-minilm-softmax", CENTRED, seeds=3),
    "healed-barely": Variant("centred, healed for 30 steps, then λ = 1", HEALED, seeds=3, start="barely"),
    "healed-briefly": Variant("centred, healed for 250 steps, then λ = 1", HEALED, start="briefly"),
    "healed": Variant("centred, healed for 700 steps, then λ = 1", HEALED, start="healed"),
    "log": annealed("log λ rises over 60 %"),
    "centred-log": annealed("centred, then log λ rises over 60 %", centre=True, seeds=3),
    "long-tail": annealed("log λ over 30 %, then a long tail at 1", negative_mass_until=0.3),
    "high-rate": annealed("log λ over 60 %, learning rate 1e-4", learning_rate=1e-4),
    "slow": annealed("log λ over 50 % of 6 epochs", negative_mass_until=0.5, num_train_epochs=6),
    "few-softmax": Variant("3,000 sentences, 2 epochs: softmax", "sst2-minilm-softmax", FEW, seeds=3),
    "few-direct": Variant("3,000 sentences, 2 epochs: λ = 1 at once", "sst2-minilm-softmax", FEW | DIRECT),
    "few-healed": Variant("3,000 sentences, 2 epochs: healed for 30 steps", HEALED, FEW, start="barely"),
}
MAIN = ("softmax", "healed", "healed-briefly", "healed-barely", "centred", "direct")
COLORS = {name: f"C{index}" for index, name in enumerate(name for name in VARIANTS if name != "softmax")}
HEADING = """# From softmax to TanhMax: MiniLM on SST-2

`python training/compare_conversions.py --data-dir DIR --model MINILM`. Test accuracy in percent of the last checkpoint
(without selection), mean ± standard deviation over seeds; λ at the end; the share of negative coefficients among those
with a magnitude above 1e-3, on a quarter of the test sentences; and the loss of accuracy in points when they are set to
0, without further training.

| variant | conversion | seeds | accuracy | λ | negative | loss without them |
|---|---|---|---|---|---|---|""".splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="holds {train,validation,test}.parquet")
    parser.add_argument("--model", help="the softmax checkpoint; by default the recipes', from the Hub")
    for name in ("healed", "healed-briefly", "healed-barely"):
        folder = ROOT / f"runs/minilm-{name}"
        parser.add_argument(f"--{name}", dest=name.removeprefix("healed-"), type=Path, default=folder,
                            help="output folder of distill.py, as above")  # fmt: skip
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), metavar="NAME",
                        help=f"only these variants: {', '.join(VARIANTS)}")  # fmt: skip
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/compare-conversions", help="folder of the runs")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results/compare_conversions",
                        help="folder of results, table and figure")  # fmt: skip
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        for seed in range(VARIANTS[name].seeds):
            file = options.results / f"{name}-seed{seed}.json"
            if not file.is_file():
                write_json(file, measured_run(name, seed, options))
    runs = finished_runs(options.results)
    with replacing(options.results / "README.md") as temporary:
        temporary.write_text(table(runs), encoding="utf-8")
    draw(runs, options.results / "accuracy.png")
    print(table(runs))


def measured_run(name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train one variant with one seed unless it is finished, and measure the columns of the table."""
    folder, variant = options.runs / f"{name}-seed{seed}", VARIANTS[name]
    start = getattr(options, variant.start)
    if read_record(folder).get("status") != "finished":
        given = read_recipe(text_classification.options, ROOT / f"training/recipes/{variant.recipe}.yaml")
        given |= {f"{split}_file": options.data_dir / f"{split}.parquet" for split in SPLITS}
        given |= {"model_name_or_path": start} if start else {}
        text_classification(given | variant.options | {"seed": seed, "output_dir": folder})
    state = TrainerState.load_from_json(str(Path(last_checkpoint(folder), "trainer_state.json")))
    record, results = read_record(folder), json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    return {
        "test_accuracy": results["test_accuracy"],
        "curve": [
            [round(entry["epoch"], 3), entry["eval_accuracy"]]
            for entry in state.log_history
            if "eval_accuracy" in entry
        ],
        **sign_numbers(folder, options.data_dir / "test.parquet"),
        **{fact: record[fact] for fact in ("hardware", "versions")},
    }


def sign_numbers(folder: Path, test_file: Path) -> dict[str, float]:
    """The share of negative coefficients, and the test accuracy when they are set to 0."""
    model = BidirBertForSequenceClassification.from_pretrained(folder).eval()
    batches = test_batches(folder, read_table(str(test_file)))
    share = negative_share(model, [{k: v for k, v in batch.items() if k != "labels"} for batch in batches[::4]])
    with without_negatives(model):
        accuracy = accuracy_of(model, batches)
    masses = torch.tensor(model.config.attn_negative_mass)
    return {
        "negative_share": share,
        "test_accuracy_without_negatives": accuracy,
        "negative_mass": [masses.min().item(), masses.mean().item(), masses.max().item()],
    }


def test_batches(folder: Path, test: Dataset) -> list[BatchEncoding]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    column = find_column("test", test, None, TEXT_COLUMNS, "text")
    rows = test.map(lambda row: tokenizer(row[column], truncation=True, max_length=64, return_token_type_ids=False))
    rows = rows.map(lambda row: {"length": len(row["input_ids"])}).sort("length")
    rows = rows.select_columns(["input_ids", "attention_mask", "label"])
    return list(DataLoader(rows, batch_size=32, collate_fn=DataCollatorWithPadding(tokenizer)))


@torch.inference_mode()
def accuracy_of(model: PreTrainedModel, batches: list[BatchEncoding]) -> float:
    hits = [model(**batch).logits.argmax(-1) == batch["labels"] for batch in batches]
    return torch.cat(hits).float().mean().item()


def finished_runs(results: Path) -> dict[str, list[dict[str, Any]]]:
    """The results by variant and seed, without variants that have no finished run."""
    files = {name: sorted(results.glob(f"{name}-seed*.json")) for name in VARIANTS}
    return {
        name: [json.loads(file.read_text(encoding="utf-8")) for file in found] for name, found in files.items() if found
    }


def table(runs: dict[str, list[dict[str, Any]]]) -> str:
    """Test accuracy in percent, mean ± standard deviation over seeds, and the effect of negative coefficients."""
    lines = []
    for name, measured in runs.items():
        accuracy = [100 * run["test_accuracy"] for run in measured]
        spread = f" ± {stdev(accuracy):.1f}" if len(accuracy) > 1 else ""
        share = 100 * mean(run["negative_share"] for run in measured)
        worth = 100 * mean(run["test_accuracy"] - run["test_accuracy_without_negatives"] for run in measured)
        masses = [mean(run["negative_mass"][index] for run in measured) for index in (0, 2)]
        mass = f"{masses[0]:.3g}" if masses[0] == masses[1] else f"{masses[0]:.2g} to {masses[1]:.2g}"
        cells = [name, VARIANTS[name].what, str(len(measured)), f"{mean(accuracy):.1f}{spread}", mass]
        lines.append(f"| {' | '.join([*cells, f'{share:.0f} %', f'{round(worth, 1) + 0:.1f}'])} |")
    first = next(iter(runs.values()))[0]
    versions = ", ".join(f"{name} {first['versions'][name]}" for name in ("torch", "transformers"))
    machine = f"{first['hardware']['cpu']}; {versions}"
    return "\n".join([*HEADING, *lines, "", f"Machine: {machine}.", "", "![Accuracy over training](accuracy.png)", ""])


def draw(runs: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Validation accuracy during training: the main variants on the left, the schedules and softmax on the right."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = {
        "λ = 1 from the first step of fine-tuning, and softmax": [name for name in runs if name in MAIN],
        "negative mass raised while fine-tuning": [
            name for name in runs if name not in MAIN[1:] and not name.startswith("few")
        ],
    }
    for axes, (title, names) in zip(figure.subplots(1, 2, sharey=True), panels.items(), strict=True):
        for name in names:
            curves = [list(zip(*run["curve"], strict=True)) for run in runs[name]]
            epochs, accuracies = curves[0][0], 100 * np.array([accuracy for _, accuracy in curves])
            style = {"color": "black", "linestyle": ":"} if name == "softmax" else {"color": COLORS[name]}
            seeds = f" ({len(curves)} seeds)" if len(curves) > 1 else ""
            axes.plot(epochs, accuracies.mean(0), label=f"{name}{seeds}", **style)
            axes.fill_between(
                epochs, accuracies.min(0), accuracies.max(0), color=style["color"], alpha=0.15, linewidth=0
            )
        axes.set(title=title, xlabel="epoch", ylim=(70, None))  # all start at chance
        axes.legend(loc="lower right", fontsize=8)
    figure.axes[0].set_ylabel("validation accuracy, %")
    figure.supxlabel("lines: mean over seeds; bands: smallest to largest value", fontsize=8)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=120)


if __name__ == "__main__":
    main()
