"""Train the project's checkpoints, each with its softmax counterpart, and generate their cards from the measurements.

    make checkpoints                                # all of them, from the Hub's data
    make checkpoints NAMES=digits                   # one pair: two minutes a seed, no download
    python -m training.checkpoints minilm --data-dir DIR --minilm FOLDER   # MiniLM, healed: an hour on one core
    python -m training.checkpoints sst2-minilm --data-dir DIR --minilm FOLDER
    python -m training.checkpoints --cards-only --data-dir DIR   # no training: renew cards and pictures in model_cards/

Each pair is one recipe with two attention activations, trained with several seeds, except that sst2-minilm-tanhmax is
converted from its counterpart and healed; the model of the first seed becomes the checkpoint. Then, for both:
`hf-bidir evaluate`, a picture of contributions, the card. Runs go to runs/checkpoints/NAME (later seeds to
runs/checkpoints/seeds); a finished run is not repeated, an interrupted one continues. Card, numbers and pictures are
copied to model_cards/NAME, and the weights too if they are below 10 MB or those of sst2-minilm-tanhmax, which is saved
in half precision.

minilm-tanhmax has no labels and no pair: it is all-MiniLM-L6-v2, healed, also in half precision. What it is worth is
measured by research/conversions (embeddings.py, and run.py with the variant "encoder").

`DIR` holds fashion_mnist/{train,test}.parquet (`python -m research.idx` makes them of the IDX files),
sst2/{train,validation,test}.parquet, imdb/{train,test}.parquet and 20news_sports/bydate_train.parquet. The committed
numbers were measured on such files. The Hub's SST-2 adds phrases and hides its test labels, so training on it gives
another model. With fewer seeds than the pair has, model_cards/ stays as it is.
"""

import hf_bidir.cli.start  # isort: skip  # noqa: F401  (first: before torch and transformers)

import argparse
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedModel

from benchmarks.seeds import compare, mean_and_deviation
from hf_bidir.checkpoints.reading import open_checkpoint
from hf_bidir.cli.script import read_recipe, run_script
from hf_bidir.common.card import read_card
from hf_bidir.common.errors import InputError
from hf_bidir.common.files import RECORD, read_json, replacing, write_json
from hf_bidir.explain import explain, image_heatmap, load_checkpoint, score_grid
from hf_bidir.explain.registry import METHODS
from hf_bidir.finetune.arguments import ImageDataArguments
from hf_bidir.finetune.data.image_data import IMAGE, read_image_splits
from hf_bidir.finetune.data.splits import selected
from hf_bidir.finetune.record import RESULTS, is_finished, read_record
from hf_bidir.hub import evaluate_checkpoint
from hf_bidir.hub.card import EXAMPLE_IMAGE, write_card
from hf_bidir.hub.evaluate import Evaluation
from hf_bidir.hub.files import MODULES, matching
from hf_bidir.hub.push import write_code
from training import causal_lm, distill, image_classification, recurrent_classification, text_classification

ROOT = Path(__file__).resolve().parent.parent
RUNS, CARDS = ROOT / "runs/checkpoints", ROOT / "model_cards"
NAMESPACE = "hf-bidir"  # the project's account on the Hub
SHOWN, WEIGHTS = ("*.json", "*.png"), "model.safetensors"
DIGITS = 4
SMALL = 10_000_000  # bytes; smaller weights are committed beside their card
ENCODER = "minilm"
LARGE = ("sst2-minilm-tanhmax", "minilm-tanhmax")  # committed once although they have 45 MB
LICENSE = "apache-2.0"  # of the weights that the project trains
IMAGES_SHOWN, METHOD = 3, "contributions"
SENTENCE, TARGET = "a charming film with a weak ending", 1
PROMPT = "This is one of the worst movies I have ever"
HEADING = f"""# Checkpoints

Each TanhMax checkpoint has a softmax counterpart. The recipes of a pair differ in the attention, and for imdb-lm in the
learning rate, except that sst2-minilm-tanhmax is sst2-minilm-softmax, converted and healed. minilm-tanhmax is
all-MiniLM-L6-v2, healed: a sentence encoder, and a start for any text classifier. Weights below 10 MB are in
this folder, and those of the two MiniLMs with TanhMax in half precision; load them by path in a clone, as each card
shows.
`make checkpoints` trains the checkpoints, evaluates the saved files and generates this page. On the Hub the names are
`{NAMESPACE}/NAME`, by `hf-bidir push model_cards/NAME {NAMESPACE}/NAME`.

- **score**: accuracy, or where lower is better perplexity of language models and relative error of the encoder's hidden
  states; as mean ± standard deviation, with the number of seeds in brackets. **this checkpoint**: the same metric for
  the checkpoint itself, trained with seed 0, which in most rows is better than the mean: compare the scores.
- **negative**: share of negative coefficients among those with a magnitude above 0.001. **without**: the metric of this
  checkpoint with the negative coefficients set to 0, and no further training.
- **MB**: size of the weights; **in this folder**: whether they are committed.

| checkpoint | task | score (seeds) | this checkpoint | negative | without | MB | in this folder | measured on |
|---|---|---|---|---|---|---|---|---|""".splitlines()


