"""Train the published checkpoints, each beside its softmax twin, and write their cards from what was measured.

    make checkpoints                                # all of them, from the Hub's data
    make checkpoints NAMES=digits                   # one pair: two minutes a seed, nothing to download
    python -m training.checkpoints sst2-minilm --data-dir DIR --minilm FOLDER

Each pair is one recipe with two attention activations, trained with several seeds; the first seed's model is what is
published. Then, for both: `hf-bidir evaluate` on the test split, a picture of contributions, the card. Runs go to
runs/checkpoints/NAME (later seeds to runs/checkpoints/seeds); a finished one is not repeated, an interrupted one
continues. Card, numbers and pictures are copied to model_cards/NAME, and the weights too where they are under 1 MB.

`DIR` holds, per data set: fashion_mnist/ with {train,t10k}-images-idx3-ubyte.gz and their labels; sst2/ with
train.parquet, validation.parquet and test.parquet; and for sst2-minilm and imdb-lm imdb/ with train.parquet and
test.parquet. The published numbers are of such files; the Hub's SST-2 has phrases too and hides its test labels, so it
trains another model. With fewer seeds than the published ones, model_cards/ stays as it is. Publish a folder with
`hf-bidir push`.
"""

import argparse
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from matplotlib.figure import Figure
from transformers import PreTrainedModel

from hf_bidir.cli.recipe import read_recipe
from hf_bidir.cli.script import run_script
from hf_bidir.common.errors import InputError
from hf_bidir.common.files import replacing, write_json
from hf_bidir.explain import image_heatmap, load_checkpoint, read_text, text_heatmap, token_scores
from hf_bidir.explain.methods import METHODS
from hf_bidir.explain.report import explain_checkpoint
from hf_bidir.finetune.data.arguments import ImageDataArguments
from hf_bidir.finetune.data.image_data import ImageCollator, read_image_splits
from hf_bidir.finetune.data.image_files import read_images
from hf_bidir.finetune.folder import RESULTS, read_record
from hf_bidir.finetune.task import Task
from hf_bidir.finetune.tasks.causal_lm import causal_lm
from hf_bidir.finetune.tasks.distillation import distillation
from hf_bidir.finetune.tasks.image_classification import image_classification
from hf_bidir.finetune.tasks.recurrent_classification import recurrent_classification
from hf_bidir.finetune.tasks.text_classification import text_classification
from hf_bidir.hub import evaluate_checkpoint
from hf_bidir.hub.model_card import seed_spread, write_card

ROOT = Path(__file__).resolve().parent.parent
RUNS, CARDS = ROOT / "runs/checkpoints", ROOT / "model_cards"
SHOWN = ("*.json", "*.png")
SMALL = 2**20  # bytes of weights that are committed beside their card
IMAGES_SHOWN = 6
SENTENCE, TARGET = "a charming film with a weak ending", 1
PROMPT = "This is one of the worst movies I have ever"
HEALED = RUNS / "minilm-healed-30-steps"
HEADING = """# Checkpoints

Cards, configs and measured numbers of checkpoints, each TanhMax one beside its softmax twin. `make checkpoints` trains
them, measures them again from the saved files and writes this page; `hf-bidir push` publishes them. Weights under 1 MB
are here as well and load with `import hf_bidir`; the others are made, not kept. Accuracy is that of the checkpoint on
its test data, of language models (imdb-lm) the perplexity on held-out text, where less is better; then mean ± standard
deviation over seeds; "negative" is the share of negative attention coefficients over 0.001 in size, "without" the same
number with 0 in their place. A file in brackets was read instead of the Hub's data
set; the SST-2 files hold whole sentences (6,920, 872 and 1,821 of them), without the phrases.

| checkpoint | parameters | test data | accuracy or perplexity | over seeds | negative | without |
|---|---|---|---|---|---|---|""".splitlines()
Loaded = tuple[PreTrainedModel, Any]  # and its tokenizer or image processor


