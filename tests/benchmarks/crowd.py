"""A swarm of 100 to 10,000 in which nodes come and go, differ in speed, and one key of a hundred is hostile.

The parts are the real ones: how newcomers are introduced and whom they dial, how many authors a node believes in, what
it shares, accepts and remembers. Only the network between them is simulated.

Every node publishes. `OBSERVERS` honest nodes, from fast to slow, are simulated in full: each is offered all that is
published, and has a reputation, a record store and an estimate of its own. Another node is given the estimate of the
observer whose rounds are most like its own, and as many rollouts as that one accepted. That every message is offered to
every observer is the worst case: where neighbours refuse one, it goes no further.
"""

from __future__ import annotations

import sapo_edge.swarm  # noqa: F401 -- lets libp2p do without libraries that it names

# isort: split
import gc
import hashlib
import heapq
import math
import random
import sys
import time
from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from statistics import NormalDist
from types import FunctionType, MethodType, ModuleType, SimpleNamespace

import numpy as np
from libp2p.peer.id import ID

from sapo_edge.pool.authors import Authors
from sapo_edge.pool.pool import PoolLimits
from sapo_edge.room import Room
from sapo_edge.selection import SubsetSelector
from sapo_edge.swarm.addresses import LocalNetworks, direct_address
from sapo_edge.swarm.finding.dialing import Dialler
from sapo_edge.swarm.finding.directory import Directory
from sapo_edge.swarm.finding.peerbook import Origin, PeerBook
from sapo_edge.swarm.host.host import MAX_CONNECTIONS
from sapo_edge.swarm.joining.identity import Identity, public_key_of
from sapo_edge.swarm.judging.records import RecordStore
from sapo_edge.swarm.judging.reputation import Reputation
from sapo_edge.swarm.tally import Tally
from sapo_edge.swarm.wire.record import RawRecord, sign_rollout
from tests.benchmarks.messages import QUESTIONS, copies, message_bytes, own_rollouts

BUDGET = 64
DEGREE = 6
MEDIAN_SECONDS = 60.0
SPREAD = 1.0
"""Standard deviation of the logarithm of a round's length between nodes: 1 of 100 is ten times the median."""
LIFE = 480.0
"""Median rounds for which a node stays, on average; another one takes its place."""
HOSTILE = 0.01
"""Share of nodes that are hostile: they send all they can, every other time under a key that is used once."""
SETTLING = 0.3
"""Share of the rounds before figures are taken."""
FLOOD_SECONDS = 5.0
"""Time between two messages of `QUESTIONS` rollouts of a hostile node."""
FRESH_ROUNDS = 5.0
"""Median rounds in which a newcomer judges by what it has heard itself; then it knows what all know."""
BACKFILL = 96
"""Recent rollouts that a newcomer asks for."""
OBSERVERS = 12
"""Honest nodes that are simulated in full."""
RELAY_PLACES = 120
"""Members that are connected to the relay by which newcomers come."""
TAG = b"t" * 32
NETWORKS = LocalNetworks((), (), loopback=False)


class Member:
    """A node's directory, list of known peers and dialler, on connections that only have names."""

    def __init__(self, number: int, tag: bytes | None = TAG) -> None:
        self.peer_id = Identity((number + 1).to_bytes(32, "big")).peer_id
        self.key = ID.from_string(self.peer_id)
        # Four members in a /16, and some alone in theirs.
        ip = f"{20 + number % 100}.{number // 400 % 256}.{number // 100 % 4 + 1}.{number % 250 + 1}"
        self.address = direct_address(ip, 4001, self.peer_id)
        self.connections: dict[ID, object] = {}
        network = SimpleNamespace(connections=self.connections, get_connections=lambda peer: [])
        host = SimpleNamespace(get_network=lambda: network)
        tally = Tally(lambda event: None)
        self.directory = Directory(host, tag, lambda: NETWORKS, tuple, lambda address: None, tally)
        self.book = PeerBook(self.peer_id)
        self.dialler = Dialler(host, self.book, lambda: NETWORKS, lambda peer: True, lambda address: None, tally)
        self.dialler._bucket.rate = 0.0

    def hold(self, other: Member) -> None:
        self.connections[other.key] = None
        self.directory._entry(other.peer_id).tag = TAG
        self.directory.mark_dialled(other.address)

    def meet(self, other: Member) -> None:
        self.hold(other)
        other.hold(self)

    def learn(self, source: Member) -> None:
        for group in source.directory.members(TAG, self.peer_id):
            self.book.add(group[0], Origin.PEER, source=source.peer_id)
        for known in self.book.peers.values():
            known.due = 0.0

    def dial(self, members: dict[str, Member]) -> None:
        while peers := self.dialler._select_peers():
            for peer in peers:
                other = members[peer.peer_id]
                if len(other.connections) >= MAX_CONNECTIONS:
                    self.book.mark_failed(peer.peer_id)
                    continue
                self.meet(other)
                self.dialler._dialled[peer.peer_id] = peer.region


