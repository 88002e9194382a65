"""An invite for a code: both sides over libp2p on this machine, and what others can do in between."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest
import trio
from libp2p.custom_types import TProtocol

from sapo_edge.errors import ConfigError
from sapo_edge.swarm.addresses import Address, direct_address, parse_address
from sapo_edge.swarm.codes import accepting, offering
from sapo_edge.swarm.codes.accepting import accept_invite
from sapo_edge.swarm.codes.claim import MAX_CLAIM_BYTES, PROTOCOL, Answer, Claim, encode_answer
from sapo_edge.swarm.codes.code import Code
from sapo_edge.swarm.codes.handover import GUESS_BYTES, HELLO_BYTES, MAX_SEALED_BYTES, Joiner, Offer
from sapo_edge.swarm.codes.handover import Inviter as Side
from sapo_edge.swarm.codes.meeting_place import LOST, PAIRED_SECONDS, MeetingPlace, ask_place
from sapo_edge.swarm.codes.offering import offer_invite
from sapo_edge.swarm.codes.reaching import Ways, parse_place
from sapo_edge.swarm.finding import mdns
from sapo_edge.swarm.finding.circuit import open_way
from sapo_edge.swarm.finding.visiting import visiting_host
from sapo_edge.swarm.host.hardening import disconnect
from sapo_edge.swarm.host.host import listen_port
from sapo_edge.swarm.host.requests import read_frame, write_frame
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.rendezvous.lookup import Entry
from sapo_edge.swarm.tally import Tally, innermost
from sapo_edge.transport import SwarmError
from tests.defences.defence import fails_without
from tests.swarm.host.victims import until
from tests.swarm.loop import in_trio, meanwhile
from tests.swarm.member.members import make_member
from tests.waiting import wait_until

LINE = "sapo://join/v=1+swarm=aa+name=starter+check=0"
MEMBER = Identity(bytes([9]) * 32)
WRONG_WORDS = ("guitar", "revolver")
UNREACHED, NOBODY = "no meeting place answers", "nobody waits under the number"
WRONG, BROKEN = "the words are wrong, or somebody interfered", "the connection broke; the code may be used up"
GIVEN, SPOILT, UNUSED = "given", "somebody gave a wrong code", "nobody used the code"


@contextlib.asynccontextmanager
async def place(behave: Callable[[Any], Awaitable[None]] | None = None) -> AsyncIterator[Address]:
    """A meeting place, as a relay is one; with `behave`, one that reads a claim and then does as it likes."""
    async with visiting_host(None, "loopback") as host:
        if behave is None:
            MeetingPlace(host, Tally()).start()
        else:

            async def after_claim(stream: Any) -> None:
                await read_frame(stream, MAX_CLAIM_BYTES)
                await behave(stream)

            host.set_stream_handler(TProtocol(PROTOCOL), after_claim)
        yield direct_address("127.0.0.1", listen_port(host), str(host.get_id()))


async def say_nothing(stream: Any) -> None:
    """A meeting place that brings somebody who says nothing."""
    await write_frame(stream, encode_answer(Answer.PAIRED))
    await trio.sleep_forever()


class Inviter:
    """Somebody who offers the invite, without multicast."""

    def __init__(
        self, nursery: trio.Nursery, *places: Address, entry: Entry | None = None, seconds: float = 60.0
    ) -> None:
        self.outcome = GIVEN
        self.ended, self._ready = trio.Event(), trio.Event()
        ways = Ways("loopback", mdns=False, entry=entry)
        nursery.start_soon(self._run, partial(offer_invite, LINE, [[one] for one in places], self._keep, ways, seconds))

    async def _run(self, offer: Callable[[], Awaitable[None]]) -> None:
        try:
            await offer()
        except SwarmError as error:
            self.outcome = error.message
        self.ended.set()

    def _keep(self, code: Code, own: Sequence[Address], others: Sequence[Address], announced: bool) -> None:
        self._code, self.own, self.places, self.is_announced = code, own[0], set(others), announced
        self._ready.set()

    async def code(self) -> Code:
        await self._ready.wait()
        return self._code

    async def ends(self, outcome: str) -> bool:
        await self.ended.wait()
        return self.outcome.startswith(outcome)


async def accept(code: Code, *at: Address) -> str:
    return await accept_invite(code, at, (), Ways("loopback"))


async def fails(failure: str, code: Code, *at: Address) -> None:
    with pytest.raises(SwarmError, match=failure):
        await accept(code, *at)


@in_trio()
async def test_the_invite_arrives() -> None:
    async with place() as relay, trio.open_nursery() as nursery:
        inviter = Inviter(nursery, relay)
        code = await inviter.code()
        assert inviter.places == {relay}
        await fails(NOBODY, Code(code.number % 999 + 1, code.words), relay)
        assert await accept(code, parse_place(f"localhost:{relay.port}")) == LINE
        assert await inviter.ends(GIVEN)
        await fails(NOBODY, code, relay)


@fails_without("swarm/codes/meeting_place.py", " or stream.recv_closed or stream.reset_received")
@in_trio()
async def test_a_place_that_gives_no_number_or_is_gone_keeps_nobody_from_waiting_elsewhere() -> None:
    """Each number that is tried in vain there is given back to the other places, which have few for one address."""

    async def taken(stream: Any) -> None:
        await write_frame(stream, encode_answer(Answer.TAKEN))

    gone = direct_address("127.0.0.1", 1, MEMBER.peer_id)
    async with place() as relay, place(taken) as liar, trio.open_nursery() as nursery:
        inviter = Inviter(nursery, relay, liar, gone)
        code = await inviter.code()
        assert inviter.places == {relay}
        await fails(UNREACHED, code, gone)
        assert await accept(code, gone, inviter.own) == LINE
        assert await inviter.ends(GIVEN)


@in_trio()
async def test_a_relay_that_the_user_did_not_name_says_nothing_about_the_code() -> None:
    """The other side may wait elsewhere: at its own port, or at a relay that it alone knows."""
    async with place() as relay:
        with pytest.raises(SwarmError, match="mdns is off"):
            await accept_invite(Code(7, WRONG_WORDS), (), [relay], Ways("loopback", mdns=False), seconds=1)


@in_trio()
async def test_a_wrong_code_ends_it_for_both() -> None:
    async with place() as relay, trio.open_nursery() as nursery:
        inviter = Inviter(nursery, relay)
        code = await inviter.code()
        await fails(WRONG, Code(code.number, WRONG_WORDS), relay)
        assert await inviter.ends(SPOILT)
        await fails(NOBODY, code, relay)
        await fails(UNREACHED, code, inviter.own)


@fails_without("swarm/codes/offering.py", "trio.fail_after(EXCHANGE_SECONDS)", "trio.fail_after(1e6)")
@in_trio()
async def test_whoever_asks_and_says_nothing_leaves_the_code_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number is public: whoever asks for it gets a message that tells nothing, and the inviter waits again."""
    monkeypatch.setattr(offering, "AGAIN_SECONDS", 0.2)
    async with place() as relay, trio.open_nursery() as nursery, visiting_host(None) as third:
        inviter = Inviter(nursery, relay)
        code = await inviter.code()
        assert await open_way(third, relay)
        with monkeypatch.context() as patch:
            patch.setattr(offering, "EXCHANGE_SECONDS", 0.2)
            stream, answer = await ask_place(third, relay.peer_id, Claim(code.number, False))
            assert answer is Answer.PAIRED and len(await read_frame(stream, HELLO_BYTES)) == HELLO_BYTES
        result = ""
        with trio.fail_after(PAIRED_SECONDS / 2):
            while not result:
                await trio.sleep(0.1)
                with contextlib.suppress(SwarmError):  # it has not come back yet
                    result = await accept(code, relay)
        assert result == LINE and await inviter.ends(GIVEN)


