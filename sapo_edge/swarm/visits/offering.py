"""The inviter's side of a code: waiting at meeting places, and at its own port, for the one who was told the code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Literal

import trio
from libp2p.abc import IHost, INetStream

from sapo_edge.swarm.addresses import Address, direct_address, find_local_networks
from sapo_edge.swarm.finding.mdns import Announcement, run_mdns
from sapo_edge.swarm.finding.meeting_place import MeetingPlace
from sapo_edge.swarm.host.hardening import quietly
from sapo_edge.swarm.host.host import listen_port
from sapo_edge.swarm.host.requests import read_frame, write_frame
from sapo_edge.swarm.joining.code import Code, random_number, random_words
from sapo_edge.swarm.joining.handover import (
    GUESS_BYTES,
    TAG_BYTES,
    Inviter,
    Offer,
    SpentError,
    WrongCodeError,
)
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.visits.meeting import visiting_host
from sapo_edge.swarm.visits.places import EXCHANGE_SECONDS, LOST, Place, ask_place, linger, reach
from sapo_edge.swarm.wire.claim import (
    MAX_CLAIM_BYTES,
    Answer,
    Claim,
    decode_answer,
    number_tag,
)

OFFER_SECONDS = 600.0
"""Seconds for which a code is valid."""
AGAIN_SECONDS = 5.0
"""Seconds until a meeting place is asked again after the connection to it was lost; see `meeting_place.RATE`."""
MAX_PLACES = 4
"""Most meeting places at which an inviter waits."""
NUMBERS_TRIED = 8
"""Numbers that are tried before an inviter waits at fewer places: a busy one may have given them away."""


class Outcome(Enum):
    """What became of a code."""

    GIVEN = auto()
    """The other side has the invite."""
    UNCONFIRMED = auto()
    """The other side knew the code, but did not say that the invite arrived."""
    WRONG = auto()
    """Somebody gave a wrong code."""
    NOBODY = auto()
    """Nobody came in time."""


@dataclass(frozen=True, slots=True)
class Offered:
    """A code that can be passed on now.

    Attributes:
        own: addresses of the inviter's own meeting place, which only its network reaches.
        places: the meeting places that answered, each by its best name for others.
    """

    code: Code
    own: tuple[Address, ...]
    places: tuple[Place | Address, ...]


class Desk:
    """Hands an offered invite over, on whichever stream the first guess comes.

    Attributes:
        settled: set once a guess was answered.
        confirmed: whether the other side said that it has the invite.
    """

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self.settled = trio.Event()
        self.confirmed = False

    async def meet(self, stream: INetStream) -> None:
        """One exchange with who asked for the number. Who leaves before a guess leaves the code as it is."""
        inviter = Inviter(self._offer)
        try:
            with trio.fail_after(EXCHANGE_SECONDS):
                await write_frame(stream, inviter.hello)
                guess = await read_frame(stream, GUESS_BYTES)
                await self._answer(stream, inviter, guess)
        except LOST:
            pass

    async def _answer(self, stream: INetStream, inviter: Inviter, guess: bytes) -> None:
        try:
            sealed = inviter.answer(guess)
        except SpentError:
            return
        except WrongCodeError:
            sealed = b""
        try:
            await write_frame(stream, sealed)
            if sealed:
                self.confirmed = inviter.is_receipt(await read_frame(stream, TAG_BYTES))
            else:
                await linger(stream)
        finally:
            self.settled.set()

    @property
    def outcome(self) -> Outcome:
        """What became of the code so far."""
        if not self._offer.spent:
            return Outcome.NOBODY
        if not self._offer.given:
            return Outcome.WRONG
        return Outcome.GIVEN if self.confirmed else Outcome.UNCONFIRMED


async def offer_invite(
    line: str,
    places: Sequence[Sequence[Place | Address]],
    ready: Callable[[Offered], None],
    *,
    listen: Literal["all", "loopback"] = "all",
    mdns: bool = True,
    seconds: float = OFFER_SECONDS,
) -> Outcome:
    """Offer an invite under a new code, until one guess was made.

    Args:
        line: the invite.
        places: meeting places to try, each by its names, the best one for others first.
        ready: called with the code once somebody may use it.
        listen: on which interfaces to be a meeting place too.
        mdns: whether to announce that on the local network.
        seconds: for which the code is valid.
    """
    tally = Tally(lambda event: None)
    async with visiting_host(None, listen) as host:
        reached = await _reach(host, places)
        number, claims = await _claim_number(host, list(reached))
        code = Code(number, random_words())
        offer = Offer(code, line)
        desk = Desk(offer)
        own = MeetingPlace(host, tally, slots=0)
        own.keep(number, desk.meet)
        own.start()
        look = partial(find_local_networks, listen)
        port, own_id = listen_port(host), str(host.get_id())
        addresses = tuple(direct_address(ip, port, own_id) for ip in look().listen_addresses)
        ready(Offered(code, addresses, tuple(name for peer_id, name in reached.items() if peer_id in claims)))
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                if mdns:
                    announcement = Announcement(number_tag(number), own_id, port)
                    nursery.start_soon(run_mdns, announcement, look, lambda address: None, tally)
                for peer_id, stream in claims.items():
                    nursery.start_soon(_wait_at, host, peer_id, stream, Claim(number, True), desk)
                await desk.settled.wait()
                nursery.cancel_scope.cancel()
    return desk.outcome


async def _reach(host: IHost, places: Sequence[Sequence[Place | Address]]) -> dict[str, Place | Address]:
    """Connect to the first places; returns the best name of each that answers, by peer id."""
    reached: dict[str, Place | Address] = {}

    async def try_place(names: Sequence[Place | Address]) -> None:
        # The last one is the nearest.
        for name in reversed(names):
            if (address := await reach(host, name)) is not None:
                reached.setdefault(address.peer_id, names[0])
                return

    async with trio.open_nursery() as nursery:
        for names in places[:MAX_PLACES]:
            nursery.start_soon(try_place, names)
    return reached


async def _claim_number(host: IHost, peer_ids: Sequence[str]) -> tuple[int, dict[str, INetStream]]:
    """A number that no reached place has given away, and the stream at each place where it was claimed.

    A place that gives no number, or none within `NUMBERS_TRIED`, is left out.
    """
    for tries_left in reversed(range(NUMBERS_TRIED)):
        number = random_number()
        claims: dict[str, INetStream] = {}
        is_taken = False
        for peer_id in peer_ids:
            try:
                stream, answer = await ask_place(host, peer_id, Claim(number, True))
            except LOST:
                continue
            if answer is Answer.WAITING:
                claims[peer_id] = stream
                continue
            is_taken = is_taken or answer is Answer.TAKEN
            await quietly(stream.reset)
        if not is_taken or not tries_left:
            break
        for stream in claims.values():
            await quietly(stream.reset)
    return number, claims


async def _wait_at(host: IHost, peer_id: str, stream: INetStream, claim: Claim, desk: Desk) -> None:
    """Meet whoever asks for the number at a place; after each who left without a guess, wait for the next one."""
    while True:
        try:
            if decode_answer(await read_frame(stream, MAX_CLAIM_BYTES)) is Answer.PAIRED:
                await desk.meet(stream)
        except LOST:
            pass
        await quietly(stream.close)
        while True:
            await trio.sleep(AGAIN_SECONDS)
            try:
                stream, answer = await ask_place(host, peer_id, claim)
            except LOST:
                continue
            if answer is Answer.WAITING:
                break
            await quietly(stream.close)
