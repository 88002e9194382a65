"""Codes between networks that share nothing: what is announced in the DHT, and who takes the invite from whom."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import trio
from trio.testing import memory_stream_pair

from sapo_edge.swarm.addresses import Address, LocalNetworks, direct_address
from sapo_edge.swarm.codes import accepting, elsewhere, offering
from sapo_edge.swarm.codes.accepting import accept_invite
from sapo_edge.swarm.codes.claim import Claim, number_tag
from sapo_edge.swarm.codes.code import Code
from sapo_edge.swarm.codes.elsewhere import meet_elsewhere, number_key
from sapo_edge.swarm.codes.handover import Inviter, Offer
from sapo_edge.swarm.codes.meeting_place import ask_place, read_answer
from sapo_edge.swarm.codes.reaching import Ways
from sapo_edge.swarm.finding.circuit import open_way
from sapo_edge.swarm.finding.visiting import visiting_host
from sapo_edge.swarm.host.host import listen_port
from sapo_edge.swarm.host.requests import write_frame
from sapo_edge.swarm.rendezvous.lookup import Entry
from sapo_edge.swarm.rendezvous.rendezvous import Topic, volunteer_keys
from tests.defences.defence import fails_without
from tests.swarm.codes.test_codes import GIVEN, LINE, place, say_nothing
from tests.swarm.codes.test_codes import Inviter as Inviting
from tests.swarm.codes.test_meeting_place import Stream
from tests.swarm.loop import in_trio, meanwhile

CODE = Code(7, ("guitar", "revolver"))


@fails_without("swarm/codes/elsewhere.py", " if is_reachable() or versions() else 0")
@pytest.mark.parametrize(
    ("forwarded", "own", "announced", "is_reachable"),
    [
        ("5.5.5.5", "192.168.1.2", 40001, True), ("", "192.168.1.2", 0, False), (None, "192.168.1.2", 0, False),
        (None, "9.9.9.9", 4001, True), (None, "2a00::7", 4001, False),
    ],
    ids=["router", "provider's NAT", "nothing", "public IPv4", "public IPv6"],
)  # fmt: skip
@pytest.mark.parametrize("waits", [True, False])
@in_trio()
async def test_a_side_that_can_be_reached_announces_its_port_under_the_number_and_looks_up_the_other(
    waits: bool, forwarded: str | None, own: str, announced: int, is_reachable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics: list[Topic] = []

    async def look_up(entry: Entry, asked: Sequence[Topic]) -> None:
        topics.extend(asked)

    def router(port: int, *_: object) -> SimpleNamespace:
        answer = None if forwarded is None else SimpleNamespace(port=40001, ip=forwarded)
        mapping = SimpleNamespace(current=answer, state="asking", port=40001 if answer else port)
        mapping.run = AsyncMock(side_effect=lambda: setattr(mapping, "state", "answered"))
        return mapping

    monkeypatch.setattr(elsewhere, "Mapping", router)
    monkeypatch.setattr(elsewhere, "look_up", look_up)
    monkeypatch.setattr(elsewhere, "listen_port", lambda host: 4001)
    monkeypatch.setattr(elsewhere, "PATIENCE", 0.0)
    host: Any = None
    networks = LocalNetworks((own,), (), loopback=False)

    async def visit(address: Address) -> None:
        raise AssertionError

    async with trio.open_nursery() as nursery:
        arguments = (host, Claim(7, waits), Entry(()), lambda: networks, True, visit, visit)
        assert await nursery.start(meet_elsewhere, *arguments) is is_reachable
    asked = [json.loads(line) for topic in topics for line in topic.due(1.0)[0]]
    mine = [{"key": number_key(Claim(7, waits)).hex(), "port": announced}] if announced else []
    other = {"key": number_key(Claim(7, not waits)).hex(), "port": 0}
    volunteers = [{"key": key.hex(), "port": 0} for key in volunteer_keys()]
    assert asked == [*mine, other, *volunteers], "a public address may be behind a firewall"
    assert number_key(Claim(7, True)) == number_tag(7)[:20] != number_key(Claim(7, False)), "as multicast announces it"


@pytest.fixture
def dht(monkeypatch: pytest.MonkeyPatch) -> dict[bool | None, list[Address]]:
    """Addresses that are announced for sides of a code, by whether they wait, and of volunteers; each is tried once."""
    announced: dict[bool | None, list[Address]] = {}

    async def meet(
        host: Any, claim: Claim, entry: object, look: object, map_port: object,
        visit: Callable[[Address], Awaitable[None]], meet_at: Callable[[Address], Awaitable[None]],
        task_status: Any = trio.TASK_STATUS_IGNORED,
    ) -> None:  # fmt: skip
        is_reachable = claim.waits in announced
        if is_reachable:
            announced[claim.waits].append(direct_address("127.0.0.1", listen_port(host), str(host.get_id())))
        task_status.started(is_reachable)
        tried: set[Address] = set()
        async with trio.open_nursery() as nursery:
            for volunteer in announced.get(None, ()):
                nursery.start_soon(meet_at, volunteer)
            while True:
                for address in set(announced.get(not claim.waits, ())) - tried:
                    tried.add(address)
                    nursery.start_soon(visit, address)
                await trio.sleep(0.05)

    for module in (offering, accepting):
        monkeypatch.setattr(module, "meet_elsewhere", meet)
    # On a busy machine, an exchange takes several seconds.
    monkeypatch.setattr(accepting, "HELLO_SECONDS", 15.0)
    return announced


async def accept(code: Code) -> str:
    return await accept_invite(code, (), (), Ways("loopback", mdns=False, entry=Entry(())), seconds=20)


@pytest.mark.parametrize("who", [True, False, None], ids=["the inviter", "the joiner", "a volunteer"])
@in_trio()
async def test_one_that_can_be_reached_is_enough(who: bool | None, dht: dict[bool | None, list[Address]]) -> None:
    async with place() as volunteer, trio.open_nursery() as nursery:
        dht[who] = [volunteer] if who is None else []
        inviter = Inviting(nursery, seconds=20, entry=Entry(()))
        assert await accept(await inviter.code()) == LINE
        assert inviter.is_announced is (who is True) and await inviter.ends(GIVEN)


@fails_without(
    "swarm/codes/accepting.py",
    "with trio.fail_after(HELLO_SECONDS):",
    "async with self._one_at_a_time:\n             with trio.fail_after(HELLO_SECONDS):",
)
@in_trio()
async def test_a_silent_inviter_holds_no_other_one_up(dht: dict[bool | None, list[Address]]) -> None:
    """Strangers announce themselves under the number and say nothing: each keeps the joiner for seconds."""
    async with contextlib.AsyncExitStack() as stack:
        dht[True] = [await stack.enter_async_context(place(say_nothing)) for _ in range(4)]
        dht[False] = []
        host = await stack.enter_async_context(visiting_host(None))

        async def dial_the_joiner() -> None:
            while not dht[False]:
                await trio.sleep(0.05)
            (joiner,) = dht[False]
            assert await open_way(host, joiner)
            stream, _ = await ask_place(host, joiner.peer_id, Claim(7, True))
            await read_answer(stream)
            await offering._Desk(host, Offer(CODE, LINE)).meet(stream)

        with trio.fail_after(accepting.HELLO_SECONDS):
            async with meanwhile(dial_the_joiner):
                assert await accept(CODE) == LINE


@fails_without("swarm/codes/accepting.py", "if not self.scope.cancel_called:", "if True:")
@in_trio(0)
async def test_a_joiner_that_has_guessed_guesses_at_nobody_who_comes_later() -> None:
    host: Any = None
    search = accepting._Search(SimpleNamespace(host=host), CODE, is_named=False)
    ours, theirs = memory_stream_pair()
    stream: Any = Stream(theirs, None)
    with trio.CancelScope() as search.scope:
        pass
    search.scope.cancel()
    await write_frame(Stream(ours, None), Inviter(Offer(CODE, LINE)).hello)
    await search.meet(stream)
    with trio.move_on_after(1) as waited:
        await ours.receive_some(1)
    assert waited.cancelled_caught and search.failure is None


@fails_without("swarm/codes/offering.py", "with trio.fail_after(ASK_SECONDS):", "with trio.fail_after(1e6):")
@in_trio()
async def test_an_inviter_leaves_who_only_lets_it_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the DHT names as a joiner may be a meeting place, where nobody comes."""
    monkeypatch.setattr(offering, "ASK_SECONDS", 0.2)
    async with place() as relay, visiting_host(None) as host:
        with trio.fail_after(8):
            await offering._Desk(host, Offer(CODE, LINE)).visit(relay)