def join_all(nodes: int) -> list[list[int]]:
    """Numbers of the peers of each node, after all have joined by one relay."""
    relay = Member(10**6, None)
    members: dict[str, Member] = {}
    for number in range(nodes):
        member = Member(number)
        member.learn(relay)
        member.dial(members)
        for key in list(member.connections):
            member.learn(members[str(key)])
        member.dial(members)
        members[member.peer_id] = member
        relay.hold(member)
        while len(relay.connections) > RELAY_PLACES:
            # The oldest one.
            del relay.connections[next(iter(relay.connections))]
    numbers = {peer_id: number for number, peer_id in enumerate(members)}
    named = (map(str, member.connections) for member in members.values())
    return [[numbers[peer_id] for peer_id in peers if peer_id in numbers] for peers in named]


def mesh_of(peers: Sequence[Sequence[int]], rng: random.Random) -> list[list[int]]:
    """The GossipSub mesh: each node grafts `DEGREE` of its peers."""
    links: list[set[int]] = [set() for _ in peers]
    for node, others in enumerate(peers):
        for other in rng.sample(list(others), min(DEGREE, len(others))):
            links[node].add(other)
            links[other].add(node)
    return [sorted(neighbours) for neighbours in links]


@dataclass
class Message:
    """Rollouts that one node publishes at once; they become records when somebody accepts them."""

    author: str
    count: int
    is_hostile: bool
    number: int

    @cached_property
    def records(self) -> list[RawRecord]:
        """Records of realistic size, each with a digest of its own."""
        key = hashlib.sha256(self.author.encode()).digest()
        return [
            RawRecord(before + key + after + f"{self.number} {place}".encode(), bytes(64))
            for place, (before, after) in enumerate(_bodies()[: self.count])
        ]


@cache
def _bodies() -> list[tuple[bytes, bytes]]:
    """What stands before and after the author's key in signed rollouts."""
    identity, bodies = Identity(bytes(32)), []
    for scored in own_rollouts(QUESTIONS):
        body = sign_rollout(scored.rollout, bytes(32), identity).record.body
        before, _, after = body.partition(public_key_of(identity.peer_id))
        bodies.append((before, after))
    return bodies


class Observer:
    """An honest node whose receiving side is simulated in full, in rounds of so many seconds."""

    def __init__(self, length: float, rng: random.Random) -> None:
        self.length = length
        self.now = 0.0
        self.room = Room(self.time)
        self.reputation = Reputation(self.time, self.room)
        self.authors = Authors(PoolLimits().seconds)
        self.store = RecordStore()
        self.heard: list[str] = []
        self.accepted: Counter[bool] = Counter()
        self._rng = rng
        self._estimate, self._estimated = 0.0, -MEDIAN_SECONDS

    def time(self) -> float:
        return self.now

    def offer(self, message: Message) -> None:
        """Receive a message from the neighbours, in any order, until one of them has room for it."""
        reputation = self.reputation
        for number in self._rng.sample(range(2 * DEGREE), 2 * DEGREE):
            neighbour = f"neighbour {number}"
            if reputation.allows(message.author, neighbour):
                break
            reputation.postpone(message.author, neighbour)
        else:
            return
        reputation.charge(message.author, neighbour, message.count)
        reputation.credit(message.author, 0, neighbour)
        reputation.credit(neighbour)
        reputation.credit(message.author, message.count)
        for record in message.records:
            self.store.add(record)
            self.authors.hear(message.author, self.now)
            self.heard.append(message.author)
        self.accepted[message.is_hostile] += message.count

    def estimate(self) -> float:
        """It is a little old, because it takes long to compute."""
        if self.now - self._estimated > MEDIAN_SECONDS / 2:
            self._estimate, self._estimated = self.authors.estimate(self.now), self.now
        return self._estimate


