"""The model card of a finished run, built only from the files of the run."""

import logging
import os
import re
from difflib import unified_diff
from pathlib import Path
from statistics import mean
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from hf_bidir.checkpoints.adapters import Adapter, read_adapter
from hf_bidir.checkpoints.kinds import BY_AUTO_CLASS, NO_HEAD
from hf_bidir.checkpoints.reading import read_config
from hf_bidir.common.card import read_card
from hf_bidir.common.files import read_json, replacing
from hf_bidir.common.statistics import TESTED_BY_SEED
from hf_bidir.hub import known_data
from hf_bidir.hub.card_numbers import (
    METRICS,
    add_later_measurement,
    headline,
    is_of_these_files,
    is_reproduced,
    overall,
    results_table,
    run_scores,
    seed_count,
)
from hf_bidir.hub.checkpoint_files import CODE, digests
from hf_bidir.hub.snippet import CARDS, EXAMPLE_IMAGE, Checkpoint, snippet
from hf_bidir.modeling.activations import WITH_NEGATIVE_MASS
from hf_bidir.modeling.configuration_bidir import all_masses

logger = logging.getLogger(__name__)

TEMPLATE = Path(__file__).with_name("card_template.md")
BEGIN = "<!-- hf_bidir: generated from here; write above or below, not inside -->"
END = "<!-- hf_bidir: generated up to here -->"
PROCESSORS = {
    "processor_config.json": "AutoProcessor",
    "tokenizer_config.json": "AutoTokenizer",
    "preprocessor_config.json": "AutoImageProcessor",
}
FIGURES = {
    "explanation.png": "Contributions to the prediction, with this checkpoint and with its counterpart on one colour "
    "scale: red supports the prediction, blue opposes it",
    "attention.png": "Signed attention over a few inputs",
    "loss_curve.png": "Loss during training, and validation accuracy where it was measured",
}
# of validation data, shown beside the metrics of a later test
HEALED = ("relative_error", "perplexity", "teacher_perplexity")
SOURCE = re.compile(r'^source, revision = "([^"]+)", "([^"]+)"', re.MULTILINE)  # in the card's example
KEPT_WHEN_EDITED = ("license", "tags")  # generated metadata that manual edits override
NOT_SETTINGS = {"output_dir", "train_file", "validation_file", "test_file"}  # the card describes the data instead


def build_model_card(folder: str | Path, repo_id: str | None = None, revision: str | None = None) -> ModelCard:
    """Build the card of a finished run; `build_model_card(folder).save(folder / "README.md")` saves it.

    Numbers missing in the run's files are left out. In an existing README.md only the part between the markers is
    replaced; hand-written text and metadata are kept.

    Args:
        folder: has config.json, or an adapter whose base can be read; for a finished run also run.json and
            all_results.json, and optionally evaluation.json and seeds.json.
        repo_id, revision: the Hub repository in the example; by default that of the existing README.md.

    Raises:
        FileNotFoundError: `folder` has neither a config.json nor an adapter, or the adapter's base cannot be read.
        ValueError: the adapter names no base model, or one that is not signed; or README.md cannot be read.
    """
    folder, readme = Path(folder), Path(folder, "README.md")
    if not (folder / "config.json").is_file() and read_adapter(folder) is None:
        raise FileNotFoundError(f"expected a checkpoint folder with a config.json; {folder} has none")
    existing = read_card(readme) if readme.is_file() else None
    if repo_id is None and existing and (named := SOURCE.search(existing.text)):
        repo_id, revision = named.groups()
    known = existing.data.get("model_name") if existing else None  # the folder may have been renamed
    name = repo_id.rpartition("/")[2] if repo_id else known or folder.resolve().name
    facts = _facts(folder) | {"name": name, "repo_id": repo_id, "revision": revision or "main"}
    example = _example(folder, facts)
    facts |= {"base_name": example.base, "base_model": _base_model(facts), "snippet": snippet(example)}
    card = ModelCard.from_template(_metadata(facts), template_path=str(TEMPLATE), **facts)
    card.text = f"\n{BEGIN}\n{card.text.strip()}\n{END}\n"
    return merge_cards(existing, card) if existing else card


