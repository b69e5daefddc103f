"""Which conversions of a softmax checkpoint keep its accuracy, and which keep negative coefficients that matter?

    python -m research.conversions.run sst2 --data-dir DATA --model MINILM
    python -m research.conversions.run sst2 ag_news imdb fashion_mnist imdb_lm --data-dir DATA --model MINILM \\
        --split test --only softmax after-tanhmax --seeds 3 --healings 3

MINILM is sentence-transformers/all-MiniLM-L6-v2 or a folder with its weights. DATA has a folder for each data set, as
research/paper/README.md describes. A run converts MiniLM, heals it on unlabelled texts, fine-tunes it on the task and
measures it; variants called "after-" fine-tune first, and then convert and heal. fashion_mnist and imdb_lm convert the
committed softmax checkpoints of model_cards/ and take "after-" variants only. Tasks and variants are those of recipes/.
A run becomes a row of results/conversions.csv, and one that has a row is not repeated. Then `make tables` makes the
tables, and report.py the figures.

Per run: the accuracy; the error of the hidden states after healing; the share of negative coefficients, and of a
head's output that varies with them; the accuracy without negative coefficients, without as much positive mass, chosen
at random, and without each head's weaker sign; for SST-2 how often contributions have the sign that people gave the
word (treebank in DATA/sst_trees).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import yaml
from datasets import ClassLabel, Dataset
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import AutoImageProcessor, AutoTokenizer, DataCollatorWithPadding, PreTrainedModel

from benchmarks.measure import KEEP_LAST
from hf_bidir.checkpoints.layer_hooks import (
    at_tokens,
    edited_coefficients,
    negative_share,
    signed_parts,
    without_negatives,
)
from hf_bidir.checkpoints.reading import open_checkpoint
from hf_bidir.explain import token_scores
from hf_bidir.finetune.data.image_data import ImageCollator
from hf_bidir.finetune.data.sources import read_table
from hf_bidir.finetune.distillation import DistillationTrainer
from hf_bidir.finetune.models import able_to_pad
from research.conversions import trainers
from research.conversions.trainers import chosen_heads
from research.explanations.run import by_word
from research.explanations.run import human_sign as human_sign_of
from research.explanations.tasks import examples_of, load
from research.paper.data import SPLITS
from research.paper.experiments import read_experiments
from research.runs import ROOT, command_line, read_record, recipe, run_grid, train

CONTROLS = 1  # random removals of positive mass in each run
SENTENCES, POSITIVE = 200, 1  # whose words have human labels, and the class that is scored
Batch = dict[str, Tensor]


def signs(folder: Path, rows: Dataset, max_length: int) -> dict[str, float]:
    """Accuracy and cross-entropy with all coefficients and without some, and shares of negative ones.

    For a language model, they are those of the next token. Accuracies and shares are in [0, 1].
    """
    model = open_checkpoint(folder).model(torch.float32)
    batches = list(batches_of(folder, rows, max_length))
    inputs = [{name: x for name, x in batch.items() if name != "labels"} for batch in batches[::4]]
    varying = negative_variance_share(model, inputs)
    found = {"negative_share": negative_share(model, inputs) or 0.0, "negative_variance": varying.nanmean().item()}

    def measure(ending: str, *contexts: AbstractContextManager) -> None:
        scores = []
        for context in contexts:
            with context:
                scores.append(scores_of(model, batches))
        for name, values in zip(("accuracy", "loss"), zip(*scores, strict=True), strict=True):
            found[name + ending] = mean(values)

    measure("", nullcontext())
    measure("_without_negatives", without_negatives(model))
    measure("_without_weaker_sign", without_weaker_sign(model, varying))
    measure("_without_positive_mass", *(without_as_much_positive(model, seed) for seed in range(CONTROLS)))
    return found


@torch.inference_mode()
def negative_variance_share(model: PreTrainedModel, batches: Iterable[Batch]) -> Tensor:
    """How much of each head's output varies with its negative coefficients, `[layers, heads]` in [0, 1].

    With `o+` and `o-` the contexts of the positive and of the negative coefficients of a head, this is `Var(o-) /
    (Var(o+) + Var(o-))`, the total variance over queries that are not padding. It is 0 for softmax, and for negative
    coefficients whose effect is a constant vector. Flipping the sign of a head turns it into 1 minus itself. NaN for a
    head whose output is constant.
    """
    contexts: dict[int, list[tuple[Tensor, Tensor]]] = defaultdict(list)

    def record(layer: int, positive: Tensor, negative: Tensor) -> None:
        contexts[layer].append((at_tokens(positive, keep), at_tokens(negative, keep)))

    with signed_parts(model, record):
        for batch in batches:
            keep = batch.get("attention_mask")
            model(**batch)
    shares = []
    for layer in sorted(contexts):
        positive, negative = (torch.cat(part).var(0).sum(-1) for part in zip(*contexts[layer], strict=True))
        shares.append(negative / (positive + negative))
    return torch.stack(shares)


def without_as_much_positive(model: PreTrainedModel, seed: int = 0) -> AbstractContextManager[None]:
    """Context in which each query loses as much positive mass as it has negative mass, from keys in a random order.

    The control for `without_negatives`: a model that depends on its negative coefficients loses more without them. The
    last coefficient that is reached keeps what remains of it; a query with more negative than positive mass loses all
    of the latter.
    """
    generator = torch.Generator().manual_seed(seed)

    def reduced(coefficients: Tensor) -> Tensor:
        order = torch.rand(coefficients.shape, generator=generator).to(coefficients.device).argsort(-1)
        positive = coefficients.clamp_min(0).gather(-1, order)
        to_remove = coefficients.clamp_max(0).sum(-1, keepdim=True).neg()
        removed = torch.minimum((to_remove - positive.cumsum(-1) + positive).clamp_min(0), positive)
        return coefficients - torch.zeros_like(coefficients).scatter(-1, order, removed)

    return edited_coefficients(model, reduced)


def without_weaker_sign(model: PreTrainedModel, negative_share: Tensor) -> AbstractContextManager[None]:
    """Context in which every head loses the coefficients of the sign that matters less to its output.

    Unlike `without_negatives`, this does not depend on the arbitrary sign of a head. A model that does not change
    inside the context uses one sign per head, as softmax does. The shares `[layers, heads]` are those of
    `negative_variance_share`.
    """
    kept = torch.where(negative_share > 0.5, -1.0, 1.0)[:, None, :, None, None]
    layers = cycle(range(len(kept)))

    def reduced(coefficients: Tensor) -> Tensor:
        sign = kept[next(layers)].to(coefficients)
        return sign * (sign * coefficients).clamp_min(0)

    return edited_coefficients(model, reduced)


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
    inputs.sort(key=lambda one: len(one["input_ids"]))
    yield from map(dict, DataLoader(inputs, batch_size=32, collate_fn=DataCollatorWithPadding(tokenizer)))


@torch.inference_mode()
def scores_of(model: PreTrainedModel, batches: list[Batch]) -> tuple[float, float]:
    """Accuracy and cross-entropy in nats: of the labels, or of the next token where there are none."""
    hits, losses = [], []
    for batch in batches:
        logits = model(**{name: x for name, x in batch.items() if name != "labels"}).logits
        if "labels" in batch:
            labels = batch["labels"]
        else:
            keep = batch["attention_mask"][:, 1:].bool()
            logits, labels = logits[:, :-1][keep], batch["input_ids"][:, 1:][keep]
        hits.append(logits.argmax(-1) == labels)
        losses.append(torch.nn.functional.cross_entropy(logits, labels, reduction="none"))
    return torch.cat(hits).float().mean().item(), torch.cat(losses).mean().item()


def human_sign(folder: Path, data_dir: Path) -> float:
    """The share of polar words whose contribution has the sign of their human label, in sentences of the treebank."""
    model, tokenizer = load(folder)
    examples = examples_of("sst2", model, tokenizer, data_dir, SENTENCES)
    scored = [(one, token_scores(model, one.example.inputs, "contributions", POSITIVE)[0]) for one in examples]
    return human_sign_of([(one.words, by_word(one, scores, "contributions")) for one, scores in scored])["human_sign"]


FILE = Path(__file__).with_name("results") / "conversions.csv"
RECIPES = Path(__file__).with_name("recipes")


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
            chosen = range(len(rows) - self.rows[name], len(rows)) if name == "validation" else range(self.rows[name])
            rows.select(chosen).to_parquet(str(sample))
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
    tune: dict[str, Any] | None = field(default_factory=dict)
    student: tuple[str, float] | None = None
    trainer: str | None = None
    weights: dict[str, float] | None = None
    tuner: str = "SignedTrainer"
    own_texts: bool = False
    start: str | None = None

    @property
    def afterwards(self) -> bool:
        """Whether the fine-tuned softmax model is converted, and healed on the texts of the task."""
        return self.tune is None

    @property
    def healer(self) -> type:
        """The trainer of healing."""
        if self.weights:
            return type("WeightedTrainer", (DistillationTrainer,), self.weights)
        return getattr(trainers, self.trainer or "DistillationTrainer")


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
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), metavar="NAME",
                        help=f"only these variants: {', '.join(VARIANTS)}")  # fmt: skip
    parser.add_argument("--seeds", type=int, default=1, help="of fine-tuning, for each healing")
    parser.add_argument("--healings", type=int, default=1, help="seeds of healing")
    parser.add_argument("--split", choices=("validation", "test"), default="validation", help="what is measured")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/conversions", help="folder of the runs")
    options = parser.parse_args()
    trials = [
        {"task": task, "variant": name, "split": options.split, "healing": healing, "seed": seed}
        for task in options.tasks
        for name in options.only
        for seed in range(1 if TASKS[task].teacher else options.seeds)
        for healing in range(options.healings if VARIANTS[name].heal else 1)
    ]
    run_grid(FILE, trials, partial(measured_run, options.data_dir, options.model, options.runs))


def measured_run(
    data_dir: Path, minilm: str, runs: Path, task: str, variant: str, split: str, healing: int, seed: int
) -> tuple[dict[str, Any], list[Path]]:
    """Convert, heal, fine-tune, measure; finished parts are reused."""
    data, chosen, numbers = TASKS[task], VARIANTS[variant], {}
    files = {f"{name}_file": str(data.split(name, data_dir, runs)) for name in ("train", "validation")}
    committed = chosen.start or data.teacher
    start: str | Path = ROOT / "model_cards" / committed if committed else minilm
    if chosen.afterwards and not data.teacher:
        start = tuned(runs / f"{task}-softmax-0-{seed}", start, files, VARIANTS["softmax"], data.options, seed)
    if chosen.heal is not None:
        place = f"{task}-healed-{variant}-{healing}-{seed}" if _own_texts(chosen) else f"healed-{variant}-{healing}"
        results = healed(runs / place, start, files, data_dir, task, variant, healing)
        start = runs / place
        numbers["relative_error"] = results["eval_relative_error"]
        numbers["healing_minutes"] = read_record(start)["duration_seconds"] / 60
    if not chosen.afterwards and not data.teacher:
        start = tuned(runs / f"{task}-{variant}-{healing}-{seed}", start, files, chosen, data.options, seed)
    numbers |= signs(Path(start), data.read(split, data_dir, runs), data.max_length)
    if task == "sst2":
        numbers["human_sign"] = human_sign(Path(start), data_dir)
    return numbers, [data.split(name, data_dir, runs) for name in ("train", split)]


def _own_texts(variant: Variant) -> bool:
    return variant.own_texts or variant.afterwards


def healed(
    folder: Path, start: str | Path, files: dict[str, str], data_dir: Path, task: str, variant: str, healing: int
) -> dict[str, Any]:
    """The results of healing in `folder`, which is done unless it is finished.

    Before fine-tuning a student is healed once for all tasks, on reviews and sentences, unless the variant wants the
    task's.
    """
    chosen, data = VARIANTS[variant], TASKS[task]
    texts, held_out = [files["train_file"]], [files["validation_file"]]
    if not _own_texts(chosen):
        texts = [str(data_dir / f"{name}/train.parquet") for name in ("imdb", "sst2")]
        held_out = [str(data_dir / file) for file in ("imdb/test.parquet", "sst2/validation.parquet")]
    given = recipe("minilm-healed") | {"train_file": texts, "validation_file": held_out}
    given |= {"model_name_or_path": str(start), "seed": healing, "keep_signs": False, "negative_mass_end": 1.0}
    given |= KEEP_LAST | chosen.heal
    if chosen.student:
        student = chosen_heads(*chosen.student, Path(texts[0]), str(start), folder.parent / f"student-{variant}")
        given |= {"teacher_name_or_path": str(start), "model_name_or_path": str(student)}
        given["negative_mass_until"] = None  # keeps the negative masses of the student
    if _own_texts(chosen):
        given |= data.heal | chosen.heal
        given["group_by_length"] = data.folder != "fashion_mnist"  # images have no length
    return train("distill", given, folder, chosen.healer)


def tuned(
    folder: Path, start: str | Path, files: dict[str, str], variant: Variant, options: dict[str, Any], seed: int
) -> Path:
    """The folder of the fine-tuned model, which is trained unless it is finished."""
    given = recipe("sst2-minilm-softmax")
    del given["attn_activation"]  # that of the student, unless the variant changes it
    given |= files | {"model_name_or_path": str(start), "seed": seed} | KEEP_LAST | variant.tune | options
    train("bert", given, folder, getattr(trainers, variant.tuner))
    return folder


if __name__ == "__main__":
    main()
