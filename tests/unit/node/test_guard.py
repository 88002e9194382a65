"""A node whose validation accuracy falls while it takes external rollouts, and its return to an earlier checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import Mock

import pytest

from sapo_edge.config.settings import Settings
from sapo_edge.control.protocol import ControlError
from sapo_edge.errors import CheckpointError
from sapo_edge.events import CheckpointSaved, Event, HeldOut, NodeStarted, NodeStopped, RolledBack, RoundFinished
from sapo_edge.node.controlled import NodeControl
from sapo_edge.node.guard import Guard
from sapo_edge.node.rollback import remember_used
from sapo_edge.node.rounds import Node
from sapo_edge.pool.pool import Pool, PoolOutcome
from sapo_edge.state.store import Store
from sapo_edge.transport import Solo
from tests.fakes import FakePolicy, LengthScored
from tests.unit.node.machine import SETTINGS as PLAIN
from tests.unit.node.machine import Machine, offered

SETTINGS = replace(PLAIN, external=4, rounds=6, held_out=40, evaluate_every=1, strategy="uniform")
PEERS_ROLLOUTS = 60
FALL = (
    "validation accuracy fell from 1.00 to 0.00 while up to {} of 6 rollouts in each update came from peers: taking {} "
    "from now on; `sapo rollback` returns to round 1, the best checkpoint so far"
)
COURSE = [(2, 4), (2, 4), (4, 2), (5, 1), (5, 1), (4, 2), (4, 2), (2, 4)]
"""Own and external groups of each round, of a node that never returns."""
HOLDS = "validation accuracy holds: taking up to {} of 4 rollouts from peers again"


class Trained(Machine):
    """A node whose validation accuracy is 1 except after the rounds in `bad`."""

    bad = frozenset({2, 3})

    def run(self, settings: Settings = SETTINGS) -> NodeStopped:
        return self.start(settings, prepare=self._fill, script=self._answer)

    def _answer(self, _prompt: object, position: int) -> str:
        return "xx" if position == 0 and self.node.round not in self.bad else "x"

    def _fill(self, node: Node) -> None:
        for number, task in enumerate(self.source.training_tasks(99, 0, PEERS_ROLLOUTS)[0]):
            # From many networks: the share of one in an update is limited.
            node.pool.add(offered(task, f"peer {number % 10}", number), f"network {number % 10}")

    @property
    def external(self) -> list[tuple[int, int]]:
        """Own and external groups of each round."""
        return [(event.own, event.external) for event in self.of(RoundFinished)]

    def ask_at(self, round: int, target: int | None) -> list[object]:
        """Ask for a return as soon as a round's checkpoint is saved; the replies."""
        replies: list[object] = []
        self.at(CheckpointSaved, lambda: replies.append(NodeControl(self.node, None).roll_back(target)), round)
        return replies


@pytest.fixture
def trained(tmp_path: Path, source: LengthScored) -> Trained:
    return Trained(tmp_path / "home", source)


def reductions(trained: Trained) -> list[object]:
    """What the status says of it at each checkpoint."""
    seen: list[object] = []

    def look(event: Event) -> None:
        if isinstance(event, CheckpointSaved):
            seen.append(NodeControl(trained.node, None).status()["reduced"])

    trained.then(look)
    return seen


def test_a_fall_takes_fewer_external_rollouts_and_says_so(trained: Trained) -> None:
    reduced = reductions(trained)
    trained.run(replace(SETTINGS, rounds=8))
    half, quarter = {"external": 2, "setting": 4}, {"external": 1, "setting": 4}
    assert reduced == [None, half, quarter, quarter, half, half, None, None]
    assert trained.external == COURSE
    assert trained.notices("warning") == [FALL.format(4, 2), FALL.format(2, 1)]
    assert trained.notices("info") == [HOLDS.format(2), HOLDS.format(4)]


def test_a_restarted_node_continues_like_an_unbroken_one(trained: Trained) -> None:
    told = []
    for rounds in range(1, 9):
        trained.run(replace(SETTINGS, rounds=rounds))
        told += trained.external
    assert told == COURSE


