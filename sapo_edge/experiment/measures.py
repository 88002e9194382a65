"""Numbers of one swarm, the unit of every statistic: means over its honest learning nodes, sums over all its members.

Honest learning nodes are the ones that were evaluated. Floats are summed exactly (`fsum`, `fmean`), so the order of a
file's rows changes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import fsum
from operator import itemgetter
from statistics import fmean
from typing import TypeVar

from sapo_edge.experiment.results import EvaluationRecord, SwarmRecord

VALIDATION = "validation"
"""The question set that is asked every few rounds."""
TEST = "test"
"""The question set that decides."""

BEFORE = "validation before training"
AREA = "area under the curve"
"""Mean validation accuracy over the rounds, linear between two evaluations."""
OWN_REWARD = "cumulative own reward"
MEAN_REWARD = "mean own reward"
EXTERNAL_REWARD = "external reward"
DRAWDOWN = "drawdown"
WORST_DRAWDOWN = "drawdown of the worst node"
OWN_ANSWERS = "own answers"
_OTHERS = (
    BEFORE, AREA, OWN_REWARD, MEAN_REWARD, EXTERNAL_REWARD, DRAWDOWN, WORST_DRAWDOWN, OWN_ANSWERS, "own tokens",
    "tokens trained on", "external rollouts taken",
)  # fmt: skip
"""Measures that are no accuracies, in the order of the tables."""

Series = Sequence[tuple[float, float]]
"""Points (x, y) of a curve; x never falls."""
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Measures:
    """What the statistics need of one swarm.

    Attributes:
        values: measure -> number; measures that the swarm lacks are absent.
        tasks: (measure, task entry) -> final accuracy, or mean own reward of the nodes over all rounds.
        by_round, by_answers, by_seconds: validation accuracy by rounds, and by own answers and processor seconds of all
            members so far.
        nodes: honest learning ones.
        members: of any kind, with a record.
        received: bytes of others' rollouts that a member accepted in a round of its own.
    """

    seed: int
    values: Mapping[str, float]
    tasks: Mapping[tuple[str, str], float]
    by_round: Series
    by_answers: Series
    by_seconds: Series
    own_by_round: Series
    seconds: float
    nodes: int
    members: int
    last: int
    questions: Mapping[str, int]
    received: float


def is_accuracy(name: str) -> bool:
    """Whether a measure is the accuracy on a set of questions after the last round."""
    return name not in _OTHERS


def measure_names(swarms: Iterable[Measures]) -> list[str]:
    """Names of measures in the order of the tables: test, validation, other question sets, everything else."""
    order = (TEST, VALIDATION, "", *_OTHERS)
    names = {name for swarm in swarms for name in swarm.values}
    return sorted(names, key=lambda name: (order.index(name if name in order else ""), name))


def area(series: Series) -> float:
    """Mean height of a curve of at least two points."""
    whole = fsum((right - left) * (low + high) / 2 for (left, low), (right, high) in pairwise(series))
    return whole / (series[-1][0] - series[0][0])


def drawdown(series: Sequence[float]) -> float:
    """Largest fall of a series below its running maximum; 0 for a series that never falls."""
    return max((best - value for best, value in zip(accumulate(series, max), series, strict=True)), default=0.0)


def accuracies(questions: str, correct: str) -> dict[str, float]:
    """Accuracies of one evaluation; of a sampled set, such as "test@8", pass@k and pass@1.

    These are the share of questions with at least one right sample of all k, and the share of right samples. Both are
    unbiased (Chen et al., arXiv 2107.03374, with n = k).
    """
    counts = [int(digit) for digit in correct]
    name, _, k = questions.partition("@")
    if not k.isdecimal():
        return {questions: fmean(counts)}
    return {f"{name} pass@{k}": fmean(count > 0 for count in counts), f"{name} pass@1 of {k}": fmean(counts) / int(k)}


def measure(record: SwarmRecord) -> Measures:
    nodes = {item.node for item in record.evaluations}
    rounds = [row for row in record.rounds if row.node in nodes]
    validation = [item for item in record.evaluations if item.questions == VALIDATION]
    by_round = _validation(validation)
    by_node = grouped((item.node, item) for item in validation).values()
    falls = [drawdown([accuracy for _, accuracy in _validation(items)]) for items in by_node]
    external = _means((row.node, row.external) for row in rounds if row.external is not None)
    rewards = grouped((entry, sums) for row in rounds for entry, sums in row.tasks.items())
    latest = {(item.questions, item.node): item for item in sorted(record.evaluations, key=lambda item: item.round)}
    final = [latest[key] for key in sorted(latest)]
    answers = _cumulative((row.round, row.generated) for row in record.rounds)
    seconds = _cumulative((row.round, row.seconds) for row in record.rounds)
    last = max([0, *(row.round for row in record.rounds), *(item.round for item in record.evaluations)])
    return Measures(
        seed=record.seed,
        values={
            **_means(pair for item in final for pair in accuracies(item.questions, item.correct).items()),
            **({DRAWDOWN: fmean(falls), WORST_DRAWDOWN: max(falls)} if falls else {}),
            **({OWN_REWARD: fsum(row.own for row in rounds) / len(nodes)} if nodes else {}),
            **({EXTERNAL_REWARD: fmean(external.values())} if external else {}),
            **({BEFORE: by_round[0][1]} if by_round and by_round[0][0] == 0 else {}),
            **({AREA: area(by_round)} if len(by_round) > 1 else {}),
            OWN_ANSWERS: sum(row.generated for row in record.rounds),
            "own tokens": sum(row.tokens for row in record.rounds),
            "tokens trained on": sum(row.trained for row in record.rounds),
            "external rollouts taken": sum(row.taken for row in record.rounds),
        },
        tasks=_means(_by_task(record, final))
        | {
            (MEAN_REWARD, entry): fsum(reward for reward, _ in sums) / answered
            for entry, sums in rewards.items()
            if (answered := sum(count for _, count in sums))
        },
        by_round=by_round,
        by_answers=[(answers(round), accuracy) for round, accuracy in by_round],
        by_seconds=[(seconds(round), accuracy) for round, accuracy in by_round],
        own_by_round=sorted(_means((row.round, row.own) for row in rounds).items()),
        seconds=seconds(last),
        nodes=len(nodes),
        members=len({row.node for row in record.rounds} | nodes),
        last=last,
        questions={questions: len(entries) for questions, entries in record.entries.items()},
        received=sum(row.received for row in record.rounds) / max(1, len(record.rounds)),
    )


def at(series: Series, x: float) -> float:
    """The curve's y at `x`, interpolated linearly; the nearest end outside of it.

    Of several points with one x the last counts: nothing was spent between them.
    """
    index = bisect_right(series, x, key=itemgetter(0))
    (left, low), (right, high) = series[max(index - 1, 0)], series[min(index, len(series) - 1)]
    return low + (high - low) * (x - left) / (right - left) if left < x < right else low


def moving_average(series: Series, window: int) -> list[tuple[float, float]]:
    """Means of the points within the last `window` of x; of fewer at the start."""
    values = [y for _, y in series]
    firsts = (bisect_right(series, x - window, key=itemgetter(0)) for x, _ in series)
    pairs = enumerate(zip(series, firsts, strict=True))
    return [(x, fmean(values[first : index + 1])) for index, ((x, _), first) in pairs]


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    groups: dict[K, list[V]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups


def _means(pairs: Iterable[tuple[K, float]]) -> dict[K, float]:
    return {key: fmean(values) for key, values in grouped(pairs).items()}


def _cumulative(pairs: Iterable[tuple[int, float]]) -> Callable[[float], float]:
    """A function: round -> sum of everything up to it."""
    by_round = grouped(pairs)
    rounds = sorted(by_round)
    totals = list(accumulate((fsum(by_round[round]) for round in rounds), initial=0.0))
    return lambda round: totals[bisect_right(rounds, round)]


def _validation(evaluations: Iterable[EvaluationRecord]) -> list[tuple[float, float]]:
    """Accuracy by rounds."""
    return sorted(_means((item.round, fmean(map(int, item.correct))) for item in evaluations).items())


def _by_task(record: SwarmRecord, final: Iterable[EvaluationRecord]) -> Iterator[tuple[tuple[str, str], float]]:
    for item in final:
        for entry, digits in grouped(zip(record.entries[item.questions], item.correct, strict=True)).items():
            for name, accuracy in accuracies(item.questions, "".join(digits)).items():
                yield (name, entry), accuracy
