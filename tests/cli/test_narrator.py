"""What `sapo run` prints of its events."""

from __future__ import annotations

import time
from typing import ClassVar

import pytest

from sapo_edge.care.sensors import OthersLoad
from sapo_edge.cli.narrator import Narrator
from sapo_edge.cli.run import _others
from sapo_edge.events import NodeStarted
from tests.fakes import round_event


def test_the_time_left_counts_no_head_start_and_no_evaluation_as_a_round(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
