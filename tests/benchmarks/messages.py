"""Realistic messages of a round, and the copies of them that a node receives on a GossipSub mesh."""

from __future__ import annotations

import heapq
import random
import statistics
from functools import cache

import numpy as np

from sapo_edge.rollout import Answer, Rollout, ScoredRollout
from sapo_edge.swarm.joining.identity import Identity
from sapo_edge.swarm.wire.messages import encode_message
from sapo_edge.swarm.wire.record import sign_rollout
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource

QUESTIONS = 8
ANSWERS = 8
ANSWER_WORDS = 40
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


def message_bytes(scored: list[ScoredRollout]) -> float:
    """Mean size of a real message with one rollout."""
    identity, swarm = Identity(bytes(32)), bytes(32)
    records = [sign_rollout(item.rollout, swarm, identity).record for item in scored]
    return statistics.mean(len(encode_message(swarm, [record], ())) + ENVELOPE for record in records)


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
