"""Requests between peers: what a server refuses, and what a client does not accept."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
import trio
import trio.testing
from libp2p.abc import INetStream
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID

from sapo_edge.swarm.host import requests
from sapo_edge.swarm.host.requests import Protocol, RequestError, RequestServer, request
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.tally import Tally
from tests.defences.defence import fails_without
from tests.swarm.host.streams import FakeConnection, FakeHost, FakeStream
from tests.swarm.host.victims import attacker, hardened, until
from tests.swarm.loop import in_trio

ECHO = Protocol(
    "/test/requests/1.0.0", "echoes", max_request=64, max_response=64, rate=0.1, burst=9, max_served=2,
    read_seconds=0.3, answer_seconds=2.0, total_seconds=3.0,
)  # fmt: skip


async def echo(data: bytes, stream: INetStream) -> bytes:
    await trio.lowlevel.checkpoint()
    return data


@fails_without("swarm/host/requests.py", ' if self._buckets.of(peer_id).take() else "rate"')
@fails_without("swarm/host/requests.py", "if displaced is place:")
@fails_without("swarm/host/requests.py", "refusal = self._other_refusal(peer_id)", 'refusal = ""')
@fails_without("swarm/host/requests.py", "if size > limit:")
@fails_without("swarm/host/requests.py", "with trio.fail_after(self._protocol.read_seconds):", "if True:")
@fails_without("swarm/host/requests.py", '                self._blame(peer_id, "request")\n')
@in_trio()
async def test_requests_are_bounded_and_refusals_are_counted() -> None:
    blamed: list[tuple[str, str]] = []

    async def answer(data: bytes, stream: INetStream) -> bytes:
        if data == b"invalid":
            raise RequestError("invalid")
        await trio.sleep(0.5 if data == b"slow" else 0)
        return data * 10 if data == b"enlarged" else data

    async with hardened() as victim, attacker(victim) as client:
        tally, server, own_id = victim.tally, str(victim.peer_id), str(client.get_id())
        RequestServer(
            victim.host, ECHO, answer, tally, lambda peer_id: "closed" if tally.counts.get("closed") else "",
            lambda peer_id, offence: blamed.append((peer_id, offence)),
        ).start()  # fmt: skip
        assert await request(client, server, ECHO, b"hello") == b"hello"
        for data in (b"invalid", b"x" * 65, b"enlarged"):
            with pytest.raises(RequestError):
                await request(client, server, ECHO, data)
        assert blamed == [(own_id, "request")] * 2, "a response that is too long is not the client's fault"
        silent = await client.new_stream(ID.from_string(server), [TProtocol(ECHO.protocol_id)])
        assert await until(lambda: "echoes refused: too slow" in tally.counts)
        await silent.reset()
        answers: list[bytes] = []

        async def ask() -> None:
            with suppress(RequestError):
                answers.append(await request(client, server, ECHO, b"slow"))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
        assert answers == [b"slow"] * 2
        tally.count("closed")
        for _ in range(3):
            with pytest.raises(RequestError):
                await request(client, server, ECHO, b"too many")
    assert {name: number for name, number in tally.counts.items() if name.startswith("echoes")} == {
        "echoes served": 4, "echoes refused: not a request": 2, "echoes refused: too slow": 1,
        "echoes refused: busy": 1, "echoes refused: closed": 1, "echoes refused: rate": 2,
    }  # fmt: skip


@fails_without("swarm/host/requests.py", "with trio.fail_after(self._protocol.total_seconds):", "if True:")
@in_trio()
async def test_a_peer_that_does_not_read_its_response_holds_no_place_for_long() -> None:
    tally, host = Tally(), FakeHost()
    RequestServer(host, replace(ECHO, total_seconds=0.2), echo, tally).start()
    stream = FakeStream(FakeConnection(Identity(bytes([1]) * 32).peer_id), b"\0\0\0\1x", reads=False)
    with trio.fail_after(5):
        await host.handlers[ECHO.protocol_id](stream)
    assert stream.was_reset
    assert tally.counts == {"echoes refused: too slow": 1}


@fails_without("swarm/host/requests.py", "with trio.fail_after(protocol.answer_seconds):", "if True:")
@fails_without("swarm/host/requests.py", "with trio.fail_after(protocol.total_seconds):", "if True:")
@pytest.mark.parametrize("beginning", [b"", b"\0\0\0\x09x"], ids=["nothing", "a beginning"])
@in_trio()
async def test_a_peer_that_does_not_answer_is_not_waited_for_for_long(beginning: bytes) -> None:
    within = replace(ECHO, answer_seconds=0.3, total_seconds=0.6 if beginning else 9.0)

    async def stall(stream: INetStream) -> None:
        await stream.write(beginning)
        await trio.sleep_forever()

    async with hardened() as server, attacker(server) as client:
        server.host.set_stream_handler(TProtocol(ECHO.protocol_id), stall)
        with trio.fail_after(5), pytest.raises(RequestError):
            await request(client, str(server.peer_id), within, b"hello")


@fails_without("swarm/host/requests.py", "Buckets(MAX_REMEMBERED_PEERS,", "Buckets(10**9,")
@in_trio(jumps=0)
async def test_the_oldest_rates_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that has used up its rate may ask again once three others have asked: there is no memory for more."""
    monkeypatch.setattr(requests, "MAX_REMEMBERED_PEERS", 3)
    host, once = FakeHost(), replace(ECHO, burst=1)
    RequestServer(host, once, echo, Tally()).start()
    peers = [FakeConnection(Identity(bytes([number]) * 32).peer_id) for number in range(1, 5)]

    async def are_served(*numbers: int) -> list[bool]:
        return [await host.ask(once.protocol_id, peers[number], b"x") == b"x" for number in numbers]

    assert await are_served(0, 1, 2, 0) == [True, True, True, False]
    assert await are_served(3, 1, 0) == [True, True, False]
