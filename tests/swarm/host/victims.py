"""Hosts to attack, with and without the workarounds for py-libp2p's faults, and an attacker's tools."""

from __future__ import annotations

import sapo_edge.swarm  # noqa: F401 -- lets libp2p do without libraries that it names

# isort: split
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio
from libp2p import new_host
from libp2p.abc import IHost, INetStream
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import KeyPair
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11, GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import PUBSUB_SIGNING_PREFIX, Pubsub
from libp2p.tools.anyio_service import background_trio_service
from libp2p.utils.varint import encode_uvarint
from multiaddr import Multiaddr

from sapo_edge.swarm.host.gossip import Gossip, Verdict
from sapo_edge.swarm.host.host import make_host, running
from sapo_edge.swarm.host.traffic import Meter
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.tally import Tally

TOPIC = "/sapo-edge/1/test"
MESHSUB = TProtocol(PROTOCOL_ID_V11)
LOOPBACK = Multiaddr("/ip4/127.0.0.1/tcp/0")


async def dial(host: IHost, address: str) -> ID:
    """Connect to a multiaddress with `/p2p/`; a SwarmException if nobody answers, or another peer."""
    peer_id = ID.from_string(address.rpartition("/p2p/")[2])
    await host.get_network().dial_addr(Multiaddr(address), peer_id)
    return peer_id


def address_of(host: IHost) -> str:
    return f"{str(host.get_transport_addrs()[0]).split('/p2p/')[0]}/p2p/{host.get_id()}"


@dataclass
class Victim:
    """A host that is in `TOPIC`: it raises `refuse` at the next message, and `died` is set if it ends by itself."""

    host: IHost
    pubsub: Pubsub
    received: list[bytes] = field(default_factory=list)
    refuse: Exception | None = None
    verdict: Verdict = Verdict.ACCEPT
    died: trio.Event = field(default_factory=trio.Event)
    blamed: list[tuple[str, str]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return address_of(self.host)

    @property
    def peer_id(self) -> ID:
        return self.host.get_id()

    def take(self, data: bytes) -> bool:
        refuse, self.refuse = self.refuse, None
        if refuse is not None:
            raise refuse
        self.received.append(data)
        return True


@dataclass(kw_only=True)
class Hardened(Victim):
    """A victim as the swarm runs its host."""

    tally: Tally
    meter: Meter
    gossip: Gossip


def bare_host(key: KeyPair | None = None, psk: bytes | None = None) -> IHost:
    """A host of py-libp2p with its defaults."""
    return new_host(key_pair=key or create_new_key_pair(secrets.token_bytes(32)), psk=psk.hex() if psk else None)


@asynccontextmanager
async def _alive(victim: Victim, host: AbstractAsyncContextManager[object]) -> AsyncIterator[None]:
    """Run a victim's host in a task of its own, which may fail."""

    async def live(task_status: trio.TaskStatus[None]) -> None:
        try:
            async with host:
                task_status.started()
                await trio.sleep_forever()
        except Exception:  # noqa: BLE001 - what the tests look for
            pass
        finally:
            victim.died.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(live)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def bare() -> AsyncIterator[Victim]:
    host = bare_host()
    router = GossipSub(
        [MESHSUB], 6, 4, 64, heartbeat_interval=1, adaptive_gossip_enabled=False, spam_protection_enabled=False,
        eclipse_protection_enabled=False,
    )  # fmt: skip
    victim = Victim(host, Pubsub(host, router))

    @asynccontextmanager
    async def running_host() -> AsyncIterator[None]:
        async with (
            host.run([LOOPBACK]),
            background_trio_service(victim.pubsub.router),
            background_trio_service(victim.pubsub),
        ):
            await victim.pubsub.wait_until_ready()
            victim.pubsub.set_topic_validator(TOPIC, lambda forwarder, message: victim.take(message.data), False)
            await victim.pubsub.subscribe(TOPIC)
            yield

    async with _alive(victim, running_host()):
        yield victim


@asynccontextmanager
async def hardened(keepalive: float = 15.0, psk: bytes | None = None, processor: Any = None) -> AsyncIterator[Hardened]:
    """A victim as the swarm runs its host; `processor` is that of its meter, or something like it."""
    tally = Tally()
    meter = Meter(0, 0, tally, processor=processor)
    host = make_host(Identity(secrets.token_bytes(32)), psk, meter, keepalive)

    def check(data: bytes, forwarder: str, origin: str) -> Verdict:
        victim.take(data)
        return victim.verdict

    def blame(peer: str, offence: str) -> None:
        victim.blamed.append((peer, offence))

    gossip = Gossip(host, TOPIC, check, blame, lambda peer: 0.0, meter)
    victim = Hardened(host, gossip, tally=tally, meter=meter, gossip=gossip)

    @asynccontextmanager
    async def running_host() -> AsyncIterator[None]:
        async with running(host, "loopback", 0, meter, blame) as nursery, gossip.running(nursery):
            yield

    async with _alive(victim, running_host()):
        yield victim


@asynccontextmanager
async def attacker(victim: Victim) -> AsyncIterator[IHost]:
    """A bare host, connected to the victim."""
    host = bare_host()
    host.set_stream_handler(MESHSUB, read_all)
    async with host.run([LOOPBACK]):
        await dial(host, victim.address)
        assert await until(lambda: host.get_id() in victim.host.get_network().connections)
        yield host


async def read_all(stream: INetStream) -> None:
    """Read what comes, and do nothing with it."""
    while await stream.read(65536):
        pass


async def ignore(stream: object) -> None:
    """Read nothing of what comes."""
    await trio.sleep_forever()


@asynccontextmanager
async def serving(handler: Callable[[Any], Awaitable[None]]) -> AsyncIterator[int]:
    """A TCP server on this machine; its port."""
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, handler, 0, host="127.0.0.1"))
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