@dataclass
class Node:
    """One node, by its key; its view is the observer whose rounds are most like its own, or that it is.

    The length of its rounds is in seconds. `own` are authors that it has heard itself, None once it knows what all
    know, and `read` is how many rollouts of its view it has heard. `before` is what its view had accepted by the end of
    its last round, of honest and of hostile nodes.
    """

    name: str
    view: Observer
    length: float
    joined: float
    leaves: float
    is_hostile: bool = False
    own: Authors | None = None
    read: int = 0
    selector: SubsetSelector = field(init=False)
    before: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        self.selector = SubsetSelector(BUDGET, self.believed)

    def believed(self) -> float:
        view = self.view
        if self.own is None:
            return view.estimate()
        for author in view.heard[self.read :]:
            self.own.hear(author, view.now)
        self.read = len(view.heard)
        return self.own.estimate(view.now)

    def finish_round(self, rng: random.Random) -> tuple[int, int, int]:
        """What came in a round of honest and of hostile nodes, and how many own rollouts are shared."""
        accepted = (self.view.accepted[False], self.view.accepted[True])
        came = (accepted[0] - self.before[0], accepted[1] - self.before[1])
        self.before = accepted
        if self.own is not None and self.view.now - self.joined > FRESH_ROUNDS * MEDIAN_SECONDS:
            self.own = None
        self.selector.observe(sum(came))
        return *came, self.selector.count(QUESTIONS, rng)


@dataclass
class Figures:
    """What was measured after the beginning.

    Honest and hostile are rollouts of others that an observer accepted in a round, whose lengths are in median rounds;
    their rates are the mean in a median round's time. Shared are those that an honest node published in a round. Then
    the most that an observer remembers at the end, in memory that of the observer in the middle, and the share of the
    honest members that are established for an observer.
    """

    honest: np.ndarray
    hostile: np.ndarray
    lengths: np.ndarray
    shared: np.ndarray
    honest_rate: float
    hostile_rate: float
    peers: int
    authors: int
    records: int
    memory: int
    established: float


