"""SelectSubset and SampleExternal: which rollouts a node shares, and which of other nodes' rollouts it trains on.

SelectSubset keeps a budget that does not depend on the swarm's size.

Gossip brings every rollout to every node, so a node receives what all others publish. If each of N others publishes
budget / N rollouts a round, a node whose rounds have typical length receives the budget.

Nodes count the authors instead of adjusting their share until the inbound rate fits: slow nodes receive more a round
than fast ones, so no rate fits both, and every node would keep adjusting until a few fast nodes fill the budget and all
others are silent. The number of authors is the same for all and does not depend on how much they publish, so there is
no feedback and no oscillation.

The rollouts received correct the share by `budget / received`, smoothed, within a factor of `CORRECTION`; in a swarm
that is not small only down, because fast nodes receive little a round and would fill everybody's budget. The
correction is proportional and does not accumulate. With weight a of the newest round, all nodes in step and one round
of delay, its loop is z^2 - (1 - a) z + a = 0: the roots have modulus sqrt(a) < 1/2, a disturbance halves every round.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import zip_longest

from sapo_edge.advantage import informative
from sapo_edge.rollout import Rollout, ScoredRollout
from sapo_edge.room import FEW

SMOOTHING = 0.2
"""Weight of the newest round in the smoothed number of rollouts received."""
CORRECTION = 2.0
"""Largest factor by which the rollouts received correct a node's share: down, and up among `room.FEW` others."""
LACKING = 0.25
"""Smoothed share of informative own groups below which a task lacks some: others' are needed."""
LARGEST_SWARM = 16384
"""Largest swarm in which the budget holds: a node publishes at least budget / `LARGEST_SWARM` rollouts a round."""


class SubsetSelector:
    """Chooses the rollouts that a node shares.

    Args:
        budget: rollouts of other nodes to receive in a round.
        authors: estimates how many others publish. Called for every subset, so that a newcomer to a large swarm takes
            them into account in its first round.
    """

    def __init__(self, budget: int, authors: Callable[[], float]) -> None:
        self.budget = budget
        self._authors = authors
        self._received = float(budget)

    def observe(self, received: int) -> None:
        """Record how many rollouts of other nodes were accepted in a round; call it once a round."""
        self._received += SMOOTHING * (received - self._received)

    @property
    def share(self) -> float:
        """Mean number of rollouts to publish in a round; infinite while no other author is known."""
        others = self._authors()
        if others <= 0:
            return math.inf
        ratio = self.budget / max(self._received, 1.0)
        correction = min(CORRECTION if others <= FEW else 1.0, max(1 / CORRECTION, ratio))
        return max(correction * self.budget / others, self.budget / LARGEST_SWARM)

    def count(self, available: int, rng: random.Random) -> int:
        """How many of so many own rollouts to publish: the share, rounded up or down by chance."""
        share = min(self.share, float(available))
        return int(share) + (rng.random() < share - int(share))

    def select(self, scored: Sequence[ScoredRollout], rng: random.Random) -> list[Rollout]:
        """The rollouts to publish, in their order: informative ones first, otherwise at random."""
        count = self.count(len(scored), rng)
        order = rng.sample(range(len(scored)), len(scored))
        order.sort(key=lambda index: not informative(scored[index].rewards))
        return [scored[index].rollout for index in sorted(order[:count])]


class SuccessRates:
    """How often the node's own groups of each task entry had an advantage lately: smoothed shares."""

    def __init__(self) -> None:
        self.rates: dict[str, float] = {}

    def observe(self, own: Sequence[ScoredRollout]) -> None:
        """Count the own rollouts of a round."""
        for scored in own:
            entry, value = scored.rollout.ref.entry, float(informative(scored.rewards))
            self.rates[entry] = self.rates.get(entry, 0.0) * (1 - SMOOTHING) + SMOOTHING * value

    def informative(self, entry: str) -> float:
        """Smoothed share of the entry's own groups that had an advantage; 0 before the first."""
        return self.rates.get(entry, 0.0)


