"""The commands about this machine, with their options; what they do loads when called."""

from __future__ import annotations

from typing import Annotated

import typer

from sapo_edge.cli.options import Home, Json, ManifestOption, Model, Set


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command()(bench)


def bench(
    backend: Annotated[
        list[str] | None, typer.Option("--backend", help="Measure this one; repeatable. Without it, all that run here.")
    ] = None,
    model: Model = None,
    manifest: ManifestOption = None,
    repeats: Annotated[int, typer.Option(min=1, max=100, help="Rounds of each.")] = 3,
    threads: Annotated[int | None, typer.Option(help="Processor threads.")] = None,
    settings: Set = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Measure this machine: sampling, updates and memory of each backend. Takes minutes."""
    from sapo_edge.cli.bench import run_bench
    from sapo_edge.cli.workspace import open_workspace

    workspace = open_workspace(home, {"model": model, "manifest": manifest, "threads": threads}, settings)
    raise typer.Exit(run_bench(workspace, backend or [], repeats=repeats, as_json=json))
