"""The model card of a checkpoint, built only from the files in its folder."""

import os
from difflib import unified_diff
from pathlib import Path

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from hf_bidir.checkpoints.adapters import Adapter
from hf_bidir.checkpoints.kinds import BY_AUTO_CLASS, Kind
from hf_bidir.checkpoints.reading import Checkpoint, open_checkpoint
from hf_bidir.checkpoints.timm_vit import TIMM_PREFIX
from hf_bidir.common.card import CARD, read_card, rounded
from hf_bidir.common.files import PREVIOUS, Json, read_json, replacing
from hf_bidir.finetune.output_folder import MAY_CHANGE
from hf_bidir.finetune.record import FEW, PLACE
from hf_bidir.modeling.configuration_bidir import is_softmax

from .files import matching
from .results import METRICS, Results, in_words, read_results

TEMPLATE = str(Path(__file__).with_name("card_template.md"))
BEGIN = "<!-- hf_bidir: generated from here; write above or below, not inside -->"
END = "<!-- hf_bidir: generated up to here -->"
KEPT_WHEN_EDITED = ("license", "tags", "base_model_relation")  # generated metadata that manual edits override


def build_model_card(
    folder: str | Path,
    repo_id: str | None = None,
    revision: str = "main",
    *,
    base: str | Path | None = None,
) -> ModelCard:
    """Build the card of a checkpoint; `build_model_card(folder).save(folder / "README.md")` saves it.

    Numbers that no file has are left out. In an existing README.md only the part between the markers is replaced;
    hand-written text and metadata are kept.

    Args:
        folder: a checkpoint, whose scores are in all_results.json and evaluation.json, its training in run.json.
        repo_id, revision: the Hub repository in the example; by default it loads the folder of the card.
        base: of an adapter, as in `open_checkpoint`.

    Raises:
        FileNotFoundError: `folder` has neither a config.json nor an adapter, or the adapter's base cannot be read.
        ValueError: the adapter's base, as in `open_checkpoint`; or README.md cannot be read.
    """
    folder = Path(folder)
    facts = _facts(folder, open_checkpoint(folder, base=base), read_results(folder))
    name = repo_id or folder.resolve().name
    facts["name"] = name.rpartition("/")[2]
    card = ModelCard.from_template(
        _metadata(facts), TEMPLATE, **facts, repo_id=repo_id, revision=revision, begin=BEGIN, end=END
    )
    readme = folder / CARD
    return merge_cards(read_card(readme), card) if readme.is_file() else card


def write_card(
    folder: str | Path,
    repo_id: str | None = None,
    revision: str = "main",
    *,
    base: str | Path | None = None,
) -> Path:
    """Save `build_model_card` of the same arguments as README.md, atomically."""
    readme = Path(folder, CARD)
    card = build_model_card(folder, repo_id, revision, base=base)
    with replacing(readme) as temporary:
        card.save(temporary)
    return readme


def card_differences(folder: str | Path, *, base: str | Path | None = None) -> list[str]:
    """The lines in which README.md differs from `build_model_card` of the arguments, as a diff; none if equal."""
    expected = str(build_model_card(folder, base=base))
    existing = Path(folder, CARD).read_text(encoding="utf-8")
    lines = existing.splitlines(), expected.splitlines()
    return list(unified_diff(*lines, CARD, "results", lineterm="", n=0))


def merge_cards(existing: ModelCard, generated: ModelCard) -> ModelCard:
    """The existing card with its generated part and generated metadata replaced."""
    before, marker, rest = existing.text.partition(BEGIN)
    after = rest.partition(END)[2]
    # the generated card may have manual edits too: only the part between its markers counts
    part = f"{BEGIN}{generated.text.partition(BEGIN)[2].partition(END)[0]}{END}"
    text = f"{before}{part}{after}" if marker else f"{existing.text.rstrip()}\n\n{part}\n"
    ours, theirs = generated.data.to_dict(), existing.data.to_dict()
    for key, value in theirs.items():
        if key not in ours or key in KEPT_WHEN_EDITED:
            ours[key] = value
    return ModelCard(f"---\n{ModelCardData(**ours).to_yaml()}\n---\n{text}")


