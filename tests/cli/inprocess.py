"""Commands that need no heavy library, in this process; and a node for them to talk to."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sapo_edge.cli.entry import main
from sapo_edge.control.journal_view import RolloutQuery
from sapo_edge.control.protocol import claim_socket_path
from sapo_edge.control.server import ControlServer, History
from sapo_edge.errors import ConfigError
from sapo_edge.node.controlled import NodeControl
from sapo_edge.node.methods import handlers
from sapo_edge.node.person import PersonAnswers, Verdict, draw_question, verify_answers
from sapo_edge.state.lock import StateLock
from sapo_edge.state.paths import Paths
from sapo_edge.tasks.source import TaskSource
from tests.cli.process import Result


class Invoke:
    """Runs `sapo` in this process, as the installed script does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str | Path, typed: str | None = "") -> Result:
        """Without an input, as Python starts where stdin is closed, `typed` is None."""
        self._monkeypatch.setattr(sys, "argv", ["sapo", *map(str, arguments)])
        self._monkeypatch.setattr(sys, "stdin", None if typed is None else io.StringIO(typed))
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        out, err = self._capsys.readouterr()
        return Result(int(end.value.code or 0), out, err)


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Invoke:
    return Invoke(monkeypatch, capsys)


@dataclass
class FakeNode(NodeControl):
    """A node without a model, as the control socket sees it; it keeps what it is asked."""

    record: dict[str, Any] = field(default_factory=dict)
    peer_records: list[dict[str, Any]] = field(default_factory=list)
    source: TaskSource | None = None
    requests: list[str] = field(default_factory=list)
    answers: list[PersonAnswers] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=lambda: {"own": 4})
    queries: list[object] = field(default_factory=list)

    def status(self) -> Mapping[str, Any]:
        return self.record

    def peers(self) -> Sequence[Mapping[str, Any]]:
        return self.peer_records

    def history(self, points: int) -> Mapping[str, Any]:
        self.queries.append(points)
        return {}

    def rollouts(self, query: RolloutQuery) -> Mapping[str, Any]:
        self.queries.append(query)
        return {"rollouts": [], "next": None}

    def rollout(self, round: int, position: int) -> Mapping[str, Any] | None:
        self.queries.append((round, position))
        return {"round": round, "position": position} if round else None

    def pause(self) -> None:
        self.requests.append("pause")

    def resume(self) -> None:
        self.requests.append("resume")

    def stop_after_round(self) -> None:
        self.requests.append("after_round")

    def stop_immediately(self) -> None:
        self.requests.append("at_once")

    def roll_back(self, round: int | None) -> Mapping[str, Any]:
        self.requests.append(f"rollback {round}")
        return {"from": 50, "to": 40 if round is None else round}

    def change_settings(self, values: Mapping[str, str | int | float]) -> Mapping[str, Any]:
        for name in values:
            if name not in self.settings:
                raise ConfigError(f"{name} can't change while the node runs", "stop it first")
        self.settings.update(values)
        return {"rank": 16, **self.settings}

    def question(self) -> Mapping[str, Any]:
        assert self.source is not None
        return draw_question(self.source, 7).as_dict()

    def share_answers(self, answers: PersonAnswers) -> Mapping[str, Any]:
        assert self.source is not None
        task, rewards = verify_answers(self.source, answers)
        self.answers.append(answers)
        return Verdict(rewards, task.ground_truth, True).as_dict()


@contextmanager
def running(home: Path, node: FakeNode, history: History | None = None) -> Iterator[ControlServer]:
    """Serve a node's control socket and hold its lock while the block runs."""
    paths = Paths.default(home)
    paths.create()
    with StateLock(paths.lock):
        server = ControlServer(claim_socket_path(paths), handlers(node), history)
        server.start()
        try:
            yield server
        finally:
            server.stop()
