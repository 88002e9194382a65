"""Numbers of one swarm, the unit of every statistic: means over its honest learning nodes, sums over all its members.

Honest learning nodes are the ones that were evaluated. Floats are summed exactly (`math.fsum`), so the order of a
file's rows changes nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sapo_edge.experiment.results import EvaluationRecord, RoundRecord, SwarmRecord

VALIDATION = "validation"
"""The question set that is asked every few rounds."""
TEST = "test"
"""The question set that decides."""

BEFORE = "validation before training"
OWN_REWARD = "cumulative own reward"
EXTERNAL_REWARD = "external reward"
DRAWDOWN = "drawdown"
WORST_DRAWDOWN = "drawdown of the worst node"
OWN_ANSWERS = "own answers"
TOKENS = "own tokens"
TRAINED = "tokens trained on"
TAKEN = "external rollouts taken"

Series = Sequence[tuple[float, float]]
"""Points (x, y) of a curve; x never falls."""


@dataclass(frozen=True, slots=True)
class Measures:
    """What the statistics need of one swarm.

    Attributes:
        values: measure -> number; measures that the swarm lacks are absent.
        tasks: (question set, task entry) -> final accuracy.
        rewards: task entry -> mean own reward of the honest learning nodes over all rounds.
        by_round: (round, validation accuracy).
        by_answers: (own answers of all members so far, validation accuracy).
        by_seconds: (processor seconds of all members so far, validation accuracy).
        own_by_round: (round, mean own reward).
        members: of any kind, with a record.
        received: bytes of others' rollouts that a member accepted in a round of its own.
    """

    seed: int
    values: Mapping[str, float]
    tasks: Mapping[tuple[str, str], float]
    rewards: Mapping[str, float]
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


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean; of at least one number."""
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)


def drawdown(series: Sequence[float]) -> float:
    """Largest fall of a series below its running maximum; 0 for a series that never falls."""
    best, largest = -math.inf, 0.0
    for value in series:
        best = max(best, value)
        largest = max(largest, best - value)
    return largest


def sampled(questions: str) -> tuple[str, int] | None:
    """("test", 8) of "test@8"; None for a set of greedy answers."""
    name, mark, count = questions.partition("@")
    return (name, int(count)) if mark and count.isdecimal() and int(count) else None


def accuracies(questions: str, correct: str) -> dict[str, float]:
    """Accuracies of one evaluation.

    For a sampled set, pass@k is the share of questions with at least one right sample of all k, and pass@1 the share of
    right samples. Both are unbiased (Chen et al., arXiv 2107.03374, with n = k).
    """
    counts = [int(digit) for digit in correct]
    if (samples := sampled(questions)) is None:
        return {questions: mean(counts)}
    name, k = samples
    return {f"{name} pass@{k}": mean(count > 0 for count in counts), f"{name} pass@1 of {k}": mean(counts) / k}


def measure(record: SwarmRecord) -> Measures:
    nodes = sorted({evaluation.node for evaluation in record.evaluations})
    rounds = [row for row in record.rounds if row.node in set(nodes)]
    by_round = _validation(record.evaluations)
    last = max([0, *(row.round for row in record.rounds), *(item.round for item in record.evaluations)])
    answers = _cumulative((row.round, row.generated) for row in record.rounds)
    seconds = _cumulative((row.round, row.seconds) for row in record.rounds)
    return Measures(
        seed=record.seed,
        values={
            **_final(record.evaluations),
            **_oscillation(record.evaluations),
            **_rewards(rounds, len(nodes)),
            **({BEFORE: by_round[0][1]} if by_round and by_round[0][0] == 0 else {}),
            OWN_ANSWERS: sum(row.generated for row in record.rounds),
            TOKENS: sum(row.tokens for row in record.rounds),
            TRAINED: sum(row.trained for row in record.rounds),
            TAKEN: sum(row.taken for row in record.rounds),
        },
        tasks=_by_task(record),
        rewards=_reward_by_task(rounds),
        by_round=by_round,
        by_answers=[(answers(round), accuracy) for round, accuracy in by_round],
        by_seconds=[(seconds(round), accuracy) for round, accuracy in by_round],
        own_by_round=_grouped((row.round, row.own) for row in rounds),
        seconds=seconds(last),
        nodes=len(nodes),
        members=len({row.node for row in record.rounds} | set(nodes)),
        last=last,
        questions={questions: len(entries) for questions, entries in record.entries.items()},
        received=sum(row.received for row in record.rounds) / max(1, len(record.rounds)),
    )


