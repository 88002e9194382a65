"""The token that programs show to `sapo api`: made once, readable by its owner alone."""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

from sapo_edge.errors import StateError
from sapo_edge.state.durable import make_private_directory, reported
from sapo_edge.state.secret import read_private, write_private

PREFIX = "sapo-"
MAX_BYTES = 256
"""Longest token that is read."""


def read_or_make(path: Path) -> str:
    """The token in a file; the first call makes it."""
    with reported("read the token", path):
        return read(path) if path.exists() else make(path)


def make(path: Path) -> str:
    """A new token in the place of the old one, which is worth nothing from now on."""
    token = PREFIX + secrets.token_urlsafe(32)
    make_private_directory(path.parent)
    write_private("token", path, f"{token}\n".encode())
    return token


def read(path: Path) -> str:
    """The token in a file; a StateError if others may read it, or it holds none."""
    token = read_private("token", path, MAX_BYTES).decode("ascii", "replace").strip()
    if not token.startswith(PREFIX) or len(token) < 32:
        raise StateError(f"{path} holds no token", "make a new one with `sapo api --new-token`")
    return token


def is_shown(header: str, token: str) -> bool:
    """Whether an Authorization header shows the token; takes the same time for all wrong ones."""
    kind, _, shown = header.partition(" ")
    return kind.lower() == "bearer" and hmac.compare_digest(os.fsencode(shown.strip()), token.encode())
