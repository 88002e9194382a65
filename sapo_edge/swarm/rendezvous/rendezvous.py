"""Looks up in the Mainline DHT who else is in the swarm, and announces this node there if others reach it.

A DHT node names addresses, and anybody may announce one, so what it says is less than a claim: an address counts once
somebody there has proven an identity, and then as any other peer's that a stranger named.
"""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from sapo_edge.children import python_command
from sapo_edge.fields import check_integer, check_list, check_map, check_text
from sapo_edge.plain import counted
from sapo_edge.recent import Recent
from sapo_edge.state.durable import read_bounded, write_atomically
from sapo_edge.swarm.addresses import neighbourhood
from sapo_edge.swarm.rendezvous.program import MAX_NODES, NO_LIBRARY
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.wire.exchange import swarm_tag

CONTACTS = (("router.bittorrent.com", 6881), ("dht.transmissionbt.com", 6881), ("dht.libtorrent.org", 25401))
"""Nodes that others run for the first contact; those that answered before are asked first."""
MAX_LINE = 8192
"""Longest line of the program that is read."""
MAX_PLACES = 128
"""Most addresses that are kept until they are tried."""
MAX_OF_NETWORK = 2
"""Most of them in one network, see `addresses.neighbourhood`."""
MAX_FILE_BYTES = 4096
"""Largest file of them that is read."""
LOOK_SECONDS, LOOK_SECONDS_LONGEST, LOOK_SECONDS_CONNECTED = 10.0, 900.0, 3600.0
"""Seconds until the swarm is looked up again: at first while nobody is connected, doubled each time, at most; and while
enough members are."""
ANNOUNCE_SECONDS = 1200.0
"""Seconds until an announcement is renewed; DHT nodes keep one for half an hour."""
TRY_SECONDS = 2.0
"""Least time between two tries of addresses."""
AGAIN_SECONDS = 600.0
"""Least time between two tries of one address."""
RESTART_SECONDS, LONGEST_RESTART = 10.0, 3600.0
"""Time until a program that ended is started again: at first, and at most."""
ALONE_SECONDS = 60.0
"""Time after which a node that found nobody says so."""
OVERLAP = 3600.0
"""Seconds around midnight (UTC) in which the keys of two days count, as clocks differ."""

Place = tuple[str, int]
"""IP address and TCP port."""


