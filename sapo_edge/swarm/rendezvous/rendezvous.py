"""Looks up in the Mainline DHT who else is in the swarm, and announces this node there if others reach it.

A DHT node names addresses, and anybody may announce one, so what it says is less than a claim: an address counts once
somebody there has proven an identity, and then as any other peer's that a stranger named.
"""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import trio

from sapo_edge.children import python_command
from sapo_edge.fields import check_integer, check_list, check_map, check_text
from sapo_edge.recent import Recent
from sapo_edge.state.durable import read_bounded, write_atomically
from sapo_edge.swarm.addresses import neighbourhood
from sapo_edge.swarm.rendezvous.program import MAX_NODES, NO_LIBRARY
from sapo_edge.swarm.status import ALONE_SECONDS, TROUBLES, LastSeen, Search, Trouble, describe_search
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.wire.exchange import swarm_tag

CONTACTS = (("router.bittorrent.com", 6881), ("dht.transmissionbt.com", 6881), ("dht.libtorrent.org", 25401))
"""Nodes that others run for the first contact; those that answered before are asked first."""
MAX_LINE = 8192
"""Longest line of the program that is read."""
MAX_ANSWERS, MAX_OF_ANSWER = 16, 16
"""Answers of DHT nodes that are kept until they are tried, two lookups' worth, and addresses of each."""
MAX_PLACES = MAX_ANSWERS * MAX_OF_ANSWER
MAX_OF_NETWORK = 2
"""Most of them in one network, see `addresses.neighbourhood`."""
MAX_FILE_BYTES = 4096
"""Largest file of them that is read."""
LOOK_SECONDS, LOOK_SECONDS_LONGEST = 10.0, 900.0
"""Seconds until a topic is looked up again while something is lacking: at first, doubled each time, and at most."""
ANNOUNCE_SECONDS = 1200.0
"""Seconds until an announcement is renewed; DHT nodes keep one for half an hour."""
TRY_SECONDS, TRY_SECONDS_ALONE = 2.0, 1.0
"""Least time between two tries of addresses: with too few, and with nobody."""
MAX_TRIES = 6
"""Tries at a time, or addresses at which nobody answers would take longer than that."""
AGAIN_SECONDS = 600.0
"""Least time between two tries of one address."""
RESTART_SECONDS, LONGEST_RESTART = 10.0, 3600.0
"""Time until a program that ended is started again: at first, and at most."""
OVERLAP = 3600.0
"""Seconds around midnight (UTC) in which the keys of two days count, as clocks differ."""

Place = tuple[str, int]
"""IP address and TCP port."""


