"""What the node and its clients say to each other on the control socket: JSON lines, versioned, bounded.

The server greets with `{"v": 1, "hello": "sapo-edge", ...}`. A client sends `{"id", "method", "params"}` and gets
`{"id", "result"}` or `{"id", "error"}`. After `subscribe`, lines `{"event": {...}}` come in between. `docs/control.md`
documents it.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sapo_edge.errors import SapoError, StateError
from sapo_edge.state.durable import make_private_directory, reported, write_atomically
from sapo_edge.state.paths import Paths

VERSION = 1
"""Version of the protocol, in the server's first line."""
MAX_REQUEST_BYTES = 64 * 1024
"""Longest line that a client may send."""
MAX_REPLY_BYTES = 1024 * 1024
"""Longest line that a server sends."""
MAX_SOCKET_PATH = 103
"""Longest path of a Unix socket in bytes: macOS takes 103, Linux 107."""
PRODUCT = "sapo-edge"
"""What the first line says that this is."""

_SOCKET = "control.sock"
_POINTER = "control.path"


class ControlError(SapoError):
    """A request to a running node failed, or what answers is no node of this version.

    Attributes:
        code: "bad_request", "unknown_method", "refused", "failed", "too_large", "busy", "slow" or "version".
    """

    def __init__(self, message: str, remedy: str, code: str = "failed") -> None:
        super().__init__(message, remedy)
        self.code = code

    def as_dict(self) -> dict[str, str]:
        """The error as it travels."""
        return {"code": self.code, "message": self.message, "remedy": self.remedy}


def encode(message: Mapping[str, Any]) -> bytes:
    """A message as one line of ASCII JSON with its line end.

    Raises:
        ValueError, TypeError: if it holds what JSON does not.
    """
    return json.dumps(message, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """The message that a line holds.

    Raises:
        ControlError: with code "bad_request" if it is no JSON object.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ControlError("a line is not JSON", "send one JSON object a line", "bad_request") from error
    if not isinstance(message, dict):
        raise ControlError("a line is not a JSON object", "send one JSON object a line", "bad_request")
    return message


def socket_path(paths: Paths) -> Path:
    """Where a client finds the socket of the node that uses `paths`; there need not be one."""
    direct = paths.runtime / _SOCKET
    if _fits(direct):
        return direct
    try:
        with (paths.runtime / _POINTER).open("rb") as file:
            return Path(os.fsdecode(file.read(4096).strip()))
    except OSError:
        return _short_path(direct)


def claim_socket_path(paths: Paths) -> Path:
    """Where a server makes its socket: in the runtime directory, or in a short one of this user's if that is too deep.

    Clients read from a file in the runtime directory which it is: their temporary directory may be another one.

    Raises:
        StateError: if a directory can't be made, or somebody else owns the short one.
    """
    make_private_directory(paths.runtime)
    direct = paths.runtime / _SOCKET
    if _fits(direct):
        return direct
    short = _short_path(direct)
    for directory in (short.parent.parent, short.parent):
        make_private_directory(directory)
        check_private(directory)
    if not _fits(short):
        raise StateError(f"the path {short} is too long for a socket", "set TMPDIR to a shorter directory")
    with reported("write", paths.runtime / _POINTER):
        write_atomically(paths.runtime / _POINTER, os.fsencode(short))
    return short


def check_private(directory: Path) -> None:
    """Make sure that a directory belongs to this user alone; a world-writable place like /tmp may hold a trap.

    Raises:
        StateError: if it doesn't, or is a symbolic link.
    """
    with reported("look at", directory):
        found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or (hasattr(os, "geteuid") and found.st_uid != os.geteuid()):
        raise StateError(f"{directory} is not a directory of this user", "remove it, or set TMPDIR to another place")
    if found.st_mode & 0o077:
        raise StateError(f"others may enter {directory}", f"run `chmod 700 {directory}`")


def same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end belongs to this user or to root; True where the platform doesn't tell."""
    if sys.platform != "linux":
        # The directory's mode already keeps others out.
        return True
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return user in (os.geteuid(), 0)


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= MAX_SOCKET_PATH


def _short_path(direct: Path) -> Path:
    name = hashlib.sha256(os.fsencode(direct)).hexdigest()[:16]
    user = os.geteuid() if hasattr(os, "geteuid") else 0
    return Path(tempfile.gettempdir()) / f"sapo-edge-{user}" / name / _SOCKET
