"""What clients of the control socket can ask of a running node."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
from sapo_edge.state.paths import Paths
from sapo_edge.state.store import Store
from sapo_edge.swarm.joining.identity import readable_name
from sapo_edge.swarm.memory import MemorySwarm
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.transport import Solo, Transport
from tests.fakes import FakePolicy, LengthScored

SETTINGS = Settings(head_start="0", own=2, external=2, answers=3, rounds=3, held_out=4, evaluate_every=2, seed=5)


class Watched(Node):
    """A node that records its status at every event."""

    def __init__(self, *arguments: Any) -> None:
        self.seen: list[tuple[Event, dict[str, Any]]] = []
        super().__init__(*arguments)
        self.control = NodeControl(self, None)

    def note(self, event: Event) -> None:
        self.seen.append((event, json.loads(json.dumps(self.control.status(), allow_nan=False))))


@pytest.fixture(scope="module")
def source() -> LengthScored:
    return LengthScored(load_manifest("starter"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(Paths.default(tmp_path / "home")) as opened:
        yield opened


def make(
    store: Store, source: LengthScored, settings: Settings = SETTINGS, transport: Transport | None = None
) -> Watched:
    node: Watched
    node = Watched(settings, source, store, FakePolicy(), transport or Solo(), lambda event: node.note(event))
    return node


def test_the_status_follows_the_node(store: Store, source: LengthScored) -> None:
    node = make(store, source)
    before = node.control.status()
    assert before["state"] == "starting" and before["progress"] is None and before["best"] is None
    assert before["informative_share"] is None and before["tokens_per_second"] is None and before["phase"] is None
    node.run()
    assert {Progress, RoundFinished} <= {type(event) for event, _ in node.seen}
    for event, status in node.seen:
        if isinstance(event, Progress):
            assert status["progress"] == {
                "phase": event.phase, "done": event.done, "total": event.total, "unit": event.unit,
            }  # fmt: skip
            assert status["phase"] == event.phase
        if isinstance(event, RoundFinished):
            assert status["round"] == status["last_round"]["round"] == event.round
            assert status["tokens_per_second"] == pytest.approx(event.tokens / event.seconds_generate)
    rounds = [event for event, _ in node.seen if isinstance(event, RoundFinished)]
    share = sum(event.informative for event in rounds) / sum(event.groups for event in rounds)
    last = node.control.status()
    assert last["informative_share"] == pytest.approx(share)
    assert last["memory"]["peak"] >= last["memory"]["rss"] > 10_000_000 and last["limits"] == {
        "threads": 1,
        "others": None,
    }
    best = store.checkpoints.best()
    assert best is not None and last["best"] == {"round": best.round, "accuracy": best.accuracy}


def test_the_status_has_the_best_checkpoint_at_its_event(store: Store, source: LengthScored) -> None:
    node = make(store, source, replace(SETTINGS, evaluate_every=1))
    node.run()
    accuracies = {event.round: event.accuracy for event, _ in node.seen if isinstance(event, HeldOut)}
    saved = [(event.round, status) for event, status in node.seen if isinstance(event, CheckpointSaved)]
    assert [number for number, _ in saved] == sorted(accuracies)[1:]
    for number, status in saved:
        assert status["best"]["accuracy"] == max(accuracies[earlier] for earlier in range(1, number + 1))


def test_after_a_restart_the_status_continues(store: Store, source: LengthScored) -> None:
    make(store, source, replace(SETTINGS, rounds=RECENT + 2)).run()
    first = store.journal.rounds(RECENT)
    node = make(store, source, replace(SETTINGS, rounds=RECENT + 2))
    before = node.control.status()
    node.open()
    after = node.control.status()
    share = sum(event.informative for event in first) / sum(event.groups for event in first)
    assert before["informative_share"] == after["informative_share"] == pytest.approx(share)
    assert before["best"] is None and after["best"] is not None


def test_live_settings_change_all_or_none(store: Store, source: LengthScored) -> None:
    node = make(store, source, replace(SETTINGS, own=2))
    settings = handlers(node.control)["settings"]
    before = node.settings
    for change, message in (
        ({"temperature": 0.5, "rank": 4}, "can't be changed while"),
        ({"temperature": 0.5, "own": 0}, "own = 0 .asked of the running node."),
    ):
        with pytest.raises(ConfigError, match=message):
            settings(change)
        assert node.settings == before
    with pytest.raises(ControlError):
        settings({"temperature": 0.5, "own": [1]})
    assert node.settings == before
    settings({"own": 6, "answers": 4})
    assert (node.settings.own, node.settings.answers) == (6, 4)


def test_external_rollouts_are_journaled_with_their_rewards(store: Store, source: LengthScored, tmp_path: Path) -> None:
    swarm = MemorySwarm()
    with Store(Paths.default(tmp_path / "other")) as elsewhere:
        reader = make(store, source, transport=swarm.join())
        writer = make(elsewhere, source, replace(SETTINGS, seed=6), swarm.join())
        writer.run()
        reader.run()
        written = {scored.rollout.id: scored for number in (1, 2, 3) for scored in elsewhere.journal.rollouts(number)}
    trained = [event for event, _ in reader.seen if isinstance(event, RoundFinished)]
    assert sum(event.external for event in trained) > 0
    for event in trained:
        kept = store.journal.rollouts(event.round)
        external = [scored for scored in kept if not scored.own]
        assert len(external) == event.external and kept[len(kept) - len(external) :] == external
        for scored in external:
            assert scored.rollout.author == writer.author
            assert scored.rewards == written[scored.rollout.id].rewards
            assert scored.advantages == external_advantages(scored.rewards, ExternalRule())
    page = reader.control.rollouts(RolloutQuery(origin="external"))
    assert {item["name"] for item in page["rollouts"]} == {readable_name(writer.author)}
    first = page["rollouts"][0]
    whole = reader.control.rollout(first["round"], first["position"])
    assert whole is not None and whole["question"].startswith(first["question"]) and len(whole["answers"]) == 3
    assert reader.control.history(10)["round"] == [1, 2, 3] and reader.control.rollout(99, 0) is None
