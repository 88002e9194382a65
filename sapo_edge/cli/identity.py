"""`sapo identity`: show, backup, restore."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path

from sapo_edge.cli.output import narrate, print_json
from sapo_edge.errors import ConfigError, StateError, StateLockedError
from sapo_edge.plain import line
from sapo_edge.state.durable import reported, write_atomically
from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import Paths
from sapo_edge.state.secret import read_secret, write_secret

PASSPHRASE_VARIABLE = "SAPO_EDGE_PASSPHRASE"
"""Environment variable that holds the passphrase of a backup, for scripts."""


def run_show(home: Path | None, *, as_json: bool) -> None:
    """Print who this node is; nothing of it is secret."""
    paths = Paths.default(home)
    _tell(paths, _existing(paths), as_json=as_json)


def run_backup(home: Path | None, file: Path, *, force: bool) -> None:
    """Write the secret into a file, encrypted with a passphrase."""
    from sapo_edge.swarm.joining.identity import Identity, backup

    paths = Paths.default(home)
    secret = _existing(paths)
    if file.exists() and not force:
        raise StateError(f"{file} exists", "name another file, or give --force to replace it")
    data = backup(secret, _new_passphrase())
    with reported("write the backup", file):
        if file.exists():
            # The new file takes the old one's mode.
            file.chmod(0o600)
        write_atomically(file, data)
    print(file)
    narrate(f"holds {Identity.from_secret(secret).peer_id}, encrypted; without the passphrase it is worth nothing")


def run_restore(home: Path | None, file: Path, *, force: bool, as_json: bool) -> None:
    """Take the identity of a backup."""
    from sapo_edge.swarm.joining.identity import MAX_BACKUP_BYTES, restore

    paths = Paths.default(home)
    with reported("read the backup", file), file.open("rb") as opened:
        data = opened.read(MAX_BACKUP_BYTES + 1)
    paths.create()
    lock = StateLock(paths.lock)
    try:
        lock.acquire()
    except StateLockedError as error:
        raise StateLockedError("a node runs with this state directory", "stop it first, with `sapo stop`") from error
    try:
        if paths.identity.exists() and not force:
            raise StateError(
                f"{paths.identity} holds an identity already",
                "back it up with `sapo identity backup`, then give --force to replace it",
            )
        secret = restore(data, _passphrase("passphrase: "))
        write_secret(paths.identity, secret)
    finally:
        lock.release()
    _tell(paths, secret, as_json=as_json)


def _existing(paths: Paths) -> bytes:
    if not paths.identity.exists():
        raise StateError("this node has no identity yet", "it is made by the first `sapo run`")
    return read_secret(paths.identity)


def _tell(paths: Paths, secret: bytes, *, as_json: bool) -> None:
    from sapo_edge.swarm.joining.identity import Identity, readable_name

    identity = Identity.from_secret(secret)
    record = {
        "name": readable_name(identity.peer_id), "peer_id": identity.peer_id,
        "public_key": identity.public_key.hex(), "path": str(paths.identity),
    }  # fmt: skip
    if as_json:
        print_json(record)
        return
    for name, value in record.items():
        print(line(name.replace("_", " "), value))


def _new_passphrase() -> str:
    from sapo_edge.swarm.joining.identity import MIN_PASSPHRASE_CHARACTERS

    given = os.environ.get(PASSPHRASE_VARIABLE)
    passphrase = given if given else _typed("new passphrase: ")
    if len(passphrase) < MIN_PASSPHRASE_CHARACTERS:
        # Before it is asked for a second time.
        raise ConfigError("the passphrase is too short", f"take at least {MIN_PASSPHRASE_CHARACTERS} characters")
    if not given and _typed("the same again: ") != passphrase:
        raise ConfigError("the two passphrases differ", "run the same command again")
    return passphrase


def _passphrase(prompt: str) -> str:
    return os.environ.get(PASSPHRASE_VARIABLE) or _typed(prompt)


def _typed(prompt: str) -> str:
    # Never from a pipe: it would be echoed, and a second question would read what is meant for something else.
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError("there is no terminal to ask for the passphrase", f"set {PASSPHRASE_VARIABLE}")
    try:
        return getpass.getpass(prompt, sys.stderr)
    except EOFError as error:
        raise ConfigError("no passphrase was given", "run the same command again") from error
