"""Sockets with their bytes counted and capped."""

from __future__ import annotations

import functools
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio
from libp2p.abc import IRawConnection
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.transport.tcp import tcp as tcp_module
from libp2p.transport.tcp.tcp import TCP, TCPListener
from multiaddr import Multiaddr

from sapo_edge.swarm.addresses import holder
from sapo_edge.swarm.bucket import Shares, TokenBucket
from sapo_edge.swarm.host.places import LONGEST_WAIT, Arrivals, Capacity, Places
from sapo_edge.swarm.host.work import ARRIVING, ARRIVING_AGAIN, Work
from sapo_edge.swarm.tally import Tally

SHORTEST_DELAY, LONGEST_DELAY = 0.05, 0.5
"""Seconds between two looks whether a delayed read may go on. To look often would use up the time that it waits for."""
WRITE_STALLED = 30.0
"""Seconds after which a write without progress closes the socket."""
BURST_SECONDS = 4.0
"""A burst may use up this many seconds of a cap in advance."""
MIN_BURST = 128 * 1024
"""Bytes that may always pass in one burst: two messages with their overhead."""
MAX_SOCKETS = 64
"""Most open inbound sockets, half-open ones included."""
MAX_SOCKETS_PER_ADDRESS = 24
"""Most open inbound sockets from one IPv4 address, or one IPv6 /64."""
ARRIVALS_PER_SECOND, ARRIVALS_AT_ONCE = 10.0, 24.0
"""Inbound connections a second in all, and of one network that need not wait."""
SERVED_BYTES, SERVED_BURST = 16 * 1024, 512 * 1024
"""Bytes a second, and at once, that one address may have sent to it on request."""
COMMON_BYTES, COMMON_BURST = 128 * 1024, 2 * 1024 * 1024
"""The same, for all addresses together that want more than that."""
UNREAD_BYTES = 6 * 1024 * 1024
"""Most unread bytes of all connections: the largest answers to a node's own pulls, and the windows of the circuits that
it carries. A connection gets half of it."""
OF_A_NODE = Capacity(MAX_SOCKETS, MAX_SOCKETS_PER_ADDRESS, ARRIVALS_PER_SECOND, ARRIVALS_AT_ONCE, UNREAD_BYTES)


def byte_bucket(rate: int) -> TokenBucket:
    return TokenBucket(rate, max(MIN_BURST, rate * BURST_SECONDS))


class Meter:
    """All open sockets of a host, their bytes, and the caps.

    Attributes:
        served: bytes that are sent on request, by the address that requests them: requests are small, answers large.
        work: processor time that addresses make this node spend.
        unread: most unread bytes of all connections.

    Args:
        upload, download: bytes a second; 0 for no cap.
        processor: processor time that addresses may use; None for that of a node.
    """

    def __init__(
        self,
        upload: int,
        download: int,
        tally: Tally,
        capacity: Capacity = OF_A_NODE,
        processor: Shares | None = None,
    ) -> None:
        self.upload = byte_bucket(upload)
        self.download = byte_bucket(download)
        self.served = Shares(SERVED_BYTES, SERVED_BURST, COMMON_BYTES, COMMON_BURST)
        self.work = Work(processor)
        self.sent = 0
        self.received = 0
        self.tally = tally
        self.sockets: set[MeteredStream] = set()
        self.unread = capacity.unread
        self._places: Places[MeteredStream] = Places(capacity.places, capacity.per_address)
        self._arrivals = Arrivals(capacity)
        self._remotes: dict[tuple[str, int], MeteredStream] = {}

    def open(self, stream: Any) -> MeteredStream:
        metered = MeteredStream(stream, self)
        self.sockets.add(metered)
        if remote := metered.get_remote_address():
            self._remotes[remote] = metered
        return metered

    def turns_away(self, host: str) -> bool:
        """Whether a new inbound socket from an IP address gets no place for sure: the cheapest check comes first."""
        if self._places.is_full_for(host):
            self.tally.count("sockets refused")
            return True
        if self._arrivals.delay(host) > LONGEST_WAIT:
            self.tally.count("sockets refused: rate")
            return True
        return False

    async def admits(self, metered: MeteredStream) -> bool:
        """Whether a new inbound socket gets a place, perhaps another one's. Waits until its handshake may begin."""
        displaced = self._places.add(metered, metered.host)
        if displaced is metered:
            self.tally.count("sockets refused")
            return False
        delay = self._arrivals.turn(metered.host)
        if delay is None:
            self.tally.count("sockets refused: rate")
            return False
        if displaced is not None:
            self.tally.count("sockets displaced")
            displaced.abort()
        with trio.move_on_after(delay):
            await metered.gone.wait()
        return not metered.gone.is_set()

    def closed(self, metered: MeteredStream) -> None:
        self.sockets.discard(metered)
        self._places.remove(metered)
        remote = metered.get_remote_address()
        if remote and self._remotes.get(remote) is metered:
            del self._remotes[remote]

    def find(self, remote: tuple[str, int] | None) -> MeteredStream | None:
        """The open socket to a remote address; None for a relayed connection."""
        return None if remote is None else self._remotes.get((remote[0], remote[1]))

    def abort_all(self) -> None:
        for metered in tuple(self.sockets):
            metered.abort()


def address_of(remotes: Sequence[str]) -> str:
    """The name of the address in budgets: of the first of a peer's direct connections; "" if it has none."""
    return holder(remotes[0]) if remotes else ""


