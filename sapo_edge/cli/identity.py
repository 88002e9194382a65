"""`sapo identity`: show, back up and restore the node's key."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from sapo_edge.cli.options import Home, Json
from sapo_edge.cli.output import emit
from sapo_edge.errors import ConfigError, StateError
from sapo_edge.plain import line, narrate
from sapo_edge.state.durable import reported, write_atomically
from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import Paths
from sapo_edge.state.secret import read_secret, write_secret

PASSPHRASE_VARIABLE = "SAPO_EDGE_PASSPHRASE"
"""Environment variable with the passphrase of a backup, for scripts."""
_ELSEWHERE = "name another file"

app = typer.Typer(no_args_is_help=True, help="Show, back up and restore the node's key.")
Force = Annotated[bool, typer.Option("--force", help="Replace an existing one.")]


@app.command()
def show(home: Home = None, json: Json = False) -> None:
    """Show the node's name, peer id and public key; the secret key is not shown."""
    paths = Paths.default(home)
    _print_identity(paths, _read_existing(paths), as_json=json)


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="Where to write.")], force: Force = False, home: Home = None
) -> None:
    """Write the key into a file, encrypted with a passphrase (asked for, or SAPO_EDGE_PASSPHRASE)."""
    from sapo_edge.swarm.joining.identity import Identity, backup

    secret = _read_existing(Paths.default(home))
    with reported("write the backup", file, _ELSEWHERE):
        if file.exists() and not force:
            raise StateError(f"{file} exists", "name another file, or give --force to replace it")
    data = backup(secret, _new_passphrase())
    with reported("write the backup", file, _ELSEWHERE):
        if file.is_file():
            # The new file takes the old one's mode.
            file.chmod(0o600)
        write_atomically(file, data)
    print(file)
    narrate(f"encrypted key of {Identity(secret).peer_id}; it can't be restored without the passphrase")


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="File that `sapo identity backup` wrote.")],
    force: Force = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Restore the key of a backup."""
    from sapo_edge.swarm.joining.identity import MAX_BACKUP_BYTES, restore

    paths = Paths.default(home)
    with reported("read the backup", file, _ELSEWHERE), file.open("rb") as stream:
        data = stream.read(MAX_BACKUP_BYTES + 1)
    _refuse_existing(paths, force)
    secret = restore(data, _passphrase("passphrase: "))
    paths.create()
    with StateLock(paths.lock):
        _refuse_existing(paths, force)
        write_secret(paths.identity, secret)
    _print_identity(paths, secret, as_json=json)


def _refuse_existing(paths: Paths, force: bool) -> None:
    if paths.identity.exists() and not force:
        remedy = "back it up with `sapo identity backup`, then give --force to replace it"
        raise StateError(f"{paths.identity} holds an identity already", remedy)


def _read_existing(paths: Paths) -> bytes:
    if not paths.identity.exists():
        raise StateError("this node has no identity yet", "the first `sapo run` creates it")
    return read_secret(paths.identity)


def _print_identity(paths: Paths, secret: bytes, *, as_json: bool) -> None:
    from sapo_edge.swarm.joining.identity import Identity, readable_name

    identity = Identity(secret)
    record = {
        "name": readable_name(identity.peer_id), "peer_id": identity.peer_id,
        "public_key": identity.public_key.hex(), "path": str(paths.identity),
    }  # fmt: skip
    emit(record, (line(name.replace("_", " "), value) for name, value in record.items()), as_json)


def _new_passphrase() -> str:
    from sapo_edge.swarm.joining.identity import MIN_PASSPHRASE_CHARACTERS

    passphrase = _passphrase("new passphrase: ")
    if len(passphrase) < MIN_PASSPHRASE_CHARACTERS:
        raise ConfigError("the passphrase is too short", f"use at least {MIN_PASSPHRASE_CHARACTERS} characters")
    if _passphrase("the same again: ") != passphrase:
        raise ConfigError("the two passphrases differ", "run the same command again")
    return passphrase


def _passphrase(prompt: str) -> str:
    if passphrase := os.environ.get(PASSPHRASE_VARIABLE):
        return passphrase
    # Not from a pipe: getpass would echo it.
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError("there is no terminal to ask for the passphrase", f"set {PASSPHRASE_VARIABLE}")
    try:
        return getpass.getpass(prompt, sys.stderr)
    except EOFError as error:
        raise ConfigError("no passphrase was given", "run the same command again") from error
