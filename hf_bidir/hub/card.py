"""The model card of a checkpoint, built only from the files of its run."""

import json
import logging
import os
import re
from difflib import unified_diff
from functools import cache
from pathlib import Path
from shlex import quote
from typing import Any

import transformers
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Template

from hf_bidir.checkpoints.adapters import Adapter, read_adapter
from hf_bidir.checkpoints.kinds import BY_AUTO_CLASS, kind_of
from hf_bidir.checkpoints.reading import read_config
from hf_bidir.common.card import CARD, read_card, rounded
from hf_bidir.common.files import CARDS, RECORD, read_json, replacing
from hf_bidir.finetune.output_folder import MAY_CHANGE
from hf_bidir.finetune.record import PLACE
from hf_bidir.hub.card_numbers import (
    METRICS,
    add_later_measurement,
    in_words,
    is_of_these_files,
    is_reproduced,
    overall,
    run_scores,
)
from hf_bidir.modeling.activations import WITH_NEGATIVE_MASS
from hf_bidir.modeling.configuration_bidir import all_masses

logger = logging.getLogger(__name__)

TEMPLATE = Path(__file__).with_name("card_template.md")
BEGIN = "<!-- hf_bidir: generated from here; write above or below, not inside -->"
END = "<!-- hf_bidir: generated up to here -->"
EXAMPLE_IMAGE, CURVE = "example.png", "loss_curve.png"
PROCESSORS = {
    "processor_config.json": "AutoProcessor",
    "tokenizer_config.json": "AutoTokenizer",
    "preprocessor_config.json": "AutoImageProcessor",
}
TEXT_EXAMPLES = {  # tasks whose example the template has, if there is a tokenizer
    "text-classification", "token-classification", "text-generation", "fill-mask", "text2text-generation",
}  # fmt: skip
FIGURES = {
    "explanation.png": "Contributions to the prediction, with this checkpoint and with its counterpart on one colour "
    "scale: red supports the prediction, blue opposes it",
    "attention.png": "What supports (red) and opposes (blue) the prediction of which it is least sure",
    CURVE: "Loss during training",
}
PAPERS = {  # what a checkpoint may use beside TanhMax -> reference and link; the Hub makes a tag of a link to arXiv
    "lora": ("Hu et al. 2021", "https://arxiv.org/abs/2106.09685"),
    "bahdanau": ("Bahdanau, Cho, Bengio 2014", "https://arxiv.org/abs/1409.0473"),
    "luong": ("Luong, Pham, Manning 2015", "https://arxiv.org/abs/1508.04025"),
}
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
SOURCE = re.compile(r'^source, revision = "([^"]+)", "([^"]+)"', re.MULTILINE)  # in the card's example
KEPT_WHEN_EDITED = ("license", "tags", "base_model_relation")  # generated metadata that manual edits override
NOT_SETTINGS = {"output_dir", "train_file", "validation_file", "test_file"}  # the card describes the data instead


def build_model_card(folder: str | Path, repo_id: str | None = None, revision: str | None = None) -> ModelCard:
    """Build the card of a finished run; `build_model_card(folder).save(folder / "README.md")` saves it.

    Numbers missing in the run's files are left out. In an existing README.md only the part between the markers is
    replaced; hand-written text and metadata are kept.

    Args:
        folder: has config.json, or an adapter whose base can be read; for a finished run also run.json and
            all_results.json, and optionally evaluation.json.
        repo_id, revision: the Hub repository in the example; by default that of the existing README.md.

    Raises:
        FileNotFoundError: `folder` has neither a config.json nor an adapter, or the adapter's base cannot be read.
        ValueError: the adapter names no base model, or one that is not signed; or README.md cannot be read.
    """
    folder = Path(folder)
    readme = folder / CARD
    if not (folder / "config.json").is_file() and read_adapter(folder) is None:
        raise FileNotFoundError(f"expected a checkpoint folder with a config.json; {folder} has none")
    existing = read_card(readme) if readme.is_file() else None
    if repo_id is None and existing and (named := SOURCE.search(existing.text)):
        repo_id, revision = named.groups()
    known = existing.data.get("model_name") if existing else None  # the folder may have been renamed
    name = repo_id.rpartition("/")[2] if repo_id else known or folder.resolve().name
    facts = _facts(folder) | {"name": name, "repo_id": repo_id, "revision": revision or "main"}
    facts["committed"] = f"{CARDS}/{name}" if facts["in_clone"] else None
    metadata = _metadata(facts)
    card = ModelCard(_template().render(metadata.to_dict() | facts, card_data=metadata.to_yaml()))
    card.text = f"\n{BEGIN}\n{card.text.strip()}\n{END}\n"
    return merge_cards(existing, card) if existing else card


