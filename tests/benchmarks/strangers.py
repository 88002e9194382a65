"""How strangers of one swarm find each other in a public table of addresses, of which others may own the most.

`first`: one node among addresses that are false, until its first member. `Places`, `Topic`, how they are tried, the
dialler and its list of known peers are the real ones, on a simulated clock; what the DHT says and who answers is not.

`swarm`: a whole swarm whose nodes come and go. `Topic` and `Places` are the real ones; a node that has members learns
of others from them, as `Directory` introduces them: 16 at most.
"""

from __future__ import annotations

import sapo_edge.swarm  # noqa: F401 -- lets libp2p do without libraries that it names

# isort: split
import heapq
import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest import mock

import trio
from libp2p.peer.id import ID
from trio.testing import MockClock

from sapo_edge.swarm.addresses import LocalNetworks, neighbourhood
from sapo_edge.swarm.bucket import TokenBucket
from sapo_edge.swarm.finding import dialing
from sapo_edge.swarm.finding.circuit import DIAL_SECONDS
from sapo_edge.swarm.finding.dialing import DIAL_BURST, DIALS_PER_SECOND, MAX_MEMBERS, MIN_MEMBERS, Dialler
from sapo_edge.swarm.finding.discovery import PLACES_LEFT
from sapo_edge.swarm.finding.peerbook import RENDEZVOUS, Origin, PeerBook
from sapo_edge.swarm.host.host import MAX_CONNECTIONS
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.rendezvous import rendezvous
from sapo_edge.swarm.rendezvous.dial import ANSWER_SECONDS
from sapo_edge.swarm.rendezvous.rendezvous import Place, Places, Rendezvous, Topic
from sapo_edge.swarm.tally import Tally

CLOSEST, NAMED, STORED = 8, 100, 500
"""Of libtorrent's DHT: nodes that keep a key, addresses that one of them says at once, and that it keeps."""
KEPT = 1800.0
"""Seconds for which they keep an address."""
KEY, MEMBER = bytes(20), ("20.2.0.1", 4001)
NETWORKS = LocalNetworks((), (), loopback=False)
LIFE, REACHABLE, HOSTILE = 8 * 3600.0, 0.3, 0.01
"""Of a swarm: mean seconds for which a node stays, share of those that others reach, and of hostile ones."""
JOIN_SECONDS, JOINS_PER_SECOND = LIFE / 24, 10.0
"""In which a swarm begins, unless more nodes than that would join in a second."""
LOOKUP_BYTES, ANNOUNCE_BYTES = 22_700, 13_500
"""Sent and received for a lookup, and for an announcement beside it, by measurement (`tests.benchmarks helper`)."""


def false_place(rng: random.Random) -> Place:
    """An address in a network that is hardly drawn twice."""
    return f"{rng.randrange(60, 100)}.{rng.randrange(256)}.{rng.randrange(256)}.7", rng.randrange(1024, 65536)


