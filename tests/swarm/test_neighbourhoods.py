"""From which network a rollout came: that of the peer which delivered it first, by its connection."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing

import pytest

from sapo_edge.rollout import Answer, Rollout
from sapo_edge.swarm.addresses import neighbourhood
from sapo_edge.swarm.config import SwarmConfig
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.judging.admission import Admission
from sapo_edge.swarm.judging.reputation import Reputation
from sapo_edge.swarm.member.libp2p import Libp2pTransport
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("ip", "network"),
    [
        ("127.0.0.1", "loopback"), ("127.9.9.9", "loopback"), ("::1", "loopback"), ("::ffff:127.0.0.1", "loopback"),
        ("192.168.1.7", "private"), ("10.0.0.1", "private"), ("172.16.9.9", "private"), ("169.254.1.1", "private"),
        ("100.64.3.4", "private"), ("fd12::1", "private"), ("fe80::1", "private"), ("fe80::1%eth0", "private"),
        ("9.9.9.9", "9.9.9.0/24"), ("9.9.9.255", "9.9.9.0/24"), ("9.9.8.9", "9.9.8.0/24"),
        ("::ffff:9.9.9.9", "9.9.9.0/24"), ("2002:909:909::1", "9.9.9.0/24"),
        ("2001:0:4136:e378:8000:63bf:f6f6:f6f6", "9.9.9.0/24"),
        ("2620:fe:0:1::9", "2620:fe::/48"), ("2620:fe:0:ffff::1", "2620:fe::/48"), ("2620:fe:1::9", "2620:fe:1::/48"),
    ],
)  # fmt: skip
def test_addresses_of_one_owner_are_one_neighbourhood(ip: str, network: str) -> None:
    assert neighbourhood(ip) == network


def test_a_rollout_comes_with_the_network_of_the_peer_that_delivered_it() -> None:
    source = TaskSource(load_manifest("starter"))
    arrived: list[tuple[int, str]] = []

    def member(stack: ExitStack, number: int, bootstrap: tuple[str, ...] = ()) -> Libp2pTransport:
        identity = Identity(bytes([number]) * 32)
        config = SwarmConfig(identity, source.manifest, bootstrap=bootstrap, listen="loopback", mdns=False)
        admission = Admission(bytes.fromhex(source.manifest.digest), source, Reputation(), own=identity.peer_id)
        return stack.enter_context(closing(Libp2pTransport(config, admission, lambda event: None)))

    with ExitStack() as stack:
        author = member(stack, 1)
        until(lambda: bool(author.status().addresses))
        now, peer_id = time.time(), Identity(bytes([1]) * 32).peer_id
        first, second = (
            Rollout(task.ref, task.question, task.ground_truth, (Answer("x", True),), peer_id, 1, number, now)
            for number, task in enumerate(source.training_tasks(1, 0, 2)[0])
        )
        author.publish([first])
        reader = member(stack, 2, author.status().addresses)
        reader.subscribe(lambda rollout, network: arrived.append((rollout.sequence, network)))
        until(lambda: len(arrived) == 1)
        author.publish([second])
        until(lambda: len(arrived) == 2)
    assert sorted(arrived) == [(0, "loopback"), (1, "loopback")], "the first was pulled, the second gossiped"
