"""How a node ended, from what it left."""

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
WORDLESS = "ended without a word: killed, or the machine ran out of memory or power"
DONE = NodeStopped(reason="all 3 rounds are done", rounds=3, time=NOW + 20)
BEGUN = NodeStarted(model="m", backend="b", time=NOW + 10)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths.default(tmp_path)
    made.create()
    return made


def leave(paths: Paths, *told: Event | str, output: str = "", started: float | None = NOW) -> None:
    """What a node of a process that is gone left behind."""
    lines = [
        line if isinstance(line, str) else f"2027-01-15T08:00:00Z INFO MainThread sapo_edge.node: {to_json(line)}"
        for line in told
    ]
    paths.log.write_text("".join(f"{line}\n" for line in lines))
    paths.background_output.write_text(output)
    if started is not None:
        paths.background.write_text(json.dumps({"v": 1, "pid": 2**22 + 1, "created": 1.0, "started": started}))


@pytest.mark.parametrize(
    ("told", "output", "reason", "expected"),
    [
        ((BEGUN, DONE), "", "all 3 rounds are done", True),
        ((BEGUN,), "", WORDLESS, False),
        ((), "loading\nsapo: no model is installed; install one\n", "no model is installed; install one", False),
        ((BEGUN,), "sapo: the disk is full; free some\n", "the disk is full; free some", False),
        ((BEGUN,), "Fatal Python error: Segmentation fault\n\nThread 0x1:\n",
         "crashed in native code (Segmentation fault)", False),
        ((BEGUN,), "Traceback (most recent call last):\n  x\nValueError: odd\n",
         "a fault of the program: ValueError: odd", False),
        ((NodeStopped(reason="asked to stop", rounds=1, time=NOW - 5),), "", WORDLESS, False),
        ((BEGUN, DONE, NodeStarted(model="m", backend="b", time=NOW + 30)), "", WORDLESS, False),
        (("no event", "x sapo_edge.node: {}", "x sapo_edge.node: {broken}", BEGUN, DONE), "\xff", DONE.reason, True),
    ],
)  # fmt: skip
def test_the_last_words_tell_how_it_ended(
    paths: Paths, told: tuple[Event | str, ...], output: str, reason: str, expected: bool
) -> None:
    leave(paths, *told, output=output)
    ended = Background(paths).ended()
    assert ended is not None and (ended.reason, ended.expected) == (reason, expected)


def test_lines_are_the_last_ones_and_bounded(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    notices = [Notice(level="info", text=f"{number} {'x' * 3000}", time=NOW + number) for number in range(100)]
    leave(paths, *notices, output="".join(f"line {number}\n" for number in range(10_000)))
    ended = Background(paths).ended()
    assert ended is not None and len(ended.lines) == 2 * module.LINES
    assert all(len(line) <= module.LINE_CHARACTERS for line in ended.lines)
    assert "99 x" in ended.lines[module.LINES - 1] and ended.lines[-1] == "line 9999"
    assert Background(paths).said()[-1] == "line 9999"


def test_without_any_node_there_is_nothing_to_tell(paths: Paths) -> None:
    ended = Background(paths).ended()
    assert ended is not None and ended.expected and ended.lines == () and Background(paths).said() == ()


def test_a_later_node_in_a_terminal_is_the_last(paths: Paths) -> None:
    leave(paths, BEGUN, DONE, output="sapo: an older error; mend it\n", started=time.time() - 100)
    paths.lock.write_text("4711\n")
    ended = Background(paths).ended()
    assert ended is not None and ended.expected and ended.reason == DONE.reason


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"v": 2}', "\xff", '{"v": 1, "pid": "x", "created": 1, "started": 1}']
)
def test_a_damaged_record_is_none(paths: Paths, content: str) -> None:
    paths.background.write_text(content, encoding="latin-1")
    ended = Background(paths).ended()
    assert ended is not None and ended.expected


def test_while_the_lock_is_held_a_node_runs_and_none_is_started(paths: Paths) -> None:
    leave(paths, BEGUN, DONE)
    lock = StateLock(paths.lock)
    lock.acquire()
    assert lock_holder(paths.lock) == os.getpid()
    background = Background(paths)
    background.start()
    assert background.running() and background.ended() is None
    assert paths.background_output.read_text() == "", "nothing was begun"
    lock.release()
    assert not background.running() and lock_holder(paths.lock) is None


def test_another_process_with_the_same_number_is_not_the_node(paths: Paths) -> None:
    leave(paths, BEGUN, DONE)
    record = json.loads(paths.background.read_text())
    paths.background.write_text(json.dumps({**record, "pid": os.getpid()}))
    assert not Background(paths).running()
