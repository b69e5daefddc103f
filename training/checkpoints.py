"""Train the project's checkpoints, each with its softmax counterpart, and generate their cards from the measurements.

    make checkpoints                                # all of them, from the Hub's data
    make checkpoints NAMES=digits                   # one pair: two minutes a seed, no download
    python -m training.checkpoints minilm --data-dir DIR --minilm FOLDER   # MiniLM, healed: an hour on one core
    python -m training.checkpoints sst2-minilm --data-dir DIR --minilm FOLDER
    python -m training.checkpoints cifar10-dinov2 --data-dir DIR --dinov2 FOLDER   # an hour for each of the two
    hf-bidir card model_cards/NAME                  # no training: renew a card from its files

Each pair is one recipe with two attention activations, trained with several seeds; the model of the first seed becomes
the checkpoint. Then, for both: `hf-bidir evaluate`, a picture of contributions, the card. Runs go to
runs/checkpoints/NAME (later seeds to runs/checkpoints/seeds); a finished run is not repeated, an interrupted one
continues. Card, numbers and pictures are copied to model_cards/NAME, and the weights too if they are below 10 MB or
one of `LARGE`. The sst2-minilm checkpoints are LoRA adapters of model_cards/minilm-tanhmax, so run this in the
root folder of a clone, and of all-MiniLM-L6-v2, which is named as on the Hub even if --minilm gives a folder.

minilm-tanhmax has no labels and no pair: it is all-MiniLM-L6-v2, healed, in half precision. research/conversions
measures it (embeddings.py, and run.py with the variant "encoder").

`DIR` holds cifar10_jpeg and sst2/{train,validation,test}.parquet, imdb/{train,test}.parquet and
20news_sports/bydate_train.parquet. The committed numbers were measured on such files. The Hub's SST-2 adds phrases and
hides its test labels, so training on it gives another model. The cifar10-dinov2 checkpoints start from the folder that
`python -m research.dinov2` writes; weights of the Hub give other models.
"""

import hf_bidir.cli.start  # isort: skip  # noqa: F401  (first: before torch and transformers)

import argparse
import shutil
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks.runs import markdown, read_runs
from benchmarks.seeds import compare, mean_and_deviation
from hf_bidir.checkpoints.adapters import ADAPTER_CONFIG
from hf_bidir.checkpoints.kinds import kind_of
from hf_bidir.checkpoints.reading import open_checkpoint
from hf_bidir.cli.script import read_recipe, run_script
from hf_bidir.common.card import read_card
from hf_bidir.common.files import PREVIOUS, RECORD, read_json, replacing, write_json
from hf_bidir.explain import explain, load_checkpoint
from hf_bidir.finetune.record import RESULTS, is_finished
from hf_bidir.hub.card import write_card
from hf_bidir.hub.evaluate import EVALUATION, evaluate_checkpoint, read_examples
from hf_bidir.hub.files import MODULES, matching
from hf_bidir.hub.push import write_code
from training import distill

ROOT = Path(__file__).resolve().parent.parent
RUNS, CARDS, RECIPES = ROOT / "runs/checkpoints", ROOT / "model_cards", ROOT / "training/recipes"
NAMESPACE = "hf-bidir"  # the project's account on the Hub
SHOWN = ("*.json", "*.png")
DIGITS = 4
SMALL = 10_000_000  # bytes; smaller weights are committed beside their card
ENCODER = "minilm"
EMBEDDINGS = ROOT / "research/conversions/results/embeddings.csv"
# the models on the Hub for which a folder can be given, by the option that takes it
PRETRAINED = {"minilm": "sentence-transformers/all-MiniLM-L6-v2", "dinov2": "facebook/dinov2-small"}
LARGE = ("cifar10-dinov2-tanhmax", "minilm-tanhmax")  # committed although they have 45 MB
LICENSE = "apache-2.0"  # of the weights that the project trains
SENTENCE = "a charming film with a weak ending"
PROMPT = "This is one of the worst movies I have ever"
HEALING_TEXTS = ("imdb/train.parquet", "sst2/train.parquet", "20news_sports/bydate_train.parquet")
HELD_OUT_TEXTS = ("imdb/test.parquet", "sst2/validation.parquet")
HEADING = f"""# Checkpoints

Each TanhMax checkpoint has a softmax counterpart. The recipes of a pair differ in the attention, and for imdb-lm in the
learning rate. minilm-tanhmax is all-MiniLM-L6-v2, healed (distilled from it): a sentence encoder, and a start for text
classifiers. The sst2-minilm checkpoints are LoRA adapters of these two, with a classifier each. Weights below 10 MB are
in this folder, and in half precision minilm-tanhmax and cifar10-dinov2-tanhmax; load them by path, as each card shows.
`make checkpoints` trains the checkpoints, evaluates the saved files and generates this page. On the Hub the names are
`{NAMESPACE}/NAME`, by `hf-bidir push model_cards/NAME {NAMESPACE}/NAME`.

- **score**: accuracy, or where lower is better perplexity of language models and relative error of the encoder's hidden
  states; as mean ± standard deviation, with the number of seeds in brackets. **this checkpoint**: the same metric for
  the checkpoint itself. The file is seed 0, usually better than average; compare the means.
- **negative**: share of negative coefficients among those with a magnitude above 0.001. **without**: the metric of this
  checkpoint with the negative coefficients set to 0, and no further training.

| checkpoint | task | score (seeds) | this checkpoint | negative | without | measured on |
|---|---|---|---|---|---|---|""".splitlines()


