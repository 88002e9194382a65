"""What a node of a swarm of 10 to 10,000 receives in a round: the real selection on a simulated GossipSub mesh."""

from __future__ import annotations

import heapq
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from sapo_edge.pool.authors import Authors
from sapo_edge.pool.pool import PoolLimits
from sapo_edge.rollout import Answer, Rollout, ScoredRollout
from sapo_edge.selection import LARGEST_SWARM, SMOOTHING, SubsetSelector
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.wire.messages import encode_message
from sapo_edge.swarm.wire.record import sign_rollout
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource

SIZES = (10, 30, 100, 300, 1000, 3000, 10000)
BUDGET = 64
QUESTIONS = 8
ANSWERS = 8
ANSWER_WORDS = 40
SPREAD = 0.5
"""Standard deviation of the logarithm of the length of a round between nodes: 1 of 100 is 3.2 times the median."""
JITTER = 0.1
"""The same between rounds of one node."""
SETTLING = 20
"""Median rounds before the figures begin."""
MEDIAN_SECONDS = 60.0
"""A median round."""
OWN_SAMPLES = 100
"""Nodes up to which each has a sample of authors of its own, as in a real swarm; in larger ones they share it."""
MOMENTS = (1, 2, 3, 4, 5, 10, 20)
"""Median rounds whose figures show how it settles."""
DEGREE = 6
TREES = 12
"""Messages whose way through the mesh is followed."""
ENVELOPE = 250
"""Bytes around a message: author, key, signature, sequence number and topic of GossipSub; frames of Yamux and Noise."""


@cache
def own_rollouts(count: int) -> list[ScoredRollout]:
    """Realistic rollouts: tasks of the paper, answers that reason in words of the question."""
    rng = random.Random(1)
    source = TaskSource(load_manifest("reasoning-gym-nine"))
    author = Identity(bytes(32)).peer_id
    tasks, _ = source.training_tasks(1, 0, count)
    scored = []
    for sequence, task in enumerate(tasks):
        words = [*task.question.split(), *(str(rng.randrange(1000)) for _ in range(20))]
        texts = [
            " ".join(rng.choices(words, k=rng.randrange(1, 2 * ANSWER_WORDS))) + f" <answer>{rng.random():.4f}</answer>"
            for _ in range(ANSWERS)
        ]
        answers = tuple(Answer(text, True) for text in texts)
        rollout = Rollout(task.ref, task.question, task.ground_truth, answers, author, 100, sequence, 1.7e9)
        scored.append(ScoredRollout(rollout, (1.0, *[0.0] * (ANSWERS - 1))))
    return scored


def message_bytes(scored: list[ScoredRollout]) -> list[float]:
    """Mean size of a real message with 0, 1, ... `QUESTIONS` rollouts."""
    identity, swarm = Identity(bytes(32)), bytes(32)
    records = [sign_rollout(item.rollout, swarm, identity).record for item in scored]
    sizes = [0.0]
    for count in range(1, QUESTIONS + 1):
        groups = [records[start : start + count] for start in range(0, len(records) - count + 1, count)]
        sizes.append(statistics.mean(len(encode_message(swarm, group, ())) + ENVELOPE for group in groups))
    return sizes


