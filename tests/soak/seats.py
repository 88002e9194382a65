"""The places of a soak: a home and a machine of its own each, in which processes live one after the other."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import psutil

from sapo_edge.control.client import connect
from sapo_edge.errors import SapoError
from sapo_edge.state.paths import Paths
from sapo_edge.state.secret import read_or_create_secret
from sapo_edge.swarm.joining.identity import Identity
from tests.swarm.lines import ROOT
from tests.swarm.namespaces import Namespaces, name
from tests.undisturbed import UNDISTURBED

PORT = 4001
# At this learning rate updates are made, but all nodes go on guessing: none ends with answers that are all alike.
SETTINGS = {
    "own": 4, "external": 4, "answers": 8, "threads": 1, "rank": 2, "held_out": 0, "evaluate_every": 0, "warmup": 0,
    "learning_rate": 1e-6, "port": PORT, "mdns": "off",
}  # fmt: skip
ENVIRONMENT = {**UNDISTURBED, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "SAPO_EDGE_NETWORK": "swarm"}


@dataclass
class Life:
    """One process of a seat; `asked` is the signal by which it was asked to end, 0 for none."""

    number: int
    process: subprocess.Popen[bytes]
    begun: float
    asked: int = 0
    code: int | None = None


@dataclass
class Seat:
    """A home, and who lives there, oldest first; the name is that of the namespace, too."""

    secret: ClassVar = "identity"
    """Name of the file of its identity."""
    name: str
    host: str
    home: Path
    bootstrap: tuple[str, ...] = ()
    lives: list[Life] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        # Stdout and stderr of all lives.
        self.events_file, self.errors_file = self.home / "events.jsonl", self.home / "stderr"
        self.paths.create()
        self.peer_id = Identity(read_or_create_secret(self.paths.state / self.secret)).peer_id

    @property
    def paths(self) -> Paths:
        return Paths.default(self.home)

    @property
    def address(self) -> str:
        return f"/ip4/{self.host}/tcp/{PORT}/p2p/{self.peer_id}"

    @property
    def life(self) -> Life | None:
        return self.lives[-1] if self.lives and self.lives[-1].code is None else None

    def command(self) -> list[str]:
        settings = {**SETTINGS, "bootstrap": ",".join(self.bootstrap)}
        files = [f"--model={self.home.parent / 'tiny.gguf'}", f"--manifest={self.home.parent / 'manifest.toml'}"]
        values = [f"--set={key}={value}" for key, value in settings.items()]
        return ["-m", "tests.soak.node", "run", "--json", f"--home={self.home}", *files, *values]

    def start(self) -> Life:
        number = len(self.lives) + 1
        with self.events_file.open("ab") as out, self.errors_file.open("ab") as errors:
            # A killed process may have left half a line.
            out.write(b"\n")
            process = subprocess.Popen(
                ["ip", "netns", "exec", name(self.name), sys.executable, *self.command()],
                stdin=subprocess.DEVNULL, stdout=out, stderr=errors, cwd=ROOT,
                env={**os.environ, **ENVIRONMENT},
            )  # fmt: skip
        life = Life(number, process, time.time())
        self.lives.append(life)
        return life

    def end(self, number: signal.Signals) -> None:
        if life := self.life:
            life.asked = number
            life.process.send_signal(number)

    def ready_since(self) -> float:
        """When its last process began to work, Unix seconds; infinite before. From then on it ends in order."""
        started = read_events(self.events_file, ("node_started",)) if self.lives else []
        ready = bool(started) and started[-1]["time"] > self.lives[-1].begun
        return float(started[-1]["time"]) if ready else math.inf

    def look(self) -> Life | None:
        """The process that ended since the last look."""
        life = self.life
        if life is None or life.process.poll() is None:
            return None
        life.code = life.process.returncode
        return life

    def request(self, method: str) -> Any:
        """A reply on the control socket; None from a node that does not answer (yet)."""
        try:
            with connect(self.paths) as client:
                return client.request(method)
        except (SapoError, OSError):
            return None

    def measure(self) -> dict[str, Any] | None:
        life = self.life
        if life is None:
            return None
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(life.process.pid)
            memory, times = process.memory_full_info(), process.cpu_times()
            return {
                "seat": self.name, "life": life.number, "pid": life.process.pid,
                "age": round(time.time() - life.begun, 1), "rss": memory.rss, "pss": memory.pss, "uss": memory.uss,
                "files": process.num_fds(), "threads": process.num_threads(),
                "processor": round(times.user + times.system, 2),
            }  # fmt: skip
        return None

    def swarm(self) -> dict[str, Any]:
        """What its node says about itself and its swarm; empty if it does not answer."""
        status = self.request("status")
        if not isinstance(status, dict) or not status.get("swarm"):
            return {}
        swarm = status["swarm"]
        return {
            "round": status["round"], "external": status["external"], "informative": status["informative"],
            "pool": status["pool"]["rollouts"], "peers": len(swarm["peers"]),
            **{key: swarm[key] for key in ("rollouts_in", "rollouts_out", "restarts", "faults")},
            "rejections": sum(swarm["rejections"].values()), "rejected": swarm["rejections"], "counts": swarm["counts"],
        }  # fmt: skip


class Relay(Seat):
    secret = "relay-identity"

    def command(self) -> list[str]:
        return ["-m", "sapo_edge", "relay", "--json", f"--home={self.home}", "--port", str(PORT)]

    def swarm(self) -> dict[str, Any]:
        """A relay has no control socket."""
        return {}


def read_events(path: Path, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """What all lives of a seat said of these names, in order; half a line of a killed process is left out."""
    events = []
    for line in path.read_text(errors="replace").splitlines():
        if any(f'"event": "{name}"' in line or f'"event":"{name}"' in line for name in names):
            with contextlib.suppress(json.JSONDecodeError):
                events.append(json.loads(line))
    return events


def settle(lab: Namespaces, part: str, number: int) -> str:
    """Make a machine in a network of its own, and return its IP address."""
    host = f"5.5.{number}.1"
    lab.add(part)
    lab.attach(part, "eth0")
    lab.address(part, "eth0", f"{host}/16")
    return host
