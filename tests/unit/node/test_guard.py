"""A node whose validation accuracy falls while it takes external rollouts, and its return to an earlier checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sapo_edge import events
from sapo_edge.config.settings import Settings
from sapo_edge.control.protocol import ControlError
from sapo_edge.errors import CheckpointError
from sapo_edge.node.controlled import NodeControl
from sapo_edge.node.guard import HALVINGS, Guard
from sapo_edge.node.rollback import remember_used
from sapo_edge.node.rounds import Node
from sapo_edge.pool.pool import Pool
from sapo_edge.rollout import Answer, Rollout
from sapo_edge.state.paths import Paths
from sapo_edge.state.store import Store
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.transport import Solo
from tests.fakes import FakePolicy, LengthScored

SETTINGS = Settings(
    head_start="0",
    own=2,
    external=4,
    answers=3,
    rounds=6,
    held_out=40,
    evaluate_every=1,
    keep_checkpoints=50,
    seed=5,
    strategy="uniform",
)
PEERS_ROLLOUTS = 60


@pytest.fixture(scope="module")
def source() -> LengthScored:
    return LengthScored(load_manifest("starter"))


class Trained:
    """A node whose validation accuracy is 1 except after the rounds in `bad`.

    Args:
        home: of its state directory.
        source: of tasks; peers' rollouts are of them too.
        bad: rounds after which every answer is wrong.
    """

    def __init__(self, home: Path, source: LengthScored, bad: set[int]) -> None:
        self.paths = Paths.default(home)
        self.source = source
        self.bad = bad
        self.events: list[events.Event] = []
        self.policy = FakePolicy()
        self.node: Node
        self.during: Callable[[events.Event], None] = lambda event: None

    def run(self, settings: Settings = SETTINGS) -> events.NodeStopped:
        self.events = []
        self.policy = FakePolicy(script=lambda _prompt, position: "xx" if position == 0 and not self._is_bad() else "x")
        with Store(self.paths, keep_checkpoints=settings.keep_checkpoints) as store:
            self.node = Node(settings, self.source, store, self.policy, Solo(), self._receive)
            tasks, _ = self.source.training_tasks(99, 0, PEERS_ROLLOUTS)
            answers = (Answer("x", True), Answer("xx", True))
            for number, task in enumerate(tasks):
                # From many networks: the share of one in an update is limited.
                author, network = f"peer {number % 10}", f"network {number % 10}"
                rollout = Rollout(task.ref, task.question, task.ground_truth, answers, author, 1, number, 1.0)
                self.node.pool.add(rollout, network)
            return self.node.run()

    def _is_bad(self) -> bool:
        return self.node.round in self.bad

    def _receive(self, event: events.Event) -> None:
        self.events.append(event)
        self.during(event)

    @property
    def external(self) -> list[tuple[int, int]]:
        """Own and external groups of each round."""
        return [(event.own, event.external) for event in self.events if isinstance(event, events.RoundFinished)]

    @property
    def notices(self) -> list[tuple[str, str]]:
        return [(event.level, event.text) for event in self.events if isinstance(event, events.Notice)]


@pytest.fixture
def trained(tmp_path: Path, source: LengthScored) -> Trained:
    return Trained(tmp_path / "home", source, {2, 3})


def test_a_fall_takes_fewer_external_rollouts_and_says_so(trained: Trained) -> None:
    trained.run(replace(SETTINGS, rounds=8))
    assert trained.external == [(2, 4), (2, 4), (4, 2), (5, 1), (5, 1), (4, 2), (4, 2), (2, 4)]
    assert trained.notices == [
        (
            "warning",
            "validation accuracy fell from 1.00 to 0.00 while up to 4 of 6 rollouts in each update came from peers: "
            "taking 2 from now on; `sapo rollback` returns to round 1, the best checkpoint so far",
        ),
        (
            "warning",
            "validation accuracy fell from 1.00 to 0.00 while up to 2 of 6 rollouts in each update came from peers: "
            "taking 1 from now on; `sapo rollback` returns to round 1, the best checkpoint so far",
        ),
        ("info", "validation accuracy holds: taking up to 2 of 4 rollouts from peers again"),
        ("info", "validation accuracy holds: taking up to 4 of 4 rollouts from peers again"),
    ]


def test_a_restarted_node_continues_like_an_unbroken_one(trained: Trained) -> None:
    told = []
    for rounds in range(1, 9):
        trained.run(replace(SETTINGS, rounds=rounds))
        told += trained.external
    assert told == [(2, 4), (2, 4), (4, 2), (5, 1), (5, 1), (4, 2), (4, 2), (2, 4)]


@pytest.mark.parametrize("changes", [{"protect": "off"}, {"network": "solo"}, {"external": 0}])
def test_where_there_is_nothing_to_protect_nothing_changes(trained: Trained, changes: dict[str, object]) -> None:
    trained.run(replace(SETTINGS, **changes))  # type: ignore[arg-type]
    assert len(set(trained.external)) == 1 and not [text for _, text in trained.notices if "validation" in text]
    assert NodeControl(trained.node, None)._reduced() is None


def test_a_kill_between_evaluation_and_checkpoint_loses_nothing(trained: Trained) -> None:
    """The journal has the state with the evaluation, in one transaction."""

    class Killed(BaseException):
        """Stands for an abrupt end."""

    def die(event: events.Event) -> None:
        if isinstance(event, events.HeldOut) and event.round == 2:
            raise Killed

    trained.during = die
    with pytest.raises(Killed):
        trained.run()
    trained.during = lambda event: None
    trained.run(replace(SETTINGS, rounds=3))
    assert trained.external == [(4, 2)]


def test_the_status_shows_the_reduction_while_it_lasts(trained: Trained) -> None:
    seen: list[object] = []
    trained.during = lambda event: (
        seen.append(NodeControl(trained.node, None).status()["reduced"])
        if isinstance(event, events.CheckpointSaved)
        else None
    )
    trained.run()
    half, quarter = {"external": 2, "setting": 4}, {"external": 1, "setting": 4}
    assert seen == [None, half, quarter, quarter, half, half]


def test_without_a_better_checkpoint_no_way_back_is_named(trained: Trained) -> None:
    trained.bad = {1}
    trained.run(replace(SETTINGS, rounds=1))
    assert [text.rpartition(": ")[2] for level, text in trained.notices if level == "warning"] == [
        "taking 2 from now on"
    ]


def ask_at(trained: Trained, round: int, target: int | None) -> list[object]:
    """Ask for a return as soon as a round's checkpoint is saved; the replies."""
    replies: list[object] = []

    def act(event: events.Event) -> None:
        if isinstance(event, events.CheckpointSaved) and event.round == round and not replies:
            replies.append(NodeControl(trained.node, None).roll_back(target))

    trained.during = act
    return replies


