"""Discovery: mDNS, bootstrap addresses, peers of earlier runs and peers of peers keep a node connected to its swarm."""

from __future__ import annotations

import functools
import math
import random
import time
from collections.abc import Callable
from ipaddress import ip_address

import trio
from libp2p.abc import IHost

from sapo_edge.state.durable import read_bounded, write_atomically
from sapo_edge.swarm.addresses import Address, direct_address, find_local_networks, is_public, parse_address
from sapo_edge.swarm.config import SwarmConfig
from sapo_edge.swarm.finding.circuit import RelayClient
from sapo_edge.swarm.finding.dialing import Dialler
from sapo_edge.swarm.finding.directory import Directory, ask
from sapo_edge.swarm.finding.hop import STRANGERS, STRANGERS_OF_NETWORK, Hop, members_hop
from sapo_edge.swarm.finding.outside import InboundWatch, Outside, View
from sapo_edge.swarm.finding.peerbook import MAX_FILE_BYTES, RENDEZVOUS, Origin, PeerBook
from sapo_edge.swarm.finding.visiting import carries
from sapo_edge.swarm.finding.volunteers import Volunteers
from sapo_edge.swarm.host.hardening import keep_running
from sapo_edge.swarm.host.host import MAX_CONNECTIONS, direct_remotes, listen_port, network_of
from sapo_edge.swarm.rendezvous.rendezvous import Place, Rendezvous, Topic, keys_at, swarms_keys
from sapo_edge.swarm.router.mapping import Mapping
from sapo_edge.swarm.router.ports import Ports
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.wire.exchange import ExchangeRequest, swarm_tag
from sapo_edge.tasks.manifest import shipped_name

ASK_SECONDS = 300.0
"""Time until a connected peer is asked for others again."""
ASK_SECONDS_ALONE = 6.0
"""The same while there are too few connections."""
SAVE_SECONDS = 60.0
"""Time between two writes of the file of known peers."""
LOOK_SECONDS = 10.0
"""Time between two checks of the machine's networks."""
SLEPT_SECONDS = 60.0
"""Seconds that the date is ahead of steady clocks after a check, from which the machine has slept or was set."""
LONELY_SECONDS = 30.0
"""After which a node without a member asks strangers' relays for some, although others reach it."""
PLACES_LEFT = 64
"""Connections up to the most at which a node announces itself no longer."""
MAX_OWN = 2
"""Public addresses of this machine that a hole is punched to; with IPv6 it may have many."""
CLOCK_TOLERANCE = 60.0
"""Seconds by which clocks may differ without a notice."""
REACHED_SECONDS = 86400.0
"""Time for which others have reached this node before its owner is asked whether it volunteers."""


