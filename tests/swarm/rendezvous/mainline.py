"""A Mainline DHT of its own: `mainline.py HOST ...` runs a libtorrent node at each address until its input ends.

A host may be two addresses, one of each version of IP, with a comma between them.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from sapo_edge.swarm.rendezvous.program import join_port
from tests.swarm.javascript import INTEROP
from tests.swarm.lines import LineProcess
from tests.swarm.namespaces import Namespaces, name

PORT = 6881
HOSTS = [f"5.5.{number}.10,2a00:ff:{number}::10" for number in range(110, 140)]
"""Addresses of a public DHT's nodes, each in networks of its own."""
OTHERS = [f"5.5.{number}.10" for number in range(140, 146)]
CONTACTS = [(ip, PORT) for host in HOSTS[:2] for ip in host.split(",")]
LOOSE = {
    # libtorrent would not believe a DHT whose nodes share an address.
    "dht_restrict_routing_ips": False, "dht_restrict_search_ips": False, "dht_enforce_node_id": False,
    "dht_prefer_verified_node_ids": False, "dht_ignore_dark_internet": False,
}  # fmt: skip
ON_LOOPBACK = (
    "import sys, json; import libtorrent; from sapo_edge.swarm.rendezvous import program\n"
    f"real = libtorrent.session; libtorrent.session = lambda options: real({{**options, **{LOOSE!r}, "
    "'listen_interfaces': '127.0.0.1:0,[::1]:0'})\n"
    "program.main()"
)
"""The rendezvous' program, for a DHT of `LOOSE` nodes on this machine."""


def start(hosts: Sequence[str], port: int = 0, **settings: Any) -> list[Any]:
    """libtorrent sessions at these hosts that know each other, with nothing but the DHT; port 0 is any."""
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
    addresses = [host.split(",") for host in hosts]
    sessions: list[Any] = [
        session({**options, "listen_interfaces": ",".join(join_port(ip, port) for ip in own)}) for own in addresses
    ]
    while not all(each.listen_port() for each in sessions):
        time.sleep(0.05)
    for each in sessions:
        for others, other in zip(addresses, sessions, strict=True):
            for ip in others if other is not each else ():
                each.add_dht_node((ip, other.listen_port()))
    return sessions


@contextlib.contextmanager
def public_dht() -> Iterator[None]:
    """A DHT outside of all homes of `homes.py`: 30 nodes, and six of another implementation if that is installed."""
    addresses = ",".join((*HOSTS, *OTHERS)).split(",")
    Namespaces.address("dht", "eth0", *(f"{ip}/{32 if ':' in ip else 16}" for ip in addresses))
    with contextlib.ExitStack() as stack:
        dht = stack.enter_context(LineProcess(__file__, *HOSTS, namespace=name("dht")))
        dht.first(lambda record: record.get("nodes") == len(HOSTS))
        node = shutil.which("node")
        if node is not None and (INTEROP / "node_modules").exists():
            start_others(stack, node, join_port(*CONTACTS[0]), OTHERS, name("dht"))
        yield


def start_others(stack: contextlib.ExitStack, node: str, contact: str, hosts: list[str], namespace: str) -> LineProcess:
    """Start DHT nodes of another implementation, with Node.js, until the end of a stack."""
    process = LineProcess("dht.mjs", contact, *hosts, program=node, directory=INTEROP, namespace=namespace)
    stack.enter_context(process).first(lambda record: record.get("nodes") == len(hosts))
    return process


if __name__ == "__main__":
    running = start(sys.argv[1:], PORT)
    print(json.dumps({"nodes": len(running)}), flush=True)
    sys.stdin.read()
