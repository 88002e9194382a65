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


def test_the_status_follows_the_node_and_continues_after_a_restart(watched: Watched) -> None:
    settings = replace(SETTINGS, rounds=RECENT + 2, evaluate_every=1)
    before = watched.run(settings)
    assert before["state"] == "starting"
    unknown = ("progress", "best", "informative_share", "tokens_per_second", "phase")
    assert [before[name] for name in unknown] == [None] * len(unknown)
    assert {Progress, RoundFinished} <= {type(event) for event, _ in watched.seen}
    accuracies = {event.round: event.accuracy for event in watched.of(HeldOut)}
    assert [event.round for event in watched.of(CheckpointSaved)] == sorted(accuracies)[1:]
    for event, status in watched.seen:
        if isinstance(event, Progress):
            assert status["progress"] == {name: getattr(event, name) for name in ("phase", "done", "total", "unit")}
            assert status["phase"] == event.phase
        if isinstance(event, RoundFinished):
            assert status["round"] == status["last_round"]["round"] == event.round
            assert status["tokens_per_second"] == pytest.approx(event.tokens / event.seconds_generate)
        if isinstance(event, CheckpointSaved):
            best = status["best"]
            assert best["accuracy"] == max(accuracies[earlier] for earlier in range(1, event.round + 1))
            assert accuracies[best["round"]] == best["accuracy"]
    last, share = watched.seen[-1][1], informative_share(watched.of(RoundFinished)[-RECENT:])
    assert last["informative_share"] == pytest.approx(share)
    assert last["memory"]["peak"] >= last["memory"]["rss"] > 10_000_000
    assert last["limits"] == {"threads": 1, "others": None}
    before = watched.run(settings)
    after = watched.seen[0][1]
    assert before["informative_share"] == after["informative_share"] == pytest.approx(share)
    assert before["best"] is None and after["best"] is not None


def test_live_settings_change_all_or_none_and_a_node_that_stops_says_that_it_does_not_pause(watched: Watched) -> None:
    def change(node: Node) -> None:
        settings = handlers(NodeControl(node, None))["settings"]
        before = node.settings
        for changes, error, message in (
            ({"rank": 4}, ConfigError, "can't be changed while"),
            ({"own": 0}, ConfigError, "own = 0 .asked of the running node."),
            ({"own": [1]}, ControlError, "own"),
        ):
            with pytest.raises(error, match=message):
                settings({"temperature": 0.5, **changes})
            assert node.settings == before
        settings({"own": 6, "answers": 4})
        control = NodeControl(node, None)
        control.stop_after_round()
        with pytest.raises(ControlError, match="is stopping already"):
            control.pause()
        assert node.stop.reasons == ()

    watched.start(prepare=change)
    assert (watched.node.settings.own, watched.node.settings.answers) == (6, 4)


def test_external_rollouts_are_journaled_with_their_rewards(watched: Watched, tmp_path: Path) -> None:
    swarm = MemorySwarm()
    writer = Machine(tmp_path / "other", watched.source)
    with Store(watched.paths) as store:
        reader = Node(SETTINGS, watched.source, store, FakePolicy(), swarm.join(), watched.events.append)
        writer.start(replace(SETTINGS, seed=6), transport=swarm.join())
        assert {rollout.author for rollout in reader.pool.candidates()} == {writer.node.author}
        reader.run()
        assert reader.author not in {rollout.author for rollout in reader.pool.candidates()}
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
