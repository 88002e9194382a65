"""What devices of the local network announce by multicast DNS: any number of services, at whatever addresses."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterator, Sequence

import pytest
from zeroconf import IPVersion, ServiceInfo, Zeroconf

from sapo_edge.doctor.network import multicast_works
from sapo_edge.swarm.addresses import Address, direct_address
from sapo_edge.swarm.finding.discovery import Discovery
from sapo_edge.swarm.finding.mdns import SERVICE, Announcement
from sapo_edge.swarm.host.host import make_host, running
from sapo_edge.swarm.host.traffic import Meter
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.router.ports import Ports
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.wire.exchange import swarm_tag
from tests.swarm.finding.fakes import SWARM, make_config
from tests.swarm.host.victims import until
from tests.swarm.loop import in_trio

pytestmark = pytest.mark.skipif(not multicast_works("127.0.0.1"), reason="this machine has no multicast")

HERE = Announcement(swarm_tag(SWARM, None, "mdns"), Identity(bytes([1]) * 32).peer_id, 0)


def peer() -> str:
    return Identity(secrets.token_bytes(32)).peer_id


@contextlib.contextmanager
def announced(*services: Sequence[Address]) -> Iterator[None]:
    """A device that answers for so many services of the swarm, each at these addresses."""
    device = Zeroconf(interfaces=["127.0.0.1"], ip_version=IPVersion.V4Only)
    assert device.loop is not None
    for number, addresses in enumerate(services):
        strings = [HERE.mark, *(f"dnsaddr={address}".encode() for address in addresses)]
        txt = b"".join(bytes([len(text)]) + text for text in strings)
        name = f"device{number}"
        info = ServiceInfo(SERVICE, f"{name}.{SERVICE}", 1, properties=txt, server=f"{name}.local.",
                           parsed_addresses=["127.0.0.1"])  # fmt: skip
        asyncio.run_coroutine_threadsafe(device.async_register_service(info), device.loop)
    try:
        yield
    finally:
        device.close()


@in_trio()
async def test_only_addresses_of_the_local_network_are_taken_from_it() -> None:
    tally = Tally(lambda event: None)
    meter = Meter(0, 0, tally)
    host = make_host(Identity(secrets.token_bytes(32)), None, meter)
    near = direct_address("127.0.0.1", 4001, peer())
    others = (
        direct_address("9.9.9.9", 4001, peer()),
        direct_address("127.0.0.1", 25, peer()),
        Address("ip4", "127.0.0.1", 4001, peer(), relay=peer()),
    )
    async with running(host, "loopback", 0, meter) as nursery:
        discovery = Discovery(host, make_config(listen="loopback"), Ports(), tally)
        await nursery.start(discovery.run)
        with announced((*others, near)):
            assert await until(lambda: near.peer_id in discovery.book.peers, 10.0)
        assert {str(one) for known in discovery.book.peers.values() for one in known.addresses} == {str(near)}