def _facts(folder: Path, checkpoint: Checkpoint, results: Results) -> Json:
    """The values for the template and the metadata, beside the name and the place on the Hub."""
    config, adapter, run = checkpoint.config, checkpoint.adapter, results.run
    previous = read_json(folder / PREVIOUS)
    origin = {} if adapter else previous  # the data of a base are on its card
    recipe = dict(run.get("recipe", {}))
    base = adapter.base if adapter else None
    code = Path(adapter.place if adapter else folder)  # of the model; that of an adapter comes with its base
    if base and code.exists():
        base = os.path.relpath(code, folder)
    if recipe.get("base_model") and not origin:
        recipe["model_name_or_path"] = recipe["base_model"]
    return {
        "run": run,
        "previous": previous,
        "results": results,
        "scores": {in_words(name): rounded(value) for name, value in results.scores.items()},
        "config": config,
        "auto_class": checkpoint.auto_class,
        "kind": BY_AUTO_CLASS.get(checkpoint.auto_class),
        "is_signed": checkpoint.is_signed and not is_softmax(config),
        "adapter": adapter,
        "base": base,
        "base_model": _base_model(adapter, run, origin),
        "sentences": checkpoint.sentences,
        "files": matching(folder, ("*",)),
        "has_weights": any(folder.glob("*.safetensors")),
        "has_code": not code.exists() or any(code.glob("*.py")),
        "licences": _licences(run, origin),
        "recipe": _as_yaml(recipe),
        "few": FEW,
    }


def _as_yaml(options: Json) -> str:
    """Options of a run as a recipe of the training scripts; empty without any."""
    chosen = {name: value for name, value in options.items() if name not in MAY_CHANGE and value is not None}
    if not chosen:
        return ""
    return yaml.safe_dump(chosen, sort_keys=False, allow_unicode=True).strip()


def _licences(run: Json, previous: Json) -> dict[str, str | None]:
    """The licence of the training data of a run and of the run before it, by name; None where the record has none."""
    parts = [record["data"]["train"] for record in (previous, run) if "train" in record.get("data", {})]
    licences: dict[str, str | None] = {}
    for part in parts:
        name = _data_set(part) or part.get("title") or part["source"]
        licences |= part.get("licenses") or {name: part.get("license")}
    return licences


def _base_model(adapter: Adapter | None, *runs: Json) -> str | None:
    """The model on the Hub that the weights, or those of an earlier run, come from; None for a local folder."""
    if adapter and not Path(adapter.place).exists():
        return adapter.base
    for run in runs:
        recipe = run.get("recipe", {})
        source = recipe.get("base_model", recipe.get("model_name_or_path"))
        if source and not source.startswith((PLACE, TIMM_PREFIX)):
            return source
    return None


def _data_set(part: Json) -> str | None:
    """The data set on the Hub: the one in the record, or the source if it is no file."""
    source = part.get("source", "")
    is_name = "/" in source and "sha256" not in part
    return part.get("hub_name") or (source if is_name else None)


def _metadata(facts: Json) -> ModelCardData:
    """The card's YAML block, with the measured numbers as a model index."""
    run, previous, adapter, results = facts["run"], facts["previous"], facts["adapter"], facts["results"]
    parts = list(run["data"].values())
    if not adapter:  # the data of its base are on the card of the base
        parts += previous.get("data", {}).values()
    data_sets = {name: None for name in map(_data_set, parts) if name}
    languages = sorted({part["language"] for part in parts if "language" in part})
    # only the owner can license weights, so the licence comes from this run's options or the run before it
    licences = [record.get("recipe", {}).get("license") for record in (run, previous)]
    index = _model_index(facts["kind"], results)
    task = facts["kind"] and facts["kind"].task
    library, relation = "transformers", "finetune"
    tags = [facts["config"].attn_activation, "signed-attention"] if facts["is_signed"] else []
    if facts["sentences"]:
        task, library = "sentence-similarity", "sentence-transformers"
    if hasattr(facts["config"], "quantization_config"):
        relation = "quantized"
    if adapter:
        library, relation = "peft", "adapter"
        tags.append("lora")
    return ModelCardData(
        model_name=facts["name"],
        license=licences[0] or licences[1],
        language=languages[0] if len(languages) == 1 else languages or None,
        library_name=library,
        pipeline_tag=task,
        base_model=facts["base_model"],
        base_model_relation=facts["base_model"] and relation,
        datasets=list(data_sets) or None,
        tags=[*tags, "hf_bidir"],
        metrics=[result.metric_type for result in index] or None,
        eval_results=index or None,
    )


def _model_index(kind: Kind | None, results: Results) -> list[EvalResult]:
    """The overall metrics that have a name on the Hub."""
    source = results.data.get("source")
    if not kind or not source:
        return []
    title = results.data.get("title") or source
    index = []
    for name, value in results.overall.items():
        if METRICS[name]:
            result = EvalResult(
                task_type=kind.task,
                dataset_type=_data_set(results.data) or (title if "sha256" in results.data else source),
                dataset_name=title,
                dataset_split=results.split,
                metric_type=METRICS[name],
                metric_name=name,
                metric_value=value,
            )
            index.append(result)
    return index