class Discovery:
    """Keeps a host connected to peers of its swarm. `is_proven` says who has sent good rollouts for a while.

    `networks` are those of this machine, looked at every `LOOK_SECONDS`.
    """

    def __init__(
        self,
        host: IHost,
        config: SwarmConfig,
        ports: Ports,
        tally: Tally,
        is_proven: Callable[[str], bool] = lambda peer_id: False,
    ) -> None:
        self._host, self._config, self._tally, self._is_proven = host, config, tally, is_proven
        self._tag = self._tag_for("peers")
        self._own_id = str(host.get_id())
        self._port = listen_port(host)
        self.networks = find_local_networks(config.listen)
        self._ask_due: dict[str, float] = {}
        self._saved = self._began = time.monotonic()
        self.outside = Outside()
        self.mapping = Mapping(self._port, self.outside.record_router, tally, ports)
        self._inbound = InboundWatch(host, self.outside)
        self.book = PeerBook(self._own_id, swarm=self._tag)
        self.directory = Directory(
            host, self._tag, lambda: self.networks, self.confirmed, self._add_member, tally,
            introduces_all=config.is_volunteer,
        )  # fmt: skip
        self.dialler = Dialler(
            host, self.book, lambda: self.networks, self.directory.is_member, self.directory.mark_dialled, tally
        )  # fmt: skip
        swarm = bytes.fromhex(config.manifest.digest)
        members = Topic(
            lambda: keys_at(swarm, config.psk, time.time()), self._open_port,
            lambda: self.dialler.wants_strangers, lambda: not self.dialler.members, self._try_place,
        )  # fmt: skip
        self.volunteers = Volunteers(
            host, swarm, self.dialler, self.directory.is_member, self._needs_volunteers,
            lambda peer_id: self.relays.reserved_at(peer_id) is not None, tally,
        )  # fmt: skip
        # All connections of a private swarm's node are encrypted with its key, which volunteers lack.
        topics = [members, *([self.volunteers.topic(self._volunteered_port)] if config.psk is None else [])]
        if config.psk is None and shipped_name(config.manifest.digest) is None:
            # Who looks for a swarm knows the shipped manifests only.
            topics.append(Topic(swarms_keys, self._announced_port))
        self.rendezvous = Rendezvous(
            config.contacts, topics, tally, config.dht_nodes, lambda: self.book.last,
            lambda: {(address.host, address.port) for address in self.invited()},
        )  # fmt: skip
        self.relays = RelayClient(
            host, self.directory.address_of, self._needs_relay, functools.partial(carries, host, self._tag),
            self._own_addresses, self._dial_checked, tally, self.volunteers.holds,
        )  # fmt: skip
        self._hop: Hop | None = None
        self._reached_since: float | None = None

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Find and dial peers until cancelled; started once the stream handlers are registered.

        Failures are retried, counted and notified; they never raise.
        """
        self.directory.start()
        if rate := self._config.relay_rate:
            # From the start, because peers learn only when they connect that it is offered.
            connects = (lambda peer_id: True) if self._config.is_volunteer else self.directory.is_member
            self._hop = members_hop(self._host, self._tally, rate, self._reserves_for, connects)
            self._hop.start()
        self._add_bootstrap()
        await self._load()
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                parts = [self.dialler.run, self.relays.run, self._ask_peers, self._watch_networks, self._mdns]
                if self._config.map_port:
                    parts.append(self.mapping.run)
                if self._config.contacts:
                    parts.append(self.rendezvous.run)
                for part in parts:
                    nursery.start_soon(keep_running, part, "discovery", self._tally)
        finally:
            if self.book.changed:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 2):
                    await self._save(abandon_on_cancel=True)

    def confirmed(self) -> tuple[Address, ...]:
        """Public addresses on which other networks agree, and at which they reach this node."""
        ports = {4: self.mapping.port, 6: self._port}
        return tuple(
            direct_address(ip, port, self._own_id)
            for version, port in ports.items()
            if (ip := self.outside.address(version)) is not None and self.outside.reaches(version)
        )

    def invited(self) -> tuple[Address, ...]:
        """Public addresses for an invite: those confirmed, and the one of a router that forwards a port meanwhile.

        A node that is the first of its swarm has no peer yet to confirm it.
        """
        ip = self.outside.address(4) or self.outside.router
        if self.mapping.current is None or not ip or self.outside.reaches(4) is False:
            return self.confirmed()
        return tuple(dict.fromkeys([direct_address(ip, self.mapping.port, self._own_id), *self.confirmed()]))

    def _needs_relay(self) -> bool:
        return not self.networks.loopback and self.outside.reaches(4) is not True

    def _needs_volunteers(self) -> bool:
        """Whether nobody can dial this node, and no member or relay of its swarm carries connections to it.

        A node that others reach has volunteers while it is alone: who has the other version of IP can't dial it.
        """
        if self.networks.loopback:
            return False
        if not self._needs_relay() or self._announced_port():
            is_lonely = not self.dialler.members and time.monotonic() - self._began > LONELY_SECONDS
            return is_lonely and not self._config.is_volunteer
        relays = [address.relay or "" for address in self.relays.addresses()]
        known = [self.book.peers[relay] for relay in relays if relay in self.book.peers]
        is_named = any(peer.origin is Origin.BOOTSTRAP for peer in known)
        return not is_named and not any(map(self.directory.is_member, relays))

    def _reserves_for(self, peer_id: str) -> bool:
        """Whether to carry connections to a peer, a member or a stranger, as long as other networks reach this node.

        Neighbours on a private network would name it by an address that is of no use elsewhere.
        """
        remotes = direct_remotes(self._host, peer_id)
        is_elsewhere = any(is_public(ip_address(remote)) for remote in remotes)
        is_served = self.directory.is_member(peer_id) or self._serves_stranger(peer_id)
        return is_elsewhere and is_served and bool(self.confirmed())

    def _serves_stranger(self, peer_id: str) -> bool:
        """Whether this node volunteers, and has a place for a node of another swarm: its own members need some, too."""
        if not self._config.is_volunteer or self._hop is None:
            return False
        others = [other for other in self._hop.holders if other != peer_id and not self.directory.is_member(other)]
        near = [other for other in others if network_of(self._host, other) == network_of(self._host, peer_id)]
        return len(others) < STRANGERS and len(near) < STRANGERS_OF_NETWORK

    def _own_addresses(self) -> tuple[Address, ...]:
        """Public addresses at which a peer may try to reach this node, perhaps in vain."""
        machine = [direct_address(ip, self._port, self._own_id) for ip in self.networks.addresses]
        public = [address for address in machine if address.ip is not None and is_public(address.ip)]
        return (*self.invited(), *public[:MAX_OWN])

    async def _dial_checked(self, peer_id: str) -> bool:
        """Dial a peer directly where others say that they reached it, and return whether that worked."""
        peer = self.book.peers.get(peer_id)
        for address in peer.addresses if peer else ():
            is_direct = address.relay is None and address.ip is not None and is_public(address.ip)
            if is_direct and await self.dialler.dial(address):
                return True
        return False

    def _add_bootstrap(self) -> None:
        for text in self._config.bootstrap:
            try:
                self.book.add(parse_address(text), Origin.BOOTSTRAP)
            except ValueError as error:
                self._tally.notice(
                    "warning", f"ignoring an invalid bootstrap address: {error}", f"bootstrap {text[:80]!a}"
                )

    def _announced_port(self) -> int:
        """The port at which strangers reach this node, over IPv4 if they can; 0 if they don't, as far as is known."""
        ports = {address.kind: address.port for address in self.invited()}
        return ports.get("ip4") or ports.get("ip6") or 0

    def _open_port(self) -> int:
        """The same for members; 0 while few places are left, as a DHT node keeps a few hundred addresses of a key."""
        has_room = len(self._host.get_network().connections) <= MAX_CONNECTIONS - PLACES_LEFT
        return self._announced_port() if has_room else 0

    def _volunteered_port(self) -> int:
        return self._announced_port() if self._config.is_volunteer else 0

    async def _try_place(self, place: Place) -> bool:
        """Remember whoever listens at an address that the DHT names, and return whether somebody does."""
        address = await self.dialler.identify(*place)
        return address is not None and self.book.add(address, Origin.PEER, RENDEZVOUS) is not None

    async def _mdns(self) -> None:
        if not self._config.mdns:
            return
        from sapo_edge.swarm.finding.mdns import Announcement, run_mdns

        announcement = Announcement(self._tag_for("mdns"), self._own_id, self._port)
        look = functools.partial(find_local_networks, self._config.listen)
        await run_mdns(announcement, look, self._add_local, self._tally)

    def _tag_for(self, purpose: str) -> bytes:
        return swarm_tag(bytes.fromhex(self._config.manifest.digest), self._config.psk, purpose)

    def _add_member(self, address: Address) -> None:
        """Remember a checked address of a connected member, which may have dialled in from another port."""
        peer = self.book.add(address, Origin.PEER, source=address.peer_id)
        if peer is not None and not peer.last_connected:
            self.book.mark_connected(address.peer_id)

    def _add_local(self, address: Address) -> None:
        if self.networks.may_announce(address):
            self.book.add(address, Origin.LAN)

    async def _watch_networks(self) -> None:
        while True:
            before = time.time() - time.monotonic()
            await trio.sleep(LOOK_SECONDS)
            networks = await trio.to_thread.run_sync(find_local_networks, self._config.listen)
            # Steady clocks stand still while a machine sleeps, and what routers and the DHT remember of it runs out.
            has_slept = time.time() - time.monotonic() - before > SLEPT_SECONDS
            if networks != self.networks or has_slept:
                self.networks = networks
                self.outside.forget()
                self.mapping.renew_soon()
                self.book.retry_soon()
                # What peers and the DHT know of this node is of before.
                self._ask_due.clear()
                for topic in self.rendezvous.topics:
                    topic.forget()
            self.book.mark_members(len(self.dialler.members))
            self.volunteers.tidy()
            await self._ask_to_volunteer()
            for peer_id in filter(self._is_proven, self.dialler.dialled):
                self.book.mark_proven(peer_id)
            if time.monotonic() - self._saved > SAVE_SECONDS and self.book.changed:
                self._saved = time.monotonic()
                await self._save()

    async def _ask_to_volunteer(self) -> None:
        """Ask the owner once whether the node helps strangers, when others have reached it for a day."""
        config = self._config
        may_ask = config.relay_rate and config.contacts and config.psk is None and not config.is_volunteer
        if config.asked is None or not (may_ask and self.confirmed()):
            self._reached_since = None
            return
        if self._reached_since is None:
            self._reached_since = time.monotonic()
        if time.monotonic() - self._reached_since < REACHED_SECONDS:
            return
        self._reached_since = math.inf
        try:
            await trio.to_thread.run_sync(functools.partial(config.asked.touch, 0o600, exist_ok=False))
        except OSError:
            # It was asked before; or it can't be remembered, and would be asked again and again.
            return
        self._tally.notice(
            "info",
            "others have reached this node for a day. May it help strangers of other swarms to meet, too? It carries "
            "little for them, and can't read it. `sapo config set relay public` says yes; this is asked once",
            "volunteer",
        )

    async def _ask_peers(self) -> None:
        """Ask each new peer for others, and all peers again from time to time."""
        limit = trio.CapacityLimiter(4)
        told: tuple[object, ...] = ()
        # Peers that say nothing take up the limit for seconds each: none is waited for twice.
        asking: set[str] = set()

        async def ask_one(peer_id: str) -> None:
            await self._ask(peer_id, limit)
            asking.discard(peer_id)

        async with trio.open_nursery() as nursery:
            while True:
                self._inbound.look()
                connected, now = self.dialler.connected, time.monotonic()
                ways = self.relays.addresses(), self.mapping.port, self.mapping.state
                if told != ways:
                    # A request tells peers this node's addresses, so all of them get the new ones.
                    told = ways
                    self._ask_due.clear()
                self._ask_due = {peer_id: due for peer_id, due in self._ask_due.items() if peer_id in connected}
                alone = len(self.dialler.members) < 2
                for peer_id in connected - asking:
                    if self._ask_due.get(peer_id, 0.0) <= now:
                        # Many may be alone at one volunteer, for days.
                        is_slow = self.volunteers.is_settled(peer_id) or self.directory.is_stranger(peer_id)
                        interval = ASK_SECONDS_ALONE if alone and not is_slow else ASK_SECONDS
                        self._ask_due[peer_id] = now + interval * random.uniform(0.8, 1.2)
                        asking.add(peer_id)
                        nursery.start_soon(ask_one, peer_id)
                await trio.sleep(1.0)

    async def _ask(self, peer_id: str, limit: trio.CapacityLimiter) -> None:
        async with limit:
            sent = time.time()
            remotes = direct_remotes(self._host, peer_id)
            port = self._port if remotes and ":" in remotes[0] else self.mapping.port
            # A peer remembers for minutes that it tried the port in vain, as before the router forwards it.
            probe = not self._config.map_port or self.mapping.state != "asking"
            answer = await ask(self._host, peer_id, ExchangeRequest(self._tag, port, self.relays.addresses(), probe))
        if answer is None:
            self._tally.count("peer requests without an answer")
            return
        if answer.member:
            self.directory.mark_member(peer_id)
        elif not answer.peers and not self.relays.is_dedicated(peer_id):
            self.book.forget(peer_id)
        # A peer may be connected over both versions of IP, and sees the address of one.
        remotes = tuple(sorted(direct_remotes(self._host, peer_id), key=lambda ip: (":" in ip) != (":" in answer.seen)))
        ahead = answer.clock_ahead(sent, time.time())
        self.outside.record(View(remotes[0] if remotes else "", answer.seen, answer.reachable, ahead))
        self._compare_clocks()
        for group in answer.peers:
            for address in group:
                # A relay's name, which no peer may bring up, is one that this node's owner wrote down, too.
                is_reached = address.via == self.directory.address_of(address.via.peer_id)
                if is_reached or self.networks.may_name(address.via, remotes):
                    self.book.add(address, Origin.PEER, source=peer_id)
                else:
                    self._tally.count("addresses rejected: not allowed")

    def _compare_clocks(self) -> None:
        ahead = self.outside.clock_ahead
        if abs(ahead) > CLOCK_TOLERANCE:
            self._tally.notice(
                "warning",
                f"this machine's clock is {abs(ahead):.0f} s {'behind' if ahead > 0 else 'ahead of'} that of its peers:"
                " set it, or they may reject its rollouts as too old",
                "clock",
            )

    async def _load(self) -> None:
        if (path := self._config.known_peers) is None:
            return
        try:
            self.book.load(await trio.to_thread.run_sync(read_bounded, path, MAX_FILE_BYTES))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            self._tally.notice("warning", f"ignoring the file of known peers: {error}", "known peers")

    async def _save(self, *, abandon_on_cancel: bool = False) -> None:
        if (path := self._config.known_peers) is None:
            return
        # The book is for this thread alone, and what changes while the file is written is of the next one.
        data, self.book.changed = self.book.to_bytes(), False
        try:
            await trio.to_thread.run_sync(write_atomically, path, data, abandon_on_cancel=abandon_on_cancel)
        except OSError as error:
            self.book.changed = True
            self._tally.notice(
                "warning", f"can't write the file of known peers: {error.strerror or error}", "known peers"
            )
