"""A meeting place for codes: it brings two strangers together who name the same number, and passes four messages on.

Every member of an open swarm and every relay is one, and an inviter is one for its own number. A meeting place learns
the addresses of both, the number, and sizes and times. What it passes on is useless without the words of the code, and
if it lies, the most that it can do is to make one guess at them from each side, which the side notices.

On a stream of `PROTOCOL`, each in a frame: a claim, one or two answers, and if both sides are there, the messages of
`handover.py` from one to the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID

from sapo_edge.swarm.addresses import holder
from sapo_edge.swarm.bucket import Buckets, TokenBucket
from sapo_edge.swarm.codes.claim import (
    MAX_CLAIM_BYTES,
    PASSED,
    PROTOCOL,
    Answer,
    Claim,
    decode_answer,
    decode_claim,
    encode_answer,
    encode_claim,
)
from sapo_edge.swarm.codes.handover import MAX_SEALED_BYTES
from sapo_edge.swarm.finding.circuit import FAILED
from sapo_edge.swarm.host.hardening import ENDED, end_quietly, quietly
from sapo_edge.swarm.host.requests import RequestError, read_frame, write_frame
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.wire.codec import WireError

SLOTS = 16
"""Inviters that may wait at a time."""
SLOTS_OF_ONE = 4
"""The same from one address."""
MAX_SERVED = 32
"""Most open streams beside those of inviters that wait."""
RATE, BURST = 0.2, 8.0
"""Claims a second from one address, and how many at once."""
WAIT_SECONDS = 600.0
"""Longest time for which an inviter waits."""
READ_SECONDS = 5.0
"""Time for a claim to arrive."""
PAIRED_SECONDS = 30.0
"""Time for all messages of two that met."""
POLL_SECONDS = 1.0
"""Time between two checks whether an inviter is still connected."""
MAX_ADDRESSES = 1024
"""Most addresses whose rate is remembered."""
ASK_SECONDS = 10.0
"""Seconds for a meeting place's answer to a claim."""
LOST = (RequestError, WireError, *FAILED)
"""Exceptions of a peer that breaks off, or does not follow the protocol."""

Meet = Callable[[INetStream], Awaitable[None]]
"""What happens to the stream of who asked for a number, once it was told that the other side is there."""


async def read_answer(stream: INetStream) -> Answer:
    return decode_answer(await read_frame(stream, MAX_CLAIM_BYTES))


async def ask_place(host: IHost, peer_id: str, claim: Claim) -> tuple[INetStream, Answer]:
    """The open stream and answer to a claim at a connected meeting place; raises one of LOST without a valid one."""
    stream: INetStream | None = None
    try:
        with trio.fail_after(ASK_SECONDS):
            stream = await host.new_stream(ID.from_string(peer_id), [TProtocol(PROTOCOL)])
            await write_frame(stream, encode_claim(claim))
            return stream, await read_answer(stream)
    except BaseException as error:
        if stream is not None:
            await end_quietly(stream.reset)
        if isinstance(error, Exception) and not isinstance(error, LOST):
            # What a peer sends while the protocol is negotiated raises more than the library's own errors.
            raise RequestError(type(error).__name__) from error
        raise


@dataclass(slots=True, eq=False)
class _Waiting:
    stream: INetStream
    address: str
    met: trio.Event = field(default_factory=trio.Event)
    ended: trio.Event = field(default_factory=trio.Event)

    @property
    def is_there(self) -> bool:
        """Whether neither its connection nor its stream has ended: whoever takes another number leaves the first."""
        stream: Any = self.stream.muxed_stream
        return not (self.stream.muxed_conn.is_closed or stream.recv_closed or stream.reset_received)


class MeetingPlace:
    """Answers claims, and counts what becomes of them; as many inviters may wait at a time as there are slots."""

    def __init__(self, host: IHost, tally: Tally, slots: int = SLOTS) -> None:
        self._host, self._tally, self._slots = host, tally, slots
        self._own: dict[Claim, Meet] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._streams = 0
        self._buckets = Buckets(MAX_ADDRESSES, lambda: TokenBucket(RATE, BURST, trio.current_time))

    def start(self) -> None:
        self._host.set_stream_handler(TProtocol(PROTOCOL), self._handle)

    def keep(self, claim: Claim, meet: Meet) -> None:
        """Meet everybody who makes this claim here, instead of passing messages on."""
        self._own[claim] = meet

    async def _handle(self, stream: INetStream) -> None:
        remote = stream.muxed_conn.get_remote_address()
        # Everybody who comes through a relay counts as one.
        address = holder(remote[0]) if remote else ""
        if self._streams >= self._slots + MAX_SERVED or not self._buckets.of(address).take():
            self._tally.count("codes refused: too many claims")
            await quietly(stream.reset)
            return
        self._streams += 1
        try:
            await self._serve(stream, address)
        except (RequestError, WireError, trio.TooSlowError, *ENDED):
            self._tally.count("codes refused: no claim, or broken off")
        finally:
            self._streams -= 1
            await end_quietly(stream.close)

    async def _serve(self, stream: INetStream, address: str) -> None:
        with trio.fail_after(READ_SECONDS):
            claim = decode_claim(await read_frame(stream, MAX_CLAIM_BYTES))
        self._waiting = {number: other for number, other in self._waiting.items() if other.is_there}
        if (meet := self._own.get(claim)) is not None:
            if claim.waits:
                # To an inviter it looks as if somebody asked for the number at once.
                await write_frame(stream, encode_answer(Answer.WAITING))
            await write_frame(stream, encode_answer(Answer.PAIRED))
            await meet(stream)
        elif claim.waits:
            await self._wait(claim.number, _Waiting(stream, address))
        elif (other := self._waiting.pop(claim.number, None)) is not None:
            await self._pass_on(other, stream)
        else:
            self._tally.count("codes with nobody there")
            await write_frame(stream, encode_answer(Answer.NOBODY))

    async def _wait(self, number: int, waiting: _Waiting) -> None:
        of_one = sum(other.address == waiting.address for other in self._waiting.values())
        if number in self._waiting or Claim(number, False) in self._own:
            await write_frame(waiting.stream, encode_answer(Answer.TAKEN))
            return
        if len(self._waiting) >= self._slots or of_one >= SLOTS_OF_ONE:
            self._tally.count("codes refused: full")
            await write_frame(waiting.stream, encode_answer(Answer.FULL))
            return
        self._waiting[number] = waiting
        try:
            await write_frame(waiting.stream, encode_answer(Answer.WAITING))
            with trio.move_on_after(WAIT_SECONDS):
                while not waiting.met.is_set() and waiting.is_there:
                    with trio.move_on_after(POLL_SECONDS):
                        await waiting.met.wait()
        finally:
            if self._waiting.get(number) is waiting:
                del self._waiting[number]
        if waiting.met.is_set():
            await waiting.ended.wait()

    async def _pass_on(self, waiting: _Waiting, stream: INetStream) -> None:
        waiting.met.set()
        try:
            with trio.fail_after(PAIRED_SECONDS):
                ends = waiting.stream, stream
                for end in ends:
                    await write_frame(end, encode_answer(Answer.PAIRED))
                for turn in range(PASSED):
                    message = await read_frame(ends[turn % 2], MAX_SEALED_BYTES)
                    await write_frame(ends[1 - turn % 2], message)
            self._tally.count("codes passed on")
        finally:
            waiting.ended.set()
