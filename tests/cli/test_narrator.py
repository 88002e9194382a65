"""What `sapo run` prints of its events."""

from __future__ import annotations

import time
from typing import ClassVar

import pytest

from sapo_edge.care.sensors import OthersLoad
from sapo_edge.events import NodeStarted, Paused
from sapo_edge.library.narrator import Narrator
from sapo_edge.library.session import _others
from tests.fakes import round_event


def test_the_time_left_counts_rounds_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Narrator(21) as narrator:
        narrator(NodeStarted(model="m", backend="b"))
        now += 1080  # the head start, and the held-out questions before training
        for number, seconds in ((1, 4.0), (2, 6.0)):
            now += seconds
            narrator(round_event(number))
    left = [line.split("  ")[-1] for line in capsys.readouterr().err.splitlines() if "left" in line]
    assert left == ["1 min 20 s left", "1 min 35 s left"], "20 rounds of 4 s, then 19 of 5"


def test_a_start_that_takes_long_still_says_that_other_programs_take_the_processor() -> None:
    class Load(OthersLoad):
        readings: ClassVar[list[float | None]] = [None, 80.0]

        def percent(self) -> float | None:
            return self.readings.pop(0)

    assert _others(Load(), 0.01) == 80.0


@pytest.mark.parametrize(("reward", "informative", "groups", "advice"), [
    (0.0, 0, 8, "right answers are known"), (1.0, 0, 8, "harder questions"), (0.0, 1, 8, ""), (0.0, 0, 0, ""),
])  # fmt: skip
def test_a_run_that_learns_nothing_says_so_and_what_may_help(
    reward: float, informative: int, groups: int, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Narrator(0) as tell:
        for number in range(1, 7):
            tell(round_event(number, reward_own=reward, informative=informative, groups=groups))
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("round")]
    assert len(lines) == (2 if advice else 0) and all(advice in line for line in lines)


def test_pauses_are_told_and_not_counted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Narrator(4) as tell:
        tell(NodeStarted(model="m", backend="b"))
        now += 10
        tell(Paused(reasons=("on battery (71 %)",)))
        now += 3600
        tell(Paused(reasons=("on battery (70 %)", "asked to pause")))
        now += 3600
        tell(Paused(reasons=()))
        now += 10
        tell(round_event(1, seconds_generate=16, seconds_update=4))
    lines = capsys.readouterr().err.splitlines()
    assert lines[2:5] == ["paused: on battery (71 %)", "paused: on battery (70 %), asked to pause", "resumed"]
    # Three rounds of 20 seconds of work each, two hours of pause left out.
    assert lines[5].endswith("1 min 0 s left")
