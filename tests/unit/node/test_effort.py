"""What a run costs: seconds of work, and energy where it is measured."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from sapo_edge.care.power import Power, PowerMeter, Source
from sapo_edge.care.stop import Stop
from sapo_edge.events import Paused
from sapo_edge.node.effort import Effort
from sapo_edge.state.journal import JOULES, MEASURED, WORKED, Journal


class Machine(PowerMeter):
    """A clock, and a meter that shows 20 W."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.source: Source = "processor"

    def clock(self) -> float:
        return self.now

    def read(self, cores: float, now: float) -> Power:
        return Power(20.0, self.source)


def test_pauses_are_neither_work_nor_energy_an_estimate_no_measurement_and_totals_outlive_the_node(
    tmp_path: Path,
) -> None:
    machine, stop = Machine(), Stop()
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        effort = Effort(journal, stop, machine, machine.clock)
        stop.changed = lambda reasons: journal.record(Paused(reasons=reasons), counters=effort.counters())
        machine.now += 10
        stop.pause("hot")
        machine.now += 1000
        stop.resume("hot")
        machine.now += 5
        assert effort.counters() == {WORKED: 15, MEASURED: 15, JOULES: 300}
        stop.pause("hot")
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        stop = Stop()
        effort = Effort(journal, stop, machine, machine.clock)
        machine.now += 1
        assert effort.counters() == {WORKED: 16, MEASURED: 16, JOULES: 320}
        machine.source = "estimate"
        machine.now += 10
        assert effort.counters() == {WORKED: 26, MEASURED: 16, JOULES: 320}
        stop.pause("hot")
        stop.after_round()
        effort.counters()
        machine.now += 3
        assert effort.counters()[WORKED] == 29, "it works to its end"
