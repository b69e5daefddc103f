"""Which conversions of a softmax checkpoint keep its accuracy, and which keep negative coefficients that matter?

    python benchmarks/conversions.py sst2 ag_news imdb --data-dir DATA --model MINILM
    python benchmarks/conversions.py sst2 --data-dir DATA --model MINILM --only softmax half-30 --seeds 3 --healings 3

MINILM is sentence-transformers/all-MiniLM-L6-v2 or a folder with its weights. DATA has a folder for each data set, as
docs/paper.md describes. A run converts MiniLM, heals it on unlabelled texts, fine-tunes it on the task and measures it.
Its results become a line of results/conversions/runs.jsonl, and a run that has one is not repeated. The table and the
figure are drawn from all lines by benchmarks/conversions_report.py.

Per run: the accuracy; the error of the hidden states after healing; the share of negative coefficients; for SST-2 how
often contributions have the sign that people gave the word (treebank in DATA/sst_trees); and the accuracy that is
lost when they are set to 0, and when as much positive mass, chosen at random, is removed. The difference of the two
losses is what the negative coefficients are worth.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any
from unittest.mock import patch

import torch
from conversions_students import chosen_heads
from conversions_trainers import AttentionTransferTrainer, LearnedMassTrainer, ShiftPenaltyTrainer
from datasets import Dataset
from explained import load, sample
from human_sentiment import agreement, score_words
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, PreTrainedModel

from hf_bidir.cli.recipe import read_recipe
from hf_bidir.explain.signs import negative_share, without_as_much_positive, without_negatives
from hf_bidir.finetune.data.sources import read_table
from hf_bidir.finetune.distillation import DistillationTrainer
from hf_bidir.finetune.folder import RESULTS, read_record
from hf_bidir.finetune.record import library_versions
from hf_bidir.finetune.tasks.distillation import distillation
from hf_bidir.finetune.tasks.text_classification import text_classification

ROOT = Path(__file__).resolve().parent.parent
RESULTS_FILE = ROOT / "benchmarks/results/conversions/runs.jsonl"
CONTROLS = 3  # random removals of positive mass
SENTENCES = 200  # whose words have human labels


@dataclass(frozen=True)
class Data:
    """One task: its files in DATA, and options of fine-tuning that differ from those of SST-2."""

    validation: str
    test: str
    options: dict[str, Any] = field(default_factory=dict)
    train: str = "train.parquet"


TASKS = {
    "sst2": Data("validation.parquet", "test.parquet"),
    "ag_news": Data(
        "validation.parquet",
        "test.parquet",
        {"class_names": ["World", "Sports", "Business", "Sci/Tech"], "num_train_epochs": 1},
    ),
    "imdb": Data("test.parquet", "test.parquet", {"max_length": 128, "max_train_samples": 4000, "num_train_epochs": 2}),
}


@dataclass(frozen=True)
class Variant:
    """One conversion.

    Attributes:
        what: a description.
        heal: options of training/distill.py; None starts fine-tuning from the softmax checkpoint.
        tune: options of fine-tuning.
        student: makes the student before healing; takes a file of texts, the softmax checkpoint and the new folder.
        trainer: computes the loss of healing.
        afterwards: heal the fine-tuned softmax model instead, on the texts of the task, without fine-tuning it again.
    """

    what: str
    heal: dict[str, Any] | None = None
    tune: dict[str, Any] = field(default_factory=dict)
    student: Callable[[Path, str, Path], Path] | None = None
    afterwards: bool = False
    trainer: type[DistillationTrainer] = DistillationTrainer


AS_IT_IS = {"negative_mass_until": None}  # keeps the negative masses of the student
SWAPPED = {"max_steps": 1, "learning_rate": 0.0, "warmup_ratio": 0.0}
TANHMAX = {"attn_activation": "tanhmax", "attn_negative_mass": 1.0}
BALANCED, HALF = {"attn_activation": "balanced"}, {"attn_activation": "balanced", "negative_mass_end": 0.5}
VARIANTS = {
    "softmax": Variant("softmax throughout", tune={"attn_activation": "softmax"}),
    "tanhmax-direct": Variant("TanhMax at once", tune=TANHMAX | {"centre": False}),
    "tanhmax-own": Variant("TanhMax, centred on the task's texts", tune=TANHMAX),
    "tanhmax": Variant("TanhMax, centred on the texts of healing", SWAPPED),
    "tanhmax-30": Variant("TanhMax, healed for 30 steps", {"max_steps": 30}),
    "tanhmax-300": Variant("TanhMax, healed for 300 steps", {"max_steps": 300}),
    "balanced": Variant("balanced, λ = 1", BALANCED | SWAPPED),
    "balanced-30": Variant("balanced, λ = 1, healed for 30 steps", BALANCED | {"max_steps": 30}),
    "balanced-300": Variant("balanced, λ = 1, healed for 300 steps", BALANCED | {"max_steps": 300}),
    "half": Variant("balanced, λ = 0.5", HALF | SWAPPED),
    "half-30": Variant("balanced, λ = 0.5, healed for 30 steps", HALF | {"max_steps": 30}),
    "half-300": Variant("balanced, λ = 0.5, healed for 300 steps", HALF | {"max_steps": 300}),
    "quarter": Variant("balanced, λ = 0.25", BALANCED | {"negative_mass_end": 0.25} | SWAPPED),
    "three-quarters": Variant("balanced, λ = 0.75", BALANCED | {"negative_mass_end": 0.75} | SWAPPED),
    "three-quarters-30": Variant(
        "balanced, λ = 0.75, healed for 30 steps", BALANCED | {"negative_mass_end": 0.75, "max_steps": 30}
    ),
    "balanced-mean": Variant(
        "balanced, λ = 1, plus the mean of the values", AS_IT_IS | SWAPPED | {"attn_activation": "balanced+1mean"}
    ),
    "balanced-half-mean": Variant(
        "balanced, λ = 1, plus half the mean of the values",
        AS_IT_IS | SWAPPED | {"attn_activation": "balanced+0.5mean"},
    ),
    "tanhmax-mean-30": Variant(
        "TanhMax plus half the mean of the values, healed for 30 steps",
        AS_IT_IS | {"attn_activation": "tanhmax+0.5mean", "max_steps": 30},
    ),
    "balanced-heads-30": Variant(
        "balanced, λ = 1 in half of the heads, healed for 30 steps",
        {"max_steps": 30},
        student=partial(chosen_heads, "balanced", 0.5),
    ),
    "tanhmax-heads-30": Variant(
        "TanhMax in half of the heads, healed for 30 steps",
        {"max_steps": 30},
        student=partial(chosen_heads, "tanhmax", 0.5),
    ),
    "tanhmax-unshifted-30": Variant(
        "TanhMax, healed for 30 steps with a penalty on shifts", {"max_steps": 30}, trainer=ShiftPenaltyTrainer
    ),
    "tanhmax-unshifted-300": Variant(
        "TanhMax, healed for 300 steps with a penalty on shifts", {"max_steps": 300}, trainer=ShiftPenaltyTrainer
    ),
    "tanhmax-slow-300": Variant(
        "TanhMax, healed for 300 steps with a fifth of the learning rate", {"max_steps": 300, "learning_rate": 5e-5}
    ),
    "balanced-slow-300": Variant(
        "balanced, λ = 1, healed for 300 steps with a fifth of the learning rate",
        BALANCED | {"max_steps": 300, "learning_rate": 5e-5},
    ),
    "balanced-learned-300": Variant(
        "balanced, λ of each head learned in 300 steps of healing",
        {"max_steps": 300},
        student=partial(chosen_heads, "balanced", 1.0),
        trainer=LearnedMassTrainer,
    ),
    "balanced-transfer-300": Variant(
        "balanced, λ = 1, attention outputs matched for 300 steps",
        BALANCED | {"max_steps": 300},
        trainer=AttentionTransferTrainer,
    ),
    "tanhmax-transfer-300": Variant(
        "TanhMax, attention outputs matched for 300 steps", {"max_steps": 300}, trainer=AttentionTransferTrainer
    ),
    "balanced-annealed": Variant(
        "balanced, λ rises to 1 over 60 % of fine-tuning", tune=BALANCED | {"negative_mass_until": 0.6}
    ),
    "half-annealed": Variant(
        "balanced, λ rises to 0.5 over 60 % of fine-tuning", tune=HALF | {"negative_mass_until": 0.6}
    ),
    "balanced-afterwards": Variant(
        "fine-tuned with softmax, then balanced, λ = 1, healed for 300 steps",
        BALANCED | {"max_steps": 300},
        afterwards=True,
    ),
    "tanhmax-afterwards": Variant(
        "fine-tuned with softmax, then TanhMax, healed for 300 steps", {"max_steps": 300}, afterwards=True
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=list(TASKS), metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--data-dir", type=Path, required=True, help="holds a folder for each data set")
    parser.add_argument("--model", required=True, help="the softmax MiniLM, a folder or a name on the Hub")
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), metavar="NAME",
                        help=f"only these variants: {', '.join(VARIANTS)}")  # fmt: skip
    parser.add_argument("--seeds", type=int, default=1, help="of fine-tuning, for each healing")
    parser.add_argument("--healings", type=int, default=1, help="seeds of healing")
    parser.add_argument("--split", choices=("validation", "test"), default="validation", help="what is measured")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/conversions", help="folder of the runs")
    options = parser.parse_args()
    done = {key(run) for run in finished_runs()}
    for task in options.tasks:
        for name in options.only:
            for healing in range(options.healings if VARIANTS[name].heal else 1):
                for seed in range(options.seeds):
                    facts = {"task": task, "variant": name, "healing": healing, "seed": seed, "split": options.split}
                    if key(facts) not in done:
                        save(facts | measured_run(Path(options.runs), options, **facts))


def key(run: dict[str, Any]) -> tuple:
    return tuple(run[name] for name in ("task", "variant", "healing", "seed", "split"))


def finished_runs(file: Path = RESULTS_FILE) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []


def save(run: dict[str, Any]) -> None:
    """Append the run to the file of results, in one write."""
    RESULTS_FILE.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS_FILE.open("a", encoding="utf-8") as file:
        file.write(json.dumps(run) + "\n")
    print({name: round(value, 4) if isinstance(value, float) else value for name, value in run.items()}, flush=True)


def measured_run(
    runs: Path, options: argparse.Namespace, task: str, variant: str, healing: int, seed: int, split: str
) -> dict[str, Any]:
    """Convert, heal, fine-tune, measure; finished parts are reused."""
    data, chosen, numbers = TASKS[task], VARIANTS[variant], {}
    folder, start = options.data_dir / task, options.model
    files = {"train_file": folder / data.train, "validation_file": folder / data.validation}
    if chosen.afterwards:
        start = tuned(runs / f"{task}-softmax-0-{seed}", start, files, VARIANTS["softmax"].tune | data.options, seed)
    if chosen.heal is not None:
        texts = [files["train_file"]] if chosen.afterwards else [
            options.data_dir / "imdb/train.parquet", options.data_dir / "sst2/train.parquet"]  # fmt: skip
        where = f"{task}-{variant}-{seed}" if chosen.afterwards else f"healed-{variant}-{healing}"
        heal = chosen.heal
        if chosen.student:
            heal, student = heal | AS_IT_IS | {"teacher_name_or_path": start}, runs / f"student-{variant}"
            start = chosen.student(texts[0], start, student)
        with patch("hf_bidir.finetune.tasks.distillation.DistillationTrainer", chosen.trainer):
            start = healed(runs / where, start, texts, options, heal, healing)
        numbers["relative_error"] = results_of(start)["eval_relative_error"]
        numbers["healing_minutes"] = read_record(start)["duration_seconds"] / 60
    if not chosen.afterwards:
        start = tuned(runs / f"{task}-{variant}-{healing}-{seed}", start, files, chosen.tune | data.options, seed)
    numbers["minutes"] = read_record(start)["duration_seconds"] / 60
    rows = read_table(str(folder / getattr(data, split)))
    numbers |= signs(start, rows, data.options.get("max_length", 64))
    if task == "sst2":
        numbers["human_sign"] = human_sign(start, options.data_dir)
    return numbers | {"versions": library_versions()}


def healed(
    output: Path, start: str | Path, texts: list[Path], options: argparse.Namespace, changed: dict[str, Any], seed: int
) -> Path:
    """The folder of the healed student, which is trained unless it is finished."""
    if read_record(output).get("status") != "finished":
        held_out = [options.data_dir / "imdb/test.parquet", options.data_dir / "sst2/validation.parquet"]
        given = read_recipe(distillation.options, ROOT / "training/recipes/minilm-healed.yaml")
        given |= {"train_file": [str(file) for file in texts], "validation_file": [str(file) for file in held_out]}
        given |= {"model_name_or_path": str(start), "seed": seed, "output_dir": output, "disable_tqdm": True}
        distillation(given | changed)
    return output


def tuned(output: Path, start: str | Path, files: dict[str, Path], changed: dict[str, Any], seed: int) -> Path:
    """The folder of the fine-tuned model, which is trained unless it is finished."""
    if read_record(output).get("status") != "finished":
        given = read_recipe(text_classification.options, ROOT / "training/recipes/sst2-minilm-softmax.yaml")
        del given["attn_activation"]  # that of the student, unless the variant changes it
        given |= {name: str(file) for name, file in files.items()} | {"model_name_or_path": str(start)}
        given |= {"seed": seed, "output_dir": output, "disable_tqdm": True, "eval_strategy": "no"}
        text_classification(given | changed)
    return output


def results_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / RESULTS).read_text(encoding="utf-8"))


def signs(folder: Path, rows: Dataset, max_length: int) -> dict[str, float]:
    """The accuracy with all coefficients, without negative ones, and without as much positive mass; in [0, 1]."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    batches = tokenized(folder, rows, max_length)
    share = negative_share(model, [{k: v for k, v in batch.items() if k != "labels"} for batch in batches[::4]])
    with without_negatives(model):
        without = accuracy_of(model, batches)
    controls = []
    for seed in range(CONTROLS):
        with without_as_much_positive(model, seed):
            controls.append(accuracy_of(model, batches))
    return {
        "accuracy": accuracy_of(model, batches),
        "negative_share": share or 0.0,
        "accuracy_without_negatives": without,
        "accuracy_without_positive_mass": mean(controls),
    }