def write_card(folder: str | Path, repo_id: str | None = None, revision: str | None = None) -> Path:
    """Save `build_model_card` of the same arguments as README.md, atomically; warn if it has no licence."""
    readme = Path(folder, "README.md")
    card = build_model_card(folder, repo_id, revision)
    with replacing(readme) as temporary:
        temporary.write_text(str(card), encoding="utf-8")
    if repo_id is not None and card.data.get("license") is None:
        logger.warning(
            "The card of %s names no licence; add a line such as `license: apache-2.0` to the header of README.md%s.",
            repo_id,
            ", or give the training script --license" if Path(folder, "run.json").is_file() else "",
        )
    return readme


def card_differences(folder: str | Path) -> list[str]:
    """The lines in which README.md differs from `build_model_card` of the run's files, as a diff; none if equal.

    Raises:
        FileNotFoundError: there is no card, or no checkpoint.
    """
    readme = Path(folder, "README.md")
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"expected a checkpoint folder at {folder}; there is none.")
    if not readme.is_file():
        raise FileNotFoundError(f"{folder} has no README.md to check; hf-bidir card {folder} writes one.")
    expected, existing = str(build_model_card(folder)), readme.read_text(encoding="utf-8")
    lines = unified_diff(existing.splitlines(), expected.splitlines(), "README.md", "results", lineterm="", n=0)
    return list(lines)


def _facts(folder: Path) -> dict[str, Any]:
    """The values for the template; None or empty if the run did not record them."""
    files = ("run", "all_results", "evaluation", "seeds", "previous_run")
    run, results, evaluation, seeds, previous = (read_json(folder / f"{name}.json") for name in files)
    adapter = read_adapter(folder)
    config = read_config(folder).to_dict() if adapter else read_json(folder / "config.json")
    architecture = (config.get("architectures") or ["model"])[0]
    autos = [auto for auto, path in config.get("auto_map", {}).items() if path.endswith(f".{architecture}")]
    data = run.setdefault("data", {})
    measured_later = is_of_these_files(folder, evaluation) and add_later_measurement(run, results, evaluation)
    split = "test" if any(name.startswith("test_") for name in results) else "validation"
    scores = run_scores(results, split)
    reproduced = is_reproduced(scores, evaluation, data.get(split))
    return {
        "architecture": architecture,
        "stock_architecture": _stock_architecture(architecture, config),
        "problem_type": config.get("problem_type"),
        "auto_class": next((auto for auto in autos if auto in BY_AUTO_CLASS), autos[0] if autos else NO_HEAD.auto),
        "makes_sentence_vectors": (folder / "modules.json").is_file(),
        "processor_class": next((auto for file, auto in PROCESSORS.items() if (folder / file).is_file()), None),
        "previous": previous | {"data_rows": _data_rows(previous.get("data", {}))} if previous else {},
        "previous_settings": _settings(previous),
        "activation": config.get("attn_activation"),
        "negative_mass": config.get("attn_negative_mass"),
        "signed": config.get("attn_activation") in WITH_NEGATIVE_MASS and any(all_masses(config["attn_negative_mass"])),
        "parameters": run.get("num_parameters"),
        "adapter": adapter,
        "adapter_parameters": run.get("adapter", {}).get("parameters"),
        "data": data,
        "data_rows": _data_rows(data),
        "notes": run.get("notes", []),
        "class_shares": run.get("class_shares", {}),
        "recipe": run.get("recipe", {}),
        "settings": _settings(run),
        "started_from": run.get("started_from"),
        "split": split,
        "chosen": run.get("best_checkpoint"),
        "scores": scores,
        "seeds": seeds,
        "seed": run.get("seed"),
        "headline": headline(scores, seeds, run.get("seed")),
        "results": results_table(scores, seeds, split, run.get("seed")) if scores else [],
        "tested": TESTED_BY_SEED if len(seeds.get("seeds", [])) > 1 else None,
        "measured_on": known_data.measured_on(run, split),
        "verified": reproduced and is_of_these_files(folder, evaluation),
        "reproduced": reproduced,
        "measured_later": measured_later,
        "healed": {name: results.get(f"eval_{name}") for name in HEALED},
        "snippets": run.get("task") == "distillation" and (folder / "tokenizer_config.json").is_file(),
        "needed_signs": _needed_signs(folder, run, config),
        "has_weights": any(folder.glob("*.safetensors")),
        "evaluation": evaluation,
        "sample": run.get("sample"),
        "figures": {file: caption for file, caption in FIGURES.items() if (folder / file).is_file()},
        "run": _circumstances(run),
        "code": digests(folder, CODE),
        "has_code": any(folder.glob("*.py")) if adapter is None else _base_has_code(adapter),
    }


