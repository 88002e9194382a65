"""The ports that a node had before it stopped: with the same ones, invites and the router's forwarding stay valid."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
from pathlib import Path

from sapo_edge.fields import check_integer, check_map, check_text
from sapo_edge.state.durable import read_bounded, write_atomically
from sapo_edge.swarm.addresses import may_dial_port
from sapo_edge.swarm.router.portmap import NONCE_BYTES

MAX_FILE_BYTES = 512


class Ports:
    """Ports of this node, remembered in a JSON file, if any. One that can't be read, or isn't written, counts as none.

    Attributes:
        port: TCP port at which the node listened last; 0 if that is not known.
        external: port that the router forwarded to it; 0 if it forwarded none.
        nonce: in hexadecimal, PCP's secret: a router lets nobody without it change a mapping that still lasts.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self.port = self.external = 0
        self.nonce = secrets.token_bytes(NONCE_BYTES).hex()
        if file is not None:
            with contextlib.suppress(OSError, ValueError):
                self._load(file)

    def _load(self, file: Path) -> None:
        fields = check_map("ports", json.loads(read_bounded(file, MAX_FILE_BYTES)))
        port = check_integer("port", fields.get("port"))
        external = check_integer("external", fields.get("external"), 0, 65535)
        nonce = check_text("nonce", fields.get("nonce"))
        if not may_dial_port(port) or len(bytes.fromhex(nonce)) != NONCE_BYTES:
            raise ValueError("a port that nobody dials, or a nonce of another length")
        self.port, self.external, self.nonce = port, external, nonce

    def mark_listening(self, port: int) -> None:
        if port != self.port:
            self.port, self.external = port, 0
            self._save()

    def mark_forwarded(self, external: int) -> None:
        if external != self.external:
            self.external = external
            self._save()

    def _save(self) -> None:
        if self._file is None:
            return
        record = {"port": self.port, "external": self.external, "nonce": self.nonce}
        # A full disk is reported by what matters more: journal and checkpoints.
        with contextlib.suppress(OSError):
            write_atomically(self._file, json.dumps(record).encode())


def try_port(port: int, host: str = "0.0.0.0") -> None:
    """Check that a program could listen on a TCP port now; OSError if not."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        trial.bind((host, port))