def human_sign(folder: Path, data_dir: Path) -> float:
    """The share of polar words whose contribution has the sign of their human label, in sentences of the treebank."""
    model, tokenizer = load(folder)
    sentences = sample(data_dir / "sst_trees/test.parquet", SENTENCES)
    scored = score_words(model, tokenizer, sentences, ["contributions"], folder.name)
    percent, *_ = agreement([(labels, scores["contributions"]) for _, labels, scores in scored])
    return float(percent) / 100


def tokenized(folder: Path, rows: Dataset, max_length: int) -> list[dict[str, torch.Tensor]]:
    """Batches of similar length, with labels."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = [tokenizer(row["text"], truncation=True, max_length=max_length) | {"label": row["label"]} for row in rows]
    inputs = sorted(({k: v for k, v in one.items() if k != "token_type_ids"} for one in inputs),
                    key=lambda one: len(one["input_ids"]))  # fmt: skip
    return list(DataLoader(inputs, batch_size=32, collate_fn=DataCollatorWithPadding(tokenizer)))


@torch.inference_mode()
def accuracy_of(model: PreTrainedModel, batches: list[dict[str, torch.Tensor]]) -> float:
    hits = [model(**batch).logits.argmax(-1) == batch["labels"] for batch in batches]
    return torch.cat(hits).float().mean().item()


if __name__ == "__main__":
    main()
