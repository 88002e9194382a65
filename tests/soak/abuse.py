"""Attacks of the soak besides those of `tests/swarm/member/hostile.py`: on gossip, peer exchange and identify."""

from __future__ import annotations

import contextlib
import secrets
import struct
import time
from typing import Any

import trio

from tests.swarm.member.hostile import PULL, Hostile, Neighbour, attack

EXCHANGE, PUSH = "/sapo-edge/peers/1.0.0", "/ipfs/id/push/1.0.0"


async def ask(peer: Neighbour, protocol: str, request: bytes, limit: int) -> bytes:
    with trio.move_on_after(10.0), contextlib.suppress(Exception):
        stream = await peer.stream(protocol)
        await stream.write(struct.pack(">I", len(request)) + request)
        data = b""
        while len(data) < 4 or len(data) < 4 + struct.unpack(">I", data[:4])[0]:
            part = await stream.read(65536)
            if not part or len(data) > limit:
                break
            data += part
        return data[4:]
    return b""


@attack
async def republish(hostile: Hostile) -> dict[str, Any]:
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
        return {"captured": len(records)}


@attack
async def gossip_control(hostile: Hostile, turns: int = 10) -> dict[str, Any]:
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
                prune = rpc.control.prune.add(topicID=hostile.topic, backoff=1)
                prune.peers.add(peerID=secrets.token_bytes(34))
            with contextlib.suppress(Exception):
                await peer.frame(rpc)
            await trio.sleep(0.3)
    return {"turns": turns}


@attack
async def false_addresses(hostile: Hostile, seconds: float = 5.0) -> dict[str, Any]:
    """Tells of members, relays and ports that do not exist, that the node can't be reached, and of a wrong time."""
    from sapo_edge.swarm.addresses import Address
    from sapo_edge.swarm.wire.exchange import ExchangeRequest, ExchangeResponse, encode_request, encode_response
    from sapo_edge.swarm.wire.exchange import swarm_tag as tag

    def nobody(host: str) -> Address:
        return Address("ip4", host, 2000 + secrets.randbelow(60000), hostile.identity().peer_id)

    def nowhere() -> tuple[Address, ...]:
        third = secrets.randbelow(250)
        return tuple(nobody(f"{net}.{third}.{secrets.randbelow(250) + 1}") for net in ("5.5", "9.9", "192.168", "10.0"))

    asked = 0

    async def lie(stream: Any) -> None:
        nonlocal asked
        asked += 1
        with contextlib.suppress(Exception):
            await stream.read(4096)
            answer = ExchangeResponse(
                True, "9.9.9.9", False, time.time() + 7200, tuple((address,) for _ in range(4) for address in nowhere())
            )
            data = encode_response(answer)
            await stream.write(struct.pack(">I", len(data)) + data)
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
    return {"asked": asked}


@attack
async def heavy_identify(hostile: Hostile) -> dict[str, Any]:
    """Names hundreds of protocols when it is asked who it is, and pushes a megabyte of them."""
    async with hostile.neighbour() as peer:
        for _ in range(300):
            peer.host.set_stream_handler(f"/{secrets.token_hex(32)}", _ignore)
        with contextlib.suppress(Exception):
            stream = await peer.stream(PUSH)
            await stream.write(secrets.token_bytes(2**20))
        await trio.sleep(2.0)
    return {}


async def _ignore(stream: Any) -> None:
    await trio.sleep(0)
