"""A node's side of circuit relay v2: reservations with relays, connections through them, and hole punching.

Only the messages and the two stream handlers of the library's client are used. The rest of it reserves before each
dial, accepts circuits from any peer, and dials every address that a peer names.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio
from google.protobuf.message import DecodeError
from libp2p.abc import IHost, INetStream
from libp2p.connection_types import ConnectionType
from libp2p.exceptions import BaseLibp2pError
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.rcmgr import Direction
from libp2p.relay.circuit_v2.dcutr import PROTOCOL_ID as DCUTR
from libp2p.relay.circuit_v2.dcutr import DCUtRProtocol
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage
from libp2p.relay.circuit_v2.pb.circuit_pb2 import PeerId as CircuitPeer
from libp2p.relay.circuit_v2.protocol import PROTOCOL_ID as HOP
from libp2p.relay.circuit_v2.protocol import STOP_PROTOCOL_ID, CircuitV2Protocol
from libp2p.relay.circuit_v2.protocol_buffer import StatusCode
from libp2p.relay.circuit_v2.utils import read_delimited_msg, write_delimited_msg
from libp2p.security.pnet.protector import new_protected_conn
from multiaddr import Multiaddr

from sapo_edge.recent import Recent
from sapo_edge.swarm.addresses import Address, find_local_networks, parse_address, region
from sapo_edge.swarm.bucket import TokenBucket
from sapo_edge.swarm.finding.directory import ask
from sapo_edge.swarm.host.hardening import ENDED, end_quietly, quietly
from sapo_edge.swarm.joining.identity import ID_PREFIX, KEY_BYTES
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.wire.exchange import ExchangeRequest

DIAL_SECONDS = 10.0
"""Seconds for one address, through a relay included."""
MAX_RELAYS = 2
"""Relays with which this node keeps a reservation."""
MAX_VOLUNTEERS = 3
"""The same for those that serve strangers, which others of its swarm know less surely."""
ASK_SECONDS = 10.0
"""Seconds for one request to a relay."""
RENEW_SECONDS = 600.0
"""Longest time until a reservation is renewed, and its relay tested again."""
REFUSED_SECONDS, LONGEST_REFUSED, FAILED_SECONDS = 5.0, 300.0, 900.0
"""Seconds for which a relay is not asked again: one that refused a reservation, as members do until they know that
others reach them, at first; after more refusals, each of which doubles them; and one that carries nobody."""
RETEST_SECONDS = 20.0
"""Time until a relay is tested again that has carried connections before, and then one not."""
MAX_REFUSALS = 256
"""Relays of which it is remembered that they refused."""
MAX_CIRCUITS_OF_RELAY = 16
"""Most connections to this node through one relay: more would take the places that the library has for all."""
MAX_PUNCHED = 4
"""Addresses of one peer that are dialled for a hole punch."""
PUNCH_ATTEMPTS = 2
"""Attempts for each relayed connection; each takes up to 20 s."""
PUNCH_SECONDS = 20.0
"""Least time between two hole punches at one address, each of which dials it three times."""
PUNCHES_PER_SECOND, PUNCH_BURST = 0.2, 8.0
"""Hole punches in total, as anybody behind a relay can ask for them."""
MAX_PUNCHED_ADDRESSES = 256
"""Addresses of which it is remembered that they were dialled for a hole punch."""
RELAYED_STAYS = 10.0
"""Seconds for which a relayed connection stays beside a direct one; `Gossip.move_stream` moves its GossipSub stream."""
POLL_SECONDS = 2.0
"""Time between two checks of the connections."""
FAILED = (*ENDED, BaseLibp2pError, OSError, ValueError, trio.TooSlowError)
"""Exceptions of a dial or a request that fails."""


class RelayedConnection(RawConnection):  # type: ignore[misc] # libp2p is not followed
    """A connection inside a stream to a relay. It has no socket of its own, so closing it leaves the relay's open."""

    def __init__(self, stream: INetStream, initiator: bool, path: str) -> None:
        super().__init__(stream, initiator, ConnectionType.RELAYED, [Multiaddr(path)])

    def get_remote_address(self) -> None:
        """None; the library would give the relay's."""


