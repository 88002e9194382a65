"""What a run costs: seconds of work, and energy where it is measured."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

from sapo_edge.care.power import Power, PowerMeter
from sapo_edge.care.stop import Stop
from sapo_edge.events import Paused
from sapo_edge.node.effort import Effort
from sapo_edge.state.journal import JOULES, MEASURED, WORKED, Journal
from tests.fakes import Clock


def test_pauses_are_neither_work_nor_energy_an_estimate_no_measurement_and_totals_outlive_the_node(
    tmp_path: Path,
) -> None:
    clock, stop = Clock(), Stop()
    meter = Mock(PowerMeter, **{"read.return_value": Power(20.0, "processor")})
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        effort = Effort(journal, stop, meter, clock)
        stop.changed = lambda reasons: journal.record(Paused(reasons=reasons), counters=effort.counters())
        clock.now += 10
        stop.pause("hot")
        clock.now += 1000
        stop.resume("hot")
        clock.now += 5
        assert effort.counters() == {WORKED: 15, MEASURED: 15, JOULES: 300}
        stop.pause("hot")
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        stop = Stop()
        effort = Effort(journal, stop, meter, clock)
        clock.now += 1
        assert effort.counters() == {WORKED: 16, MEASURED: 16, JOULES: 320}
        meter.read.return_value = Power(20.0, "estimate")
        clock.now += 10
        assert effort.counters() == {WORKED: 26, MEASURED: 16, JOULES: 320}
        stop.pause("hot")
        stop.after_round()
        effort.counters()
        clock.now += 3
        assert effort.counters()[WORKED] == 29, "it works to its end"