class First:
    """One node until its first member, among `members` if nothing is false.

    Of the announced addresses a share is false: nothing answers there ("silent"), or somebody proves an identity and no
    more ("handshake"). So many of the DHT nodes next to the key are liars, which name what nobody announced.
    """

    def __init__(self, seed: int, share: float, liars: int, kind: str, members: int = 5) -> None:
        self.rng, self._liars, self._kind = random.Random(seed), liars, kind
        honest = max(1, round(STORED * (1 - share))) if share else members
        self.honest = {(f"20.{number // 250}.{number % 250}.1", 4001) for number in range(honest)}
        self.table = [*self.honest, *(false_place(self.rng) for _ in range(STORED - honest if share else 0))]
        self.dials: list[float] = []
        self._connections: dict[ID, object] = {}
        self._ids: dict[Place, str] = {}

    def answers(self) -> list[list[Place]]:
        """What the nodes next to the key say; liars answer last."""
        true = [self.rng.sample(self.table, min(NAMED, len(self.table))) for _ in range(CLOSEST - self._liars)]
        return true + [[false_place(self.rng) for _ in range(NAMED)] for _ in range(self._liars)]

    async def who_listens(self, _host: object, ip: str, port: int) -> str | None:
        self.dials.append(trio.current_time())
        if (ip, port) not in self.honest and self._kind == "silent":
            await trio.sleep(ANSWER_SECONDS)
            return None
        await trio.sleep(0.2)
        return self._ids.setdefault((ip, port), Identity(self.rng.randbytes(32)).peer_id)

    async def open_way(self, _host: object, address: Any) -> bool:
        self.dials.append(trio.current_time())
        if (address.host, address.port) not in self.honest:
            await trio.sleep(DIAL_SECONDS)
            return False
        await trio.sleep(0.2)
        self._connections[ID.from_string(address.peer_id)] = None
        return True

    async def run(self, seconds: float) -> float:
        network = SimpleNamespace(connections=self._connections)
        host: Any = SimpleNamespace(get_network=lambda: network)
        tally = Tally(lambda event: None)
        book = PeerBook(Identity(bytes(32)).peer_id, trio.current_time, self.rng)
        dialler = Dialler(host, book, lambda: NETWORKS, lambda peer: True, lambda address: None, tally)
        dialler._bucket = TokenBucket(DIALS_PER_SECOND, DIAL_BURST, trio.current_time)

        async def try_place(place: Place) -> bool:
            address = await dialler.identify(*place)
            return address is not None and book.add(address, Origin.PEER, RENDEZVOUS) is not None

        topic = Topic(lambda: [KEY], lambda: 0, lambda: dialler.wants_strangers, lambda: not dialler.members, try_place)
        topic.places = Places(trio.current_time, self.rng)
        meeting = Rendezvous((), [topic], tally)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dialler.run)
            nursery.start_soon(meeting._try_places, topic)
            while not dialler.members and trio.current_time() - began < seconds:
                if topic.due(trio.current_time())[0]:
                    await trio.sleep(1.0)
                    for answer in self.answers():
                        topic.places.add(answer)
                await trio.sleep(1.0)
            nursery.cancel_scope.cancel()
        return float(trio.current_time() - began)


def seconds_to_first(seed: int, share: float, liars: int, kind: str, seconds: float = 3600.0) -> tuple[float, float]:
    """Simulated seconds until a node has its first member, and the most dials of a minute."""
    random.seed(seed)
    one = First(seed, share, liars, kind)
    with mock.patch.multiple(dialing, who_listens=one.who_listens, open_way=one.open_way):
        took = trio.run(one.run, seconds, clock=MockClock(autojump_threshold=0))
    dials = one.dials
    most = max(sum(then <= other < then + 60 for other in dials) for then in dials)
    return took, most


def first(repeats: int) -> None:
    """Print how long the first member takes, by what is false."""
    print("| false addresses | liars of 8 DHT nodes | they | median | 90 % | most | dials in a minute: most |")
    print("|---" * 7 + "|")
    cases = [(share, liars) for share in (0.5, 0.9, 0.99) for liars in (0,)] + [(0.0, 1), (0.0, 4), (0.0, 7), (0.99, 4)]
    for kind in ("silent", "handshake"):
        for share, liars in cases:
            rows = [seconds_to_first(seed, share, liars, kind) for seed in range(repeats)]
            took = sorted(row[0] for row in rows)
            cells = [f"{share:.0%}", str(liars), kind, f"{statistics.median(took):.0f}"]
            cells += [f"{took[int(0.9 * repeats)]:.0f}", f"{took[-1]:.0f}", f"{max(row[1] for row in rows)}"]
            print(f"| {' | '.join(cells)} |", flush=True)


