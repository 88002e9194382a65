"""The node's secret: 32 random bytes, the seed of its Ed25519 key in a swarm."""

from __future__ import annotations

import hashlib
import secrets
import shlex
from pathlib import Path

from sapo_edge.errors import StateError
from sapo_edge.state.durable import reported, write_atomically

SECRET_BYTES = 32


def read_or_create_secret(path: Path) -> bytes:
    """Read the secret in `path`, hexadecimal text; the first call creates it with mode 0600.

    The caller holds the lock of the directory, or two processes could create two.
    """
    with reported("create the identity", path):
        if not path.exists():
            write_atomically(path, f"{secrets.token_hex(SECRET_BYTES)}\n".encode("ascii"))
    return read_secret(path)


def read_secret(path: Path) -> bytes:
    try:
        secret = bytes.fromhex(read_private("identity", path, 4 * SECRET_BYTES).decode("ascii"))
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise StateError(
            f"the identity {path} does not hold {SECRET_BYTES} bytes of hexadecimal text",
            "restore it from a backup, or move it away to start as a new node",
        )
    return secret


def write_secret(path: Path, secret: bytes) -> None:
    """Replace the identity by `secret`, completely or not at all, with mode 0600; a ValueError for another length."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    write_private("identity", path, secret.hex().encode("ascii") + b"\n")


def read_private(what: str, path: Path, limit: int) -> bytes:
    """At most so many bytes of a file that must be its owner's alone; a StateError if others may read it."""
    with reported(f"read the {what}", path):
        mode = path.stat().st_mode
        with path.open("rb") as file:
            content = file.read(limit)
    if mode & 0o077:
        raise StateError(
            f"other users may read the {what} {path} (mode {mode & 0o777:04o})",
            f"run `chmod 600 {shlex.quote(str(path))}`",
        )
    return content


def write_private(what: str, path: Path, content: bytes) -> None:
    """Replace a file by another one that is its owner's alone, completely or not at all."""
    with reported(f"write the {what}", path):
        if path.exists():
            # The new file takes the old one's mode.
            path.chmod(0o600)
        write_atomically(path, content)


def seed_from_secret(secret: bytes) -> int:
    """The node's task seed, 0 to 2**63 - 1. It is public and reveals nothing about the secret."""
    digest = hashlib.sha256(b"sapo-edge task seed\0" + secret).digest()
    return int.from_bytes(digest[:8], "big") >> 1
