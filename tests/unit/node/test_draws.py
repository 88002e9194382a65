"""A node passes over tasks that seldom teach."""

from __future__ import annotations

from sapo_edge.node.draws import LEAST, Draws
from sapo_edge.rollout import Answer, Rollout, ScoredRollout, Task, TaskRef


def task(entry: str, index: int) -> Task:
    return Task(TaskRef(entry, "1", 7, index), f"{entry} {index}", "")


def group(entry: str, *rewards: float) -> ScoredRollout:
    answers = tuple(Answer("x", True) for _ in rewards)
    return ScoredRollout(Rollout(TaskRef(entry, "1", 7, 0), "q", "", answers, "me", 1, 1, 1.0), rewards)


def taken(draws: Draws, entry: str) -> float:
    return sum(draws.takes(task(entry, index)) for index in range(2000)) / 2000


def test_all_are_taken_until_something_is_known_and_where_one_entry_is_all_there_is() -> None:
    draws = Draws()
    assert taken(draws, "easy") == taken(draws, "hard") == 1.0
    for _ in range(50):
        draws.observe([group("easy", 1.0, 1.0)])
    assert taken(draws, "easy") == 1.0, "a share is that of the best entry"
    draws = Draws()
    draws.observe([group("easy", 1.0, 1.0)] * 5 + [group("hard", 0.0, 1.0)] * 5)
    restored = Draws(dict(draws.teaching))
    tasks = [task("easy", index) for index in range(200)]
    assert list(map(draws.takes, tasks)) == list(map(restored.takes, tasks))


def test_what_is_always_right_or_always_wrong_is_taken_seldom_but_not_never() -> None:
    draws = Draws()
    for _ in range(60):
        draws.observe([group("easy", 1.0, 1.0), group("hard", 0.0, 0.0), group("fit", 0.0, 1.0)])
    assert taken(draws, "fit") == 1.0
    for entry in ("easy", "hard"):
        # The standard error of a share of 2000 is below 0.01.
        assert abs(taken(draws, entry) - LEAST) < 0.04
    for _ in range(30):
        draws.observe([group("hard", 0.0, 1.0), group("fit", 1.0, 1.0)])
    assert taken(draws, "hard") > 0.9 > 0.3 > taken(draws, "fit"), "and what begins to teach comes back"
