"""Who is connected and where others can reach them: the answering side of peer exchange, and the asking one."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import trio
from libp2p.abc import IHost, INetStream
from libp2p.peer.id import ID

from sapo_edge.swarm.addresses import Address, LocalNetworks, direct_address
from sapo_edge.swarm.bucket import TokenBucket
from sapo_edge.swarm.host import requests
from sapo_edge.swarm.host.requests import Protocol, RequestError, RequestServer
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.wire import exchange
from sapo_edge.swarm.wire.exchange import Answer, ExchangeError, Request

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
"""Time for a connection to an asker's port."""
PROBE_AGAIN = 300.0
"""Seconds for which the result of a probe stands."""
MAX_ENTRIES = 1024
"""Peers of which something is remembered."""


@dataclass(slots=True)
class Entry:
    """What is known of a peer at first hand.

    Attributes:
        tag: of the swarm in which it says it is.
        dialled: the address at which this node reached it.
        probed: the address at which its port answered, or did not.
        reachable: whether it did; None before the first probe.
        probed_at: seconds of trio's clock.
        circuits: through relays that this node has reached itself.
    """

    tag: bytes = b""
    dialled: Address | None = None
    probed: Address | None = None
    reachable: bool | None = None
    probed_at: float = -PROBE_AGAIN
    circuits: tuple[Address, ...] = ()

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where others can reach it, as far as this node has seen itself."""
        probed = self.probed if self.reachable else None
        direct = [address for address in (self.dialled, probed) if address is not None]
        return tuple(dict.fromkeys([*direct, *self.circuits]))[: exchange.MAX_ADDRESSES]


class Directory:
    """Connected peers by swarm; answers requests of others.

    An asker's port is probed at the IP address from which it is connected and nowhere else, so that nobody can point
    this node at a third party.

    Args:
        host: a host that listens.
        tag: of this node's swarm; None for a relay, which answers members of any.
        networks: called for the networks this machine is in now.
        own: addresses of this node that may stand for a relay in a circuit address.
        checked: told of addresses of members that were found to be good.
        tally: counts.
    """

    def __init__(
        self,
        host: IHost,
        tag: bytes | None,
        networks: Callable[[], LocalNetworks],
        own: Callable[[], tuple[Address, ...]],
        checked: Callable[[Address], None],
        tally: Tally,
    ) -> None:
        self._host = host
        self._checked = checked
        self._tag = tag
        self._networks = networks
        self._own = own
        self._tally = tally
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._probes = TokenBucket(1.0, 8.0)

    def start(self) -> None:
        """Answer from now on."""
        RequestServer(self._host, PEER_REQUESTS, self._respond, self._tally).start()

    def dialled(self, address: Address) -> None:
        """Note that this node reached a peer at an address."""
        self._entry(address.peer_id).dialled = address

    def joined(self, peer_id: str, tag: bytes) -> None:
        """Note that a peer said in which swarm it is."""
        self._entry(peer_id).tag = tag

    def is_member(self, peer_id: str) -> bool:
        """Whether a peer said that it is in this node's swarm."""
        entry = self._entries.get(peer_id)
        return entry is not None and self._tag is not None and entry.tag == self._tag

    def address_of(self, peer_id: str) -> Address | None:
        """The direct address at which this node reached a peer."""
        entry = self._entries.get(peer_id)
        return entry.dialled if entry and entry.dialled and not entry.dialled.relay else None

    def members(self, tag: bytes, asker: str) -> tuple[tuple[Address, ...], ...]:
        """Connected peers of a swarm, with addresses that are of use to an asker."""
        local = self._is_local(asker)
        groups = []
        for peer_id in {str(peer) for peer in self._host.get_network().connections} - {asker}:
            entry = self._entries.get(peer_id)
            if entry is None or entry.tag != tag:
                continue
            useful = tuple(
                address for address in entry.addresses if local or (ip := address.ip) is None or ip.is_global
            )
            if useful:
                groups.append(useful)
        return tuple(groups[: exchange.MAX_PEERS])

    async def _respond(self, data: bytes, stream: INetStream) -> bytes:
        sender = str(stream.muxed_conn.peer_id)
        try:
            request = exchange.decode_request(data, sender)
        except ExchangeError as error:
            raise RequestError("not a peer request") from error
        remote = stream.muxed_conn.get_remote_address()
        return exchange.encode_answer(await self._answer(request, sender, remote[0] if remote else ""))

    async def _answer(self, request: Request, sender: str, seen: str) -> Answer:
        entry = self._entry(sender)
        if self._tag is not None and request.tag != self._tag:
            entry.tag = b""
            return Answer(False, seen, None, time.time())
        entry.tag = request.tag
        known = {str(address) for address in self._own()}
        known |= {str(other.dialled) for other in self._entries.values() if other.dialled}
        entry.circuits = tuple(circuit for circuit in request.circuits if str(circuit.via) in known)
        if request.probe and seen and request.port:
            await self._probe(entry, seen, request.port, sender)
        for address in entry.addresses:
            self._checked(address)
        # A relay keeps to itself what it would need to be in a swarm: it is in none.
        return Answer(self._tag is not None, seen, entry.reachable, time.time(), self.members(request.tag, sender))

    async def _probe(self, entry: Entry, seen: str, port: int, sender: str) -> None:
        try:
            address = direct_address(seen, port, sender)
        except ValueError:
            return
        fresh = trio.current_time() - entry.probed_at < PROBE_AGAIN and entry.probed == address
        if fresh or not self._networks().may_dial(address) or not self._probes.take():
            return
        entry.probed, entry.probed_at, entry.reachable = address, trio.current_time(), False
        with trio.move_on_after(PROBE_SECONDS):
            try:
                stream = await trio.open_tcp_stream(seen, port)
            except OSError:
                return
            await stream.aclose()
            entry.reachable = True

    def _is_local(self, peer_id: str) -> bool:
        network = self._host.get_network()
        for connection in network.get_connections(ID.from_string(peer_id)):
            remote = connection.muxed_conn.get_remote_address()
            if remote and self._networks().is_local(direct_address(remote[0], 1, peer_id)):
                return True
        return False

    def _entry(self, peer_id: str) -> Entry:
        entry = self._entries.get(peer_id)
        if entry is None:
            entry = self._entries[peer_id] = Entry()
            while len(self._entries) > MAX_ENTRIES:
                self._entries.popitem(last=False)
        self._entries.move_to_end(peer_id)
        return entry


async def ask(host: IHost, peer_id: str, request: Request) -> Answer | None:
    """Ask a connected peer for others; None if it sends no valid answer."""
    try:
        data = await requests.request(host, peer_id, PEER_REQUESTS, exchange.encode_request(request))
        return exchange.decode_answer(data)
    except (RequestError, ExchangeError):
        return None
