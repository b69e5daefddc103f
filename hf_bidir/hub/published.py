"""The list of the project's checkpoints, from a clone or from the Hub."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.hf_api import RepoFile

import hf_bidir
from hf_bidir.common.files import read_json
from hf_bidir.hub import known_data
from hf_bidir.hub.card_numbers import add_later_measurement, overall, run_scores
from hf_bidir.hub.snippet import CARDS

NAMESPACE = "hf-bidir"  # the project's account on the Hub
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def repo_name(name: str, namespace: str = NAMESPACE) -> str:
    """The Hub name of one of the project's checkpoints."""
    return f"{namespace}/{name}"


@dataclass(frozen=True)
class Listed:
    """One checkpoint of the list.

    Attributes:
        data: the data of the score.
        metric: the first metric of the card; its mean over seeds, standard deviation (None for one seed), number of
            seeds, and the value of this checkpoint.
        megabytes: size of the weights; estimated from the number of parameters if there are no weights.
        has_weights: whether the weights are in this clone.
        source: folder or Hub name for `from_pretrained`.
    """

    name: str
    task: str
    data: str
    metric: str | None
    mean: float | None
    deviation: float | None
    seeds: int
    checkpoint: float | None
    parameters: int
    megabytes: float
    has_weights: bool
    source: str

    @property
    def score(self) -> str:
        if self.metric is None:
            return "–"
        spread = "" if self.deviation is None else f" ± {self.deviation:.4f}"
        return f"{self.metric.replace('_', ' ')} {self.mean:.4f}{spread} ({self.seeds})"


def clone_folder() -> Path | None:
    """model_cards/ of the clone around this package or the current folder; None without a clone."""
    folders = [place / CARDS for place in (Path(hf_bidir.__file__).parents[1], Path.cwd())]
    return next((folder for folder in folders if any(folder.glob("*/run.json"))), None)


def local_models(folder: Path) -> list[Listed]:
    """The checkpoints in the sub-folders of `folder`, by name."""
    cards = sorted(file.parent for file in folder.glob("*/run.json"))
    return [_read(card, card.name, str(_from_here(card)), _size_of_weights(card)) for card in cards]


def _from_here(path: Path) -> Path:
    """The path relative to the current folder if it lies there, else the absolute one: either loads."""
    path = path.resolve()
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def hub_models(namespace: str = NAMESPACE) -> list[Listed]:
    """The checkpoints that an account published with `hf-bidir push`, by name, without downloading weights.

    Raises:
        OSError: the Hub cannot be reached.
    """
    api = HfApi(library_name="hf_bidir")
    try:
        return [_fetch(api, model.id) for model in sorted(api.list_models(author=namespace), key=lambda one: one.id)]
    except (HfHubHTTPError, OSError, RuntimeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise OSError(
            f"the Hub did not list the models of {namespace} ({reason}); check the connection, or run the command in a "
            f"clone, which has {CARDS}/."
        ) from error


def table(models: list[Listed]) -> str:
    """The list for people."""
    header = ["name", "task", "score (seeds)", "MB", "weights", "data"]
    rows = [
        [one.name, one.task, one.score, f"{one.megabytes:.1f}", "local" if one.has_weights else "–", one.data]
        for one in models
    ]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [header, *rows]]
    return "\n".join(line.rstrip() for line in lines)


def as_json(models: list[Listed]) -> str:
    """The list for scripts."""
    return json.dumps([asdict(one) for one in models], indent=2, ensure_ascii=False)


def _fetch(api: HfApi, repo_id: str) -> Listed:
    folder = Path(snapshot_download(repo_id, allow_patterns=["*.json"], ignore_patterns=["*/*", "tokenizer*.json"]))
    files = api.list_repo_tree(repo_id)
    size = sum(file.size for file in files if isinstance(file, RepoFile) and file.path.endswith(".safetensors"))
    return _read(folder, repo_id.partition("/")[2], repo_id, size, has_weights=False)


def _read(folder: Path, name: str, source: str, size: int, has_weights: bool | None = None) -> Listed:
    run, config = read_json(folder / "run.json"), read_json(folder / "config.json")
    results, seeds = read_json(folder / "all_results.json"), read_json(folder / "seeds.json")
    add_later_measurement(run, results, read_json(folder / "evaluation.json"))
    split = "test" if any(key.startswith("test_") for key in results) else "validation"
    scores = overall(run_scores(results, split))
    metric = next(iter(scores), None)
    values = seeds.get("this", {}).get("scores", {}).get(metric, [scores[metric]] if metric else [])
    parameters = run.get("num_parameters", 0)
    return Listed(
        name=name,
        task=task_of(run, read_json(folder / "previous_run.json")),
        data=known_data.measured_on(run, split),
        metric=metric,
        mean=mean(values) if values else None,
        deviation=stdev(values) if len(values) > 1 else None,
        seeds=len(values),
        checkpoint=scores[metric] if metric else None,
        parameters=parameters,
        megabytes=round((size or parameters * BYTES.get(str(config.get("dtype")), 4)) / 1e6, 1),
        has_weights=bool(size) if has_weights is None else has_weights,
        source=source,
    )


def task_of(run: dict[str, Any], previous: dict[str, Any]) -> str:
    """The task of a checkpoint; a healed one has that of its teacher."""
    healed = run.get("task") == "distillation"
    return (previous if healed else run).get("task") or run.get("task", "–")


def _size_of_weights(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))
