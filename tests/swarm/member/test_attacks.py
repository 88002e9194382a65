"""Attacks on a node that trains, by a hostile peer in another process. `docs/records/attacks.csv` has what came out.

After each one, and in the midst of some, the node has to finish rounds and to train on what an honest peer sends then;
no fault is counted and nothing restarts.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from sapo_edge.control.client import connect
from sapo_edge.errors import SapoError
from sapo_edge.rollout import Answer, Rollout
from sapo_edge.state.paths import Paths
from sapo_edge.swarm.host.traffic import MAX_SOCKETS_PER_ADDRESS
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.judging.admission import SENDERS_FAULT
from sapo_edge.swarm.judging.reputation import NETWORK_RATE, NEWCOMERS_BURST, RATE
from sapo_edge.swarm.member.pull import PULLS
from sapo_edge.swarm.wire.record import RawRecord, sign_rollout
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource
from tests.models import SHAPES, write_model
from tests.ports import free_port
from tests.swarm.lines import LineProcess
from tests.swarm.member.hostile import HostilePeer, letters, plain_tasks
from tests.swarm.member.members import make_member
from tests.swarm.namespaces import Namespaces, NotPermittedError, ip, name, permitted
from tests.waiting import wait_until

NODE = """
import functools, sys
from sapo_edge.swarm.host import host
from sapo_edge.swarm.judging import reputation
from sapo_edge.swarm import config
reputation.ESTABLISHED_SECONDS = 8.0
host.UPGRADE_SECONDS = float(sys.argv.pop(1))
config.SwarmConfig = functools.partial(config.SwarmConfig, keepalive=float(sys.argv.pop(1)))
from tests.cli.process import rest_between_answers
rest_between_answers(0.5)
from sapo_edge.cli.main import main
main()
"""
"""`python -m sapo_edge` with the time limit of handshakes and the keepalive as arguments. Peers are established after
8 s instead of minutes, and a round takes about a second, in which the processor is mostly free for other tests."""
UPGRADE_SECONDS = 5.0
"""Time limit of a handshake at the node, half of the default."""
PATIENCE = 40.0
"""Seconds to wait for what takes a moment on an idle machine."""
CROWDS_MACHINE = ("127.0.0.4",)
"""Where a crowd connects from. What an address may cost in processor time is used up by it, for a minute on a slow
machine: the honest peer has its own."""
GROWTH = 16 * 1024 * 1024
"""Bytes by which an attack may make the node grow."""


class RunningNode:
    """`sapo run` in its own process."""

    def __init__(self, directory: Path, *settings: str, keepalive: float = 15.0, namespace: str | None = None) -> None:
        self.home = directory / "home"
        model = write_model(directory / "tiny.gguf", SHAPES["llama-gqa"])
        settings = ("network=swarm", "mdns=off", "rank=2", "max_tokens=96", "held_out=0", "evaluate_every=0", *settings)
        self._namespace = namespace
        self._arguments = (
            "-c", NODE, str(UPGRADE_SECONDS), str(keepalive),
            "run", "--json", "--model", str(model), "--home", str(self.home),
            "--own", "1", "--external", "4", "--answers", "8", "--threads", "1", "--seed", "3",
            *(f"--set={setting}" for setting in settings),
        )  # fmt: skip
        self._earlier: list[dict[str, Any]] = []
        self.start()

    def start(self) -> None:
        self._running = LineProcess(*self._arguments, namespace=self._namespace)
        self.process = self._running.process
        self.memory = psutil.Process(self.process.pid)
        wait_until(lambda: (self.status() or {}).get("swarm", {}).get("addresses"))

    def status(self) -> dict[str, Any]:
        """Output of `sapo status --json`; empty while the node does not answer."""
        assert self.process.poll() is None, "the node ended"
        try:
            with connect(Paths.default(self.home)) as client:
                return dict(client.request("status"))
        except SapoError:
            return {}

    def peers(self) -> list[dict[str, Any]]:
        with connect(Paths.default(self.home)) as client:
            return list(client.request("peers")["peers"])

    @property
    def address(self) -> str:
        return str(self.status()["swarm"]["addresses"][0])

    def rounds(self) -> list[dict[str, Any]]:
        return [event for event in (*self._earlier, *self._running.lines) if event["event"] == "round"]

    def counted(self, name: str, where: str = "counts") -> int:
        return int(self.status()["swarm"][where].get(name, 0))

    def counted_in(self) -> int:
        return int(self.status()["swarm"]["rollouts_in"])

    def refused(self, reason: str) -> int:
        return self.counted(reason, "rejections")

    def kill(self) -> None:
        self._running.kill()
        self._earlier = self.rounds()


class HonestPeer:
    """A peer whose rollouts have right and wrong answers, so that a node trains on each of them once."""

    def __init__(self, source: TaskSource, node: str, number: int = 1, **options: Any) -> None:
        self.source = source
        self.identity = Identity(bytes([number]) * 32)
        self.transport = make_member(number, source, bootstrap=(node,), **options).start()
        self.published: list[Rollout] = []
        self._cursor = self._sequence = 0
        wait_until(lambda: self.transport.status().state == "connected")

    def rollout(self) -> Rollout:
        (task,), self._cursor = self.source.training_tasks(self.identity.public_key[0], self._cursor, 1)
        author, self._sequence = self.identity.peer_id, self._sequence + 1
        # A question may come again, and the pool takes no text twice.
        texts = (f"<answer>{task.ground_truth}</answer>", "no", "none", f"never {self._sequence}")
        answers = tuple(Answer(text, True) for text in texts)
        return Rollout(task.ref, task.question, task.ground_truth, answers, author, 1, self._sequence, time.time())

    def publish(self) -> None:
        shared = self.rollout(), self.rollout()
        self.published += shared
        self.transport.publish(shared)

    def large(self) -> Rollout:
        """A rollout that is too large for a message and must be pulled; it has no gradient."""
        return replace(self.rollout(), answers=tuple(Answer(letters(8000), True) for _ in range(20)))

    def record(self, rollout: Rollout) -> RawRecord:
        return sign_rollout(rollout, self.transport.swarm, self.identity).record


class Lab:
    """A node under attack, an honest peer, and hostile ones."""

    hostile: HostilePeer
    """For all attacks but those that use their own process, because py-libp2p closes sockets late."""
    crowd: HostilePeer
    killer: HostilePeer
    staller: HostilePeer

    def __init__(self, node: RunningNode, honest: HonestPeer) -> None:
        self.node, self.honest = node, honest
        self.others = self.least = 0
        """`least`: bytes of memory that the node had at least in the last rounds that were waited for. It has more
        within an update, which keeps what it frees until its end."""
        self.since = time.monotonic()

    def trained(self) -> int:
        """External rollouts that the node trained on: of the honest peer, and `others`."""
        return sum(event["external"] for event in self.node.rounds())

    def expected(self) -> int:
        return len(self.honest.published) + self.others

    def pulls_from_honest(self, large: Rollout | None = None) -> None:
        before = self.node.counted("rollouts pulled")
        self.honest.transport.publish([large or self.honest.large()])
        wait_until(lambda: self.node.counted("rollouts pulled") == before + 1, PATIENCE)

    def establish_honest_peer(self) -> None:
        """Wait until the honest peer is established.

        It publishes little meanwhile: the node trains on two rollouts of a lone author in a round.
        """
        time.sleep(max(0.0, self.since + 10.0 - time.monotonic()))
        self.honest.publish()
        self.keeps_training()

    def keeps_training(self) -> None:
        """Check that the node finishes rounds and trains once on each rollout of the honest peer."""
        before, memory = len(self.node.rounds()), []
        self.honest.publish()

        def has_trained() -> bool:
            memory.append(self.node.memory.memory_info().rss)
            return self.trained() >= self.expected() and len(self.node.rounds()) >= before + 2

        wait_until(has_trained)
        assert self.trained() == self.expected()
        self.least = min(memory)

    @contextmanager
    def attacked(self) -> Iterator[None]:
        """Run an attack on the node, and check that it did no harm."""
        status, memory = self.node.status(), self.least
        yield
        self.keeps_training()
        after = self.node.status()
        grown = self.least - memory
        print(f"\n{memory >> 20} MiB {grown / 2**20:+.0f}", _difference(status, after))
        assert grown < GROWTH
        assert after["swarm"]["faults"] == {} and after["swarm"]["restarts"] == 0
        assert after["pid"] == status["pid"] and after["state"] == "running"
        # The honest peer checks what it is sent: nothing bad was passed on to it, and nothing of it was refused.
        assert not {reason.value for reason in SENDERS_FAULT} & set(self.honest.transport.status().rejections)
        rejected = {peer["peer_id"]: peer["rejected"] for peer in self.node.peers()}
        assert rejected[self.honest.identity.peer_id] == {}


def _difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, int]:
    tables = [Counter(state["swarm"]["counts"]) + Counter(state["swarm"]["rejections"]) for state in (before, after)]
    return dict(tables[1] - tables[0])


@pytest.fixture(scope="module")
def source() -> TaskSource:
    return TaskSource(load_manifest("starter"))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, source: TaskSource) -> Iterator[Lab]:
    with ExitStack() as stack:
        node = RunningNode(tmp_path_factory.mktemp("attacked"), f"port={free_port()}", "listen=loopback")
        stack.callback(node.kill)
        honest = HonestPeer(source, node.address)
        stack.callback(honest.transport.close)
        made = Lab(node, honest)
        target: dict[str, Any] = {"address": node.address, "swarm": source.manifest.digest}
        target["tasks"] = plain_tasks(source, 666, 16)
        # All at once, and before they are needed: each takes seconds to start.
        made.hostile, made.crowd, made.killer, made.staller = (
            stack.enter_context(HostilePeer(number=number, sources=ips, **target))
            for number, ips in enumerate(((), CROWDS_MACHINE, (), ()))
        )
        for _ in range(2):  # A node grows in its first rounds, by what it loads.
            made.keeps_training()
        made.since = time.monotonic()
        yield made


def test_random_bytes_half_open_and_slow_connections_at_the_port(lab: Lab, source: TaskSource) -> None:
    with lab.attacked():
        failed = lab.node.counted("handshakes failed")
        noise, half_open = lab.hostile.begin("random_bytes"), lab.hostile.begin("half_open", sockets=160)
        wait_until(lambda: lab.node.counted("sockets refused") >= 160 - 2 * MAX_SOCKETS_PER_ADDRESS)
        # From another machine, somebody new is let in meanwhile.
        HonestPeer(source, lab.node.address, 2).transport.close()
        seen = lab.hostile.end(noise)
        assert seen["closed"] == seen["sockets"]
        seen = lab.hostile.end(half_open)
        assert seen["closed"] == 160
        assert UPGRADE_SECONDS - 1 < seen["longest"] < 1.5 * UPGRADE_SECONDS + seen["late"]
        wait_until(lambda: lab.node.counted("handshakes failed") >= failed + 2 * MAX_SOCKETS_PER_ADDRESS)


def test_malformed_frames(lab: Lab) -> None:
    """And what is larger than allowed."""
    with lab.attacked():
        lab.hostile.attack("malformed_frames")
        for reason in ("gossip streams with garbage", "streams with garbage", "messages with a bad signature"):
            assert lab.node.counted(reason) >= 1
        size, garbage = lab.node.refused("size"), lab.node.counted("gossip streams with garbage")
        lab.hostile.attack("oversized")
        assert lab.node.refused("size") >= size + 4 and lab.node.counted("pulls refused: not a request") >= 1
        assert lab.node.counted("gossip streams with garbage") > garbage


def test_replayed_and_reordered_rollouts(lab: Lab) -> None:
    with lab.attacked():
        records = [lab.honest.record(rollout) for rollout in lab.honest.published[:8]]
        before, shape = lab.node.counted_in(), lab.node.refused("shape")
        sent = [[record.body.hex(), record.signature.hex()] for record in records]
        lab.hostile.begin("replay", records=sent, own=8, times=30, seconds=PATIENCE)
        # Who publishes others' rollouts is cut off; the other one's count in whatever order they come, once.
        wait_until(lambda: lab.node.counted_in() >= before + 8 and lab.node.refused("duplicate") >= 10 * len(records))
        assert lab.node.refused("shape") >= shape + 3


def test_rollouts_that_are_not_what_they_say(lab: Lab) -> None:
    """Also about the time, by a day."""
    with lab.attacked():
        before = Counter(lab.node.status()["swarm"]["rejections"])
        bad_messages = lab.node.counted("messages with a bad signature")

        def rejections() -> Counter[str]:
            return Counter(lab.node.status()["swarm"]["rejections"]) - before

        lab.hostile.attack("false_rollouts", honest=lab.honest.identity.peer_id)
        # An author is ignored after two forgeries; its further rollouts are not examined.
        wait_until(lambda: rejections()["forged"] >= 4 and rejections()["task"] == 6)
        assert rejections()["shape"] >= 3 and rejections()["signature"] == 1 and rejections()["swarm"] >= 2
        assert lab.node.counted("messages with a bad signature") == bad_messages + 1
        known = lab.node.counted_in()
        lab.hostile.attack("wrong_clocks")
        wait_until(lambda: lab.node.counted_in() == known + 7)
        assert rejections()["age"] == 4


def test_answers_that_are_too_long_to_train_on(lab: Lab) -> None:
    with lab.attacked():
        lab.others += 4
        lab.hostile.attack("long_answers", count=4)
        wait_until(lambda: lab.trained() == lab.expected())
        assert all(event["seconds_update"] < 5 for event in lab.node.rounds()[-8:])


def test_a_flood(lab: Lab) -> None:
    with lab.attacked():
        lab.establish_honest_peer()
        attack = lab.hostile.begin("flood", seconds=3.0)
        wait_until(lambda: lab.node.refused("rate") > 0)
        lab.keeps_training()
        lab.hostile.end(attack)
        wait_until(lambda: lab.node.counted("messages of peers that are cut off") > 0)


def test_peers_that_announce_what_they_never_deliver(lab: Lab) -> None:
    with lab.attacked(), lab.staller:
        lab.establish_honest_peer()
        lab.staller.begin("stalling_pulls", peers=5, announced=256)
        wait_until(lambda: lab.node.counted("announced rollouts given up") > 256)
        started = time.monotonic()
        lab.pulls_from_honest()
        # Each of those who stall holds up a request for 20 s.
        assert time.monotonic() - started < PULLS.answer_seconds / 2


def test_a_thousand_identities_of_one_machine(lab: Lab) -> None:
    with lab.attacked(), lab.crowd:
        lab.establish_honest_peer()
        before, known = lab.node.counted_in(), lab.expected()
        attack = lab.crowd.begin("identities", authors=1000, connections=32)
        wait_until(lambda: lab.node.counted_in() > before + 100)
        lab.keeps_training()
        seen = lab.crowd.end(attack)
        assert seen["authors"] == 1000 and seen["connected"] <= MAX_SOCKETS_PER_ADDRESS
        # The crowd gets no more than what all newcomers share, and what has come to that meanwhile.
        honest = lab.expected() - known
        rate = (RATE + NETWORK_RATE) / 60
        assert lab.node.counted_in() - before - honest <= NEWCOMERS_BURST + rate * (time.monotonic() - lab.since)


def test_kill_9_of_a_peer_in_mid_transfer(lab: Lab) -> None:
    with lab.attacked():
        large, failed = lab.honest.large(), lab.node.counted("pulls failed")
        lab.killer.begin("die_in_transfer", digest=lab.honest.record(large).digest.hex())
        assert lab.killer.process.wait(PATIENCE) == -signal.SIGKILL
        wait_until(lambda: lab.node.counted("pulls failed") > failed)
        lab.pulls_from_honest(large)


def test_kill_9_of_the_node_in_mid_transfer(lab: Lab) -> None:
    rounds, pulled = lab.node.rounds()[-1]["round"], lab.node.counted("rollouts pulled")
    lab.honest.transport.publish([lab.honest.large() for _ in range(16)])
    wait_until(lambda: lab.node.counted("rollouts pulled") > pulled)
    lab.node.kill()
    lab.node.start()
    # It goes on from its last checkpoint, under its name, and the honest peer finds it again.
    wait_until(lambda: lab.node.rounds()[-1]["round"] > rounds + 2)
    wait_until(lambda: any(peer.mesh for peer in lab.honest.transport.status().peers))
    before = lab.trained()
    lab.honest.publish()
    wait_until(lambda: lab.trained() >= before + 2)
    assert lab.node.status()["swarm"]["faults"] == {}


Cable = tuple[str, str, Callable[[str], None]]
"""A network namespace, the address of its only interface, and a function that sets it "up" or "down"."""


@pytest.fixture
def cable() -> Iterator[Cable]:
    number, device = os.getpid() % 60, f"sapo{os.getpid()}"
    space, address = name("loss"), f"198.51.100.{4 * number + 2}"
    # The interface of this side goes with its other end.
    with Namespaces() as machines:
        try:
            with permitted():
                machines.add("loss")
        except NotPermittedError as error:
            pytest.skip(str(error))
        ip("link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", space)
        ip("addr", "add", f"198.51.100.{4 * number + 1}/30", "dev", device)
        ip("link", "set", device, "up")
        machines.address("loss", "eth0", f"{address}/30")
        ip("-n", space, "link", "set", "eth0", "up")
        yield space, address, lambda state: ip("-n", space, "link", "set", "eth0", state)


def test_the_network_is_lost_and_returns(tmp_path: Path, source: TaskSource, cable: Cable) -> None:
    space, address, set_cable = cable
    port = free_port()
    with ExitStack() as stack:
        node = RunningNode(tmp_path, f"port={port}", keepalive=1.0, namespace=space)
        stack.callback(node.kill)
        honest = HonestPeer(source, f"/ip4/{address}/tcp/{port}/p2p/{node.status()['peer_id']}", keepalive=1.0)
        stack.callback(honest.transport.close)
        lab = Lab(node, honest)
        lab.keeps_training()
        set_cable("down")
        wait_until(lambda: node.status()["swarm"]["state"] == "alone" and not node.peers())
        rounds = len(node.rounds())
        # What nobody receives now is among what is asked for afterwards.
        honest.publish()
        wait_until(lambda: len(node.rounds()) > rounds + 2 and honest.transport.status().state == "alone")
        set_cable("up")
        wait_until(lambda: any(peer.mesh for peer in honest.transport.status().peers))
        lab.keeps_training()
        assert node.status()["swarm"]["faults"] == {} and node.status()["swarm"]["restarts"] == 0
