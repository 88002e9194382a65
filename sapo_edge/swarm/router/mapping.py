"""The port that the router forwards to this node: asked for, renewed, and removed when the node stops.

A router that doesn't answer costs two seconds of an idle process now and then. What one answers is a claim: its public
address is a voice among those of `finding/outside.py`, and the port is one that peers try.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from ipaddress import IPv4Address
from typing import Any

import trio

from sapo_edge.children import python_command
from sapo_edge.fields import check_integer, check_map, check_text
from sapo_edge.swarm.addresses import is_public, may_dial_port
from sapo_edge.swarm.router.portmap import Answer
from sapo_edge.swarm.router.ports import Ports
from sapo_edge.swarm.router.program import LIFETIME, SECONDS, Task
from sapo_edge.swarm.status import Router
from sapo_edge.swarm.tally import Tally

MAX_OUTPUT = 512
"""Longest answer of the program that is believed; the libraries that it uses bound what it can be."""
RETRY_SECONDS = 900.0
"""Time until a router that did not answer is asked again."""
SHORTEST = 120
"""Shortest lifetime of a mapping that is believed: a router can't keep the node busy with renewals."""
REMOVAL_SECONDS = 3.0
"""Longest wait for the removal of a mapping; the program goes on by itself."""


def read_answer(data: bytes) -> Answer:
    """Check the program's line; ValueError if anything is missing or out of its bounds."""
    if len(data) > MAX_OUTPUT:
        raise ValueError("too long")
    fields = check_map("answer", json.loads(data))
    by, ip = check_text("by", fields.get("by")), check_text("ip", fields.get("ip"))
    port, lifetime = check_integer("port", fields.get("port")), check_integer("lifetime", fields.get("lifetime"))
    if by not in ("pcp", "nat-pmp", "upnp") or not may_dial_port(port):
        raise ValueError("out of bounds")
    is_usable = bool(ip) and is_public(IPv4Address(ip))
    return Answer(port, min(max(lifetime, SHORTEST), LIFETIME), ip if is_usable else "", by)


class Mapping:
    """Keeps a port of the router forwarded to this node.

    Args:
        port: at which this node listens.
        on_address: called with the router's claim about its public address, or "".
        ports: remembers the router's port, which is asked for again.
    """

    def __init__(self, port: int, on_address: Callable[[str], None], tally: Tally, ports: Ports) -> None:
        self.current: Answer | None = None
        self.state: Router = "asking"
        self._port = port
        self._on_address = on_address
        self._due = trio.Event()
        self._tally = tally
        self._ports = ports

    async def run(self) -> None:
        """Work until cancelled, then remove the mapping."""
        try:
            while True:
                await self._renew()
                pause = self.current.lifetime / 2 if self.current else RETRY_SECONDS
                with trio.move_on_after(pause * random.uniform(0.8, 1.0)):
                    await self._due.wait()
        finally:
            if self.current is not None:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + REMOVAL_SECONDS):
                    await trio.to_thread.run_sync(self._remove, self.current, abandon_on_cancel=True)

    @property
    def port(self) -> int:
        """The port at which others reach this node over IPv4."""
        return self.current.port if self.current else self._port

    def renew_soon(self) -> None:
        """Ask again: this machine is on another network now."""
        self.state = "asking"
        self._due.set()

    async def _renew(self) -> None:
        self._due = trio.Event()
        before = self.current
        task = Task(self._port, self._ports.external or self._port, self._ports.nonce)
        try:
            process: Any = await trio.run_process(
                _command(task), capture_stdout=True, stderr=subprocess.DEVNULL, check=False
            )
            self.current = read_answer(process.stdout) if process.returncode == 0 else None
        except (OSError, ValueError):
            self.current = None
        self._on_address(self.current.ip if self.current else "")
        self.state = "forwards" if self.current else "silent"
        if self.current is None:
            self._tally.count("routers that forward no port")
            return
        await trio.to_thread.run_sync(self._ports.mark_forwarded, self.current.port)
        if before is None:
            self._tally.count(f"ports forwarded by {self.current.by}")
            self._tally.notice(
                "info", f"the router forwards TCP port {self.current.port} to this node", "port forwarded"
            )

    def _remove(self, mapped: Answer) -> None:
        task = Task(self._port, mapped.port, self._ports.nonce, mapped.by, remove=True)
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            process = subprocess.Popen(_command(task), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            process.wait(SECONDS + 1)


def _command(task: Task) -> list[str]:
    return python_command("-m", "sapo_edge.swarm.router.program", json.dumps(asdict(task)))
