"""Bounds that hold between real hosts with the figures that are promised; time passes as fast as nothing happens."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import trio
from libp2p.abc import IHost
from libp2p.io.exceptions import ConnectionClosedError
from multiaddr import Multiaddr

from sapo_edge.swarm.host.traffic import Meter, MeteredTCP
from sapo_edge.swarm.tally import Tally
from tests.defences.defence import fails_without
from tests.swarm.host.victims import attacker, hardened, ignore, serving
from tests.swarm.loop import in_trio

MIB = 1024 * 1024
SKIPPED = 0.03
"""Idle seconds after which time passes at once: real sockets answer sooner."""


@fails_without("swarm/host/host.py", "UPGRADE_SECONDS = 10.0", "UPGRADE_SECONDS = 20.0")
@in_trio(SKIPPED)
async def test_a_handshake_has_ten_seconds() -> None:
    async with hardened() as victim:
        port = int(victim.host.get_transport_addrs()[0].value_for_protocol("tcp"))
        started = trio.current_time()
        async with await trio.open_tcp_stream("127.0.0.1", port) as silent:
            while await silent.receive_some(1024):
                pass
        assert 9 < trio.current_time() - started < 11


@fails_without("swarm/host/traffic.py", "WRITE_STALLED = 30.0", "WRITE_STALLED = 60.0")
@in_trio(SKIPPED)
async def test_a_write_without_progress_has_thirty_seconds() -> None:
    tally = Tally()
    async with serving(ignore) as port:
        connection: Any = await MeteredTCP(Meter(0, 0, tally)).dial(Multiaddr(f"/ip4/127.0.0.1/tcp/{port}"))
        started = trio.current_time()
        with pytest.raises(ConnectionClosedError):
            await connection.stream.write(bytes(64 * MIB))
        assert 29 < trio.current_time() - started < 31
        assert connection.stream.gone.is_set() and tally.counts == {"stalled sockets closed": 1}


@fails_without("swarm/host/hardening.py", "        self.backlog.charge(length)\n")
@fails_without("swarm/host/hardening.py", "Backlog(meter.tally, meter.unread)", "Backlog(meter.tally)")
@in_trio(SKIPPED)
async def test_unread_data_of_all_connections_has_seven_mib() -> None:
    most = 0

    async def fill(host: IHost) -> None:
        nonlocal most
        with contextlib.suppress(Exception):
            stream = await host.new_stream(victim.peer_id, ["/unread"])
            stream.muxed_stream.send_window = 2**31
            for _ in range(10):
                await stream.write(bytes(MIB // 4))
                most = max(most, sum(one.muxed_conn.unread for one in victim.host.get_network().get_connections()))
                await trio.sleep(0.02)

    async with hardened() as victim, contextlib.AsyncExitStack() as stack:
        victim.host.set_stream_handler("/unread", ignore)
        hosts = [await stack.enter_async_context(attacker(victim)) for _ in range(5)]
        async with trio.open_nursery() as nursery:
            for host in hosts:
                nursery.start_soon(fill, host)
        assert 4 * MIB < most < 7 * MIB
        assert victim.tally.counts["connections closed: too much unread data in all"] > 0
