"""The TXT record of any device on the local network gives addresses of other nodes of this swarm, or none."""

from __future__ import annotations

from sapo_edge.swarm.addresses import LocalNetworks
from sapo_edge.swarm.finding.mdns import MAX_ADDRESSES, MAX_TXT_BYTES, Announcement
from tests.fuzzing.target import KIB, Target
from tests.fuzzing.targets.address import ONE, TWO

OWN, OTHER = Announcement(b"t" * 32, ONE, 9100), Announcement(b"t" * 32, TWO, 9100)
NETWORKS = LocalNetworks(("192.168.1.20", "fd00::1"), (), loopback=False)


def check(data: bytes) -> None:
    mark = OTHER.mark
    for record in (data, bytes([len(mark)]) + mark + data):
        addresses = OWN.read(record)
        assert len(addresses) <= MAX_ADDRESSES and all(address.peer_id != ONE for address in addresses)
        assert not addresses or OWN.mark in record


def seeds() -> list[bytes]:
    return [OTHER.txt(NETWORKS), OWN.txt(NETWORKS), b"\x05a=b=c\xff", b"\x09dnsaddr=\xff"]


TARGET = Target(check, seeds, MAX_TXT_BYTES + 64, 64 * KIB, 64)
