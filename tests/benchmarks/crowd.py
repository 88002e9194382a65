"""A swarm of 100 to 10,000 in which nodes come and go, differ in speed, and one key of a hundred is hostile.

The parts are the real ones: how newcomers are introduced and whom they dial, how many authors a node believes in, what
it shares, whom it remembers. Only the network between them is simulated.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import numpy as np

from sapo_edge.authors import Authors
from sapo_edge.pool import PoolLimits
from sapo_edge.selection import SubsetSelector
from sapo_edge.swarm.addresses import LocalNetworks, direct_address
from sapo_edge.swarm.finding.dialing import Dialler
from sapo_edge.swarm.finding.directory import Directory
from sapo_edge.swarm.finding.peerbook import Origin, PeerBook
from sapo_edge.swarm.host.host import MAX_CONNECTIONS
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.judging.reputation import Reputation
from sapo_edge.swarm.tally import Tally
from tests.benchmarks.bandwidth import (
    BUDGET,
    DEGREE,
    MEDIAN_SECONDS,
    QUESTIONS,
    copies,
    message_bytes,
    own_rollouts,
)

SPREAD = 1.0
"""Standard deviation of the logarithm of a round's length between nodes: 1 of 100 is ten times the median."""
LIFE = 480.0
"""Median rounds for which a node stays, on average; another one takes its place."""
HOSTILE = 0.01
"""Share of nodes that are hostile: half send all they can, half of these under a new key each round."""
FRESH_ROUNDS = 5.0
"""Median rounds in which a newcomer judges by what it has heard itself; then it knows what all know."""
BACKFILL = 96
"""Recent rollouts that a newcomer asks for."""
OBSERVERS = 3
"""Honest nodes that remember with a reputation of their own."""
RELAY_PLACES = 120
"""Members that are connected to the relay by which newcomers come."""
TAG = b"t" * 32
NETWORKS = LocalNetworks((), (), loopback=False)


class Member:
    """A node's directory, list of known peers and dialler, on connections that only have names."""

    def __init__(self, number: int, tag: bytes | None = TAG) -> None:
        self.peer_id = Identity((number + 1).to_bytes(32, "big")).peer_id
        # Four members in a /16, and some alone in theirs.
        ip = f"{20 + number % 100}.{number // 400 % 256}.{number // 100 % 4 + 1}.{number % 250 + 1}"
        self.address = direct_address(ip, 4001, self.peer_id)
        self.connections: dict[str, object] = {}
        network = SimpleNamespace(connections=self.connections, get_connections=lambda peer: [])
        host = SimpleNamespace(get_network=lambda: network)
        tally = Tally(lambda event: None)
        self.directory = Directory(host, tag, lambda: NETWORKS, tuple, lambda address: None, tally)
        self.book = PeerBook(self.peer_id)
        self.dialler = Dialler(host, self.book, lambda: NETWORKS, lambda peer: True, lambda address: None, 6, 8, tally)
        self.dialler._bucket.rate = 0.0

    def hold(self, other: Member) -> None:
        """Be connected to a member, and know its address."""
        self.connections[other.peer_id] = None
        self.directory.mark_dialled(other.address)
        self.directory._entry(other.peer_id).tag = TAG

    def meet(self, other: Member) -> None:
        """Connect to a member that has room."""
        self.hold(other)
        other.hold(self)

    def learn(self, source: Member) -> None:
        """Ask a peer for others."""
        for group in source.directory.members(TAG, self.peer_id):
            self.book.add(group[0], Origin.PEER, source=source.peer_id)
        for known in self.book.peers.values():
            known.due = 0.0

    def dial(self, members: dict[str, Member]) -> None:
        """Dial as long as the dialler wants to."""
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
        for peer_id in list(member.connections):
            member.learn(members[peer_id])
        member.dial(members)
        members[member.peer_id] = member
        relay.hold(member)
        while len(relay.connections) > RELAY_PLACES:
            del relay.connections[next(iter(relay.connections))]
    numbers = {peer_id: number for number, peer_id in enumerate(members)}
    return [[numbers[peer_id] for peer_id in member.connections if peer_id in numbers] for member in members.values()]


def mesh_of(peers: Sequence[Sequence[int]], rng: random.Random) -> list[list[int]]:
    """The GossipSub mesh: each node grafts `DEGREE` of its peers."""
    links: list[set[int]] = [set() for _ in peers]
    for node, others in enumerate(peers):
        for other in rng.sample(list(others), min(DEGREE, len(others))):
            links[node].add(other)
            links[other].add(node)
    return [sorted(neighbours) for neighbours in links]


@dataclass
class Heard:
    """Everything that was published, as the nodes hear it: author and time of each rollout, in order."""

    authors: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    common: Authors = field(default_factory=lambda: Authors(PoolLimits().seconds))
    estimate: float = 0.0
    estimated: float = -1.0

    def publish(self, author: str, count: int, now: float) -> None:
        for _ in range(count):
            self.authors.append(author)
            self.times.append(now)
            self.common.hear(author, now)

    def known(self, now: float) -> float:
        """What a node says that is not new."""
        if now - self.estimated > MEDIAN_SECONDS / 4:
            self.estimate, self.estimated = self.common.estimate(now), now
        return self.estimate


@dataclass
class Node:
    """One node.

    Attributes:
        name: its key.
        kind: "honest", "loud" or "throw-away".
        length: of its rounds in seconds.
        joined, leaves: seconds.
        own: authors that it has heard itself; None once it knows what all know.
        read: rollouts of `Heard` that it has heard.
        selector: chooses how many rollouts it shares.
    """

    name: str
    kind: str
    length: float
    joined: float
    leaves: float
    own: Authors | None = field(default_factory=lambda: Authors(PoolLimits().seconds))
    read: int = 0
    selector: SubsetSelector = field(default_factory=lambda: SubsetSelector(BUDGET, float))


