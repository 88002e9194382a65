"""A libp2p host with TCP, Noise and Yamux only, bounded, with workarounds for the library's faults."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from libp2p import new_host
from libp2p.abc import IHost
from libp2p.crypto.ed25519 import Ed25519PublicKey
from libp2p.crypto.keys import KeyPair, KeyType, PrivateKey, PublicKey
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key
from libp2p.custom_types import TProtocol
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.rcmgr.manager import ResourceLimits, ResourceManager
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from multiaddr import Multiaddr

from sapo_edge.swarm.addresses import Listen, neighbourhood
from sapo_edge.swarm.host.hardening import (
    Blame,
    bound_negotiations,
    contain_streams,
    contain_tasks,
    end_upgrades,
    mend_private_connections,
    safe_yamux,
    use_own_muxer,
)
from sapo_edge.swarm.host.identify import bound_identify
from sapo_edge.swarm.host.traffic import Meter, MeteredTCP
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.transport import SwarmError

MAX_CONNECTIONS = 256
"""Most connections; the library refuses all others, whoever they are from. So that this is never reached, there is room
for all inbound sockets (`traffic.MAX_SOCKETS`), for relayed connections, and for those that the node opens."""
MAX_STREAMS = 16_384
"""Most streams of all connections together; more of them wait, whoever opens them. So that this is never reached on a
node, it is what all its connections may have (`hardening.MAX_STREAMS`)."""
KEEPALIVE = 15.0
"""Seconds between two pings on a connection."""
UPGRADE_SECONDS = 10.0
"""Time limit of a handshake or a negotiation."""


class IdentityKey(PrivateKey):  # type: ignore[misc] # libp2p is not followed
    """The node's key as libp2p's interface. It signs, but never reveals its secret."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def sign(self, data: bytes) -> bytes:
        return self._identity.sign(data)

    def get_public_key(self) -> PublicKey:
        return Ed25519PublicKey.from_bytes(self._identity.public_key)

    def get_type(self) -> KeyType:
        return KeyType.Ed25519

    def to_bytes(self) -> bytes:
        """Never: nothing in libp2p needs the secret itself."""
        raise PermissionError("the secret key is not revealed")


def make_host(
    identity: Identity,
    psk: bytes | None,
    meter: Meter,
    keepalive: float = KEEPALIVE,
    max_connections: int = MAX_CONNECTIONS,
) -> IHost:
    """Make a host; `running` starts it. The library closes idle connections beyond `max_connections`.

    Args:
        psk: 32 bytes that encrypt every connection of a private swarm; None in an open one.
    """
    key = IdentityKey(identity)
    pair = KeyPair(key, key.get_public_key())
    host = new_host(
        key_pair=pair,
        # The default also accepts plaintext, TLS and mplex.
        sec_opt={TProtocol(NOISE): NoiseTransport(pair, noise_privkey=create_noise_key().private_key)},
        muxer_opt={TProtocol(YAMUX): safe_yamux(meter, keepalive)},
        transports=[MeteredTCP(meter)],
        psk=psk.hex() if psk else None,
        negotiate_timeout=int(UPGRADE_SECONDS),
        connection_config=ConnectionConfig(
            max_connections=max_connections,
            min_connections=0,
            low_watermark=0,
            high_watermark=max_connections,
            inbound_upgrade_timeout=UPGRADE_SECONDS,
            outbound_upgrade_timeout=UPGRADE_SECONDS,
        ),
        resource_manager=_streams_only(),
    )
    bound_negotiations()
    mend_private_connections()
    use_own_muxer(host)
    end_upgrades(host)
    network = host.get_network()
    network.retry_config = RetryConfig(max_retries=0)
    # Now and then, whenever a peer leaves, and to open a stream to one that left, the library would dial addresses that
    # peers claim, unchecked.
    network.dial_peer = _dial_nobody
    network.auto_connector.maybe_connect = _nothing
    # It would remember every peer that ever left.
    network.auto_connector.record_disconnect = lambda peer_id: None
    return host


def _streams_only() -> ResourceManager:
    """A resource manager that bounds the number of streams, and nothing else.

    The library's default one refuses the 257th inbound connection, whoever it is from, and looks through all of them at
    each new one. `Meter` decides who gets a place.
    """
    return ResourceManager(
        ResourceLimits(max_connections=sys.maxsize, max_streams=MAX_STREAMS),
        enable_metrics=False,
        enable_connection_tracking=False,
        enable_memory_limits=False,
        enable_circuit_breaker=False,
        enable_graceful_degradation=False,
        enable_rate_limiting=False,
    )


async def _dial_nobody(_: ID) -> None:
    await trio.lowlevel.checkpoint()
    raise SwarmException("not connected")


async def _nothing(*_: object) -> None:
    pass


@asynccontextmanager
async def running(
    host: IHost,
    listen: Listen | None,
    port: int,
    meter: Meter,
    blame: Blame = lambda peer_id, offence: None,
) -> AsyncIterator[trio.Nursery]:
    """Run a host inside this context; yields a nursery for tasks that use it. SwarmError if it can't listen.

    Args:
        listen: "all" interfaces, on one port of IPv4 and IPv6; "loopback", on IPv4; None to dial out only.
    """
    contain_streams(host, meter, blame)
    bound_identify(host, meter.tally)
    addresses = {None: [], "all": ["0.0.0.0"], "loopback": ["127.0.0.1"]}[listen]
    async with host.run([Multiaddr(f"/ip4/{address}/tcp/{port}") for address in addresses]):
        if addresses and not host.get_transport_addrs():
            raise SwarmError(f"can't listen on port {port}", "choose another port, or 0 for any")
        if listen == "all" and not await host.get_network().listen(Multiaddr(f"/ip6/::/tcp/{listen_port(host)}")):
            meter.tally.count("hosts that listen on IPv4 only")
        try:
            trio.lowlevel.add_instrument(meter.work)
            async with trio.open_nursery() as nursery:
                contain_tasks(host.get_network(), "network", nursery, meter.tally)
                yield nursery
                nursery.cancel_scope.cancel()
        finally:
            trio.lowlevel.remove_instrument(meter.work)
            # An orderly end would wait for peers that read nothing.
            meter.abort_all()


def key_of(host: IHost) -> bytes | None:
    """The key of the private swarm that a host was made for, 32 bytes; None in an open one."""
    key = host.get_network().psk
    return bytes.fromhex(key) if key else None


def listen_port(host: IHost) -> int:
    """The TCP port of a host that listens, the same over IPv4 and IPv6."""
    return int(host.get_transport_addrs()[0].value_for_protocol("tcp"))


def direct_remotes(host: IHost, peer_id: str) -> tuple[str, ...]:
    """IP addresses at the other ends of a peer's connections; none for those through relays."""
    connections = host.get_network().get_connections(ID.from_string(peer_id))
    remotes = [connection.muxed_conn.get_remote_address() for connection in connections]
    return tuple(remote[0] for remote in remotes if remote is not None)


def network_of(host: IHost, peer_id: str) -> str:
    """The network of a peer's first direct connection; "" if it has none: behind a relay, or gone."""
    return next(map(neighbourhood, direct_remotes(host, peer_id)), "")
