"""Lets imports of libraries succeed that are left out: another library imports them, and nothing here calls them.

py-libp2p 0.8.1 imports all of its transports, services, databases and kinds of keys, and with them libraries for QUIC,
HTTP, DNS, certificates and metrics: more than half of the memory that it takes, and of the time until it has started.
`packaging/wheels.py` makes wheels that don't require what is not installed then. A relay also leaves out what it never
uses: it listens on TCP with Noise and Yamux for peers with Ed25519 keys, and resolves no names.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

UNUSED_BY_RELAYS = (
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
        leave_out(UNUSED_BY_RELAYS if is_private else (*UNUSED_BY_RELAYS, *UNUSED_WITHOUT_KEY))
        # Each host makes one of these.
        resolvers = ModuleType("multiaddr.resolvers")
        resolvers.DNSResolver = type("DNSResolver", (), {})  # type: ignore[attr-defined]
        sys.modules[resolvers.__name__] = resolvers


def leave_out_missing(*names: str) -> None:
    """`leave_out` those packages that are not installed."""
    missing = [name for name in names if name not in sys.modules and importlib.util.find_spec(name) is None]
    if missing:
        leave_out(missing)


def leave_out(names: Sequence[str]) -> None:
    """From now on, let imports of these modules succeed without loading them.

    What is imported from them can be named, compared, inherited from and caught. A call raises ModuleNotFoundError.
    """
    sys.meta_path.insert(0, _Finder(names))


class _Finder(MetaPathFinder, Loader):
    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        is_unused = any(name == unused or name.startswith(f"{unused}.") for unused in self._names)
        return ModuleSpec(name, self, is_package=True) if is_unused else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing."""


class _Module(ModuleType):
    def __getattr__(self, name: str) -> type:
        return _stand_in(f"{self.__name__}.{name}", name)


class _StandIn(type):
    """What stands for a class, function or value of a module that is left out."""

    def __getattr__(cls, name: str) -> type:
        return _stand_in(f"{cls.__qualname__}.{name}", name)

    def __call__(cls, *_: object, **__: object) -> object:
        raise ModuleNotFoundError(f"{cls.__qualname__} is left out")


def _stand_in(path: str, name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return _StandIn(name, (Exception,), {"__qualname__": path})