def keys_at(swarm: bytes, psk: bytes | None, now: float, purpose: str = "rendezvous") -> list[bytes]:
    """The keys of a swarm at a time (Unix seconds), 20 bytes each: one a day, so that nobody follows it for weeks.

    Args:
        swarm: the manifest's digest; none for what all swarms share.
        psk: of a private swarm, whose keys only members know.
        purpose: what is looked up.
    """
    days = dict.fromkeys(int((now + shift) // 86400) for shift in (-OVERLAP, OVERLAP))
    return [swarm_tag(swarm, psk, f"{purpose} {day}")[:20] for day in days]


def volunteer_keys() -> list[bytes]:
    """The keys under which those are announced now that carry connections for strangers, see `volunteers.py`."""
    return keys_at(b"", None, time.time(), "volunteers")


def swarms_keys() -> list[bytes]:
    """The keys under which those are announced now that are in open swarms of manifests that do not ship."""
    return keys_at(b"", None, time.time(), "swarms")


@dataclass(frozen=True, slots=True)
class Found:
    """A line of the program: what the DHT names under a key, or if that is empty, its nodes or why there are none."""

    key: bytes
    places: tuple[Place, ...]
    trouble: Trouble = ""


def read_line(line: bytes) -> Found:
    """Check a line of the program; a ValueError if it is not as `program.py` says."""
    fields = check_map("line", json.loads(line))
    key = bytes.fromhex(check_text("key", fields.get("key", "")))
    rows = check_list("places", fields.get("peers" if key else "nodes"))
    pairs = [check_list("place", row) for row in rows]
    places = [(check_text("ip", ip), check_integer("port", port, 1, 65535)) for ip, port in pairs]
    for ip, _ in places:
        neighbourhood(ip)
        if "%" in ip:
            raise ValueError("an address of one interface alone can't be dialled")
    trouble = fields.get("trouble", "")
    if trouble not in ("", *TROUBLES):
        raise ValueError("trouble is not known")
    return Found(key, tuple(places), trouble)


class Places:
    """Addresses to try: few of each answer, and each of the last answers in turn by chance. For one thread.

    An answer is what one node of the DHT says. The nodes next to a key can say what they like: in this way the honest
    ones among them are heard as much as the others, whoever says most or last.

    Args:
        clock: monotonic seconds.
        rank: the order in which they are tried, the first one lowest; None for a random one.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        rank: Callable[[Place], Any] | None = None,
    ) -> None:
        self._clock = clock
        rng = rng or random.Random()
        self._choose, self._order = rng.choice, rank or (lambda _: rng.random())
        # With a rank all are one answer.
        self._answers: deque[list[Place]] = deque(maxlen=1 if rank else MAX_ANSWERS)
        self._most = MAX_PLACES if rank else MAX_OF_ANSWER
        self._tried: Recent[Place, float] = Recent(1024)

    def __len__(self) -> int:
        return len(set().union(*self._answers))

    @property
    def found(self) -> set[Place]:
        """Those that wait, and that were tried lately."""
        lately = {place for place, tried in self._tried.items() if self._clock() - tried < AGAIN_SECONDS}
        return lately.union(*self._answers)

    def add(self, answer: Sequence[Place]) -> None:
        """Keep the first places of an answer, a few of each network, but for those that were tried lately."""
        kept: list[Place] = []
        networks: Counter[str] = Counter()
        before = self._answers[0] if self._answers.maxlen == 1 and self._answers else ()
        for place in sorted({*answer, *before}, key=self._order):
            if len(kept) == self._most:
                break
            network = neighbourhood(place[0])
            if networks[network] < MAX_OF_NETWORK and self._may_try(place):
                networks[network] += 1
                kept.append(place)
        self._answers.append(kept[::-1])

    def take(self) -> Place | None:
        """The first place of a random answer; None if none waits."""
        while answers := [answer for answer in self._answers if answer]:
            place = self._choose(answers).pop()
            if self._may_try(place):
                self._tried[place] = self._clock()
                return place
        return None

    def _may_try(self, place: Place) -> bool:
        return self._clock() - self._tried.get(place, -AGAIN_SECONDS) >= AGAIN_SECONDS


async def _nobody(place: Place) -> bool:
    return False


class Topic:
    """What is looked up in the DHT, and under which this node may be announced, such as its swarm.

    Attributes:
        lacks: whether more are wanted, by default never; `alone`: whether there is none yet.
        try_place: connects to whoever answers at a place, and returns whether that is somebody.
        places: found and not tried yet.

    Args:
        keys: what it is called in the DHT now, see `keys_at`.
        announced: the port at which others reach this node; 0 to announce nothing.
        rank: as of `Places`.
        longest: most seconds between two lookups.
    """

    def __init__(
        self,
        keys: Callable[[], list[bytes]],
        announced: Callable[[], int],
        lacks: Callable[[], bool] = lambda: False,
        alone: Callable[[], bool] = lambda: False,
        try_place: Callable[[Place], Awaitable[bool]] = _nobody,
        rank: Callable[[Place], Any] | None = None,
        longest: float = LOOK_SECONDS_LONGEST,
    ) -> None:
        self.keys_now, self.lacks, self.alone, self.try_place = keys, lacks, alone, try_place
        self.places = Places(rank=rank)
        self._port_now, self._longest = announced, longest
        self.forget()

    def forget(self) -> None:
        """Begin again: look it up, and announce this node, at once."""
        self._look = self._announce = 0.0
        self._port, self._pause, self._was_alone = 0, LOOK_SECONDS, True

    def due(self, now: float) -> tuple[list[str], bool]:
        """The program's requests that are due (monotonic seconds), and whether they announce this node."""
        port, is_alone = self._port_now(), self.alone()
        if is_alone and not self._was_alone:
            self._look, self._pause = 0.0, LOOK_SECONDS
        self._was_alone = is_alone
        announces = port > 0 and (port != self._port or now >= self._announce)
        if not announces and not (self.lacks() and now >= self._look):
            return [], False
        self._look = now + self._pause * random.uniform(0.8, 1.2)
        self._pause = min(2 * self._pause, self._longest)
        if announces:
            self._port, self._announce = port, now + ANNOUNCE_SECONDS * random.uniform(0.8, 1.0)
        keys = [key.hex() for key in self.keys_now()]
        return [json.dumps({"key": key, "port": port if announces else 0}) + "\n" for key in keys], announces


class Rendezvous:
    """Runs the program, asks it, and tries what it finds.

    Attributes:
        contacts: host and port of DHT nodes for the first contact, such as `CONTACTS`.
        swarm: the topic of the node's swarm.
        topics: all of them, the swarm's first.
        nodes: DHT nodes that answered, perhaps in an earlier run.
        is_heard: whether one has answered in this run.
        search: for a first member of the swarm; None while one is connected.
        trouble: why the DHT can't be asked.

    Args:
        file: remembers DHT nodes; None to remember none.
        last: the members that the swarm had when it was last found.
        own: places at which others reach this node, which finds itself there.
    """

    def __init__(
        self,
        contacts: Sequence[tuple[str, int]],
        topics: Sequence[Topic],
        tally: Tally,
        file: Path | None = None,
        last: Callable[[], LastSeen | None] = lambda: None,
        own: Callable[[], set[Place]] = set,
    ) -> None:
        self.contacts, self.topics, self.swarm = contacts, tuple(topics), topics[0]
        self._tally, self._file, self._last, self._own = tally, file, last, own
        self.nodes: tuple[Place, ...] = ()
        self.is_heard = False
        self.search: Search | None = None
        self.trouble: Trouble = ""
        self._told = ""

    async def run(self) -> None:
        """Work until cancelled. A program that ends is started again; without libtorrent it ends at once."""
        await self._load()
        pause = RESTART_SECONDS
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            for topic in self.topics:
                nursery.start_soon(self._try_places, topic)
            while True:
                began = time.monotonic()
                code = await self._run_program()
                if code == NO_LIBRARY:
                    self.trouble = "library"
                    self.look(time.time())
                    nursery.cancel_scope.cancel()
                    return
                self._tally.count("rendezvous programs that ended")
                if time.monotonic() - began > LONGEST_RESTART:
                    pause = RESTART_SECONDS
                await trio.sleep(pause * random.uniform(0.8, 1.2))
                pause = min(2 * pause, LONGEST_RESTART)

    async def _run_program(self) -> int:
        """Start the program and use it until it ends; returns its exit code."""
        argument = json.dumps({"contacts": self.contacts, "nodes": self.nodes})
        try:
            process = await trio.lowlevel.open_process(
                command_with(argument), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError:
            return 1
        assert process.stdin is not None and process.stdout is not None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ask, process.stdin)
                await self._read(process.stdout)
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                process.kill()
                await process.wait()
                await process.stdin.aclose()
                await process.stdout.aclose()
            await self._save()
        return process.returncode or 0

    async def _read(self, output: Any) -> None:
        pending = b""
        async for data in output:
            *lines, pending = (pending + data).split(b"\n")
            if len(pending) > MAX_LINE:
                self._tally.count("rendezvous lines that were too long")
                return
            for line in lines:
                try:
                    found = read_line(line)
                except (ValueError, RecursionError):
                    self._tally.count("rendezvous lines that were not valid")
                    return
                if not found.key:
                    # While the machine is offline, those of before are kept.
                    self.nodes, self.trouble = found.places[:MAX_NODES] or self.nodes, found.trouble
                self.is_heard = self.is_heard or bool(found.places)
                for topic in self.topics:
                    if found.key in topic.keys_now():
                        self._tally.count("rendezvous addresses", len(found.places))
                        topic.places.add(found.places)

    async def _follow(self) -> None:
        while True:
            self.look(time.time())
            await trio.sleep(1.0)

    def look(self, now: float) -> None:
        """See how the search for a first member goes (Unix seconds), and tell the owner, each thing once."""
        since, found = self.search.since if self.search else now, len(self.swarm.places.found - self._own())
        search = Search(since, found, self.trouble, self._last())
        is_long, is_alone = now - since >= ALONE_SECONDS, self.swarm.alone()
        # Without the library nobody looks again, when the node is alone later.
        self.search = search if is_alone or self.trouble == "library" else None
        # In the way of who is announced, too.
        stage = self.trouble or (("in vain" if is_long else "found" if found else "begun") if is_alone else "")
        if stage != self._told and stage:
            text = describe_search(asdict(search), now)
            self._tally.notice("warning" if self.trouble else "info", text, f"rendezvous {stage}")
        self._told = stage

    async def _ask(self, link: Any) -> None:
        """Look the topics up, and announce this node, from time to time."""
        for topic in self.topics:
            topic.forget()
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while True:
                now = time.monotonic()
                for topic in self.topics:
                    lines, announces = topic.due(now)
                    if lines:
                        await link.send_all("".join(lines).encode())
                        self._tally.count("rendezvous lookups")
                    if announces:
                        self._tally.count("rendezvous announcements")
                await trio.sleep(1.0)

    async def _try_places(self, topic: Topic) -> None:
        """Try one of a topic's places after the other while something is lacking."""
        limit = trio.CapacityLimiter(MAX_TRIES)

        async def try_one(place: Place) -> None:
            async with limit:
                answered = await topic.try_place(place)
            self._tally.count("rendezvous addresses that answered" if answered else "rendezvous addresses in vain")

        async with trio.open_nursery() as nursery:
            while True:
                if topic.lacks() and limit.available_tokens and (place := topic.places.take()):
                    nursery.start_soon(try_one, place)
                await trio.sleep(TRY_SECONDS_ALONE if topic.alone() else TRY_SECONDS)

    async def _load(self) -> None:
        if self._file is None:
            return
        try:
            data = await trio.to_thread.run_sync(read_bounded, self._file, MAX_FILE_BYTES)
            self.nodes = read_line(data).places[:MAX_NODES]
        except (OSError, ValueError, RecursionError):
            # Like none: the well-known nodes stay.
            self.nodes = ()

    async def _save(self) -> None:
        if self._file is None or not self.nodes:
            return
        data = json.dumps({"nodes": self.nodes}).encode()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 2):
            try:
                await trio.to_thread.run_sync(write_atomically, self._file, data, abandon_on_cancel=True)
            except OSError:
                self._tally.count("rendezvous files that were not written")


def command_with(argument: str) -> list[str]:
    """Start the program."""
    return python_command("-m", "sapo_edge.swarm.rendezvous.program", argument)
