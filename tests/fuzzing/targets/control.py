"""Each line of a client gets one answer, which is JSON, and no error of a program; settings stay within their bounds.

The bytes arrive at the real server in two parts, and are answered in one thread. The node behind it is real where it
reads the journal and changes settings.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

from sapo_edge.config.settings import SETTINGS, Settings
from sapo_edge.control.protocol import MAX_REPLY_BYTES, MAX_REQUEST_BYTES
from sapo_edge.control.server import Client, ControlServer
from sapo_edge.events import Event, Notice
from sapo_edge.node.controlled import NodeControl
from sapo_edge.node.methods import handlers
from sapo_edge.node.person import PersonAnswers
from sapo_edge.rollout import MAX_INTEGER
from tests.fuzzing.target import KIB, MIB, Target, directory
from tests.fuzzing.targets.files import good_journal


class Node(NodeControl):
    """A node that is asked; what would need a model or a swarm is answered with what arrived."""

    def __init__(self) -> None:
        path = directory() / "control.sqlite"
        path.write_bytes(good_journal())
        stop = SimpleNamespace(**dict.fromkeys(("pause", "resume", "after_round", "immediately"), lambda *reason: None))
        stop.finish = threading.Event()
        journal = SimpleNamespace(path=path)
        super().__init__(cast(Any, SimpleNamespace(store=SimpleNamespace(journal=journal), stop=stop)), None)
        self.node.settings = Settings()

    def status(self) -> Mapping[str, Any]:
        return {}

    def roll_back(self, round: int | None) -> Mapping[str, Any]:
        assert round is None or 0 <= round <= MAX_INTEGER
        return {"to": round}

    def question(self) -> Mapping[str, Any]:
        return {}

    def share_answers(self, given: PersonAnswers) -> Mapping[str, Any]:
        assert PersonAnswers.from_dict(given.as_dict()) == given
        return given.as_dict()


def past(count: int) -> Sequence[Event]:
    return [Notice(level="info", text=str(number), time=float(number)) for number in range(min(count, 3))]


@cache
def served() -> tuple[Node, ControlServer]:
    """One of each for all inputs."""
    node = Node()
    return node, ControlServer(directory() / "control.sock", handlers(node), past)


def check(data: bytes) -> None:
    node, server = served()
    node.node.settings = Settings()
    parts = [part for part in (data[: len(data) // 2], data[len(data) // 2 :]) if part]
    end = SimpleNamespace(recv=lambda size: parts.pop(0) if parts else b"", shutdown=lambda how: None)
    client = Client(cast(Any, end))
    for line in client.lines():
        if line.strip():
            server.answer(client, line)
    replies = [json.loads(line) for line in client.waiting]
    assert all(len(line) <= MAX_REPLY_BYTES and line.isascii() for line in client.waiting)
    own = [reply for reply in replies if "event" not in reply]
    if not client.closing:
        assert len(own) == sum(bool(line.strip()) for line in data.split(b"\n")[:-1]), "an answer for each line"
    for reply in own:
        error = reply.get("end") or reply.get("error")
        assert error is not None or "result" in reply
        assert error is None or (error["message"] and error["remedy"] and error["code"])
        assert error is None or error["message"] != "the node failed to answer", "a program's error"
    for name, setting in SETTINGS.items():
        value = getattr(node.node.settings, name)
        assert not setting.live or setting.check(value, "settings") == value


def seeds() -> list[bytes]:
    answers = {"ref": ["sums", "0.1.25", 7, 1], "answers": ["4"], "manifest": "ab" * 32}
    query = {
        "limit": 5, "before": [2, 0], "origin": "own", "author": "me", "informative": True, "search": "Ä",
        "entry": "sums",
    }  # fmt: skip
    requests: list[tuple[str, object]] = [
        ("status", {}), ("peers", None), ("history", {"points": 10}), ("rollouts", query), ("rollouts", {"limit": 0}),
        ("rollout", {"round": 1, "position": 0}), ("rollout", {"round": 9, "position": 0}),
        ("pause", {}), ("resume", {}),
        ("stop", {"when": "at_once"}), ("stop", {"when": 1}), ("rollback", {"round": 3}), ("question", {}),
        ("settings", {"share": 4, "temperature": 0.5}), ("settings", {"share": "1e999", "x": 1}),
        ("share_answers", answers), ("subscribe", {"replay": 3, "progress": False}), ("no such", {}),
    ]  # fmt: skip
    lines = [
        json.dumps({"id": number, "method": method, "params": params}).encode() + b"\n"
        for number, (method, params) in enumerate(requests)
    ]
    long = b'{"id": "' + b"9" * 5000 + b'", "method": "status"}\n'
    odd = b"[" * 3000 + b"\n", long, b'{"id": NaN, "method": 1}\n\n \n'
    return [*lines, b"".join(lines), *odd, b"x" * (MAX_REQUEST_BYTES + 1), b'{"id": ' + b"9" * 5000 + b"}\n"]


TARGET = Target(check, seeds, 4 * KIB, 2 * MIB, 256, short=200)