@dataclass(frozen=True)
class Pair:
    """A TanhMax checkpoint and its softmax counterpart.

    Attributes:
        train: `main` of the training script of both.
        name: of the pair; the checkpoints are NAME-tanhmax and NAME-softmax, as are their recipes.
        data: the folder under --data-dir with the data.
        files: by the option that takes it, a file in that folder.
        options: further options of a checkpoint's run, by its name.
        healed: whether NAME-tanhmax is not trained on labels, but converted from its counterpart of the same seed and
            healed, by the recipe NAME-healed.
        note: a sentence for readers who compare the two.
        metrics: the reported metrics, the first one in the table; of the split "test", or "eval" for validation.
        half: whether the checkpoints are saved, evaluated and committed in half precision; all seeds train in fp32.
    """

    train: Callable[[dict[str, Any]], dict[str, Any]]
    name: str
    data: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    healed: bool = False
    seeds: int = 3
    note: str = "Both have the same learning rate; the best rate of each may differ."
    metrics: tuple[str, ...] = ("accuracy", "macro_f1")
    split: str = "test"
    half: bool = False

    @property
    def checkpoints(self) -> tuple[str, str]:
        return f"{self.name}-tanhmax", f"{self.name}-softmax"

    def test_file(self, data_dir: Path | None) -> str | None:
        """The local file to evaluate on, where a folder of data is given."""
        file = self.files.get("test_file", self.files.get("validation_file"))
        return str(data_dir / self.data / file) if data_dir and self.data else None


