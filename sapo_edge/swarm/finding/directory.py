"""Peer exchange: connected peers with the addresses at which others can reach them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import trio
from libp2p.abc import IHost, INetStream
from libp2p.peer.id import ID

from sapo_edge.recent import Recent
from sapo_edge.swarm.addresses import Address, LocalNetworks, direct_address, region
from sapo_edge.swarm.bucket import TokenBucket
from sapo_edge.swarm.host import requests
from sapo_edge.swarm.host.host import direct_remotes
from sapo_edge.swarm.host.requests import Protocol, RequestError, RequestServer
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.wire import exchange
from sapo_edge.swarm.wire.codec import WireError
from sapo_edge.swarm.wire.exchange import ExchangeRequest, ExchangeResponse

PEER_REQUESTS = Protocol(
    exchange.PROTOCOL,
    "peer requests",
    exchange.MAX_FRAME_BYTES,
    exchange.MAX_FRAME_BYTES,
    rate=0.2,
    burst=6.0,
    max_served=16,
    read_seconds=5.0,
    answer_seconds=15.0,  # a probe included
    total_seconds=15.0,
)
PROBE_SECONDS = 4.0
PROBE_AGAIN = 300.0
"""Seconds for which the result of a probe is valid."""
PROBES_PER_SECOND, PROBE_BURST = 1.0, 8.0
"""Probes of a node. Each takes up to `PROBE_SECONDS` of a request's place."""
MAX_ENTRIES = 1024


@dataclass(slots=True)
class Probe:
    """Attempts to connect to a port of a peer.

    Attributes:
        started: when the last one began, in seconds of trio's clock.
        reachable: whether the port answered the last time; None before that.
    """

    address: Address
    started: float = -PROBE_AGAIN
    reachable: bool | None = None


