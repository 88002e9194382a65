"""Requests between connected peers: one request and one response a stream, both sides bounded.

Each is a frame: 4 bytes of length, big-endian, before the content. A length is checked before anything is read, and
every step has a time limit.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID

from sapo_edge.swarm.bucket import Buckets, TokenBucket
from sapo_edge.swarm.host.hardening import Blame, end_quietly, quietly
from sapo_edge.swarm.host.places import Places
from sapo_edge.swarm.tally import Tally, innermost

MAX_REMEMBERED_PEERS = 256
"""Peers whose rate of requests is remembered."""
_LENGTH = struct.Struct(">I")


class RequestError(Exception):
    """A peer sent no valid request or response, or none in time. Never leaves this package."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """A request protocol and its bounds.

    Attributes:
        protocol_id: as libp2p negotiates it.
        name: what the requests are called in counters.
        max_request, max_response: bytes.
        rate, burst: requests a second that one peer may make, and how many at once.
        max_served: requests that are served at the same time, shared between networks as `Places` does.
        read_seconds: time for a request to arrive.
        answer_seconds: time until a response begins.
        total_seconds: time from opening the stream to the end of the response.
    """

    protocol_id: str
    name: str
    max_request: int
    max_response: int
    rate: float
    burst: float
    max_served: int
    read_seconds: float
    answer_seconds: float
    total_seconds: float


Responder = Callable[[bytes, INetStream], Awaitable[bytes]]
"""(request, stream) -> response; raises RequestError for an invalid request."""


class RequestServer:
    """Answers the requests of other peers.

    Args:
        refusal: another reason to refuse a peer's request now; empty for none.
        blame: called with a peer that sends an invalid request, and "request".
    """

    def __init__(
        self,
        host: IHost,
        protocol: Protocol,
        answer: Responder,
        tally: Tally,
        refusal: Callable[[str], str] = lambda peer_id: "",
        blame: Blame = lambda peer_id, offence: None,
    ) -> None:
        self._host, self._protocol, self._answer, self._tally = host, protocol, answer, tally
        self._other_refusal, self._blame = refusal, blame
        bucket = functools.partial(TokenBucket, protocol.rate, protocol.burst, trio.current_time)
        self._buckets = Buckets(MAX_REMEMBERED_PEERS, bucket)
        self._places: Places[trio.CancelScope] = Places(protocol.max_served, protocol.max_served)

    @property
    def serving(self) -> int:
        return len(self._places)

    def start(self) -> None:
        self._host.set_stream_handler(TProtocol(self._protocol.protocol_id), self._handle)

    async def _handle(self, stream: INetStream) -> None:
        peer_id = str(stream.muxed_conn.peer_id)
        refusal = self._other_refusal(peer_id) if self._buckets.of(peer_id).take() else "rate"
        if not refusal:
            place = trio.CancelScope()
            try:
                with place:
                    refusal = await self._serve(place, stream)
            except RequestError:
                refusal = "not a request"
                self._blame(peer_id, "request")
            except trio.TooSlowError:
                refusal = "too slow"
            finally:
                self._places.remove(place)
            if place.cancelled_caught:
                refusal = "displaced"
        if refusal:
            self._tally.count(f"{self._protocol.name} refused: {refusal}")
            await quietly(stream.reset)

    async def _serve(self, place: trio.CancelScope, stream: INetStream) -> str:
        """Serve a request if there is a place for it, perhaps another one's, and return why there is none."""
        remote = stream.muxed_conn.get_remote_address()
        # Whoever sends a request slowly, or reads no response, would keep a place from all others.
        displaced = self._places.add(place, str(remote[0]) if remote else "::")
        if displaced is place:
            return "busy"
        if displaced is not None:
            self._places.remove(displaced)
            displaced.cancel()
        with trio.fail_after(self._protocol.read_seconds):
            request = await read_frame(stream, self._protocol.max_request)
        response = await self._answer(request, stream)
        with trio.fail_after(self._protocol.total_seconds):
            await write_frame(stream, response)
        self._tally.count(f"{self._protocol.name} served")
        await stream.close()
        return ""


async def request(host: IHost, peer_id: str, protocol: Protocol, data: bytes) -> bytes:
    """The response of a connected peer to a request; RequestError if none comes in time and within the bounds."""
    stream: INetStream | None = None
    try:
        with trio.fail_after(protocol.total_seconds):
            with trio.fail_after(protocol.answer_seconds):
                stream = await host.new_stream(ID.from_string(peer_id), [TProtocol(protocol.protocol_id)])
                await write_frame(stream, data)
                size = await _read_size(stream, protocol.max_response)
            return await _read_exactly(stream, size)
    except RequestError:
        raise
    except Exception as error:
        # The peer chooses what the library's negotiation reads, which raises more than the library's own errors.
        raise RequestError(type(innermost(error)).__name__) from error
    finally:
        if stream is not None:
            await end_quietly(stream.reset)


async def read_frame(stream: INetStream, limit: int) -> bytes:
    """Read one frame of at most `limit` bytes; RequestError if it is longer, or the stream ends early."""
    return await _read_exactly(stream, await _read_size(stream, limit))


async def write_frame(stream: INetStream, data: bytes) -> None:
    await stream.write(_LENGTH.pack(len(data)) + data)


async def _read_size(stream: INetStream, limit: int) -> int:
    (size,) = _LENGTH.unpack(await _read_exactly(stream, _LENGTH.size))
    if size > limit:
        raise RequestError(f"a frame of {size} bytes, more than {limit}")
    return int(size)


async def _read_exactly(stream: INetStream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = await stream.read(size - len(data))
        if not part:
            raise RequestError("the stream ended early")
        data += part
    return bytes(data)