@cache
def _template() -> Template:
    """The template, compiled once, which takes longer than filling it in."""
    return Template(TEMPLATE.read_text(encoding="utf-8"))


def write_card(folder: str | Path, repo_id: str | None = None, revision: str | None = None) -> Path:
    """Save `build_model_card` of the same arguments as README.md, atomically; warn if the card has no licence."""
    card = build_model_card(folder, repo_id, revision)
    with replacing(Path(folder, CARD)) as temporary:
        temporary.write_text(str(card), encoding="utf-8")
    if repo_id is not None and card.data.get("license") is None:
        logger.warning(
            "The card of %s names no licence; add a line such as `license: apache-2.0` to the header of README.md%s.",
            repo_id,
            ", or give the training script --license" if Path(folder, RECORD).is_file() else "",
        )
    return Path(folder, CARD)


def card_differences(folder: str | Path) -> list[str]:
    """The lines in which README.md differs from `build_model_card` of the run's files, as a diff; none if equal.

    Raises:
        FileNotFoundError: there is no card, or no checkpoint.
    """
    readme = Path(folder, CARD)
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"expected a checkpoint folder at {folder}; there is none.")
    if not readme.is_file():
        raise FileNotFoundError(f"{folder} has no README.md to check; hf-bidir card {folder} writes one.")
    expected, existing = str(build_model_card(folder)), readme.read_text(encoding="utf-8")
    return [*unified_diff(existing.splitlines(), expected.splitlines(), CARD, "results", lineterm="", n=0)]


def merge_cards(existing: ModelCard, generated: ModelCard) -> ModelCard:
    """The existing card with its generated part and generated metadata replaced."""
    before, marker, rest = existing.text.partition(BEGIN)
    after = rest.partition(END)[2]
    # the generated card may have manual edits too: only the part between its markers counts
    part = f"{BEGIN}{generated.text.partition(BEGIN)[2].partition(END)[0]}{END}"
    text = f"{before}{part}{after}" if marker else f"{existing.text.rstrip()}\n\n{part}\n"
    theirs, ours = existing.data.to_dict(), generated.data.to_dict()
    kept = {key: value for key, value in theirs.items() if key not in ours or key in KEPT_WHEN_EDITED}
    return ModelCard(f"---\n{ModelCardData(**(ours | kept)).to_yaml()}\n---\n{text}")


