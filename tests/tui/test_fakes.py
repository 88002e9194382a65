"""The fakes of these tests behave like the real launcher, chat and node."""

from __future__ import annotations

import json
from inspect import signature
from pathlib import Path

import pytest

from sapo_edge.cli.terminal.launcher import ProgramLauncher
from sapo_edge.config.settings import Settings
from sapo_edge.node.controlled import NodeControl
from sapo_edge.node.rounds import Node
from sapo_edge.state.paths import Paths
from sapo_edge.state.store import Store
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.transport import Solo
from sapo_edge.tui.node.launcher import Launcher
from sapo_edge.tui.node.processes import Chat
from tests.fakes import FakePolicy, LengthScored
from tests.tui.fake_launcher import FakeChat, FakeLauncher


def members(cls: type) -> dict[str, object]:
    """The parameters of the public methods of a class; mypy compares attributes."""
    found: dict[str, object] = {}
    inherited = {name: member for one in reversed(cls.__mro__) for name, member in vars(one).items()}
    for name, member in inherited.items():
        if not name.startswith("_") and callable(member):
            found[name] = [(item.name, item.kind, item.default) for item in signature(member).parameters.values()]
    return found


@pytest.mark.parametrize(("protocol", "implementation"), [
    (Launcher, FakeLauncher), (Launcher, ProgramLauncher), (Chat, FakeChat),
])  # fmt: skip
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