def used_ids(trained: Trained) -> list[str]:
    with Store(trained.paths) as store:
        return [identity for identity, _, _ in store.journal.used_external(1000)]


def test_a_running_node_returns_to_its_best_checkpoint_and_goes_on(trained: Trained) -> None:
    replies = ask_at(trained, 3, None)
    seen: list[str] = []
    before = trained.during

    def act(event: events.Event) -> None:
        before(event)
        if isinstance(event, events.RolledBack):
            directory = trained.paths.checkpoints / "round-000001"
            assert trained.policy.state == (directory / "adapter_model.safetensors").read_text()
            assert trained.node.round == 1 and [item.round for item in trained.node.recent] == [1]
            trained.bad = set()
        if isinstance(event, events.RoundFinished):
            with_tasks = trained.node.store.journal.rollouts(event.round)
            seen.extend(item.rollout.id if not item.own else item.rollout.question for item in with_tasks)

    trained.during = act
    stopped = trained.run(replace(SETTINGS, rounds=4))
    assert replies == [{"from": 3, "to": 1}]
    rounds = [event.round for event in trained.events if isinstance(event, events.RoundFinished)]
    assert rounds == [1, 2, 3, 2, 3, 4] and stopped.rounds == 6
    # The reduction stays: the same peers would do the same again.
    assert trained.external == [(2, 4), (2, 4), (4, 2), (5, 1), (5, 1), (4, 2)]
    assert len(seen) == len(set(seen)) == 6 * 6, "no question and no external rollout twice"
    (event,) = [event for event in trained.events if isinstance(event, events.RolledBack)]
    assert (event.from_round, event.to_round) == (3, 1)
    with Store(trained.paths) as store:
        assert [item.round for item in store.journal.rounds()] == [1, 2, 3, 4]
        assert event in store.journal.events()
        assert [item.round for item in store.journal.held_out()] == [0, 1, 2, 3, 4]
        assert store.checkpoints.rounds() == [1, 2, 3, 4]
        names = sorted(path.name for path in trained.paths.checkpoints.iterdir() if path.suffix)
    assert names == ["round-000002.rolled-back", "round-000003.rolled-back"]


