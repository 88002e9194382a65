"""A host and streams without a network, for tests of what answers a peer."""

from __future__ import annotations

import sapo_edge.swarm  # noqa: F401 -- lets libp2p do without libraries that it names

# isort: split
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from multiaddr import Multiaddr

from sapo_edge.swarm.host.identify import MAX_IDENTIFY_BYTES


class FakeConnection:
    """One end of a connection. The IP address of the other end is None through a relay."""

    def __init__(self, peer_id: str, remote: str | None = "127.0.0.1") -> None:
        self.peer_id = ID.from_string(peer_id)
        self.remote = remote
        self.muxed_conn = self
        self.event_started = trio.Event()
        self.event_started.set()
        self.unfinished = 0

    def get_remote_address(self) -> tuple[str, int] | None:
        return None if self.remote is None else (self.remote, 50_000)


class FakeSocket:
    """A TCP stream as a listener gets it, from an IP address, with something to read at any time.

    Until `reads` is set, the other end reads the first half of what is written.
    """

    def __init__(self, host: str = "192.0.2.1", port: int = 4001) -> None:
        self.stream = self.socket = self
        self.reads = trio.Event()
        self.written = b""
        self.closed = False
        self._remote = (host, port)

    def getpeername(self) -> tuple[str, int]:
        return self._remote

    async def read(self, n: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        return bytes(n or 1)

    async def write(self, data: bytes) -> None:
        self.written += data[: len(data) // 2]
        await self.reads.wait()
        self.written += data[len(data) // 2 :]

    def close(self) -> None:
        self.closed = True
        self.reads.set()


class FakeStream:
    """A stream of a peer that has sent all of its data, or, with None, sends nothing; the peer may not read, either.

    `most` is the largest number of bytes that may be asked for at once.
    """

    def __init__(
        self, connection: FakeConnection, data: bytes | None, reads: bool = True, most: int | None = None
    ) -> None:
        self.muxed_conn = connection
        self.written = b""
        self.was_reset = False
        self.reads = reads
        self.most = most
        self._data = data

    async def read(self, n: int | None = None) -> bytes:
        assert self.most is None or (n is not None and 0 < n <= self.most)
        await trio.lowlevel.checkpoint()
        if self._data is None:
            await trio.sleep_forever()
            raise AssertionError
        part, self._data = self._data[:n], self._data[n:] if n else b""
        return part

    async def write(self, data: bytes) -> None:
        if not self.reads:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        self.written += data

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()

    async def reset(self) -> None:
        await trio.lowlevel.checkpoint()
        self.was_reset = True


class FakeHost:
    """Keeps stream handlers and connections; it is its own network."""

    def __init__(self, *connections: FakeConnection) -> None:
        self.handlers: dict[str, Callable[[Any], Awaitable[None]]] = {}
        self.notifees: list[Any] = []
        self.connections: dict[ID, list[FakeConnection]] = {each.peer_id: [each] for each in connections}

    def register_notifee(self, notifee: Any) -> None:
        self.notifees.append(notifee)

    async def disconnect(self, connection: FakeConnection) -> None:
        self.connections.pop(connection.peer_id)
        for notifee in self.notifees:
            await notifee.disconnected(self, connection)

    def remove_stream_handler(self, protocol: str) -> None:
        self.handlers.pop(str(protocol), None)

    def set_stream_handler(self, protocol: str, handler: Callable[[Any], Awaitable[None]]) -> None:
        self.handlers[str(protocol)] = handler

    def get_network(self) -> FakeHost:
        return self

    def get_connections(self, peer_id: ID) -> list[FakeConnection]:
        return self.connections.get(peer_id, [])

    async def ask(self, protocol: str, connection: FakeConnection, request: bytes) -> bytes | None:
        """The response to a request of a peer; None if the stream was reset."""
        stream = FakeStream(connection, len(request).to_bytes(4, "big") + request)
        await self.handlers[protocol](stream)
        return None if stream.was_reset else stream.written[4:]


class Answering(FakeHost):
    """A host with one peer that has answered identify, and the library's store; it keeps what is recorded."""

    def __init__(self, connection: FakeConnection, answer: bytes) -> None:
        super().__init__(connection)
        self.store = PeerStore()
        self.observed: list[Multiaddr] = []
        self.stream = FakeStream(connection, answer, most=MAX_IDENTIFY_BYTES)
        self._observed_addr_manager = self

    def get_peerstore(self) -> PeerStore:
        return self.store

    def get_transport_addrs(self) -> list[Multiaddr]:
        return []

    def record_observation(self, connection: FakeConnection, seen: Multiaddr, own: list[Multiaddr]) -> None:
        self.observed.append(seen)

    async def new_stream(self, peer_id: ID, protocols: list[str]) -> FakeStream:
        await trio.lowlevel.checkpoint()
        return self.stream