def at(series: Series, x: float) -> float:
    """The curve's y at `x`, interpolated linearly; the nearest end outside of it.

    Args:
        series: at least one point. Where several have one x, the last counts: nothing was spent between them.
    """
    xs = [point[0] for point in series]
    index = bisect_right(xs, x)
    if index == 0:
        return series[0][1]
    if index == len(series) or xs[index - 1] == x:
        return series[index - 1][1]
    (left, low), (right, high) = series[index - 1], series[index]
    return low + (high - low) * (x - left) / (right - left)


def moving_average(series: Series, window: int) -> list[tuple[float, float]]:
    """Means of the last `window` points; of fewer at the start."""
    values = [y for _, y in series]
    return [(x, mean(values[max(0, index + 1 - window) : index + 1])) for index, (x, _) in enumerate(series)]


def _grouped(pairs: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    groups: dict[float, list[float]] = defaultdict(list)
    for x, y in pairs:
        groups[x].append(y)
    return [(x, mean(groups[x])) for x in sorted(groups)]


def _cumulative(pairs: Iterable[tuple[int, float]]) -> Callable[[float], float]:
    """A function: round -> sum of everything up to it."""
    sums: dict[int, list[float]] = defaultdict(list)
    for round, value in pairs:
        sums[round].append(value)
    rounds = sorted(sums)
    totals, total = [0.0], 0.0
    for round in rounds:
        total += math.fsum(sums[round])
        totals.append(total)
    return lambda round: totals[bisect_right(rounds, round)]


def _validation(evaluations: Iterable[EvaluationRecord]) -> list[tuple[float, float]]:
    return _grouped(
        (item.round, accuracies(VALIDATION, item.correct)[VALIDATION])
        for item in evaluations
        if item.questions == VALIDATION
    )


def _last(evaluations: Iterable[EvaluationRecord]) -> list[EvaluationRecord]:
    latest: dict[tuple[str, int], EvaluationRecord] = {}
    for item in evaluations:
        key = item.questions, item.node
        if key not in latest or latest[key].round < item.round:
            latest[key] = item
    return [latest[key] for key in sorted(latest)]


def _final(evaluations: Iterable[EvaluationRecord]) -> dict[str, float]:
    values: dict[str, list[float]] = defaultdict(list)
    for item in _last(evaluations):
        for name, accuracy in accuracies(item.questions, item.correct).items():
            values[name].append(accuracy)
    return {name: mean(numbers) for name, numbers in values.items()}


def _oscillation(evaluations: Iterable[EvaluationRecord]) -> dict[str, float]:
    by_node: dict[int, list[EvaluationRecord]] = defaultdict(list)
    for item in evaluations:
        if item.questions == VALIDATION:
            by_node[item.node].append(item)
    falls = [
        drawdown([accuracy for _, accuracy in _validation(by_node[node])])
        for node in sorted(by_node)
    ]  # fmt: skip
    return {DRAWDOWN: mean(falls), WORST_DRAWDOWN: max(falls)} if falls else {}


def _rewards(rounds: Sequence[RoundRecord], nodes: int) -> dict[str, float]:
    if not nodes:
        return {}
    external: dict[int, list[float]] = defaultdict(list)
    for row in rounds:
        if row.external is not None:
            external[row.node].append(row.external)
    values = {OWN_REWARD: math.fsum(row.own for row in rounds) / nodes}
    if external:
        values[EXTERNAL_REWARD] = mean(mean(rewards) for rewards in external.values())
    return values


def _by_task(record: SwarmRecord) -> dict[tuple[str, str], float]:
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for item in _last(record.evaluations):
        digits: dict[str, list[str]] = defaultdict(list)
        for entry, digit in zip(record.entries[item.questions], item.correct, strict=True):
            digits[entry].append(digit)
        for entry, row in digits.items():
            for name, accuracy in accuracies(item.questions, "".join(row)).items():
                values[name, entry].append(accuracy)
    return {key: mean(values[key]) for key in sorted(values)}


def _reward_by_task(rounds: Iterable[RoundRecord]) -> dict[str, float]:
    sums: dict[str, list[float]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for row in rounds:
        for entry, (reward, answers) in row.tasks.items():
            sums[entry].append(reward)
            counts[entry] += answers
    return {entry: math.fsum(sums[entry]) / counts[entry] for entry in sorted(sums) if counts[entry]}
