"""`sapo run` gives its swarm the room that its rounds set."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sapo_edge.cli.run import open_transport
from sapo_edge.cli.workspace import Workspace
from sapo_edge.config.settings import Settings
from sapo_edge.room import Room
from sapo_edge.swarm.member import member
from sapo_edge.tasks.manifest import load_manifest
from sapo_edge.tasks.source import TaskSource


def test_the_swarm_of_a_node_accepts_what_its_rounds_allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    def make(*parts: Any) -> SimpleNamespace:
        opened.extend(parts)
        return SimpleNamespace(start=lambda: SimpleNamespace(close=lambda: None, status=lambda: None))

    monkeypatch.setattr(member, "Member", make)
    swarm = SimpleNamespace(id=bytes(32), key=None, bootstrap=())
    paths = SimpleNamespace(state=tmp_path)
    workspace = SimpleNamespace(swarm=swarm, is_alone=False, settings=Settings(), paths=paths)
    room = Room()
    room.author = room.newcomers = 0.001
    with ExitStack() as closing:
        source = TaskSource(load_manifest("starter"))
        open_transport(cast("Workspace", workspace), source, bytes(32), lambda event: None, closing, room)
    reputation = opened[1].reputation
    reputation.charge("author", "neighbour")
    assert not reputation.allows("author", "neighbour")