@dataclass(frozen=True)
class Pair:
    """A TanhMax checkpoint and its softmax counterpart.

    Attributes:
        name: of the pair; the checkpoints are NAME-tanhmax and NAME-softmax, as are their recipes.
        script: the training script of both.
        data: the folder under --data-dir with the data.
        files: by the option that takes it, a file in that folder.
        options: further options of a checkpoint's run, by its name.
        note: a sentence for readers who compare the two.
        half: whether the checkpoints are saved in half precision, and evaluated so.
    """

    name: str
    script: str
    data: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    seeds: int = 3
    note: str = "Both have the same learning rate; the best rate of each may differ."
    half: bool = False

    @property
    def checkpoints(self) -> tuple[str, str]:
        return f"{self.name}-tanhmax", f"{self.name}-softmax"

    def test_file(self, data_dir: Path | None) -> str | None:
        """The local file to evaluate on, where a folder of data is given."""
        file = self.files.get("test_file", self.files.get("validation_file"))
        return str(data_dir / self.data / file) if data_dir and self.data else None


PAIRS = {
    name: Pair(name, **fields)
    for name, fields in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")).items()
}


def main() -> None:
    names = [*PAIRS, ENCODER]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(names)}; by default all")
    parser.add_argument("--data-dir", type=Path, help="read local files from here; by default the Hub's data sets")
    for option, model in PRETRAINED.items():
        parser.add_argument(f"--{option}", type=Path, help=f"a folder with {model}; by default from the Hub")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"there is no checkpoint called {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    for name in options.names or names:
        if name == ENCODER:
            make_encoder(options)
        else:
            make(PAIRS[name], options)
    print(f"Written: {list_cards()}")


def make(pair: Pair, options: argparse.Namespace) -> None:
    """Train, evaluate and describe both checkpoints of a pair."""
    seeds, test = list(range(pair.seeds)), pair.test_file(options.data_dir)
    scores = {name: [trained(name, pair, seed, options) for seed in seeds] for name in pair.checkpoints}
    described = {name: {"name": name, "scores": _by_metric(scores[name])} for name in pair.checkpoints}
    for name, counterpart in zip(pair.checkpoints, pair.checkpoints[::-1], strict=True):
        folder = RUNS / name
        runs = {"this": described[name], "counterpart": described[counterpart]}
        write_json(folder / "seeds.json", {"seeds": seeds, "note": pair.note, **runs})
        note_comparison(folder, pair)
        if pair.half:
            scores_of_file = {f"test_{metric}": score for metric, score in scores[name][0].items()}
            write_json(folder / RESULTS, read_json(folder / RESULTS) | scores_of_file)
        draw_explanation(folder, test)
        write_card(folder)
        print(f"Copied: {publish_card(folder)}")


def trained(name: str, pair: Pair, seed: int, options: argparse.Namespace) -> dict[str, float]:
    """The measured scores of one run, which is trained first unless it is finished."""
    folder = run_folder(name, seed)
    if not is_finished(folder):
        print(f"\n{name}, seed {seed}: {folder}")
        train(name, pair, seed, options)
    if not (folder / EVALUATION).is_file():
        if pair.half:
            save_in_half_precision(folder)
        evaluate_checkpoint(folder, pair.test_file(options.data_dir)).save(folder)
    return read_json(folder / EVALUATION)["scores"]


def run_folder(name: str, seed: int) -> Path:
    return RUNS / "seeds" / f"{name}-seed{seed}" if seed else RUNS / name


