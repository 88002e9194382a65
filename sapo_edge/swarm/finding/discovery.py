"""How a node finds others and stays connected to some: mDNS, bootstrap addresses, peers met before, peers of peers."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import trio

from sapo_edge.swarm.addresses import Address, LocalNetworks, find_local_networks, parse_address
from sapo_edge.swarm.finding.peerbook import MAX_FILE_BYTES, Origin, PeerBook
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.wire.exchange import Answer, Request, swarm_tag

if TYPE_CHECKING:
    from libp2p.abc import IHost

ASK_AGAIN = 300.0
"""Seconds until a connected peer is asked for others again."""
ASK_AGAIN_ALONE = 6.0
"""The same while there are too few connections."""
SAVE_SECONDS = 60.0
"""Time between two writes of the file of known peers."""
LOOK_SECONDS = 10.0
"""Time between two looks at the machine's networks."""
REACHABLE_FOR = 900.0
"""Seconds for which a peer's word that it reached this node stands."""
CLOCK_TOLERANCE = 60.0
"""Seconds by which clocks may differ without a word."""
MAX_CLOCKS = 32
"""Peers whose clocks are compared with this one."""


@dataclass(frozen=True, slots=True)
class DiscoveryConfig:
    """What discovery needs to know.

    Attributes:
        swarm: the manifest's digest, 32 bytes: nodes of other swarms are not looked for.
        bootstrap: multiaddresses that the owner trusts, each ending in `/p2p/<peer id>`.
        mdns: whether to announce and look on the local network.
        listen: "loopback" if nobody but this machine can reach the host.
        peers_file: JSON file of peers met before; None to forget them.
        fewest: connections to members of the swarm below which others are dialled without waiting.
        most: connections at which dialling stops. Others may still dial in.
    """

    swarm: bytes
    bootstrap: tuple[str, ...] = ()
    mdns: bool = True
    listen: Literal["all", "loopback"] = "all"
    peers_file: Path | None = None
    fewest: int = 6
    most: int = 8