def is_relayed(connection: Any) -> bool:
    return any("/p2p-circuit" in str(address) for address in connection.get_transport_addresses())


def circuits_through(host: IHost, relay: str) -> int:
    """Connections to and from a host through a relay."""
    connections = host.get_network().get_connections()
    paths = [str(address) for connection in connections for address in connection.get_transport_addresses()]
    return sum(f"/p2p/{relay}/p2p-circuit" in path for path in paths)


async def open_way(host: IHost, address: Address, introduction: ExchangeRequest | None = None) -> bool:
    """Connect to a peer at an address, and return whether that worked. If it names a relay, that is connected first.

    Who is connected directly already is not dialled again. The introduction says to the relay which swarm this host is
    of; members relay for their own only.
    """
    via = address.via
    network, target = host.get_network(), ID.from_string(via.peer_id)
    with trio.move_on_after(DIAL_SECONDS):
        try:
            if all(map(is_relayed, network.get_connections(target))):
                await network.dial_addr(Multiaddr(str(via)), target)
            if address.relay is not None:
                if introduction is not None:
                    await ask(host, address.relay, introduction)
                await dial_through(host, address)
            return True
        except FAILED:
            pass
    return False


async def dial_through(host: IHost, address: Address) -> None:
    """Connect to a peer through a relay that this node is connected to; raises one of FAILED if that fails."""
    assert address.relay is not None
    target = ID.from_string(address.peer_id)
    stream = await host.new_stream(ID.from_string(address.relay), [HOP])
    try:
        await _request(stream, HopMessage(type=HopMessage.CONNECT, peer=CircuitPeer(id=target.to_bytes())))
        raw: Any = RelayedConnection(stream, True, str(address))
        psk = host.get_network().psk
        if psk is not None:
            # The library does so at the dialled end only.
            raw = new_protected_conn(raw, psk)
        await host.upgrade_outbound_connection(raw, target)
    except BaseException as error:
        await end_quietly(stream.reset)
        if isinstance(error, Exception) and not isinstance(error, FAILED):
            # The other end of the circuit chooses what the handshake reads.
            raise SwarmException(type(error).__name__) from error
        raise


async def _request(stream: INetStream, message: HopMessage) -> Any:
    await write_delimited_msg(stream, message)
    try:
        with trio.fail_after(ASK_SECONDS):
            response = await read_delimited_msg(stream, HopMessage)
    except DecodeError as error:
        raise SwarmException("the relay's answer is no message") from error
    if response.type != HopMessage.STATUS or response.status != StatusCode.OK:
        raise SwarmException(f"the relay refused: status {int(response.status)}")
    return response


class Inbound(CircuitV2Protocol):  # type: ignore[misc] # libp2p is not followed
    """Inbound connections through relays, accepted only from relays that hold a reservation of this node."""

    def __init__(self, host: IHost, reserved_at: Callable[[str], Address | None], tally: Tally) -> None:
        super().__init__(host)
        self._reserved_at, self._tally = reserved_at, tally
        self._opening: Counter[str] = Counter()

    async def _handle_stop_stream(self, stream: INetStream) -> None:
        relay, reason = str(stream.muxed_conn.peer_id), ""
        if self._reserved_at(relay) is None:
            reason = "no reservation with the relay"
        elif self._opening[relay] + circuits_through(self.host, relay) >= MAX_CIRCUITS_OF_RELAY:
            reason = "too many of one relay"
        if reason:
            self._tally.count(f"circuits refused: {reason}")
            await quietly(stream.reset)
            return
        self._opening[relay] += 1
        try:
            await super()._handle_stop_stream(stream)
        finally:
            self._opening[relay] -= 1

    async def handle_incoming_connection(self, stream: INetStream, remote_peer_id: bytes) -> None:
        """Secure the connection inside the stream like any other."""
        if len(remote_peer_id) != len(ID_PREFIX) + KEY_BYTES:
            # To write out what is as long as the relay likes would take seconds.
            self._tally.count("circuits refused: not a peer id")
            await quietly(stream.reset)
            return
        relay = self._reserved_at(str(stream.muxed_conn.peer_id))
        path = f"{relay}/p2p-circuit/p2p/{ID(remote_peer_id)}"
        try:
            raw = RelayedConnection(stream, False, path)
            await self.host.upgrade_inbound_connection(raw, Multiaddr(path))
        except Exception:  # noqa: BLE001 - the other end of the circuit chooses what the handshake reads
            self._tally.count("circuits that failed")
            await quietly(stream.reset)


