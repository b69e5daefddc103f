"""Which conversions of a softmax checkpoint keep its accuracy, and which keep negative coefficients that matter?

    python -m research.conversions.run sst2 --data-dir DATA --model MINILM
    python -m research.conversions.run sst2 ag_news imdb fashion_mnist imdb_lm --data-dir DATA --model MINILM \\
        --split test --only softmax after-tanhmax --seeds 3 --healings 3

MINILM is sentence-transformers/all-MiniLM-L6-v2 or a folder with its weights. DATA has a folder for each data set, as
docs/paper.md describes. A run converts MiniLM, heals it on unlabelled texts, fine-tunes it on the task and measures it;
variants called "after-" fine-tune first, and then convert and heal. fashion_mnist and imdb_lm convert the committed
softmax checkpoints of model_cards/ and take "after-" variants only. A run becomes a row of results/conversions.csv,
and one that has a row is not repeated. Then `make tables` makes the tables, and report.py the figures.

Per run: the accuracy; the error of the hidden states after healing; the share of negative coefficients, and of a
head's output that varies with them; the accuracy without negative coefficients, without as much positive mass, chosen
at random, and without each head's weaker sign; for SST-2 how often contributions have the sign that people gave the
word (treebank in DATA/sst_trees).
"""

import argparse
import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset

from benchmarks import measure
from benchmarks.runs import has_run
from hf_bidir.cli.script import read_recipe
from hf_bidir.finetune.arguments import ImageDataArguments
from hf_bidir.finetune.data.image_data import read_image_split
from hf_bidir.finetune.data.sources import read_table
from hf_bidir.finetune.record import RESULTS, read_record
from research.conversions.measures import human_sign, signs
from research.conversions.variants import AS_IT_IS, VARIANTS, Variant
from research.paper.data import SPLITS
from research.paper.experiments import read_experiments
from training import distill, text_classification

FILE = Path(__file__).with_name("results") / "conversions.csv"


@dataclass(frozen=True)
class Data:
    """One task.

    Attributes:
        title: for the figure.
        folder: of its files in DATA.
        files: for the splits train, validation, test.
        rows: the sizes of splits of which a random sample is used.
        options: of fine-tuning, where they differ from those of SST-2.
        heal: options of healing after fine-tuning.
        teacher: a fine-tuned softmax checkpoint; None fine-tunes MiniLM.
        max_length: of the measured texts.
        labelled: whether the labels are measured; otherwise the next tokens are.
    """

    title: str
    folder: str
    files: tuple[str, str, str] = ("train.parquet", "validation.parquet", "test.parquet")
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
            chosen = range(len(rows) - self.rows[name], len(rows)) if name == "validation" else range(self.rows[name])
            rows.select(chosen).to_parquet(str(sample))
        return sample

    def read(self, split: str, data_dir: Path, runs: Path) -> Dataset:
        file = self.split(split, data_dir, runs)
        if self.folder != "fashion_mnist":
            rows = read_table(str(file))
            return rows if self.labelled else rows.select_columns("text")
        rows = read_image_split(str(file), ImageDataArguments(), FASHION.class_names, split)
        return rows.select(range(2000))


