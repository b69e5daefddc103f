"""`hf-bidir models`: the project's checkpoints with their scores."""

from typing import Annotated

import typer

from hf_bidir.cli.app import app, one_line_errors


@app.command()
def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    on_hub: Annotated[
        bool, typer.Option("--hub", help="List the checkpoints on the Hub even in a clone of the repository.")
    ] = False,
    namespace: Annotated[str | None, typer.Option(help="Hub account, by default the project's; implies --hub.")] = None,
) -> None:
    """List the project's checkpoints with their scores.

    Columns: task, data, score (mean ± standard deviation over seeds), size, local weights. In a clone of the repository
    the list comes from model_cards/, elsewhere from the Hub.

    \b
    hf-bidir models
    hf-bidir models --json
    """
    from hf_bidir.hub import published

    folder = None if on_hub or namespace else published.clone_folder()
    namespace = namespace or published.NAMESPACE
    with one_line_errors():
        found = published.local_models(folder) if folder else published.hub_models(namespace)
    if as_json:
        typer.echo(published.as_json(found))
        return
    if not found:
        typer.echo(f"{namespace} has published no checkpoints on the Hub.")
        return
    typer.echo(published.table(found))
    if folder:
        typer.echo(
            f"\nLoad one by its path, such as {found[0].source}; its card is README.md there. Where weights are not "
            "local (–), `make checkpoints` trains them."
        )