@fails_without(
    "swarm/codes/offering.py", "                    await open_way(self._host, place)\n", "                    pass\n"
)
@in_trio()
async def test_an_inviter_that_lost_a_place_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offering, "AGAIN_SECONDS", 0.05)
    async with visiting_host(None, "loopback") as host, trio.open_nursery() as nursery:
        meeting = MeetingPlace(host, Tally())
        meeting.start()
        inviter = Inviter(nursery, direct_address("127.0.0.1", listen_port(host), str(host.get_id())))
        code = await inviter.code()
        (before,) = host.get_network().get_connections()
        disconnect(host, str(before.muxed_conn.peer_id))

        def is_back() -> bool:
            waiting = meeting._waiting.get(code.number)
            return waiting is not None and waiting.stream.muxed_conn is not before.muxed_conn

        assert await until(is_back)
        assert await accept(code, *inviter.places) == LINE and await inviter.ends(GIVEN)


@fails_without("swarm/codes/offering.py", "trio.move_on_after(seconds)", "trio.move_on_after(1e6)")
@in_trio()
async def test_a_code_ends_after_its_time() -> None:
    async with place() as relay, trio.open_nursery() as nursery:
        inviter = Inviter(nursery, relay, seconds=0.3)
        with trio.fail_after(8):
            assert await inviter.ends(UNUSED)
        await fails(NOBODY, await inviter.code(), relay)


