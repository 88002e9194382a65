"""Machines that lie in a Mainline DHT: they announce themselves from many addresses, or answer as nodes of it.

They speak its protocol (KRPC, BEP 5) themselves, because no library lies.
"""

from __future__ import annotations

import json
import random
import select
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Self

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


def announce(key: bytes, hosts: Sequence[str], port: int, nodes: Sequence[Place], seconds: float = 20.0) -> int:
    """Announce a port to DHT nodes from these addresses of this machine, and return how many of them answered."""
    own = random.randbytes(20)
    done, end = 0, time.monotonic() + seconds
    for start in range(0, len(hosts), 256):
        with ExitStack() as stack:
            some = hosts[start : start + 256]
            sockets = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in some]
            for each, host in zip(sockets, some, strict=True):
                each.bind((host, 0))
                for node in nodes:
                    each.sendto(_question("get_peers", {"id": own, "info_hash": key}), node)
            waiting = 2 * len(sockets) * len(nodes)
            while waiting and time.monotonic() < end:
                ready, _, _ = select.select(sockets, [], [], 0.5)
                if not ready:
                    break
                for each in ready:
                    data, node = each.recvfrom(4096)
                    waiting -= 1
                    token = _decode(data).get("r", {}).get(b"token")
                    if token is None:
                        done += 1
                        continue
                    arguments = {"id": own, "info_hash": key, "port": port, "token": token}
                    each.sendto(_question("announce_peer", arguments), node)
    return done


class Liars:
    """DHT nodes with ids next to a key, one a host. They name each other, and addresses that nobody has announced."""

    def __init__(self, key: bytes, hosts: Sequence[str], port: int = 0) -> None:
        self._key = key
        self._rng = random.Random(1)
        self._sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in hosts]
        for each, host in zip(self._sockets, hosts, strict=True):
            each.bind((host, port))
        self.places: list[Place] = [each.getsockname() for each in self._sockets]
        # The last byte apart, each is the key.
        self._ids = [key[:19] + bytes([key[19] ^ (number + 1)]) for number in range(len(hosts))]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.asked = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for each in self._sockets:
            each.close()

    def introduce(self, nodes: Sequence[Place]) -> None:
        """Ask nodes, so that they learn of the liars."""
        for each, own in zip(self._sockets, self._ids, strict=True):
            for node in nodes:
                each.sendto(_question("find_node", {"id": own, "target": self._key}), node)

    def false(self) -> Place:
        """An address in a network of its own."""
        return f"{self._rng.randrange(20, 100)}.{self._rng.randrange(256)}.{self._rng.randrange(256)}.7", 4001

    def _run(self) -> None:
        everybody = b"".join(own + compact(place) for own, place in zip(self._ids, self.places, strict=True))
        while not self._stop.is_set():
            ready, _, _ = select.select(self._sockets, [], [], 0.05)
            for each in ready:
                data, asker = each.recvfrom(4096)
                question = _decode(data)
                if question.get("y") != b"q":
                    continue
                answer: dict[str, Any] = {"id": self._ids[self._sockets.index(each)]}
                if question.get("q") in (b"find_node", b"get_peers"):
                    answer["nodes"] = everybody[: 26 * 16]
                if question.get("q") == b"get_peers":
                    self.asked += 1
                    answer |= {"token": b"t", "values": [compact(self.false()) for _ in range(100)]}
                each.sendto(_encode({"t": question["t"], "y": "r", "r": answer}), asker)


if __name__ == "__main__":
    about, known, *own = sys.argv[1:]
    with Liars(bytes.fromhex(about), own, 6881) as liars:
        liars.introduce([tuple(node) for node in json.loads(known)])
        print(json.dumps({"lies": len(own)}), flush=True)
        for _ in sys.stdin:
            print(json.dumps({"asked": liars.asked}), flush=True)