def may_punch(address: Address) -> bool:
    """Whether a peer behind a relay may name an address: a public one elsewhere. Nothing shows from where it comes."""
    return find_local_networks().may_name(address, ())


class HolePunch(DCUtRProtocol):  # type: ignore[misc] # libp2p is not followed
    """Replaces relayed connections by direct ones. Dials a few public addresses, at a rate; the library dials all.

    Args:
        nursery: for tasks that outlast an attempt.
        own_addresses: public addresses of this node, beside the IPv4 address and port at which peers see it.
        dial_checked: dials a peer at addresses that others reached, and returns whether that worked.
    """

    def __init__(
        self,
        host: IHost,
        nursery: trio.Nursery,
        own_addresses: Callable[[], Sequence[Address]],
        dial_checked: Callable[[str], Awaitable[bool]],
    ) -> None:
        super().__init__(host)
        self._nursery, self._own_addresses, self._dial_checked = nursery, own_addresses, dial_checked
        self._bucket = TokenBucket(PUNCHES_PER_SECOND, PUNCH_BURST)
        self._punched: Recent[str, float] = Recent(MAX_PUNCHED_ADDRESSES)

    async def _handle_dcutr_stream(self, stream: INetStream) -> None:
        try:
            await super()._handle_dcutr_stream(stream)
        finally:
            self._forget_addresses(stream.muxed_conn.peer_id)

    def _forget_addresses(self, peer_id: ID) -> None:
        """The library keeps what a peer names in each request, and dials all of it for each of them."""
        self.host.get_peerstore().clear_addrs(peer_id)

    async def _perform_hole_punch(self, peer_id: ID, addrs: list[Multiaddr], as_responder: bool = False) -> bool:
        self._forget_addresses(peer_id)
        now = time.monotonic()
        named = dict.fromkeys(str(addr).split("/p2p/")[0] for addr in addrs)
        plain = [text for text in named if now - self._punched.get(text, -PUNCH_SECONDS) >= PUNCH_SECONDS]
        if not plain or not self._bucket.take():
            return False
        for text in plain:
            self._punched[text] = now
        return bool(await super()._perform_hole_punch(peer_id, list(map(Multiaddr, plain)), as_responder))

    async def _get_observed_addrs(self) -> list[bytes]:
        own = [Multiaddr(str(address).partition("/p2p/")[0]).to_bytes() for address in self._own_addresses()]
        return list(dict.fromkeys([*own, *await super()._get_observed_addrs()]))[:MAX_PUNCHED]

    def _decode_observed_addrs(self, addr_bytes: list[bytes]) -> list[Multiaddr]:
        return [addr for addr in super()._decode_observed_addrs(addr_bytes[:MAX_PUNCHED]) if "/tcp/" in str(addr)]

    async def _dial_peer(
        self, peer_id: ID, addr: Multiaddr, source: tuple[str, int] | None = None, as_responder: bool = False
    ) -> None:
        plain = str(addr).split("/p2p/")[0]
        if source is not None and plain.startswith("/ip6/"):
            # The library takes its first listener, which is IPv4's.
            source = ("::", source[1])
        try:
            if not may_punch(parse_address(f"{plain}/p2p/{peer_id}")):
                return
            network = self.host.get_network()
            dial = network.dial_addr_as_responder if as_responder else network.dial_addr
            with trio.fail_after(self.dial_timeout):
                await dial(Multiaddr(plain), peer_id, source)
        except FAILED:
            return
        if await self._verify_direct_connection(peer_id):
            self._direct_connections.add(peer_id)

    async def _close_relayed_conns_after_grace(self, peer_id: ID, grace: float = RELAYED_STAYS) -> None:
        await super()._close_relayed_conns_after_grace(peer_id, grace)

    async def _try_unilateral_upgrade(self, peer_id: ID) -> bool:
        # The library dials addresses that the peer claims.
        if not await self._dial_checked(str(peer_id)):
            return False
        self._schedule_relay_close(peer_id)
        return True