Strategy = Callable[[Sequence[ScoredRollout], int, random.Random, SuccessRates], list[ScoredRollout]]
"""SampleExternal: chooses at most `count` of the candidates."""


def uniform(
    candidates: Sequence[ScoredRollout], count: int, rng: random.Random, _rates: SuccessRates
) -> list[ScoredRollout]:
    """Choose uniformly, without a filter, as the paper's public demo does."""
    return rng.sample(list(candidates), min(count, len(candidates)))


def informative_only(
    candidates: Sequence[ScoredRollout], count: int, rng: random.Random, rates: SuccessRates
) -> list[ScoredRollout]:
    """Discard rollouts without an advantage, then choose uniformly, as the paper's experiments do."""
    return uniform([candidate for candidate in candidates if informative(candidate.rewards)], count, rng, rates)


def in_turn(
    candidates: Sequence[ScoredRollout], count: int, rng: random.Random, rates: SuccessRates
) -> list[ScoredRollout]:
    """Choose in turn by network, author and task entry, and within shares.

    So no author, machine or task fills the batch, however much of it the pool holds. What is all right, such as a
    person's answers, counts as well where own groups seldom teach.
    """

    def teaches(scored: ScoredRollout) -> bool:
        return informative(scored.rewards) or (
            scored.rewards[0] == 1.0 and rates.informative(scored.rollout.ref.entry) < LACKING
        )

    shuffled = uniform([scored for scored in candidates if teaches(scored)], len(candidates), rng, rates)
    return within_shares(take_turns(shuffled, rng), count)


def within_shares(ordered: Sequence[ScoredRollout], count: int) -> list[ScoredRollout]:
    """The first candidates that fit into the shares of an update's external rollouts.

    If there is another author, an author gets at most half of the places; if there is another known network, so does a
    network. Half is rounded down, but at least one. Places that this leaves empty are for own rollouts.
    """
    half = max(1, count // 2)
    lone = len({scored.rollout.author for scored in ordered}) == 1
    networks = {scored.neighbourhood for scored in ordered}
    authors: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    batch: list[ScoredRollout] = []
    for scored in ordered:
        author, network = scored.rollout.author, scored.neighbourhood
        network_limit = half if networks - {network, ""} else count
        if len(batch) < count and authors[author] < (count if lone else half) and taken[network] < network_limit:
            batch.append(scored)
            authors[author] += 1
            taken[network] += 1
    return batch


def within_update(chosen: Sequence[ScoredRollout], size: int) -> list[ScoredRollout]:
    """All of the chosen rollouts; if one author wrote them all, at most half of an update of `size` rollouts."""
    lone = len({scored.rollout.author for scored in chosen}) == 1
    return list(chosen[: size // 2] if lone else chosen)


_Turn = Callable[[ScoredRollout], str]
_TURNS: tuple[_Turn, ...] = (
    lambda scored: scored.neighbourhood,
    lambda scored: scored.rollout.author,
    lambda scored: scored.rollout.ref.entry,
)


def take_turns(
    candidates: Sequence[ScoredRollout], rng: random.Random, turns: Sequence[_Turn] = _TURNS
) -> list[ScoredRollout]:
    """The candidates in turn from the groups by the first of `turns`; within a group, by the others."""
    if not turns:
        return list(candidates)
    groups: dict[str, list[ScoredRollout]] = {}
    for candidate in candidates:
        groups.setdefault(turns[0](candidate), []).append(candidate)
    queues = [take_turns(group, rng, turns[1:]) for group in groups.values()]
    rng.shuffle(queues)
    return [candidate for turn in zip_longest(*queues) for candidate in turn if candidate is not None]


STRATEGIES: dict[str, Strategy] = {"informative": in_turn, "published": informative_only, "uniform": uniform}
"""The strategies by their names in the settings."""