@pytest.mark.parametrize("changes", [{"protect": "off"}, {"network": "solo"}, {"external": 0}])
def test_where_there_is_nothing_to_protect_nothing_changes(trained: Trained, changes: dict[str, object]) -> None:
    reduced = reductions(trained)
    trained.run(replace(SETTINGS, **changes))  # type: ignore[arg-type]
    assert len(set(trained.external)) == 1 and not any("validation" in text for text in trained.notices())
    assert reduced == [None] * 6


def test_a_kill_between_evaluation_and_checkpoint_loses_nothing(trained: Trained) -> None:
    """The journal has the state with the evaluation, in one transaction."""
    trained.at(HeldOut, Mock(side_effect=KeyboardInterrupt), round=2)
    with pytest.raises(KeyboardInterrupt):
        trained.run()
    trained.run(replace(SETTINGS, rounds=3))
    assert trained.external == [(4, 2)]


def test_without_a_better_checkpoint_no_way_back_is_named(trained: Trained) -> None:
    trained.bad = frozenset({1})
    trained.run(replace(SETTINGS, rounds=1))
    assert [text.rpartition(": ")[2] for text in trained.notices("warning")] == ["taking 2 from now on"]


def test_a_running_node_returns_to_its_best_checkpoint_and_goes_on(trained: Trained) -> None:
    replies = trained.ask_at(3, None)
    seen: list[str] = []

    def act(event: Event) -> None:
        if isinstance(event, RolledBack):
            directory = trained.paths.checkpoints / "round-000001"
            assert trained.policy.state == (directory / "adapter_model.safetensors").read_text()
            assert trained.node.round == 1 and [item.round for item in trained.node.recent] == [1]
            trained.bad = frozenset()
        if isinstance(event, RoundFinished):
            with_tasks = trained.node.store.journal.rollouts(event.round)
            seen.extend(item.rollout.id if not item.own else item.rollout.question for item in with_tasks)

    trained.then(act)
    stopped = trained.run(replace(SETTINGS, rounds=4))
    assert replies == [{"from": 3, "to": 1}]
    assert trained.rounds == [1, 2, 3, 2, 3, 4] and stopped.rounds == 6
    # The reduction stays: the same peers would do the same again.
    assert trained.external == [(2, 4), (2, 4), (4, 2), (5, 1), (5, 1), (4, 2)]
    assert len(seen) == len(set(seen)) == 6 * 6, "no question and no external rollout twice"
    (event,) = trained.of(RolledBack)
    assert (event.from_round, event.to_round) == (3, 1)
    with Store(trained.paths) as store:
        assert [item.round for item in store.journal.rounds()] == [1, 2, 3, 4]
        assert event in store.journal.events()
        assert [item.round for item in store.journal.held_out()] == [0, 1, 2, 3, 4]
        assert store.checkpoints.rounds() == [1, 2, 3, 4]
        names = sorted(path.name for path in trained.paths.checkpoints.iterdir() if path.suffix)
    assert names == ["round-000002.rolled-back", "round-000003.rolled-back"]


def test_after_a_return_and_a_restart_nothing_comes_twice_and_the_reduction_stays(trained: Trained) -> None:
    trained.run(replace(SETTINGS, rounds=3))
    with Store(trained.paths) as store:
        first = {identity for identity, _, _ in store.journal.used_external(1000)}
        assert Guard(store.journal).external(replace(SETTINGS, protect="off")) == SETTINGS.external
        asked = {item.rollout.question for round in (1, 2, 3) for item in store.journal.rollouts(round) if item.own}
        remember_used(store)
        store.roll_back(1)
    trained.run(replace(SETTINGS, rounds=3))
    assert trained.external == [(5, 1), (6, 0)], "the reduction is kept"
    with Store(trained.paths) as store:
        again = {item.rollout.question for round in (2, 3) for item in store.journal.rollouts(round) if item.own}
        later = {item.rollout.id for round in (2, 3) for item in store.journal.rollouts(round) if not item.own}
    assert later and not later & first
    assert again and not again & asked


