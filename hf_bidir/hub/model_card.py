"""The model card of a finished run, from the files that the run wrote and from nothing else."""

import re
from difflib import unified_diff
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from hf_bidir.common.files import read_json, replacing
from hf_bidir.hub.checkpoint_files import CODE, digests
from hf_bidir.modeling.configuration_bidir import all_masses

TEMPLATE = Path(__file__).with_name("card_template.md")
BEGIN = "<!-- hf_bidir: generated from here; write above or below, not inside -->"
END = "<!-- hf_bidir: generated up to here -->"
PIPELINES = {
    "AutoModel": "feature-extraction",
    "AutoModelForImageClassification": "image-classification",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
    "AutoModelForQuestionAnswering": "question-answering",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForImageTextToText": "image-text-to-text",
    "AutoModelForZeroShotImageClassification": "zero-shot-image-classification",
    "AutoModelForObjectDetection": "object-detection",
    "AutoModelForSemanticSegmentation": "image-segmentation",
    "AutoModelForAudioClassification": "audio-classification",
    "AutoModelForSpeechSeq2Seq": "automatic-speech-recognition",
}
TASKS = PIPELINES | {"AutoModelForSeq2SeqLM": "text2text-generation"}  # which has no pipeline any more
PROCESSORS = {
    "processor_config.json": "AutoProcessor",
    "tokenizer_config.json": "AutoTokenizer",
    "preprocessor_config.json": "AutoImageProcessor",
}
FIGURES = {
    "explanation.png": "What speaks for (red) and against (blue) an answer",
    "attention.png": "Signed attention over a few inputs of the test split",
    "loss_curve.png": "Loss over the course of training",
}
METRICS = {  # the run's names, and what the Hub calls the same metrics, if it knows them
    "accuracy": "accuracy",
    "macro_f1": "f1",
    "exact_match": "exact_match",
    "token_accuracy": None,
    "masked_accuracy": None,
    "relative_error": None,
    "perplexity": "perplexity",
}
SOURCE = re.compile(r'^source, revision = "([^"]+)", "([^"]+)"', re.MULTILINE)  # in the template's example
EQUAL = 5e-5  # half of the last digit that is printed, of what is below 1
KEPT_WHEN_EDITED = ("license", "tags")  # generated metadata that a person may well know better


def build_model_card(folder: str | Path, repo_id: str | None = None, revision: str | None = None) -> ModelCard:
    """Build the card of a finished run; `build_model_card(folder).save(folder / "README.md")` writes it.

    A number that no file of the run holds is left out. Where the folder has a README.md already, only the
    part between the markers is renewed; what a person wrote around it stays, metadata included.

    Args:
        folder: holds config.json, and run.json and all_results.json if a run finished there; evaluation.json and
            seeds.json if they were written.
        repo_id, revision: where on the Hub it is, for the loading example; by default what the README.md there says.

    Raises:
        FileNotFoundError: `folder` has no config.json, so there is no model to describe.
    """
    folder, readme = Path(folder), Path(folder, "README.md")
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"expected a checkpoint folder with a config.json; {folder} has none")
    written = ModelCard.load(readme) if readme.is_file() else None
    if repo_id is None and written and (named := SOURCE.search(written.text)):
        repo_id, revision = named.groups()
    known = written.data.model_name if written else None  # a folder may have been renamed since
    name = repo_id.rpartition("/")[2] if repo_id else known or folder.resolve().name
    facts = _facts(folder) | {"name": name, "repo_id": repo_id, "revision": revision or "main"}
    card = ModelCard.from_template(_metadata(facts), template_path=str(TEMPLATE), **facts)
    card.text = f"\n{BEGIN}\n{card.text.strip()}\n{END}\n"
    return merge_cards(written, card) if written else card


def write_card(folder: str | Path, repo_id: str | None = None, revision: str | None = None) -> Path:
    """Write `build_model_card` of the same arguments as README.md, all of it or nothing."""
    readme = Path(folder, "README.md")
    card = build_model_card(folder, repo_id, revision)
    with replacing(readme) as temporary:
        temporary.write_text(str(card), encoding="utf-8")
    return readme


