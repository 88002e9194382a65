"""`sapo backup` and `sapo restore`: everything that a machine can't make again, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sapo_edge.care.signals import tidying
from sapo_edge.cli.options import Home, Json
from sapo_edge.cli.output import print_json
from sapo_edge.errors import StateError
from sapo_edge.plain import counted, format_time, narrate, size
from sapo_edge.state.paths import IDENTITIES, Paths


def backup(
    file: Annotated[Path, typer.Argument(help="A new file, such as sapo.zip.")],
    identity: Annotated[bool, typer.Option("--identity/--no-identity", help="With the node's secret key.")] = True,
    home: Home = None,
    json: Json = False,
) -> None:
    """Write settings, adapters, history and the node's key into one file; the node may run."""
    from sapo_edge.state.archive import write_backup

    paths = Paths.default(home)
    names = ("swarms.json", *IDENTITIES)
    worth_keeping = (paths.journal, paths.config_file, *(paths.state / name for name in names))
    if not any(path.exists() for path in worth_keeping):
        raise StateError(f"there is nothing to back up in {paths.state}", "name the right directory with --home")
    # What is half-written holds the secret key.
    with tidying():
        made = write_backup(paths, file, with_identity=identity)
    if json:
        print_json({"path": str(file), "files": len(made.files), "bytes": made.size, "identity": made.has_identity})
        return
    print(file)
    narrate(f"{counted(len(made.files), 'file')}, {size(made.size)} before compression; models and logs are not in it")
    if made.has_identity:
        narrate("it holds the node's secret key, unencrypted: whoever has the file can be this node. Keep it like a")
        narrate("password, or leave the key out with --no-identity (`sapo identity backup` encrypts it)")
    if "state/swarms.json" in made.files:
        narrate("it holds the keys of private swarms, if you joined any")


def restore(
    file: Annotated[Path, typer.Argument(help="File that `sapo backup` wrote.")], home: Home = None, json: Json = False
) -> None:
    """Put everything of a backup where it belongs; nothing is overwritten."""
    from sapo_edge.state.archive import restore_backup

    paths = Paths.default(home)
    with tidying():
        made = restore_backup(paths, file)
    if json:
        print_json({"path": str(paths.state), "files": len(made.files), "time": made.time, "program": made.program})
        return
    print(paths.state)
    narrate(f"restored {counted(len(made.files), 'file')} of {format_time(made.time)}; `sapo run` continues from there")
    if made.has_identity:
        narrate("let only one machine run with this identity: two of them would take each other's place in a swarm")
