"""Runs a soak, and writes everything that it sees as JSON lines."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource
from tests.benchmarks.measure import machine
from tests.soak.accounts import check
from tests.soak.attacker import KINDS
from tests.soak.churn import Change, plan
from tests.soak.model import MANIFEST, write_guesser
from tests.soak.records import Records
from tests.soak.seats import Relay, Seat, settle
from tests.soak.turns import Turns
from tests.swarm.lines import ROOT, LineProcess
from tests.swarm.member.hostile import plain_tasks
from tests.swarm.namespaces import Namespaces, name, permitted

SAMPLE_SECONDS = 10.0
START_SECONDS, AT_ONCE = 1200.0, 4
"""Time for all nodes to start, so many at once: importing torch takes some six seconds of a core each."""
END_SECONDS = 300.0
LATER_SECONDS = 3.0
"""Time until it is looked again whether a node has started or ended."""
FIRST = 3
"""Nodes that the others know at first, besides the relay."""
EVERY, PAUSE = 30.0, 12.0
"""Seconds from one turn of a node to the next, and between two attacks of one attacker."""


@dataclass(frozen=True, slots=True)
class Options:
    """Minutes from when all nodes run, nodes at the same time, 0 to 3 attackers, and where homes and records go."""

    minutes: float
    nodes: int
    attackers: int
    directory: Path


class Soak:
    def __init__(self, options: Options, lab: Namespaces) -> None:
        self.options = options
        directory = options.directory
        self.records = Records(directory)
        write_guesser(directory / "tiny.gguf")
        (directory / "manifest.toml").write_text(MANIFEST.format(name=time.time_ns()))
        self.source = TaskSource(load_manifest(str(directory / "manifest.toml")))
        lab.build_public()
        self.relay = Relay("relay", settle(lab, "relay", 200), directory / "relay")
        names = [(number, f"n{number}") for number in range(1, options.nodes + 2)]
        self.nodes = [Seat(part, settle(lab, part, number), directory / part) for number, part in names]
        known = tuple(seat.address for seat in (*self.nodes[:FIRST], self.relay))
        for seat in self.nodes:
            seat.bootstrap = tuple(address for address in known if address != seat.address)
        self.seats = [self.relay, *self.nodes]
        self.attackers: dict[str, LineProcess] = {}
        for number, kind in enumerate(KINDS):
            settle(lab, kind[:8], 210 + number)
        self._reported = Counter[str]()
        self._executor = ThreadPoolExecutor(8)

    def run(self) -> None:
        """Start all, watch them for the time, end them, and write what they account for."""
        self._write_start()
        self._start_all()
        began = time.time()
        self.records.write("begun")
        turns = Turns(lambda: [seat for seat in self.nodes if seat.life], EVERY)
        turns.start()
        self._attack()
        self._watch(began)
        self._read()
        for kind, attacker in self.attackers.items():
            if (code := attacker.process.poll()) is not None:
                self.records.write("attacker ended", by=kind, code=code)
            attacker.kill()
        turns.stop()
        self._sample()
        self.records.write("ended", turns=turns.taken, vain=turns.vain)
        self._end_all()
        check(self.options.directory, self.records.write)

    def close(self) -> None:
        for attacker in self.attackers.values():
            attacker.kill()
        for seat in self.seats:
            if seat.life:
                seat.end(signal.SIGKILL)
        self._executor.shutdown()

    def _write_start(self) -> None:
        commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=ROOT)
        options = {**asdict(self.options), "directory": str(self.options.directory)}
        self.records.write("start", options=options, machine=machine(), commit=commit.stdout.strip())

    def _start(self, seat: Seat) -> None:
        life = seat.start()
        self.records.write("life", seat=seat.name, life=life.number, pid=life.process.pid, peer_id=seat.peer_id)

    def _start_all(self) -> None:
        self._start(self.relay)
        waiting, loading = self.nodes[:-1], list[Seat]()
        deadline = time.monotonic() + START_SECONDS
        while waiting or loading:
            while waiting and len(loading) < AT_ONCE:
                loading.append(waiting.pop(0))
                self._start(loading[-1])
            for seat in list(loading):
                if seat.look() or time.monotonic() > deadline:
                    raise SystemExit(f"{seat.name} does not start; see {seat.errors_file}")
                # Each is paused until its turn comes, so that those that are late get the processor.
                if seat.swarm() and seat.request("pause") is not None:
                    loading.remove(seat)
            time.sleep(0.3)

    def _attack(self) -> None:
        tasks = plain_tasks(self.source, 666, 16)
        for number, kind in enumerate(list(KINDS)[: self.options.attackers]):
            options = {"kind": kind, "swarm": self.source.manifest.digest, "tasks": tasks, "number": number}
            program = ("-m", "tests.soak.attacker", json.dumps({**options, "pause": PAUSE}))
            self.attackers[kind] = LineProcess(*program, namespace=name(kind[:8]), fork=False)
        self._aim()

    def _aim(self) -> None:
        targets = json.dumps([[seat.peer_id, seat.address] for seat in self.nodes if seat.life])
        for attacker in self.attackers.values():
            with contextlib.suppress(OSError):
                attacker.write_line(targets)

    def _watch(self, began: float) -> None:
        changes = plan(60 * self.options.minutes, self.options.nodes)
        next_sample = began
        while (now := time.time()) < began + 60 * self.options.minutes:
            self._look()
            while changes and now >= began + changes[0].at:
                change = changes.pop(0)
                if self._is_possible(change):
                    self._change(change)
                else:
                    changes.append(replace(change, at=now - began + LATER_SECONDS))
                    changes.sort(key=lambda change: change.at)
            if now >= next_sample:
                next_sample += SAMPLE_SECONDS
                self._sample()
            self._read()
            time.sleep(0.2)

    def _is_possible(self, change: Change) -> bool:
        """Whether the node has started that is to be stopped, or ended that is to be started: either takes time."""
        seat = self.nodes[change.seat]
        return seat.life is None if change.kind in {"start", "join"} else seat.ready_since() < math.inf

    def _change(self, change: Change) -> None:
        seat = self.nodes[change.seat]
        self.records.write("change", seat=seat.name, what=change.kind, by=change.by.name)
        if change.kind in {"start", "join"}:
            self._start(seat)
        else:
            seat.end(change.by)
        self._aim()

    def _look(self) -> None:
        for seat in self.seats:
            if life := seat.look():
                self.records.write("death", seat=seat.name, life=life.number, asked=int(life.asked), code=life.code)

    def _sample(self) -> None:
        def one(seat: Seat) -> dict[str, Any] | None:
            measured = seat.measure()
            return measured and {**measured, **seat.swarm()}

        for sample in self._executor.map(one, self.seats):
            if sample:
                self.records.write("sample", **sample)

    def _read(self) -> None:
        """Write what the attackers told since the last time."""
        for kind, attacker in self.attackers.items():
            lines = attacker.lines[self._reported[kind] :]
            self._reported[kind] += len(lines)
            for line in lines:
                self.records.write("attack", by=kind, **line)

    def _end_all(self) -> None:
        for seat in self.nodes:
            # One that is still starting has nothing to end in order.
            seat.end(signal.SIGTERM if seat.ready_since() < math.inf else signal.SIGKILL)
        self.relay.end(signal.SIGTERM)
        deadline = time.monotonic() + END_SECONDS
        while any(seat.life for seat in self.seats) and time.monotonic() < deadline:
            self._look()
            time.sleep(0.2)


@contextlib.contextmanager
def prepared(options: Options) -> Iterator[Soak]:
    """A soak in network namespaces; a NotPermittedError if this machine can't have them."""
    options.directory.mkdir(parents=True)
    with Namespaces() as lab:
        with permitted():
            soak = Soak(options, lab)
        try:
            yield soak
        finally:
            soak.close()
