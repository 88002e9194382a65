"""Attacks on a node that trains, by a hostile peer in another process. `docs/attacks.md` lists what they showed.

After each one, and in the midst of some, the node has to finish rounds and to train on what an honest peer sends then;
no fault is counted and nothing restarts.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from sapo_edge.control_client import connect
from sapo_edge.errors import SapoError
from sapo_edge.manifest import load_manifest
from sapo_edge.paths import Paths
from sapo_edge.rollout import Answer, Rollout, Task
from sapo_edge.swarm import wire
from sapo_edge.swarm.admission import SENDERS_FAULT, Admission
from sapo_edge.swarm.identity import Identity
from sapo_edge.swarm.libp2p import Libp2pTransport, SwarmConfig
from sapo_edge.swarm.reputation import Reputation
from sapo_edge.tasks.source import TaskSource
from tests.models import SHAPES, write_model
from tests.swarm.hostile import HostilePeer

ROOT = Path(__file__).parents[2]
NODE = """
import functools, sys
from sapo_edge.swarm import libp2p, reputation
reputation.ESTABLISHED_SECONDS = 2.0
libp2p.SwarmConfig = functools.partial(libp2p.SwarmConfig, keepalive=float(sys.argv.pop(1)))
from sapo_edge.cli.main import main
main()
"""
"""`python -m sapo_edge`, but who it knows for 2 s is no newcomer, and how soon it notices a frozen peer is given."""
PATIENCE = 40.0
"""Seconds for what takes a moment on a machine that has time."""
GROWTH = 48 * 1024 * 1024
"""Bytes by which an attack may make the node grow: what it may hold unread for the connections that there are."""


def until(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """What a condition gives once it is true."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"it did not happen within {seconds:.0f} s"
        time.sleep(0.1)
    return result


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class RunningNode:
    """`sapo run` in a process of its own."""

    def __init__(self, directory: Path, *settings: str, keepalive: float = 15.0, before: tuple[str, ...] = ()) -> None:
        self.home = directory / "home"
        self._out = directory / "events"
        model = write_model(directory / "tiny.gguf", SHAPES["llama-gqa"])
        # Answers of some length: a round takes about a second, not a tenth of one.
        self._command = [
            *before, sys.executable, "-c", NODE, str(keepalive), "run", "--json", "--model", str(model),
            "--home", str(self.home), "--own", "1", "--external", "4", "--answers", "8", "--threads", "1", "--seed", "3",
            *(f"--set={setting}" for setting in ("rank=2", "max_tokens=192", "held_out=0", "evaluate_every=0")),
            *(f"--set={setting}" for setting in settings),
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        """Start it, for the first time or once more."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "SAPO_EDGE_MDNS": "off",
                       "SAPO_EDGE_NETWORK": "swarm"}  # fmt: skip
        with self._out.open("ab") as out:
            self.process = subprocess.Popen(
                self._command, stdout=out, stderr=subprocess.DEVNULL, cwd=ROOT, env=environment
            )
        self.memory = psutil.Process(self.process.pid)
        until(lambda: (self.status() or {}).get("swarm", {}).get("addresses"))

    def status(self) -> dict[str, Any]:
        """What `sapo status --json` prints; empty while the node can't be asked."""
        assert self.process.poll() is None, "the node ended"
        try:
            with connect(Paths.default(self.home)) as client:
                return dict(client.request("status"))
        except SapoError:
            return {}

    def told(self, *command: str) -> dict[str, Any]:
        """What a command on the running node prints."""
        found = subprocess.run(
            [sys.executable, "-m", "sapo_edge", *command, "--json", "--home", str(self.home)],
            capture_output=True, text=True, check=True, cwd=ROOT, timeout=PATIENCE,
        )  # fmt: skip
        return dict(json.loads(found.stdout))

    @property
    def address(self) -> str:
        """At which it can be dialled."""
        return str(self.status()["swarm"]["addresses"][0])

    def rounds(self) -> list[dict[str, Any]]:
        """Its finished rounds, of all its lives."""
        lines = self._out.read_text().splitlines(keepends=True)
        events = (json.loads(line) for line in lines if line.endswith("\n"))
        return [event for event in events if event["event"] == "round"]

    def counted(self, name: str, where: str = "counts") -> int:
        """A counter of the swarm."""
        return int(self.status()["swarm"][where].get(name, 0))

    def refused(self, reason: str) -> int:
        """How often it refused something for a reason."""
        return self.counted(reason, "rejections")

    def kill(self) -> None:
        """End it without its noticing."""
        self.process.kill()
        self.process.wait(10)


class HonestPeer:
    """A peer whose rollouts hold right and wrong answers, so that whoever gets them trains on each of them, once."""

    def __init__(self, source: TaskSource, node: str, number: int = 1, **options: Any) -> None:
        self.source = source
        self.identity = Identity.from_secret(bytes([number]) * 32)
        self.swarm = bytes.fromhex(source.manifest.digest)
        config = SwarmConfig(
            self.identity, source.manifest, bootstrap=(node,), mdns=False, **{"listen": "loopback", **options}
        )
        self._admission = Admission(self.swarm, source, Reputation(), own=self.identity.peer_id)
        self.transport = Libp2pTransport(config, self._admission, lambda event: None)
        self.published: list[Rollout] = []
        self._cursor = 0
        until(lambda: self.transport.status().state == "connected")

    def rollout(self, size: int = 0, answers: int = 4) -> Rollout:
        """A rollout that nobody has yet; `size` bytes of it are noise."""
        (task,), self._cursor = self.source.training_tasks(self.identity.public_key[0], self._cursor, 1)
        texts = [f"<answer>{task.ground_truth}</answer>"]
        texts += [f"no {os.urandom(size // 2 // answers).hex()}" for _ in range(answers - 1)]
        given = tuple(Answer(text, True) for text in texts)
        number = len(self.published)
        return Rollout(task.ref, task.question, task.ground_truth, given, self.identity.peer_id, 1, number, time.time())

    def publish(self, *rollouts: Rollout) -> None:
        """Share rollouts; without any, two new ones."""
        shared = rollouts or (self.rollout(), self.rollout())
        self.transport.publish(shared)
        self.published += shared

    def record(self, rollout: Rollout) -> wire.RawRecord:
        """What `publish` sends of it."""
        return wire.sign_rollout(rollout, self.swarm, self.identity).record

    def close(self) -> None:
        """Leave."""
        self.transport.close()
        self._admission.close()


class Lab:
    """A node under attack, an honest peer, and a hostile one."""

    def __init__(self, node: RunningNode, honest: HonestPeer, hostile: HostilePeer) -> None:
        self.node, self.honest, self.hostile = node, honest, hostile
        self.seen: Counter[str] = Counter()

    def trained(self) -> int:
        """Rollouts of others that the node has trained on. Of all peers here, only the honest one's are fit for that."""
        return sum(event["external"] for event in self.node.rounds())

    def goes_on(self) -> None:
        """See that the node finishes rounds, and trains on all that the honest peer has sent, and on nothing twice."""
        before = len(self.node.rounds())
        self.honest.publish()
        until(lambda: self.trained() >= len(self.honest.published) and len(self.node.rounds()) >= before + 2)
        assert self.trained() == len(self.honest.published)

    @contextmanager
    def attacked(self) -> Iterator[None]:
        """Do something to the node that must not harm it."""
        status, memory = self.node.status(), self.node.memory.memory_info().rss
        yield
        self.goes_on()
        after = self.node.status()
        print(f"\nmemory {memory >> 20} -> {self.node.memory.memory_info().rss >> 20} MiB", _difference(status, after))
        assert self.node.memory.memory_info().rss < memory + GROWTH
        assert after["swarm"]["faults"] == {} and after["swarm"]["restarts"] == 0
        assert after["pid"] == status["pid"] and after["state"] == "running"
        # The honest peer checks what it is sent: nothing bad was passed on to it, and nothing of it was refused.
        assert not {reason.value for reason in SENDERS_FAULT} & set(self.honest.transport.status().rejections)
        assert self.of(self.honest.identity.peer_id) == {}

    def of(self, peer_id: str) -> dict[str, int]:
        """What the node refused of a connected peer."""
        peers = {peer["peer_id"]: peer["rejected"] for peer in self.node.told("peers")["peers"]}
        assert self.honest.identity.peer_id in peers
        return dict(peers.get(peer_id, {}))


def _difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, int]:
    tables = [Counter(state["swarm"]["counts"]) + Counter(state["swarm"]["rejections"]) for state in (before, after)]
    return dict(tables[1] - tables[0])


