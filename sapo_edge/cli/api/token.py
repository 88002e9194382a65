"""The token that programs show to `sapo api`: made once, readable by its owner alone."""

from __future__ import annotations

import hmac
import os
import secrets
import shlex
from pathlib import Path

from sapo_edge.errors import StateError
from sapo_edge.state.durable import make_private_directory, reported, write_atomically

PREFIX = "sapo-"
MAX_BYTES = 256
"""Longest token that is read."""


def read_or_make(path: Path) -> str:
    """The token in a file; the first call makes it."""
    with reported("read the token", path):
        exists = path.exists()
    return read(path) if exists else make(path)


def make(path: Path) -> str:
    """A new token in the place of the old one, which is worth nothing from now on."""
    token = PREFIX + secrets.token_urlsafe(32)
    make_private_directory(path.parent)
    with reported("write the token", path):
        # A file that is replaced keeps its mode; a new one is its owner's alone.
        path.unlink(missing_ok=True)
        write_atomically(path, f"{token}\n".encode("ascii"))
        path.chmod(0o600)
    return token


def read(path: Path) -> str:
    """The token in a file.

    Raises:
        StateError: if others may read it, or it holds none.
    """
    with reported("read the token", path):
        mode = path.stat().st_mode
        with path.open("rb") as file:
            content = file.read(MAX_BYTES)
    if os.name != "nt" and mode & 0o077:
        raise StateError(
            f"other users may read the token {path} (mode {mode & 0o777:04o})",
            f"make a new one with `sapo api --new-token`, or run `chmod 600 {shlex.quote(str(path))}`",
        )
    token = content.decode("ascii", "replace").strip()
    if not token.startswith(PREFIX) or len(token) < 32:
        raise StateError(f"{path} holds no token", "make a new one with `sapo api --new-token`")
    return token


def is_shown(header: str, token: str) -> bool:
    """Whether an Authorization header shows the token; takes the same time for all wrong ones."""
    kind, _, shown = header.partition(" ")
    return kind.lower() == "bearer" and hmac.compare_digest(os.fsencode(shown.strip()), token.encode())