def card_differences(folder: str | Path) -> list[str]:
    """The lines in which README.md is not what `build_model_card` makes of the run's files, as a diff; none if equal.

    Raises:
        FileNotFoundError: there is no card, or no checkpoint.
    """
    readme = Path(folder, "README.md")
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"expected a checkpoint folder at {folder}; there is none.")
    if not readme.is_file():
        raise FileNotFoundError(f"{folder} has no README.md to check; hf-bidir card {folder} writes one.")
    written, expected = readme.read_text(encoding="utf-8"), str(build_model_card(folder))
    lines = unified_diff(written.splitlines(), expected.splitlines(), "README.md", "results", lineterm="", n=0)
    return list(lines)


def _facts(folder: Path) -> dict[str, Any]:
    """What the template shows; whatever the run did not write is None or empty."""
    files = ("config", "run", "all_results", "evaluation", "seeds", "previous_run")
    config, run, results, evaluation, seeds, previous = (read_json(folder / f"{name}.json") for name in files)
    architecture = (config.get("architectures") or ["model"])[0]
    autos = [auto for auto, path in config.get("auto_map", {}).items() if path.endswith(f".{architecture}")]
    split = "test" if any(name.startswith("test_") for name in results) else "validation"
    return {
        "architecture": architecture,
        "stock_architecture": _stock_architecture(architecture, config),
        "auto_class": next((auto for auto in autos if auto in TASKS), autos[0] if autos else "AutoModel"),
        "makes_sentence_vectors": (folder / "modules.json").is_file(),
        "processor_class": next((auto for file, auto in PROCESSORS.items() if (folder / file).is_file()), None),
        "previous": previous,
        "activation": config.get("attn_activation"),
        "negative_mass": config.get("attn_negative_mass"),
        "parameters": run.get("num_parameters"),
        "data": run.get("data", {}),
        "notes": run.get("notes", []),
        "class_shares": run.get("class_shares", {}),
        "recipe": {k: v for k, v in run.get("recipe", {}).items() if k != "output_dir"},
        "started_from": run.get("started_from"),
        "split": split,
        "chosen": run.get("best_checkpoint"),
        "scores": (scores := _scores(results, "test_" if split == "test" else "eval_")),
        "verified": _verified(folder, scores, evaluation, run.get("data", {}).get(split)),
        "has_weights": any(folder.glob("*.safetensors")),
        "evaluation": evaluation,
        "seeds": _seeds(seeds),
        "sample": run.get("sample"),
        "figures": {file: caption for file, caption in FIGURES.items() if (folder / file).is_file()},
        "run": _circumstances(run),
        "code": digests(folder, CODE),
    }


def _stock_architecture(architecture: str, config: dict[str, Any]) -> str | None:
    """The class of transformers that a signed one extends; recurrent models extend none."""
    name = architecture.removeprefix("Bidir")
    return None if name == architecture or config.get("model_type") == "bidir_rnn" else name


def _scores(results: dict[str, Any], prefix: str) -> dict[str, dict[str, float]]:
    """The measured numbers of one split: `overall` by metric and `recall` by class."""
    measured = {key.removeprefix(prefix): value for key, value in results.items() if key.startswith(prefix)}
    overall = {name: measured[name] for name in METRICS if measured.get(name) is not None}
    recall = {name: value for name, value in measured.items() if name.startswith("recall_")}
    return {"overall": overall, "recall": recall, "rows": {_in_words(k): v for k, v in (overall | recall).items()}}


def _verified(
    folder: Path, scores: dict[str, dict[str, float]], evaluation: dict[str, Any], data: dict[str, Any] | None
) -> bool:
    """Whether evaluation.json is of these files and of the run's data, and has the run's numbers again."""
    files, measured = digests(folder), evaluation.get("files", {})
    if (
        not evaluation
        or not same_data(data, evaluation["data"])
        or any(measured.get(name) != digest for name, digest in files.items())
    ):
        return False
    ran = scores["overall"] | scores["recall"]
    return bool(ran) and all(nearly_equal(evaluation["scores"].get(name, -1), value) for name, value in ran.items())


def nearly_equal(measured: float, claimed: float, tolerance: float = EQUAL) -> bool:
    """Whether two numbers are equal up to a tolerance, relative where the claimed one is over 1, as a perplexity is."""
    return abs(measured - claimed) <= tolerance * max(1.0, abs(claimed))


def same_data(recorded: dict[str, Any] | None, measured: dict[str, Any]) -> bool:
    """Whether two descriptions of a split's data mean the same: the same file by its hash, or the same source."""
    if not recorded or recorded.get("rows") != measured.get("rows"):
        return False
    key = "sha256" if "sha256" in recorded or "sha256" in measured else "source"
    return recorded.get(key) == measured.get(key)