@dataclass(frozen=True)
class Pair:
    """A TanhMax checkpoint and its softmax twin.

    Attributes:
        task: what they are trained for.
        recipes: by name of the checkpoint, the one to publish first.
        data: the folder under --data-dir with the data.
        files: by the option that gets it, a file in that folder.
        options: what else a checkpoint's run gets.
        start: what to do before, with the options that name data and model.
        note: what a reader of the comparison should know, in a sentence.
        metrics: what is told of a run, the first one in the table; of its split "test", or "eval" for validation.
    """

    task: Task
    recipes: dict[str, str]
    data: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    start: Callable[[argparse.Namespace], None] = lambda _: None
    seeds: int = 3
    note: str | None = None
    metrics: tuple[str, ...] = ("accuracy", "macro_f1")
    split: str = "test"


SST2 = "SST-2 is here its 6,920, 872 and 1,821 whole sentences (Socher et al. 2013), without phrases."


def heal_minilm(options: argparse.Namespace) -> None:
    """MiniLM with TanhMax attention, 30 steps of distillation: what the SST-2 checkpoint starts from."""
    if read_record(HEALED).get("status") == "finished":
        return
    given = recipe(distillation, "minilm-healed") | {"max_steps": 30, "output_dir": HEALED} | minilm(options)
    if options.data_dir:
        imdb, sst2 = options.data_dir / "imdb", options.data_dir / "sst2"
        given |= {"train_file": [str(imdb / "train.parquet"), str(sst2 / "train.parquet")]}
        given |= {"validation_file": [str(imdb / "test.parquet"), str(sst2 / "validation.parquet")]}
    distillation(given)


def minilm(options: argparse.Namespace) -> dict[str, Path]:
    return {"model_name_or_path": options.minilm} if options.minilm else {}


