"""A Mainline DHT of its own: `mainline.py HOST ...` runs a libtorrent node at each address until its input ends."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

PORT = 6881


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
        # Tests ask fast.
        "dht_upload_rate_limit": 10**8, "dht_block_ratelimit": 10**6,
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