def mesh(size: int, rng: random.Random) -> list[list[int]]:
    """Neighbours of each node: `DEGREE` of them, by random rings laid over each other."""
    links: list[set[int]] = [set() for _ in range(size)]
    for _ in range(DEGREE // 2):
        ring = rng.sample(range(size), size)
        for one, other in zip(ring, ring[1:] + ring[:1], strict=True):
            links[one].add(other)
            links[other].add(one)
    return [sorted(neighbours) for neighbours in links]


def copies(links: list[list[int]], rng: random.Random) -> np.ndarray:
    """Mean number of copies of a message that each node receives.

    A node hands on what it receives first to all neighbours except the one that it came from, at once. So a node
    receives a copy from each neighbour that did not have the message from it.
    """
    total = np.zeros(len(links))
    for _ in range(TREES):
        origin = rng.randrange(len(links))
        parent = {origin: origin}
        waiting = [(rng.uniform(0.01, 0.1), neighbour, origin) for neighbour in links[origin]]
        heapq.heapify(waiting)
        while waiting:
            time, node, sender = heapq.heappop(waiting)
            if node != origin:
                total[node] += 1
            if node not in parent:
                parent[node] = sender
                for neighbour in links[node]:
                    if neighbour != sender:
                        heapq.heappush(waiting, (time + rng.uniform(0.01, 0.1), neighbour, node))
    return total / TREES


class Gossip:
    """What the nodes have heard: all the same in a large swarm, where its own few rollouts differ for each.

    Args:
        nodes: up to `OWN_SAMPLES`, each has a sample of its own.
    """

    def __init__(self, nodes: int) -> None:
        count = nodes if nodes <= OWN_SAMPLES else 1
        self._samples = [Authors(PoolLimits().seconds) for _ in range(count)]
        self._known: list[float | None] = [None] * count
        self._now = 0.0

    def publish(self, node: int, count: int, time: float) -> None:
        """A node has published, at so many median rounds."""
        self._now = time * MEDIAN_SECONDS
        for place, sample in enumerate(self._samples):
            if count and (place != node or len(self._samples) == 1):
                for _ in range(count):
                    sample.hear(str(node), self._now)
                self._known[place] = None

    def estimate(self, node: int) -> float:
        """What a node's pool says; computed when something has come."""
        place = node % len(self._samples)
        known = self._known[place]
        if known is None:
            known = self._known[place] = self._samples[place].estimate(self._now)
        return known


class ByRate(SubsetSelector):
    """For comparison: a node turns its share up and down until what comes fits."""

    rate = float(QUESTIONS)

    def observe(self, received: int) -> None:
        wanted = self.rate * (self.budget / max(1, received)) ** SMOOTHING
        self.rate = min(float(QUESTIONS), max(wanted, self.budget / LARGEST_SWARM))

    @property
    def share(self) -> float:
        return self.rate


@dataclass
class Figures:
    """One entry for each round of each node, in the order of their ends.

    Attributes:
        node: whose round it was.
        time: of its end, in median rounds.
        came: rollouts of others that came.
        size: bytes of the messages that brought them, each once.
        shared: own rollouts published.
    """

    node: np.ndarray
    time: np.ndarray
    came: np.ndarray
    size: np.ndarray
    shared: np.ndarray


def simulate(
    lengths: Sequence[float], until: float, sizes: Sequence[float], kind: type[SubsetSelector] = SubsetSelector
) -> Figures:
    """Nodes that all start anew within one median round and know nothing of each other.

    Args:
        lengths: of each node's rounds, in median rounds.
        until: end, in median rounds.
        sizes: bytes of a message by its rollouts.
        kind: of selector.
    """
    nodes = len(lengths)
    rng = random.Random(nodes)
    scored = own_rollouts(QUESTIONS)
    gossip = Gossip(nodes)
    selectors = [kind(BUDGET, partial(gossip.estimate, node)) for node in range(nodes)]
    everyone = np.zeros(2)
    own, before = np.zeros((nodes, 2)), np.zeros((nodes, 2))
    rows = []
    ends = [(rng.random() + length, node) for node, length in enumerate(lengths)]
    heapq.heapify(ends)
    while ends[0][0] < until:
        time, node = ends[0]
        others = everyone - own[node]
        came, size = others - before[node]
        before[node] = others
        selectors[node].observe(round(came))
        count = len(selectors[node].select(scored, rng))
        gossip.publish(node, count, time)
        everyone += (count, sizes[count])
        own[node] += (count, sizes[count])
        rows.append((node, time, came, size, count))
        heapq.heapreplace(ends, (time + lengths[node] * rng.lognormvariate(0, JITTER), node))
    node_, time_, came_, size_, shared = np.array(rows).T
    return Figures(node_.astype(int), time_, came_, size_, shared)


def run(rounds: int) -> None:
    """Print the tables: converged, over time, and what counting authors is for.

    Args:
        rounds: median rounds that are measured, after `SETTLING`.
    """
    sizes = message_bytes(own_rollouts(64))
    until = SETTLING + rounds
    print(f"message of 1 rollout {sizes[1]:.0f} bytes, of {QUESTIONS} {sizes[-1]:.0f}; budget {BUDGET}\n")
    print(
        "| nodes | shared | received in a round: median | 99 % | in a median round's time: 99 % | KB once: median |"
        " copies | KB with copies: median | 99 % |"
    )
    print("|---" * 9 + "|")
    for nodes in SIZES:
        rng = random.Random(nodes)
        lengths = [rng.lognormvariate(0, SPREAD) for _ in range(nodes)]
        found = simulate(lengths, until, sizes)
        late = found.time > SETTLING
        came, size, node = found.came[late], found.size[late], found.node[late]
        each = copies(mesh(nodes, rng), rng)
        total = size * each[node] / 1000
        print(
            f"| {nodes} | {found.shared[late].mean() / QUESTIONS:.2%} | {np.median(came):.0f} |"
            f" {np.quantile(came, 0.99):.0f} | {np.quantile(came / np.array(lengths)[node], 0.99):.0f} |"
            f" {np.median(size) / 1000:.1f} | {each.mean():.1f} | {np.median(total):.0f} |"
            f" {np.quantile(total, 0.99):.0f} |"
        )
    print(f"\nover time, all {nodes} start at once:\n\n| median round | received: median | 99 % |\n|---|---|---|")
    for moment in MOMENTS:
        then = found.came[(found.time > moment - 1) & (found.time <= moment)]
        print(f"| {moment} | {np.median(then):.0f} | {np.quantile(then, 0.99):.0f} |")
    print("\nwhat counting authors is for, 300 nodes after 150 rounds:\n")
    print("| nodes judge by | received: median | published by the busiest tenth | nodes that published nothing |")
    print("|---|---|---|---|")
    rng = random.Random(300)
    lengths = [rng.lognormvariate(0, SPREAD) for _ in range(300)]
    kinds: dict[str, type[SubsetSelector]] = {"authors and what came": SubsetSelector, "what came": ByRate}
    for name, kind in kinds.items():
        found = simulate(lengths, 150 + rounds, sizes, kind)
        late = found.time > 150
        published = np.sort(np.bincount(found.node[late], found.shared[late], 300))
        print(
            f"| {name} | {np.median(found.came[late]):.0f} | {published[-30:].sum() / published.sum():.0%} |"
            f" {np.mean(published == 0):.0%} |"
        )
