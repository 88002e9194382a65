"""A router on loopback that answers datagrams."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

GATEWAY = "127.0.0.1"


@contextlib.contextmanager
def answering(answer: Callable[[bytes], list[bytes]], source: str = GATEWAY) -> Iterator[tuple[int, list[bytes]]]:
    """The port at `GATEWAY` that is asked, and what it was asked; the answers come from `source`."""
    requests: list[bytes] = []
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
    ):
        link.bind((GATEWAY, 0))
        own = link if source == GATEWAY else other
        if own is other:
            own.bind((source, 0))

        def serve() -> None:
            while (request := link.recvfrom(2000))[0] != b"end":
                requests.append(request[0])
                for reply in answer(request[0]):
                    own.sendto(reply, request[1])

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield link.getsockname()[1], requests
        finally:
            other.sendto(b"end", link.getsockname())
            thread.join()
