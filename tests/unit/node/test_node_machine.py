"""A node that trains, returns to checkpoints, restarts, and is killed between any two writes.

A kill is a copy of the state directory as it is before or after one change of a file or one transaction of the journal;
the next node opens that copy. The policy's whole state is the list of what it was trained on.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sapo_edge.rollout import Rollout, TaskRef
from sapo_edge.state.journal import Journal
from sapo_edge.state.paths import Paths
from sapo_edge.state.store import Store
from tests.fakes import FakeTransport
from tests.machines import machine_settings
from tests.unit.node.ledger import open_node, peers_rollout

FILE_CHANGES = ("fsync", "replace", "rename", "unlink", "rmdir", "mkdir")
TRANSACTIONS = ("record", "roll_back", "reserve_sequences", "truncate_after")
LAST_INSTANT = 60
"""Most changes of one operation, before or after which the node is killed."""


class Snapshot:
    """A copy of a directory after so many changes of an operation, and how many rollouts were published by then."""

    def __init__(self, home: Path, copy: Path, instant: int, published: Sequence[Rollout]) -> None:
        self.home, self.copy, self.instant = home, copy, instant
        self.taken, self.published = False, 0
        self._published = published
        self._changes = 0
        self._is_busy = False

    def _look(self) -> None:
        if self._is_busy or self.taken:
            return
        if self._changes == self.instant:
            self._is_busy, self.taken = True, True
            shutil.copytree(self.home, self.copy, ignore=shutil.ignore_patterns("*.sock"))
            self.published = len(self._published)
            self._is_busy = False
        self._changes += 1

    def _around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **options: Any) -> Any:
            self._look()
            result = function(*arguments, **options)
            self._look()
            return result

        return changed

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at every change of this context."""
        with ExitStack() as stack:
            for owner, names in ((os, FILE_CHANGES), (Journal, TRANSACTIONS)):
                for name in names:
                    stack.enter_context(mock.patch.object(owner, name, self._around(getattr(owner, name))))
            yield


class NodeMachine(RuleBasedStateMachine):
    """One state directory, and the nodes that use it one after the other."""

    @initialize()
    def start(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.homes = 0
        self.home = Path(self.directory.name) / "0"
        self.wire = FakeTransport()
        self.sent = 0
        self.finished: set[TaskRef] = set()
        # What the policy was trained on after each round that its node finished or may have finished.
        self.history: dict[int, list[str]] = {0: []}
        self.open()

    def open(self) -> None:
        self.store = Store(Paths.default(self.home), keep_checkpoints=3)
        self.node, self.policy = open_node(self.store, self.wire)
        self.note_state()

    def note_state(self) -> None:
        self.history = {number: trained for number, trained in self.history.items() if number <= self.node.round}
        self.history[self.node.round] = self.policy.trained

    def perform(self, operation: Callable[[], object], instant: int) -> None:
        """Perform an operation; kill the node at an instant of it, if it has so many."""
        self.homes += 1
        copy = self.home.with_name(str(self.homes))
        before = self.node.round, self.policy.trained
        snapshot = Snapshot(self.home, copy, instant, self.wire.published)
        with snapshot.watching():
            operation()
        after = self.node.round, self.policy.trained
        if not snapshot.taken:
            self.note_state()
            return
        self.store.close()
        del self.wire.published[snapshot.published :]
        shutil.rmtree(self.home)
        self.home = copy
        self.open()
        assert (self.node.round, self.policy.trained) in (before, after), "one state or the other"

    def peers_send(self, count: int, again: int) -> None:
        for number in range(max(0, self.sent - again), self.sent + count):
            self.wire.receivers[0](peers_rollout(number), "")
        self.sent += count

    @rule(count=st.integers(0, 3), again=st.integers(0, 4), save=st.booleans(), instant=st.integers(0, LAST_INSTANT))
    def a_round(self, count: int, again: int, save: bool, instant: int) -> None:
        self.peers_send(count, again)
        if save:
            self.node._save_pool()
        begun = len(self.wire.published)
        number = self.node.round
        self.perform(self.node.step, instant)
        tasks = {rollout.ref for rollout in self.wire.published[begun:]}
        assert not tasks & self.finished, "a task of a finished round is published again"
        if self.node.round > number:
            self.finished |= tasks

    @rule(instant=st.integers(0, 12))
    def the_pool_is_saved(self, instant: int) -> None:
        self.perform(self.node._save_pool, instant)

    @precondition(lambda self: len(self.store.checkpoints.rounds()) > 1)
    @rule(which=st.integers(0, 1), instant=st.integers(0, 20))
    def a_return(self, which: int, instant: int) -> None:
        self.store.checkpoints.reserved.append(self.store.checkpoints.rounds()[which])
        self.perform(self.node._roll_back_if_asked, instant)

    @rule(saved=st.booleans())
    def a_restart(self, saved: bool) -> None:
        if saved:
            self.node._save_pool()
        before = self.node.round, self.policy.trained
        self.store.close()
        self.open()
        assert (self.node.round, self.policy.trained) == before

    @invariant()
    def nothing_is_trained_on_twice(self) -> None:
        trained = self.policy.trained
        assert len(trained) == len(set(trained))

    @invariant()
    def every_finished_round_is_kept(self) -> None:
        number = self.node.round
        assert self.policy.trained == self.history[number]
        rounds = self.store.journal.rounds(1000)
        assert [event.round for event in rounds] == list(range(1, number + 1))
        journaled = [scored for event in rounds for scored in self.store.journal.rollouts(event.round)]
        external = [scored.rollout.question for scored in journaled if not scored.own]
        assert external == [question for question in self.policy.trained if question.startswith("question 1 ")]
        kept = self.store.checkpoints.rounds()
        # One more if the node was killed before it removed the oldest; it does so when it starts again.
        assert kept[-1:] == ([number] if number else []) and len(kept) <= 4
        assert all(self.store.checkpoints.load(round).round == round for round in kept)

    @invariant()
    def no_number_is_published_twice(self) -> None:
        numbers = [rollout.sequence for rollout in self.wire.published]
        assert len(numbers) == len(set(numbers))

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            self.directory.cleanup()


TestNode = NodeMachine.TestCase
TestNode.settings = machine_settings(examples=12, steps=12, long=2000)
