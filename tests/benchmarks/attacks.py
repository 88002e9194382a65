"""A node under each attack that lasts: its memory, its processor time, and the honest rollouts that still arrive.

The node is a member in a process of its own, as are two honest members, one that joins during the attack, and the
attackers (`tests/swarm/member/sustained.py`). All are in one network namespace, where they have public addresses of
different networks. Time is what the operating system counts for the node's process, so that other load matters little.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource
from tests.benchmarks.measure import Gauge, machine
from tests.swarm.member.hostile import HostilePeer, plain_tasks
from tests.swarm.member.member_processes import MemberProcess
from tests.swarm.namespaces import Namespaces, ip, name, permitted
from tests.waiting import wait_until

MIB = 2**20 / 1e6
"""In MB."""
MEMORY_MIB, SHARE = 16.0, 0.25
"""What an attack may cost: memory, and of one core."""
PUBLISH_SECONDS = 2.0
"""Time between two rollouts of an honest member."""
JOIN_SECONDS = 1.0
"""Time from the beginning of an attack until another honest member is started."""
WARM_UP_SECONDS, QUIET_SECONDS, AFTER_SECONDS = 3.0, 4.0, 3.0
"""Times before an attack: for what is loaded at the first rollout, which is not the attack's, and without an attack.
And the time after it, in which memory may fall and rollouts should still arrive."""
ARRIVAL_SECONDS = 5.0
"""Most time for the last rollouts to arrive."""
OTHER_SECONDS = 18.0
"""Time that all but the attack itself takes, until it has been measured."""
SHORTEST, LONGEST = 5.0, 20.0
"""Seconds of an attack."""
ADDRESSES = tuple(f"20.9.{number}.1" for number in range(1, 7))
"""Of the attackers: six networks."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One row of the table: ways are attacks in `sustained.py`, at the same time, each from a process of its own.

    With hops, they reach the node through an honest member only. The upload's cap is that of the node and of honest
    members, in bytes a second, 0 for none. While preparing, attackers behave.
    """

    name: str
    ways: tuple[str, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    addresses: tuple[str, ...] = ADDRESSES
    hops: bool = False
    upload: int = 0
    preparing: float = WARM_UP_SECONDS
    longest: float = LONGEST


ATTACKS = (
    Attack("garbage at each layer", ("garbage",)),
    Attack("connections that stay silent", ("connections",)),
    Attack("handshakes", ("handshakes",)),
    Attack("streams of identify", ("identify_streams",)),
    Attack("long answers to identify, and pushes", ("identify_answers",)),
    Attack("small messages that inflate", ("inflations",)),
    Attack("small messages that inflate, from one address", ("inflations",), addresses=ADDRESSES[:1]),
    Attack("throw-away keys", ("throw_away_keys",)),
    Attack("a flood of true rollouts", ("flooding",)),
    Attack("duplicates, and others' rollouts", ("duplicates",)),
    Attack("small requests for large answers", ("amplification",)),
    Attack("eclipse: members that forward nothing", ("liars",)),
    Attack("false addresses", ("liars",), {"lies": "addresses"}),
    Attack("false views of the node", ("liars",), {"lies": "views"}),
    Attack("false relays", ("liars",), {"lies": "relays"}),
    Attack("grafts", ("grafts",)),
    Attack("control messages", ("controls",)),
    Attack("pings", ("pings",)),
    Attack("requests of every kind", ("requests",)),
    Attack("announcements of nothing", ("announcements",)),
    Attack("neighbours that read nothing", ("slow_readers",)),
    Attack("keys and a flood, one hop away", ("throw_away_keys", "flooding"), hops=True),
    Attack("inflations, one hop away", ("inflations",), hops=True),
    Attack("several at once", ("garbage", "handshakes", "identify_streams", "inflations", "throw_away_keys", "pings")),
    Attack("padding by an established neighbour", ("padding",), upload=500_000, preparing=360.0, longest=120.0),
)


@dataclass
class Phase:
    """What happened to the node in a time: seconds of processor time, memory and bytes sent.

    What is charged, it charged to addresses of attackers or of those that carry an attack on; while it waited, the
    process could have run, and others did.
    """

    seconds: float
    processor: float
    charged: float
    waited: float
    highest: float
    last: float
    sent: int


class Node(MemberProcess):
    def __init__(self, namespace: str, **options: Any) -> None:
        super().__init__(namespace, fork=False, **options)
        self.line("addresses")
        self.gauge = Gauge(self.process.pid)

    def waited(self) -> float:
        """Seconds for which its busiest thread was ready to run, and did not."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        _, waited = max(tuple(map(int, task.read_text().split()[:2])) for task in tasks)
        return waited / 1e9


