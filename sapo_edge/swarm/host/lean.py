"""Keeps a relay small: leaves out what libp2p imports and a relay never uses.

py-libp2p 0.8.1 imports all of its transports, services, databases and kinds of keys, and with them libraries for QUIC,
HTTP, DNS, certificates and metrics: more than half of the memory that it takes, and of the time until it has started. A
relay listens on TCP with Noise and Yamux for peers with Ed25519 keys, and resolves no names.
"""

from __future__ import annotations

import sys
from types import ModuleType

from sapo_edge.swarm.host.absent import leave_out

UNUSED = (
    "aioquic", "cbor2", "coincurve", "cryptography.x509", "fastecdsa", "httpx", "miniupnpc", "OpenSSL",
    "prometheus_client", "requests", "sqlite3", "trio_websocket", "zeroconf",
    "libp2p.bitswap", "libp2p.crypto.keystore", "libp2p.crypto.rsa", "libp2p.crypto.secp256k1", "libp2p.discovery",
    "libp2p.host.routed_host", "libp2p.identity_utils", "libp2p.kad_dht", "libp2p.peer.persistent",
    "libp2p.pubsub", "libp2p.relay.circuit_v2.discovery", "libp2p.relay.circuit_v2.transport",
    "libp2p.security.insecure", "libp2p.security.secio", "libp2p.security.tls", "libp2p.stream_muxer.mplex",
    "libp2p.transport.quic", "libp2p.transport.websocket",
)  # fmt: skip
"""Packages and modules, each with all that is in it."""
UNUSED_WITHOUT_KEY = ("Crypto", "libp2p.security.pnet")
"""What only private swarms need: their encryption of whole connections."""


def be_lean(is_private: bool) -> None:
    """Leave out what a relay does not need, in a process that imports libp2p for the relay alone."""
    if "libp2p" not in sys.modules:
        leave_out(UNUSED if is_private else (*UNUSED, *UNUSED_WITHOUT_KEY))
        # Each host makes one of these.
        resolvers = ModuleType("multiaddr.resolvers")
        resolvers.DNSResolver = type("DNSResolver", (), {})  # type: ignore[attr-defined]
        sys.modules[resolvers.__name__] = resolvers
