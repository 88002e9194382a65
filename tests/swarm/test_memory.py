"""The swarm inside one process."""

from __future__ import annotations

import threading
from dataclasses import replace

from sapo_edge.rollout import Rollout
from sapo_edge.swarm.memory import MemorySwarm
from tests.fakes import make_rollout


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

    def visit() -> None:
        for _ in range(200):
            swarm.join().close()

    threads = [threading.Thread(target=visit) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(200):
        sender.publish([make_rollout(sequence=number)])
    for thread in threads:
        thread.join()
    assert len(inbox) == 200