@contextlib.contextmanager
def namespace() -> Iterator[str]:
    """A network namespace that is at home in 20.0.0.0/8; yields its name."""
    with Namespaces() as spaces:
        with permitted():
            spaces.add("attack")
            spaces.address("attack", "lo", "20.0.0.1/32")
            ip("-n", name("attack"), "route", "add", "local", "20.0.0.0/8", "dev", "lo")
        yield name("attack")


class Lab(contextlib.ExitStack):
    """The members and attackers; their processes end with it."""

    def __init__(self, namespace: str, source: TaskSource, upload: int = 0) -> None:
        super().__init__()
        self._namespace, self._source, self._upload = namespace, source, upload
        self.published: dict[str, dict[str, set[int]]] = {}
        self.honest: list[MemberProcess] = []
        self.node = self.enter_context(Node(namespace, member=1, listen="all", upload=upload))
        self.join(2, "20.2.0.1", self.at(self.node, "20.0.0.1"))
        # Reaches the node through the other one only, to begin with.
        self.join(3, "20.3.0.1", self.at(self.honest[0], "20.2.0.1"))

    @staticmethod
    def at(member: MemberProcess, ip: str) -> str:
        return f"/ip4/{ip}/tcp/{member.address.split('/')[4]}/p2p/{member.peer_id}"

    def join(self, number: int, ip: str, bootstrap: str) -> None:
        """Start an honest member; does not wait for it."""
        member = MemberProcess(
            self._namespace, member=number, source=ip, listen="all", bootstrap=[bootstrap], first=number,
            upload=self._upload,
        )  # fmt: skip
        self.honest.append(self.enter_context(member))

    def attackers(self, attack: Attack, seconds: float) -> list[HostilePeer]:
        """Start the processes of an attack; each says when it is ready for `go`."""
        target = self.at(self.honest[0], "20.2.0.1") if attack.hops else self.at(self.node, "20.0.0.1")
        tasks = plain_tasks(self._source, 17, 64)
        begun = []
        for number, way in enumerate(attack.ways, 1):
            captured = {"records": self._captured()} if way == "duplicates" else {}
            peer = HostilePeer(
                self._namespace, address=target, swarm=self._source.manifest.digest, tasks=tasks, number=number,
                sources=attack.addresses,
            )  # fmt: skip
            begun.append(self.enter_context(peer))
            peer.begin(way, seconds=seconds, **attack.arguments, **captured)
        return begun

    def _captured(self) -> list[list[str]]:
        """Rollouts of an honest member, as an attacker hears them."""
        from sapo_edge.rollout import Answer, Rollout
        from sapo_edge.swarm.wire.record import sign_rollout

        author = Identity(bytes([2]) * 32)
        (task,), _ = self._source.training_tasks(2, 5000, 1)
        answers, now = (Answer("no", True),), time.time()
        made = Rollout(task.ref, task.question, task.ground_truth, answers, author.peer_id, 1, 0, now)
        rollouts = [replace(made, sequence=number, answers=(Answer(f"no {number}", True),)) for number in range(8)]
        swarm = bytes.fromhex(self._source.manifest.digest)
        records = [sign_rollout(rollout, swarm, author).record for rollout in rollouts]
        return [[record.body.hex(), record.signature.hex()] for record in records]

    def phase(self, name: str, seconds: float, newcomer: bool = False) -> Phase:
        """Let honest members publish for a time, and watch the node."""
        begin, waited = time.monotonic(), self.node.waited()
        status, processor = self.node.status(), self.node.gauge.cpu()
        published, highest = begin - PUBLISH_SECONDS, self.node.gauge.resident() / MIB
        while (now := time.monotonic()) < begin + seconds:
            if newcomer and now > begin + JOIN_SECONDS:
                self.join(4, "20.4.0.1", self.at(self.node, "20.0.0.1"))
                newcomer = False
            if now >= published + PUBLISH_SECONDS:
                published = now
                self._publish(self.published.setdefault(name, {}))
            highest = max(highest, self.node.gauge.resident() / MIB)
            time.sleep(0.2)
        after = self.node.status()
        return Phase(
            time.monotonic() - begin, self.node.gauge.cpu() - processor, _charged(after) - _charged(status),
            self.node.waited() - waited, highest, self.node.gauge.resident() / MIB,
            sent=after["bytes_out"] - status["bytes_out"],
        )  # fmt: skip

    def _publish(self, published: dict[str, set[int]]) -> None:
        for member in self.honest:
            if any("addresses" in line for line in member.lines):
                published.setdefault(member.peer_id, set()).update(member.publish())

    def is_complete(self) -> bool:
        return all(of == total for name in self.published for of, total in self._counts(name))

    def arrived(self, name: str) -> str:
        """How many of the rollouts of a phase have arrived, by member: "20/20 8/8"."""
        return " ".join(f"{of}/{total}" for of, total in self._counts(name))

    def _counts(self, name: str) -> list[tuple[int, int]]:
        received: dict[str, set[int]] = {}
        for line in list(self.node.lines):
            if "author" in line:
                received.setdefault(line["author"], set()).add(line["rollout"])
        counts = self.published.get(name, {}).items()
        return [(len(of & received.get(author, set())), len(of)) for author, of in counts]


