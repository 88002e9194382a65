"""A Mainline DHT of its own: `mainline.py HOST ...` runs a libtorrent node at each address until its input ends."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

PORT = 6881
OUTSIDE = [f"5.5.{number}.10" for number in range(110, 140)]
"""Addresses of the nodes outside of all homes, each in a network of its own."""


@contextlib.contextmanager
def outside() -> Iterator[list[tuple[str, int]]]:
    """A DHT in the public network of `homes.py`; yields host and port of two of its nodes."""
    from tests.swarm.finding.processes import Process
    from tests.swarm.namespaces import Namespaces, name

    for host in OUTSIDE:
        Namespaces.address("relay", "eth0", f"{host}/16")
    process = Process(__file__, *OUTSIDE, namespace=name("relay"))
    try:
        process.first(lambda record: record.get("nodes") == len(OUTSIDE))
        yield [(host, PORT) for host in OUTSIDE[:2]]
    finally:
        process.stop(signal.SIGKILL)


def start(hosts: Sequence[str], port: int = 0, **settings: Any) -> list[Any]:
    """libtorrent sessions at these addresses that know each other, with nothing but the DHT.

    Args:
        port: of all; 0 for any.
        settings: of libtorrent.
    """
    import libtorrent

    # Its stubs know no settings as a dictionary.
    session: Any = libtorrent.session
    options = {
        "dht_bootstrap_nodes": "", "enable_lsd": False, "enable_upnp": False, "enable_natpmp": False,
        "enable_incoming_tcp": False, "enable_outgoing_tcp": False, "connections_limit": 2,
        "alert_mask": libtorrent.alert.category_t.dht_operation_notification, **settings,
    }  # fmt: skip
    sessions: list[Any] = [session({**options, "listen_interfaces": f"{host}:{port}"}) for host in hosts]
    while not all(each.listen_port() for each in sessions):
        time.sleep(0.05)
    for each in sessions:
        for host, other in zip(hosts, sessions, strict=True):
            if other is not each:
                each.add_dht_node((host, other.listen_port()))
    return sessions


if __name__ == "__main__":
    running = start(sys.argv[1:], PORT)
    print(json.dumps({"nodes": len(running)}), flush=True)
    sys.stdin.read()
