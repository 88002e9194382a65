"""Pulls: whose requests are answered, and what a node asks of whom. No network, and time passes as nothing happens."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing
from libp2p.peer.id import ID

from sapo_edge.swarm.host.requests import RequestError
from sapo_edge.swarm.host.traffic import COMMON_BURST, SERVED_BURST, Meter
from sapo_edge.swarm.judging.admission import CheckResult
from sapo_edge.swarm.judging.reputation import IGNORE_AT
from sapo_edge.swarm.member import pull as module
from sapo_edge.swarm.member.pull import GUESS_BURST, MAX_ATTEMPTS, MAX_PULLS, MAX_SOURCES, PULLS, Puller, PullServer
from sapo_edge.swarm.wire import messages
from sapo_edge.swarm.wire.messages import OWN, Request, decode_request, decode_response, encode_request, encode_response
from sapo_edge.swarm.wire.record import RawRecord
from sapo_edge.tasks.manifest import load_manifest
from tests.defences.defence import fails_without
from tests.swarm.host.streams import FakeConnection, FakeHost, FakeStream
from tests.swarm.loop import in_trio, meanwhile
from tests.swarm.member.members import make_member, make_record, peer


def digest(number: int) -> bytes:
    return hashlib.sha256(bytes([number])).digest()


class Server:
    """A server of pulls, and one peer that asks it."""

    def __init__(self, upload: int = 0, **options: Any) -> None:
        self.member = make_member(**options)
        self.host = FakeHost()
        self.meter = Meter(upload, 0, self.member.tally)
        PullServer(self.host, self.member, self.meter).start()

    async def ask(self, request: Request, asker: int = 9) -> bytes | None:
        return await self.host.ask(PULLS.protocol_id, FakeConnection(peer(asker)), encode_request(request))

    async def recent(self, swarm: bytes | None = None) -> int | None:
        """Number of recent rollouts in a response; None if it was refused."""
        response = await self.ask(Request("recent", swarm=swarm or self.member.swarm, count=8))
        return None if response is None else len(decode_response(response).records)

    def refused(self, reason: str) -> int:
        return self.member.tally.counts.get(f"pulls refused: {reason}", 0)


@fails_without("swarm/member/pull.py", "rate=2.0,\n    burst=30.0,", "rate=0.0,\n    burst=30.0,")
@in_trio(jumps=0)
async def test_one_peer_may_not_ask_all_the_time() -> None:
    server, request = Server(), Request("rollouts", (digest(1),))
    answers = [await server.ask(request) for _ in range(40)]
    assert sum(answer is None for answer in answers) == server.refused("rate") == 40 - PULLS.burst
    assert await server.ask(request, asker=8) is not None
    await trio.sleep(1 / PULLS.rate)
    assert [await server.ask(request) is None for _ in range(2)] == [False, True]


@fails_without("swarm/member/pull.py", "if self._member.is_ignored(peer_id):")
@fails_without("swarm/member/pull.py", '"upload cap" if upload.rate and upload.level() <= reserved else ""', '""')
@fails_without("swarm/member/pull.py", "self._server.serving * MAX_RESPONSE_BYTES", "0")
@fails_without("swarm/member/pull.py", "if own_swarm else []")
@in_trio(jumps=0)
async def test_recent_rollouts_are_for_members_who_are_not_ignored_and_within_the_upload_cap() -> None:
    server = Server(upload=1000)
    server.member.records.add(make_record(server.member))
    assert (await server.recent(), await server.recent(bytes(32))) == (1, 0)
    async with meanwhile() as nursery:
        nursery.start_soon(server.host.handlers[PULLS.protocol_id], FakeStream(FakeConnection(peer(8)), None))
        await trio.testing.wait_all_tasks_blocked()
        assert await server.recent() is None and server.refused("upload cap") == 1, "one response is sent at a time"
    server.meter.upload.charge(server.meter.upload.burst + 10_000)
    assert await server.recent() is None and server.refused("upload cap") == 2
    server.member.admission.reputation.penalize(peer(9), IGNORE_AT)
    assert await server.recent() is None and server.refused("ignored peer") == 1


@fails_without("swarm/member/pull.py", "own = {OWN} if member.config.contacts else set()", "own = {OWN}")
@in_trio(jumps=0)
async def test_a_node_tells_strangers_its_manifest_only_if_they_may_find_it() -> None:
    for contacts in ((), (("192.0.2.1", 6881),)):
        response = await Server(contacts=contacts).ask(Request("manifest", (OWN,)))
        manifest = load_manifest("starter").to_bytes() if contacts else None
        assert response is not None and decode_response(response).manifest == manifest


@fails_without("swarm/wire/messages.py", "tuple(dict.fromkeys(digests))", "tuple(digests)")
@in_trio(jumps=0)
async def test_a_rollout_that_is_requested_several_times_is_sent_once() -> None:
    server = Server()
    record = make_record(server.member)
    server.member.records.add(record)
    response = await server.ask(Request("rollouts", digests=(record.digest,) * messages.MAX_REQUESTED))
    assert response is not None and decode_response(response).records == (record,)


@fails_without("swarm/member/pull.py", "muxed_conn.peer_id)), len(response))", "muxed_conn.peer_id)), 0)")
@in_trio()
async def test_small_requests_return_no_more_than_an_address_may_have() -> None:
    """Without a budget of bytes, 30 requests of 1 KB returned 15 MiB, and another 30 of another key as much."""
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
    assert COMMON_BURST <= returned <= COMMON_BURST + messages.MAX_RESPONSE_BYTES + SERVED_BURST
    assert server.refused("the address has had too much") > 60
    await trio.sleep(0.01)
    assert await server.ask(wanted, 8), "another address has a share of its own"


class Client:
    """A puller, and what it asks of whom: peers, of which some are proven to bring good rollouts.

    All answer with `response`, if there is one, after so many `seconds`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *neighbours: int, download: int = 0) -> None:
        self.member = make_member()
        self.neighbours = [peer(number) for number in neighbours]
        self.received: list[RawRecord] = []
        self.response: bytes | None = None
        self.seconds = 0.0
        self.asked: list[tuple[str, tuple[bytes, ...]]] = []
        self.proven: set[str] = set()
        self.looks = 0
        self.check: Callable[[Sequence[RawRecord], str], CheckResult] = lambda records, sender: CheckResult()
        self.puller = Puller(FakeHost(), self.member, Meter(0, download, self.member.tally), self._look, self._receive)
        monkeypatch.setattr(module, "request", self._request)
        monkeypatch.setattr(self.member.admission.reputation, "is_established", self.proven.__contains__)

    async def _request(self, host: object, peer_id: str, protocol: object, data: bytes) -> bytes:
        self.asked.append((peer_id, decode_request(data).digests))
        await trio.sleep(self.seconds)
        if self.response is None:
            raise RequestError("no answer")
        return self.response

    def _look(self) -> Sequence[str]:
        self.looks += 1
        return self.neighbours

    def _receive(self, records: Sequence[RawRecord], sender: str) -> CheckResult:
        self.received += records
        return self.check(records, sender)

    @asynccontextmanager
    async def running(self, seconds: float) -> AsyncIterator[None]:
        """Pull for so long, and longer in this context."""
        async with meanwhile(self.puller.run):
            await trio.sleep(seconds)
            yield

    async def run(self, seconds: float) -> None:
        async with self.running(seconds):
            pass

    @property
    def given_up(self) -> int:
        return self.member.tally.counts.get("announced rollouts given up", 0)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    return Client(monkeypatch, 8)