@fails_without("swarm/codes/accepting.py", "        self.scope.cancel()\n")
@in_trio()
async def test_a_lying_place_gets_one_guess_from_a_joiner(monkeypatch: pytest.MonkeyPatch) -> None:
    """It plays the inviter with a code that it guesses. The joiner then asks nobody else, not even the right one."""
    guesses: list[bytes] = []

    async def behave(stream: Any) -> None:
        side = Side(Offer(Code(7, WRONG_WORDS), "sapo://join/evil"))
        await write_frame(stream, encode_answer(Answer.PAIRED))
        await write_frame(stream, side.hello)
        guesses.append(await read_frame(stream, GUESS_BYTES))
        # Whatever it sends now was not sealed by somebody who knows the code.
        await write_frame(stream, b"z" * 90)

    async with place(behave) as one, place(behave) as two:
        await fails(WRONG, Code(7, ("guitar", "aardvark")), one, two)
        assert len(guesses) == 1


@fails_without("swarm/codes/accepting.py", "read_frame(stream, HELLO_BYTES)", "read_frame(stream, 2**31)")
@fails_without("swarm/codes/accepting.py", "read_frame(stream, MAX_SEALED_BYTES)", "read_frame(stream, 2**31)")
@pytest.mark.parametrize("bytes_of_hello", [HELLO_BYTES + 1, HELLO_BYTES])
@in_trio()
async def test_a_message_of_a_place_is_bounded_before_it_is_read(bytes_of_hello: int) -> None:
    """What is too long is not even looked at: a hello costs no guess, and what comes for the invite breaks off."""

    async def behave(stream: Any) -> None:
        hello = Side(Offer(Code(7, WRONG_WORDS), LINE)).hello
        await write_frame(stream, encode_answer(Answer.PAIRED))
        await write_frame(stream, hello.ljust(bytes_of_hello))
        with contextlib.suppress(*LOST):
            await read_frame(stream, GUESS_BYTES)
            await write_frame(stream, bytes(MAX_SEALED_BYTES + 1))

    async with place(behave) as one:
        await fails(NOBODY if bytes_of_hello > HELLO_BYTES else BROKEN, Code(7, WRONG_WORDS), one)


@fails_without("swarm/codes/offering.py", "read_frame(stream, GUESS_BYTES)", "read_frame(stream, 2**31)")
@in_trio()
async def test_a_guess_is_bounded_before_it_is_read() -> None:
    async def behave(stream: Any) -> None:
        await write_frame(stream, encode_answer(Answer.WAITING))
        await write_frame(stream, encode_answer(Answer.PAIRED))
        await read_frame(stream, HELLO_BYTES)
        await write_frame(stream, bytes(GUESS_BYTES + 1))

    async with place(behave) as one, trio.open_nursery() as nursery:
        assert await Inviter(nursery, one, seconds=1.0).ends(UNUSED)


