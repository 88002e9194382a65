"""Finding nodes of the same swarm on the local network by multicast DNS, after libp2p's specification.

The service type is `_p2p._udp.local.`, the instance's name is random, and TXT strings `dnsaddr=` carry the addresses.
One more string, `sapo-edge=`, names the swarm, by a hash that tells outsiders nothing. Services without it are skipped.

The library's own announcer blocks the event loop for more than a second, writes TXT keys that the specification does
not know, and dials nobody. This one uses zeroconf in worker threads.
"""

from __future__ import annotations

import logging
import random
import string
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import trio
from zeroconf import Error, InterfaceChoice, IPVersion, ServiceBrowser, ServiceInfo, ServiceListener, Zeroconf

from sapo_edge.swarm.addresses import Address, LocalNetworks, direct_address, parse_address
from sapo_edge.swarm.tally import Tally

SERVICE = "_p2p._udp.local."
"""libp2p's service type."""
MAX_ANNOUNCED = 4
"""Addresses of this node that are announced."""
MAX_TXT_BYTES = 2048
"""Longest TXT record that is read."""
MAX_ADDRESSES = 8
"""Addresses that are read of one."""
MAX_SERVICES = 256
"""Services of others that are remembered, libp2p programs of any kind included."""
RESOLVE_MS = 2000
"""Time for one service to tell its addresses."""
LOOK_SECONDS = 10.0
"""Time between two looks at the machine's own addresses."""
RETRY_SECONDS = 60.0
"""Time until multicast is tried again where it failed."""
REMIND_SECONDS = 60.0
"""A service that is still there is reported again after this long, in case its peer was forgotten meanwhile."""

Found = Callable[[Address], None]


@dataclass(frozen=True, slots=True)
class Announcement:
    """What this node says of itself, and looks for.

    Attributes:
        tag: of the swarm, 32 bytes; a part of it is announced.
        peer_id: of this node.
        port: at which it listens.
    """

    tag: bytes
    peer_id: str
    port: int

    @property
    def mark(self) -> bytes:
        """The TXT string that names the swarm."""
        return b"sapo-edge=" + self.tag[:8].hex().encode()

    def txt(self, networks: LocalNetworks) -> bytes:
        """The TXT record: strings, each after its length."""
        addresses = [direct_address(ip, self.port, self.peer_id) for ip in networks.listen_addresses[:MAX_ANNOUNCED]]
        strings = [self.mark, *(f"dnsaddr={address}".encode() for address in addresses)]
        return b"".join(bytes([len(text)]) + text for text in strings)

    def read(self, txt: bytes) -> tuple[Address, ...]:
        """The addresses in another node's TXT record; none if it is of another swarm, or of this node."""
        if len(txt) > MAX_TXT_BYTES:
            return ()
        strings = []
        while txt:
            strings.append(txt[1 : 1 + txt[0]])
            txt = txt[1 + txt[0] :]
        if self.mark not in strings:
            return ()
        found = []
        for text in strings:
            if not text.startswith(b"dnsaddr="):
                continue
            try:
                found.append(parse_address(text.removeprefix(b"dnsaddr=").decode("ascii")))
            except ValueError:
                continue
        return tuple(address for address in found[:MAX_ADDRESSES] if address.peer_id != self.peer_id)


class _Listener(ServiceListener):
    """Called in a thread of zeroconf's."""

    def __init__(self, announcement: Announcement, found: Found, own_name: str) -> None:
        self._announcement = announcement
        self._found = found
        self._own_name = own_name
        self.services: OrderedDict[str, tuple[Address, ...]] = OrderedDict()

    def add_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        """A service is there."""
        if name == self._own_name or (name not in self.services and len(self.services) >= MAX_SERVICES):
            return
        info = zc.get_service_info(type_, name, timeout=RESOLVE_MS)
        self.services[name] = self._announcement.read(info.text or b"") if info is not None else ()
        self.report(name)

    def update_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        """A service says something else."""
        self.add_service(zc, type_, name)

    def remove_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        """A service is gone."""
        self.services.pop(name, None)

    def report(self, name: str) -> None:
        """Hand over the addresses of one service."""
        for address in self.services.get(name, ()):
            self._found(address)


class _Session:
    """Zeroconf for as long as the machine's addresses stay the same. Its methods block."""

    def __init__(self, announcement: Announcement, found: Found, networks: LocalNetworks) -> None:
        interfaces = ["127.0.0.1"] if networks.loopback else InterfaceChoice.All
        self._zeroconf = Zeroconf(interfaces=interfaces, ip_version=IPVersion.V4Only)
        name = "".join(random.choices(string.ascii_lowercase + string.digits, k=32))
        self._info = ServiceInfo(
            SERVICE,
            f"{name}.{SERVICE}",
            port=announcement.port,
            properties=announcement.txt(networks),
            server=f"{name}.local.",
            parsed_addresses=list(networks.listen_addresses[:MAX_ANNOUNCED]),
        )
        self._listener = _Listener(announcement, found, self._info.name)

    def start(self) -> None:
        """Look first, then announce, which takes more than a second."""
        ServiceBrowser(self._zeroconf, SERVICE, listener=self._listener)
        self._zeroconf.register_service(self._info)

    def remind(self) -> None:
        """Report all services again."""
        for name in tuple(self._listener.services):
            self._listener.report(name)

    def close(self) -> None:
        """Say goodbye."""
        self._zeroconf.close()


async def run_mdns(announcement: Announcement, look: Callable[[], LocalNetworks], found: Found, tally: Tally) -> None:
    """Announce this node and look for others until cancelled.

    Args:
        announcement: what to say.
        look: tells the machine's networks; called in a worker thread.
        found: called in trio's thread with each address that is announced for the same swarm, again and again.
        tally: counts and notices. A machine without multicast is told once and is no error.
    """
    token = trio.lowlevel.current_trio_token()
    # Zeroconf logs what anybody on the network sends wrong.
    logging.getLogger("zeroconf").setLevel(logging.CRITICAL)

    def found_elsewhere(address: Address) -> None:
        try:
            token.run_sync_soon(found, address)
        except trio.RunFinishedError:
            return

    while True:
        networks = await trio.to_thread.run_sync(look)
        session = None
        try:
            session = await trio.to_thread.run_sync(_Session, announcement, found_elsewhere, networks)
            await trio.to_thread.run_sync(session.start)
            tally.count("announced on the local network")
            await _until_changed(session, look, networks)
        except (OSError, Error) as error:
            tally.count("local networks without multicast")
            tally.notice(
                "warning",
                f"nodes on the local network can't be found: multicast does not work here ({type(error).__name__});"
                " use an invite or a bootstrap address",
                "multicast",
            )
            await trio.sleep(RETRY_SECONDS)
        finally:
            if session is not None:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 3):
                    await trio.to_thread.run_sync(session.close, abandon_on_cancel=True)


async def _until_changed(session: _Session, look: Callable[[], LocalNetworks], before: LocalNetworks) -> None:
    """Wait until the machine has other addresses: a laptop was carried somewhere else."""
    reminded = trio.current_time()
    while True:
        await trio.sleep(LOOK_SECONDS)
        if set((await trio.to_thread.run_sync(look)).addresses) != set(before.addresses):
            return
        if trio.current_time() - reminded > REMIND_SECONDS:
            reminded = trio.current_time()
            session.remind()
