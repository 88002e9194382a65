"""`python -m tests.swarm.member.network_faults`: three members, a bad network, and one that falls into two parts.

Needs root and iproute2. Prints how long rollouts took to arrive.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence

from tests.swarm.member.cables import Cables, address, cables, machine
from tests.swarm.member.member_processes import MemberProcess
from tests.swarm.namespaces import NotPermittedError, name

MEMBERS = 3
PORT = 4001


class Trial:
    """Members on machines of their own, in their order from 1."""

    def __init__(self, network: Cables, members: Sequence[MemberProcess]) -> None:
        self.network, self.members = network, members

    def exchange(self) -> float:
        """Publish a rollout of every member, wait until each arrived at all others, and return the seconds."""
        started = time.monotonic()
        published = [(member, member.publish()) for member in self.members]
        for author, sequences in published:
            for member in self.members:
                if member is not author:
                    member.gets(author, sequences)
        return time.monotonic() - started

    def bad_network(self, loss: float, delay: float, rounds: int) -> list[float]:
        """Exchange rollouts while packets are lost and late; seconds of each exchange."""
        self.network.loss, self.network.delay = loss, delay
        self.network.passed = self.network.lost = 0
        try:
            return [self.exchange() for _ in range(rounds)]
        finally:
            self.network.loss = self.network.delay = 0.0

    def partition(self, seconds: float) -> tuple[float, float]:
        """Separate the last member from the others, publish on both sides, heal, and exchange rollouts.

        Returns the seconds from healing until all of these arrived, and those of an exchange afterwards.
        """
        *most, last = self.members
        number = len(self.members)
        self.network.separate(range(1, number), [number])
        started = time.monotonic()
        meanwhile = {member: member.publish() for member in (most[0], last)}
        for member in most[1:]:
            member.gets(most[0], meanwhile[most[0]])
        time.sleep(max(0.0, started + seconds - time.monotonic()))
        assert not last.received(most[0]) & meanwhile[most[0]], "the parts are separate"
        self.network.separate()
        healed = time.monotonic()
        last.gets(most[0], meanwhile[most[0]])
        for member in most:
            member.gets(last, meanwhile[last])
        return time.monotonic() - healed, self.exchange()


@contextlib.contextmanager
def trial(number: int = MEMBERS) -> Iterator[Trial]:
    """So many connected members during this context; a NotPermittedError if this machine can't have them."""
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(cables(number))
        first = stack.enter_context(_member(1, []))
        bootstrap = [f"/ip4/{address(1)}/tcp/{PORT}/p2p/{first.peer_id}"]
        others = [stack.enter_context(_member(place, bootstrap)) for place in range(2, number + 1)]
        members = [first, *others]
        for member in members:
            member.until(lambda status: sum(peer["subscribed"] for peer in status["peers"]) == number - 1)
        yield Trial(network, members)


def _member(number: int, bootstrap: list[str]) -> MemberProcess:
    return MemberProcess(name(machine(number)), member=number, listen="all", port=PORT, bootstrap=bootstrap)


def main() -> None:
    """Lose a tenth of all packets, and make each late by 0.2 s; then cut one member off for 30 s."""
    try:
        with trial() as it:
            seconds = sorted(it.bad_network(loss=0.1, delay=0.2, rounds=10))
            lost = it.network.lost / (it.network.lost + it.network.passed)
            print(
                f"{100 * lost:.0f} % of packets lost, 0.2 s each: all rollouts of {len(seconds)} exchanges arrived, "
                f"in {seconds[len(seconds) // 2]:.1f} s (median), {seconds[-1]:.1f} s at most"
            )
            healing, after = it.partition(30.0)
            print(
                f"a partition of 30 s: what both sides published arrived {healing:.1f} s "
                f"after it, and an exchange then took {after:.1f} s"
            )
    except NotPermittedError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