class Crowd:
    """So many nodes in simulated time; so many observers are simulated in full.

    Each key that is used once has so many rollouts. With keys, a hostile node has so many, which send in turn; with 0
    it has one, and others that it uses once.
    """

    def __init__(self, nodes: int, observers: int, each: int, keys: int) -> None:
        self.rng = random.Random(nodes)
        self._each = each
        self._keys = keys
        self.now = 0.0
        self._published = 0
        self._born = 0
        spread = NormalDist(0.0, SPREAD)
        # In order of speed, each for an equal part of all nodes.
        middles = [(place + 0.5) / observers for place in range(observers)]
        lengths = [MEDIAN_SECONDS * math.exp(spread.inv_cdf(middle)) for middle in middles]
        self.observers = [Observer(length, self.rng) for length in lengths]
        self._borders = [MEDIAN_SECONDS * math.exp(spread.inv_cdf(place / observers)) for place in range(1, observers)]
        watching = enumerate(self.observers)
        self.nodes = [Node(f"observer {place}", view, view.length, 0.0, math.inf) for place, view in watching]
        self.nodes += [self._make(seat < HOSTILE * nodes) for seat in range(nodes - observers)]
        self.ends = [(self.rng.random() * MEDIAN_SECONDS + node.length, seat) for seat, node in enumerate(self.nodes)]
        heapq.heapify(self.ends)

    def _make(self, is_hostile: bool) -> Node:
        self._born += 1
        length = self.rng.lognormvariate(0, SPREAD) * MEDIAN_SECONDS
        view = self.observers[bisect(self._borders, length)]
        leaves = self.now + length + self.rng.expovariate(1 / (LIFE * MEDIAN_SECONDS))
        node = Node(f"node {self._born}", view, FLOOD_SECONDS if is_hostile else length, self.now, leaves, is_hostile)
        node.before = (view.accepted[False], view.accepted[True])
        if self.now:
            node.own, node.read = Authors(PoolLimits().seconds), max(0, len(view.heard) - BACKFILL)
        return node

    def step(self) -> tuple[Node, tuple[int, int, int]]:
        """The next round that ends: whose it is, what came of honest and hostile ones, and what was shared."""
        self.now, seat = self.ends[0]
        for observer in self.observers:
            observer.now = self.now
        node = self.nodes[seat]
        outcome = (0, 0, QUESTIONS) if node.is_hostile else node.finish_round(self.rng)
        if seat < len(self.observers):
            node.view.room.update(BUDGET, node.view.estimate())
        if outcome[2]:
            self._publish(node, outcome[2], seat)
        if self.now > node.leaves:
            self.nodes[seat] = self._make(node.is_hostile)
        heapq.heapreplace(self.ends, (self.now + node.length * self.rng.lognormvariate(0, 0.1), seat))
        return node, outcome

    def _publish(self, node: Node, count: int, seat: int) -> None:
        self._published += 1
        for part, (author, rollouts) in enumerate(self._authors(node, count)):
            number = self._published * QUESTIONS + part
            message = Message(author, rollouts, node.is_hostile, number)
            for place, observer in enumerate(self.observers):
                if place != seat:
                    observer.offer(message)

    def _authors(self, node: Node, count: int) -> list[tuple[str, int]]:
        """Under which keys a node publishes so many rollouts, and how many under each."""
        if node.is_hostile and self._keys:
            start = int(self.now / FLOOD_SECONDS) * count
            return [(f"{node.name} {(start + place) % self._keys}", 1) for place in range(count)]
        if node.is_hostile and self._published % 2:
            return [(f"key {self._published} {part}", self._each) for part in range(count // self._each)]
        return [(node.name, count)]


def simulate(nodes: int, rounds: float, number: int = OBSERVERS, each: int = QUESTIONS, keys: int = 0) -> Figures:
    """Run a swarm for so many median rounds; figures are taken after a share of them."""
    crowd, end = Crowd(nodes, number, each, keys), rounds * MEDIAN_SECONDS
    observers, rows, shared = crowd.observers, [], []
    before: list[Counter[bool]] = []
    while crowd.ends[0][0] < end:
        node, (honest, adverse, count) = crowd.step()
        if crowd.now <= SETTLING * end:
            continue
        before = before or [observer.accepted.copy() for observer in observers]
        if not node.is_hostile:
            shared.append(count)
        if node.leaves == math.inf:
            rows.append((honest, adverse, node.length / MEDIAN_SECONDS))
    time = (1 - SETTLING) * rounds * number
    rates = [
        sum(observer.accepted[kind] - then[kind] for observer, then in zip(observers, before, strict=True)) / time
        for kind in (False, True)
    ]
    members = [node.name for node in crowd.nodes if not node.is_hostile and node.joined < end / 2]
    known = [sum(map(observer.reputation.is_established, members)) / len(members) for observer in observers]
    honest_came, hostile_came, lengths = np.array(rows).T
    middle = observers[number // 2]
    return Figures(
        honest_came, hostile_came, lengths, np.array(shared), rates[0], rates[1],
        max(len(observer.reputation) for observer in observers),
        max(len(observer.authors._older) + len(observer.authors._newer) for observer in observers),
        max(len(observer.store._records) for observer in observers),
        memory_of(middle.reputation, middle.authors, middle.store), float(np.mean(known)),
    )  # fmt: skip


def memory_of(*roots: object) -> int:
    """Bytes of objects and of all that they refer to, code apart."""
    seen: set[int] = set()
    waiting, total = list(roots), 0
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, type | ModuleType | FunctionType | MethodType):
            continue
        seen.add(id(item))
        total += sys.getsizeof(item)
        waiting += gc.get_referents(item)
    return total


def run(sizes: Sequence[int], rounds: float, each: int, keys: int) -> None:
    """Print a table; see `Crowd`."""
    size = message_bytes(own_rollouts(64))
    print(
        f"budget {BUDGET}, {rounds:.0f} median rounds, {HOSTILE:.0%} hostile, a node stays {LIFE:.0f} on average,"
        f" {OBSERVERS} observers,"
        f" {f'{keys} keys of a hostile node' if keys else f'{each} rollouts of a key that is used once'}\n"
    )
    print(
        "| nodes | connections: most | accepted in a median round's time, of honest nodes: mean | of hostile ones |"
        " in a round of its own: median, of honest ones | 99 % | of hostile ones | 99 % | KB received with copies |"
        " records | peers | authors | KB of memory | honest ones established | rollouts shared in a round |"
    )
    print("|---" * 15 + "|")
    for nodes in sizes:
        started = time.monotonic()
        peers = join_all(nodes)
        joined = time.monotonic()
        links = mesh_of(peers, random.Random(nodes))
        found = simulate(nodes, rounds, each=each, keys=keys)
        received = copies(links, random.Random(nodes)).mean()
        kilobytes = (found.honest_rate + found.hostile_rate) * size / 1000
        cells = [
            f"{nodes}", f"{max(map(len, peers))}", f"{found.honest_rate:.0f}", f"{found.hostile_rate:.0f}",
            f"{np.median(found.honest):.0f}", f"{np.quantile(found.honest, 0.99):.0f}",
            f"{np.median(found.hostile):.0f}", f"{np.quantile(found.hostile, 0.99):.0f}", f"{kilobytes * received:.0f}",
            f"{found.records}", f"{found.peers}", f"{found.authors}", f"{found.memory / 1000:.0f}",
            f"{found.established:.0%}", f"{found.shared.mean():.3f}",
        ]  # fmt: skip
        print(f"| {' | '.join(cells)} |", flush=True)
        print(f"{nodes}: {joined - started:.0f} s to join, {time.monotonic() - joined:.0f} s", file=sys.stderr)
