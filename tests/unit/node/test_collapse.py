"""A collapse is noticed within three rounds, told, and undone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sapo_edge.config.settings import Settings
from sapo_edge.events import RolledBack, RoundFinished
from sapo_edge.node.collapse import MOST_UNDONE, collapsed
from sapo_edge.policy import Prompt
from sapo_edge.tasks.checks import Number
from sapo_edge.tasks.manifest import Manifest, TaskEntry
from sapo_edge.tasks.questions import OwnQuestion
from sapo_edge.tasks.source import TaskSource
from tests.fakes import FakePolicy, round_event
from tests.unit.node.machine import Machine

SETTINGS = Settings(
    own=4, external=0, answers=4, rounds=12, held_out=6, evaluate_every=3, seed=5, network="solo", head_start="0"
)
OWN = tuple(OwnQuestion(f"{number} + 1?", str(number + 1), Number()) for number in range(40))
SOURCE = TaskSource(Manifest("own", (TaskEntry("mine", questions=OWN, reading="fit"),), max_tokens=64))
# Of requests for a home: the reward and the teaching groups of eight in ten rounds.
HOME = (
    (0.19, 3), (0.17, 3), (0.25, 4), (0.06, 1), (0.19, 2), (0.12, 0), (0.05, 1), (0.06, 1), (0.09, 1), (0.00, 0),
)  # fmt: skip


def rounds(*figures: tuple[float, int]) -> list[RoundFinished]:
    return [
        round_event(number, reward_own=reward, groups=8, informative=teaching)
        for number, (reward, teaching) in enumerate(figures, start=1)
    ]


@pytest.mark.parametrize("figures", [
    [(0.5, 4)] * 10,
    [(0.5, 4)] * 3 + [(0.2, 3)] * 3,
    [(0.01, 1)] * 5 + [(0.0, 0)] * 3,
    [(0.5, 4)] * 3 + [(1.0, 0)] * 3,
    [(0.5, 4), (0.0, 0), (0.0, 0), (0.0, 0)],
], ids=["steady", "harder questions", "nothing to lose", "all right", "too few rounds"])  # fmt: skip
def test_what_is_no_collapse(figures: list[tuple[float, int]]) -> None:
    assert collapsed(rounds(*figures)) is None


def test_a_collapse_is_noticed_within_three_rounds() -> None:
    assert collapsed(rounds(*HOME[:5])) is None
    seen = [number for number in range(1, 11) if collapsed(rounds(*HOME[:number]))]
    assert seen and seen[0] - 6 < 3, "from the sixth round on hardly anything teaches"


class Collapsing(FakePolicy):
    """Right in one of four answers, until an update at a high rate makes all answers alike; a checkpoint undoes it."""

    def __init__(self, threshold: float) -> None:
        super().__init__(self.answer)
        self.threshold = threshold
        self.harm = 0
        self.before_update = self.do_harm

    def answer(self, prompt: Prompt, position: int) -> str:
        if self.harm >= 4:
            return "heating"
        return str(int(prompt[-1].content.split()[0]) + 1) if position == 0 else "no idea"

    def do_harm(self, _policy: FakePolicy) -> None:
        self.harm += self.settings[-1].learning_rate > self.threshold

    def load(self, directory: Path) -> None:
        super().load(directory)
        self.harm = 0


@pytest.mark.parametrize(("threshold", "undone"), [(1.1e-4, 1), (0.0, MOST_UNDONE)])
def test_it_is_told_and_undone_at_half_the_rate(tmp_path: Path, threshold: float, undone: int) -> None:
    machine = Machine(tmp_path, SOURCE)
    machine.start(SETTINGS, Collapsing(threshold))
    best = machine.best()
    told = [text for text in machine.notices("warning") if "a collapse" in text]
    returns = machine.of(RolledBack)
    assert len(told) == len(returns) == undone
    assert returns[0].from_round - returns[0].to_round <= 6
    assert best is not None and (best.accuracy or 0) == 1.0
    assert machine.rounds[-1] == 12, "the run goes on to its end"


def test_a_return_that_somebody_asks_for_in_that_round_goes_before(tmp_path: Path) -> None:
    machine = Machine(tmp_path, SOURCE)
    machine.at(RoundFinished, lambda: machine.node.store.checkpoints.reserved.append(1), round=7)
    machine.start(replace(SETTINGS, keep_checkpoints=50), Collapsing(1.1e-4))
    assert machine.of(RolledBack)[0].to_round == 1


def test_nothing_is_undone_once_no_question_is_held_out_that_tells_whether_answers_are_worse(tmp_path: Path) -> None:
    machine = Machine(tmp_path, SOURCE)
    machine.start(replace(SETTINGS, rounds=5), Collapsing(1.0))
    machine.start(replace(SETTINGS, held_out=0), Collapsing(0.0))
    assert machine.rounds[-1] == 12 and not machine.of(RolledBack)
    assert not [text for text in machine.notices() if "validation fell" in text]