def train(name: str, pair: Pair, seed: int, options: argparse.Namespace) -> None:
    """Train a checkpoint by its recipe."""
    recipe = read_recipe(RECIPES / f"{name}.yaml") | {"license": LICENSE}
    for option, model in PRETRAINED.items():
        if recipe.get("model_name_or_path") == model and (folder := getattr(options, option)):
            recipe["model_name_or_path"] = folder
    if options.data_dir and pair.data:
        recipe |= {option: options.data_dir / pair.data / file for option, file in pair.files.items()}
    recipe |= {"seed": seed, "output_dir": run_folder(name, seed)}
    import_module(f"training.{pair.script}").main(on_device(recipe | pair.options.get(name, {})))


def on_device(recipe: dict[str, Any]) -> dict[str, Any]:
    """The recipe with the option that mixed precision needs on a CPU."""
    return recipe | {"use_cpu": not torch.cuda.is_available()} if recipe.get("bf16") else recipe


def make_encoder(options: argparse.Namespace) -> None:
    """Heal the pretrained MiniLM, and save it in half precision."""
    name = f"{ENCODER}-tanhmax"
    if not is_finished(RUNS / name):
        recipe = read_recipe(RECIPES / f"{ENCODER}-healed.yaml") | {"output_dir": RUNS / name, "bf16": True}
        if options.minilm:
            recipe["model_name_or_path"] = options.minilm
        if options.data_dir:
            recipe["train_file"] = [options.data_dir / file for file in HEALING_TEXTS]
            recipe["validation_file"] = [options.data_dir / file for file in HELD_OUT_TEXTS]
        distill.main(on_device(recipe))
    save_in_half_precision(RUNS / name)
    write_json(RUNS / name / RECORD, read_json(RUNS / name / RECORD) | {"command": command_for(ENCODER)})
    write_card(RUNS / name)
    print(f"Copied: {publish_card(RUNS / name)}")


def save_in_half_precision(folder: Path) -> None:
    """Halve the weights on the disk. The config names fp32, to which transformers then converts them."""
    open_checkpoint(folder).model().half().save_pretrained(folder)
    write_json(folder / "config.json", read_json(folder / "config.json") | {"dtype": "float32"})


def note_comparison(folder: Path, pair: Pair) -> None:
    """Add to run.json for the card the command, and the score over the seeds of seeds.json against the counterpart."""
    seeds = read_json(folder / "seeds.json")
    metric, scores = next(iter(seeds["this"]["scores"].items()))
    counterpart = seeds["counterpart"]["scores"][metric]
    difference = compare(scores, counterpart).text(DIGITS)
    name = seeds["counterpart"]["name"]
    text = f"**{metric.capitalize()} {mean_and_deviation(scores, DIGITS)}, {difference} against {name}** "
    text += f"({mean_and_deviation(counterpart, DIGITS)}{'; lower is better' if metric == 'perplexity' else ''}): "
    if len(scores) == 1:
        text += "one seed, so without an interval."
    else:
        text += f"mean and standard deviation of {len(scores)} seeds, and the difference with its 95 % t interval. In "
        text += "each seed both share data and initialisation."
    text += f" This checkpoint has seed {seeds['seeds'][0]}. {pair.note}"
    facts = {"comparison": text, "command": command_for(pair.name)}
    write_json(folder / RECORD, read_json(folder / RECORD) | facts)


def command_for(name: str) -> str:
    """The command of a card, by the name of its pair or `ENCODER`."""
    command = f"python -m training.checkpoints {name}"
    if name != ENCODER and PAIRS[name].data is None:
        return command
    return f"{command}  # reads the data sets of the Hub; this run read files (--data-dir DIR)"


def _by_metric(runs: list[dict[str, float]]) -> dict[str, list[float]]:
    return {metric: [run[metric] for run in runs] for metric in runs[0]}


def draw_explanation(folder: Path, test: str | None) -> None:
    """Draw explanation.png: the prediction for a sentence, a prompt, or the first test image, by the default method."""
    model, processor = load_checkpoint(folder)
    shown: Any = SENTENCE if kind_of(model).task == "text-classification" else PROMPT
    if model.main_input_name == "pixel_values":
        examples, _, _ = read_examples(model, folder, test, "test", {})
        shown = examples[0]["image"]
        shown.save(folder / "example.png")
    explain(model, processor, shown).plot().savefig(folder / "explanation.png")