def keys_at(swarm: bytes, psk: bytes | None, now: float) -> list[bytes]:
    """The keys of a swarm at a time (Unix seconds), 20 bytes each: one a day, so that nobody follows it for weeks.

    Args:
        swarm: the manifest's digest.
        psk: of a private swarm, whose keys only members know.
    """
    days = dict.fromkeys(int((now + shift) // 86400) for shift in (-OVERLAP, OVERLAP))
    return [swarm_tag(swarm, psk, f"rendezvous {day}")[:20] for day in days]


@dataclass(frozen=True, slots=True)
class Found:
    """A line of the program: addresses that the DHT names under a key, or nodes of the DHT if the key is empty."""

    key: bytes
    places: tuple[Place, ...]


def read_line(line: bytes) -> Found:
    """Check a line of the program.

    Raises:
        ValueError: if it is not as `program.py` says.
    """
    fields = check_map("line", json.loads(line))
    key = bytes.fromhex(check_text("key", fields.get("key", "")))
    rows = check_list("places", fields.get("peers" if key else "nodes"))
    pairs = [check_list("place", row) for row in rows]
    places = [(check_text("ip", ip), check_integer("port", port, 1, 65535)) for ip, port in pairs]
    for ip, _ in places:
        neighbourhood(ip)
    return Found(key, tuple(places))


class Places:
    """Addresses to try, a random part of those that were named. For one thread.

    Attributes:
        waiting: addresses with their networks.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, rng: random.Random | None = None) -> None:
        self._clock = clock
        self._rng = rng or random.Random()
        self.waiting: dict[Place, str] = {}
        self._tried: Recent[Place, float] = Recent(1024)

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, place: Place) -> None:
        """Keep a place to try, unless it was tried lately or its network has enough; a random one gives way."""
        if place in self.waiting or self._clock() - self._tried.get(place, -AGAIN_SECONDS) < AGAIN_SECONDS:
            return
        network = neighbourhood(place[0])
        of_network = [other for other, its in self.waiting.items() if its == network]
        crowd = of_network if len(of_network) >= MAX_OF_NETWORK else list(self.waiting)
        if len(of_network) >= MAX_OF_NETWORK or len(self.waiting) >= MAX_PLACES:
            del self.waiting[self._rng.choice(crowd)]
        self.waiting[place] = network

    def take(self) -> Place | None:
        """A random place; None if none waits."""
        if not self.waiting:
            return None
        place = self._rng.choice(list(self.waiting))
        del self.waiting[place]
        self._tried[place] = self._clock()
        return place


class Rendezvous:
    """Runs the program, asks it, and tries what it finds.

    Attributes:
        contacts: host and port of DHT nodes for the first contact, such as `CONTACTS`.
        nodes: DHT nodes that answered.

    Args:
        keys: those of the swarm now, see `keys_at`.
        announced: the port at which others reach this node; 0 while they don't.
        lacks: whether more members are wanted; `alone`: whether none is connected.
        try_place: connects to whoever answers at a place, and returns whether that is somebody.
        file: remembers DHT nodes; None to remember none.
    """

    def __init__(
        self,
        contacts: Sequence[tuple[str, int]],
        keys: Callable[[], list[bytes]],
        announced: Callable[[], int],
        lacks: Callable[[], bool],
        alone: Callable[[], bool],
        try_place: Callable[[Place], Awaitable[bool]],
        tally: Tally,
        file: Path | None = None,
    ) -> None:
        self.contacts = contacts
        self._keys, self._announced, self._lacks, self._alone = keys, announced, lacks, alone
        self._try_place, self._tally, self._file = try_place, tally, file
        self._places = Places()
        self.nodes: tuple[Place, ...] = ()

    async def run(self) -> None:
        """Work until cancelled. A program that ends is started again; without libtorrent it ends at once."""
        await self._load()
        pause = RESTART_SECONDS
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._try_places)
            while True:
                began = time.monotonic()
                code = await self._run_program()
                if code == NO_LIBRARY:
                    missing = "libtorrent is not installed, so members elsewhere are found by invites only"
                    self._tally.notice("info", f"{missing}: pip install libtorrent", "libtorrent")
                    nursery.cancel_scope.cancel()
                    return
                self._tally.count("rendezvous programs that ended")
                pause = (
                    RESTART_SECONDS if time.monotonic() - began > LONGEST_RESTART else min(2 * pause, LONGEST_RESTART)
                )
                await trio.sleep(pause * random.uniform(0.8, 1.2))

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
                    self.nodes = found.places[:MAX_NODES]
                elif found.key in self._keys():
                    self._take(found.places)

    def _take(self, places: Sequence[Place]) -> None:
        self._tally.count("rendezvous addresses", len(places))
        for place in places:
            self._places.add(place)
        if places and self._alone():
            named = f"others who learn this may be at {counted(len(self._places), 'address', 'addresses')}: dialling"
            self._tally.notice("info", named, "rendezvous found")

    async def _ask(self, link: Any) -> None:
        """Look the swarm up, and announce this node, from time to time."""
        pause, look, announce, began = LOOK_SECONDS, 0.0, 0.0, time.monotonic()
        announced_port = 0
        self._tally.notice("info", "looking for others who learn this", "rendezvous")
        try:
            while True:
                now, port = time.monotonic(), self._announced()
                is_announcing = port > 0 and (port != announced_port or now >= announce)
                if is_announcing or now >= look:
                    for key in self._keys():
                        line = json.dumps({"key": key.hex(), "port": port if is_announcing else 0})
                        await link.send_all(line.encode() + b"\n")
                    self._tally.count("rendezvous lookups")
                    look = now + (LOOK_SECONDS_CONNECTED if not self._lacks() else pause) * random.uniform(0.8, 1.2)
                    pause = min(2 * pause, LOOK_SECONDS_LONGEST) if self._alone() else LOOK_SECONDS
                if is_announcing:
                    self._tally.count("rendezvous announcements")
                    announced_port, announce = port, now + ANNOUNCE_SECONDS * random.uniform(0.8, 1.0)
                if now - began > ALONE_SECONDS and self._alone():
                    self._tell_alone()
                await trio.sleep(1.0)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    def _tell_alone(self) -> None:
        self._tally.notice(
            "info",
            "nobody else is found who learns this now; the node goes on alone, and joins when somebody comes",
            "rendezvous alone",
        )

    async def _try_places(self) -> None:
        """Try one place after the other while members are lacking, two at a time."""
        limit = trio.CapacityLimiter(2)

        async def try_one(place: Place) -> None:
            async with limit:
                answered = await self._try_place(place)
            self._tally.count("rendezvous addresses that answered" if answered else "rendezvous addresses in vain")

        async with trio.open_nursery() as nursery:
            while True:
                if self._lacks() and limit.available_tokens and (place := self._places.take()):
                    nursery.start_soon(try_one, place)
                await trio.sleep(TRY_SECONDS)

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
                await trio.to_thread.run_sync(write_atomically, self._file, data)
            except OSError:
                self._tally.count("rendezvous files that were not written")


def command_with(argument: str) -> list[str]:
    """Start the program."""
    return python_command("-m", "sapo_edge.swarm.rendezvous.program", argument)
