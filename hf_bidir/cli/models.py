"""`hf-bidir models`: the project's checkpoints with their scores, from their model cards."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_bidir.cli.app import app, one_line_errors
from hf_bidir.common.errors import first_line
from hf_bidir.common.files import CARDS, RECORD, read_json

NAMESPACE = "hf-bidir"  # the project's account on the Hub
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Listed:
    """One checkpoint of the list."""

    name: str
    task: str
    data: str  # of the score
    metric: str | None  # the first one of the card
    value: float | None
    parameters: int | None  # None where the Hub does not tell
    megabytes: float  # of the weights; estimated from the number of parameters if there are no weights
    has_weights: bool  # whether the weights are in this clone
    source: str  # folder or Hub name for `from_pretrained`

    @property
    def score(self) -> str:
        return "–" if self.metric is None else f"{self.metric.replace('_', ' ')} {self.value:.4f}"


@app.command()
def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    on_hub: Annotated[
        bool, typer.Option("--hub", help="List the checkpoints on the Hub even in a clone of the repository.")
    ] = False,
    namespace: Annotated[str | None, typer.Option(help="Hub account, by default the project's; implies --hub.")] = None,
) -> None:
    """List the project's checkpoints with their scores.

    Columns: task, data, score, size, local weights. In a clone of the repository the list comes from model_cards/,
    elsewhere from the Hub.

    \b
    hf-bidir models
    hf-bidir models --json
    """
    folder = None if on_hub or namespace else clone_folder()
    with one_line_errors():
        listed = local_models(folder) if folder else hub_models(namespace or NAMESPACE)
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in listed], indent=2, ensure_ascii=False))
        return
    if not listed:
        typer.echo(f"{namespace or NAMESPACE} has published no checkpoints on the Hub.")
        return
    rows = [
        [one.name, one.task, one.score, f"{one.megabytes:.1f}", "local" if one.has_weights else "–", one.data]
        for one in listed
    ]
    rows.insert(0, ["name", "task", "score", "MB", "weights", "data"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if folder:
        typer.echo(
            f"\nLoad one by its path, such as {listed[0].source}; its card is README.md there. Where weights are not "
            "local (–), `make checkpoints` trains them."
        )


def clone_folder() -> Path | None:
    """model_cards/ of the clone around this package or the current folder; None without a clone."""
    folders = [place / CARDS for place in (Path(__file__).parents[2], Path.cwd())]
    return next((folder for folder in folders if any(folder.glob(f"*/{RECORD}"))), None)


def local_models(folder: Path) -> list[Listed]:
    """The checkpoints in the sub-folders of `folder`, by name."""
    from hf_bidir.common.card import read_card

    listed = []
    for card in sorted(folder.glob("*/README.md")):
        place, data = card.parent.resolve(), read_card(card).data
        parameters = read_json(place / RECORD).get("num_parameters", 0)
        size = sum(file.stat().st_size for file in place.glob("*.safetensors"))
        each = BYTES.get(str(read_json(place / "config.json").get("dtype")), 4)
        # relative to the current folder if it lies there, else absolute: either loads
        source = place.relative_to(Path.cwd()) if place.is_relative_to(Path.cwd()) else place
        listed.append(_entry(data, place.name, str(source), size or parameters * each, parameters, bool(size)))
    return listed


def hub_models(namespace: str = NAMESPACE) -> list[Listed]:
    """The checkpoints that an account published with `hf-bidir push`, by name; downloads nothing.

    Raises:
        OSError: the Hub cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api, listed = HfApi(library_name="hf_bidir"), []
    try:
        for name in sorted(model.id for model in api.list_models(author=namespace)):
            info = api.model_info(name, files_metadata=True)
            sizes = [file.size or 0 for file in info.siblings or [] if file.rfilename.endswith(".safetensors")]
            parameters = info.safetensors.total if info.safetensors else None
            listed.append(_entry(info.card_data, name.partition("/")[2], name, sum(sizes), parameters, False))
    except (HfHubHTTPError, OSError, RuntimeError) as error:
        raise OSError(
            f"the Hub did not list the models of {namespace} ({first_line(error)}); check the connection, or run the "
            f"command in a clone, which has {CARDS}/."
        ) from error
    return listed


def _entry(card: Any, name: str, source: str, size: int, parameters: int | None, has_weights: bool) -> Listed:
    """A row of the list, with the first metric of the card's model index."""
    weights: dict[str, Any] = {"parameters": parameters, "megabytes": round(size / 1e6, 1), "has_weights": has_weights}
    results: list[Any] = (card and card.eval_results) or []
    if not results:
        task = (card and card.pipeline_tag) or "–"
        return Listed(name=name, source=source, task=task, data="", metric=None, value=None, **weights)
    first = results[0]
    score = {"metric": first.metric_name or first.metric_type, "value": first.metric_value, "data": first.dataset_name}
    return Listed(name=name, source=source, task=first.task_type, **weights, **score)
