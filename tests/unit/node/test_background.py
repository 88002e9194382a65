"""How a node ended, from its log, output and lock."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from sapo_edge.events import Event, NodeStarted, NodeStopped, Notice, to_json
from sapo_edge.node import background as module
from sapo_edge.node.background import Background
from sapo_edge.state.lock import StateLock, lock_holder
from sapo_edge.state.paths import Paths

NOW = 1_800_000_000.0
NO_MESSAGE = "ended without a message: killed, or the machine ran out of memory or power"
DONE = NodeStopped(reason="all 3 rounds are done", rounds=3, time=NOW + 20)
STARTED = NodeStarted(model="m", backend="b", time=NOW + 10)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths.default(tmp_path)
    made.create()
    return made


def leave(paths: Paths, *logged: Event | str, output: str = "", started: float | None = NOW) -> None:
    """Write the files of a node whose process has ended."""
    lines = [
        line if isinstance(line, str) else f"2027-01-15T08:00:00Z INFO MainThread sapo_edge.node: {to_json(line)}"
        for line in logged
    ]
    paths.log.write_text("".join(f"{line}\n" for line in lines))
    paths.background_output.write_text(output)
    if started is not None:
        paths.background.write_text(json.dumps({"v": 1, "pid": 2**22 + 1, "created": 1.0, "started": started}))


@pytest.mark.parametrize(
    ("logged", "output", "reason", "expected"),
    [
        ((STARTED, DONE), "", "all 3 rounds are done", True),
        ((STARTED,), "", NO_MESSAGE, False),
        ((), "loading\nsapo: no model is installed; install one\n", "no model is installed; install one", False),
        ((STARTED,), "sapo: the disk is full; free some\n", "the disk is full; free some", False),
        ((STARTED,), "Fatal Python error: Segmentation fault\n\nThread 0x1:\n",
         "crashed in native code (Segmentation fault)", False),
        ((STARTED,), "Traceback (most recent call last):\n  x\nValueError: odd\n",
         "a bug in the program: ValueError: odd", False),
        ((NodeStopped(reason="asked to stop", rounds=1, time=NOW - 5),), "", NO_MESSAGE, False),
        ((STARTED, DONE, NodeStarted(model="m", backend="b", time=NOW + 30)), "", NO_MESSAGE, False),
        (("no event", "x sapo_edge.node: {}", "x sapo_edge.node: {broken}", STARTED, DONE), "\xff", DONE.reason, True),
    ],
)  # fmt: skip
def test_log_and_output_tell_how_it_ended(
    paths: Paths, logged: tuple[Event | str, ...], output: str, reason: str, expected: bool
) -> None:
    leave(paths, *logged, output=output)
    ended = Background(paths).ended()
    assert ended is not None and (ended.reason, ended.expected) == (reason, expected)


def test_the_last_lines_are_bounded(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    notices = [Notice(level="info", text=f"{number} {'x' * 3000}", time=NOW + number) for number in range(100)]
    leave(paths, *notices, output="".join(f"line {number}\n" for number in range(10_000)))
    ended = Background(paths).ended()
    assert ended is not None and len(ended.lines) == 2 * module.LINES
    assert all(len(line) <= module.LINE_CHARACTERS for line in ended.lines)
    assert "99 x" in ended.lines[module.LINES - 1] and ended.lines[-1] == "line 9999"
    assert Background(paths).last_output()[-1] == "line 9999"


def test_before_the_first_node_there_is_no_output(paths: Paths) -> None:
    ended = Background(paths).ended()
    assert ended is not None and ended.expected and ended.lines == () and Background(paths).last_output() == ()


def test_a_later_node_in_a_terminal_is_the_last(paths: Paths) -> None:
    leave(paths, STARTED, DONE, output="sapo: an older error; repair it\n", started=time.time() - 100)
    paths.lock.write_text("4711\n")
    ended = Background(paths).ended()
    assert ended is not None and ended.expected and ended.reason == DONE.reason


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"v": 2}', "\xff", '{"v": 1, "pid": "x", "created": 1, "started": 1}']
)
def test_a_damaged_record_is_ignored(paths: Paths, content: str) -> None:
    paths.background.write_text(content, encoding="latin-1")
    ended = Background(paths).ended()
    assert ended is not None and ended.expected


def test_while_the_lock_is_held_a_node_runs_and_none_is_started(paths: Paths) -> None:
    leave(paths, STARTED, DONE)
    lock = StateLock(paths.lock)
    lock.acquire()
    assert lock_holder(paths.lock) == os.getpid()
    background = Background(paths)
    background.start()
    assert background.running() and background.ended() is None
    assert paths.background_output.read_text() == ""
    lock.release()
    assert not background.running() and lock_holder(paths.lock) is None


def test_another_process_with_the_same_id_is_not_the_node(paths: Paths) -> None:
    leave(paths, STARTED, DONE)
    record = json.loads(paths.background.read_text())
    paths.background.write_text(json.dumps({**record, "pid": os.getpid()}))
    assert not Background(paths).running()
