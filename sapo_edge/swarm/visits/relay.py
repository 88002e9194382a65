"""A relay and bootstrap node: a fixed address for a community, without a model and in no swarm itself.

It introduces members of a swarm to each other, and relays connections to nodes that cannot be dialled. Relayed data is
encrypted between the two ends. Every resource that a stranger can use up is bounded here; the library bounds few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import trio
from libp2p.abc import IHost, INetStream
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage
from libp2p.relay.circuit_v2.protocol import PROTOCOL_ID as HOP
from libp2p.relay.circuit_v2.protocol import CircuitV2Protocol
from libp2p.relay.circuit_v2.protocol_buffer import StatusCode
from libp2p.relay.circuit_v2.resources import RelayLimits

from sapo_edge.swarm.addresses import find_local_networks, host_address
from sapo_edge.swarm.finding.directory import Directory
from sapo_edge.swarm.finding.meeting_place import MeetingPlace
from sapo_edge.swarm.host.hardening import ENDED, disconnect, quietly
from sapo_edge.swarm.host.host import forget_strangers, listen_port, make_host, running
from sapo_edge.swarm.host.places import Capacity, Places
from sapo_edge.swarm.host.traffic import Meter
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.tally import Tally

CIRCUIT_SECONDS = 3600
"""Longest duration of a circuit; its ends then open another one."""
CIRCUIT_BYTES = 256 * 1024 * 1024
"""Most bytes of one circuit, both directions together."""
MEMBERS = 1000
"""Most connected nodes, each with a reservation; the owner may set another number."""
SPARE_PLACES = 24
"""Places for connections that are being opened or about to be noticed as dead."""
FILL_SECONDS = 100.0
"""Seconds in which all members can connect, if no network has more than half of them; each costs about 20 ms."""
MIN_ARRIVALS_PER_SECOND = 5.0
"""New connections a second of a relay with few places."""
ARRIVALS_AT_ONCE = 24.0
"""New connections of one network that need not wait."""
RESERVATION_SECONDS = 1800
"""Duration of a reservation."""
MAX_CIRCUITS_TO_ONE = 16
"""Most circuits to one node."""
MAX_CIRCUITS_FROM_ONE = 16
"""Most circuits from one node."""
CIRCUITS_PER_MEMBER = 0.5
"""Most circuits in total, as a share of the members; most relayed connections soon become direct ones."""
MAX_HOP_STREAMS_OF_ONE = 24
"""Most open requests of one node, its circuits included."""
CODE_SLOTS = 64
"""Most inviters that wait for the other side of their code."""
CHUNK = 64 * 1024
"""Bytes that are forwarded at a time."""
KEEPALIVE = 15.0
"""Seconds between two pings on a connection."""
TIDY_SECONDS = 10.0
"""Time between two reports; absent peers are forgotten then."""


@dataclass(frozen=True, slots=True)
class RelayConfig:
    """Settings of a relay.

    Attributes:
        identity: its key, which is part of its address.
        port: TCP port to listen on; 0 for any.
        listen: "all" interfaces, or "loopback": this machine only.
        announce: further host names or IP addresses at which it is reached from outside, as behind a NAT.
        psk: key of the one private swarm that it serves, 32 bytes; None to serve open swarms.
        upload, download: caps in bytes per second; 0 for none.
        members: most connected nodes.
        members_per_address: most of one IPv4 address or IPv6 /64; 0 for half of `members`.
    """

    identity: Identity
    port: int = 0
    listen: Literal["all", "loopback"] = "all"
    announce: tuple[str, ...] = ()
    psk: bytes | None = None
    upload: int = 0
    download: int = 0
    members: int = MEMBERS
    members_per_address: int = 0

    @property
    def capacity(self) -> Capacity:
        """How many connections it accepts."""
        return Capacity(
            places=self.members + SPARE_PLACES,
            per_address=self.members_per_address or -(-self.members // 2),
            per_second=max(MIN_ARRIVALS_PER_SECOND, self.members / FILL_SECONDS),
            burst=ARRIVALS_AT_ONCE,
        )


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """A snapshot of a relay: connections, reservations, circuits, bytes on the wire since startup."""

    connections: int
    reservations: int
    circuits: int
    sent: int
    received: int


class Hop(CircuitV2Protocol):  # type: ignore[misc] # libp2p is not followed
    """The relay's side of circuit relay v2.

    The library makes reservations for any peer that a request names, so that one peer can use them all up; it does not
    limit circuits in total or from one peer; and when a circuit to a node ends, it closes another one to that node.

    Args:
        host: a host that listens.
        meter: of its sockets.
        tally: counts.
        members: most reservations, one a node.
    """

    def __init__(self, host: IHost, meter: Meter, tally: Tally, members: int = MEMBERS) -> None:
        super().__init__(
            host,
            RelayLimits(CIRCUIT_SECONDS, CIRCUIT_BYTES, MAX_CIRCUITS_TO_ONE, members, RESERVATION_SECONDS),
            allow_hop=True,
        )
        max_circuits = max(1, int(members * CIRCUITS_PER_MEMBER))
        self._meter = meter
        self._tally = tally
        self._streams: Counter[ID] = Counter()
        self._circuits: Counter[ID] = Counter()
        self._places: Places[trio.CancelScope] = Places(max_circuits, max_circuits)
        self._directions: dict[frozenset[int], list[trio.CancelScope]] = {}

    @property
    def circuits(self) -> int:
        """Open circuits."""
        return self._circuits.total()

    @property
    def reservations(self) -> int:
        """Valid reservations."""
        self.resource_manager._clean_expired()
        return sum(self.resource_manager.has_reservation(peer) for peer in list(self.resource_manager._reservations))

    def start(self) -> None:
        """Serve relay requests from now on."""
        self.host.set_stream_handler(HOP, self._handle_hop_stream)

    async def _handle_hop_stream(self, stream: INetStream) -> None:
        peer = stream.muxed_conn.peer_id
        if self._streams[peer] >= MAX_HOP_STREAMS_OF_ONE:
            self._tally.count("relaying refused: too many requests")
            await quietly(stream.reset)
            return
        self._streams[peer] += 1
        try:
            await super()._handle_hop_stream(stream)
        finally:
            self._release(self._streams, peer)

    async def _handle_reserve(self, stream: INetStream, msg: HopMessage) -> None:
        self._drop_absent()
        msg.ClearField("peer")
        await super()._handle_reserve(stream, msg)

    async def _handle_connect(self, stream: INetStream, msg: HopMessage) -> None:
        if not self.resource_manager.can_accept_connection(ID(msg.peer.id)):
            # It is refused, so it must displace no other circuit.
            await super()._handle_connect(stream, msg)
            return
        source = stream.muxed_conn.peer_id
        remote = stream.muxed_conn.get_remote_address()
        with trio.CancelScope() as scope:
            displaced = self._places.add(scope, remote[0] if remote else str(source))
            self._circuits[source] += 1
            try:
                if displaced is scope or self._circuits[source] > MAX_CIRCUITS_FROM_ONE:
                    self._tally.count("circuits refused: too many")
                    await self._send_status(stream, StatusCode.RESOURCE_LIMIT_EXCEEDED, "too many circuits")
                    await quietly(stream.reset)
                    return
                if displaced is not None:
                    self._tally.count("circuits displaced")
                    self._places.remove(displaced)
                    displaced.cancel()
                self._tally.count("circuits")
                await super()._handle_connect(stream, msg)
            finally:
                self._places.remove(scope)
                self._release(self._circuits, source)
                self._active_relays.clear()

    async def _relay_data(
        self,
        src_stream: INetStream,
        dst_stream: INetStream,
        peer_id: ID,
        deadline: float | None = None,
        circuit_data_limit: list[int] | None = None,
    ) -> None:
        """Forward bytes in one direction until an end closes or a limit is reached; then end both directions."""
        budget = circuit_data_limit or [CIRCUIT_BYTES]
        circuit = frozenset((id(src_stream), id(dst_stream)))
        directions = self._directions.setdefault(circuit, [])
        try:
            with trio.move_on_after(CIRCUIT_SECONDS) as scope:
                directions.append(scope)
                while budget[0] > 0 and (data := await src_stream.read(CHUNK)):
                    budget[0] -= len(data)
                    if (delay := self._meter.upload.wait()) > 0:
                        await trio.sleep(delay)
                    await dst_stream.write(data)
        except ENDED:
            self._tally.count("circuits broken")
        finally:
            # Resetting a stream does not wake its reader at this end.
            for direction in directions:
                direction.cancel()
            self._directions.pop(circuit, None)
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 2):
                await quietly(src_stream.reset)
                await quietly(dst_stream.reset)

    def _drop_absent(self) -> None:
        """Delete the reservations of nodes that left, which would fill the list for half an hour."""
        reservations = self.resource_manager._reservations
        for peer in [peer for peer in reservations if not self.host.get_network().get_connections(peer)]:
            del reservations[peer]

    @staticmethod
    def _release(counter: Counter[ID], peer: ID) -> None:
        counter[peer] -= 1
        if counter[peer] <= 0:
            del counter[peer]


async def run_relay(
    config: RelayConfig,
    tally: Tally,
    ready: Callable[[tuple[str, ...]], None],
    report: Callable[[RelayStatus], Awaitable[None]] | None = None,
) -> None:
    """Run a relay until cancelled.

    Args:
        config: settings.
        tally: counts, faults and notices.
        ready: called with its multiaddresses once it listens, announced ones first.
        report: called every few seconds.

    Raises:
        SwarmError: if it can't listen on the port.
        ValueError: if an announced host is neither a host name nor an IP address.
    """
    meter = Meter(config.upload, config.download, tally, config.capacity)
    # The meter alone decides who gets a place. The library closes connections a moment after their sockets.
    host = make_host(config.identity, config.psk, meter, tally, KEEPALIVE, 2 * config.capacity.places)
    host.get_peerstore().max_peers = 2 * config.capacity.places

    def blame(peer_id: str, _: str) -> None:
        disconnect(host, ID.from_string(peer_id))

    async with running(host, config.listen, config.port, meter, tally, blame):
        port, peer_id = listen_port(host), config.identity.peer_id
        names = (*config.announce, *find_local_networks(config.listen).listen_addresses)
        own = tuple(dict.fromkeys(host_address(name, port, peer_id) for name in names))
        hop = Hop(host, meter, tally, config.members)
        hop.start()
        if config.psk is None:
            MeetingPlace(host, tally, CODE_SLOTS).start()
        Directory(
            host, None, lambda: find_local_networks(config.listen), lambda: own, lambda address: None, tally,
            2 * config.capacity.places,
        ).start()  # fmt: skip
        ready(tuple(str(address) for address in own))
        while True:
            await trio.sleep(TIDY_SECONDS)
            forget_strangers(host)
            if report is not None:
                connections = len(host.get_network().connections)
                await report(RelayStatus(connections, hop.reservations, hop.circuits, meter.sent, meter.received))