def _facts(folder: Path) -> dict[str, Any]:
    """The values for the template; None or empty if the run did not record them."""
    names = ("run", "all_results", "evaluation", "previous_run")
    run, results, evaluation, previous = (read_json(folder / f"{name}.json") for name in names)
    adapter, data = read_adapter(folder), run.setdefault("data", {})
    config = read_config(folder).to_dict() if adapter else read_json(folder / "config.json")
    architecture = (config.get("architectures") or ["model"])[0]
    stock = architecture.removeprefix("Bidir")
    is_current = is_of_these_files(folder, evaluation)
    measured_later = is_current and add_later_measurement(run, results, evaluation)
    split = "test" if any(name.startswith("test_") for name in results) else "validation"
    scores = run_scores(results, split)
    reproduced = is_reproduced(scores, evaluation, data.get(split))
    recipe = _recipe(run, previous)
    activation, mass = config.get("attn_activation"), config.get("attn_negative_mass")
    # the project's own examples run in the root folder of a clone
    root = folder.resolve().parents[1] if folder.resolve().parent.name == CARDS else None
    base_name, has_code = None, "auto_map" in config and any(folder.glob("*.py"))
    if adapter:
        base, on_hub = adapter.base, not Path(adapter.base).exists()
        base_name = base if on_hub else os.path.relpath(base, root or folder)
        has_code = on_hub or any(Path(base).glob("*.py"))
    return {
        **{"run": run, "previous": previous, "evaluation": evaluation, "measured": results},
        **_example(folder, config, architecture),
        "architecture": architecture,
        "stock_architecture": stock if stock != architecture and hasattr(transformers, stock) else None,
        "is_stock": activation is None,
        "activation": activation,
        "negative_mass": mass,
        "signed": activation in WITH_NEGATIVE_MASS and any(all_masses(mass)),
        "adapter": adapter,
        "base_name": base_name,
        "base_model": _base_model(adapter, run, previous),
        "relation": "adapter" if adapter else "quantized" if config.get("quantization_config") else "finetune",
        "papers": [PAPERS[name] for name in ("lora" * bool(adapter), config.get("decoder_style")) if name in PAPERS],
        "in_clone": root is not None,
        "split": split,
        "scores": scores,
        "results": {in_words(name): rounded(value) for name, value in scores.items()},
        "unrecognised": [
            name.removeprefix("recall_") for name, value in scores.items() if value == 0 and name not in METRICS
        ],
        "command": _command(run.get("script"), recipe),
        "measured_on": _measured_on(run, split),
        "verified": reproduced and is_current,
        "reproduced": reproduced,
        "measured_later": measured_later,
        "has_generation_config": (folder / "generation_config.json").is_file(),
        "snippets": run.get("task") == "distillation" and (folder / "tokenizer_config.json").is_file(),
        "needed_signs": _needed_signs(folder, run),
        "has_weights": any(folder.glob("*.safetensors")),
        "figures": _figures(folder, results),
        "curve": CURVE,
        "has_code": has_code,
        "recipe": recipe,
        "not_settings": NOT_SETTINGS,
        "place": PLACE,
    }


def _recipe(run: dict[str, Any], previous: dict[str, Any]) -> dict[str, Any]:
    """The options of a run that somebody who repeats it needs.

    A folder of weights that no run of ours made goes by its name on the Hub.
    """
    recipe = run.get("recipe", {})
    options = {name: value for name, value in recipe.items() if name not in MAY_CHANGE - {"output_dir"}}
    if recipe.get("base_model") and not previous:
        options["model_name_or_path"] = recipe["base_model"]
    return options


def _command(script: str | None, recipe: dict[str, Any]) -> str | None:
    """The command that repeats a run of a training script; None if no script was recorded."""
    if not script:
        return None
    options = [
        " ".join([f"--{name}", *(quote(_word(part)) for part in (value if isinstance(value, list) else [value]))])
        for name, value in recipe.items()
        if value is not None
    ]
    return " \\\n    ".join([f"python training/{script}", *options])


def _word(value: Any) -> str:
    """A value as the Trainer's parser reads it."""
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _example(folder: Path, config: dict[str, Any], architecture: str) -> dict[str, Any]:
    """What the Python example depends on: the Auto classes of the model and of its processor, and the task."""
    autos = [auto for auto, path in config.get("auto_map", {}).items() if path.endswith(f".{architecture}")]
    autos = autos or [kind_of(architecture).auto]  # a stock config lists none
    auto_class = next((auto for auto in autos if auto in BY_AUTO_CLASS), autos[0])
    processor = next((auto for file, auto in PROCESSORS.items() if (folder / file).is_file()), None)
    kind = BY_AUTO_CLASS.get(auto_class)
    shown = TEXT_EXAMPLES if processor == "AutoTokenizer" else {"image-classification"} if processor else set()
    example = kind.task if kind and kind.task in shown else None
    return {
        "auto_class": auto_class,
        "kind": kind,
        "processor": processor,
        "problem_type": config.get("problem_type"),
        "example": example,
        "shows_coefficients": example not in (None, "text2text-generation"),
        "has_example_image": (folder / EXAMPLE_IMAGE).is_file(),
        "makes_sentence_vectors": (folder / "modules.json").is_file(),
    }