HEALING_TEXTS = ("imdb/train.parquet", "sst2/train.parquet", "20news_sports/bydate_train.parquet")
HELD_OUT_TEXTS = ("imdb/test.parquet", "sst2/validation.parquet")
PARQUET = {f"{split}_file": f"{split}.parquet" for split in ("train", "validation", "test")}
PAIRS = {
    pair.name: pair
    for pair in (
        Pair(
            image_classification.main,
            "digits",
            seeds=5,
            note="The recipe was tuned for TanhMax only, so the difference from softmax does not compare the "
            "activations.",
        ),
        Pair(
            image_classification.main,
            "fashion-mnist-small",
            data="fashion_mnist",
            files={"train_file": "train.parquet", "test_file": "test.parquet"},
        ),
        Pair(recurrent_classification.main, "sst2-rnn", data="sst2", files=PARQUET, seeds=5),
        Pair(
            text_classification.main,
            "sst2-minilm",
            data="sst2",
            files=PARQUET,
            healed=True,
            note="The TanhMax checkpoint of a seed is the softmax checkpoint of that seed, converted and healed for "
            "300 steps on the training sentences, without labels. The means are of fp32 weights, this checkpoint has "
            "fp16.",
            half=True,
        ),
        Pair(
            causal_lm.main,
            "imdb-lm",
            data="imdb",
            files={"train_file": "train.parquet", "validation_file": "test.parquet"},
            seeds=1,
            note="The learning rates were the best of models with 1.2 and 4.2 million parameters "
            "(research/language_models/README.md).",
            metrics=("perplexity",),
            split="eval",
        ),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"some of: {', '.join([*PAIRS, ENCODER])}; by default all"
    )
    parser.add_argument("--data-dir", type=Path, help="read local files from here; by default the Hub's data sets")
    parser.add_argument("--minilm", type=Path, help="a folder with all-MiniLM-L6-v2; by default from the Hub")
    parser.add_argument("--seeds", type=int, metavar="N", help="this many seeds, instead of each pair's own number")
    parser.add_argument("--cards-only", action="store_true", help="train nothing; renew model_cards/ from its files")
    options = parser.parse_args()
    names = [*PAIRS, ENCODER]
    if unknown := set(options.names) - set(names):
        raise InputError(f"there is no checkpoint called {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if options.seeds is not None and options.seeds < 1:
        raise InputError(f"expected --seeds of at least 1; got {options.seeds}")
    for name in options.names or names:
        if name == ENCODER:
            make_encoder(options)
        else:
            (renew_cards if options.cards_only else make)(PAIRS[name], options)
    print(f"Written: {list_cards()}")


def make(pair: Pair, options: argparse.Namespace) -> None:
    """Train, evaluate and describe both checkpoints of a pair."""
    seeds, test = list(range(options.seeds or pair.seeds)), pair.test_file(options.data_dir)
    scores = {name: [trained(name, pair, seed, options) for seed in seeds] for name in pair.checkpoints}
    for name, other in zip(pair.checkpoints, pair.checkpoints[::-1], strict=True):
        folder, columns = RUNS / name, {"this": name, "counterpart": other}
        runs = {key: {"name": one, "scores": _by_metric(scores[one])} for key, one in columns.items()}
        write_json(folder / "seeds.json", {"seeds": seeds, "note": pair.note, **runs})
        note_comparison(folder, pair)
        if pair.half:
            load_checkpoint(folder)[0].half().save_pretrained(folder)
        evaluation = evaluate_checkpoint(folder, test)
        evaluation.save(folder)
        if pair.half:  # the numbers of this file, not those of its fp32 weights
            save_scores(folder, evaluation)
    draw_explanations([RUNS / name for name in pair.checkpoints], test)
    for name in pair.checkpoints:
        write_card(RUNS / name)
        number = mean_and_deviation([run[pair.metrics[0]] for run in scores[name]], DIGITS)
        print(f"{name}: {pair.metrics[0]} {number}, {len(seeds)} seeds. Written: {RUNS / name}")
        if len(seeds) >= pair.seeds:
            print(f"Copied: {publish_card(RUNS / name)}")


def make_encoder(options: argparse.Namespace, given: dict[str, Any] | None = None) -> None:
    """Heal the pretrained MiniLM, unless only its card is wanted, and save it in half precision; `given` are further
    options of its run."""
    name = f"{ENCODER}-tanhmax"
    if options.cards_only:
        print(f"Written: {write_card(CARDS / name)}")
        return
    if not is_finished(RUNS / name):
        chosen = read_recipe(ROOT / f"training/recipes/{ENCODER}-healed.yaml") | {"output_dir": RUNS / name}
        if options.minilm:
            chosen["model_name_or_path"] = options.minilm
        if options.data_dir:
            texts = {"train_file": HEALING_TEXTS, "validation_file": HELD_OUT_TEXTS}
            chosen |= {option: [options.data_dir / file for file in files] for option, files in texts.items()}
        distill.main(chosen | {"bf16": True, "use_cpu": not torch.cuda.is_available()} | (given or {}))
    open_checkpoint(RUNS / name).model().half().save_pretrained(RUNS / name)
    write_card(RUNS / name)
    print(f"Copied: {publish_card(RUNS / name)}")


def renew_cards(pair: Pair, options: argparse.Namespace) -> None:
    """Renew notes, pictures and cards in model_cards/ without training; pictures where weights and data are at hand."""
    folders, test = [CARDS / name for name in pair.checkpoints], pair.test_file(options.data_dir)
    for folder in folders:
        write_json(folder / "seeds.json", read_json(folder / "seeds.json") | {"note": pair.note})
        note_comparison(folder, pair)
    needs_files = pair.train is image_classification.main and pair.data is not None
    if all((folder / WEIGHTS).is_file() for folder in folders) and (test or not needs_files):
        draw_explanations(folders, test)
    for folder in folders:
        name_data(folder)
        print(f"Written: {write_card(folder)}")


def trained(name: str, pair: Pair, seed: int, options: argparse.Namespace) -> dict[str, float]:
    """The numbers of one run, which is trained first unless it is finished."""
    folder = run_folder(name, seed)
    if not is_finished(folder):
        print(f"\n{name}, seed {seed}: {folder}")
        train(name, pair, seed, options)
    results = read_json(folder / RESULTS)
    if f"{pair.split}_{pair.metrics[0]}" not in results:  # healing has no labels
        results = save_scores(folder, evaluate_checkpoint(folder, pair.test_file(options.data_dir)))
    found = {k.removeprefix(f"{pair.split}_"): v for k, v in results.items() if k.startswith(f"{pair.split}_")}
    return {name: value for name, value in found.items() if name in pair.metrics or name.startswith("recall_")}


def run_folder(name: str, seed: int) -> Path:
    return RUNS / "seeds" / f"{name}-seed{seed}" if seed else RUNS / name


def train(name: str, pair: Pair, seed: int, options: argparse.Namespace) -> None:
    """Train a checkpoint by its recipe, or heal its counterpart of the same seed, which is trained first."""
    heals = pair.healed and name == pair.checkpoints[0]
    recipe = read_recipe(ROOT / f"training/recipes/{f'{pair.name}-healed' if heals else name}.yaml")
    chosen = {} if heals else {"license": LICENSE}
    if heals:
        trained(pair.checkpoints[1], pair, seed, options)
        recipe["model_name_or_path"] = run_folder(pair.checkpoints[1], seed)
    elif options.minilm and "minilm" in name:
        recipe["model_name_or_path"] = options.minilm
    chosen |= recipe | {"seed": seed, "output_dir": run_folder(name, seed)}
    if options.data_dir and pair.data:
        files = {option: file for option, file in pair.files.items() if not (heals and option == "test_file")}
        chosen |= {option: options.data_dir / pair.data / file for option, file in files.items()}
    (distill.main if heals else pair.train)(chosen | pair.options.get(name, {}))


def save_scores(folder: Path, evaluation: Evaluation) -> dict[str, Any]:
    """Add the measured scores of the test split to the run's results."""
    results = read_json(folder / RESULTS) | {f"test_{key}": one for key, one in evaluation.scores.items()}
    write_json(folder / RESULTS, results)
    return results


def note_comparison(folder: Path, pair: Pair) -> None:
    """Add to run.json a paragraph for the card: the score over the seeds of seeds.json, and that of the counterpart."""
    seeds, metric = read_json(folder / "seeds.json"), pair.metrics[0]
    ours, theirs = (seeds[column]["scores"][metric] for column in ("this", "counterpart"))
    means = [mean_and_deviation(values, DIGITS) for values in (ours, theirs)]
    count = "1 seed" if len(ours) == 1 else f"{len(ours)} seeds (mean ± standard deviation)"
    text = f"{metric.capitalize()} of {count}: {means[0]}; of {seeds['counterpart']['name']}: {means[1]}."
    if len(ours) > 1:
        difference = compare(ours, theirs, paired=True).text(DIGITS)
        text += f" Difference: {difference}, a 95 % t interval over seeds, which share data and initialisation."
    text += f" This checkpoint has seed {seeds['seeds'][0]}. {pair.note}"
    write_json(folder / RECORD, read_json(folder / RECORD) | {"comparison": text})


def _by_metric(runs: list[dict[str, float]]) -> dict[str, list[float]]:
    return {metric: [run[metric] for run in runs] for metric in runs[0]}


def draw_explanations(folders: list[Path], test: str | None) -> None:
    """Draw explanation.png of a pair: contributions in both on one colour scale, of a sentence or of test images."""
    models = {folder.name: load_checkpoint(folder) for folder in folders}
    for folder in folders:
        shown = {folder.name: models[folder.name]} | models  # the checkpoint itself first
        with replacing(folder / "explanation.png") as file:
            if models[folder.name][0].main_input_name != "pixel_values":
                _draw_sentence(shown, file)
                continue
            data = ImageDataArguments(dataset_name=read_record(folder)["recipe"]["dataset_name"])
            images = selected(IMAGE.read(test), "test", data, IMAGE) if test else read_image_splits(data).test
            rows = images.select(range(IMAGES_SHOWN))
            rows[0]["image"].save(folder / EXAMPLE_IMAGE)
            _draw_images(shown, rows, file)


def _draw_images(models: dict[str, tuple[PreTrainedModel, Any]], rows: Dataset, file: Path) -> None:
    ink = [255 - np.asarray(image.convert("L"), dtype=int) for image in rows["image"]]
    scores, titles = [], []
    for name, (model, processor) in models.items():
        names = model.config.id2label
        for one, label in zip(explain(model, processor, rows["image"][:], METHOD), rows["label"], strict=True):
            scores.append(one.shown(one.scores)[1].unflatten(0, one.example.grid))
            titles.append(f"{name.rpartition('-')[2]}\npredicted {names[one.target]}\ntrue {names[label]}")
    caption = f"{METHODS[METHOD].caption()}; y is the logit of the predicted class"
    images = np.stack(ink * len(models))
    unit = METHODS[METHOD].unit
    figure = image_heatmap(images, torch.stack(scores), titles=titles, unit=unit, caption=caption)
    figure.savefig(file, dpi=120)


def _draw_sentence(models: dict[str, tuple[PreTrainedModel, Any]], file: Path) -> None:
    classifies = "Classification" in type(next(iter(models.values()))[0]).__name__
    text, target = (SENTENCE, TARGET) if classifies else (PROMPT, None)
    found = {name: explain(*pair, text, METHOD, target=target) for name, pair in models.items()}
    explained = [f"{name}: {one.explained.rstrip('.')}" for name, one in found.items()]
    caption = "; ".join([METHODS[METHOD].caption(), *explained])
    scores = torch.stack([one.scores for one in found.values()])
    tokens = next(iter(found.values())).tokens
    figure = score_grid(scores, list(found), tokens, unit=METHODS[METHOD].unit, caption=caption)
    figure.savefig(file, dpi=120)


def publish_card(folder: Path) -> Path:
    """Copy the description of a checkpoint to model_cards/, with small weights and those of LARGE; write its card."""
    target = CARDS / folder.name
    target.mkdir(parents=True, exist_ok=True)
    for name, file in matching(target, ("*", "*/*")).items():  # from an earlier run
        if name != "README.md":  # with what a person added to the card
            file.unlink()
    committed = folder.name in LARGE or sum(file.stat().st_size for file in folder.glob("*.safetensors")) < SMALL
    for name, file in matching(folder, (*SHOWN, *MODULES, *(["*.safetensors"] if committed else []))).items():
        (target / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(file, target / name)
    name_data(target)
    if committed:
        write_code(target)
    return write_card(target)


def name_data(folder: Path) -> None:
    """Add title, data set on the Hub and language to the records of data whose files data_sets.json knows."""
    known = read_json(CARDS / "data_sets.json")

    def named(part: dict[str, Any]) -> dict[str, Any]:
        if part["source"] == "digits":
            return part | {"title": f"scikit-learn digits, {part['rows']:,} of the 1,797 images"}
        found = [known.get(digest, {}) for digest in part.get("sha256", "").split(", ")]
        if len(found) > 1 and all(found):  # several files are several data sets, of which the card lists none by name
            return part | {"title": ", ".join(one["title"] for one in found), "language": found[0]["language"]}
        return part | found[0]

    for name in ("run.json", "previous_run.json"):
        if (folder / name).is_file():
            record = read_json(folder / name)
            write_json(folder / name, record | {"data": {key: named(part) for key, part in record["data"].items()}})
    if evaluation := read_json(folder / "evaluation.json"):
        write_json(folder / "evaluation.json", evaluation | {"data": named(evaluation["data"])})


def list_cards() -> Path:
    """Write model_cards/README.md: every checkpoint in one table, from the files beside its card."""
    rows = [" | ".join(_row_of(card.parent)) for card in sorted(CARDS.glob("*/README.md"))]
    rows = [f"| {row} |" for row in rows]
    with replacing(CARDS / "README.md") as temporary:
        temporary.write_text("\n".join([*HEADING, *rows, ""]), encoding="utf-8")
    return CARDS / "README.md"


def _row_of(folder: Path) -> list[str]:
    """The cells of a checkpoint: its name, task, scores, signs, size and data."""
    first = read_card(folder / "README.md").data.eval_results[0]
    metric, value = first.metric_name or first.metric_type, first.metric_value
    values = read_json(folder / "seeds.json").get("this", {}).get("scores", {}).get(metric) or [value]
    score = f"{metric.replace('_', ' ')} {mean_and_deviation(values, DIGITS)} ({len(values)})"
    evaluation = read_json(folder / "evaluation.json")
    share, without = evaluation.get("negative_share"), evaluation.get(f"{metric}_without_negatives")
    signs = ["–", "–"] if share is None else [f"{share:.1%}", f"{without:.4f}"]
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    half = read_json(folder / "config.json").get("dtype") == "float16"
    megabytes = (size or read_json(folder / RECORD)["num_parameters"] * (2 if half else 4)) / 1e6
    cells = [first.task_type, score, f"{value:.4f}", *signs, f"{megabytes:.1f}", "yes" if size else "no"]
    return [f"[{folder.name}]({folder.name}/README.md)", *cells, first.dataset_name]


if __name__ == "__main__":
    run_script(main)
