"""Workarounds for faults of py-libp2p 0.8.1 that let a peer, or chance, end the process or block a connection.

Each class and function names its fault. `gossip.py` has the workarounds for GossipSub, `traffic.py` those for sockets.
Tests run with and without each of them, and so notice a version of the library that no longer needs it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from libp2p.abc import IHost, IMuxedConn, INetConn, INetStream, INetwork, INotifee, ISecureConn
from libp2p.exceptions import ParseError
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.exceptions import IOException
from libp2p.network import swarm as swarm_module
from libp2p.network.connection.exceptions import RawConnError
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.protocol_muxer import multiselect_communicator
from libp2p.security.pnet.protector import new_protected_conn
from libp2p.security.pnet.psk_conn import PskConn
from libp2p.stream_muxer.exceptions import MuxedConnError, MuxedStreamError
from libp2p.stream_muxer.yamux import yamux as yamux_module
from libp2p.stream_muxer.yamux.yamux import Yamux, YamuxStream
from libp2p.utils.varint import read_varint_prefixed_bytes_limited
from multiaddr import Multiaddr

from sapo_edge.swarm.addresses import holder
from sapo_edge.swarm.host.places import Backlog
from sapo_edge.swarm.host.traffic import Meter
from sapo_edge.swarm.tally import Tally, innermost

MAX_STREAMS = 64
"""Most streams of a connection; a peer that opens more is disconnected. Each takes 10 KB. A relay carries 32 circuits
of one node, and a member has a few streams."""
MAX_BUFFERED = 4 * 1024 * 1024
"""Most unread bytes of all streams of a connection, or half of what all may have; the library enforces no window."""
MAX_WINDOW = 256 * 1024
"""Most bytes that a peer may send ahead on one stream; the library lets it grow to 16 MiB."""

MAX_NEGOTIATED = 1024
"""Longest line of a negotiation, which anybody who connects may send first. The library reads whatever is announced:
one connection without a name made it keep 250 MiB."""

_log = logging.getLogger(__name__)

ENDED = (
    IOException, ParseError, RawConnError, SwarmException, MuxedConnError, MuxedStreamError, trio.ClosedResourceError,
    trio.BrokenResourceError, trio.EndOfChannel,
)  # fmt: skip
"""Exceptions of connections and streams that end: not a fault of this node."""

Blame = Callable[[str, str], None]
"""(peer id, offence): called when a peer does what no honest one does."""


class _AtDisconnect(INotifee):  # type: ignore[misc] # libp2p is not followed
    def __init__(self, act: Callable[[INetConn], None]) -> None:
        self._act = act

    async def disconnected(self, network: INetwork, conn: INetConn) -> None:
        await trio.lowlevel.checkpoint()
        self._act(conn)

    async def _ignore(self, *_: object) -> None:
        await trio.lowlevel.checkpoint()

    connected = opened_stream = closed_stream = listen = listen_close = _ignore


def on_disconnect(host: IHost, act: Callable[[INetConn], None]) -> None:
    """Call `act` with each connection that has ended."""
    host.get_network().register_notifee(_AtDisconnect(act))


class _Streams(dict[int, YamuxStream]):
    """The streams of a connection; too many of them end it."""

    def __setitem__(self, number: int, stream: YamuxStream) -> None:
        if len(self) >= MAX_STREAMS:
            raise RawConnError("too many streams")
        super().__setitem__(number, stream)


class _Attributes:
    """Those that the library adds to a connection, and ours: with more than thirty in its dictionary, each connection
    would have a table of names of its own, of 1.5 KB."""

    __slots__ = (
        "_announced", "_resource_scope", "negotiated_muxer_protocol", "negotiated_security_protocol", "on_close",
        "remove_stream", "source", "swarm", "unfinished",
    )  # fmt: skip


class SafeYamux(_Attributes, Yamux):  # type: ignore[misc] # libp2p is not followed
    """Yamux with bounded memory. A failure ends only its connection, and a frozen peer is noticed.

    The library only warns when a peer exceeds its window, lets an exception of the reader end the whole host, and
    measures the round trip but does nothing when no answer comes.

    Attributes:
        unfinished: bytes that were read of frames of GossipSub that are not complete.
    """

    meter: Meter
    keepalive: float
    backlog: Backlog
    _ping_id: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.streams = _Streams()
        _forget_handshake(self.secured_conn)
        self._announced = self.unfinished = 0
        remote = self.get_remote_address()
        self.source = holder(remote[0]) if remote else str(self.peer_id)

    @property
    def unread(self) -> int:
        """Bytes of all streams that nobody has used, those of the frame that arrives now included."""
        return self._announced + self.unfinished + sum(len(buffer) for buffer in self.stream_buffers.values())

    async def start(self) -> None:
        """Run the connection until it ends. Never raises an error of the connection."""
        metered = self.meter.find(self.get_remote_address())
        if metered is not None:
            metered.upgraded = True
            self.meter.work.attribute_to(metered.address)
        self.backlog.add(self)
        try:
            await super().start()
        except Exception as error:  # noqa: BLE001 - a connection may fail in any way; the host keeps running
            _count(error, self.meter.tally, "connections broken", "connection")
        finally:
            self.backlog.remove(self)
            if not self.event_closed.is_set():
                self.abort()
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
                    await self._cleanup_on_error()

    def abort(self) -> None:
        """Close the socket immediately: a frozen peer would block an orderly end for ever."""
        self.event_shutting_down.set()
        metered = self.meter.find(self.get_remote_address())
        if metered is not None:
            metered.abort()
        if self._nursery is not None:
            # A relayed connection has no socket of its own whose end would wake its reader.
            self._nursery.cancel_scope.cancel()

    async def _read_data_body(self, length: int) -> bytes:
        if length + self.unread > min(MAX_BUFFERED, self.meter.unread // 2):
            self.meter.tally.count("connections closed: too much unread data")
            self.abort()
        self._announced = length
        self.backlog.charge(length)
        if self.event_shutting_down.is_set():
            raise RawConnError("too much unread data")
        try:
            return bytes(await super()._read_data_body(length))
        except trio.TooSlowError as error:
            # After part of a frame, the rest of it would be read as headers.
            self.abort()
            raise RawConnError("an incomplete frame") from error
        finally:
            self._announced = 0

    async def _measure_rtt_loop(self) -> None:
        await trio.sleep(min(0.5, self.keepalive))
        while not self.event_shutting_down.is_set():
            self._ping_id = (self._ping_id + 1) % 2**32
            self._ping_event = trio.Event()
            self._ping_sent_time = trio.current_time()
            header = struct.pack(
                yamux_module.YAMUX_HEADER_FORMAT, 0, yamux_module.TYPE_PING, yamux_module.FLAG_SYN, 0, self._ping_id
            )
            try:
                await self._write_frame(header)
            except ENDED:
                return
            if not await self._answered():
                self.meter.tally.count("frozen peers dropped")
                self.abort()
                return
            async with self.streams_lock:
                self._sweep_stale_streams()
            with trio.move_on_after(self.keepalive):
                await self.event_shutting_down.wait()

    async def _stale_stream_sweeper(self) -> None:
        """Nothing: a task for each connection only for this is too much. The task that pings does it."""
        await trio.lowlevel.checkpoint()

    async def _answered(self) -> bool:
        """Whether anything arrives within two intervals; under load the answer queues behind data."""
        metered = self.meter.find(self.get_remote_address())
        for _ in range(2):
            before = metered.received if metered else 0
            with trio.move_on_after(self.keepalive):
                await self._ping_event.wait()
            if self._ping_event.is_set():
                return True
            if metered is not None and (metered.received > before or metered.held):
                return True
        return bool(self.event_shutting_down.is_set())


async def keep_running(part: Callable[[], Awaitable[None]], place: str, tally: Tally) -> None:
    """Run a part until it ends, again after each failure, which is counted and notified: it must not end the host."""
    while True:
        try:
            await part()
            return
        except Exception as error:  # noqa: BLE001 - the boundary of a part of the host
            tally.fault(place, error)
            await trio.sleep(random.uniform(5, 10))


def _count(error: Exception, tally: Tally, ended: str, place: str) -> None:
    """Count the error of a connection or stream that ended as `ended`, and any other as a fault of `place`."""
    if isinstance(innermost(error), ENDED):
        tally.count(ended)
    else:
        tally.fault(place, error)


def _forget_handshake(secured: Any) -> None:
    """Let go of what Noise needed for a handshake; the library keeps it as long as the connection."""
    with contextlib.suppress(AttributeError):  # no connection of Noise
        protocol = secured.conn.noise_state.noise_protocol
        protocol.pattern = protocol.keypairs = secured.remote_permanent_pubkey = None


def safe_yamux(meter: Meter, keepalive: float) -> type[SafeYamux]:
    """The muxer of one host, which pings its peers every `keepalive` seconds."""
    # The library reads the limit from its module at each read.
    yamux_module.MAX_WINDOW_SIZE = MAX_WINDOW
    backlog = Backlog(meter.tally, meter.unread)
    return type("HostYamux", (SafeYamux,), {"meter": meter, "keepalive": keepalive, "backlog": backlog})


def bound_negotiations() -> None:
    """Read no line of a negotiation that is too long."""

    async def read_line(stream: ReadWriteCloser) -> bytes:
        line = bytes(await read_varint_prefixed_bytes_limited(stream, MAX_NEGOTIATED))
        if not line.endswith(b"\n"):
            raise ParseError("a line without an end")
        return line[:-1]

    # The library takes it from its module for each line.
    multiselect_communicator.read_delim = read_line


def mend_private_connections() -> None:
    """Say of a private swarm's connections where they lead, and encrypt them once.

    The library's `PskConn` leaves out its base's constructor, so that it knows no address, and addresses that the peer
    claims take the place of its own. And what the library dials as the responder, for a hole punch, it encrypts twice.
    """
    PskConn.get_transport_addresses = lambda protected: protected._conn.get_transport_addresses()
    PskConn.get_connection_type = lambda protected: protected._conn.get_connection_type()
    swarm_module.new_protected_conn = lambda raw, psk: raw if isinstance(raw, PskConn) else new_protected_conn(raw, psk)


def use_own_muxer(host: IHost) -> None:
    """Use the muxer that the host was given; the library ignores it and uses its own Yamux."""
    multistream = host.get_network().upgrader.muxer_multistream

    async def new_connection(secured: ISecureConn, peer_id: ID) -> IMuxedConn:
        protocol, muxer = await multistream._selector.select(
            secured, secured.is_initiator, multistream.negotiate_timeout
        )
        connection = muxer(secured, peer_id, is_initiator=secured.is_initiator)
        return multistream._annotate_connection(connection, secured, protocol)

    multistream.new_conn = new_connection


def end_upgrades(host: IHost) -> None:
    """End the task that upgrades an inbound connection once it is upgraded; the library keeps it, and one of the 250
    inbound connections that it allows in all. `Meter` bounds the number of open sockets instead."""
    network = host.get_network()

    async def upgrade(socket: ReadWriteCloser, address: Multiaddr) -> None:
        raw = RawConnection(socket, False)
        try:
            await network.upgrade_inbound_raw_conn(raw, address)
        except Exception as error:  # noqa: BLE001 - a peer chooses what the handshake meets
            _log.debug("a connection failed: %s", type(error).__name__)
            await quietly(raw.close)

    network._handle_inbound_connection = upgrade


def contain_streams(host: IHost, meter: Meter, blame: Blame) -> None:
    """End only the stream when its handler fails or its negotiation is not UTF-8; the library ends the host."""
    negotiate_and_handle, tally = host._swarm_stream_handler, meter.tally

    async def contained(stream: INetStream) -> None:
        metered = meter.find(stream.muxed_conn.get_remote_address())
        if metered is not None:
            meter.work.attribute_to(metered.address)
        try:
            await negotiate_and_handle(stream)
            if stream.muxed_stream.recv_closed:
                # Otherwise it stays open in one direction, in which nobody will write.
                await quietly(stream.close)
        except Exception as error:  # noqa: BLE001 - a peer chooses what a handler meets
            if isinstance(innermost(error), UnicodeDecodeError):
                tally.count("streams with garbage")
                blame(str(stream.muxed_conn.peer_id), "garbage")
            else:
                _count(error, tally, "streams broken", "stream handler")
            await quietly(stream.reset)

    host.get_network().set_stream_handler(contained)


def contain_tasks(service: Any, place: str, nursery: trio.Nursery, tally: Tally) -> None:
    """Run background tasks of a library service in `nursery` and contain failing ones, as those of `place`.

    The library's manager ends the service, and with it the host, at the first exception of any task.
    """

    async def contained(function: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        try:
            await function(*arguments)
        except Exception as error:  # noqa: BLE001 - the boundary of a library's task
            _count(error, tally, f"{place} tasks that ended with their connection", place)

    manager = service.get_manager()
    schedule = manager.run_task

    def run_task(
        function: Callable[..., Awaitable[None]], *arguments: Any, daemon: bool = False, name: str | None = None
    ) -> None:
        if daemon:
            # Without its daemon, a service does nothing: the host has to restart.
            schedule(function, *arguments, daemon=True, name=name)
        else:
            nursery.start_soon(functools.partial(contained, function, *arguments), name=name or repr(function))

    manager.run_task = run_task


def disconnect(host: IHost, peer_id: str) -> None:
    """Close a peer's sockets immediately. An orderly end would wait for a peer that reads nothing."""
    for connection in host.get_network().get_connections(ID.from_string(peer_id)):
        abort = getattr(connection.muxed_conn, "abort", None)
        if abort is not None:
            abort()


async def quietly(action: Callable[[], Awaitable[None]]) -> None:
    """Run an action that may fail because the other end has gone."""
    try:
        await action()
    except Exception as error:  # noqa: BLE001 - the stream or connection is abandoned anyway
        _log.debug("abandoning a stream: %s", type(error).__name__)


async def end_quietly(action: Callable[[], Awaitable[None]]) -> None:
    """Run such an action even in a task that is cancelled, for a second at most."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
        await quietly(action)
