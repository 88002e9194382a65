"""What clients of the control socket can ask of a running node."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sapo_edge.advantage import external_advantages
from sapo_edge.config.settings import Settings
from sapo_edge.control.journal_view import RolloutQuery
from sapo_edge.control.protocol import ControlError
from sapo_edge.errors import ConfigError
from sapo_edge.events import CheckpointSaved, Event, HeldOut, Progress, RoundFinished
from sapo_edge.node.controlled import NodeControl
from sapo_edge.node.methods import handlers
from sapo_edge.node.rounds import RECENT, Node
from sapo_edge.policy import ExternalRule
from sapo_edge.state.store import Store
from sapo_edge.swarm.joining.identity import readable_name
from sapo_edge.swarm.memory import MemorySwarm
from sapo_edge.tasks.source import TaskSource
from tests.fakes import FakePolicy
from tests.unit.node.machine import SETTINGS as PLAIN
from tests.unit.node.machine import Machine

SETTINGS = replace(PLAIN, external=2, evaluate_every=2)


class Watched(Machine):
    """A node whose status is recorded before it runs, at every event, and at its end."""

    def __init__(self, home: Path, source: TaskSource) -> None:
        super().__init__(home, source)
        self.seen: list[tuple[Event, dict[str, Any]]] = []
        self.during = lambda event: self.seen.append((event, self.status()))

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(json.dumps(NodeControl(self.node, None).status(), allow_nan=False))
        return status

    def run(self, settings: Settings = SETTINGS) -> dict[str, Any]:
        """Run a node; its status before."""
        before: list[dict[str, Any]] = []
        self.seen.clear()
        self.start(settings, prepare=lambda node: before.append(self.status()))
        return before[0]


@pytest.fixture
def watched(tmp_path: Path, source: TaskSource) -> Watched:
    return Watched(tmp_path / "home", source)


def informative_share(rounds: list[RoundFinished]) -> float:
    return sum(event.informative for event in rounds) / sum(event.groups for event in rounds)


def test_the_status_follows_the_node(watched: Watched) -> None:
    before = watched.run()
    assert before["state"] == "starting"
    unknown = ("progress", "best", "informative_share", "tokens_per_second", "phase")
    assert [before[name] for name in unknown] == [None] * len(unknown)
    assert {Progress, RoundFinished} <= {type(event) for event, _ in watched.seen}
    for event, status in watched.seen:
        if isinstance(event, Progress):
            assert status["progress"] == {name: getattr(event, name) for name in ("phase", "done", "total", "unit")}
            assert status["phase"] == event.phase
        if isinstance(event, RoundFinished):
            assert status["round"] == status["last_round"]["round"] == event.round
            assert status["tokens_per_second"] == pytest.approx(event.tokens / event.seconds_generate)
    last = watched.seen[-1][1]
    assert last["informative_share"] == pytest.approx(informative_share(watched.of(RoundFinished)))
    assert last["memory"]["peak"] >= last["memory"]["rss"] > 10_000_000
    assert last["limits"] == {"threads": 1, "others": None}


def test_the_status_has_the_best_checkpoint_at_its_event(watched: Watched) -> None:
    watched.run(replace(SETTINGS, evaluate_every=1))
    accuracies = {event.round: event.accuracy for event in watched.of(HeldOut)}
    saved = [(event.round, status) for event, status in watched.seen if isinstance(event, CheckpointSaved)]
    assert [number for number, _ in saved] == sorted(accuracies)[1:]
    for number, status in saved:
        assert status["best"]["accuracy"] == max(accuracies[earlier] for earlier in range(1, number + 1))
        assert accuracies[status["best"]["round"]] == status["best"]["accuracy"]


def test_a_node_that_is_asked_to_stop_says_that_it_does_not_pause(watched: Watched) -> None:
    watched.run()
    control = NodeControl(watched.node, None)
    control.stop_after_round()
    with pytest.raises(ControlError, match="is stopping already"):
        control.pause()
    assert watched.node.stop.reasons == ()


def test_after_a_restart_the_status_continues(watched: Watched) -> None:
    watched.run(replace(SETTINGS, rounds=RECENT + 2))
    share = informative_share(watched.of(RoundFinished)[-RECENT:])
    before = watched.run(replace(SETTINGS, rounds=RECENT + 2))
    after = watched.seen[0][1]
    assert before["informative_share"] == after["informative_share"] == pytest.approx(share)
    assert before["best"] is None and after["best"] is not None


def test_live_settings_change_all_or_none(watched: Watched) -> None:
    def change(node: Node) -> None:
        settings = handlers(NodeControl(node, None))["settings"]
        before = node.settings
        for changes, message in (
            ({"temperature": 0.5, "rank": 4}, "can't be changed while"),
            ({"temperature": 0.5, "own": 0}, "own = 0 .asked of the running node."),
        ):
            with pytest.raises(ConfigError, match=message):
                settings(changes)
            assert node.settings == before
        with pytest.raises(ControlError):
            settings({"temperature": 0.5, "own": [1]})
        assert node.settings == before
        settings({"own": 6, "answers": 4})
        node.stop.after_round()

    watched.start(prepare=change)
    assert (watched.node.settings.own, watched.node.settings.answers) == (6, 4)


def test_external_rollouts_are_journaled_with_their_rewards(watched: Watched, tmp_path: Path) -> None:
    swarm = MemorySwarm()
    writer = Machine(tmp_path / "other", watched.source)
    with Store(watched.paths) as store:
        reader = Node(SETTINGS, watched.source, store, FakePolicy(), swarm.join(), watched.events.append)
        writer.start(replace(SETTINGS, seed=6), transport=swarm.join())
        reader.run()
        with Store(writer.paths) as other:
            written = {scored.rollout.id: scored for number in (1, 2, 3) for scored in other.journal.rollouts(number)}
        trained = watched.of(RoundFinished)
        assert sum(event.external for event in trained) > 0
        for event in trained:
            kept = store.journal.rollouts(event.round)
            external = [scored for scored in kept if not scored.own]
            assert len(external) == event.external and kept[len(kept) - len(external) :] == external
            for scored in external:
                assert scored.rollout.author == writer.node.author
                assert scored.rewards == written[scored.rollout.id].rewards
                assert scored.advantages == external_advantages(scored.rewards, ExternalRule())
        control = NodeControl(reader, None)
        page = control.rollouts(RolloutQuery(origin="external"))
        assert {item["name"] for item in page["rollouts"]} == {readable_name(writer.node.author)}
        first = page["rollouts"][0]
        whole = control.rollout(first["round"], first["position"])
        assert whole is not None and whole["question"].startswith(first["question"]) and len(whole["answers"]) == 3
        assert control.history(10)["round"] == [1, 2, 3] and control.rollout(99, 0) is None