@dataclass(slots=True)
class Entry:
    """What this node has observed of a peer.

    Attributes:
        tag: of the swarm that it says it is in.
        dialled: the address at which this node reached it.
        probes: the last one of each version of IP: a peer may be connected over both.
        circuits: addresses through relays that this node has reached itself.
        region: of the first of its addresses, see `addresses.region`.
    """

    id: ID
    tag: bytes = b""
    dialled: Address | None = None
    probes: dict[str, Probe] = field(default_factory=dict)
    circuits: tuple[Address, ...] = ()
    region: str = ""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Addresses at which others can reach it, as this node observed."""
        dialled = [self.dialled] if self.dialled is not None else []
        probed = [probe.address for probe in self.probes.values() if probe.reachable]
        return tuple(dict.fromkeys([*dialled, *probed, *self.circuits]))


class Directory:
    """Connected peers by swarm. Answers peer requests of others.

    An asker's port is probed only at the IP address from which it is connected, so that no peer can make this node
    connect to a third party.

    Args:
        tag: of this node's swarm; None for a relay, which answers members of any swarm.
        own_addresses: returns the addresses of this node if it is a relay; circuit addresses may name them.
        on_checked: called with each address of a member that was checked.
        max_entries: most peers that are remembered; with them grows what is answered and probed at the same time.
        introduces_all: whether members of other swarms are introduced to each other, too.
    """

    def __init__(
        self,
        host: IHost,
        tag: bytes | None,
        networks: Callable[[], LocalNetworks],
        own_addresses: Callable[[], tuple[Address, ...]],
        on_checked: Callable[[Address], None],
        tally: Tally,
        max_entries: int = MAX_ENTRIES,
        introduces_all: bool = False,
    ) -> None:
        self._host, self._tag, self._networks, self._tally = host, tag, networks, tally
        self._own_addresses, self._on_checked = own_addresses, on_checked
        self._introduces_all = introduces_all or tag is None
        self._entries: Recent[str, Entry] = Recent(max_entries)
        scale = max_entries / MAX_ENTRIES
        self._probes = TokenBucket(scale * PROBES_PER_SECOND, scale * PROBE_BURST)
        self._protocol = replace(PEER_REQUESTS, max_served=int(scale * PEER_REQUESTS.max_served))

    def start(self) -> None:
        RequestServer(self._host, self._protocol, self._respond, self._tally).start()

    def mark_dialled(self, address: Address) -> None:
        """Record that this node reached a peer at an address."""
        entry = self._entry(address.peer_id)
        entry.dialled, entry.region = address, region(address)

    def mark_member(self, peer_id: str) -> None:
        """Record that a peer said that it is in this node's swarm."""
        self._entry(peer_id).tag = self._tag or b""

    def is_member(self, peer_id: str) -> bool:
        """Whether a peer said that it is in this node's swarm."""
        entry = self._entries.get(peer_id)
        return entry is not None and self._tag is not None and entry.tag == self._tag

    def is_stranger(self, peer_id: str) -> bool:
        """Whether a peer said that it is in another swarm, and this node introduces it there."""
        entry = self._entries.get(peer_id)
        return entry is not None and entry.tag not in (b"", self._tag)

    def address_of(self, peer_id: str) -> Address | None:
        """The direct address at which this node reached a peer."""
        entry = self._entries.get(peer_id)
        return entry.dialled if entry and entry.dialled and not entry.dialled.relay else None

    def members(self, tag: bytes, asker: str) -> tuple[tuple[Address, ...], ...]:
        """Connected peers of a swarm, chosen anew for each asker, with the addresses that it can use.

        They are taken in turn from the networks that they are in. Everybody who is told of the same few peers would
        depend on them, and fill them.
        """
        local = self._is_local(asker)
        groups: list[tuple[Address, ...]] = []
        for entry in self._draw(tag):
            usable = tuple(one for one in entry.addresses if local or (ip := one.ip) is None or ip.is_global)
            if usable and usable[0].peer_id != asker:
                groups.append(usable)
                if len(groups) == exchange.MAX_PEERS:
                    break
        return tuple(groups)

    def _draw(self, tag: bytes) -> Iterator[Entry]:
        """Connected peers of a swarm in random order, taken in turn from the regions that they are in."""
        connected = self._host.get_network().connections
        regions: dict[str, list[Entry]] = {}
        for entry in self._entries.values():
            if entry.tag == tag and entry.region and entry.id in connected:
                regions.setdefault(entry.region, []).append(entry)
        queues = random.sample(list(regions.values()), len(regions))
        while queues:
            for queue in queues:
                yield queue.pop(random.randrange(len(queue)))
            queues = [queue for queue in queues if queue]

    async def _respond(self, data: bytes, stream: INetStream) -> bytes:
        sender = str(stream.muxed_conn.peer_id)
        try:
            request = exchange.decode_request(data, sender)
        except WireError as error:
            raise RequestError("not a peer request") from error
        remote = stream.muxed_conn.get_remote_address()
        return exchange.encode_response(await self._answer(request, sender, remote[0] if remote else ""))

    async def _answer(self, request: ExchangeRequest, sender: str, seen: str) -> ExchangeResponse:
        entry = self._entry(sender)
        # A relay is in no swarm, so it is no member.
        is_member = request.tag == self._tag
        if not is_member and not self._introduces_all:
            entry.tag = b""
            return ExchangeResponse(False, seen, None, time.time())
        entry.tag = request.tag
        entry.circuits = tuple(circuit for circuit in request.circuits if self._is_reached(circuit.via))
        reachable = await self._probe(entry, seen, request, sender)
        addresses = entry.addresses
        entry.region = region(addresses[0]) if addresses else ""
        if is_member:
            for address in addresses:
                self._on_checked(address)
        return ExchangeResponse(is_member, seen, reachable, time.time(), self.members(request.tag, sender))

    def _is_reached(self, address: Address) -> bool:
        """Whether a relay listens at an address, as this node knows by itself."""
        relay = self._entries.get(address.peer_id)
        return address in self._own_addresses() or (relay is not None and relay.dialled == address)

    async def _probe(self, entry: Entry, seen: str, request: ExchangeRequest, sender: str) -> bool | None:
        """Whether the asker's port answers at the address from which it asks; None if that was not tried."""
        try:
            address = direct_address(seen, request.port, sender)
        except ValueError:
            return None
        probe = entry.probes.get(address.kind)
        if probe is None or probe.address != address:
            probe = Probe(address)
        is_fresh = trio.current_time() - probe.started < PROBE_AGAIN
        if request.probe and not is_fresh and self._networks().may_dial(address) and self._probes.take():
            # What the last attempt showed is valid until this one has ended.
            entry.probes[address.kind], probe.started = probe, trio.current_time()
            probe.reachable = await _answers(seen, request.port)
        return probe.reachable

    def _is_local(self, peer_id: str) -> bool:
        # A link-local address comes with the name of this machine's interface.
        remotes = [remote.partition("%")[0] for remote in direct_remotes(self._host, peer_id)]
        return any(self._networks().is_local(direct_address(remote, 1, peer_id)) for remote in remotes)

    def _entry(self, peer_id: str) -> Entry:
        if peer_id not in self._entries and len(self._entries) >= self._entries.limit:
            # However many identities come and go, who stays is remembered.
            connected = self._host.get_network().connections
            gone = next((name for name, entry in self._entries.items() if entry.id not in connected), None)
            self._entries.pop(gone or "", None)
        entry = self._entries[peer_id] = self._entries.get(peer_id) or Entry(ID.from_string(peer_id))
        return entry


async def _answers(host: str, port: int) -> bool:
    try:
        with trio.fail_after(PROBE_SECONDS):
            await (await trio.open_tcp_stream(host, port)).aclose()
        return True
    except (OSError, trio.TooSlowError):
        return False


async def ask(host: IHost, peer_id: str, request: ExchangeRequest) -> ExchangeResponse | None:
    """Ask a connected peer for others; None if it sends no valid answer."""
    try:
        data = await requests.request(host, peer_id, PEER_REQUESTS, exchange.encode_request(request))
        return exchange.decode_response(data)
    except (RequestError, WireError):
        return None
