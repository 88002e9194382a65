"""The contract of all transports, and the swarm inside one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace

import pytest

from sapo_edge.rollout import Answer, Rollout
from sapo_edge.swarm.member.member import Member as SwarmMember
from sapo_edge.swarm.memory import MemorySwarm
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource
from sapo_edge.transport import Transport
from tests.fakes import make_rollout
from tests.swarm.member.members import make_member
from tests.waiting import wait_until

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
    started: list[SwarmMember] = []

    def join() -> Member:
        bootstrap = started[0].status().addresses if started else ()
        transport = make_member(len(started) + 1, SOURCE, bootstrap=bootstrap).start()
        stack.enter_context(closing(transport))
        started.append(transport)
        wait_until(lambda: transport.status().state == ("connected" if bootstrap else "alone"))
        return Member(transport, transport.status().peer_id, len(started))

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


def test_published_rollouts_reach_every_other_member_once_as_text_until_it_leaves(join: Join) -> None:
    one, two, three = (join() for _ in range(3))
    second: list[Rollout] = []
    two.transport.subscribe(lambda rollout, _: second.append(rollout))
    sent = one.rollouts(0, 1)
    one.transport.publish(sent)
    answered = two.rollouts(0)
    two.transport.publish(answered)
    wait_until(lambda: len(three.inbox) == 3 and len(two.inbox) == 2 and len(one.inbox) == 1)
    two.transport.close()
    two.transport.close()
    two.transport.publish(two.rollouts(1))
    last = one.rollouts(2)
    one.transport.publish(last)
    wait_until(lambda: len(three.inbox) == 4)
    time.sleep(0.2)
    key = lambda rollout: (rollout.author, rollout.sequence)  # noqa: E731
    shared, later = ([rollout.as_text() for rollout in rollouts] for rollouts in (sent, last))
    assert sorted(two.inbox, key=key) == sorted(second, key=key) == shared
    assert one.inbox == [answered[0].as_text()]
    assert sorted(three.inbox, key=key) == sorted([*shared, answered[0].as_text(), *later], key=key)


def test_publishing_without_peers_never_blocks(join: Join) -> None:
    alone = join()
    started = time.monotonic()
    alone.transport.publish(alone.rollouts(0, 1, 2))
    alone.transport.publish([])
    assert time.monotonic() - started < 0.5
    assert alone.inbox == []


def test_what_is_delivered_has_its_id() -> None:
    swarm = MemorySwarm()
    sender, reader = swarm.join(), swarm.join()
    inbox: list[Rollout] = []
    reader.subscribe(lambda rollout, _: inbox.append(rollout))
    rollout = make_rollout()
    signed = replace(rollout, digest="ab" * 32)
    sender.publish([rollout, signed])
    assert [received.digest for received in inbox] == [rollout.as_text().id, signed.digest]


def test_members_can_join_and_leave_while_others_publish() -> None:
    swarm = MemorySwarm()
    inbox: list[Rollout] = []
    sender, reader = swarm.join(), swarm.join()
    reader.subscribe(lambda rollout, _: inbox.append(rollout))

    def visit(times: int) -> None:
        for _ in range(times):
            swarm.join().close()

    with ThreadPoolExecutor(3) as threads:
        visits = threads.map(visit, [200] * 3)
        for number in range(200):
            sender.publish([make_rollout(sequence=number)])
    assert len(inbox) == 200 and len(list(visits)) == 3
