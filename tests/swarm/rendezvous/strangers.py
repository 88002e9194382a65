"""Strangers that are no members: `strangers.py KIND ...` listens for them at all addresses until its input ends.

Each kind has ports of its own, `PORTS`, and each port an identity of its own.
"""

from __future__ import annotations

import contextlib
import json
import sys
from functools import partial
from typing import Any

import trio

from sapo_edge.swarm.addresses import find_local_networks
from sapo_edge.swarm.finding.directory import PEER_REQUESTS, Directory
from sapo_edge.swarm.finding.visiting import visiting_host
from sapo_edge.swarm.tally import Tally

EACH = 2
"""Ports of a kind."""
KINDS = ("silent", "drip", "handshake", "mute", "other")
PORTS = {kind: range(4100 + 100 * number, 4100 + 100 * number + EACH) for number, kind in enumerate(KINDS)}


async def drip(stream: trio.SocketStream) -> None:
    """Begin the first negotiation and never finish."""
    for byte in b"\x13/multistream/1.0.0\n":
        await stream.send_all(bytes([byte]))
        await trio.sleep(1.0)
    await trio.sleep_forever()


async def serve_quietly(serve: Any, stream: trio.SocketStream) -> None:
    with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await serve(stream)


async def mute(*_: Any) -> None:
    await trio.sleep_forever()


async def listen(kind: str, port: int, *, task_status: trio.TaskStatus[None]) -> None:
    if kind in ("silent", "drip"):
        serve = partial(serve_quietly, mute if kind == "silent" else drip)
        await trio.serve_tcp(serve, port, host="0.0.0.0", task_status=task_status)
    async with visiting_host(None, "all", port) as host:
        if kind == "other":
            networks = find_local_networks()
            Directory(host, b"o" * 32, lambda: networks, tuple, lambda address: None, Tally()).start()
        elif kind == "mute":
            host.set_stream_handler(PEER_REQUESTS.protocol_id, mute)
        elif kind == "handshake":
            # Who it is is proven, and then nothing follows.
            host.get_network().upgrader.upgrade_connection = mute
        task_status.started()
        await trio.sleep_forever()


async def main(kinds: list[str]) -> None:
    async with trio.open_nursery() as nursery:
        for kind in kinds:
            for port in PORTS[kind]:
                await nursery.start(listen, kind, port)
        print(json.dumps({"ready": True}), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, sys.argv[1:])
