"""The inviter's side of a code: waiting at meeting places, and at its own port, for the one who was told the code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial

import trio
from libp2p.abc import IHost, INetStream
from libp2p.peer.id import ID

from sapo_edge.swarm.addresses import Address, direct_address, find_local_networks
from sapo_edge.swarm.codes.claim import Answer, Claim, number_tag
from sapo_edge.swarm.codes.code import Code, random_number, random_words
from sapo_edge.swarm.codes.elsewhere import meet_elsewhere
from sapo_edge.swarm.codes.handover import GUESS_BYTES, TAG_BYTES, Inviter, Offer, SpentError, WrongCodeError
from sapo_edge.swarm.codes.meeting_place import ASK_SECONDS, LOST, MeetingPlace, ask_place, read_answer
from sapo_edge.swarm.codes.reaching import Ways, reach
from sapo_edge.swarm.finding.circuit import FAILED, open_way
from sapo_edge.swarm.finding.mdns import Announcement, run_mdns
from sapo_edge.swarm.finding.visiting import visiting_host
from sapo_edge.swarm.host.hardening import quietly
from sapo_edge.swarm.host.host import listen_port
from sapo_edge.swarm.host.requests import read_frame, write_frame
from sapo_edge.swarm.tally import Tally
from sapo_edge.transport import SwarmError

OFFER_SECONDS = 600.0
"""Seconds for which a code is valid."""
EXCHANGE_SECONDS = 20.0
"""Seconds for the messages with one joiner, or of one inviter."""
LINGER_SECONDS = 2.0
"""Seconds that the last message has to arrive before the socket closes."""
AGAIN_SECONDS = 5.0
"""Seconds until a meeting place is asked again after the connection to it was lost; see `meeting_place.RATE`."""
MAX_PLACES = 4
"""Most meeting places at which an inviter waits."""
NUMBERS_TRIED = 8
"""Numbers that are tried before an inviter waits at fewer places: a busy one may have given them away."""

_AGAIN = "run the command again for a new one"

Ready = Callable[[Code, Sequence[Address], Sequence[Address], bool], None]
"""Called with a code that can be passed on now, the addresses of the inviter's own meeting place, which only its
network reaches, those of the other places that answered, each by its best name for others, and whether the code alone
leads to the inviter from anywhere."""


async def offer_invite(
    line: str, places: Sequence[Sequence[Address]], ready: Ready, ways: Ways, seconds: float = OFFER_SECONDS
) -> None:
    """Offer an invite under a new code, until somebody has it.

    Args:
        places: meeting places to try, each by its names, the best one for others first.

    Raises:
        SwarmError: if one wrong guess was made, if nobody came, or if it is not sure that the invite arrived.
    """
    async with visiting_host(None, ways.listen) as host:
        reached = await _reach(host, places)
        number, claims = await _claim_number(host, list(reached))
        code = Code(number, random_words())
        desk = _Desk(host, Offer(code, line))
        own = MeetingPlace(host, Tally(), slots=0)
        own.keep(Claim(number, False), desk.meet)
        own.start()
        look = partial(find_local_networks, ways.listen)
        port, own_id = listen_port(host), str(host.get_id())
        addresses = [direct_address(ip, port, own_id) for ip in look().listen_addresses]
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                is_announced = False
                if ways.entry is not None:
                    is_announced = await nursery.start(
                        meet_elsewhere, host, desk.claim, ways.entry, look, ways.map_port, desk.visit, desk.stay
                    )
                others = [name for peer_id, (name, _) in reached.items() if peer_id in claims]
                ready(code, addresses, others, is_announced)
                if ways.mdns:
                    announcement = Announcement(number_tag(number), own_id, port)
                    nursery.start_soon(run_mdns, announcement, look, lambda address: None, Tally())
                for peer_id, stream in claims.items():
                    nursery.start_soon(desk.wait_at, reached[peer_id][1], stream)
                await desk.settled.wait()
                nursery.cancel_scope.cancel()
    if not desk.settled.is_set():
        raise SwarmError(f"nobody used the code within {seconds / 60:.0f} minutes", _AGAIN)
    if desk.failure is not None:
        raise desk.failure


class _Desk:
    """Hands an offered invite over, on whichever stream the first guess comes.

    It is settled once a guess was answered; `failure` says why the other side may not have the invite then.
    """

    def __init__(self, host: IHost, offer: Offer) -> None:
        self._host, self._offer = host, offer
        self.claim = Claim(offer.code.number, True)
        self.settled = trio.Event()
        self.failure: SwarmError | None = None

    async def meet(self, stream: INetStream) -> None:
        """One exchange with who asked for the number. Who leaves before a guess leaves the code as it is."""
        inviter = Inviter(self._offer)
        with contextlib.suppress(*LOST), trio.fail_after(EXCHANGE_SECONDS):
            await write_frame(stream, inviter.hello)
            guess = await read_frame(stream, GUESS_BYTES)
            with contextlib.suppress(SpentError):
                await self._answer(stream, inviter, guess)

    async def _answer(self, stream: INetStream, inviter: Inviter, guess: bytes) -> None:
        try:
            sealed = inviter.answer(guess)
        except WrongCodeError:
            self.failure = SwarmError("somebody gave a wrong code, so this one is used up", _AGAIN)
            sealed = b""
        else:
            self.failure = SwarmError(
                "somebody used the code, and the connection broke before it was sure that the invite arrived",
                f"ask the other side; if it has none, {_AGAIN}",
            )
        try:
            await write_frame(stream, sealed)
            if not sealed:
                await linger(stream)
            elif inviter.is_receipt(await read_frame(stream, TAG_BYTES)):
                self.failure = None
        finally:
            self.settled.set()

    async def visit(self, joiner: Address) -> None:
        """Meet a joiner at its own port."""
        if not await open_way(self._host, joiner):
            return
        with contextlib.suppress(*LOST):
            stream, answer = await ask_place(self._host, joiner.peer_id, self.claim)
            try:
                with trio.fail_after(ASK_SECONDS):
                    is_there = answer is Answer.WAITING and await read_answer(stream) is Answer.PAIRED
                if is_there:
                    await self.meet(stream)
            finally:
                await quietly(stream.close)

    async def stay(self, volunteer: Address) -> None:
        """Wait at a volunteer, if it gives the number."""
        if await open_way(self._host, volunteer):
            with contextlib.suppress(*LOST):
                stream, answer = await ask_place(self._host, volunteer.peer_id, self.claim)
                if answer is Answer.WAITING:
                    await self.wait_at(volunteer, stream)

    async def wait_at(self, place: Address, stream: INetStream) -> None:
        """Meet whoever asks for the number at a place; after each who left without a guess, wait for the next one."""
        waits = True
        while True:
            with contextlib.suppress(*LOST):
                if waits and await read_answer(stream) is Answer.PAIRED:
                    await self.meet(stream)
            await quietly(stream.close)
            waits = False
            await trio.sleep(AGAIN_SECONDS)
            with contextlib.suppress(*LOST):
                # The host itself dials nobody again.
                if not self._host.get_network().get_connections(ID.from_string(place.peer_id)):
                    await open_way(self._host, place)
                stream, answer = await ask_place(self._host, place.peer_id, self.claim)
                waits = answer is Answer.WAITING


async def linger(stream: INetStream) -> None:
    """Wait until the other end has read everything and closes."""
    with trio.move_on_after(LINGER_SECONDS), contextlib.suppress(*FAILED):
        await stream.read(1)


async def _reach(host: IHost, places: Sequence[Sequence[Address]]) -> dict[str, tuple[Address, Address]]:
    """Connect to the first places; returns the best name of each that answers, and where it does, by peer id."""
    reached: dict[str, tuple[Address, Address]] = {}

    async def try_place(names: Sequence[Address]) -> None:
        # The last one is the nearest.
        for name in reversed(names):
            if (address := await reach(host, name)) is not None:
                reached.setdefault(address.peer_id, (names[0], address))
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
        number, is_taken = random_number(), False
        claims: dict[str, INetStream] = {}
        for peer_id in peer_ids:
            with contextlib.suppress(*LOST):
                stream, answer = await ask_place(host, peer_id, Claim(number, True))
                if answer is Answer.WAITING:
                    claims[peer_id] = stream
                else:
                    is_taken = is_taken or answer is Answer.TAKEN
                    await quietly(stream.reset)
        if not is_taken or not tries_left:
            break
        for stream in claims.values():
            await quietly(stream.reset)
    return number, claims