@dataclass(slots=True)
class Reachability:
    """What peers say of this node.

    Attributes:
        yes: seconds of `time.monotonic` at which a peer elsewhere last reached its port.
        no: the same of one that could not.
        skew: seconds by which clocks of peers are ahead of this one, by peer id.
    """

    yes: float = -REACHABLE_FOR
    no: float = -REACHABLE_FOR
    skew: dict[str, float] = field(default_factory=dict)

    @property
    def reached(self) -> bool | None:
        """Whether others reach this node directly; None if nobody elsewhere tried lately."""
        now = time.monotonic()
        if now - max(self.yes, self.no) > REACHABLE_FOR:
            return None
        return self.yes >= self.no

    def heard(self, peer_id: str, answer: Answer, sent: float, received: float) -> None:
        """Note what a peer answered.

        Args:
            peer_id: of the peer.
            answer: of an exchange.
            sent, received: Unix seconds of this node, before and after.
        """
        if answer.reachable is not None:
            if answer.reachable:
                self.yes = time.monotonic()
            else:
                self.no = time.monotonic()
        if peer_id in self.skew or len(self.skew) < MAX_CLOCKS:
            self.skew[peer_id] = answer.clock_ahead(sent, received)

    @property
    def clock_ahead(self) -> float:
        """Median seconds by which other clocks are ahead of this one; 0 while fewer than two are known."""
        values = sorted(self.skew.values())
        return values[len(values) // 2] if len(values) > 1 else 0.0


async def run_discovery(
    host: IHost,
    config: DiscoveryConfig,
    tally: Tally,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Keep `host` connected to peers of its swarm until cancelled.

    Start it in the nursery of the trio thread once the host listens (inside `host.run(...)`). It registers its stream
    handlers, takes all dialling over from the library, and then works in tasks of its own. It raises nothing but
    `trio.Cancelled`: what fails is backed off, counted and, where the owner should know, told once as a notice.

    Args:
        host: a host that listens.
        config: what to look for, and where.
        tally: counts, faults and notices.
        task_status: for `nursery.start`: started once the stream handlers are registered.
    """
    await Discovery(host, config, tally).run(task_status)


class Discovery:
    """The parts of discovery and what they share.

    Attributes:
        reachability: what peers say of this node.
        book: known peers.
    """

    def __init__(self, host: IHost, config: DiscoveryConfig, tally: Tally) -> None:
        from sapo_edge.swarm.finding.circuit import RelayClient
        from sapo_edge.swarm.finding.dialing import Dialler
        from sapo_edge.swarm.finding.directory import Directory

        self._host, self._config, self._tally = host, config, tally
        key = host.get_network().psk
        self._psk = bytes.fromhex(key) if key else None
        self._tag = swarm_tag(config.swarm, self._psk, "peers")
        self._own_id = str(host.get_id())
        self._port = int(host.get_transport_addrs()[0].value_for_protocol("tcp"))
        self._networks = find_local_networks(config.listen)
        self._asked: dict[str, float] = {}
        self._saved = time.monotonic()
        self.reachability = Reachability()
        self.book = PeerBook(self._own_id)
        self.directory = Directory(host, self._tag, self._around, tuple, self._met, tally)
        self.dialler = Dialler(
            host, self.book, self._around, self.directory.is_member, self.directory.dialled, config.fewest, config.most,
            tally,
        )  # fmt: skip
        self.relays = RelayClient(host, self.directory.address_of, self.dialler.may_dial, self._needs_relay, tally)

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Work until cancelled."""
        from sapo_edge.swarm.finding.dialing import only_reuse_connections

        only_reuse_connections(self._host)
        self.directory.start()
        self._enter_bootstrap()
        await trio.to_thread.run_sync(self._load)
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                for part in (self.dialler.run, self.relays.run, self._ask_around, self._watch_networks, self._mdns):
                    nursery.start_soon(self._kept_up, part)
        finally:
            if self._config.peers_file is not None and self.book.changed:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 2):
                    await trio.to_thread.run_sync(self._save, abandon_on_cancel=True)

    async def _kept_up(self, part: Callable[[], Awaitable[None]]) -> None:
        """Start a part again should it fail: discovery must not end, nor end anything else."""
        while True:
            try:
                await part()
                return
            except Exception as error:  # noqa: BLE001 - supervised: counted, told, started again
                self._tally.fault("discovery", error)
                await trio.sleep(random.uniform(5, 10))

    def _around(self) -> LocalNetworks:
        return self._networks

    def _needs_relay(self) -> bool:
        return not self._networks.loopback and self.reachability.reached is not True

    def _enter_bootstrap(self) -> None:
        for text in self._config.bootstrap:
            try:
                self.book.add(parse_address(text), Origin.BOOTSTRAP)
            except ValueError as error:
                self._tally.notice("warning", f"a bootstrap address is left out: {error}", f"bootstrap {text[:80]!a}")

    async def _mdns(self) -> None:
        if not self._config.mdns:
            return
        from sapo_edge.swarm.finding.mdns import Announcement, run_mdns

        tag = swarm_tag(self._config.swarm, self._psk, "mdns")
        look = functools.partial(find_local_networks, self._config.listen)
        await run_mdns(Announcement(tag, self._own_id, self._port), look, self._on_lan, self._tally)

    def _met(self, address: Address) -> None:
        """Remember where a connected member can be dialled, which one that dialled in does not tell by itself."""
        known = self.book.add(address, Origin.PEER, source=address.peer_id)
        if known is not None and not known.reached:
            self.book.reached(address.peer_id, None)

    def _on_lan(self, address: Address) -> None:
        if address.relay is None and self._networks.is_local(address) and self._networks.may_dial(address):
            self.book.add(address, Origin.LAN)

    async def _watch_networks(self) -> None:
        while True:
            await trio.sleep(LOOK_SECONDS)
            now = await trio.to_thread.run_sync(find_local_networks, self._config.listen)
            if now != self._networks:
                self._networks = now
                self.reachability.yes = self.reachability.no = -REACHABLE_FOR
                self.book.hurry()
            if time.monotonic() - self._saved > SAVE_SECONDS and self.book.changed:
                self._saved = time.monotonic()
                await trio.to_thread.run_sync(self._save)

    async def _ask_around(self) -> None:
        """Ask each new peer for others, and all of them again from time to time."""
        limit = trio.CapacityLimiter(4)
        circuits: tuple[Address, ...] = ()
        async with trio.open_nursery() as nursery:
            while True:
                connected, now = self.dialler.connected, time.monotonic()
                if circuits != self.relays.addresses():
                    # Nobody can be sent to this node before its relay's other clients know where it is.
                    circuits = self.relays.addresses()
                    self._asked.clear()
                self._asked = {peer: at for peer, at in self._asked.items() if peer in connected}
                again = ASK_AGAIN_ALONE if len(self.dialler.members) < min(2, self._config.fewest) else ASK_AGAIN
                for peer_id in connected:
                    if self._asked.get(peer_id, 0.0) <= now:
                        self._asked[peer_id] = now + again * random.uniform(0.8, 1.2)
                        nursery.start_soon(self._ask, peer_id, limit)
                await trio.sleep(1.0)

    async def _ask(self, peer_id: str, limit: trio.CapacityLimiter) -> None:
        from sapo_edge.swarm.finding.directory import ask

        async with limit:
            sent = time.time()
            answer = await ask(self._host, peer_id, Request(self._tag, self._port, self.relays.addresses(), True))
        if answer is None:
            self._tally.count("peers that know no others")
            return
        if answer.member:
            self.directory.joined(peer_id, self._tag)
        elif not answer.peers and not self.relays.is_relay(peer_id):
            self.book.forget(peer_id)
        self.reachability.heard(peer_id, answer, sent, time.time())
        self._compare_clocks()
        for group in answer.peers:
            for address in group:
                if self.dialler.may_dial(address):
                    self.book.add(address, Origin.PEER, source=peer_id)
                else:
                    self._tally.count("addresses not taken: not to be trusted")

    def _compare_clocks(self) -> None:
        ahead = self.reachability.clock_ahead
        if abs(ahead) > CLOCK_TOLERANCE:
            self._tally.notice(
                "warning",
                f"this machine's clock is {abs(ahead):.0f} s {'behind' if ahead > 0 else 'ahead of'} that of its peers:"
                " set it, or they may refuse its rollouts as too old",
                "clock",
            )

    def _load(self) -> None:
        path = self._config.peers_file
        if path is None:
            return
        try:
            with path.open("rb") as file:
                self.book.load(file.read(MAX_FILE_BYTES + 1))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            self._tally.notice("warning", f"the file of known peers is left out: {error}", "known peers")

    def _save(self) -> None:
        path = self._config.peers_file
        if path is None:
            return
        try:
            self.book.save(path)
            self.book.changed = False
        except OSError as error:
            self._tally.notice(
                "warning", f"the file of known peers can't be written: {error.strerror or error}", "known peers"
            )
