"""An attacker of the soak in a process of its own: attacks one node after the other, under new names each time.

Its attacks are those of `tests/swarm/member/hostile.py`, and more on gossip, peer exchange and identify.
`python -m tests.soak.attacker OPTIONS` reads the nodes to attack from stdin, one JSON list of `[peer id, address]` a
line, and prints what it does as JSON lines.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import random
import secrets
import sys
import time
from typing import Any

import trio

from sapo_edge.swarm.host.requests import read_frame, write_frame
from sapo_edge.swarm.tally import innermost
from tests.swarm.host.victims import ignore
from tests.swarm.member.hostile import ATTACKS, PULL, Hostile, Neighbour, attack

EXCHANGE, PUSH = "/sapo-edge/peers/1.0.0", "/ipfs/id/push/1.0.0"
KINDS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "flooder": [
        ("identities", {"authors": 100, "connections": 6}), ("flood", {"seconds": 3.0}), ("long_answers", {"count": 4}),
        ("heavy_identify", {}),
    ],
    "garbler": [
        ("random_bytes", {"sockets": 16, "seconds": 8.0}), ("half_open", {"sockets": 40, "seconds": 15.0}),
        ("malformed_frames", {}), ("oversized", {}),
    ],
    "poisoner": [
        ("republish", {}), ("false_rollouts", {}), ("gossip_control", {}), ("false_addresses", {}),
        ("stalling_pulls", {"peers": 2, "announced": 128}), ("wrong_clocks", {}),
    ],
}  # fmt: skip
"""Attacks of each kind of attacker, in turn."""
LONGEST = 30.0
"""Seconds after which an attack is broken off; some never end by themselves."""


async def ask(peer: Neighbour, protocol: str, request: bytes, limit: int) -> bytes:
    with trio.move_on_after(10.0), contextlib.suppress(Exception):
        stream = await peer.stream(protocol)
        await write_frame(stream, request)
        return await read_frame(stream, limit)
    return b""


@attack
async def republish(hostile: Hostile) -> None:
    """Publishes what others just published, and first, so that their own messages come as duplicates."""
    from sapo_edge.swarm.wire.messages import Request, decode_response, encode_request

    async with hostile.neighbour() as peer:
        data = await ask(peer, PULL, encode_request(Request("recent", swarm=hostile.swarm, count=32)), 2**20)
        records = decode_response(data).records if data else ()
        for record in records[:8]:
            own = hostile.record(peer.identity, secrets.randbelow(2**31), secrets.randbelow(16))
            with contextlib.suppress(Exception):
                await peer.gossip(hostile.payload(record, own))
        async with hostile.neighbour() as other:
            for record in records[8:16]:
                with contextlib.suppress(Exception):
                    await other.gossip(hostile.payload(record))
            await trio.sleep(0.5)


@attack
async def gossip_control(hostile: Hostile, turns: int = 10) -> None:
    """Promises messages that do not exist, asks for the same ones again and again, and grafts and prunes in turn."""
    from libp2p.pubsub.pb import rpc_pb2

    async with hostile.neighbour() as peer:
        await peer.subscribe()
        await peer.gossip(hostile.payload(hostile.record(peer.identity)))
        for _ in range(turns):
            rpc = rpc_pb2.RPC()
            for _ in range(8):
                rpc.control.ihave.add(topicID=hostile.topic, messageIDs=[secrets.token_bytes(46) for _ in range(64)])
                rpc.control.iwant.add(messageIDs=[secrets.token_bytes(46)] * 64)
                rpc.control.graft.add(topicID=hostile.topic)
                rpc.control.prune.add(topicID=hostile.topic, backoff=1).peers.add(peerID=secrets.token_bytes(34))
            with contextlib.suppress(Exception):
                await peer.frame(rpc)
            await trio.sleep(0.3)


@attack
async def false_addresses(hostile: Hostile, seconds: float = 5.0) -> None:
    """Tells of members, relays and ports that do not exist, that the node can't be reached, and of a wrong time."""
    from sapo_edge.swarm.addresses import Address
    from sapo_edge.swarm.wire.exchange import ExchangeRequest, ExchangeResponse, encode_request, encode_response
    from sapo_edge.swarm.wire.exchange import swarm_tag as tag

    def nobody(host: str) -> Address:
        return Address("ip4", host, 2000 + secrets.randbelow(60000), hostile.identity().peer_id)

    def nowhere() -> tuple[Address, ...]:
        third = secrets.randbelow(250)
        return tuple(nobody(f"{net}.{third}.{secrets.randbelow(250) + 1}") for net in ("5.5", "9.9", "192.168", "10.0"))

    async def lie(stream: Any) -> None:
        with contextlib.suppress(Exception):
            await stream.read(4096)
            answer = ExchangeResponse(
                True, "9.9.9.9", False, time.time() + 7200, tuple((address,) for _ in range(4) for address in nowhere())
            )
            await write_frame(stream, encode_response(answer))
            await stream.close()

    name = tag(hostile.swarm, None, "peers")
    async with hostile.neighbour() as peer:
        peer.host.set_stream_handler(EXCHANGE, lie)
        await peer.subscribe()
        for port in (22, 4001, 9100, 65535):
            address = nobody("5.5.9.9")
            circuit = Address("ip4", address.host, address.port, peer.peer_id, address.peer_id)
            await ask(peer, EXCHANGE, encode_request(ExchangeRequest(name, port, (circuit,) * 4, True)), 2**16)
        await trio.sleep(seconds)


@attack
async def heavy_identify(hostile: Hostile) -> None:
    """Names hundreds of protocols when it is asked who it is, and pushes a megabyte of them."""
    async with hostile.neighbour() as peer:
        for _ in range(300):
            peer.host.set_stream_handler(f"/{secrets.token_hex(32)}", ignore)
        with contextlib.suppress(Exception):
            stream = await peer.stream(PUSH)
            await stream.write(secrets.token_bytes(2**20))
        await trio.sleep(2.0)


async def main(options: dict[str, Any]) -> None:
    """Attack until stdin ends; `pause` is seconds between two attacks."""
    logging.getLogger("libp2p").setLevel(logging.CRITICAL)
    generator = random.Random(options["number"])
    targets: list[list[str]] = []
    made = 0

    async def attack_in_turn() -> None:
        nonlocal made
        for name, arguments in itertools.cycle(KINDS[options["kind"]]):
            await trio.sleep(options["pause"])
            if not targets:
                continue
            peer_id, address = generator.choice(targets)
            # The number of names goes on, so that none is used twice.
            hostile = Hostile(address, bytes.fromhex(options["swarm"]), options["tasks"], options["number"], made=made)
            if name == "false_rollouts":
                arguments = {"honest": peer_id}
            started, result = time.time(), "ok"
            with trio.move_on_after(LONGEST) as scope:
                try:
                    await ATTACKS[name](hostile, **arguments)
                except Exception as error:  # noqa: BLE001 - nodes end and refuse in many ways, which is what they should
                    result = f"{type(innermost(error)).__name__}: {innermost(error)}"[:160]
            if scope.cancelled_caught:
                result = "broken off"
            made = hostile.made
            line = {"attack": name, "on": peer_id, "begun": started, "seconds": time.time() - started, "result": result}
            print(json.dumps(line), flush=True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(attack_in_turn)
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            targets[:] = json.loads(line)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, json.loads(sys.argv[1]))
