"""The fakes of these tests behave like the real launcher, chat and node."""

from __future__ import annotations

import itertools
import json
from inspect import signature
from pathlib import Path

import pytest

from sapo_edge.cli.terminal.launcher import ProgramLauncher
from sapo_edge.cli.terminal.processes import ChatProcess
from sapo_edge.config.settings import SETTINGS, Settings
from sapo_edge.control.client import connect, node_runs
from sapo_edge.control.protocol import MAX_REPLY_BYTES
from sapo_edge.errors import ConfigError
from sapo_edge.node.controlled import NodeControl
from sapo_edge.node.rounds import Node
from sapo_edge.state.paths import Paths
from sapo_edge.state.store import Store
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.transport import Solo
from sapo_edge.tui.node.launcher import Chat, ChatAnswer, Consent, Launcher
from tests.fakes import FakePolicy, LengthScored
from tests.tui.fake_launcher import INVITE, FakeChat, FakeLauncher
from tests.tui.fake_node import HOSTILE_ANSWERS, HOSTILE_PLACE, PEERS, ScriptedNode


def members(cls: type) -> dict[str, object]:
    """The parameters of the public methods of a class, and `property` for its properties."""
    found: dict[str, object] = {}
    inherited = {name: member for one in reversed(cls.__mro__) for name, member in vars(one).items()}
    for name, member in inherited.items():
        if not name.startswith("_") and callable(member):
            found[name] = [(item.name, item.kind, item.default) for item in signature(member).parameters.values()]
        elif isinstance(member, property):
            found[name] = property
    return found


@pytest.mark.parametrize(
    ("protocol", "implementation"),
    [(Launcher, FakeLauncher), (Launcher, ProgramLauncher), (Chat, FakeChat), (Chat, ChatProcess)],
)
def test_real_and_fake_implement_the_protocol(protocol: type, implementation: type) -> None:
    expected = members(protocol)
    assert expected and {name: item for name, item in members(implementation).items() if name in expected} == expected


def test_the_status_has_the_fields_of_a_real_one(launcher: FakeLauncher, tmp_path: Path) -> None:
    settings = Settings(own=2, external=0, answers=3, rounds=1, held_out=4, seed=5)
    with Store(Paths.default(tmp_path / "real")) as store:
        node = Node(settings, LengthScored(load_manifest("starter")), store, FakePolicy(), Solo(), lambda event: None)
        node.run()
        real = json.loads(json.dumps(NodeControl(node, None).status()))
    fake = launcher.node.status()
    assert list(real) == list(fake)
    for name in ("progress", "best", "pool", "memory", "limits", "last_round", "held_out"):
        assert set(real[name]) == set(fake[name]), name
    assert {name: type(value) for name, value in real.items() if fake[name] is not None and value is not None} == {
        name: type(value) for name, value in fake.items() if real[name] is not None and value is not None
    }


def test_a_client_reads_the_history_and_follows_events(launcher: FakeLauncher) -> None:
    with connect(launcher.paths) as client, connect(launcher.paths) as follower:
        history = client.request("history", {"points": 1000})
        assert history["bucket"] == 1 and history["round"] == list(range(1, 41))
        assert history["held_out"]["accuracy"] == [0.04, 0.19, 0.55, 0.68, 0.66]
        page = client.request("rollouts", {"search": "MARKUP[/bold"})["rollouts"]
        assert [(item["round"], item["position"]) for item in page] == [HOSTILE_PLACE]
        whole = client.request("rollout", {"round": HOSTILE_PLACE[0], "position": HOSTILE_PLACE[1]})
        assert [answer["text"] for answer in whole["answers"]] == list(HOSTILE_ANSWERS)
        assert len(client.request("peers")["peers"]) == len(PEERS)
        assert follower.subscribe(10) == 10
        launcher.node.emit(launcher.node.finished(41))
        events = list(itertools.islice(follower.events(5), 11))
        assert events[-1]["round"] == 41 and client.request("status")["round"] == 41
        client.request("pause")
        assert next(follower.events(5))["reasons"] == ["asked to pause"]
        assert client.request("status")["state"] == "paused"
        client.request("resume")
        assert client.request("settings", {"own": 6})["settings"]["own"] == 6
        question = client.request("question")
        answers = {"ref": question["ref"], "manifest": question["manifest"], "answers": ["<answer>42</answer>", "x"]}
        assert client.request("share_answers", {**answers, "time": 1})["rewards"] == [1.0, 0.0]


def test_it_stops_in_order_or_as_if_it_was_killed(launcher: FakeLauncher) -> None:
    with connect(launcher.paths) as client:
        client.request("stop")
        assert client.wait_for_end(5)
    ending = launcher.ended()
    assert ending is not None and ending.expected and not node_runs(launcher.paths)
    launcher.start()
    with connect(launcher.paths) as client:
        launcher.die()
        assert client.wait_for_end(5)
    ending = launcher.ended()
    assert ending is not None and not ending.expected and not node_runs(launcher.paths)
    launcher.start()
    assert node_runs(launcher.paths) and launcher.ended() is None and launcher.starts == 2


def test_a_new_node_has_no_history(tmp_path: Path) -> None:
    launcher = FakeLauncher(tmp_path, running=False, rounds=0)
    launcher.hold = True
    launcher.start()
    assert not node_runs(launcher.paths)
    node = launcher.arrive()
    with connect(launcher.paths) as client:
        assert client.request("status")["state"] == "starting"
        assert client.request("history")["round"] == []
        node.progress("evaluate", 1, 4)
        assert client.request("status")["progress"] == {"phase": "evaluate", "done": 1, "total": 4, "unit": "answers"}
    launcher.close()


def test_consents_and_changes_are_recorded(launcher: FakeLauncher) -> None:
    launcher.accept(Consent("invite", INVITE))
    with pytest.raises(ConfigError, match="cut off"):
        launcher.accept(Consent("invite", INVITE[:-1]))
    launcher.set("own", "6")
    assert launcher.setting("own") == 6
    (row,) = [row for row in launcher.settings() if row.name == "own"]
    assert (row.value, row.setting) == (6, SETTINGS["own"]) and row.source.startswith("file ")
    with pytest.raises(ConfigError, match="not allowed"):
        launcher.set("own", "many")
    launcher.set("own", None)
    assert launcher.setting("own") == 4 and launcher.changes == [("own", "6"), ("own", None)]


def test_the_chat_streams_whole_texts(launcher: FakeLauncher) -> None:
    chat, shown = launcher.chat(), list[ChatAnswer]()
    assert "round 30" in chat.open(lambda text: None)
    chat.ask("17 + 25?", task=True, temperature=0.0, show=shown.append)
    for adapter in (False, True):
        pieces = [piece for piece in shown if piece.adapter == adapter]
        assert all(later.text.startswith(piece.text) for piece, later in itertools.pairwise(pieces))
        assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        assert pieces[-1].text == chat.answers[adapter]


def test_no_reply_exceeds_the_limit(tmp_path: Path) -> None:
    node = ScriptedNode(Paths.default(tmp_path))
    whole = node.rollout(*HOSTILE_PLACE)
    assert len(json.dumps(node.history(1000))) < MAX_REPLY_BYTES and len(json.dumps(whole)) < MAX_REPLY_BYTES
    node.journal.close()