(FASHION,) = read_experiments(["vit-fashion-mnist"])
TASKS = {
    "sst2": Data("MiniLM on SST-2 (6,920 training sentences)", "sst2"),
    "ag_news": Data(
        "MiniLM on AG News (8,979 training texts, a subset; 2,000 test texts)",
        "ag_news",
        rows={"test": 2000},
        options={"class_names": ["World", "Sports", "Business", "Sci/Tech"], "num_train_epochs": 1},
    ),
    "imdb": Data(
        "MiniLM on IMDB (4,000 training reviews, a subset; 1,000 test reviews, their first 128 tokens)",
        "imdb",
        ("train.parquet", "train.parquet", "test.parquet"),
        rows={"train": 4000, "validation": 1000, "test": 1000},
        options={"max_length": 128, "num_train_epochs": 1},
        heal={"max_length": 128, "per_device_train_batch_size": 12},
        max_length=128,
    ),
    "fashion_mnist": Data(
        "A ViT on Fashion-MNIST (2,000 test images)",
        "fashion_mnist",
        ("train-images-idx3-ubyte.gz", "train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"),
        heal={"per_device_train_batch_size": 64, "learning_rate": 5e-4, "flip": True},
        teacher="fashion-mnist-small-softmax",
    ),
    "imdb_lm": Data(
        "A causal language model on IMDB (accuracy of the next token; 500 test reviews, their first 128 tokens)",
        "imdb",
        ("train.parquet", "train.parquet", "test.parquet"),
        rows={"validation": 500, "test": 500},
        heal={"max_length": 128, "learning_rate": 5e-4},
        teacher="imdb-lm-softmax",
        labelled=False,
        max_length=128,
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
    parser.add_argument("--runs", type=Path, default=measure.ROOT / "runs/conversions", help="folder of the runs")
    options = parser.parse_args()
    for task in options.tasks:
        for name in options.only:
            for seed in range(1 if TASKS[task].teacher else options.seeds):
                for healing in range(options.healings if VARIANTS[name].heal else 1):
                    facts = {"task": task, "variant": name, "split": options.split, "healing": healing, "seed": seed}
                    if not has_run(FILE, **facts):
                        run = facts | measured_run(options.runs, options, **facts)
                        read = [
                            TASKS[task].split(one, options.data_dir, options.runs) for one in ("train", facts["split"])
                        ]
                        measure.save_run(FILE, list(facts), run, *read)
                        print(run, flush=True)


def measured_run(
    runs: Path, options: argparse.Namespace, task: str, variant: str, healing: int, seed: int, split: str
) -> dict[str, Any]:
    """Convert, heal, fine-tune, measure; finished parts are reused."""
    data, chosen, numbers = TASKS[task], VARIANTS[variant], {}
    files = {f"{name}_file": data.split(name, options.data_dir, runs) for name in ("train", "validation")}
    start: str | Path = options.model
    if data.teacher:
        start = measure.ROOT / "model_cards" / data.teacher
    elif chosen.afterwards:
        softmax = VARIANTS["softmax"]
        start = tuned(runs / f"{task}-softmax-0-{seed}", start, files, softmax, data.options, seed)
    if chosen.heal is not None:
        start = healed(runs, start, files, options.data_dir, task, variant, healing, seed)
        numbers["relative_error"] = json.loads((start / RESULTS).read_text(encoding="utf-8"))["eval_relative_error"]
        numbers["healing_minutes"] = read_record(start)["duration_seconds"] / 60
    if not chosen.afterwards and not data.teacher:
        start = tuned(runs / f"{task}-{variant}-{healing}-{seed}", start, files, chosen, data.options, seed)
    numbers |= signs(Path(start), data.read(split, options.data_dir, runs), data.max_length)
    if task == "sst2":
        numbers["human_sign"] = human_sign(Path(start), options.data_dir)
    return numbers


def healed(
    runs: Path,
    start: str | Path,
    files: dict[str, Path],
    data_dir: Path,
    task: str,
    variant: str,
    healing: int,
    seed: int,
) -> Path:
    """The folder of the healed student, which is trained unless it is finished.

    Before fine-tuning it is healed once for all tasks, on reviews and sentences, unless the variant wants the task's.
    """
    chosen, data = VARIANTS[variant], TASKS[task]
    texts, held_out = [files["train_file"]], [files["validation_file"]]
    if not chosen.own_texts:
        texts = [data_dir / "imdb/train.parquet", data_dir / "sst2/train.parquet"]
        held_out = [data_dir / "imdb/test.parquet", data_dir / "sst2/validation.parquet"]
    given = read_recipe(measure.ROOT / "training/recipes/minilm-healed.yaml")
    given |= {"train_file": [str(file) for file in texts], "validation_file": [str(file) for file in held_out]}
    given |= {"model_name_or_path": str(start), "seed": healing, "keep_signs": False} | measure.KEEP_LAST | chosen.heal
    if chosen.student:
        student = chosen.student(texts[0], str(start), runs / f"student-{variant}")
        given |= AS_IT_IS | {"teacher_name_or_path": str(start), "model_name_or_path": str(student)}
    where = f"healed-{variant}-{healing}"
    if chosen.own_texts:
        where, given = f"{task}-{where}-{seed}", given | data.heal | chosen.heal
        given["group_by_length"] = data.folder != "fashion_mnist"  # images have no length
    measure.train_once(partial(distill.main, trainer_class=chosen.trainer), given, runs / where)
    return runs / where


def tuned(
    output: Path, start: str | Path, files: dict[str, Path], variant: Variant, options: dict[str, Any], seed: int
) -> Path:
    """The folder of the fine-tuned model, which is trained unless it is finished."""
    given = read_recipe(measure.ROOT / "training/recipes/sst2-minilm-softmax.yaml")
    del given["attn_activation"]  # that of the student, unless the variant changes it
    given |= {name: str(file) for name, file in files.items()} | {"model_name_or_path": str(start)}
    given |= {"seed": seed} | measure.KEEP_LAST | variant.tune | options
    measure.train_once(partial(text_classification.main, trainer_class=variant.tuner), given, output)
    return output


if __name__ == "__main__":
    main()
