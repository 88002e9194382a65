"""Carrying connections between peers, as circuit relay v2: what a relay does, and in small a member that others reach.

Carried data is encrypted between the two ends. Every resource that a stranger can use up is bounded here; the library
bounds few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import trio
from libp2p.abc import IHost, INetStream
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2 import protocol as protocol_module
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage
from libp2p.relay.circuit_v2.protocol import PROTOCOL_ID as HOP
from libp2p.relay.circuit_v2.protocol import CircuitV2Protocol
from libp2p.relay.circuit_v2.protocol_buffer import StatusCode
from libp2p.relay.circuit_v2.resources import RelayLimits

from sapo_edge.swarm.bucket import Shares
from sapo_edge.swarm.host.hardening import ENDED, end_quietly, quietly
from sapo_edge.swarm.host.places import Places
from sapo_edge.swarm.host.traffic import address_of
from sapo_edge.swarm.tally import Tally

RESERVATION_SECONDS = 1800
CHUNK = 64 * 1024
INTRODUCTION_SECONDS = 3.0
"""Time in which a peer that has just connected says which swarm it is in; nodes do so within a second."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a relay or a member carries; the defaults are a relay's.

    Attributes:
        circuits_to_one, circuits_from_one: most of one node.
        requests_of_one: most open requests of one node, its circuits included.
        circuit_seconds: longest duration of a circuit; its ends then open another one.
        circuit_bytes: most bytes of one circuit, both directions together.
        openings: circuits a second, and at once: for each address, and for all that want more than that.
    """

    reservations: int = 1000
    circuits: int = 500
    circuits_to_one: int = 16
    circuits_from_one: int = 16
    requests_of_one: int = 24
    circuit_seconds: int = 3600
    circuit_bytes: int = 256 * 1024 * 1024
    openings: tuple[float, float, float, float] = (0.1, 16.0, 5.0, 100.0)


MEMBERS_OFFER = Offer(
    reservations=8, circuits=8, circuits_to_one=4, circuits_from_one=2, requests_of_one=4, circuit_seconds=1800,
    circuit_bytes=32 * 1024 * 1024, openings=(0.02, 2.0, 0.2, 8.0),
)  # fmt: skip
"""What a member carries for others of its swarm: enough for them to find a direct way, or for their rollouts."""
STRANGERS = 4
"""Reservations of these that members of other swarms may have, if the member volunteers."""
STRANGERS_OF_NETWORK = 2
"""The same for one network, see `addresses.neighbourhood`."""


class Hop(CircuitV2Protocol):  # type: ignore[misc] # libp2p is not followed
    """The relay's side of circuit relay v2.

    The library makes reservations for any peer that a request names, so that one peer can use them all up; it does not
    limit circuits in total or from one peer; and when a circuit to a node ends, it closes another one to that node.

    Args:
        wait: called with an address and a number of its bytes before they are forwarded; returns the seconds to wait.
        reserves: whether a peer may have a reservation now, by its id.
        connects: whether a peer may connect to those that have one, by its id.
    """

    def __init__(
        self,
        host: IHost,
        offer: Offer,
        tally: Tally,
        wait: Callable[[str, int], float] = lambda address, size: 0.0,
        reserves: Callable[[str], bool] = lambda peer_id: True,
        connects: Callable[[str], bool] = lambda peer_id: True,
    ) -> None:
        limits = RelayLimits(
            offer.circuit_seconds, offer.circuit_bytes, offer.circuits_to_one, offer.reservations, RESERVATION_SECONDS
        )
        super().__init__(host, limits, allow_hop=True)
        # It would keep up to 64 KiB of addresses that a peer claims, as thousands of objects; nothing here uses them.
        protocol_module.maybe_consume_signed_record = lambda *_: True
        self._offer, self._tally, self._wait = offer, tally, wait
        self._reserves, self._connects = reserves, connects
        self._openings = Shares(*offer.openings)
        self._streams: Counter[ID] = Counter()
        self._circuits: Counter[ID] = Counter()
        self._places: Places[trio.CancelScope] = Places(offer.circuits, offer.circuits)
        self._directions: dict[frozenset[int], list[trio.CancelScope]] = {}

    @property
    def circuits(self) -> int:
        return self._circuits.total()

    @property
    def holders(self) -> list[str]:
        """Ids of the connected peers that have a reservation."""
        self._drop_absent()
        self.resource_manager._clean_expired()
        return [str(peer) for peer in self.resource_manager._reservations]

    def start(self) -> None:
        self.host.set_stream_handler(HOP, self._handle_hop_stream)

    async def _handle_hop_stream(self, stream: INetStream) -> None:
        peer = stream.muxed_conn.peer_id
        if self._streams[peer] >= self._offer.requests_of_one:
            self._tally.count("relaying refused: too many requests")
            await quietly(stream.reset)
            return
        self._streams[peer] += 1
        try:
            await super()._handle_hop_stream(stream)
        finally:
            # It drops those that are at zero.
            self._streams -= Counter([peer])
            # The library leaves it open, which adds one to the peer's streams at each renewal of a reservation.
            await end_quietly(stream.reset)

    async def _handle_reserve(self, stream: INetStream, msg: HopMessage) -> None:
        if not self._reserves(str(stream.muxed_conn.peer_id)):
            await self._refuse(stream, StatusCode.PERMISSION_DENIED, "relaying refused: not offered")
            return
        self._drop_absent()
        msg.ClearField("peer")
        await super()._handle_reserve(stream, msg)

    async def _handle_connect(self, stream: INetStream, msg: HopMessage) -> None:
        if not self.resource_manager.can_accept_connection(ID(msg.peer.id)):
            # It is refused, so it must displace no other circuit.
            await super()._handle_connect(stream, msg)
            return
        source, host = stream.muxed_conn.peer_id, _remote_host(stream)
        if not await self._is_introduced(source):
            await self._refuse(stream, StatusCode.PERMISSION_DENIED, "circuits refused: not a member")
            return
        if self._circuits[source] >= self._offer.circuits_from_one or self._openings.exhausted(address_of([host])):
            await self._refuse(stream, StatusCode.RESOURCE_LIMIT_EXCEEDED, "circuits refused: too many")
            return
        self._openings.charge(address_of([host]), 1.0)
        with trio.CancelScope() as scope:
            displaced = self._places.add(scope, host)
            self._circuits[source] += 1
            try:
                if displaced is scope:
                    await self._refuse(stream, StatusCode.RESOURCE_LIMIT_EXCEEDED, "circuits refused: too many")
                    return
                if displaced is not None:
                    self._tally.count("circuits displaced")
                    self._places.remove(displaced)
                    displaced.cancel()
                self._tally.count("circuits")
                await super()._handle_connect(stream, msg)
            finally:
                self._places.remove(scope)
                self._circuits -= Counter([source])
                self._active_relays.clear()

    async def _is_introduced(self, peer: ID) -> bool:
        """Whether a peer may connect to others, now or once it has said which swarm it is in."""
        deadline = trio.current_time() + INTRODUCTION_SECONDS
        while not (connects := self._connects(str(peer))) and trio.current_time() < deadline:
            await trio.sleep(0.1)
        return connects

    async def _refuse(self, stream: INetStream, code: StatusCode, reason: str) -> None:
        self._tally.count(reason)
        await self._send_status(stream, code, reason)

    async def _relay_data(
        self,
        src_stream: INetStream,
        dst_stream: INetStream,
        peer_id: ID,
        deadline: float | None = None,
        circuit_data_limit: list[int] | None = None,
    ) -> None:
        """Forward bytes in one direction until an end closes or a limit is reached; then end both directions."""
        budget = circuit_data_limit or [self._offer.circuit_bytes]
        sender = address_of([_remote_host(src_stream)])
        circuit = frozenset((id(src_stream), id(dst_stream)))
        directions = self._directions.setdefault(circuit, [])
        try:
            with trio.move_on_after(self._offer.circuit_seconds) as scope:
                directions.append(scope)
                while budget[0] > 0 and (data := await src_stream.read(CHUNK)):
                    budget[0] -= len(data)
                    if (delay := self._wait(sender, len(data))) > 0:
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


def _remote_host(stream: INetStream) -> str:
    """The IP address at the other end. The library refuses requests that come through another relay."""
    remote = stream.muxed_conn.get_remote_address()
    return str(remote[0]) if remote else "::"


def members_hop(
    host: IHost, tally: Tally, rate: int, reserves: Callable[[str], bool], connects: Callable[[str], bool]
) -> Hop:
    """The small relay of a member; reserves and connects are as of `Hop`.

    Args:
        rate: bytes a second for all circuits together. Half of it is divided into as many shares as there may be
            circuits, one for each address.
    """
    share = rate / 2 / MEMBERS_OFFER.circuits
    bytes_a_second = Shares(share, 2 * share, rate / 2, rate)

    def wait(address: str, size: int) -> float:
        bytes_a_second.charge(address, size)
        return bytes_a_second.wait(address)

    return Hop(host, MEMBERS_OFFER, tally, wait, reserves, connects)