def _needed_signs(folder: Path, run: dict[str, Any], config: dict[str, Any]) -> bool:
    """Whether a penalty of healing asked for negative coefficients without which predictions change."""
    keep_signs = run.get("recipe", {}).get("keep_signs")
    if keep_signs is None:  # the default: unless the model generates text or is recurrent
        recurrent = config["model_type"] == "bidir_rnn"
        keep_signs = not recurrent and not (folder / "generation_config.json").is_file()
    return run.get("task") == "distillation" and keep_signs


def _base_model(facts: dict[str, Any]) -> str | None:
    """The model on the Hub that the weights, or those of an earlier run, come from; None for a local folder."""
    if facts["adapter"]:
        base = facts["adapter"].base
        return None if Path(base).exists() else base
    for run in (facts, facts["previous"]):
        recipe, on_hub = run.get("recipe", {}), run.get("started_from") == "hub"
        if named := recipe.get("base_model") or (recipe.get("model_name_or_path") if on_hub else None):
            return named
    return None


def _example(folder: Path, facts: dict[str, Any]) -> Checkpoint:
    return Checkpoint(
        name=facts["name"],
        auto_class=facts["auto_class"],
        processor_class=facts["processor_class"],
        repo_id=facts["repo_id"],
        revision=facts["revision"],
        committed=folder.resolve().parent.name == CARDS,
        has_code=facts["has_code"],
        has_single_label=facts["problem_type"] in (None, "single_label_classification"),
        digits=facts["recipe"].get("dataset_name") == "digits",
        has_example_image=(folder / EXAMPLE_IMAGE).is_file(),
        makes_sentence_vectors=facts["makes_sentence_vectors"],
        base=_base_in_example(facts["adapter"], folder) if facts["adapter"] else None,
        base_revision=facts["adapter"].revision if facts["adapter"] else None,
        changes=facts["adapter"].changes if facts["adapter"] else {},
        generation=facts["adapter"].generation if facts["adapter"] else {},
    )


def _base_has_code(adapter: Adapter) -> bool:
    """Whether the base model of an adapter has the model code, as every one on the Hub has."""
    return not Path(adapter.base).exists() or any(Path(adapter.base).glob("*.py"))


def _base_in_example(adapter: Adapter, folder: Path) -> str:
    """The Hub name of the base model, or its path from where the example runs: the clone, or the adapter's folder."""
    if not Path(adapter.base).exists():
        return adapter.base
    committed = folder.resolve().parent.name == CARDS
    return os.path.relpath(adapter.base, folder.resolve().parents[1] if committed else folder)


def _stock_architecture(architecture: str, config: dict[str, Any]) -> str | None:
    """The transformers class that a signed class extends; None for recurrent models."""
    name = architecture.removeprefix("Bidir")
    return None if name == architecture or config.get("model_type") == "bidir_rnn" else name


def _settings(run: dict[str, Any]) -> dict[str, str]:
    """The given options of a run, without those that name files."""
    given = {name: value for name, value in run.get("recipe", {}).items() if name not in NOT_SETTINGS}
    return {name: ", ".join(map(str, value)) if isinstance(value, list) else value for name, value in given.items()}


