"""The contract of all transports."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

import pytest

from sapo_edge.rollout import Answer, Rollout
from sapo_edge.swarm.memory import MemorySwarm
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource
from sapo_edge.transport import Transport

SOURCE = TaskSource(load_manifest("starter"))


@dataclass
class Member:
    """A transport with its author and the rollouts that it received."""

    transport: Transport
    author: str
    number: int
    inbox: list[Rollout] = field(default_factory=list)

    def rollouts(self, *sequence: int) -> list[Rollout]:
        """Own rollouts with token ids, which must not leave the node."""
        tasks = [SOURCE.training_tasks(self.number, 100 * position, 1)[0][0] for position in sequence]
        answers = (Answer("4", True, (7, 8), (-0.5, -0.25)), Answer("fünf", False, (9,), (-1.0,)))
        return [
            Rollout(task.ref, task.question, task.ground_truth, answers, self.author, 1, position, time.time())
            for task, position in zip(tasks, sequence, strict=True)
        ]


Join = Callable[[], Member]


def memory_members(stack: ExitStack) -> Join:
    swarm = MemorySwarm()
    numbers = iter(range(1, 100))

    def join() -> Member:
        number = next(numbers)
        return Member(stack.enter_context(closing(swarm.join())), f"member {number}", number)

    return join


def libp2p_members(stack: ExitStack) -> Join:
    from sapo_edge.swarm.config import SwarmConfig
    from sapo_edge.swarm.joining.identity import Identity
    from sapo_edge.swarm.judging.admission import Admission
    from sapo_edge.swarm.judging.reputation import Reputation
    from sapo_edge.swarm.member.libp2p import Libp2pTransport

    transports: list[Libp2pTransport] = []
    swarm = bytes.fromhex(SOURCE.manifest.digest)

    def join() -> Member:
        identity = Identity(bytes([len(transports) + 1]) * 32)
        bootstrap = transports[0].status().addresses if transports else ()
        config = SwarmConfig(identity, SOURCE.manifest, bootstrap=bootstrap, listen="loopback", mdns=False)
        admission = Admission(swarm, SOURCE, Reputation(), own=identity.peer_id)
        transport = Libp2pTransport(config, admission, lambda event: None)
        stack.enter_context(closing(transport))
        transports.append(transport)
        wanted = "connected" if bootstrap else "alone"
        assert eventually(lambda: transport.status().state == wanted)
        return Member(transport, identity.peer_id, len(transports))

    return join


@pytest.fixture(params=[memory_members, libp2p_members], ids=["memory", "libp2p"])
def join(request: pytest.FixtureRequest) -> Iterator[Join]:
    with ExitStack() as stack:
        new = request.param(stack)

        def joined() -> Member:
            member: Member = new()
            member.transport.subscribe(lambda rollout, _: member.inbox.append(rollout))
            return member

        yield joined


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_published_rollouts_reach_every_other_member_once_as_text(join: Join) -> None:
    one, two, three = (join() for _ in range(3))
    second: list[Rollout] = []
    two.transport.subscribe(lambda rollout, _: second.append(rollout))
    sent = one.rollouts(0, 1)
    one.transport.publish(sent)
    answered = two.rollouts(0)
    two.transport.publish(answered)
    assert eventually(lambda: len(three.inbox) == 3 and len(two.inbox) == 2 and len(one.inbox) == 1)
    time.sleep(0.2)
    key = lambda rollout: (rollout.author, rollout.sequence)  # noqa: E731
    shared = [rollout.as_text() for rollout in sent]
    assert sorted(two.inbox, key=key) == sorted(second, key=key) == shared
    assert one.inbox == [answered[0].as_text()]
    assert sorted(three.inbox, key=key) == sorted([*shared, answered[0].as_text()], key=key)


def test_publishing_without_peers_never_blocks(join: Join) -> None:
    alone = join()
    started = time.monotonic()
    alone.transport.publish(alone.rollouts(0, 1, 2))
    alone.transport.publish([])
    assert time.monotonic() - started < 0.5
    assert alone.inbox == []


def test_a_member_that_left_gets_nothing_and_the_others_continue(join: Join) -> None:
    one, two, three = (join() for _ in range(3))
    two.transport.close()
    two.transport.close()
    two.transport.publish(two.rollouts(0))
    one.transport.publish(one.rollouts(0))
    assert eventually(lambda: len(three.inbox) >= 1)
    time.sleep(0.2)
    assert two.inbox == [] and [rollout.author for rollout in three.inbox] == [one.author]
