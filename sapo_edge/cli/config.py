"""`sapo config` and `sapo paths`: the settings, and where files are kept."""

from __future__ import annotations

from typing import Annotated

import typer

from sapo_edge.cli.options import Home, Json
from sapo_edge.cli.output import narrate, print_json
from sapo_edge.cli.usage import CommandGroup
from sapo_edge.cli.workspace import open_workspace, storable
from sapo_edge.state.paths import Paths

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, help="Show, change and check the settings.")


@app.command()
def show(home: Home = None, json: Json = False) -> None:
    """Show every setting with its value and where that comes from."""
    rows = open_workspace(home).resolved.rows()
    if json:
        print_json({"settings": {name: {"value": value, "source": source} for name, value, source, _ in rows}})
        return
    for name, value, source, _ in rows:
        print(f"{name:18} {value!s:14} {source}")


@app.command("set")
def set_setting(name: str, value: Annotated[str | None, typer.Argument()] = None, home: Home = None) -> None:
    """Write a setting into config.toml; without a value, remove it."""
    from sapo_edge.config.layers import set_value

    paths = Paths.default(home)
    stored = None if value is None else storable(name, value)
    set_value(paths.config_file, name, stored)
    print(paths.config_file)
    if stored != value:
        narrate(f"{name} = {stored}: an absolute path, so that it is found from every directory")


@app.command()
def validate(home: Home = None) -> None:
    """Check config.toml, the environment and the manifest that they name."""
    print(f"{open_workspace(home).paths.config_file}: valid")


def paths(home: Home = None, json: Json = False) -> None:
    """Show where settings, state and derived files are kept."""
    directories = Paths.default(home)
    names = ("config_file", "state", "checkpoints", "journal", "identity", "log", "cache", "runtime")
    places = {name.removesuffix("_file"): str(getattr(directories, name)) for name in names}
    if json:
        print_json(places)
        return
    for name, path in places.items():
        print(f"{name:12} {path}")