IDX = {"train_file": "train-images-idx3-ubyte.gz", "test_file": "t10k-images-idx3-ubyte.gz"}
PARQUET = {f"{split}_file": f"{split}.parquet" for split in ("train", "validation", "test")}
PAIRS = {
    "digits": Pair(
        image_classification,
        {"digits-tanhmax": "digits-tanhmax", "digits-softmax": "digits-softmax"},
        seeds=5,
        note="The recipe was chosen with TanhMax, and softmax was never tuned for it: the difference means nothing.",
    ),
    "fashion-mnist-small": Pair(
        image_classification,
        {f"fashion-mnist-small-{name}": f"fashion-mnist-small-{name}" for name in ("tanhmax", "softmax")},
        data="fashion_mnist",
        files=IDX,
    ),
    "sst2-rnn": Pair(
        recurrent_classification,
        {f"sst2-rnn-{name}": f"sst2-rnn-{name}" for name in ("tanhmax", "softmax")},
        data="sst2",
        files=PARQUET,
        seeds=5,
        note=SST2,
    ),
    "sst2-minilm": Pair(
        text_classification,
        {"sst2-minilm-tanhmax": "sst2-minilm-healed", "sst2-minilm-softmax": "sst2-minilm-softmax"},
        data="sst2",
        files=PARQUET,
        options={"sst2-minilm-tanhmax": {"model_name_or_path": HEALED}},
        start=heal_minilm,
        note=f"The TanhMax one also had 30 steps of distillation, without labels. {SST2}",
    ),
    "imdb-lm": Pair(
        causal_lm,
        {f"imdb-lm-{name}": f"imdb-lm-{name}" for name in ("tanhmax", "softmax")},
        data="imdb",
        files={"train_file": "train.parquet", "validation_file": "test.parquet"},
        seeds=1,
        note="One seed; learning rates that were best in smaller models (benchmarks/results/language_model.md).",
        metrics=("perplexity",),
        split="eval",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(PAIRS)}; by default all")
    parser.add_argument("--data-dir", type=Path, help="read local files from here; by default the Hub's data sets")
    parser.add_argument("--minilm", type=Path, help="a folder with all-MiniLM-L6-v2; by default from the Hub")
    parser.add_argument(
        "--seeds",
        type=positive,
        metavar="N",
        help="this many seeds, instead of each pair's own number",
    )
    options = parser.parse_args()
    if unknown := set(options.names) - PAIRS.keys():
        raise InputError(f"there is no checkpoint called {', '.join(sorted(unknown))}; there are {', '.join(PAIRS)}")
    for name in options.names or PAIRS:
        make(PAIRS[name], options)
    print(f"Written: {list_cards()}")


def positive(word: str) -> int:
    if not word.isdigit() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {word}")
    return int(word)


def make(pair: Pair, options: argparse.Namespace) -> None:
    """Train, measure and describe both checkpoints of a pair."""
    pair.start(options)
    seeds = list(range(options.seeds or pair.seeds))
    scores = {name: [trained(name, pair, seed, options) for seed in seeds] for name in pair.recipes}
    for name in pair.recipes:
        twin = next(other for other in pair.recipes if other != name)
        columns = {"this": name, "twin": twin}
        spread = {key: {"name": one, "scores": _by_metric(scores[one])} for key, one in columns.items()}
        write_json(RUNS / name / "seeds.json", {"seeds": seeds, "note": pair.note, **spread})
        file = pair.files.get("test_file", pair.files.get("validation_file"))
        test = str(options.data_dir / pair.data / file) if options.data_dir and pair.data else None
        evaluate_checkpoint(RUNS / name, test).save(RUNS / name)
        draw_explanation(RUNS / name, RUNS / twin, test)
        write_card(RUNS / name)
        number = seed_spread(spread["this"]["scores"][pair.metrics[0]])
        print(f"{name}: {pair.metrics[0]} {number}, {len(seeds)} seeds. Written: {RUNS / name}")
        if len(seeds) >= pair.seeds:
            print(f"Copied: {publish_card(RUNS / name)}")


def trained(name: str, pair: Pair, seed: int, options: argparse.Namespace) -> dict[str, float]:
    """The numbers of one run, which is trained first unless it is there already."""
    folder = RUNS / "seeds" / f"{name}-seed{seed}" if seed else RUNS / name
    if read_record(folder).get("status") != "finished":
        print(f"\n{name}, seed {seed}: {folder}")
        given = recipe(pair.task, pair.recipes[name]) | {"seed": seed, "output_dir": folder}
        if options.data_dir and pair.data:
            given |= {option: options.data_dir / pair.data / file for option, file in pair.files.items()}
        started = pair.options.get(name) or (minilm(options) if "minilm" in name else {})
        pair.task(given | started)
    results = _read(folder / RESULTS)
    found = {k.removeprefix(f"{pair.split}_"): v for k, v in results.items() if k.startswith(f"{pair.split}_")}
    return {name: value for name, value in found.items() if name in pair.metrics or name.startswith("recall_")}


def recipe(task: Task, name: str) -> dict[str, Any]:
    return read_recipe(task.options, ROOT / f"training/recipes/{name}.yaml")


def _by_metric(runs: list[dict[str, float]]) -> dict[str, list[float]]:
    return {metric: [run[metric] for run in runs] for metric in runs[0]}


def draw_explanation(folder: Path, twin: Path, test: str | None) -> None:
    """explanation.png: contributions in a checkpoint and in its twin, of one sentence or of some test images."""
    models = {one.name: load_checkpoint(one) for one in (folder, twin)}
    with replacing(folder / "explanation.png") as file:
        if models[folder.name][0].main_input_name == "pixel_values":
            data = ImageDataArguments(dataset_name=read_record(folder)["recipe"]["dataset_name"])
            rows = read_images(test) if test else read_image_splits(data).test
            _draw_images(models, rows.select(range(IMAGES_SHOWN)), file)
        else:
            _draw_sentence(models, file)


def _draw_images(models: dict[str, Loaded], rows: Dataset, file: Path) -> None:
    ink = 255 - np.stack([np.asarray(image.convert("L"), dtype=int) for image in rows["image"]])
    figure = Figure(figsize=(1.6 * len(ink) + 1.2, 2.5 * len(models)), layout="constrained")
    for (name, (model, processor)), part in zip(models.items(), figure.subfigures(len(models), 1), strict=True):
        inputs = {"pixel_values": ImageCollator(processor)(rows)["pixel_values"]}
        scores = token_scores(model, inputs, "contributions")[:, 1:]  # without the class token
        answers = [model.config.id2label[index] for index in model(**inputs).logits.argmax(-1).tolist()]
        caption = f"{name}: {METHODS['contributions'].caption()}; y is the logit of the answer above"
        image_heatmap(ink, scores.detach(), titles=answers, unit="a · ∂y/∂a", caption=caption, figure=part)
    figure.savefig(file, dpi=100)


def _draw_sentence(models: dict[str, Loaded], file: Path) -> None:
    scores, answers = {}, []
    for name, (model, tokenizer) in models.items():
        if "Classification" in type(model).__name__:
            example = read_text(tokenizer, SENTENCE, model.config.max_position_embeddings)
            scores[name] = example.by_token(token_scores(model, example.inputs, "contributions", TARGET)[0].detach())
            answers = [f"y is the logit of {model.config.id2label[TARGET]}"]
        else:
            explanation = explain_checkpoint((model, tokenizer), PROMPT)
            example, scores[name] = explanation.example, explanation.scores
            answers.append(f"{name}: {explanation.explained.rstrip('.')}")
    caption = "; ".join([METHODS["contributions"].caption(), *answers])
    text_heatmap(example.tokens, scores, unit="a · ∂y/∂a", caption=caption, path=file)


def publish_card(folder: Path) -> Path:
    """Copy what describes a checkpoint to model_cards, with the weights where they are small, and write its card."""
    target = CARDS / folder.name
    target.mkdir(parents=True, exist_ok=True)
    for file in target.iterdir():  # of an earlier time; what a person wrote around the card stays
        if file.name != "README.md":
            file.unlink()
    small = sum(file.stat().st_size for file in folder.glob("*.safetensors")) < SMALL
    for pattern in (*SHOWN, *(["*.safetensors"] if small else [])):
        for file in folder.glob(pattern):
            shutil.copyfile(file, target / file.name)
    return write_card(target)


def list_cards() -> Path:
    """model_cards/README.md: every checkpoint in one table, from the files beside its card."""
    rows = []
    for folder in sorted(file.parent for file in CARDS.glob("*/seeds.json")):
        seeds, evaluation, run = (_read(folder / f"{name}.json") for name in ("seeds", "evaluation", "run"))
        name = "accuracy" if "accuracy" in evaluation["scores"] else "perplexity"
        spread = seed_spread(seeds["this"]["scores"][name])
        share = evaluation["negative_share"]
        signs = ["–", "–"] if share is None else [f"{share:.1%}", f"{evaluation[f'{name}_without_negatives']:.4f}"]
        numbers = [f"{evaluation['scores'][name]:.4f}", f"{spread} ({len(seeds['seeds'])})", *signs]
        name, size = f"[{folder.name}]({folder.name}/README.md)", f"{run['num_parameters']:,}"
        source, known = evaluation["data"]["source"], run["recipe"]["dataset_name"]
        data = known if source == known else f"{known} ({source})"
        rows.append(f"| {' | '.join([name, size, data, *numbers])} |")
    with replacing(CARDS / "README.md") as temporary:
        temporary.write_text("\n".join([*HEADING, *rows, ""]), encoding="utf-8")
    return CARDS / "README.md"


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))


if __name__ == "__main__":
    run_script(main)