@pytest.fixture(scope="module")
def source() -> TaskSource:
    return TaskSource(load_manifest("starter"))


def hostile_to(node: RunningNode, source: TaskSource, number: int) -> HostilePeer:
    def plain(task: Task) -> list[Any]:
        ref = task.ref
        return [ref.entry, ref.version, ref.seed, ref.index, task.question, task.ground_truth]

    tasks, _ = source.training_tasks(666, 0, 16)
    return HostilePeer(
        address=node.address, swarm=source.manifest.digest, tasks=[plain(task) for task in tasks], number=number
    )


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, source: TaskSource) -> Iterator[Lab]:
    node = RunningNode(tmp_path_factory.mktemp("attacked"), f"port={free_port()}", "listen=loopback")
    try:
        honest = HonestPeer(source, node.address)
        try:
            with hostile_to(node, source, 1) as hostile:
                made = Lab(node, honest, hostile)
                # Sixteen good rollouts, and the honest peer is no newcomer any more.
                for _ in range(9):
                    made.honest.publish()
                    time.sleep(0.3)
                made.goes_on()
                yield made
        finally:
            honest.close()
    finally:
        node.kill()


def test_random_bytes_at_the_port(lab: Lab) -> None:
    with lab.attacked():
        seen = lab.hostile.attack("random_bytes")
        assert seen["closed"] == seen["sockets"]
        print(seen)