def publish_card(folder: Path) -> Path:
    """Copy the description of a checkpoint to model_cards/, with small weights and those of `LARGE`; write its card."""
    target = CARDS / folder.name
    target.mkdir(parents=True, exist_ok=True)
    for name, file in matching(target, ("*", "*/*")).items():  # from an earlier run
        if name != "README.md":  # with what a person added to the card
            file.unlink()
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    committed = folder.name in LARGE or size < SMALL
    patterns: tuple[str, ...] = (*SHOWN, *MODULES)
    if committed:
        patterns += ("*.safetensors",)
    for name, file in matching(folder, patterns).items():
        (target / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(file, target / name)
    name_data(target)
    base = name_base(target)
    if committed and "auto_map" in read_json(target / "config.json"):  # a stock model needs none
        write_code(target)
    return write_card(target, base=base)


def name_base(folder: Path) -> str | None:
    """Name the base of an adapter as the Hub does, unless it is in this clone; return the name that it had."""
    config = read_json(folder / ADAPTER_CONFIG)
    base = config.get("base_model_name_or_path")
    if base and not (CARDS / Path(base).name).is_dir():
        public = read_json(folder / RECORD)["recipe"]["base_model"]
        write_json(folder / ADAPTER_CONFIG, config | {"base_model_name_or_path": public})
    return base


def name_data(folder: Path) -> None:
    """Add title, data set on the Hub and language to the records of data whose files data_sets.json knows."""
    for name in (RECORD, PREVIOUS):
        if record := read_json(folder / name):
            record["data"] = {split: named(part) for split, part in record["data"].items()}
            write_json(folder / name, record)
    if evaluation := read_json(folder / EVALUATION):
        write_json(folder / EVALUATION, evaluation | {"data": named(evaluation["data"])})


def named(part: dict[str, Any]) -> dict[str, Any]:
    """The record of the data of a split, with what data_sets.json knows about its files."""
    if part["source"] == "digits":
        title = f"scikit-learn digits, {part['rows']:,} of the 1,797 images"
        return part | {"title": title, "license": "CC BY 4.0 (UCI repository)"}
    data_sets = read_json(CARDS / "data_sets.json")
    known = [data_sets.get(digest, {}) for digest in part.get("sha256", "").split(", ")]
    if len(known) == 1:
        return part | known[0]
    if all(known):  # several files are several data sets, of which the card lists none by name
        licences = {each["title"]: each["license"] for each in known}
        return part | {"title": "; ".join(licences), "licenses": licences, "language": known[0]["language"]}
    return part


def list_cards() -> Path:
    """Write model_cards/README.md: every checkpoint in one table, from the files beside its card."""
    rows = [f"| {' | '.join(_row_of(card.parent))} |" for card in sorted(CARDS.glob("*/README.md"))]
    with replacing(CARDS / "README.md") as temporary:
        temporary.write_text("\n".join([*HEADING, *rows, ""]), encoding="utf-8")
    return CARDS / "README.md"


def downloads() -> str:
    """The TanhMax checkpoints with weights, and the scores of their softmax counterparts, as a Markdown table."""
    rows = []
    for folder in sorted(CARDS.glob("*-tanhmax")):
        name = f"[{folder.name}](model_cards/{folder.name}/README.md)"
        if folder.name.startswith(ENCODER):
            encoders = read_runs(EMBEDDINGS).set_index("encoder")["found"]
            found = [f"{encoders[of]:.3f}" for of in ("healed", "softmax")]
            rows.append([name, "AG News test split", "titles matched to their description", *found])
            continue
        result = read_card(folder / "README.md").data.eval_results[0]
        metric, seeds = result.metric_name or result.metric_type, read_json(folder / "seeds.json")
        scores, counterpart = (seeds.get(of, {}).get("scores", {}).get(metric) for of in ("this", "counterpart"))
        score = mean_and_deviation(scores or [result.metric_value], 3)
        softmax = mean_and_deviation(counterpart, 3) if counterpart else ""
        rows.append([name, result.dataset_name.partition(",")[0], metric.replace("_", " "), score, softmax])
    return markdown(["checkpoint", "measured on", "metric", "TanhMax", "softmax"], rows)


def _row_of(folder: Path) -> list[str]:
    """The cells of a checkpoint: its name, task, scores, signs and data."""
    result = read_card(folder / "README.md").data.eval_results[0]
    metric, value = result.metric_name or result.metric_type, result.metric_value
    scores = read_json(folder / "seeds.json").get("this", {}).get("scores", {}).get(metric, [value])
    evaluation, share, without = read_json(folder / EVALUATION), "–", "–"
    if evaluation.get("negative_share") is not None:
        share = f"{evaluation['negative_share']:.1%}"
        without = f"{evaluation['without_negatives']:.4f}"
    return [
        f"[{folder.name}]({folder.name}/README.md)",
        result.task_type,
        f"{metric.replace('_', ' ')} {mean_and_deviation(scores, DIGITS)} ({len(scores)})",
        f"{value:.4f}",
        share,
        without,
        result.dataset_name,
    ]


if __name__ == "__main__":
    run_script(main)