def _data_rows(data: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Name, source, files and number of rows of each split."""
    return [
        [name, known_data.description(part), known_data.files(part), part.get("rows", "")]
        for name, part in data.items()
    ]


def _circumstances(run: dict[str, Any]) -> dict[str, str]:
    """Seed, machine, duration and versions of the run."""
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


def _library(facts: dict[str, Any]) -> str:
    """The library that loads the folder."""
    if facts["makes_sentence_vectors"]:
        return "sentence-transformers"
    return "peft" if facts["adapter"] else "transformers"


def _metadata(facts: dict[str, Any]) -> ModelCardData:
    """The card's YAML block, with the measured numbers as a model index."""
    recipe, previous = facts["recipe"], facts["previous"]
    # the data of an adapter's base are on the card of the base
    parts = [*facts["data"].values(), *({} if facts["adapter"] else previous.get("data", {})).values()]
    used = list(dict.fromkeys(data_set for part in parts for data_set in known_data.data_sets(part)))
    languages = sorted({data_set.language for data_set in used if data_set.language})
    kind = BY_AUTO_CLASS.get(facts["auto_class"])
    return ModelCardData(
        model_name=facts["name"],
        # only the owner can license weights, so the licence comes from this run's options or the run before it
        license=recipe.get("license") or previous.get("recipe", {}).get("license"),
        language=languages[0] if len(languages) == 1 else languages or None,
        library_name=_library(facts),
        pipeline_tag="sentence-similarity" if facts["makes_sentence_vectors"] else kind and kind.pipeline,
        base_model=facts["base_model"],
        base_model_relation="adapter" if facts["adapter"] and facts["base_model"] else None,
        datasets=[data_set.hub_name for data_set in used if data_set.hub_name] or None,
        tags=[
            *([facts["activation"], "signed-attention"] if facts["signed"] else []),
            *(["lora"] if facts["adapter"] else []),
            "hf_bidir",
        ],
        metrics=[metric for name in overall(facts["scores"]) if (metric := METRICS[name])] or None,
        eval_results=_model_index(facts) or None,
    )


def _model_index(facts: dict[str, Any]) -> list[EvalResult]:
    """For each metric, the mean over several seeds and the value of this checkpoint."""
    part, kind, seeds = facts["data"].get(facts["split"], {}), BY_AUTO_CLASS.get(facts["auto_class"]), facts["seeds"]
    if not kind or not part.get("source"):
        return []
    known = known_data.data_sets(part)
    where = {
        "task_type": kind.task,
        # a file may have other rows than the data set in the recipe
        "dataset_type": known[0].hub_name or part["source"] if len(known) == 1 else part["source"],
        "dataset_name": facts["measured_on"],
        "dataset_split": facts["split"],
    }
    found, several = [], len(seeds.get("seeds", [])) > 1
    for name, value in overall(facts["scores"]).items():
        if METRICS[name] is None:
            continue
        metric = where | {"metric_type": METRICS[name]}
        if several and name in seeds["this"]["scores"]:
            average = mean(seeds["this"]["scores"][name])
            found.append(EvalResult(**metric, metric_name=f"{name}, mean of {seed_count(seeds)}", metric_value=average))
        own = f"{name}, this checkpoint (seed {facts['seed']})" if several else name
        found.append(EvalResult(**metric, metric_name=own, metric_value=value))
    return found


def merge_cards(existing: ModelCard, generated: ModelCard) -> ModelCard:
    """The existing card with its generated part and generated metadata replaced."""
    before, marker, rest = existing.text.partition(BEGIN)
    after = rest.partition(END)[2]
    # the generated card may have manual edits too: only the part between its markers counts
    part = f"{BEGIN}{generated.text.partition(BEGIN)[2].partition(END)[0]}{END}"
    text = f"{before}{part}{after}" if marker else f"{existing.text.rstrip()}\n\n{part}\n"
    theirs, ours = existing.data.to_dict(), generated.data.to_dict()
    kept = {key: value for key, value in theirs.items() if key not in ours or key in KEPT_WHEN_EDITED}
    data = ModelCardData(**(ours | kept))
    return ModelCard(f"---\n{data.to_yaml()}\n---\n{text}")