def test_half_open_and_slow_connections(lab: Lab, source: TaskSource) -> None:
    with lab.attacked():
        attack = lab.hostile.begin("half_open", sockets=160)
        lab.goes_on()
        seen = lab.hostile.end(attack)
        assert seen["closed"] == 160 and seen["refused"] >= 32 and lab.node.counted("sockets refused") >= 32
        newcomer = HonestPeer(source, lab.node.address, 2)
        newcomer.close()
        print(seen)


def test_malformed_frames(lab: Lab) -> None:
    with lab.attacked():
        lab.hostile.attack("malformed_frames")
        assert lab.node.counted("gossip streams with garbage") >= 1
        assert lab.node.counted("streams with garbage") >= 1
        assert lab.node.counted("messages with a bad signature") >= 1


def test_oversized_messages(lab: Lab) -> None:
    with lab.attacked():
        before = lab.node.refused("size"), lab.node.counted("gossip streams with garbage")
        lab.hostile.attack("oversized")
        assert lab.node.refused("size") > before[0]
        assert lab.node.counted("gossip streams with garbage") > before[1]
        assert lab.node.counted("pulls refused: not a request") >= 1


def test_replayed_and_reordered_rollouts(lab: Lab) -> None:
    with lab.attacked():
        records = [lab.honest.record(rollout) for rollout in lab.honest.published[:8]]
        before = lab.node.status()["swarm"]["rollouts_in"]
        sent = [[record.body.hex(), record.signature.hex()] for record in records]
        lab.hostile.attack("replay", records=sent, times=30)
        assert lab.node.refused("duplicate") >= 8 * 4 and lab.node.status()["swarm"]["rollouts_in"] >= before + 8


def test_rollouts_that_are_not_what_they_say(lab: Lab) -> None:
    with lab.attacked():
        before = Counter(lab.node.status()["swarm"]["rejections"])
        lab.hostile.attack("false_rollouts", honest=lab.honest.identity.peer_id)
        until(lambda: Counter(lab.node.status()["swarm"]["rejections"])["forged"] >= before["forged"] + 3)
        found = Counter(lab.node.status()["swarm"]["rejections"]) - before
        assert found["signature"] >= 4 and found["task"] == 6 and found["swarm"] >= 5
        assert found["forged"] >= 3 and lab.node.counted("messages with a bad signature") >= 1


def test_clocks_that_are_wrong_by_a_day(lab: Lab) -> None:
    with lab.attacked():
        before = lab.node.status()["swarm"]["rollouts_in"], lab.node.refused("age")
        lab.hostile.attack("wrong_clocks")
        until(lambda: lab.node.status()["swarm"]["rollouts_in"] >= before[0] + 7)
        assert lab.node.refused("age") == before[1] + 4


def test_a_flood(lab: Lab) -> None:
    with lab.attacked():
        attack = lab.hostile.begin("flood", seconds=4.0)
        lab.goes_on()
        seen = lab.hostile.end(attack)
        assert seen["messages"] > 20 and lab.node.refused("rate") > 0
        print(seen)


def test_peers_that_announce_what_they_never_deliver(lab: Lab) -> None:
    with lab.attacked():
        attack = lab.hostile.begin("stalling_pulls", peers=5, announced=256, seconds=12.0)
        until(lambda: lab.node.status()["swarm"]["counts"].get("announced rollouts given up", 0) or True)
        time.sleep(2)
        started = time.monotonic()
        lab.honest.publish(lab.honest.rollout(size=60_000, answers=16))
        lab.goes_on()
        print("large rollout took", time.monotonic() - started)
        print(lab.hostile.end(attack))


def test_a_thousand_identities_of_one_machine(lab: Lab) -> None:
    with lab.attacked():
        attack = lab.hostile.begin("identities", authors=1000, connections=8)
        lab.goes_on()
        seen = lab.hostile.end(attack)
        print(seen)


def test_kill_9_in_mid_transfer(lab: Lab, source: TaskSource) -> None:
    with lab.attacked(), hostile_to(lab.node, source, 2) as killer:
        large = lab.honest.rollout(size=60_000, answers=16)
        failed = lab.node.counted("pulls failed")
        killer.begin("die_in_transfer", digest=lab.honest.record(large).digest.hex())
        killer.process.wait(PATIENCE)
        assert killer.process.returncode == -signal.SIGKILL
        until(lambda: lab.node.counted("pulls failed") > failed)
        lab.honest.publish(large)
