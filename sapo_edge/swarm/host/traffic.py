"""The bytes of all connections: counted where they enter and leave the machine, and held within caps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from libp2p.abc import IRawConnection
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.transport.tcp.tcp import TCP, TCPListener
from multiaddr import Multiaddr

from sapo_edge.swarm.bucket import TokenBucket
from sapo_edge.swarm.tally import Tally

WRITE_STALLED = 30.0
"""Seconds after which a write that makes no progress means that the other end is gone."""
BURST_SECONDS = 4.0
"""A cap may be used up in advance by this many seconds."""
MIN_BURST = 128 * 1024
"""Bytes that may always pass at once: two messages with their overhead."""
MAX_SOCKETS = 128
"""Most open sockets, half-open ones included."""
MAX_SOCKETS_PER_ADDRESS = 24
"""Most open inbound sockets from one IP address."""


def byte_bucket(rate: int) -> TokenBucket:
    """The bucket of a cap in bytes a second."""
    return TokenBucket(rate, max(MIN_BURST, rate * BURST_SECONDS))


class Meter:
    """All open sockets of a host, their bytes, and the caps.

    Args:
        upload, download: bytes a second; 0 for no cap.
        tally: counts what is refused.
    """

    def __init__(self, upload: int, download: int, tally: Tally) -> None:
        self.upload = byte_bucket(upload)
        self.download = byte_bucket(download)
        self.sent = 0
        self.received = 0
        self.tally = tally
        self.sockets: set[MeteredStream] = set()
        self._inbound: Counter[str] = Counter()

    def open(self, stream: Any, inbound: bool) -> MeteredStream:
        """Count a new socket's bytes from now on."""
        metered = MeteredStream(stream, self, inbound)
        self.sockets.add(metered)
        self._inbound[metered.host] += inbound
        return metered

    def admits(self, metered: MeteredStream) -> bool:
        """Whether an inbound socket just opened is within the bounds."""
        if len(self.sockets) <= MAX_SOCKETS and self._inbound[metered.host] <= MAX_SOCKETS_PER_ADDRESS:
            return True
        self.tally.count("sockets refused")
        return False

    def closed(self, metered: MeteredStream) -> None:
        """Forget a socket."""
        if metered in self.sockets:
            self.sockets.discard(metered)
            self._inbound[metered.host] -= metered.inbound
            if not self._inbound[metered.host]:
                del self._inbound[metered.host]

    def find(self, remote: tuple[str, int] | None) -> MeteredStream | None:
        """The open socket to a remote address, None for a relayed connection."""
        if remote is None:
            return None
        return next((metered for metered in self.sockets if metered.get_remote_address() == remote), None)

    def abort_all(self) -> None:
        """Close all sockets at once."""
        for metered in tuple(self.sockets):
            metered.abort()


class MeteredStream(ReadWriteCloser):  # type: ignore[misc] # libp2p is not followed
    """A TCP stream whose bytes are counted, whose reading waits for the download cap, and whose writes are whole.

    A cancelled write leaves half a frame on the wire, and every later one is garbage. Writes are therefore shielded
    from cancellation; one that stalls closes the socket instead.
    """

    def __init__(self, stream: Any, meter: Meter, inbound: bool) -> None:
        self.sent = 0
        self.received = 0
        self.inbound = inbound
        self.upgraded = False
        self.gone = trio.Event()
        self._stream = stream
        self._meter = meter
        self._remote: tuple[str, int] | None = stream.get_remote_address()
        self.host = self._remote[0] if self._remote else "unknown"

    async def read(self, n: int | None = None) -> bytes:
        """Read up to `n` bytes, once the download cap allows for it: TCP then slows the sender down."""
        while (delay := self._meter.download.wait(-self._meter.download.burst)) > 0 and not self.gone.is_set():
            await trio.sleep(min(delay, 0.5))
        data: bytes = await self._stream.read(n)
        self.received += len(data)
        self._meter.received += len(data)
        self._meter.download.charge(len(data))
        return data

    async def write(self, data: bytes) -> None:
        """Write all of `data`, or close the socket."""
        if self.gone.is_set():
            raise ConnectionClosedError("the socket is closed", transport="tcp")
        with trio.CancelScope(shield=True, deadline=trio.current_time() + WRITE_STALLED) as scope:
            await self._stream.write(data)
        if scope.cancelled_caught:
            self._meter.tally.count("stalled sockets closed")
            self.abort()
            raise ConnectionClosedError("the other end reads nothing any more", transport="tcp")
        self.sent += len(data)
        self._meter.sent += len(data)
        self._meter.upload.charge(len(data))

    @property
    def raw(self) -> Any:
        """Trio's stream."""
        return self._stream.stream

    def abort(self) -> None:
        """Close the socket now, without a word to the other end; whoever waits for it wakes up."""
        self._meter.closed(self)
        self.gone.set()
        self.raw.socket.close()

    async def close(self) -> None:
        """Close the socket."""
        self.abort()
        await trio.lowlevel.checkpoint()

    def get_remote_address(self) -> tuple[str, int] | None:
        """Host and port of the other end."""
        return self._remote


Handler = Callable[[ReadWriteCloser], Awaitable[None]]


class MeteredTCP(TCP):  # type: ignore[misc] # libp2p is not followed
    """TCP over metered sockets. Also ends the task of an inbound connection with it, which the library does not."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    async def dial(self, maddr: Multiaddr) -> IRawConnection:
        """Dial as TCP does."""
        return self._metered(await super().dial(maddr))

    async def dial_with_source(self, maddr: Multiaddr, source: tuple[str, int]) -> IRawConnection:
        """Dial from a chosen port, as hole punching wants it."""
        return self._metered(await super().dial_with_source(maddr, source))

    def create_listener(self, handler_function: Handler) -> TCPListener:
        """A listener whose sockets are metered and bounded in number."""

        async def accept(stream: Any) -> None:
            metered = self._meter.open(stream, inbound=True)

            async def handle() -> None:
                try:
                    await handler_function(metered)
                finally:
                    metered.abort()

            if not self._meter.admits(metered):
                metered.abort()
                return
            async with trio.open_nursery() as nursery:
                nursery.start_soon(handle)
                await metered.gone.wait()
                nursery.cancel_scope.cancel()
            if not metered.upgraded:
                self._meter.tally.count("handshakes failed")

        return TCPListener(accept)

    def _metered(self, connection: Any) -> Any:
        connection.stream = self._meter.open(connection.stream, inbound=False)
        return connection