@dataclass
class Figures:
    """What was measured after the beginning.

    Attributes:
        honest, hostile: rollouts of others that came to an honest node in a round.
        lengths: of these rounds, in median rounds.
        shared: own rollouts that an honest node published in a round.
        remembered: peers and authors that an observer remembers, at the end.
        established: share of the honest members that are established for an observer, at the end.
    """

    honest: np.ndarray
    hostile: np.ndarray
    lengths: np.ndarray
    shared: np.ndarray
    remembered: int
    established: float


def simulate(nodes: int, rounds: float, hostile: float = HOSTILE, settling: float = 0.3) -> Figures:
    """Run a swarm.

    Args:
        nodes: at any time.
        rounds: median rounds.
        hostile: share of hostile nodes.
        settling: share of the time before figures are taken.
    """
    rng = random.Random(nodes)
    scored = own_rollouts(QUESTIONS)
    heard, now = Heard(), 0.0
    clock = SimpleNamespace(now=0.0)
    observers = [Reputation(lambda: clock.now) for _ in range(OBSERVERS)]
    life = LIFE * MEDIAN_SECONDS
    number = 0

    def make(seat: int, joined: float) -> Node:
        nonlocal number
        number += 1
        kind = "honest"
        if seat < hostile * nodes:
            kind = "loud" if seat % 2 else "throw-away"
        length = rng.lognormvariate(0, SPREAD) * MEDIAN_SECONDS
        node = Node(f"node {number}", kind, length, joined, joined + length + rng.expovariate(1 / life))
        node.read = max(0, len(heard.authors) - BACKFILL)
        node.selector = SubsetSelector(BUDGET, partial(believed, node))
        return node

    def believed(node: Node) -> float:
        if node.own is None:
            return heard.known(now)
        for place in range(node.read, len(heard.authors)):
            node.own.hear(heard.authors[place], now)
        node.read = len(heard.authors)
        return node.own.estimate(now)

    seats = [make(seat, 0.0) for seat in range(nodes)]
    came_before = [(0, 0) for _ in seats]
    totals: Counter[str] = Counter()
    rows: list[tuple[float, float, float, float]] = []
    ends = [(rng.random() * MEDIAN_SECONDS + node.length, seat) for seat, node in enumerate(seats)]
    heapq.heapify(ends)
    end = rounds * MEDIAN_SECONDS
    while ends[0][0] < end:
        now, seat = ends[0]
        clock.now = now
        node = seats[seat]
        if node.own is not None and now - node.joined > FRESH_ROUNDS * MEDIAN_SECONDS:
            node.own = None
        came = (totals["honest"] - came_before[seat][0], totals["hostile"] - came_before[seat][1])
        if node.kind == "honest":
            node.selector.observe(sum(came))
            count = len(node.selector.select(scored, rng))
            author = node.name
            if now > settling * end:
                rows.append((*came, node.length / MEDIAN_SECONDS, count))
        else:
            count = QUESTIONS
            author = node.name if node.kind == "loud" else f"{node.name} {now}"
        if count:
            heard.publish(author, count, now)
            totals["honest" if node.kind == "honest" else "hostile"] += count
            for reputation in observers:
                neighbour = f"neighbour {rng.randrange(2 * DEGREE)}"
                if reputation.allows(author, neighbour):
                    reputation.charge(author, neighbour, count)
                    reputation.credit(author, count, neighbour)
                    reputation.credit(neighbour)
        came_before[seat] = (totals["honest"], totals["hostile"])
        if now > node.leaves:
            seats[seat] = node = make(seat, now)
        heapq.heapreplace(ends, (now + node.length * rng.lognormvariate(0, 0.1), seat))
    honest = [node.name for node in seats if node.kind == "honest" and node.joined < end / 2]
    known = [sum(map(reputation.is_established, honest)) / max(1, len(honest)) for reputation in observers]
    columns = np.array(rows).T
    remembered = max(map(len, observers)) + len(heard.common._older) + len(heard.common._newer)
    return Figures(columns[0], columns[1], columns[2], columns[3], remembered, float(np.mean(known)))


def run(sizes: Sequence[int], rounds: float) -> None:
    """Print a table.

    Args:
        sizes: of swarms.
        rounds: median rounds that are simulated.
    """
    sizes_ = message_bytes(own_rollouts(64))
    print(f"budget {BUDGET}, {rounds:.0f} median rounds, {HOSTILE:.0%} hostile, a node stays {LIFE:.0f} on average\n")
    print(
        "| nodes | connections: most | rollouts received in a median round, of honest nodes: mean | 99 % | of hostile:"
        " mean | KB received with copies | KB forwarded | peers and authors remembered | honest ones established |"
        " rollouts shared in a round |"
    )
    print("|---" * 10 + "|")
    for nodes in sizes:
        peers = join_all(nodes)
        links = mesh_of(peers, random.Random(nodes))
        found = simulate(nodes, rounds)
        time = found.lengths.sum()
        honest, hostile = found.honest.sum() / time, found.hostile.sum() / time
        each = copies(links, random.Random(nodes)).mean()
        kilobytes = (honest + hostile) * sizes_[1] / 1000
        degree = np.mean([len(neighbours) for neighbours in links])
        cells = [
            f"{nodes}",
            f"{max(map(len, peers))}",
            f"{honest:.0f}",
            f"{np.quantile(found.honest / found.lengths, 0.99):.0f}",
            f"{hostile:.0f}",
            f"{kilobytes * each:.0f}",
            f"{kilobytes * (degree - 1):.0f}",
            f"{found.remembered}",
            f"{found.established:.0%}",
            f"{found.shared.mean():.3f}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)
