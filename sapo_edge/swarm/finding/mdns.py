"""Multicast DNS, after libp2p's specification: finds nodes of the same swarm on the local network.

The service type is `_p2p._udp.local.`, the instance name is random, and TXT strings `dnsaddr=` have the addresses. One
more string, `sapo-edge=`, names the swarm by a hash that reveals nothing. Services without it are skipped.

The library's own announcer blocks the event loop for more than a second, writes TXT keys that the specification does
not have, and dials no peer. This one uses zeroconf in worker threads.
"""

from __future__ import annotations

import contextlib
import logging
import random
import string
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio
from zeroconf import Error, InterfaceChoice, IPVersion, ServiceBrowser, ServiceInfo, ServiceListener, Zeroconf

from sapo_edge.recent import Recent
from sapo_edge.swarm.addresses import Address, LocalNetworks, direct_address, parse_address
from sapo_edge.swarm.tally import Tally

SERVICE = "_p2p._udp.local."
MAX_ANNOUNCED = 4
"""Most addresses of this node that are announced."""
MAX_TXT_BYTES = 2048
MAX_ADDRESSES = 8
"""Most addresses that are read from one TXT record."""
MAX_SERVICES = 256
"""Most services of the swarm that are remembered, the newest."""
LOOK_SECONDS = 10.0
"""Time between two checks of the machine's own addresses."""
RETRY_SECONDS = 60.0
"""Time until multicast is tried again after a failure."""
REMIND_SECONDS = 60.0
"""Time until known services are reported again, in case their peers were forgotten meanwhile."""
MAX_NEARBY = 16
"""Most addresses that a short visit tries."""

OnAddress = Callable[[Address], None]


@dataclass(frozen=True, slots=True)
class Announcement:
    """What this node announces, and looks for.

    Attributes:
        tag: of the swarm, 32 bytes; the first 8 are announced.
        port: TCP port at which it listens; 0 to look only.
    """

    tag: bytes
    peer_id: str
    port: int

    @property
    def mark(self) -> bytes:
        """The TXT string that names the swarm."""
        return b"sapo-edge=" + self.tag[:8].hex().encode()

    def txt(self, networks: LocalNetworks) -> bytes:
        """The TXT record: strings with a length byte before each."""
        ips = networks.listen_addresses[:MAX_ANNOUNCED] if self.port else ()
        addresses = [direct_address(ip, self.port, self.peer_id) for ip in ips]
        strings = [self.mark, *(f"dnsaddr={address}".encode() for address in addresses)]
        return b"".join(bytes([len(text)]) + text for text in strings)

    def read(self, txt: bytes) -> tuple[Address, ...]:
        """The addresses in another node's TXT record; none if it is of another swarm or of this node."""
        if len(txt) > MAX_TXT_BYTES:
            return ()
        strings = []
        while txt:
            strings.append(txt[1 : 1 + txt[0]])
            txt = txt[1 + txt[0] :]
        if self.mark not in strings:
            return ()
        addresses = []
        for text in strings:
            if text.startswith(b"dnsaddr="):
                with contextlib.suppress(ValueError):
                    addresses.append(parse_address(text.removeprefix(b"dnsaddr=").decode("ascii")))
        return tuple(address for address in addresses[:MAX_ADDRESSES] if address.peer_id != self.peer_id)


class _Multicast(ServiceListener):
    """Zeroconf for as long as the machine's addresses stay the same, and the services that it finds.

    `start` and `close` block; zeroconf calls those of a listener in a thread of its own.
    """

    def __init__(self, announcement: Announcement, on_address: OnAddress, networks: LocalNetworks) -> None:
        self._announcement, self._on_address = announcement, on_address
        self.services: Recent[str, tuple[Address, ...]] = Recent(MAX_SERVICES)
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

    def start(self) -> None:
        """Look for others, then announce this node, which takes more than a second."""
        ServiceBrowser(self._zeroconf, SERVICE, listener=self)
        if self._info.port:
            self._zeroconf.register_service(self._info)

    def close(self) -> None:
        """Withdraw the announcement."""
        self._zeroconf.close()

    def add_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        """Read a service that appeared or changed.

        Its TXT record comes with its name, as libp2p specifies. It is not asked for: a name that never answers would
        hold up all others meanwhile.
        """
        info = ServiceInfo(type_, name)
        info.load_from_cache(zc)
        if name != self._info.name and (addresses := self._announcement.read(info.text or b"")):
            self.services[name] = addresses
            self.report(name)

    update_service = add_service

    def remove_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        self.services.pop(name, None)

    def report(self, *names: str) -> None:
        for name in names:
            for address in self.services.get(name, ()):
                self._on_address(address)


async def run_mdns(
    announcement: Announcement, look: Callable[[], LocalNetworks], on_address: OnAddress, tally: Tally
) -> None:
    """Announce this node and look for others until cancelled. Missing multicast is a notice, not an error.

    Args:
        look: returns the machine's networks; called in a worker thread.
        on_address: called in trio's thread with each address of the same swarm, repeatedly.
    """
    token = trio.lowlevel.current_trio_token()
    # Zeroconf logs every invalid packet on the network.
    logging.getLogger("zeroconf").setLevel(logging.CRITICAL)

    def report(address: Address) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(on_address, address)

    while True:
        networks = await trio.to_thread.run_sync(look)
        multicast = None
        try:
            multicast = await trio.to_thread.run_sync(_Multicast, announcement, report, networks)
            await trio.to_thread.run_sync(multicast.start)
            tally.count("announced on the local network")
            await _wait_for_change(multicast, look, networks)
        except (OSError, Error) as error:
            tally.count("local networks without multicast")
            tally.notice(
                "warning",
                f"can't find nodes on the local network: multicast does not work here ({type(error).__name__});"
                " use an invite or a bootstrap address",
                "multicast",
            )
            await trio.sleep(RETRY_SECONDS)
        finally:
            if multicast is not None:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 3):
                    await trio.to_thread.run_sync(multicast.close, abandon_on_cancel=True)


async def visit_nearby(
    tag: bytes, own_id: str, look: Callable[[], LocalNetworks], visit: Callable[[Address], Awaitable[None]]
) -> None:
    """Visit those that announce a tag on the local network, each once, until cancelled."""
    seen: set[Address] = set()
    async with trio.open_nursery() as nursery:

        def found(address: Address) -> None:
            if len(seen) < MAX_NEARBY and address not in seen and look().may_announce(address):
                seen.add(address)
                nursery.start_soon(visit, address)

        await run_mdns(Announcement(tag, own_id, 0), look, found, Tally())


async def _wait_for_change(multicast: _Multicast, look: Callable[[], LocalNetworks], networks: LocalNetworks) -> None:
    """Wait until the machine has other addresses, as when a laptop changes networks."""
    reminded = trio.current_time()
    while True:
        await trio.sleep(LOOK_SECONDS)
        if set((await trio.to_thread.run_sync(look)).addresses) != set(networks.addresses):
            return
        if trio.current_time() - reminded > REMIND_SECONDS:
            reminded = trio.current_time()
            multicast.report(*multicast.services)