def _charged(status: Mapping[str, Any]) -> float:
    charged: Mapping[str, float] = status["charged"]
    return sum(seconds for address, seconds in charged.items() if address.startswith("20.9."))


def measure(attack: Attack, inside: str, source: TaskSource, seconds: float) -> str:
    """The row of an attack."""
    with Lab(inside, source, attack.upload) as lab:
        wait_until(lambda: lab.node.status()["peers"], 60)
        attackers = lab.attackers(attack, seconds)
        lab.phase("warm-up", attack.preparing)
        for peer in attackers:
            peer.first(lambda line: "ready" in line)
        quiet = lab.phase("before", QUIET_SECONDS)
        for peer in attackers:
            peer.begin("go")
        halves = [lab.phase("during", seconds / 2, newcomer=True), lab.phase("during", seconds / 2)]
        after = lab.phase("after", AFTER_SECONDS)
        deadline = time.monotonic() + ARRIVAL_SECONDS
        while not lab.is_complete() and time.monotonic() < deadline:
            time.sleep(0.2)
        status = lab.node.status()
    rate, lasted = quiet.processor / quiet.seconds, sum(half.seconds for half in halves)
    memory = max(half.highest for half in halves) - quiet.last
    share = sum(half.processor for half in halves) / lasted - rate
    sent = sum(half.sent for half in halves) / seconds - quiet.sent / quiet.seconds
    is_above = memory > MEMORY_MIB or share > SHARE or status["faults"] or status["restarts"]
    cells = (
        attack.name, f"{sent / 1000:.0f}", f"{memory:+.1f}, {after.last - quiet.last:+.1f}",
        f"{share:.2f}, {halves[1].processor / halves[1].seconds - rate:.2f},"
        f" {sum(half.charged for half in halves) / lasted:.2f}",
        f"{sum(half.waited for half in halves) / lasted:.2f}",
        "; ".join(lab.arrived(name) for name in ("before", "during", "after")),
        f"{sum(status['faults'].values())}{' **above**' if is_above else ''}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


HEAD = """\
| attack | KB/s | MiB, most, after | of a core, second half, charged | waited | honest before; during; after | faults |
|---|---|---|---|---|---|---|"""


def main() -> None:
    """`python -m tests.benchmarks.attacks [--minutes N] [NAME ...]`: in equal parts of the time."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", help="parts of names; all attacks if there are none")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all attacks")
    arguments = parser.parse_args()
    print(f"machine: {machine()}, load {os.getloadavg()[0]:.1f}\n")
    source, names, lasted = TaskSource(load_manifest("starter")), arguments.names, []
    attacks = [attack for attack in ATTACKS if not names or any(name in attack.name for name in names)]
    deadline, other = time.monotonic() + 60 * arguments.minutes, OTHER_SECONDS
    print(HEAD, flush=True)
    with namespace() as inside:
        for number, attack in enumerate(attacks):
            begin = time.monotonic()
            seconds = min(attack.longest, max(SHORTEST, (deadline - begin) / (len(attacks) - number) - other))
            print(measure(attack, inside, source, seconds), flush=True)
            other = time.monotonic() - begin - seconds
            lasted.append(seconds)
    print(f"\nAttacks lasted {min(lasted):.0f} to {max(lasted):.0f} s.")


if __name__ == "__main__":
    main()
