"""A node that discovers with one connected peer, on no network."""

from __future__ import annotations

import ipaddress
import types
from typing import Any

import pytest
import trio
from multiaddr import Multiaddr

from sapo_edge.swarm.addresses import LocalNetworks
from sapo_edge.swarm.config import SwarmConfig
from sapo_edge.swarm.finding import discovery as discovery_module
from sapo_edge.swarm.finding.discovery import Discovery
from sapo_edge.swarm.finding.outside import View
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.router.ports import Ports
from sapo_edge.swarm.tally import Tally
from sapo_edge.tasks.manifest import load_manifest

OWN, OTHER, STRANGER = (f"12D3KooW{letter * 44}" for letter in "ABC")
IDENTITY = Identity(bytes([1]) * 32)
MANIFEST = load_manifest("starter")
SWARM = bytes.fromhex(MANIFEST.digest)
HOME = LocalNetworks(
    ("192.168.1.5", "fd12::5"),
    (ipaddress.ip_network("192.168.1.0/24"), ipaddress.ip_network("fd12::/64"), ipaddress.ip_network("fe80::/64")),
    loopback=False,
)
ABROAD = "8.8.8.8"


class Connections:
    """A network whose only peer is connected from one IP address; counts dials."""

    def __init__(self, remote: str | None) -> None:
        self.psk = None
        self.connections: dict[str, list[Any]] = {STRANGER: []}
        self.dialled: list[str] = []
        self.sources: list[object] = []
        self._remote = remote and (remote, 50000)

    def get_connections(self, peer_id: object) -> list[Any]:
        return [types.SimpleNamespace(muxed_conn=types.SimpleNamespace(get_remote_address=lambda: self._remote))]

    async def dial_addr(self, address: object, peer_id: object, source: object = None) -> None:
        self.dialled.append(str(address))
        self.sources.append(source)
        raise OSError("nobody there")


def a_host(network: Any, **methods: Any) -> Any:
    return types.SimpleNamespace(
        get_network=lambda: network,
        get_id=lambda: OWN,
        get_transport_addrs=lambda: [Multiaddr("/ip4/192.168.1.5/tcp/4001")],
        set_stream_handler=lambda protocol, handler: None,
        **methods,
    )


def make_config(**options: Any) -> SwarmConfig:
    return SwarmConfig(IDENTITY, MANIFEST, **options)


def make_discovery(
    monkeypatch: pytest.MonkeyPatch, remote: str | None = ABROAD, networks: LocalNetworks = HOME, **options: Any
) -> Discovery:
    """A node in `networks`, to which a stranger is connected from an IP address; None: through a relay."""
    monkeypatch.setattr(discovery_module, "find_local_networks", lambda listen: networks)
    return Discovery(a_host(Connections(remote)), make_config(**options), Ports(), Tally())


def tell(discovery: Discovery, reached: bool) -> None:
    """Two networks tell a node whether they reach it."""
    for number in (1, 2):
        discovery.outside.record(View(f"9.9.{number}.1", "5.5.5.5", reached, 0.0))


async def nobody(_peer: object) -> bool:
    """A dial that reaches nobody."""
    await trio.lowlevel.checkpoint()
    return False
