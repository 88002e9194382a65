"""Swarms of an experiment over the product's own transport on 127.0.0.1."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from sapo_edge.experiment.loopback import LoopbackSwarm
from sapo_edge.experiment.plan import Arm, Learning, Setting, Training
from sapo_edge.experiment.records import SwarmRecord
from sapo_edge.experiment.shelf import Shelf
from sapo_edge.experiment.swarm import Network, QuestionSet, Swarm
from sapo_edge.tasks.manifest import load_manifest
from tests.fakes import LengthScored, SavedPolicy

SOURCE = LengthScored(load_manifest("starter"))
ARM = Arm("2/2", "half from peers", Training(own=2, external=2, answers=4))
SETTING = Setting("plain", "Plain", (ARM,), ARM.name, nodes=2, rounds=3)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(SavedPolicy(), tmp_path / "adapters")


def run(shelf: Shelf, arm: Arm = ARM, network: Network | None = None, nodes: int = 2) -> SwarmRecord:
    """The record of a swarm of three rounds."""
    sets = {name: QuestionSet(SOURCE, SOURCE.held_out(name, 4)) for name in ("validation", "test")}
    setting = replace(SETTING, arms=(arm,), baseline=arm.name, nodes=nodes)
    return Swarm(setting, arm, Learning(), 1, SOURCE, {"base": shelf}, sets, network).run()[0]


@pytest.fixture
def loopback() -> Iterator[LoopbackSwarm]:
    with closing(LoopbackSwarm(SOURCE)) as swarm:
        yield swarm


def test_rollouts_arrive_over_libp2p_as_in_memory(shelf: Shelf, loopback: LoopbackSwarm) -> None:
    record = run(shelf, network=loopback)
    assert [part.taken for part in record.rounds][:3] == [0, 2, 2], "the first of all has nothing to take"
    assert record == run(shelf)


def test_hostile_members_pass_the_real_admission(shelf: Shelf, loopback: LoopbackSwarm) -> None:
    arm = replace(ARM, name="flood", attack="flood", hostile=1)
    received: list[str] = []
    join = loopback.join

    def watched() -> object:
        transport = join()
        transport.subscribe(lambda rollout, _: received.append(rollout.author))
        return transport

    loopback.join = watched  # type: ignore[assignment, method-assign]
    record = run(shelf, arm, loopback, nodes=3)
    assert {"node-0", "node-1", "hostile-0"} == set(received)
    assert {part.node for part in record.rounds} == {0, 1}


def test_many_swarms_leave_no_threads_and_sockets(shelf: Shelf) -> None:
    def swarm() -> None:
        with closing(LoopbackSwarm(SOURCE)) as network:
            run(shelf, network=network)

    swarm()
    process = psutil.Process()
    files, running = process.num_fds(), threads()
    for _ in range(2):
        swarm()
    # Fewer if what earlier tests left open was collected meanwhile.
    assert process.num_fds() <= files and threads() == running


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("sapo")]
