"""`sapo config` and `sapo paths`: the settings, and where files are kept."""

from __future__ import annotations

import os
import shlex
import subprocess
from typing import Annotated

import typer

from sapo_edge.cli.options import Home, Json
from sapo_edge.cli.output import emit
from sapo_edge.cli.workspace import open_workspace
from sapo_edge.errors import ConfigError, StateError
from sapo_edge.library.workspace import storable
from sapo_edge.plain import narrate
from sapo_edge.state.durable import make_private_directory, reported, write_atomically
from sapo_edge.state.paths import Paths

app = typer.Typer(no_args_is_help=True, help="Show, change and check the settings.")


@app.command()
def show(home: Home = None, json: Json = False) -> None:
    """Show every setting with its value and where that comes from."""
    rows = open_workspace(home, needs_manifest=False).resolved.rows()
    record = {"settings": {name: {"value": value, "source": source} for name, value, source, _ in rows}}
    emit(record, (f"{name:18} {value!s:14} {source}" for name, value, source, _ in rows), json)


@app.command()
def get(name: str, home: Home = None) -> None:
    """Print the value of one setting, for scripts."""
    from sapo_edge.config.layers import check_names

    name = name.replace("-", "_")
    check_names([name], "command line")
    value = open_workspace(home, needs_manifest=False).settings.as_dict()[name]
    print("" if value is None else value)


@app.command()
def edit(home: Home = None) -> None:
    """Edit config.toml with VISUAL or EDITOR; a version with a mistake is not put in place."""
    from sapo_edge.config.layers import resolve

    file = Paths.default(home).config_file
    make_private_directory(file.parent)
    draft = file.with_name("config.draft.toml")
    # A draft that was refused is edited further, unless it would undo what was changed since.
    with reported("edit", file):
        if draft.exists() and file.exists() and draft.stat().st_mtime < file.stat().st_mtime:
            older = draft.replace(draft.with_suffix(".old"))
            narrate(f"{file} has changed since your last text, which is in {older} now")
        if not draft.exists():
            write_atomically(draft, file.read_bytes() if file.exists() else b"")
    command = _editor()
    try:
        ended = subprocess.run([*command, str(draft)], check=False).returncode
    except OSError as error:
        raise ConfigError(f"can't run {command[0]}: {error.strerror}", "set EDITOR to an editor") from error
    if ended:
        raise StateError(f"{command[0]} ended with code {ended}", f"your text is in {draft}")
    try:
        resolve(file=draft)
    except ConfigError as error:
        remedy = f"{error.remedy}; your text is kept for the next `sapo config edit`"
        raise ConfigError(error.message, remedy) from error
    with reported("write", file):
        write_atomically(file, draft.read_bytes(), mode=0o644)
        draft.unlink()
    print(file)


def _editor() -> list[str]:
    named = [os.environ.get(name, "") for name in ("VISUAL", "EDITOR")]
    try:
        return next((words for text in named if (words := shlex.split(text))), ["vi"])
    except ValueError as error:
        raise ConfigError(f"VISUAL or EDITOR can't be read: {error}", "set EDITOR to an editor") from error


@app.command("set")
def set_setting(name: str, value: Annotated[str | None, typer.Argument()] = None, home: Home = None) -> None:
    """Write a setting into config.toml; without a value, remove it."""
    from sapo_edge.config.layers import set_values

    paths = Paths.default(home)
    stored = None if value is None else storable(name, value)
    set_values(paths.config_file, {name: stored})
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
    emit(places, (f"{name:12} {path}" for name, path in places.items()), json)