def test_after_a_return_and_a_restart_nothing_comes_twice(trained: Trained) -> None:
    trained.run(replace(SETTINGS, rounds=3))
    first = set(used_ids(trained))
    with Store(trained.paths) as store:
        asked = {item.rollout.question for round in (1, 2, 3) for item in store.journal.rollouts(round) if item.own}
        remember_used(store)
        store.roll_back(1)
    trained.run(replace(SETTINGS, rounds=3))
    with Store(trained.paths) as store:
        again = {item.rollout.question for round in (2, 3) for item in store.journal.rollouts(round) if item.own}
        later = {item.rollout.id for round in (2, 3) for item in store.journal.rollouts(round) if not item.own}
    assert later and not later & first
    assert again and not again & asked


def test_a_paused_node_returns_without_being_resumed(trained: Trained) -> None:
    replies = ask_at(trained, 3, 2)
    before = trained.during

    def act(event: events.Event) -> None:
        before(event)
        if isinstance(event, events.CheckpointSaved) and event.round == 3:
            trained.node.stop.pause("asked to pause")
        if isinstance(event, events.RolledBack):
            trained.node.stop.after_round()

    trained.during = act
    trained.run()
    assert replies == [{"from": 3, "to": 2}] and trained.node.round == 2


def test_the_round_in_progress_does_not_remove_the_checkpoint_to_return_to(trained: Trained) -> None:
    replies: list[object] = []

    def act(event: events.Event) -> None:
        if isinstance(event, events.RoundFinished) and event.round == 3 and not replies:
            replies.append(NodeControl(trained.node, None).roll_back(2))
            trained.node.stop.after_round()

    trained.during = act
    trained.run(replace(SETTINGS, keep_checkpoints=1))
    assert replies and trained.node.round == 2
    with Store(trained.paths) as store:
        assert store.checkpoints.rounds() == [1, 2]


def test_a_return_is_made_even_if_the_node_is_asked_to_stop(trained: Trained) -> None:
    replies = ask_at(trained, 3, 1)
    before = trained.during

    def act(event: events.Event) -> None:
        before(event)
        if replies:
            trained.node.stop.after_round()

    trained.during = act
    stopped = trained.run()
    assert stopped.rounds == 3 and trained.node.round == 1
    with Store(trained.paths) as store:
        assert store.latest is not None and store.latest.round == 1


def test_the_newest_checkpoint_is_nothing_to_return_to(trained: Trained) -> None:
    replies = ask_at(trained, 2, 2)
    trained.run(replace(SETTINGS, rounds=3))
    assert replies == [{"from": 2, "to": 2}]
    assert not [event for event in trained.events if isinstance(event, events.RolledBack)]


def test_a_checkpoint_that_is_not_kept_and_a_generator_are_refused(trained: Trained) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint of round 7; give --round 1, 2 or 3"):
        trained.run(replace(SETTINGS, rounds=3)) and NodeControl(trained.node, None).roll_back(7)
    trained.node.settings = replace(SETTINGS, role="generator")
    with pytest.raises(ControlError, match="does not learn"):
        NodeControl(trained.node, None).roll_back(1)


def test_a_checkpoint_that_is_damaged_meanwhile_is_not_returned_to(trained: Trained) -> None:
    replies = ask_at(trained, 2, 1)
    before = trained.during

    def act(event: events.Event) -> None:
        before(event)
        if replies:
            (trained.paths.checkpoints / "round-000001" / "adapter_model.safetensors").write_text("?")

    trained.during = act
    trained.run(replace(SETTINGS, rounds=3))
    assert trained.node.round == 3
    assert any("does not return to round 1" in text for _, text in trained.notices)


def test_an_unreadable_pool_does_not_prevent_a_return(trained: Trained) -> None:
    trained.run(replace(SETTINGS, rounds=3))
    ids = used_ids(trained)
    trained.paths.run.pool.write_bytes(b"?")
    with Store(trained.paths) as store:
        remember_used(store)
        assert "damaged" in store.notices[-1]
    pool = Pool("me")
    pool.load(trained.paths.run.pool)
    assert ids and set(ids) == set(pool._removed)


def test_a_reduction_is_kept_over_a_return(trained: Trained) -> None:
    trained.run(replace(SETTINGS, rounds=2))
    with Store(trained.paths) as store:
        store.roll_back(1)
        assert store.journal.counter(HALVINGS) == 1 and Guard(store.journal).external(SETTINGS) == 2
        assert Guard(store.journal).external(replace(SETTINGS, protect="off")) == 4
