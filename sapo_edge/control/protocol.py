"""The protocol of the control socket: bounded JSON lines, with a version.

The server greets with `{"v": 1, "hello": "sapo-edge", ...}`. A client sends `{"id", "method", "params"}` and gets
`{"id", "result"}` or `{"id", "error"}`. After `subscribe`, `{"event": {...}}` lines come in between. See
`docs/interface.md`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sapo_edge.errors import SapoError, StateError
from sapo_edge.state.durable import make_private_directory, replace_file, reported
from sapo_edge.state.paths import Paths

VERSION = 1
"""Version of the protocol, in the server's first line."""
MAX_REQUEST_BYTES = 64 * 1024
MAX_REPLY_BYTES = 1024 * 1024
"""Longest line from the server."""
MAX_SOCKET_PATH = 103
"""Longest path of a Unix socket, bytes: 103 on macOS, 107 on Linux."""
PRODUCT = "sapo-edge"
"""The product's name in the server's first line."""

_SOCKET = "control.sock"
_POINTER = "control.path"


class ControlError(SapoError):
    """A request to a running node failed, or the other program is not a node of this version.

    Attributes:
        code: "bad_request", "unknown_method", "refused", "failed", "too_large", "busy", "slow" or "version".
    """

    def __init__(self, message: str, remedy: str, code: str = "failed") -> None:
        super().__init__(message, remedy)
        self.code = code

    def as_dict(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message, "remedy": self.remedy}


def encode(message: Mapping[str, Any]) -> bytes:
    """Encode a message as one line of ASCII JSON; a ValueError or TypeError if JSON can't represent it."""
    return json.dumps(message, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Decode a line; a ControlError with code "bad_request" if it is not a JSON object."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ControlError("a line is not JSON", "send one JSON object per line", "bad_request") from error
    if not isinstance(message, dict):
        raise ControlError("a line is not a JSON object", "send one JSON object per line", "bad_request")
    return message


def socket_path(paths: Paths) -> Path:
    """The socket's path for clients of the node that uses `paths`; the socket may not exist."""
    direct = paths.runtime / _SOCKET
    if _fits(direct):
        return direct
    try:
        with (paths.runtime / _POINTER).open("rb") as file:
            return Path(os.fsdecode(file.read(4096).strip()))
    except OSError:
        return _short_path(direct)


def claim_socket_path(paths: Paths) -> Path:
    """The socket's path for a server: in the runtime directory or, if that path is too long, in a temporary directory.

    A file in the runtime directory tells clients the path, since their temporary directory may differ.
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
    replace_file(paths.runtime / _POINTER, os.fsencode(short))
    return short


def check_private(directory: Path) -> None:
    """Check that only this user can enter a directory: anyone can create one in a place like /tmp."""
    with reported("look at", directory):
        status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise StateError(f"{directory} is not a directory of this user", "remove it, or set TMPDIR to another place")
    if status.st_mode & 0o077:
        raise StateError(f"other users can enter {directory}", f"run `chmod 700 {shlex.quote(str(directory))}`")


def same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end belongs to this user or root; always True outside of Linux."""
    if sys.platform != "linux":
        # The directory's mode already keeps other users out.
        return True
    # Process, user and group; the last two have no sign.
    peer = struct.Struct("iII")
    _, user, _ = peer.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, peer.size))
    return user in (os.geteuid(), 0)


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= MAX_SOCKET_PATH


def _short_path(direct: Path) -> Path:
    name = hashlib.sha256(os.fsencode(direct)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"sapo-edge-{os.geteuid()}" / name / _SOCKET