def test_a_paused_node_returns_without_being_resumed(trained: Trained) -> None:
    replies = trained.ask_at(3, 2)
    trained.at(CheckpointSaved, lambda: trained.node.stop.pause("asked to pause"), round=3)
    trained.at(RolledBack, lambda: trained.node.stop.after_round())
    trained.run()
    assert replies == [{"from": 3, "to": 2}] and trained.node.round == 2


def test_the_round_in_progress_does_not_remove_the_checkpoint_to_return_to(trained: Trained) -> None:
    trained.at(RoundFinished, lambda: NodeControl(trained.node, None).roll_back(2), round=3)
    trained.at(RoundFinished, lambda: trained.node.stop.after_round(), round=3)
    trained.run(replace(SETTINGS, keep_checkpoints=1))
    assert trained.node.round == 2, "it returns even if it is asked to stop"
    with Store(trained.paths) as store:
        assert store.checkpoints.rounds() == [1, 2] and store.latest is not None and store.latest.round == 2


def acts_at(instant: int, act: Callable[[], object], method: Callable[[], object]) -> bool:
    """Call a method, and act before the instruction of it with this number; whether it got there."""
    instructions, acted = count(), []

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        if frame.f_code is not method.__func__.__code__:  # type: ignore[attr-defined]
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(instructions) == instant:
            acted.append(act())
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        method()
    finally:
        sys.settrace(before)
    return bool(acted)


def test_a_return_that_another_thread_asks_for_at_any_instant_is_made(trained: Trained) -> None:
    trained.run(replace(SETTINGS, rounds=2))
    with Store(trained.paths) as store:
        node = Node(SETTINGS, trained.source, store, FakePolicy(), Solo(), lambda event: None)
        node.open()
        control, instant = NodeControl(node, None), 0
        while acts_at(instant, lambda: control.roll_back(1), node._roll_back_if_asked):
            node._roll_back_if_asked()
            assert node.round == 1, instant
            node.round, instant = 2, instant + 1
        assert instant > 3


def test_a_return_behind_the_last_start_keeps_what_the_node_was_started_with(trained: Trained) -> None:
    trained.run(replace(SETTINGS, rounds=2))
    trained.ask_at(3, 1)
    trained.run(replace(SETTINGS, rounds=4))
    with Store(trained.paths) as store:
        starts = [event for event in store.journal.events() if isinstance(event, NodeStarted)]
    assert [(start.round, start.settings["rounds"]) for start in starts] == [(0, 2), (1, 4)]


def test_a_checkpoint_that_is_not_kept_and_a_generator_are_refused(trained: Trained) -> None:
    trained.run(replace(SETTINGS, rounds=3))
    with pytest.raises(CheckpointError, match="no checkpoint of round 7; give --round 1, 2 or 3"):
        NodeControl(trained.node, None).roll_back(7)
    trained.node.settings = replace(SETTINGS, role="generator")
    with pytest.raises(ControlError, match="does not learn"):
        NodeControl(trained.node, None).roll_back(1)


def test_neither_the_newest_checkpoint_nor_one_that_is_damaged_meanwhile_is_returned_to(trained: Trained) -> None:
    newest, damaged = trained.ask_at(2, 2), trained.ask_at(3, 1)
    adapter = trained.paths.checkpoints / "round-000001" / "adapter_model.safetensors"
    trained.then(lambda event: adapter.write_text("?") if damaged else None)
    trained.run(replace(SETTINGS, rounds=4))
    assert newest == [{"from": 2, "to": 2}] and trained.rounds == [1, 2, 3, 4] and not trained.of(RolledBack)
    assert sum("does not return to round 1" in text for text in trained.notices()) == 1


def test_an_unreadable_pool_does_not_prevent_a_return(trained: Trained) -> None:
    trained.run(replace(SETTINGS, rounds=3))
    with Store(trained.paths) as store:
        used = [item.rollout for item in store.journal.rollouts(1) if not item.own]
        trained.paths.run.pool.write_bytes(b"?")
        remember_used(store)
        assert "damaged" in store.notices[-1]
    pool = Pool("me")
    pool.load(trained.paths.run.pool)
    assert used and {pool.add(rollout) for rollout in used} == {PoolOutcome.DUPLICATE}
