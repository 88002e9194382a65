"""What `sapo run` prints of its events."""

from __future__ import annotations

import time

import pytest

from sapo_edge.cli.narrator import Narrator
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
