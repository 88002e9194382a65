"""The joiner's side of a code: finding who waits under its number, and taking the invite."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio
from libp2p.abc import IHost, INetStream

from sapo_edge.swarm.addresses import Address, find_local_networks
from sapo_edge.swarm.codes.claim import Answer, Claim, number_tag
from sapo_edge.swarm.codes.code import Code
from sapo_edge.swarm.codes.elsewhere import meet_elsewhere
from sapo_edge.swarm.codes.handover import HELLO_BYTES, MAX_SEALED_BYTES, Joiner, WrongCodeError
from sapo_edge.swarm.codes.meeting_place import LOST, MeetingPlace, ask_place
from sapo_edge.swarm.codes.offering import EXCHANGE_SECONDS, linger
from sapo_edge.swarm.codes.reaching import Ways, reach
from sapo_edge.swarm.finding.mdns import visit_nearby
from sapo_edge.swarm.finding.visiting import visiting_host
from sapo_edge.swarm.host.hardening import quietly
from sapo_edge.swarm.host.requests import read_frame, write_frame
from sapo_edge.swarm.status import TROUBLES
from sapo_edge.swarm.tally import Tally
from sapo_edge.transport import SwarmError

LOOK_SECONDS = 60.0
"""Seconds for finding the other side."""
HELLO_SECONDS = 5.0
"""Seconds for the other side's first message; who stays silent costs no guess."""

_WAITING = "check that the other side still waits"


async def accept_invite(
    code: Code, named: Sequence[Address], known: Sequence[Address], ways: Ways, seconds: float = LOOK_SECONDS
) -> str:
    """The invite that waits under a code.

    Args:
        code: one guess is made for it, at the first place where somebody waits under its number.
        named: meeting places that the user named; nobody else is asked if there are any.

    Raises:
        SwarmError: if nobody is found, or the exchange brings no invite.
    """
    elsewhere = None if named else ways.entry
    async with visiting_host(None, None if elsewhere is None else ways.listen) as host:
        search = _Search(host, code, bool(named))
        look = partial(find_local_networks, ways.listen)
        with trio.move_on_after(seconds) as search.scope:
            async with trio.open_nursery() as nursery:
                for place in named or known:
                    nursery.start_soon(search.try_place, place)
                if ways.mdns and not named:
                    tag, own_id = number_tag(code.number), str(host.get_id())
                    nursery.start_soon(visit_nearby, tag, own_id, look, search.try_place)
                if elsewhere is not None:
                    own = MeetingPlace(host, Tally(), slots=0)
                    own.keep(Claim(code.number, True), search.meet)
                    own.start()
                    claim, go = Claim(code.number, False), search.try_place
                    nursery.start_soon(meet_elsewhere, host, claim, elsewhere, look, ways.map_port, go, go)
    if search.invite is not None:
        return search.invite
    if search.failure is not None:
        raise search.failure
    if named:
        raise SwarmError("no meeting place answers at that address", f"{_WAITING}, and compare the address")
    where = "on this local network" if ways.mdns else "at the relays that are known here (the setting mdns is off)"
    failure = f"nobody {where} offers an invite under the number {code.number}"
    remedy = f"{_WAITING}; from another network, add --at and an address that it shows"
    if elsewhere is not None:
        nobody = "nobody is found elsewhere", "let one of your routers forward a port"
        what, other = TROUBLES.get(elsewhere.trouble, nobody)
        failure, remedy = f"{failure}, and {what}", f"{remedy}, or {other}"
    raise SwarmError(failure, remedy)


class _Search:
    """Places that are tried for one code. `failure` says how far it came instead of an invite, and `scope` ends all.

    That nobody waits at a place says something only of one that the user named (`is_named`).
    """

    scope: trio.CancelScope

    def __init__(self, host: IHost, code: Code, is_named: bool) -> None:
        self._host, self._code, self._is_named = host, code, is_named
        self._joiner = Joiner(code)
        self._one_at_a_time = trio.Lock()
        self.invite: str | None = None
        self.failure: SwarmError | None = None

    async def try_place(self, place: Address) -> None:
        """Ask for the number at a place, and take the invite if somebody waits there."""
        address = await reach(self._host, place)
        if address is None:
            return
        try:
            stream, answer = await ask_place(self._host, address.peer_id, Claim(self._code.number, False))
        except LOST:
            return
        if self.failure is None and self._is_named:
            self.failure = SwarmError(
                f"nobody waits under the number {self._code.number} there: the code was used, has ended, or is another"
                " one",
                f"{_WAITING}; a code works once",
            )
        if answer is Answer.PAIRED:
            await self.meet(stream)
        await quietly(stream.close)

    async def meet(self, stream: INetStream) -> None:
        """Take the invite on a stream to who waits, unless a guess was made meanwhile."""
        try:
            with trio.fail_after(HELLO_SECONDS):
                hello = await read_frame(stream, HELLO_BYTES)
        except LOST:
            return
        # Two exchanges at a time would be two guesses.
        async with self._one_at_a_time:
            if not self.scope.cancel_called:
                # An exchange that began may end, even if the time for finding others is over.
                self.scope.deadline = max(self.scope.deadline, trio.current_time() + EXCHANGE_SECONDS)
                await self._exchange(stream, hello)

    async def _exchange(self, stream: INetStream, hello: bytes) -> None:
        try:
            with trio.fail_after(EXCHANGE_SECONDS):
                guess = self._joiner.guess(hello)
                self.failure = SwarmError(
                    "the connection broke; the code may be used up", "ask the other side what it shows"
                )
                await write_frame(stream, guess)
                self.invite = self._joiner.open(await read_frame(stream, MAX_SEALED_BYTES))
                await write_frame(stream, self._joiner.receipt)
                await linger(stream)
        except WrongCodeError:
            self.failure = SwarmError(
                "the words are wrong, or somebody interfered; the code is used up", "ask the other side for a new one"
            )
        except LOST:
            pass
        self.scope.cancel()
