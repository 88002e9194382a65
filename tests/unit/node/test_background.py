"""How a node ended, from its log, output and lock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sapo_edge.control.event_words import describe_event
from sapo_edge.events import Event, NodeStarted, NodeStopped, Notice
from sapo_edge.node import background as module
from sapo_edge.node.background import Background
from sapo_edge.state.lock import StateLock, lock_holder
from sapo_edge.state.paths import Paths
from sapo_edge.tui.node.records import parse_record
from tests.fakes import log_line, round_event
from tests.waiting import wait_until

NOW = 1_800_000_000.0
NO_MESSAGE = "ended without a message: killed, or the machine ran out of memory or power"
DONE = NodeStopped(reason="all 3 rounds are done", rounds=3, time=NOW + 20)
STARTED = NodeStarted(model="m", backend="b", time=NOW + 10)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths.default(tmp_path)
    made.create()
    return made


def log(paths: Paths, *logged: Event | str) -> None:
    with paths.log.open("a") as file:
        file.writelines(f"{line if isinstance(line, str) else log_line(line, NOW)}\n" for line in logged)


def leave(paths: Paths, *logged: Event | str, output: str = "", earlier: Event | None = None) -> None:
    """Write the files of a node whose process has ended, and of one before it."""
    log(paths, *([] if earlier is None else [earlier]))
    found = paths.log.stat()
    record = {"v": 1, "pid": 2**22 + 1, "created": 1.0, "log": [found.st_ino, found.st_size], "lock": 0}
    paths.background.write_text(json.dumps(record))
    log(paths, *logged)
    paths.background_output.write_text(output)


@pytest.mark.parametrize(("logged", "output", "reason", "expected"), [
    ((STARTED, DONE), "", "all 3 rounds are done", True),
    ((STARTED,), "", NO_MESSAGE, False),
    ((), "loading\nsapo: no model is installed; install one\n", "no model is installed; install one", False),
    ((STARTED,), "sapo: the disk is full; free some\n", "the disk is full; free some", False),
    ((STARTED,), "Fatal Python error: Segmentation fault\n\nThread 0x1:\n",
     "crashed in native code (Segmentation fault)", False),
    ((STARTED,), "Traceback (most recent call last):\n  x\nValueError: odd\n",
     "a bug in the program: ValueError: odd", False),
    ((STARTED, DONE, NodeStarted(model="m", backend="b", time=NOW + 30)), "", NO_MESSAGE, False),
    (("no event", "{}", "[]", '{"event": []}', "{broken", STARTED, DONE), "\xff", DONE.reason, True),
])  # fmt: skip
def test_log_and_output_tell_how_it_ended(
    paths: Paths, logged: tuple[Event | str, ...], output: str, reason: str, expected: bool
) -> None:
    leave(paths, *logged, output=output, earlier=NodeStopped(reason="asked to stop", rounds=1, time=NOW - 5))
    ended = Background(paths).ended()
    assert ended is not None and (ended.reason, ended.expected) == (reason, expected)


def test_a_clock_that_is_set_back_changes_nothing_and_a_later_node_in_a_terminal_is_the_last(paths: Paths) -> None:
    paths.lock.write_text("4710\n")
    os.utime(paths.lock, (NOW + 3600, NOW + 3600))
    code = f"from pathlib import Path; Path({str(paths.log)!r}).open('a').close()"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "sapo_command", lambda *_: [sys.executable, "-c", code])
        patch.setattr(time, "time", lambda: NOW + 3600)
        node = Background(paths)
        node.start()
    wait_until(lambda: not node.running())
    log(paths, STARTED, DONE)
    ended = Background(paths).ended()
    assert ended is not None and ended.expected and ended.reason == DONE.reason
    # A later one in a terminal, after a second change of the clock, is the last.
    log(paths, NodeStopped(reason="asked to stop", rounds=4, time=NOW - 7200))
    paths.lock.write_text("4711\n")
    os.utime(paths.lock, (NOW - 7200, NOW - 7200))
    paths.background_output.write_text("sapo: an older error; repair it\n")
    ended = Background(paths).ended()
    assert ended is not None and ended.expected and ended.reason == "asked to stop"


def test_a_log_that_was_rotated_since_and_what_another_command_does_later_hide_nothing(paths: Paths) -> None:
    leave(paths, STARTED, earlier=NodeStopped(reason="asked to stop", rounds=1))
    paths.log.rename(f"{paths.log}.1")
    log(paths, DONE)
    ended = Background(paths).ended()
    assert ended is not None and ended.expected and ended.reason == DONE.reason
    leave(paths, output="sapo: there is no model file; get one\n")
    with StateLock(paths.lock):
        """As `sapo runs` does."""
    ended = Background(paths).ended()
    assert ended is not None and not ended.expected and ended.reason == "there is no model file; get one"


def test_an_event_is_whole_so_that_it_can_be_shown_in_words(paths: Paths) -> None:
    statistics = {f"statistic {number}": 0.1 for number in range(40)}
    leave(paths, STARTED, finished := round_event(3, statistics=statistics))
    ended = Background(paths).ended()
    assert ended is not None
    assert parse_record((0, 0), ended.lines[-1].encode()).text == describe_event(finished)


def test_the_last_lines_are_bounded(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    notices = [Notice(level="info", text=f"{number} {'x' * 3000}", time=NOW + number) for number in range(100)]
    leave(paths, *notices, output="".join(f"{number} {'y' * 9000}\n" for number in range(20)) + "line\n" * 14)
    ended = Background(paths).ended()
    assert ended is not None and len(ended.lines) == 2 * module.LINES
    assert all(len(line) <= module.LINE_CHARACTERS for line in ended.lines)
    assert "99 x" in ended.lines[module.LINES - 1] and ended.lines[module.LINES].startswith("19 yy")
    assert Background(paths).last_output() == ended.lines[module.LINES :]


def test_before_the_first_node_there_is_no_output(paths: Paths) -> None:
    for _ in range(2):
        ended = Background(paths).ended()
        assert ended is not None and ended.expected and ended.lines == () and Background(paths).last_output() == ()
        with StateLock(paths.lock):
            """As `sapo restore` and `sapo runs` do, which are no nodes."""


@pytest.mark.parametrize("content", [
    "", "{}", "[]", '{"v": 2}', "\xff", "[" * 100_000,
    *(f'{{"v": 1, "pid": {pid}, "created": 1, "log": [1, 1], "lock": 1}}' for pid in ('"x"', "-5", "1e999")),
], ids=lambda content: content[:20])  # fmt: skip
def test_a_damaged_record_is_ignored(paths: Paths, content: str) -> None:
    paths.background.write_text(content, encoding="latin-1")
    ended = Background(paths).ended()
    assert ended is not None and ended.expected


def test_while_the_lock_is_held_a_node_runs_and_none_is_started(paths: Paths) -> None:
    leave(paths, STARTED, DONE)
    background = Background(paths)
    with StateLock(paths.lock):
        assert lock_holder(paths.lock) == os.getpid()
        background.start()
        assert background.running() and background.ended() is None
        assert paths.background_output.read_text() == ""
    assert not background.running() and lock_holder(paths.lock) is None
    paths.background.write_text(json.dumps({**json.loads(paths.background.read_text()), "pid": os.getpid()}))
    assert not Background(paths).running(), "another process with the same id is not the node"


def test_of_two_apps_that_start_a_node_at_once_one_does(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    """All apps that show a node notice its end at the same time."""
    started: list[subprocess.Popen[bytes]] = []
    start = module._start_detached

    def start_slowly(command: Sequence[str], output: int) -> subprocess.Popen[bytes]:
        time.sleep(0.2)
        started.append(start(command, output))
        return started[-1]

    monkeypatch.setattr(module, "sapo_command", lambda *_: [sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(module, "_start_detached", start_slowly)
    apps = [Background(paths), Background(paths)]
    try:
        with ThreadPoolExecutor() as pool:
            for result in [pool.submit(app.start) for app in apps]:
                result.result()
        assert len(started) == 1 and all(app.running() and app.ended() is None for app in apps)
    finally:
        for process in started:
            process.kill()
