"""A relay and many light members: what it takes to start, and what each connection with a reservation adds.

A light member is a host that connects, asks for a reservation and then does what an idle node does. Members run in
processes of `PER_PROCESS`, and connect from several addresses of 127.0.0.0/8 where the system has them (Linux).
"""

from __future__ import annotations

import sapo_edge.swarm  # noqa: F401 -- lets libp2p do without libraries that it names

# isort: split
import json
import logging
import os
import resource
import secrets
import signal
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from typing import Any

import trio
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage
from libp2p.relay.circuit_v2.protocol import PROTOCOL_ID as HOP
from libp2p.relay.circuit_v2.utils import read_delimited_msg, write_delimited_msg
from multiaddr import Multiaddr

from sapo_edge.swarm.addresses import Address, parse_address
from sapo_edge.swarm.finding.directory import ask
from sapo_edge.swarm.host.host import make_host, running
from sapo_edge.swarm.host.traffic import Meter
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.visits.relay import FILL_SECONDS, MEMBERS
from sapo_edge.swarm.wire.exchange import ExchangeRequest
from tests.benchmarks.measure import Gauge
from tests.swarm.lines import LineProcess

PER_PROCESS = 50
"""Members of one process."""
MEMBERS_PER_ADDRESS = 400
"""Members behind one address: a campus."""
MOST_AT_START = 75.0
"""MB that a relay may take before anybody connects."""
MOST = 120.0
"""MB that it may take with 1,000 members."""
OK = 100
"""Status of a reservation that was granted."""


class Member:
    """A light member, which tries again and again until it has a reservation."""

    def __init__(self, relay: Address, source: str) -> None:
        self._relay, self._source = relay, source
        self._tally = Tally(lambda event: None)
        self._meter = Meter(0, 0, self._tally)
        self.host = make_host(Identity(secrets.token_bytes(32)), None, self._meter)
        self.attempts = 0

    async def run(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(running(self.host, None, 0, self._meter))

    async def join(self) -> None:
        pause = 1.0
        while not await self._try():
            await trio.sleep(pause * (0.5 + secrets.randbelow(1000) / 1000))
            pause = min(2 * pause, 60.0)

    def is_connected(self) -> bool:
        return bool(self.host.get_network().get_connections(ID.from_string(self._relay.peer_id)))

    async def _try(self) -> bool:
        self.attempts += 1
        peer = ID.from_string(self._relay.peer_id)
        network = self.host.get_network()
        try:
            with trio.fail_after(20):
                if not self.is_connected():
                    await network.dial_addr(Multiaddr(str(self._relay)), peer, (self._source, 0))
                stream = await self.host.new_stream(peer, [HOP])
                await write_delimited_msg(stream, HopMessage(type=HopMessage.RESERVE))
                granted = (await read_delimited_msg(stream, HopMessage)).status == OK
                await stream.close()
                return granted and await ask(self.host, str(peer), ExchangeRequest(bytes(32), 0)) is not None
        except Exception:  # noqa: BLE001 - it tries again; the number of attempts is reported
            return False


async def members(relay: Address, count: int, first: int) -> None:
    """Run members in this process until stdin ends. Prints when all have joined, and at the end who stayed."""
    sources = [f"127.1.0.{1 + number // MEMBERS_PER_ADDRESS}" for number in range(first, first + count)]
    async with AsyncExitStack() as stack:
        everybody = [Member(relay, source) for source in sources]
        for member in everybody:
            await member.run(stack)
        async with trio.open_nursery() as nursery:
            for member in everybody:
                nursery.start_soon(member.join)
        print(json.dumps({"joined": count, "attempts": sum(member.attempts for member in everybody)}), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        print(json.dumps({"connected": sum(member.is_connected() for member in everybody)}), flush=True)
        os._exit(0)  # an orderly end of all hosts takes long, and is not measured


def run(count: int, idle_seconds: float) -> None:
    """Print the figures of a relay, whose processor is watched for some seconds once all members have joined."""
    files = max(4096, count + 256)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, max(files, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    with tempfile.TemporaryDirectory() as home:
        arguments = ("--loopback", "--port", "0", "--members", str(max(count, MEMBERS)), "--json", "--home", home)
        relay = LineProcess("-m", "sapo_edge", "relay", *arguments, fork=False)
        crowds: list[LineProcess] = []
        try:
            address = relay.first(lambda line: "addresses" in line)["addresses"][0]
            gauge = Gauge(relay.process.pid)
            time.sleep(2)
            start, alone, cpu = gauge.resident(), gauge.proportional(), gauge.cpu()
            begin = time.monotonic()
            for first in range(0, count, PER_PROCESS):
                number = min(PER_PROCESS, count - first)
                program = ("-m", "tests.benchmarks.relay", address, str(number), str(first))
                crowds.append(LineProcess(*program, fork=False))
            patience = 600 + 12 * FILL_SECONDS
            attempts = sum(crowd.first(lambda line: "joined" in line, patience)["attempts"] for crowd in crowds)
            joined, joining = time.monotonic() - begin, gauge.cpu() - cpu
            full, cpu, begin = gauge.resident(), gauge.cpu(), time.monotonic()
            crowded = gauge.proportional()
            time.sleep(idle_seconds)
            idle = (gauge.cpu() - cpu) / (time.monotonic() - begin)
            after = gauge.resident()
            connected = sum(_connected(crowd) for crowd in crowds)
        finally:
            for crowd in crowds:
                crowd.kill()
            relay.process.send_signal(signal.SIGINT)
            relay.process.wait(30)
    print(f"\n### A relay with {count} members, {min(count, MEMBERS_PER_ADDRESS)} of them behind one address\n")
    print(f"- all joined after {joined:.0f} s and {attempts} attempts; {connected} stayed for {idle_seconds:.0f} s")
    print(f"- at the start: {start:.0f} MB resident, of {MOST_AT_START:.0f} allowed; {alone:.0f} MB proportional")
    print(f"- with all members: {full:.0f} MB resident, {after:.0f} MB at the end; {crowded:.0f} MB proportional")
    print(f"- a member: {1000 * (after - start) / count:.0f} KB, {1000 * joining / count:.1f} ms of processor to join")
    print(f"- idle: {100 * idle:.1f} % of a core, {1000 * idle / count:.3f} ms a second per member")
    assert start <= MOST_AT_START, "an import on the way of a relay has become heavy"
    assert count > MEMBERS or after <= MOST, "a member has become heavy"
    assert connected == count, "members were dropped"


def _connected(crowd: LineProcess) -> int:
    crowd._stdin.close()
    line: dict[str, Any] = crowd.first(lambda line: "connected" in line)
    return int(line["connected"])


if __name__ == "__main__":
    # The library writes about each attempt that the relay refuses.
    logging.disable()
    trio.run(members, parse_address(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