class Table:
    """What the DHT nodes next to the key have stored: they drop who comes when they are full."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.stored: list[dict[int, float]] = [{} for _ in range(CLOSEST)]
        self._swept = 0.0

    def announce(self, number: int, now: float) -> None:
        if now - self._swept > 10.0:
            self._swept = now
            self.stored = [{who: end for who, end in each.items() if end > now} for each in self.stored]
        for each in self.stored:
            if number in each or len(each) < STORED:
                each[number] = now + KEPT

    def answers(self) -> list[list[int]]:
        return [self._rng.sample(list(each), min(NAMED, len(each))) for each in self.stored if each]


class Member:
    """A node of a swarm: numbers of those that it connected to, that connected to it, and that members introduced.

    It has a first member since `first`, infinity before, and looks again at `next`.
    """

    __slots__ = ("first", "hostile", "inward", "joined", "known", "next", "outward", "reachable", "topic", "tries")

    def __init__(self, now: float, reachable: bool, hostile: bool) -> None:
        self.joined, self.reachable, self.hostile = now, reachable, hostile
        self.outward: set[int] = set()
        self.inward: set[int] = set()
        self.known: list[int] = []
        self.first, self.next, self.tries = math.inf, math.inf, 0
        self.topic: Topic | None = None

    def open_port(self) -> int:
        """See `Discovery._open_port`."""
        has_room = len(self.inward) + len(self.outward) <= MAX_CONNECTIONS - PLACES_LEFT
        return 4001 if self.reachable and has_room else 0


@cache
def place_of(number: int) -> Place:
    return f"{20 + number // 65536}.{number // 256 % 256}.{number % 256}.1", 4001


def number_of(place: Place) -> int:
    high, middle, low, _ = map(int, place[0].split("."))
    return (high - 20) * 65536 + middle * 256 + low


class Swarm:
    """A swarm in simulated time. All join in the first seconds, then others take the places of those that leave."""

    def __init__(self, nodes: int) -> None:
        self.rng = random.Random(nodes)
        self.now = 0.0
        self.members: dict[int, Member] = {}
        self.table = Table(self.rng)
        self.lookups = self.announcements = 0
        self.refused = 0
        self.dialled: Counter[int] = Counter()
        self._born = 0
        self._events: list[tuple[float, int, str]] = []
        self.begun = max(JOIN_SECONDS, nodes / JOINS_PER_SECOND)
        for _ in range(nodes):
            self._at(self.rng.uniform(0, self.begun), -1, "join")

    def _at(self, when: float, number: int, what: str) -> None:
        heapq.heappush(self._events, (when, number, what))

    def run(self, seconds: float) -> None:
        while self._events and self._events[0][0] < seconds:
            self.now, number, what = heapq.heappop(self._events)
            if what == "join":
                self._join()
            elif (member := self.members.get(number)) and (what != "look" or self.now == member.next):
                getattr(self, f"_{what}")(number, member)

    def _look_at(self, when: float, number: int) -> None:
        """A node has one time at which it looks, the earliest."""
        member = self.members[number]
        if not member.hostile and when < member.next:
            member.next = when
            self._at(when, number, "look")

    def _join(self) -> None:
        number, self._born = self._born, self._born + 1
        hostile = self.rng.random() < HOSTILE
        member = self.members[number] = Member(self.now, hostile or self.rng.random() < REACHABLE, hostile)
        self._at(self.now + self.rng.expovariate(1 / LIFE), number, "leave")
        if hostile:
            self._at(self.now, number, "squat")
            return
        member.topic = Topic(
            lambda: [KEY], member.open_port, lambda: len(member.outward) < MIN_MEMBERS,
            lambda: not member.outward and not member.inward, self._never,
        )  # fmt: skip
        member.topic.places = Places(lambda: self.now, self.rng)
        self._look_at(self.now, number)

    async def _never(self, _place: Place) -> bool:
        raise AssertionError("this simulation tries places itself")

    def _squat(self, number: int, _member: Member) -> None:
        """Hostile nodes announce themselves whenever a place of a leaving one may be free."""
        self.table.announce(number, self.now)
        self._at(self.now + 60.0, number, "squat")

    def _leave(self, number: int, member: Member) -> None:
        del self.members[number]
        for other in member.outward:
            self.members[other].inward.discard(number)
        for other in member.inward:
            self.members[other].outward.discard(number)
            self._look_at(self.now + 1.0, other)
        self._at(self.now, -1, "join")

    def _look(self, number: int, member: Member) -> None:
        """One step of a node: a lookup that is due, and a dial."""
        topic, member.next = member.topic, math.inf
        assert topic is not None
        lines, announces = topic.due(self.now)
        self.announcements += announces
        if announces:
            self.table.announce(number, self.now)
        if lines:
            self.lookups += 1
            for answer in self.table.answers():
                topic.places.add([place_of(other) for other in answer if other != number])
        lacks = len(member.outward) < MIN_MEMBERS
        if len(member.outward) < MAX_MEMBERS and member.known:
            self._dial(number, member, member.known.pop(self.rng.randrange(len(member.known))))
        elif lacks and (place := topic.places.take()):
            self._dial(number, member, number_of(place))
        if lacks and (member.known or len(topic.places)):
            self._look_at(self.now + (1.0 if not member.outward else 2.0), number)
        elif lacks:
            self._look_at(max(self.now + 1.0, topic._look), number)
        elif member.known and len(member.outward) < MAX_MEMBERS:
            self._look_at(self.now + 20.0, number)
        else:
            # Nothing is tried until a member leaves, and a hundred thousand wait so.
            topic.places._answers.clear()
        if member.reachable and not lacks:
            self._look_at(max(self.now + 1.0, topic._announce), number)

    def _dial(self, number: int, member: Member, target: int) -> None:
        member.tries += 1
        self.dialled[target] += 1
        other = self.members.get(target)
        if other is None or other.hostile or target == number or number in other.outward or target in member.outward:
            return
        if len(other.inward) + len(other.outward) >= MAX_CONNECTIONS:
            self.refused += 1
            return
        member.outward.add(target)
        other.inward.add(number)
        for each in (member, other):
            each.first = min(each.first, self.now)
        near = [each for each in (*other.outward, *other.inward) if self.members[each].reachable]
        named = {*member.known, *self.rng.sample(near, min(16, len(near)))}
        member.known = list(named - member.outward - {number})[:64]

    def components(self) -> list[int]:
        """Sizes of the parts of honest nodes that are connected with each other, the largest first."""
        left = {number for number, member in self.members.items() if not member.hostile}
        sizes = []
        while left:
            waiting, size = [left.pop()], 0
            while waiting:
                size += 1
                member = self.members[waiting.pop()]
                near = (member.outward | member.inward) & left
                left -= near
                waiting += near
            sizes.append(size)
        return sorted(sizes, reverse=True)


def swarm(nodes: int, hours: float) -> None:
    """Print what a swarm of so many comes to in so many hours, which begin ten minutes after all have joined."""
    began, one = time.process_time(), Swarm(nodes)
    settled = one.begun + 600.0
    one.run(settled)
    lookups, announcements, one.dialled, one.refused = one.lookups, one.announcements, Counter(), 0
    one.run(settled + 3600 * hours)
    honest = [member for member in one.members.values() if not member.hostile]
    fresh = [member for member in honest if member.joined > settled]
    took = sorted(member.first - member.joined for member in fresh if member.first < math.inf)
    each = hours * nodes
    sizes, stored = one.components(), {who for table in one.table.stored for who in table}
    names = [one.dialled[who] / hours for who in stored if who in one.members and not one.members[who].hostile]
    inward = [len(one.members[who].inward) for who in stored if who in one.members and not one.members[who].hostile]
    false = sum(who not in one.members or one.members[who].hostile for who in stored) / max(1, len(stored))
    made, told = one.lookups - lookups, one.announcements - announcements

    def spread(values: Sequence[float], *parts: float) -> str:
        ordered = sorted(values)
        return ", ".join(f"{ordered[min(len(ordered) - 1, int(part * len(ordered)))]:.0f}" for part in parts if ordered)

    rows = {
        "joined meanwhile; still without a member": f"{len(fresh)}; {len(fresh) - len(took)}",
        "seconds to the first member: median, 99 %, most": spread(took, 0.5, 0.99, 1.0),
        "lookups of a node an hour": f"{made / each:.2f}",
        "announcements of a node that others reach an hour": f"{told / each / REACHABLE:.2f}",
        "KB of them an hour": f"{(made * LOOKUP_BYTES + told * ANNOUNCE_BYTES) / each / 1000:.0f}",
        "announced, and of these false or gone": f"{len(stored)}, {false:.0%}",
        "dials of an announced member an hour: median, 99 %, most": spread(names, 0.5, 0.99, 1.0),
        "connections to it: median, 99 %, most": spread(inward, 0.5, 0.99, 1.0),
        "dials refused, because it was full": f"{one.refused / max(1, one.dialled.total()):.1%}",
        "parts of the swarm; in the largest": f"{len(sizes)}; {sizes[0] / len(honest):.2%}",
        "processor seconds": f"{time.process_time() - began:.0f}",
    }
    for name, value in rows.items():
        print(f"{nodes},{name},{value}", flush=True)


def run(repeats: int, sizes: Sequence[int], hours: float) -> None:
    first(repeats)
    # Hundreds of thousands of answers name the same few hundred addresses.
    with mock.patch.object(rendezvous, "neighbourhood", cache(neighbourhood)):
        for nodes in sizes:
            swarm(nodes, hours)
