"""The log screen reads the node's log from its files, whether or not a node runs."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.events import MouseScrollUp
from textual.pilot import Pilot
from textual.widgets import Input

from sapo_edge import events
from sapo_edge.errors import StateError
from sapo_edge.state.log_reader import MAX_FILE_BYTES, LogReader
from sapo_edge.state.logs import LEVELS, is_shown
from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.node.records import MAX_TEXT, Record, parse_record
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.logs.list import LogList
from sapo_edge.tui.screens.logs.screen import Logs
from tests.fakes import log_line
from tests.tui.fake_launcher import FakeLauncher
from tests.tui.fake_node import BEGAN, evaluated, finished
from tests.tui.shell import Pictured, Size, notices, picture, press, running, text, until

HOSTILE = "a peer says \x1b[31m[bold]boo[/bold]\x1b]0;owned\x07 [@click=app.quit]here[/] \u202e"
TRACEBACK = (
    "the node can't look after its machine\nTraceback (most recent call last):\n"
    '  File "care.py", line 204, in run\nZeroDivisionError: division by zero'
)


def written(seconds: float, content: str | events.Event, level: str = "info", source: str = "sapo_edge.node") -> str:
    return log_line(content, BEGAN + seconds, level, source) + "\n"


def event_line(event: events.Event) -> str:
    return written(event.time - BEGAN, event)


def opened_reader(path: Path) -> LogReader[Record]:
    return LogReader(path, parse_record)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sapo_edge.tui.screens.logs.screen.POLL_SECONDS", 0.1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def reader(path: Path) -> LogReader[Record]:
    return opened_reader(path)


def a_run(rounds: int = 40) -> str:
    """The log of a run with two warnings and an error."""
    parts = [event_line(events.NodeStarted(model="SmolLM2", backend="llama_cpp", time=BEGAN))]
    for number in range(1, rounds + 1):
        parts.append(event_line(finished(number)))
        if number % 10 == 0:
            parts.append(event_line(evaluated(number)))
        if number == 17:
            parts.append(event_line(events.Notice(level="warning", text=HOSTILE, time=BEGAN + 60 * number)))
        if number == 23:
            parts.append(written(60 * number, TRACEBACK, "error", "sapo_edge.care"))
        if number == 34:
            parts.append(written(60 * number, "pull: TimeoutError: no answer", "warning", "sapo_edge.swarm.tally"))
    return "".join(parts)


def add(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as log:
        log.write(text)


def rotate(path: Path) -> None:
    """As `RotatingFileHandler` does it."""
    older = [path, *(path.with_name(f"{path.name}.{number}") for number in (1, 2))]
    for newer, old in ((1, 2), (0, 1)):
        if older[newer].exists():
            os.replace(older[newer], older[old])
    path.touch()


def texts(reader: LogReader[Record]) -> list[str]:
    reader.read()
    return [record.text for record in reader.records]


def test_three_files_are_one_log_and_only_what_is_new_is_added(path: Path, reader: LogReader[Record]) -> None:
    expected: list[str] = []
    for number in range(300):
        if number in (100, 200):
            rotate(path)
        expected.append(f"record {number} {'x' * (number * 7919 % 900)}")
        add(path, written(number, expected[-1]))
        if number % 7 == 0:
            before = reader.records
            assert reader.read() and [record.text for record in reader.records] == expected
            assert all(old is now for old, now in zip(before[:-1], reader.records[: len(before) - 1], strict=True))
    assert texts(reader) == texts(opened_reader(path)) == expected and not reader.read()
    for fresh in (reader, opened_reader(path)):
        fresh.read()
        places = [record.place for record in fresh.records]
        assert places == sorted(set(places))


def test_a_record_keeps_its_further_lines_and_its_level_and_is_harmless(path: Path, reader: LogReader[Record]) -> None:
    add(path, written(0, "before") + written(1, TRACEBACK, "error", "sapo_edge.care") + written(2, "after"))
    reader.read()
    record = reader.records[1]
    assert record.text.endswith("[+3 lines: ZeroDivisionError: division by zero]")
    assert record.level == "error" and record.source == "care" and record.raw.count("\n") == 3
    assert record.matches("zerodivisionerror") and record.matches("care.py") and not record.matches("nothing")
    record = parse_record((0, 0), event_line(events.Notice(level="warning", text=HOSTILE)).encode())
    assert record.level == "warning" and "\x1b" not in record.text and "\\x1b[31m[bold]boo" in record.text
    assert [level for level in LEVELS if is_shown(record.level, level)] == ["debug", "info", "warning"]


def test_records_keep_their_place_when_the_files_rotate(path: Path, reader: LogReader[Record]) -> None:
    assert reader.read() and not reader.exists and not reader.read()
    add(path, written(0, "one"))
    assert texts(reader) == ["one"] and reader.exists
    place = reader.records[0].place
    rotate(path)
    add(path, written(1, "two"))
    assert texts(reader) == ["one", "two"] and reader.records[0].place == place
    for added in ("three", "four", "five"):
        rotate(path)
        add(path, written(2, added))
    assert texts(reader) == ["three", "four", "five"] and min(record.place for record in reader.records) > place


def test_a_line_is_read_once_it_has_an_end_and_a_replaced_file_from_its_start(
    path: Path, reader: LogReader[Record]
) -> None:
    two = written(1, "two")
    add(path, written(0, "one") + two[:20])
    assert texts(reader) == ["one"]
    add(path, two[20:] + "\n" + written(2, "three"))
    assert texts(reader) == ["one", "two", "three"]
    path.write_text(written(5, "short"))
    assert texts(reader) == ["short"]
    path.write_text(written(9, "something else entirely, and longer than what was there before"))
    assert texts(reader) == ["something else entirely, and longer than what was there before"]


def test_only_the_end_of_a_large_file_is_read(path: Path, reader: LogReader[Record]) -> None:
    path.write_text("".join(written(0, f"record {number} {'x' * 1000}") for number in range(10_000)))
    reader.read()
    assert 0.95 * MAX_FILE_BYTES < sum(len(record.raw) for record in reader.records) <= MAX_FILE_BYTES
    assert reader.records[0].text.startswith("record ") and reader.records[-1].text.startswith("record 9999 ")


def test_an_unreadable_log_is_an_error_until_it_can_be_read(path: Path, reader: LogReader[Record]) -> None:
    add(path, written(0, "one"))
    assert texts(reader) == ["one"]
    path.unlink()
    path.mkdir()
    with pytest.raises(StateError, match="can't read"):
        reader.read()
    assert not reader.exists and not reader.records
    path.rmdir()
    assert reader.read() and not reader.records


def test_any_bytes_can_be_read(path: Path, reader: LogReader[Record]) -> None:
    tomorrow = written(0, finished(1)).replace('"round",', '"of_tomorrow",')
    lines = (
        b"no record", b"\xff\xfe\x00 bytes", written(0, "x" * 700_000).strip().encode(), b'{"time":1e300,"text":""}',
        b'{"time":1,"level":"info","thread":"a","source":"b","event":[]}', tomorrow.encode(),
    )  # fmt: skip
    path.write_bytes(b"\n".join(lines))
    reader.read()
    none, odd, long, far, empty, later = records = reader.records
    assert none.level == "" and none.time is None and "\\xff\\xfe" in odd.raw
    assert long.cut and len(long.raw) < 10_000 and far.time is None and empty.text == "[]"
    assert later.text.startswith('{"v":1,') and '"event":"of_tomorrow"' in later.text
    assert all(len(record.text) <= MAX_TEXT + 300 and record.text.isprintable() for record in records)


async def opened(pilot: Pilot[Any], app: SapoApp) -> LogList:
    await press(pilot, "6", then=lambda: isinstance(app.screen, Logs))
    lines = app.screen.query_one(LogList)
    await until(pilot, lambda: lines.chosen is not None)
    return lines


@asynccontextmanager
async def reading(
    launcher: FakeLauncher, log: str, size: Size = (80, 24)
) -> AsyncIterator[tuple[Pilot[Any], SapoApp, LogList]]:
    """The screen with a log."""
    add(launcher.paths.log, log)
    async with running(launcher, size) as (pilot, app):
        yield pilot, app, await opened(pilot, app)


def chosen(app: SapoApp) -> str:
    record = app.screen.query_one(LogList).chosen
    return "" if record is None else record.text


def subtitle(app: SapoApp) -> str:
    return str(app.screen.query_one("#log").border_subtitle)


def title(app: SapoApp) -> str:
    return str(app.screen.query_one("#log").border_title)


async def test_it_follows_until_somebody_goes_up(launcher: FakeLauncher) -> None:
    path = launcher.paths.log
    async with reading(launcher, a_run()) as (pilot, app, lines):
        assert lines.has_focus and lines.following and "following" in subtitle(app)
        assert "2027-01-15" in subtitle(app) and "held-out validation after round 40" in picture(app)
        add(path, event_line(finished(41)))
        await until(pilot, lambda: "round 41" in chosen(app) and "round 41" in picture(app))
        await pilot.press("up")
        assert not lines.following and "not following: f follows again" in subtitle(app)
        before = lines.first_in_sight
        add(path, event_line(finished(42)))
        await until(pilot, lambda: "round 42" in lines.rows[-1].text)
        assert lines.first_in_sight == before and "held-out" in chosen(app)
        await press(pilot, "f", then=lambda: "round 42" in chosen(app) and "round 42" in picture(app))
        await pilot.press("f")
        assert not lines.following
        add(path, event_line(finished(43)))
        await until(pilot, lambda: "round 43" in lines.rows[-1].text)
        assert "round 42" in chosen(app)
        await press(pilot, "end", then=lambda: lines.following and "round 43" in chosen(app))
        lines.post_message(MouseScrollUp(lines, 1, 1, 0, -1, 0, False, False, False))
        await until(pilot, lambda: not lines.following)


async def test_levels_are_left_out_in_turn_and_escape_leaves_the_search(launcher: FakeLauncher) -> None:
    async with reading(launcher, a_run()) as (pilot, app, lines):
        await press(pilot, "l", then=lambda: len(lines.rows) == 3 and "\\x1b[31m[bold]boo" in picture(app))
        assert title(app) == "Log: warnings and errors"
        await pilot.press("up", "l")
        await until(pilot, lambda: len(lines.rows) == 1 and "ZeroDivisionError: division by zero]" in chosen(app))
        assert title(app) == "Log: errors"
        await press(pilot, "l", then=lambda: len(lines.rows) > 40 and title(app) == "Log")
        assert "ZeroDivisionError" in chosen(app), "the record stays chosen"
        await pilot.press("slash", *"[red]1")
        assert app.screen.query_one("#find", Input).value == "[red]1" and "Esc leaves" in subtitle(app)
        await press(pilot, "enter", then=lambda: "search: [red]1" in picture(app))
        await pilot.press("slash", "escape", "escape")
        assert lines.has_focus and title(app) == "Log"
        await press(pilot, "1", then=lambda: not isinstance(app.screen, Logs))


async def test_a_search_goes_through_the_older_files_too(launcher: FakeLauncher) -> None:
    path = launcher.paths.log
    add(path, written(0, "the needle is here") + a_run(5))
    rotate(path)
    hay = "".join(written(number, f"hay {number}") for number in range(2000))
    async with reading(launcher, hay) as (pilot, app, lines):
        await pilot.press("slash", *"NEEDLE", "enter")
        await until(pilot, lambda: "needle" in chosen(app) and "• node  the needle" in picture(app))
        assert not lines.following and lines.has_focus and "search: NEEDLE" in title(app)
        await press(pilot, "f3", then=lambda: "no match further up" in notices(app))
        await pilot.press("slash", *("backspace",) * 6, *"hay 7", "enter")
        await until(pilot, lambda: "no match further up" in notices(app))
        for key, found in (("shift+f3", "hay 7"), ("shift+f3", "hay 70"), ("f3", "hay 7")):
            await press(pilot, key, then=lambda found=found: chosen(app) == found)  # type: ignore[misc]
        await pilot.press("escape")
        assert title(app) == "Log"


async def test_the_whole_record_is_below_enter_shows_it_alone_and_c_copies_it(launcher: FakeLauncher) -> None:
    async with reading(launcher, a_run(17)) as (pilot, app, lines):
        shown = text(app, "#whole")
        assert '"event": "notice"' in shown and "\\u001b[31m[bold]boo[/bold]" in shown and "\x1b" not in shown
        await pilot.press("c")
        assert app.clipboard.startswith("2027-01-15T08:17:00Z INFO") and "\x1b" not in app.clipboard
        await pilot.press("up", "c")
        assert '"event":"round"' in app.clipboard
        await press(pilot, "enter", then=lambda: not lines.display or not app.screen.query_one("#log").display)
        await press(pilot, "end", then=lambda: '"received": 5' in picture(app))
        await pilot.mouse_down("#record", offset=(2, 2))
        await pilot.hover("#record", offset=(12, 2))
        await pilot.mouse_up("#record", offset=(12, 2))
        await until(pilot, lambda: bool(app.screen.get_selected_text()))
        await pilot.press("c")
        assert app.clipboard == app.screen.get_selected_text() != ""
        await press(pilot, "escape", then=lambda: lines.has_focus and app.screen.query_one("#log").display)
        await pilot.click(lines, offset=(5, 2), times=2)
        await until(pilot, lambda: not app.screen.query_one("#log").display)


async def test_home_goes_to_the_oldest_record_and_paging_back_reaches_the_newest(launcher: FakeLauncher) -> None:
    records = "".join(written(number, f"record {number}") for number in range(120))
    async with reading(launcher, records) as (pilot, app, lines):
        await press(pilot, "g", then=lambda: chosen(app) == "record 0" and "record 0" in picture(app))
        while lines.cursor < 119:
            before = lines.cursor
            await pilot.press("pagedown")
            assert 0 < lines.cursor - before <= 20
        assert lines.following


async def test_whatever_becomes_of_the_files_is_followed_whether_or_not_a_node_runs(launcher: FakeLauncher) -> None:
    path = launcher.paths.log
    async with running(launcher) as (pilot, app):
        await press(pilot, "6", then=lambda: "There is no log yet" in picture(app))
        await pilot.press("up", "enter", "c", "f3", "escape", "pagedown", "home", "f", "f", "l")
        add(path, event_line(finished(1)))
        await until(pilot, lambda: "The log has no warnings or errors." in picture(app))
        path.unlink()
        path.mkdir()
        await until(pilot, lambda: "can't read" in picture(app))
        path.rmdir()
        await pilot.press("l", "l")
        add(path, a_run(3))
        await until(pilot, lambda: "round 3:" in chosen(app))
        rotate(path)
        add(path, event_line(finished(4)))
        await until(pilot, lambda: "round 4:" in chosen(app))
        assert "round 1:" in picture(app)
        launcher.finish(done=False)
        await until(pilot, lambda: app.state.standing is Standing.ENDED)
        path.write_text(written(9999, "Fatal: out of memory", "error"))
        await until(pilot, lambda: "Fatal: out of memory" in chosen(app))
        for file in (path.with_name(path.name + ".1"), path):
            file.unlink()
        await until(pilot, lambda: "There is no log yet" in picture(app))
        add(path, event_line(finished(6)))
        await until(pilot, lambda: "round 6:" in picture(app))


async def test_nothing_is_read_behind_another_screen(launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    async with reading(launcher, a_run()) as (pilot, app, _):
        await pilot.press("1")
        await pilot.pause(0.2)
        threads: list[str] = []
        read = LogReader.read

        def watched(reader: LogReader[Record]) -> bool:
            threads.append(threading.current_thread().name)
            return read(reader)

        monkeypatch.setattr(LogReader, "read", watched)
        add(launcher.paths.log, event_line(finished(41)))
        await pilot.pause(0.5)
        assert not threads
        await press(pilot, "6", then=lambda: "round 41" in chosen(app))
        assert "MainThread" not in threads


async def test_it_survives_a_tiny_terminal(launcher: FakeLauncher) -> None:
    async with reading(launcher, a_run(), (120, 40)) as (pilot, app, lines):
        await pilot.press(*("up",) * 6)
        record = lines.chosen
        await pilot.resize_terminal(40, 10)
        await until(pilot, lambda: not app.screen.query_one("#record").display and "round" in picture(app))
        await pilot.resize_terminal(120, 40)
        await until(pilot, lambda: app.screen.query_one("#record").display)
        assert lines.chosen == record and not lines.following and record is not None and record.text in picture(app)


def test_pictures(launcher: FakeLauncher, pictured: Pictured, look: Size) -> None:
    add(launcher.paths.log, a_run())

    async def ready(pilot: Pilot[Any], app: SapoApp) -> None:
        await opened(pilot, app)
        await until(pilot, lambda: "5 peers" in picture(app))
        await press(pilot, "up", "up", "up", "slash", *"time", "enter", then=lambda: "TimeoutError" in chosen(app))

    assert pictured(ready, look)