@fails_without("swarm/member/pull.py", "if record.digest in digests]", "]")
@in_trio(jumps=0)
async def test_only_rollouts_that_were_asked_for_are_taken(client: Client) -> None:
    asked, other = (make_record(client.member, sequence=number) for number in (1, 2))
    client.response = encode_response([asked, other])
    client.puller.want([asked.digest], [peer(8)])
    await client.run(60)
    assert client.received == [asked] and client.asked == [(peer(8), (asked.digest,))]


@fails_without("swarm/member/pull.py", "again = result.blames_sender or ", "again = ")
@fails_without("swarm/member/pull.py", "if records and not result.blames_sender:", "if records:")
@in_trio(jumps=0)
async def test_a_rollout_with_a_false_signature_is_asked_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(monkeypatch, 8, 9)
    record = make_record(client.member)
    true, false = (encode_response([each]) for each in (record, replace(record, signature=bytes(64))))
    client.check = client.member.admission.check_records
    client.puller.want([record.digest], [peer(8), peer(9)])
    client.response = false
    async with client.running(1):
        assert client.received and not client.puller._is_proven(peer(8))
        client.response = true
        await trio.sleep(60)
    assert [name for name, _ in client.asked] == [peer(8), peer(9)] and client.received[-1] == record


@fails_without("swarm/member/pull.py", "not self._on_records(records, peer_id).blames_sender and ")
@in_trio(jumps=0)
async def test_who_brings_a_newcomer_false_rollouts_does_not_count_as_one_that_delivers(client: Client) -> None:
    record = make_record(client.member)
    client.check = client.member.admission.check_records
    for signature, is_proven in ((bytes(64), False), (record.signature, True)):
        client.response = encode_response([replace(record, signature=signature)])
        await client.puller.recent(peer(8), 4)
        assert client.puller._is_proven(peer(8)) is is_proven


@fails_without("swarm/member/pull.py", " or Rejection.IGNORED in result.rejections", "")
@in_trio(jumps=0)
async def test_a_rollout_of_a_peer_that_is_ignored_by_now_is_asked_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(monkeypatch, 8, 9)
    record = make_record(client.member)
    client.response = encode_response([record])
    client.check = client.member.admission.check_records
    client.member.admission.reputation.penalize(peer(8), IGNORE_AT)
    client.puller.want([record.digest], [peer(8), peer(9)])
    await client.run(60)
    assert [name for name, _ in client.asked] == [peer(8), peer(9)]