class RelayClient:
    """Keeps reservations with relays, and replaces relayed connections by direct ones.

    Args:
        reached_at: the direct address at which this node reached a peer.
        is_needed: whether this node needs relays; False while others reach it directly.
        carries: whether a relay at an address carries connections to this node, see `visiting.py`.
        own_addresses, dial_checked: as of `HolePunch`.
        is_volunteer: whether a peer is one of this node's volunteers, which take no places from other relays.
    """

    def __init__(
        self,
        host: IHost,
        reached_at: Callable[[str], Address | None],
        is_needed: Callable[[], bool],
        carries: Callable[[Address], Awaitable[bool]],
        own_addresses: Callable[[], Sequence[Address]],
        dial_checked: Callable[[str], Awaitable[bool]],
        tally: Tally,
        is_volunteer: Callable[[str], bool] = lambda peer_id: False,
    ) -> None:
        self._host, self._tally, self._reached_at, self._is_needed = host, tally, reached_at, is_needed
        self._carries, self._is_volunteer = carries, is_volunteer
        self._own_addresses, self._dial_checked = own_addresses, dial_checked
        # When to renew, and when to ask a relay that refused again: seconds of the monotonic clock by peer id. And for
        # how long it was not asked.
        self._reservations: dict[str, float] = {}
        self._refusals: Recent[str, tuple[float, float]] = Recent(MAX_REFUSALS)
        # Relays with a reservation that carried the last connection, or the one before.
        self._tested: dict[str, bool] = {}
        self._attempts: dict[int, int] = {}

    def addresses(self) -> tuple[Address, ...]:
        """Circuit addresses at which others reach this node."""
        own = str(self._host.get_id())
        relays = [self._reached_at(peer_id) for peer_id in self._reservations if peer_id in self._tested]
        return tuple(Address(relay.kind, relay.host, relay.port, own, relay.peer_id) for relay in relays if relay)

    def reserved_at(self, peer_id: str) -> Address | None:
        """The address of a relay that holds a reservation of this node; None for any other peer."""
        return self._reached_at(peer_id) if peer_id in self._reservations else None

    async def run(self) -> None:
        """Work until cancelled."""
        inbound = Inbound(self._host, self.reserved_at, self._tally)
        self._host.set_stream_handler(STOP_PROTOCOL_ID, inbound._handle_stop_stream)
        async with trio.open_nursery() as nursery:
            punch = HolePunch(self._host, nursery, self._own_addresses, self._dial_checked)
            self._host.set_stream_handler(DCUTR, punch._handle_dcutr_stream)
            while True:
                await self._keep_reservations()
                self._punch(punch, nursery)
                await trio.sleep(POLL_SECONDS)

    async def _keep_reservations(self) -> None:
        now = time.monotonic()
        connected = {str(peer) for peer in self._host.get_network().connections}
        for peer_id in self._reservations.keys() - connected:
            self._give_up(peer_id)
        if not self._is_needed():
            # Reservations expire by themselves; existing connections stay.
            self._reservations.clear()
            self._tested.clear()
            return
        shuffled = random.sample(sorted(connected), len(connected))
        for peer_id in sorted(shuffled, key=self.is_dedicated, reverse=True):
            due = self._reservations.get(peer_id, self._refusals.get(peer_id, (0.0, 0.0))[0]) <= now
            if due and self.is_relay(peer_id) and (peer_id in self._reservations or self._has_place(peer_id)):
                await self._reserve(peer_id, now)
                await self._test(peer_id, now)

    def _has_place(self, peer_id: str) -> bool:
        """Whether there is a place for a relay; one network gets one."""
        volunteers = self._is_volunteer(peer_id)
        others = [other for other in self._reservations if self._is_volunteer(other) == volunteers]
        held = [relay for other in others if (relay := self._reached_at(other)) is not None]
        address = self._reached_at(peer_id)
        return (
            address is not None
            and len(others) < (MAX_VOLUNTEERS if volunteers else MAX_RELAYS)
            and region(address) not in {region(relay) for relay in held}
        )

    def _give_up(self, peer_id: str) -> None:
        self._reservations.pop(peer_id, None)
        self._tested.pop(peer_id, None)

    async def _test(self, peer_id: str, now: float) -> None:
        """Give up a reservation with a relay that carries nobody: a new one at once, another one at the second time."""
        if (address := self.reserved_at(peer_id)) is None:
            return
        if await self._carries(address):
            self._tested[peer_id] = True
            return
        self._tally.count("relays that carry nobody")
        if self._tested.get(peer_id):
            self._tested[peer_id], self._reservations[peer_id] = False, now + RETEST_SECONDS
        else:
            self._give_up(peer_id)
            self._refusals[peer_id] = now + FAILED_SECONDS, FAILED_SECONDS

    async def _reserve(self, peer_id: str, now: float) -> None:
        stream = None
        try:
            with trio.fail_after(ASK_SECONDS * 1.5):
                stream = await self._host.new_stream(ID.from_string(peer_id), [HOP])
                response = await _request(stream, HopMessage(type=HopMessage.RESERVE))
                await stream.close()
        except FAILED:
            self._give_up(peer_id)
            _, before = self._refusals.get(peer_id, (0.0, 0.0))
            patience = min(max(2 * before, REFUSED_SECONDS), LONGEST_REFUSED)
            # Jitter, so that those that were refused together do not come again together.
            self._refusals[peer_id] = now + patience * random.uniform(0.8, 1.2), patience
            self._tally.count("reservations refused by relays")
            if stream is not None:
                await quietly(stream.reset)
            return
        # By the relay's clock: if that or this one is wrong, it may seem to have ended already, or to last for days.
        duration = response.reservation.expire - time.time()
        self._refusals.pop(peer_id, None)
        if peer_id not in self._reservations:
            self._tally.count("reservations with relays")
        self._reservations[peer_id] = now + (min(duration / 2, RENEW_SECONDS) if duration > 20 else RENEW_SECONDS)

    def is_relay(self, peer_id: str) -> bool:
        """Whether a connected peer that this node dialled relays: a relay, or a member that may offer places."""
        return self._reached_at(peer_id) is not None and str(HOP) in self._protocols(peer_id)

    def is_dedicated(self, peer_id: str) -> bool:
        """Whether it relays, and takes part in no swarm."""
        return self.is_relay(peer_id) and not any(name.startswith("/meshsub/") for name in self._protocols(peer_id))

    def _protocols(self, peer_id: str) -> list[str]:
        store, peer = self._host.get_peerstore(), ID.from_string(peer_id)
        return [str(name) for name in store.get_protocols(peer)] if peer in store.peer_ids() else []

    def _punch(self, punch: HolePunch, nursery: trio.Nursery) -> None:
        """Try direct connections to peers that dialled in through a relay; if both ends tried, they would collide."""
        attempts: dict[int, int] = {}
        for peer, connections in list(self._host.get_network().connections.items()):
            relayed = list(filter(is_relayed, connections))
            attempts |= {id(connection): self._attempts.get(id(connection), 0) for connection in relayed}
            if not relayed or len(relayed) < len(connections) or relayed[0].direction != Direction.INBOUND:
                continue
            key = id(relayed[0])
            if attempts[key] < PUNCH_ATTEMPTS and peer not in punch._in_progress:
                attempts[key] += 1
                nursery.start_soon(self._punch_one, punch, peer)
        self._attempts = attempts

    async def _punch_one(self, punch: HolePunch, peer: ID) -> None:
        try:
            direct = await punch.initiate_hole_punch(peer)
        except Exception as error:  # noqa: BLE001 - the boundary of a library's task; the relayed connection stays
            self._tally.fault("hole punching", error)
            return
        self._tally.count("holes punched" if direct else "holes not punched")
