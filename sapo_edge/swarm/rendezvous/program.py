"""A client of the Mainline DHT: announces a port under keys, and looks them up. `rendezvous.py` runs it as a program.

It runs in a process of its own, because libtorrent, a library in C++, reads datagrams of strangers. It is a client only
(BEP 43): other nodes ask it nothing, and store nothing with it. What it prints is checked by `rendezvous.py`.

Each line of its input is a request, `{"key": 40 hexadecimal digits, "port": announced TCP port, or 0}`. Each line of
its output is `{"key": ..., "peers": [[ip, port], ...]}`, what nodes of the DHT say of a key, or
`{"nodes": [[ip, port], ...], "trouble": ...}`: nodes that answered, or if there are none, why ("names", "udp"). It ends
with its input.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import select
import socket
import sys
import time
from typing import Any

from sapo_edge.children import limit_memory

MEMORY = 1024 * 1024 * 1024
"""Most address space of the process, of which libtorrent's threads reserve the most."""
LIFETIME = 24 * 3600.0
"""Seconds after which the process ends; the node starts another one."""
TICK = 1.0
"""Seconds between two looks at what arrived, and at whether a node is known: the program runs for days."""
FIRST_SECONDS, NODES_SECONDS = 20.0, 60.0
"""Seconds between two lines about nodes: while none answers, which takes a few seconds, and then."""
STRICT_NODES, LOOSE_SECONDS = 16, 3.0
"""Nodes that are known when those without a right id begin to be ignored; seconds in which requests wait for that."""
MAX_NODES = 32
"""Most nodes in a line, and that are remembered for the next start."""
MAX_WAITING = 16
"""Most requests that wait for the first node, the newest."""
MAX_PEERS = 100
"""Most peers in a line."""
NO_LIBRARY = 3
"""Exit code without libtorrent."""
BYTES_PER_SECOND = 4000
"""Most bytes a second that the DHT may send."""


def open_session(contacts: list[tuple[str, int]], own: list[tuple[str, int]]) -> Any:
    """Start a client of the DHT with well-known nodes, for the first contact, and own ones, which answered before."""
    import libtorrent

    alerts = libtorrent.alert.category_t
    session = libtorrent.session({
        "listen_interfaces": "0.0.0.0:0,[::]:0",
        "alert_mask": alerts.dht_operation_notification,
        "alert_queue_size": 500,
        "dht_bootstrap_nodes": ",".join(join_port(*contact) for contact in contacts),
        "dht_read_only": True,
        "dht_upload_rate_limit": BYTES_PER_SECOND,
        # Nothing of BitTorrent but the DHT.
        "enable_incoming_tcp": False, "enable_outgoing_tcp": False,
        "enable_incoming_utp": False, "enable_outgoing_utp": False,
        "enable_lsd": False, "enable_upnp": False, "enable_natpmp": False,
        "connections_limit": 2, "user_agent": "", "aio_threads": 1, "hashing_threads": 1,
    })  # fmt: skip
    for node in own:
        session.add_dht_node(node)
    return session


def join_port(host: str, port: int) -> str:
    """A contact as libtorrent and the setting `rendezvous` have it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def run(session: Any, contacts: list[tuple[str, int]], own: list[tuple[str, int]]) -> None:
    """Serve until the input ends; arguments as of `open_session`."""
    import libtorrent

    requests: list[dict[str, Any]] = []
    pending, end, due = b"", time.monotonic() + LIFETIME, time.monotonic() + FIRST_SECONDS
    strict, loose_until = False, math.inf
    while time.monotonic() < end:
        readable, _, _ = select.select([sys.stdin], [], [], TICK)
        if readable:
            data = os.read(sys.stdin.fileno(), 4096)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            requests += map(json.loads, lines)
        # Before the first node is known, nobody would hear a request, and the next announcement is minutes away.
        known = len(known_nodes(session)) if requests or not strict else 0
        loose_until = min(loose_until, time.monotonic() + LOOSE_SECONDS) if known else math.inf
        if known >= STRICT_NODES and not strict:
            strict = require_ids(session, True)
        if requests and known and (strict or time.monotonic() >= loose_until):
            for request in requests:
                key = libtorrent.sha1_hash(bytes.fromhex(request["key"]))
                if request["port"]:
                    session.dht_announce(key, request["port"], 0)
                session.dht_get_peers(key)
            requests.clear()
        del requests[:-MAX_WAITING]
        for alert in session.pop_alerts():
            if isinstance(alert, libtorrent.dht_get_peers_reply_alert):
                # A DHT node keeps port 0, too, if somebody announces it.
                peers = [peer for peer in alert.peers() if peer[1]][:MAX_PEERS]
                print(json.dumps({"key": str(alert.info_hash), "peers": peers}), flush=True)
        if time.monotonic() > due:
            nodes = known_nodes(session)
            first = [] if nodes else resolve(contacts)
            print(json.dumps({"nodes": nodes, "trouble": "" if nodes else "udp" if first else "names"}), flush=True)
            due = time.monotonic() + (NODES_SECONDS if nodes else FIRST_SECONDS)
            if strict and not nodes:
                strict = require_ids(session, False)
            # libtorrent asks each once, and a machine may be online only later.
            for node in () if nodes else (*first, *own):
                session.add_dht_node(node)


def require_ids(session: Any, strict: bool) -> bool:
    """Hear only nodes whose id belongs to their IP address (BEP 42), or all again; returns which.

    Otherwise eight machines with ids next to a key would say alone who is there. First contacts need not follow it.
    """
    session.apply_settings({"dht_enforce_node_id": strict})
    return strict


def resolve(contacts: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """The IP addresses of those that have one, and their ports. It may take a minute."""
    found = []
    for host, port in contacts:
        with contextlib.suppress(OSError, UnicodeError):
            found += [(str(each[4][0]), port) for each in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)]
    return found


def known_nodes(session: Any) -> list[tuple[str, int]]:
    """IP addresses and ports of nodes in the routing tables, in turn of each version of IP: a machine may lose one."""
    import libtorrent

    flag = libtorrent.save_state_flags_t.save_dht_state
    state: Any = libtorrent.bdecode(libtorrent.write_session_params_buf(session.session_state(flag), flag))
    nodes = state.get(b"dht state", {}).get(b"nodes", [])
    tables = [
        [(socket.inet_ntop(family, each[:-2]), int.from_bytes(each[-2:], "big")) for each in nodes if len(each) == size]
        for family, size in ((socket.AF_INET, 6), (socket.AF_INET6, 18))
    ]
    return [node for pair in itertools.zip_longest(*tables) for node in pair if node][:MAX_NODES]


def main() -> int:
    """Run with `{"contacts": [[host, port], ...], "nodes": [[ip, port], ...]}` as the argument."""
    limit_memory(MEMORY)
    settings = json.loads(sys.argv[1])
    try:
        contacts, nodes = ([(host, port) for host, port in settings[name]] for name in ("contacts", "nodes"))
        session = open_session(contacts, nodes)
    except ImportError:
        return NO_LIBRARY
    with contextlib.suppress(BrokenPipeError):
        run(session, contacts, nodes)
    return 0


if __name__ == "__main__":
    code = main()
    # libtorrent's end would wait for its threads for seconds.
    os._exit(code)