@fails_without("swarm/codes/offering.py", "places[:MAX_PLACES]", "places")
@in_trio()
async def test_an_inviter_waits_at_four_places(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    async def reach(host: object, place: Address) -> None:
        await trio.lowlevel.checkpoint()
        tried.append(place.host)

    monkeypatch.setattr(offering, "reach", reach)
    async with trio.open_nursery() as nursery:
        await Inviter(nursery, *(parse_place(f"place{number}") for number in range(9)), seconds=0.1).ends(UNUSED)
    assert set(tried) == {f"place{number}" for number in range(4)}


@fails_without("swarm/finding/mdns.py", " and look().may_announce(address):", ":")
@fails_without("swarm/finding/mdns.py", "len(seen) < MAX_NEARBY and ")
@fails_without("swarm/codes/accepting.py", "trio.move_on_after(seconds) as", "trio.move_on_after(1e6) as")
@in_trio()
async def test_few_addresses_of_the_local_network_are_tried_and_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device announces that somebody waits under the number at fifty addresses, and elsewhere."""
    tried: list[Address] = []

    async def announce(announcement: object, look: object, found: Callable[[Address], None], tally: object) -> None:
        found(direct_address("9.9.9.9", 4001, MEMBER.peer_id))
        found(Address("ip4", "127.0.0.1", 4001, MEMBER.peer_id, relay=MEMBER.peer_id))
        for number in range(100):
            found(direct_address(f"127.0.0.{number % 50}", 4001, MEMBER.peer_id))
        await trio.sleep_forever()

    async def reach(host: object, place: Address) -> None:
        await trio.lowlevel.checkpoint()
        tried.append(place)

    monkeypatch.setattr(mdns, "run_mdns", announce)
    monkeypatch.setattr(accepting, "reach", reach)
    with trio.fail_after(8), pytest.raises(SwarmError, match="nobody on this local network"):
        await accept_invite(Code(7, WRONG_WORDS), (), (), Ways("loopback"), seconds=0.3)
    assert {place.host for place in tried} == {f"127.0.0.{number}" for number in range(16)}
    assert len(tried) == 16


@fails_without("swarm/codes/accepting.py", "trio.fail_after(HELLO_SECONDS)", "trio.fail_after(1e6)")
@in_trio()
async def test_a_silent_place_costs_no_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "HELLO_SECONDS", 0.2)
    async with place(say_nothing) as silent, meanwhile() as nursery:
        inviter = Inviter(nursery)
        code = await inviter.code()
        with trio.fail_after(8):
            await fails(NOBODY, code, silent)
        assert await accept(code, silent, inviter.own) == LINE


@in_trio()
async def test_a_place_that_guesses_gets_one_guess_from_an_inviter() -> None:
    """It answers the inviter's hello with a guess, at once at two places: one is looked at."""
    answers: list[bytes] = []

    async def behave(stream: Any) -> None:
        await write_frame(stream, encode_answer(Answer.WAITING))
        await write_frame(stream, encode_answer(Answer.PAIRED))
        await write_frame(stream, Joiner(Code(7, WRONG_WORDS)).guess(await read_frame(stream, HELLO_BYTES)))
        with contextlib.suppress(Exception):
            answers.append(await read_frame(stream, 4096))

    async with place(behave) as one, place(behave) as two, trio.open_nursery() as nursery:
        assert await Inviter(nursery, one, two).ends(SPOILT)
    assert answers == [b""]


@in_trio()
async def test_a_number_that_one_place_has_given_away_is_used_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter([7, 7, 8])
    monkeypatch.setattr(offering, "random_number", lambda: next(numbers))
    async with place() as one, place() as two, trio.open_nursery() as nursery:
        first = Inviter(nursery, one)
        await first.code()
        second = Inviter(nursery, two, one)
        assert (await first.code()).number == 7 and (await second.code()).number == 8
        assert second.places == {one, two}
        assert await accept(await second.code(), two) == LINE
        assert await accept(await first.code(), one) == LINE


@pytest.mark.parametrize("psk", [None, b"k" * 32])
def test_members_of_open_swarms_are_meeting_places(psk: bytes | None) -> None:
    """To a private one, only members can connect; there is nothing to ask for."""

    async def claim(address: Address) -> Answer:
        async with visiting_host(psk) as host:
            assert await open_way(host, address)
            stream, answer = await ask_place(host, address.peer_id, Claim(7, False))
            await stream.close()
            return answer

    with contextlib.closing(make_member(psk=psk).start()) as member:
        address = parse_address(wait_until(lambda: member.status().addresses)[0])
        if psk is None:
            assert trio.run(claim, address) is Answer.NOBODY
        else:
            with pytest.raises(BaseExceptionGroup) as raised:
                trio.run(claim, address)
            assert isinstance(innermost(raised.value), LOST)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("relay.example.org", "relay.example.org", 4001), ("relay.example.org:443", "relay.example.org", 443),
        ("192.0.2.1:9000", "192.0.2.1", 9000), ("[2001:db8::1]:9000", "2001:db8::1", 9000),
        ("[2001:db8::1]", "2001:db8::1", 4001),
    ],
)  # fmt: skip
def test_places_are_read_as_people_write_them(text: str, host: str, port: int) -> None:
    place = parse_place(text)
    assert (place.host, place.port, place.peer_id) == (host, port, "")


@pytest.mark.parametrize(
    "text", ["", "a b", "host:0", "host:65536", "host:x", "/ip4/192.0.2.1/tcp/1", "http://host", "\x1b"]
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_place(text)
    assert "\x1b" not in str(raised.value)
