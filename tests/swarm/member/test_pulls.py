"""Pulls: whose requests are answered, and what a node asks of whom. No network."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest
import trio
import trio.testing
from libp2p.peer.id import ID

from sapo_edge.swarm.host.requests import RequestError
from sapo_edge.swarm.host.traffic import COMMON_BURST, SERVED_BURST, Meter
from sapo_edge.swarm.judging.reputation import IGNORE_AT
from sapo_edge.swarm.member import pull as module
from sapo_edge.swarm.member.member import Member
from sapo_edge.swarm.member.pull import MAX_ATTEMPTS, MAX_PULLS, MAX_SOURCES, PULLS, Puller, PullServer
from sapo_edge.swarm.wire.messages import (
    MAX_REQUESTED,
    MAX_RESPONSE_BYTES,
    Request,
    decode_response,
    encode_request,
    encode_response,
)
from sapo_edge.swarm.wire.record import RawRecord
from tests.swarm.host.streams import FakeConnection, FakeHost, FakeStream
from tests.swarm.member.members import make_member, make_record, peer


def digest(number: int) -> bytes:
    return hashlib.sha256(bytes([number])).digest()


class Server:
    """A server of pulls, and one peer that asks it."""

    def __init__(self, upload: int = 0) -> None:
        self.member = make_member()
        self.host = FakeHost()
        self.meter = Meter(upload, 0, self.member.tally)
        PullServer(self.host, self.member, self.meter).start()

    async def ask(self, request: Request, asker: int = 9) -> bytes | None:
        return await self.host.ask(PULLS.protocol_id, FakeConnection(peer(asker)), encode_request(request))

    async def recent(self, swarm: bytes) -> int | None:
        """Number of recent rollouts in a response; None if it was refused."""
        response = await self.ask(Request("recent", swarm=swarm, count=8))
        return None if response is None else len(decode_response(response).records)

    def refused(self, reason: str) -> int:
        return self.member.tally.counts.get(f"pulls refused: {reason}", 0)


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        with trio.fail_after(10):
            await scenario()

    trio.run(limited)


def test_one_peer_may_not_ask_all_the_time() -> None:
    async def scenario() -> None:
        server = Server()
        answers = [await server.ask(Request("rollouts", (digest(1),))) for _ in range(40)]
        assert sum(answer is None for answer in answers) == server.refused("rate") >= 8
        assert await server.ask(Request("rollouts", (digest(1),)), asker=8) is not None

    play(scenario)


def test_an_ignored_peer_gets_nothing() -> None:
    async def scenario() -> None:
        server = Server()
        assert await server.recent(server.member.swarm) == 0
        server.member.admission.reputation.penalize(peer(9), IGNORE_AT)
        assert await server.recent(server.member.swarm) is None and server.refused("ignored peer") == 1

    play(scenario)


def test_nothing_is_served_while_the_upload_cap_is_used_up() -> None:
    async def scenario() -> None:
        server = Server(upload=1000)
        assert await server.recent(server.member.swarm) == 0
        server.meter.upload.charge(server.meter.upload.burst + 10_000)
        assert await server.recent(server.member.swarm) is None and server.refused("upload cap") == 1

    play(scenario)


def test_a_rollout_that_is_requested_several_times_is_sent_once() -> None:
    async def scenario() -> None:
        server = Server()
        record = make_record(server.member)
        server.member.records.add(record)
        response = await server.ask(Request("rollouts", digests=(record.digest,) * MAX_REQUESTED))
        assert response is not None and decode_response(response).records == (record,)

    play(scenario)


def test_small_requests_return_no_more_than_an_address_may_have() -> None:
    """Without a budget of bytes, 30 requests of 1 KB returned 15 MiB, and another 30 of another key as much."""

    async def scenario() -> None:
        server = Server()
        record = make_record(server.member)
        large = [replace(record, body=record.body + bytes([number]) * 60_000) for number in range(8)]
        for item in large:
            server.member.records.add(item)
        wanted = Request("rollouts", digests=tuple(item.digest for item in large))
        for asker, remote in ((5, "192.0.2.1"), (6, "192.0.2.1"), (7, "192.0.2.1"), (8, "198.51.100.1")):
            server.host.connections[ID.from_string(peer(asker))] = [FakeConnection(peer(asker), remote)]
        responses = [await server.ask(wanted, asker) for asker in (5, 6, 7) for _ in range(int(PULLS.burst))]
        returned = sum(len(response) for response in responses if response)
        assert COMMON_BURST <= returned <= COMMON_BURST + MAX_RESPONSE_BYTES + SERVED_BURST
        assert server.refused("the address has had too much") > 60
        await trio.sleep(0.01)
        assert await server.ask(wanted, 8), "another address has a share of its own"

    play(scenario)


def test_with_an_upload_cap_one_response_is_sent_at_a_time() -> None:
    async def scenario() -> None:
        server = Server(upload=1000)
        async with trio.open_nursery() as nursery:
            slow = FakeStream(FakeConnection(peer(8)), None)
            nursery.start_soon(server.host.handlers[PULLS.protocol_id], slow)
            await trio.testing.wait_all_tasks_blocked()
            assert await server.recent(server.member.swarm) is None and server.refused("upload cap") == 1
            nursery.cancel_scope.cancel()

    play(scenario)


def test_rollouts_are_served_to_their_own_swarm_only() -> None:
    async def scenario() -> None:
        server = Server()
        server.member.records.add(make_record(server.member))
        assert await server.recent(server.member.swarm) == 1
        assert await server.recent(bytes(32)) == 0

    play(scenario)


class Client:
    """A puller, the peers that it can ask, and what they are asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *neighbours: int, download: int = 0) -> None:
        self.member: Member = make_member()
        self.neighbours = [peer(number) for number in neighbours]
        self.received: list[RawRecord] = []
        self.response: bytes | None = None
        meter = Meter(0, download, self.member.tally)
        self.puller = Puller(FakeHost(), self.member, meter, lambda: self.neighbours, self._receive)

        async def request(*_: object) -> bytes:
            await trio.lowlevel.checkpoint()
            if self.response is None:
                raise RequestError("no answer")
            return self.response

        monkeypatch.setattr(module, "request", request)

    def _receive(self, records: Sequence[RawRecord], sender: str) -> None:
        self.received += records

    def next(self) -> tuple[str, list[bytes]] | None:
        return self.puller._next()

    async def pull(self) -> None:
        batch = self.next()
        assert batch is not None
        await self.puller._pull(*batch)

    @property
    def wanted(self) -> dict[bytes, list[str]]:
        return {digest: want.sources for digest, want in self.puller._wanted.items()}


