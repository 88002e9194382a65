"""Meeting places for codes, over streams in memory: who is paired with whom, and what strangers can't use up."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import memory_stream_pair

from sapo_edge.swarm.codes import claim, meeting_place
from sapo_edge.swarm.codes.claim import Answer, Claim, decode_answer, decode_claim, encode_claim
from sapo_edge.swarm.codes.handover import MAX_SEALED_BYTES
from sapo_edge.swarm.codes.meeting_place import BURST, MAX_SERVED, RATE, SLOTS_OF_ONE, MeetingPlace
from sapo_edge.swarm.host.requests import RequestError, read_frame, write_frame
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.wire.codec import WireError, encode
from tests.defences.defence import fails_without
from tests.swarm.loop import in_trio, meanwhile


class Stream:
    """One end of a stream as libp2p has it."""

    def __init__(self, end: trio.StapledStream[Any, Any], connection: Any) -> None:
        self._end = end
        self.muxed_conn = connection
        self.muxed_stream = SimpleNamespace(recv_closed=False, reset_received=False)

    async def read(self, n: int) -> bytes:
        return bytes(await self._end.receive_some(n))

    async def write(self, data: bytes) -> None:
        await self._end.send_all(data)

    async def close(self) -> None:
        await self._end.send_eof()

    async def reset(self) -> None:
        await self._end.aclose()


class Lab:
    def __init__(self, nursery: trio.Nursery, slots: int = 4) -> None:
        self.tally = Tally()
        self.place = MeetingPlace(self, self.tally, slots)
        self._nursery = nursery
        self.place.start()

    def set_stream_handler(self, protocol: str, handler: Callable[[Any], Awaitable[None]]) -> None:
        self._handler = handler

    def open(self, ip: str | None = "192.0.2.1") -> Stream:
        ours, theirs = memory_stream_pair()
        connection = SimpleNamespace(is_closed=False, get_remote_address=lambda: None if ip is None else (ip, 1))
        self._nursery.start_soon(self._handler, Stream(theirs, connection))
        return Stream(ours, connection)

    async def claim(self, number: int, waits: bool, ip: str | None = "192.0.2.1") -> tuple[Stream, Answer]:
        client = self.open(ip)
        await write_frame(client, encode_claim(Claim(number, waits)))
        return client, await answer(client)

    async def pair(self, number: int) -> tuple[Stream, Stream]:
        """The inviter's end and the joiner's, both told that the other is there."""
        inviter, _ = await self.claim(number, True)
        joiner, _ = await self.claim(number, False)
        await answer(inviter)
        return inviter, joiner


async def answer(client: Any) -> Answer:
    return decode_answer(await read_frame(client, claim.MAX_CLAIM_BYTES))


@contextlib.asynccontextmanager
async def opened(slots: int = 4) -> AsyncIterator[Lab]:
    async with meanwhile() as nursery:
        yield Lab(nursery, slots)


async def talk(inviter: Any, joiner: Any, messages: list[bytes]) -> None:
    ends = inviter, joiner
    for turn, message in enumerate(messages):
        await write_frame(ends[turn % 2], message)
        assert await read_frame(ends[1 - turn % 2], MAX_SEALED_BYTES) == message


@in_trio(0)
async def test_two_who_name_a_number_talk_and_nobody_else_hears_until_it_is_free_again() -> None:
    async with opened() as lab:
        inviter, waiting = await lab.claim(7, True)
        other, also = await lab.claim(8, True)
        assert waiting is also is Answer.WAITING
        assert (await lab.claim(7, True))[1] is Answer.TAKEN
        joiner, paired = await lab.claim(7, False)
        assert paired is Answer.PAIRED is await answer(inviter)
        third, nobody = await lab.claim(7, False)
        assert nobody is Answer.NOBODY and await third.read(1) == b""
        assert (await lab.claim(7, True))[1] is Answer.WAITING
        await talk(inviter, joiner, [b"hello", b"x" * MAX_SEALED_BYTES, b"", b"receipt"])
        assert await inviter.read(1) == await joiner.read(1) == b""
        with pytest.raises(trio.TooSlowError), trio.fail_after(1):
            await other.read(1)


@fails_without("swarm/codes/meeting_place.py", "self.stream.muxed_conn.is_closed or ")
@in_trio(0)
async def test_an_inviter_that_left_frees_its_number() -> None:
    async with opened() as lab:
        inviter, _ = await lab.claim(7, True)
        inviter.muxed_conn.is_closed = True
        assert (await lab.claim(7, False))[1] is Answer.NOBODY
        other, _ = await lab.claim(8, True)
        other.muxed_conn.is_closed = True
        await trio.sleep(2 * meeting_place.POLL_SECONDS)
        assert (await lab.claim(8, True))[1] is Answer.WAITING


@fails_without("swarm/codes/meeting_place.py", "trio.fail_after(READ_SECONDS)", "trio.fail_after(1e6)")
@fails_without("swarm/codes/meeting_place.py", "trio.move_on_after(WAIT_SECONDS)", "trio.move_on_after(1e6)")
@in_trio(0)
async def test_nobody_waits_for_ever() -> None:
    async with opened() as lab:
        inviter, _ = await lab.claim(7, True)
        with trio.fail_after(meeting_place.WAIT_SECONDS + 1):
            assert await inviter.read(1) == b""
        with trio.fail_after(meeting_place.READ_SECONDS + 1):
            assert await lab.open().read(1) == b""


@fails_without("swarm/codes/meeting_place.py", "trio.fail_after(PAIRED_SECONDS)", "trio.fail_after(1e6)")
@fails_without("swarm/codes/meeting_place.py", "ends[turn % 2], MAX_SEALED_BYTES", "ends[turn % 2], 2**31")
@in_trio(0)
async def test_two_that_met_have_little_time_and_four_messages_of_few_bytes() -> None:
    async with opened() as lab:
        inviter, joiner = await lab.pair(7)
        await talk(inviter, joiner, [b"one"])
        with trio.fail_after(meeting_place.PAIRED_SECONDS + 1):
            assert await joiner.read(1) == b""
        inviter, joiner = await lab.pair(8)
        await talk(inviter, joiner, [b"message"] * claim.PASSED)
        with pytest.raises(RequestError):
            await read_frame(joiner, MAX_SEALED_BYTES)
        inviter, joiner = await lab.pair(9)
        await inviter.write((MAX_SEALED_BYTES + 1).to_bytes(4, "big"))
        with trio.fail_after(1):
            assert await joiner.read(1) == b"" == await inviter.read(1), "what is too long is not read"


@fails_without("swarm/codes/meeting_place.py", "len(self._waiting) >= self._slots or ")
@fails_without("swarm/codes/meeting_place.py", " or of_one >= SLOTS_OF_ONE")
@in_trio(0)
async def test_places_for_inviters_are_bounded_in_all_and_for_one_address() -> None:
    async with opened(SLOTS_OF_ONE + 1) as lab:
        for number in range(1, SLOTS_OF_ONE + 1):
            assert (await lab.claim(number, True))[1] is Answer.WAITING
        assert (await lab.claim(90, True))[1] is Answer.FULL
        assert (await lab.claim(91, True, "192.0.2.2"))[1] is Answer.WAITING
        assert (await lab.claim(92, True, "192.0.2.3"))[1] is Answer.FULL


@fails_without("swarm/codes/meeting_place.py", "or not self._buckets.of(address).take()")
@pytest.mark.parametrize("ips", [("192.0.2.1", "192.0.2.1"), ("2001:db8::1", "2001:db8::ffff:2"), (None, None)])
@in_trio(0)
async def test_one_address_tries_few_numbers(ips: tuple[str | None, str | None]) -> None:
    """Also with all addresses of one home, and through relays."""

    async def tries(lab: Lab, seconds: float) -> int:
        end, count = trio.current_time() + seconds, 0
        while trio.current_time() < end and count < 999:
            try:
                await lab.claim(1 + count % 999, False, ips[count % 2])
                count += 1
            except (RequestError, trio.BrokenResourceError):
                await trio.sleep(1)
        return count

    async with opened() as lab:
        assert await tries(lab, 120) <= BURST + 120 * RATE + 1
        assert lab.tally.counts["codes refused: too many claims"] > 20
        assert (await lab.claim(1, False, "198.51.100.1"))[1] is Answer.NOBODY


@fails_without("swarm/codes/meeting_place.py", "Buckets(MAX_ADDRESSES,", "Buckets(10**9,")
@in_trio(0)
async def test_few_addresses_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting_place, "MAX_ADDRESSES", 3)
    async with opened() as lab:
        for number in range(9):
            await lab.claim(1, False, f"198.51.100.{number}")
        assert len(lab.place._buckets) == 3


@fails_without("swarm/codes/meeting_place.py", "self._streams >= self._slots + MAX_SERVED or ")
@fails_without("swarm/codes/meeting_place.py", "trio.fail_after(READ_SECONDS)", "trio.fail_after(1e6)")
@in_trio(0)
async def test_open_streams_are_bounded() -> None:
    async with opened() as lab:
        for number in range(4 + MAX_SERVED):
            lab.open(f"198.51.100.{number}")
        await trio.sleep(0.1)
        with pytest.raises((RequestError, trio.BrokenResourceError)):
            await lab.claim(7, True, "192.0.2.9")
        await trio.sleep(meeting_place.READ_SECONDS)
        assert (await lab.claim(7, True, "192.0.2.9"))[1] is Answer.WAITING


@pytest.mark.parametrize("waits", [False, True])
@in_trio(0)
async def test_each_side_is_the_meeting_place_of_who_makes_the_other_claim(waits: bool) -> None:
    async with opened(slots=0) as lab:

        async def meet(stream: Any) -> None:
            await write_frame(stream, b"own message")

        lab.place.keep(Claim(7, waits), meet)
        for _ in range(2):
            other, told = await lab.claim(7, waits)
            assert not waits or (told is Answer.WAITING and await answer(other) is Answer.PAIRED)
            assert (waits or told is Answer.PAIRED) and await read_frame(other, 64) == b"own message"
        assert (await lab.claim(7, not waits))[1] is (Answer.NOBODY if waits else Answer.TAKEN)
        assert (await lab.claim(8, True))[1] is Answer.FULL


@given(st.binary(max_size=80))
@settings(max_examples=20)
@in_trio(0)
async def test_garbage_opens_nothing(data: bytes) -> None:
    async with opened() as lab:
        client = lab.open()
        await client.write(data)
        await client.close()
        with pytest.raises((RequestError, WireError)):
            while True:
                assert await answer(client) in (Answer.WAITING, Answer.NOBODY)
        assert (await lab.claim(999, False))[1] is Answer.NOBODY
        assert not lab.tally.faults


@pytest.mark.parametrize(
    "change",
    [{"number": 0}, {"number": 1000}, {"number": True}, {"waits": None}, {"waits": 1}, {"v": 2}, {"more": "x" * 300}],
)
def test_other_claims_are_refused(change: dict[str, Any]) -> None:
    fields = {"v": 1, "number": 7, "waits": True, **change}
    with pytest.raises(WireError):
        decode_claim(encode({key: value for key, value in fields.items() if value is not None}))
    with pytest.raises(WireError):
        decode_answer(encode({"v": 1, "answer": "maybe"}))