def frame(rpc: rpc_pb2.RPC | bytes) -> bytes:
    data = rpc if isinstance(rpc, bytes) else rpc.SerializeToString()
    return bytes(encode_uvarint(len(data))) + data


def control(**kinds: Any) -> rpc_pb2.RPC:
    """A frame of control messages: of each kind a list."""
    return rpc_pb2.RPC(control=rpc_pb2.ControlMessage(**kinds))


def signed(host: IHost, data: bytes, sequence: int | None = None) -> rpc_pb2.Message:
    """A message with the signature that GossipSub's strict signing requires."""
    number = time.time_ns() if sequence is None else sequence
    from_id, seqno = host.get_id().to_bytes(), number.to_bytes(8, "big")
    message = rpc_pb2.Message(data=data, topicIDs=[TOPIC], from_id=from_id, seqno=seqno)
    sign(host, message)
    return message


def message_of(author: Identity, data: bytes, topic: str, number: bytes) -> rpc_pb2.Message:
    """A signed message of whoever has an identity, without the key, which its peer id contains."""
    from_id = ID.from_string(author.peer_id).to_bytes()
    message = rpc_pb2.Message(data=data, topicIDs=[topic], from_id=from_id, seqno=number)
    message.signature = author.sign(PUBSUB_SIGNING_PREFIX.encode() + message.SerializeToString())
    return message


def sign(host: IHost, message: rpc_pb2.Message) -> None:
    message.signature = host.get_private_key().sign(PUBSUB_SIGNING_PREFIX.encode() + message.SerializeToString())
    message.key = host.get_public_key().serialize()


async def send(host: IHost, victim: Victim, *frames: bytes) -> None:
    """Write frames to the victim's meshsub."""
    stream = await host.new_stream(victim.peer_id, [MESHSUB])
    for data in frames:
        await stream.write(data)
    await trio.sleep(0.1)


async def until(condition: Callable[[], Any], seconds: float = 5.0) -> bool:
    """Whether a condition becomes true in time."""
    deadline = trio.current_time() + seconds
    while not condition():
        if trio.current_time() > deadline:
            return False
        await trio.sleep(0.02)
    return True


Attack = Callable[[IHost, Victim], Awaitable[None]]
