"""Machines that lie in a Mainline DHT: they announce themselves from many addresses, or answer as nodes of it.

They speak its protocol (KRPC, BEP 5) themselves, because no library lies.
"""

from __future__ import annotations

import itertools
import json
import random
import select
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

Place = tuple[str, int]


def _encode(message: dict[str, Any]) -> bytes:
    import libtorrent

    encode: Any = libtorrent.bencode
    return bytes(encode(message))


def _question(kind: str, arguments: dict[str, Any]) -> bytes:
    return _encode({"t": "t", "y": "q", "q": kind, "a": arguments})


def _decode(data: bytes) -> dict[str, Any]:
    import libtorrent

    decode: Any = libtorrent.bdecode
    read: Any = decode(data)
    return {key.decode(): value for key, value in read.items()} if isinstance(read, dict) else {}


def compact(place: Place) -> bytes:
    return socket.inet_aton(place[0]) + place[1].to_bytes(2, "big")


def announce(key: bytes, hosts: Sequence[str], port: int, nodes: Sequence[Place]) -> None:
    """Announce a port to DHT nodes from these addresses of this machine."""
    own, end = random.randbytes(20), time.monotonic() + 20.0
    for start in range(0, len(hosts), 256):
        with ExitStack() as stack:
            some = hosts[start : start + 256]
            sockets = [stack.enter_context(_socket_at(host, 0)) for host in some]
            for each, node in itertools.product(sockets, nodes):
                each.sendto(_question("get_peers", {"id": own, "info_hash": key}), node)
            waiting = 2 * len(sockets) * len(nodes)
            while waiting and time.monotonic() < end:
                ready, _, _ = select.select(sockets, [], [], 0.5)
                if not ready:
                    break
                for each in ready:
                    data, node = each.recvfrom(4096)
                    waiting -= 1
                    if (token := _decode(data).get("r", {}).get(b"token")) is not None:
                        arguments = {"id": own, "info_hash": key, "port": port, "token": token}
                        each.sendto(_question("announce_peer", arguments), node)


def lie(key: bytes, nodes: Sequence[Place], hosts: Sequence[str]) -> None:
    """Answer as DHT nodes with ids next to a key, one a host, that name each other and addresses that nobody announced.

    A line of the input has them print how often they were asked; they end with it.
    """
    # The last byte apart, each is the key.
    ids = {_socket_at(host, 6881): key[:19] + bytes([key[19] ^ number]) for number, host in enumerate(hosts, 1)}
    everybody = b"".join(own + compact(each.getsockname()) for each, own in ids.items())
    # So they learn of the liars.
    for (each, own), node in itertools.product(ids.items(), nodes):
        each.sendto(_question("find_node", {"id": own, "target": key}), node)
    print(json.dumps({"lies": len(hosts)}), flush=True)
    asked = 0
    while True:
        ready, _, _ = select.select([sys.stdin, *ids], [], [])
        if sys.stdin in ready:
            if not sys.stdin.readline():
                return
            print(json.dumps({"asked": asked}), flush=True)
        for each in ids.keys() & ready:
            data, asker = each.recvfrom(4096)
            question = _decode(data)
            if question.get("y") != b"q":
                continue
            answer: dict[str, Any] = {"id": ids[each]}
            if question.get("q") in (b"find_node", b"get_peers"):
                answer["nodes"] = everybody[: 26 * 16]
            if question.get("q") == b"get_peers":
                asked += 1
                answer |= {"token": b"t", "values": [compact(_false_place()) for _ in range(100)]}
            each.sendto(_encode({"t": question["t"], "y": "r", "r": answer}), asker)


def _socket_at(host: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((host, port))
    return made


def _false_place() -> Place:
    """An address in a network of its own."""
    return f"{random.randrange(20, 100)}.{random.randrange(256)}.{random.randrange(256)}.7", 4001


if __name__ == "__main__":
    about, known, *own = sys.argv[1:]
    lie(bytes.fromhex(about), [tuple(node) for node in json.loads(known)], own)