@fails_without("swarm/member/pull.py", "                await trio.sleep(LOOK_SECONDS)\n")
@in_trio(jumps=0)
async def test_many_announcements_are_looked_through_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(monkeypatch)
    async with client.running(0):
        for number in range(300):
            client.puller.want([number.to_bytes(32, "big")], [peer(8)])
            await trio.sleep(0.001)
    assert 2 <= client.looks <= 0.3 / module.LOOK_SECONDS + 2


@fails_without("swarm/member/pull.py", "if len(self._wanted) > MAX_WANTED:")
@fails_without(
    "swarm/member/pull.py",
    "((source, _),) = Counter(want.sources[0] for want in self._wanted.values()).most_common(1)",
    "source = next(iter(self._wanted.values())).sources[0]",
)
@in_trio(jumps=0)
async def test_whoever_announces_most_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WANTED", 4)
    client = Client(monkeypatch, 8, 9)
    client.puller.want([digest(1)], [peer(8)])
    client.puller.want([digest(number) for number in range(2, 12)], [peer(9)])
    assert client.given_up == 7
    await client.run(1)
    assert sorted(client.asked) == sorted([(peer(8), (digest(1),)), (peer(9), tuple(map(digest, (9, 10, 11))))])


@fails_without("swarm/member/pull.py", "            del want.sources[MAX_SOURCES:]\n")
@in_trio(jumps=0)
async def test_few_sources_of_a_rollout_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ATTEMPTS", MAX_SOURCES + 1)
    client = Client(monkeypatch, *range(19, 1, -1))
    for number in range(2, 20):
        client.puller.want([digest(1)], [peer(number)])
    await client.run(300)
    # The first ones in turn, then whoever is best connected.
    assert [name for name, _ in client.asked] == [*map(peer, range(2, 2 + MAX_SOURCES)), peer(19)]


@fails_without("swarm/member/pull.py", "is not None and want.attempts >= MAX_ATTEMPTS:", "is not None and False:")
@in_trio(jumps=0)
async def test_a_rollout_that_nobody_delivers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its publisher, which forwards its own announcement, is one source."""
    client = Client(monkeypatch, 8, 9)
    client.puller.want([digest(1)], [peer(8), peer(8)])
    await client.run(600)
    assert [name for name, _ in client.asked] == [peer(8), peer(9)] * (MAX_ATTEMPTS // 2) and client.given_up == 1


@fails_without("swarm/member/pull.py", "if self._answers.get(peer, (0, 0.0))[1] <= now]", "]")
@in_trio(jumps=0)
async def test_a_peer_that_does_not_answer_is_left_alone_for_a_while(client: Client) -> None:
    client.puller.want([digest(1)], [peer(8)])
    async with client.running(0.5):
        client.puller.want([digest(2)], [peer(8)])
        await trio.sleep(module.RETRY_SECONDS - 1)
        assert [wanted for _, wanted in client.asked] == [(digest(1),)]
        await trio.sleep(2)
        assert {wanted for _, asked in client.asked[1:] for wanted in asked} == {digest(1), digest(2)}


@fails_without("swarm/member/pull.py", "if announced or self._guesses.take():", "if True:")
@in_trio(jumps=0)
async def test_false_announcements_cause_few_requests_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(monkeypatch, *range(2, 40))
    async with client.running(0):
        for number in range(20):
            client.puller.want([digest(number)], ["gone"])
            await trio.sleep(0.2)
    assert GUESS_BURST - 1 <= len(client.asked) <= GUESS_BURST


@fails_without("swarm/member/pull.py", "        if len(self._busy) >= slots:\n            return None\n")
@fails_without("swarm/member/pull.py", "and (peer in proven or not only_proven)}", "}")
@in_trio(jumps=0)
async def test_one_request_at_a_time_is_kept_for_peers_that_deliver(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(monkeypatch, *range(2, 10))
    client.seconds = 1e9
    client.proven |= {peer(8), peer(9)}
    for number in range(2, 8):
        client.puller.want([digest(number)], [peer(number)])
    async with client.running(1):
        assert len(client.asked) == MAX_PULLS - 1
        client.puller.want([digest(8)], [peer(8)])
        await trio.sleep(1)
        assert client.asked[MAX_PULLS - 1 :] == [(peer(8), (digest(8),))]
        client.puller.want([digest(9)], [peer(9)])
        await trio.sleep(1)
        assert len(client.asked) == MAX_PULLS, "no more at a time, whoever it is"


@fails_without("swarm/member/pull.py", "slots = 1 if self._download.rate else MAX_PULLS", "slots = MAX_PULLS")
@in_trio(jumps=0)
async def test_nothing_is_pulled_while_the_download_cap_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(monkeypatch, 7, 8, download=1000)
    client.seconds = 1e9
    client.puller.want([digest(1)], [peer(7)])
    client.puller.want([digest(2)], [peer(8)])
    await client.run(1)
    assert len(client.asked) == 1, "with a cap, one at a time"


@in_trio(jumps=0)
async def test_garbage_as_an_answer_is_counted_and_ends_nothing(client: Client) -> None:
    client.response = b"garbage"
    await client.puller.recent(peer(8), 4)
    assert client.received == [] and client.member.tally.counts["pulls answered with garbage"] == 1
    assert not client.member.tally.faults
