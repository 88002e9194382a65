"""Sixteen members, each a process, of which one is killed and started anew every few seconds."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.benchmarks.measure import Gauge
from tests.cli.test_metrics import free_port
from tests.swarm.member.member_processes import MemberProcess

MEMBERS = 16
BOOTSTRAP = 3
PUBLISH_SECONDS = 8.0
"""Time between two messages of a member: two a second in all."""
KILL_SECONDS = 12.0
"""Time between two kills; each victim stays away for as long."""
SETTLE_SECONDS = 60.0
"""At the end nobody is killed for so long; what is published in the second half of it must reach everyone."""


@dataclass
class Seat:
    """A member's place: it is taken by one process after the other."""

    number: int
    port: int
    process: MemberProcess
    started: float
    lives: int = 1
    published: list[tuple[float, int]] = field(default_factory=list)


class Swarm:
    def __init__(self) -> None:
        self.ports = [free_port() for _ in range(MEMBERS)]
        self.bootstrap: list[str] = []
        self.seats: list[Seat] = []
        for number in range(MEMBERS):
            self.seats.append(Seat(number, self.ports[number], self._start(number), time.monotonic()))
            if number < BOOTSTRAP:
                self.bootstrap.append(self.seats[number].process.address)

    def _start(self, number: int) -> MemberProcess:
        # The running number goes on with the time, so that none is given twice.
        first = int(time.time()) % 10**6 * 16
        others = [address for place, address in enumerate(self.bootstrap) if place != number]
        return MemberProcess(member=number + 1, first=first, port=self.ports[number], bootstrap=others)

    def kill(self, seat: Seat) -> None:
        """End a member without its noticing."""
        seat.process.kill()

    def restart(self, seat: Seat) -> None:
        seat.process, seat.started = self._start(seat.number), time.monotonic()
        seat.lives += 1
        seat.published.clear()

    def close(self) -> None:
        for seat in self.seats:
            seat.process.kill()


def run(minutes: float) -> None:
    rng = random.Random(1)
    swarm = Swarm()
    begin = time.monotonic()
    end = begin + 60 * minutes
    away: tuple[Seat, float] | None = None
    next_kill, next_sample = begin + 30.0, begin + 60.0
    due = {seat.number: begin + rng.random() * PUBLISH_SECONDS for seat in swarm.seats}
    samples: list[dict[int, tuple[float, int]]] = []
    kills = 0
    while (now := time.monotonic()) < end:
        if away and now >= away[1]:
            swarm.restart(away[0])
            away = None
        if away is None and now >= next_kill and now < end - SETTLE_SECONDS:
            victim = rng.choice(swarm.seats)
            swarm.kill(victim)
            away, next_kill, kills = (victim, now + KILL_SECONDS / 2), now + KILL_SECONDS, kills + 1
        for seat in swarm.seats:
            if now >= due[seat.number] and not (away and away[0] is seat):
                due[seat.number] = now + PUBLISH_SECONDS
                seat.process.tell("publish", count=1)
        if now >= next_sample:
            next_sample += 60.0
            here = {
                seat.number: Gauge(seat.process.process.pid) for seat in swarm.seats if not (away and away[0] is seat)
            }
            samples.append({number: (gauge.resident(), gauge.handles()) for number, gauge in here.items()})
        time.sleep(0.1)
    _report(swarm, samples, kills, minutes)
    swarm.close()


def _report(swarm: Swarm, samples: list[dict[int, tuple[float, int]]], kills: int, minutes: float) -> None:
    time.sleep(10.0)
    status = [seat.process.status() for seat in swarm.seats]
    missing, pairs, wanted, got = [], 0, 0, 0
    for author in swarm.seats:
        # Of the last seconds without a kill, and not so late that it may still be on its way.
        said = [line["published"] for line in author.process.lines if "published" in line]
        recent = {sequence for numbers in said[-int(SETTLE_SECONDS / 2 / PUBLISH_SECONDS) :] for sequence in numbers}
        for reader in swarm.seats:
            if reader is author:
                continue
            pairs += 1
            received = recent & reader.process.received(author.process)
            wanted, got = wanted + len(recent), got + len(received)
            if not received:
                missing.append((reader.number, author.number))
    steady = [seat.number for seat in swarm.seats if seat.lives == 1]
    print(f"\n### {MEMBERS} members, {minutes:g} minutes, {kills} killed and started anew\n")
    print(f"- pairs of which one hears the other: {pairs - len(missing)} of {pairs} {missing or ''}")
    print(f"- rollouts of the last {SETTLE_SECONDS / 2:.0f} s that arrived: {got} of {wanted}")
    print(f"- faults: {_sum(status, 'faults') or 'none'}; restarts of a host: {sum(s['restarts'] for s in status)}")
    print(f"- rejections: {_sum(status, 'rejections') or 'none'}")
    print(f"- members that were never killed: {len(steady)}; their memory (MB, median) and handles after each minute:")
    for minute, sample in enumerate(samples, start=1):
        values = [sample[number] for number in steady if number in sample]
        if values:
            memory, files = zip(*values, strict=True)
            print(f"  {minute}: {statistics.median(memory):.0f}, {statistics.median(files):.0f}")


def _sum(status: list[dict[str, Any]], name: str) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in status:
        total.update(one[name])
    return dict(total)
