"""Bounds that hold between real hosts with the figures that are promised; time passes as fast as nothing happens."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from libp2p.abc import IHost, INetStream
from libp2p.identity.identify.identify import ID as IDENTIFY
from libp2p.io.exceptions import ConnectionClosedError
from multiaddr import Multiaddr

from sapo_edge.swarm.host.traffic import Meter, MeteredTCP
from sapo_edge.swarm.tally import Tally
from tests.swarm.host.victims import LOOPBACK, Hardened, attacker, bare_host, dial, hardened

MIB = 1024 * 1024


def play(scenario: Callable[[Hardened], Awaitable[None]]) -> None:
    """Run a scenario against a host, without waiting for what only waits."""

    async def run() -> None:
        async with trio.open_nursery() as nursery, hardened(nursery) as victim:
            await scenario(victim)
            nursery.cancel_scope.cancel()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0.03))


def test_a_handshake_has_ten_seconds() -> None:
    async def scenario(victim: Hardened) -> None:
        port = int(victim.host.get_transport_addrs()[0].value_for_protocol("tcp"))
        started = trio.current_time()
        async with await trio.open_tcp_stream("127.0.0.1", port) as silent:
            while await silent.receive_some(1024):
                pass
        assert 9 < trio.current_time() - started < 11

    play(scenario)


def test_an_answer_to_identify_has_ten_seconds() -> None:
    async def say_nothing(stream: INetStream) -> None:
        await trio.sleep_forever()

    async def scenario(victim: Hardened) -> None:
        host = bare_host()
        host.set_stream_handler(IDENTIFY, say_nothing)
        async with host.run([LOOPBACK]):
            started = trio.current_time()
            await dial(host, victim.address)
            while "peers that did not identify themselves" not in victim.tally.counts:
                await trio.sleep(0.5)
            assert 9 < trio.current_time() - started < 11

    play(scenario)


def test_a_write_without_progress_has_thirty_seconds() -> None:
    async def read_nothing(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async def run() -> None:
        tally = Tally(lambda event: None)
        meter = Meter(0, 0, tally)
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(partial(trio.serve_tcp, read_nothing, 0, host="127.0.0.1"))
            address = Multiaddr(f"/ip4/127.0.0.1/tcp/{listener.socket.getsockname()[1]}")
            connection: Any = await MeteredTCP(meter).dial(address)
            started = trio.current_time()
            with pytest.raises(ConnectionClosedError):
                await connection.stream.write(bytes(64 * MIB))
            assert 29 < trio.current_time() - started < 31 and tally.counts == {"stalled sockets closed": 1}
            nursery.cancel_scope.cancel()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0.03))


def test_unread_data_of_all_connections_has_seven_mib() -> None:
    async def scenario(victim: Hardened) -> None:
        most = 0

        async def wait(stream: INetStream) -> None:
            await trio.sleep_forever()

        async def fill(host: IHost) -> None:
            nonlocal most
            with contextlib.suppress(Exception):
                stream = await host.new_stream(victim.peer_id, ["/unread"])
                stream.muxed_stream.send_window = 2**31
                for _ in range(10):
                    await stream.write(bytes(MIB // 4))
                    network = victim.host.get_network()
                    most = max(most, sum(one.muxed_conn.unread for one in network.get_connections()))
                    await trio.sleep(0.02)

        victim.host.set_stream_handler("/unread", wait)
        async with contextlib.AsyncExitStack() as stack:
            hosts = [await stack.enter_async_context(attacker(victim)) for _ in range(5)]
            async with trio.open_nursery() as nursery:
                for host in hosts:
                    nursery.start_soon(fill, host)
        assert 4 * MIB < most < 7 * MIB
        assert victim.tally.counts["connections closed: too much unread data in all"] > 0

    play(scenario)