def _seeds(seeds: dict[str, Any]) -> dict[str, Any]:
    """seeds.json as a table: per metric, mean ± standard deviation of this recipe and of its twin."""
    if not seeds:
        return {}
    columns = [seeds["this"], seeds["twin"]]
    metrics = [name for name in columns[0]["scores"] if all(name in column["scores"] for column in columns)]
    rows = {_in_words(name): [seed_spread(column["scores"][name]) for column in columns] for name in metrics}
    names = [column["name"] for column in columns]
    return {"names": names, "count": len(seeds["seeds"]), "note": seeds.get("note"), "rows": rows}


def _in_words(metric: str) -> str:
    name = metric.removeprefix("recall_")
    if name != metric:
        return f"recall of {name}".replace("|", r"\|")  # a bar would end the table's cell
    return name.replace("_f1", "-F1").replace("_", " ")


def seed_spread(values: list[float], digits: int = 4) -> str:
    """Mean ± standard deviation, or the only value, with so many digits behind the point."""
    numbers = [mean(values), stdev(values)] if len(values) > 1 else values
    return " ± ".join(f"{number:.{digits}f}" for number in numbers)


def _circumstances(run: dict[str, Any]) -> dict[str, str]:
    """Where and how the run ran, in words."""
    machine, facts = run.get("hardware", {}), {}
    if "seed" in run:
        facts["seed"] = str(run["seed"])
    if machine:
        gpus = "".join(f", {gpu}" for gpu in machine.get("gpus", []))
        facts["hardware"] = f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads{gpus}"
    if "world_size" in run:
        facts["processes"] = str(run["world_size"])
    if "duration_seconds" in run:
        resumed = f" (since it was resumed from {run['resumed_from']})" if run.get("resumed_from") else ""
        facts["duration"] = f"{run['duration_seconds']:g} s{resumed}"
    if "versions" in run:
        facts["versions"] = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    return facts


def _metadata(facts: dict[str, Any]) -> ModelCardData:
    """The card's YAML block, with the measured numbers as a model index."""
    pipeline, task, recipe, overall = (
        PIPELINES.get(facts["auto_class"]),
        TASKS.get(facts["auto_class"]),
        facts["recipe"],
        facts["scores"]["overall"],
    )
    source = facts["data"].get(facts["split"], {}).get("source")
    measured = [
        EvalResult(
            task_type=task,
            dataset_type=source,  # a file may be another selection than the data set that a recipe names
            dataset_name=source,
            dataset_split=facts["split"],
            metric_type=METRICS[name],
            metric_name=name,
            metric_value=value,
        )
        for name, value in overall.items()
        if task and source and METRICS[name]
    ]
    signed = facts["activation"] == "tanhmax" and any(all_masses(facts["negative_mass"]))
    return ModelCardData(
        model_name=facts["name"],
        # weights that came from elsewhere keep the licence that they came with, which no file here says
        license=recipe.get("license") or ("apache-2.0" if facts["started_from"] == "scratch" else None),
        library_name="sentence-transformers" if facts["makes_sentence_vectors"] else "transformers",
        pipeline_tag="sentence-similarity" if facts["makes_sentence_vectors"] else pipeline,
        # a folder of this machine is nothing that the Hub could link to
        base_model=recipe.get("base_model")
        or (recipe.get("model_name_or_path") if facts["started_from"] == "hub" else None),
        tags=[*(["tanhmax", "signed-attention"] if signed else []), "hf_bidir"],
        metrics=[METRICS[name] for name in overall if METRICS[name]] or None,
        eval_results=measured or None,
    )


def merge_cards(written: ModelCard, generated: ModelCard) -> ModelCard:
    """The written card with its generated part, and the metadata that a run decides, renewed."""
    before, marker, rest = written.text.partition(BEGIN)
    after = rest.partition(END)[2]
    # the generated card may be one that a person has written around as well: only the part between its markers counts
    part = f"{BEGIN}{generated.text.partition(BEGIN)[2].partition(END)[0]}{END}"
    text = f"{before}{part}{after}" if marker else f"{written.text.rstrip()}\n\n{part}\n"
    theirs, ours = written.data.to_dict(), generated.data.to_dict()
    kept = {key: value for key, value in theirs.items() if key not in ours or key in KEPT_WHEN_EDITED}
    data = ModelCardData(**(ours | kept))
    return ModelCard(f"---\n{data.to_yaml()}\n---\n{text}")
