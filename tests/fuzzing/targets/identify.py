"""What a peer answers to identify ends the exchange at most, and what is kept of it is bounded and readable."""

from __future__ import annotations

import sapo_edge.swarm  # noqa: F401 -- lets libp2p do without libraries that it names

# isort: split
from typing import Any, cast

import trio
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.peer.id import ID
from libp2p.utils.varint import encode_uvarint
from multiaddr import Multiaddr

from sapo_edge.swarm.host import identify
from sapo_edge.swarm.host.identify import MAX_ADDRESS_BYTES, MAX_ADDRESSES, MAX_IDENTIFY_BYTES, MAX_PROTOCOLS
from sapo_edge.swarm.tally import Tally
from tests.fuzzing.target import MIB, Target
from tests.fuzzing.targets.address import ONE
from tests.swarm.host.streams import Answering, FakeConnection

PEER = ID.from_base58(ONE)


def check(data: bytes) -> None:
    """The bytes as a whole stream, and as a message with its length before it."""
    for stream in (data, bytes(encode_uvarint(len(data))) + data):
        host = Answering(FakeConnection(ONE, "198.51.100.23"), stream)
        is_read = trio.run(exchange, host)
        kept = host.store.peer_data_map.get(PEER)
        protocols, addresses = ([], []) if kept is None else (kept.get_protocols(), kept.get_addrs())
        assert is_read or not (protocols or addresses or host.observed), "half an answer is kept"
        assert len(protocols) <= MAX_PROTOCOLS and all(len(name) <= MAX_ADDRESS_BYTES for name in protocols)
        assert len(addresses) <= MAX_ADDRESSES and len(host.observed) <= 1
        assert all(len(address.to_bytes()) <= MAX_ADDRESS_BYTES and str(address) for address in addresses)


async def exchange(host: Answering) -> bool:
    """Run the exchange, and return whether there was a readable answer."""
    try:
        await identify._identify(cast(Any, host), PEER, Tally(lambda event: None))
    except Exception:  # noqa: BLE001 - as its caller does: a peer chooses what the library reads
        return False
    return True


def seeds() -> list[bytes]:
    texts = (f"/ip4/192.0.2.1/tcp/4001/p2p/{ONE}", "/ip6/::1/udp/1/quic-v1", "/dns/a.example/tcp/443/tls/ws", "/unix/a")
    listen = [Multiaddr(text).to_bytes() for text in texts]
    usual = Identify(
        protocol_version="ipfs/0.1.0", agent_version="sapo-edge", public_key=bytes(36), listen_addrs=listen,
        observed_addr=listen[0], protocols=["/ipfs/id/1.0.0", "/meshsub/1.1.0"],
    )  # fmt: skip
    many = Identify(protocols=[f"/{number}" for number in range(100)], listen_addrs=listen * 10)
    answers = [usual, many, Identify(listen_addrs=[b"", b"\xff" * 400, b"\x04"]), Identify(agent_version="x" * 9000)]
    return [answer.SerializeToString() for answer in answers]


TARGET = Target(check, seeds, MAX_IDENTIFY_BYTES + 1024, 2 * MIB, 64, short=40)