def test_only_rollouts_that_were_asked_for_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        client = Client(monkeypatch, 8)
        asked, other = (make_record(client.member, sequence=number) for number in (1, 2))
        client.response = encode_response([asked, other])
        client.puller.want([asked.digest], [peer(8)])
        await client.pull()
        assert client.received == [asked] and not client.wanted

    play(scenario)


def test_many_announcements_are_looked_through_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        client = Client(monkeypatch)
        looks = 0

        def count() -> None:
            nonlocal looks
            looks += 1

        monkeypatch.setattr(client.puller, "_next", count)
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.puller.run)
            for number in range(300):
                client.puller.want([make_record(client.member, sequence=number + 1).digest], [peer(8)])
                await trio.sleep(0.001)
            nursery.cancel_scope.cancel()
        assert 2 <= looks <= (trio.current_time() - begun) / module.LOOK_SECONDS + 2

    play(scenario)


def test_whoever_announces_most_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WANTED", 4)

    async def scenario() -> None:
        client = Client(monkeypatch)
        client.puller.want([digest(1)], [peer(8)])
        client.puller.want([digest(number) for number in range(2, 12)], [peer(9)])
        assert len(client.wanted) == 4 and digest(1) in client.wanted
        assert client.member.tally.counts["announced rollouts given up"] == 7

    play(scenario)


def test_few_sources_of_a_rollout_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        client = Client(monkeypatch)
        for number in range(2, 20):
            client.puller.want([digest(1)], [peer(number)])
        assert len(client.wanted[digest(1)]) == MAX_SOURCES

    play(scenario)


def test_a_rollout_that_nobody_delivers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)

    async def scenario() -> None:
        client = Client(monkeypatch, 8)
        client.puller.want([digest(1)], [peer(8)])
        for _ in range(MAX_ATTEMPTS):
            assert client.wanted
            await client.pull()
        assert not client.wanted

    play(scenario)


def test_a_peer_that_does_not_answer_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        client = Client(monkeypatch, 8)
        client.puller.want([digest(1)], [peer(8)])
        await client.pull()
        client.puller.want([digest(2)], [peer(8)])
        assert client.next() is None

    play(scenario)


def test_false_announcements_cause_few_requests_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        client = Client(monkeypatch, 7, 8)
        asked = 0
        for number in range(20):
            client.puller.want([digest(number)], ["gone"])
            asked += client.next() is not None
            client.puller._busy.clear()
        assert asked == module.GUESS_BURST

    play(scenario)


def test_one_request_at_a_time_is_kept_for_peers_that_deliver(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        client = Client(monkeypatch, *range(2, 9))
        client.puller._remember(peer(8), 0)
        for number in range(2, 8):
            client.puller.want([digest(number)], [peer(number)])
        asked = [client.next() for _ in range(MAX_PULLS)]
        assert [batch is not None for batch in asked] == [True] * (MAX_PULLS - 1) + [False]
        client.puller.want([digest(8)], [peer(8)])
        assert client.next() == (peer(8), [digest(8)])
        client.puller.want([digest(9)], [peer(9)])
        client.neighbours.append(peer(9))
        client.puller._remember(peer(9), 0)
        assert client.next() is None, "no more at a time, whoever it is"

    play(scenario)


def test_nothing_is_pulled_while_the_download_cap_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        client = Client(monkeypatch, 7, 8, download=1000)
        client.puller.want([digest(1)], [peer(7)])
        client.puller.want([digest(2)], [peer(8)])
        assert client.next() is not None and client.next() is None, "with a cap, one at a time"

    play(scenario)


def test_garbage_as_an_answer_is_counted_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        client = Client(monkeypatch, 8)
        client.response = b"garbage"
        await client.puller.recent(peer(8), 4)
        assert client.received == [] and client.member.tally.counts["pulls answered with garbage"] == 1
        assert not client.member.tally.faults

    play(scenario)