def _remote_address(stream: Any) -> tuple[str, int] | None:
    """Host and port at the other end of a socket; the library's own answer is None over IPv6."""
    try:
        host, port = stream.socket.getpeername()[:2]
    except OSError:
        return None
    return str(host), int(port)


class MeteredStream(ReadWriteCloser):  # type: ignore[misc] # libp2p is not followed
    """A TCP stream that counts its bytes, delays reads, and never writes half a frame.

    Attributes:
        held: whether a read waits for the download cap, or for processor time of the address.

    A cancelled write leaves half a frame on the wire, which garbles every later one. Writes are therefore shielded from
    cancellation; one that stalls closes the socket.
    """

    def __init__(self, stream: Any, meter: Meter) -> None:
        self.sent = 0
        self.received = 0
        self.upgraded = False
        self.held = False
        self.gone = trio.Event()
        self._stream = stream
        self._meter = meter
        self._remote = _remote_address(self.raw)
        self.host = self._remote[0] if self._remote else "unknown"
        self.address = address_of([self.host]) if self._remote else ""

    async def read(self, n: int | None = None) -> bytes:
        """Read up to `n` bytes once the download cap and the address's time allow it; TCP slows the sender down."""
        while (delay := self._delay()) > 0 and not self.gone.is_set():
            self.held = True
            await trio.sleep(min(max(delay, SHORTEST_DELAY), LONGEST_DELAY))
        self.held = False
        data: bytes = await self._stream.read(n)
        self.received += len(data)
        self._meter.received += len(data)
        self._meter.download.charge(len(data))
        return data

    def _delay(self) -> float:
        busy = self._meter.work.wait(self.address)
        if busy and not self.held:
            self._meter.tally.count("reads delayed: the address has used up its processor time")
        return max(busy, self._meter.download.wait(-self._meter.download.burst))

    async def write(self, data: bytes) -> None:
        """Write all of `data`, or close the socket; ConnectionClosedError if it is or gets closed."""
        if self.gone.is_set():
            raise ConnectionClosedError("the socket is closed", transport="tcp")
        with trio.CancelScope(shield=True, deadline=trio.current_time() + WRITE_STALLED) as scope:
            await self._stream.write(data)
        if scope.cancelled_caught:
            self._meter.tally.count("stalled sockets closed")
            self.abort()
            raise ConnectionClosedError("the other end has stopped reading", transport="tcp")
        self.sent += len(data)
        self._meter.sent += len(data)
        self._meter.upload.charge(len(data))

    @property
    def raw(self) -> Any:
        return self._stream.stream

    def abort(self) -> None:
        """Close the socket immediately, without notice to the other end; tasks that wait for it wake up."""
        self._meter.closed(self)
        self.gone.set()
        self.raw.socket.close()

    async def close(self) -> None:
        self.abort()
        await trio.lowlevel.checkpoint()

    def get_remote_address(self) -> tuple[str, int] | None:
        return self._remote


_set_reuse_flags = tcp_module._set_reuse_flags


def set_flags(sock: Any) -> None:
    """Keep IPv4 out of an IPv6 socket, where its addresses would have another form, in which no limit knows them."""
    _set_reuse_flags(sock)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)


Handler = Callable[[ReadWriteCloser], Awaitable[None]]


class _Listener(TCPListener):  # type: ignore[misc] # libp2p is not followed
    """Accepts as long as arrivals have processor time; the system lets the others wait, then refuses them itself."""

    def __init__(self, handler: Handler, meter: Meter) -> None:
        super().__init__(handler)
        self._meter = meter

    async def listen(self, maddr: Multiaddr) -> None:
        known = len(self.listeners)
        await super().listen(maddr)
        for listener in self.listeners[known:]:
            listener.accept = functools.partial(self._accept, listener.accept)

    async def _accept(self, accept: Callable[[], Awaitable[trio.SocketStream]]) -> trio.SocketStream:
        work = self._meter.work
        work.attribute_to(ARRIVING)
        while True:
            if work.arriving.exhausted():
                # Many at once then: to wake up for each takes longer than to refuse it.
                await trio.sleep(work.arriving.wait(ARRIVING_AGAIN))
            stream = await accept()
            remote = _remote_address(stream)
            if remote is None or not self._meter.turns_away(remote[0]):
                return stream
            stream.socket.close()


class MeteredTCP(TCP):  # type: ignore[misc] # libp2p is not followed
    """TCP over metered sockets. The task of an inbound connection ends with it."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter
        # The library calls it from its module for each socket that it opens.
        tcp_module._set_reuse_flags = set_flags

    async def dial(self, maddr: Multiaddr) -> IRawConnection:
        return self._metered(await super().dial(maddr))

    async def dial_with_source(self, maddr: Multiaddr, source: tuple[str, int]) -> IRawConnection:
        """Dial from a given local port, for hole punching."""
        return self._metered(await super().dial_with_source(maddr, source))

    def create_listener(self, handler_function: Handler) -> TCPListener:
        """A listener with metered sockets, bounded in number."""

        async def accept(stream: Any) -> None:
            metered = self._meter.open(stream)
            try:
                if not await self._meter.admits(metered):
                    return
                self._meter.work.attribute_to(metered.address)
                await handler_function(metered)
                if metered.upgraded:
                    await metered.gone.wait()
                else:
                    self._meter.tally.count("handshakes failed")
            finally:
                metered.abort()

        return _Listener(accept, self._meter)

    def _metered(self, connection: Any) -> Any:
        connection.stream = self._meter.open(connection.stream)
        return connection