def _figures(folder: Path, results: dict[str, Any]) -> dict[str, str]:
    """The pictures in the folder, with their captions."""
    found = {file: caption for file, caption in FIGURES.items() if (folder / file).is_file()}
    if CURVE in found and "eval_accuracy" in results:
        found[CURVE] += ", and validation accuracy"
    return found


def _needed_signs(folder: Path, run: dict[str, Any]) -> bool:
    """Whether a penalty of healing asked for negative coefficients without which predictions change."""
    keep_signs = run.get("recipe", {}).get("keep_signs")
    if keep_signs is None:  # a run before the record had it: unless the model generates text
        keep_signs = not (folder / "generation_config.json").is_file()
    return run.get("task") == "distillation" and keep_signs


def _base_model(adapter: Adapter | None, *runs: dict[str, Any]) -> str | None:
    """The model on the Hub that the weights, or those of an earlier run, come from; None for a local folder."""
    if adapter:
        return None if Path(adapter.base).exists() else adapter.base
    for run in runs:
        recipe, on_hub = run.get("recipe", {}), run.get("started_from") == "hub"
        if named := recipe.get("base_model") or (recipe.get("model_name_or_path") if on_hub else None):
            return named
    return None


def _data_set(part: dict[str, Any]) -> str | None:
    """The data set on the Hub: the one in the record, or the source if it is no file."""
    source = part.get("source", "")
    return part.get("hub_name") or (source if "sha256" not in part and HUB_NAME.fullmatch(source) else None)


def _measured_on(run: dict[str, Any], split: str) -> str:
    """The data of the scores of a run; empty if the run has no such split."""
    part, size = run["data"].get(split), run.get("recipe", {}).get("block_size")
    if not part:
        return ""
    blocks = f"{part['rows']:,} blocks of {size} tokens from the " if size else ""
    return blocks + (part.get("title") or part.get("source", "not named"))


def _metadata(facts: dict[str, Any]) -> ModelCardData:
    """The card's YAML block, with the measured numbers as a model index."""
    run, previous, adapter, signed = facts["run"], facts["previous"], facts["adapter"], facts["signed"]
    # the data of an adapter's base are on the card of the base
    parts = [*run["data"].values(), *({} if adapter else previous.get("data", {})).values()]
    data_sets = list(dict.fromkeys(filter(None, map(_data_set, parts))))
    languages = sorted({part["language"] for part in parts if part.get("language")})
    task = "sentence-similarity" if facts["makes_sentence_vectors"] else facts["kind"] and facts["kind"].pipeline
    library = "sentence-transformers" if facts["makes_sentence_vectors"] else "peft" if adapter else "transformers"
    return ModelCardData(
        model_name=facts["name"],
        # only the owner can license weights, so the licence comes from this run's options or the run before it
        license=run.get("recipe", {}).get("license") or previous.get("recipe", {}).get("license"),
        language=languages[0] if len(languages) == 1 else languages or None,
        library_name=library,
        pipeline_tag=task,
        base_model=facts["base_model"],
        base_model_relation=facts["relation"] if facts["base_model"] else None,
        datasets=data_sets or None,
        tags=[*([facts["activation"], "signed-attention"] * signed), *(["lora"] * bool(adapter)), "hf_bidir"],
        metrics=[metric for name in overall(facts["scores"]) if (metric := METRICS[name])] or None,
        eval_results=_model_index(facts) or None,
    )


def _model_index(facts: dict[str, Any]) -> list[EvalResult]:
    """The overall metrics that have a name on the Hub."""
    part = facts["run"]["data"].get(facts["split"], {})
    if not facts["kind"] or not part.get("source"):
        return []
    where = {
        "task_type": facts["kind"].task,
        "dataset_type": _data_set(part) or part["source"],
        "dataset_name": facts["measured_on"],
        "dataset_split": facts["split"],
    }
    return [
        EvalResult(**where, metric_type=METRICS[name], metric_name=name, metric_value=value)
        for name, value in overall(facts["scores"]).items()
        if METRICS[name]
    ]
