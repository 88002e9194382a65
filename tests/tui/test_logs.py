"""The log screen reads the node's log from its files, whether or not a node runs."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.events import MouseScrollUp
from textual.pilot import Pilot
from textual.widgets import Input, Static

from sapo_edge import events
from sapo_edge.errors import StateError
from sapo_edge.state import logs
from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.node.records import MAX_TEXT, Level, parse_record
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.logs.detail import LogDetail
from sapo_edge.tui.screens.logs.reader import MAX_FILE_BYTES, LogReader
from sapo_edge.tui.screens.logs.screen import Logs
from sapo_edge.tui.screens.logs.view import LogView, row_starts
from tests.tui.fake_launcher import FINISHED, FakeLauncher
from tests.tui.fake_node import BEGAN, evaluated, finished
from tests.tui.shell import TRUECOLOR, notices, picture, until

HOSTILE = "a peer says \x1b[31m[bold]boo[/bold]\x1b]0;owned\x07 [@click=app.quit]here[/] \u202e"
TRACEBACK = (
    "the node can't look after its machine\nTraceback (most recent call last):\n"
    '  File "care.py", line 204, in run\nZeroDivisionError: division by zero'
)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times are shown by the clock of the machine."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def written(seconds: float, text: str, level: str = "INFO", source: str = "sapo_edge.node") -> str:
    """A record as `sapo_edge/state/logs.py` writes it."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(BEGAN + seconds))
    return f"{stamp} {level} MainThread {source}: {text}\n"


def event_line(event: events.Event) -> str:
    return written(event.time - BEGAN, events.to_json(event))


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
            parts.append(written(60 * number, TRACEBACK, "ERROR", "sapo_edge.care"))
        if number == 34:
            parts.append(written(60 * number, "pull: TimeoutError: no answer", "WARNING", "sapo_edge.swarm.tally"))
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


def texts(reader: LogReader) -> list[str]:
    reader.read()
    return [record.text for record in reader.records]


# The reader.


def test_three_files_are_one_log_and_only_what_is_new_is_added(tmp_path: Path) -> None:
    path = tmp_path / "log"
    reader = LogReader(path)
    expected: list[str] = []
    for number in range(300):
        if number in (100, 200):
            rotate(path)
        expected.append(f"record {number} {'x' * (number * 7919 % 900)}")
        add(path, written(number, expected[-1]))
        if number % 7 == 0:
            before = reader.records
            assert reader.read() and [record.text for record in reader.records] == expected
            assert [id(record) for record in before[:-1]] == [
                id(record) for record in reader.records[: len(before) - 1]
            ]
    assert texts(reader) == texts(LogReader(path)) == expected
    assert not reader.read()
    for fresh in (reader, LogReader(path)):
        fresh.read()
        places = [record.place for record in fresh.records]
        assert places == sorted(set(places))


def test_what_the_program_writes_is_understood(tmp_path: Path) -> None:
    path, root = tmp_path / "log", logging.getLogger()
    before, root.handlers = root.handlers, []
    level = logging.getLogger("sapo_edge").level
    try:
        logs.configure(file=path, stderr=False)
        logging.getLogger("sapo_edge.node").info(events.to_json(finished(34)))
        try:
            raise ZeroDivisionError("division by zero")
        except ZeroDivisionError:
            logging.getLogger("sapo_edge.swarm.tally").exception("pull \x1b[31m failed")
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers = before
        logging.getLogger("sapo_edge").setLevel(level)
    reader = LogReader(path)
    reader.read()
    first, second = reader.records
    assert (first.level, first.source, first.thread) == ("info", "", "MainThread") and "round 34" in first.text
    assert first.time is not None and abs(first.time - time.time()) < 60
    assert (second.level, second.source) == ("error", "swarm.tally") and "pull \\x1b[31m failed" in second.text
    assert second.text.endswith("lines: ZeroDivisionError: division by zero]")


def test_a_record_keeps_its_further_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    add(path, written(0, "before") + written(1, TRACEBACK, "ERROR", "sapo_edge.care") + written(2, "after"))
    reader = LogReader(path)
    reader.read()
    record = reader.records[1]
    assert record.text.endswith("[+3 lines: ZeroDivisionError: division by zero]")
    assert record.level == "error" and record.source == "care" and record.raw.count("\n") == 3
    assert record.matches("zerodivisionerror") and record.matches("care.py") and not record.matches("nothing")


def test_a_record_that_grows_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    first, _, rest = TRACEBACK.partition("\n")
    add(path, written(1, first, "ERROR").rstrip("\n"))
    reader = LogReader(path)
    assert texts(reader) == [first]
    add(path, f"\n{rest}\n" + written(2, "after"))
    grown, after = texts(reader)
    assert grown.startswith(f"{first}  [+3 lines") and after == "after"


def test_records_keep_their_place_when_the_files_rotate(tmp_path: Path) -> None:
    path = tmp_path / "log"
    reader = LogReader(path)
    assert reader.read() and not reader.exists and not reader.read()
    add(path, written(0, "one"))
    assert texts(reader) == ["one"] and reader.exists
    place = reader.records[0].place
    rotate(path)
    add(path, written(1, "two"))
    assert texts(reader) == ["one", "two"] and reader.records[0].place == place
    for text in ("three", "four", "five"):
        rotate(path)
        add(path, written(2, text))
    assert texts(reader) == ["three", "four", "five"] and min(record.place for record in reader.records) > place


def test_a_file_that_was_cut_off_or_replaced_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "log"
    add(path, written(0, "one") + written(1, "two"))
    reader = LogReader(path)
    assert texts(reader) == ["one", "two"]
    path.write_text(written(5, "short"))
    assert texts(reader) == ["short"]
    path.write_text(written(9, "something else entirely, and longer than what was there before"))
    assert texts(reader) == ["something else entirely, and longer than what was there before"]


def test_only_the_end_of_a_large_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(written(0, f"record {number} {'x' * 1000}") for number in range(10_000)))
    reader = LogReader(path)
    reader.read()
    held = sum(len(record.raw) for record in reader.records)
    assert MAX_FILE_BYTES - 20_000 < held <= MAX_FILE_BYTES
    assert reader.records[0].text.startswith("record ") and reader.records[-1].text.startswith("record 9999 ")


def test_an_unreadable_log_is_an_error_until_it_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    add(path, written(0, "one"))
    reader = LogReader(path)
    assert texts(reader) == ["one"]
    path.unlink()
    path.mkdir()
    with pytest.raises(StateError, match="can't read"):
        reader.read()
    assert not reader.exists and not reader.records
    path.rmdir()
    assert reader.read() and not reader.records


def test_any_bytes_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(
        b"no header at all\n" + b"\xff\xfe\x00 bytes\n" + written(0, "x" * 700_000).encode()
        + b'2027-13-99T99:99:99Z INFO a b: no such day\n'
        + b'2027-01-15T08:00:00Z INFO a sapo_edge.node: {"v":1,"event":[]}\n'
        + b'2027-01-15T08:00:00Z INFO a sapo_edge.node: {"v":1,"time":1,"event":"of_tomorrow"}\r\n'
    )  # fmt: skip
    reader = LogReader(path)
    reader.read()
    records = reader.records
    assert records[0].level == "" and "\\xff\\xfe" in records[0].raw and records[0].time is None
    assert records[1].cut and len(records[1].raw) < 10_000
    assert records[-1].text == '{"v":1,"time":1,"event":"of_tomorrow"}' and records[-3].time is None
    assert all(len(record.text) <= MAX_TEXT + 300 and record.text.isprintable() for record in records)


def test_a_notice_is_harmless_and_has_its_own_level() -> None:
    record = parse_record((0, 0), event_line(events.Notice(level="warning", text=HOSTILE)).encode())
    assert record.level == "warning" and "\x1b" not in record.text and "\\x1b[31m[bold]boo" in record.text
    assert Level.WARNINGS.admits(record) and not Level.ERRORS.admits(record) and Level.ALL.admits(record)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", [""]),
        ("short", ["short"]),
        ("two words and more", ["two words", "and more"]),
        ("exactly 10 exactly 10", ["exactly 10", "exactly 10"]),
        ("x" * 23, ["x" * 10, "x" * 10, "xxx"]),
        ("wide 言葉言葉言葉", ["wide", "言葉言葉言", "葉"]),
    ],
)
def test_long_lines_break_behind_spaces_where_they_can(text: str, rows: list[str]) -> None:
    starts = row_starts(text, 10)
    assert [text[start:end].rstrip() for start, end in zip(starts, [*starts[1:], None], strict=True)] == rows


# The screen.


async def opened(pilot: Pilot[Any], app: SapoApp) -> LogView:
    await pilot.press("6")
    await until(pilot, lambda: isinstance(app.screen, Logs))
    lines = app.screen.query_one(LogView)
    await until(pilot, lambda: lines.record is not None)
    return lines


def subtitle(app: SapoApp) -> str:
    return str(app.screen.query_one("#log").border_subtitle)


def title(app: SapoApp) -> str:
    return str(app.screen.query_one("#log").border_title)


@pytest.mark.asyncio
async def test_it_follows_until_somebody_scrolls_up(launcher: FakeLauncher) -> None:
    path = launcher.paths.log
    add(path, a_run())
    app = SapoApp(launcher, TRUECOLOR)
    async with app.run_test(size=(80, 24)) as pilot:
        lines = await opened(pilot, app)
        assert lines.has_focus and lines.following and "following" in subtitle(app)
        assert "2027-01-15" in subtitle(app) and "held-out validation after round 40" in picture(app)
        add(path, event_line(finished(41)))
        await until(pilot, lambda: lines.record is not None and "round 41" in lines.record.text)
        await pilot.press("up")
        assert not lines.following and "not following: f follows again" in subtitle(app)
        before = lines.scroll_y
        add(path, event_line(finished(42)))
        await until(pilot, lambda: "round 42" in lines.records[-1].text)
        assert lines.scroll_y == before and lines.record is not None and "held-out" in lines.record.text
        await pilot.press("f")
        await until(pilot, lambda: lines.record is not None and "round 42" in lines.record.text)
        assert lines.following and "round 42" in picture(app)
        await pilot.press("f")
        assert not lines.following
        await pilot.press("end")
        await until(pilot, lambda: lines.following)


@pytest.mark.asyncio
async def test_the_wheel_scrolls_and_a_click_chooses(launcher: FakeLauncher) -> None:
    add(launcher.paths.log, a_run())
    app = SapoApp(launcher, TRUECOLOR)
    async with app.run_test(size=(80, 24)) as pilot:
        lines = await opened(pilot, app)
        await pilot.pause(0.1)
        lines.post_message(MouseScrollUp(lines, 1, 1, 0, -1, 0, False, False, False))
        await until(pilot, lambda: not lines.following)
        await pilot.click(lines, offset=(5, 2))
        await pilot.pause()
        chosen = lines.record
        assert chosen is not None and chosen.text[:20] in picture(app)
        await pilot.click(lines, offset=(5, 2), times=2)
        await until(pilot, lambda: isinstance(app.screen, LogDetail))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, Logs))


@pytest.mark.asyncio
async def test_levels_are_left_out_in_turn(launcher: FakeLauncher) -> None:
    add(launcher.paths.log, a_run())
    app = SapoApp(launcher, TRUECOLOR)
    async with app.run_test(size=(80, 24)) as pilot:
        lines = await opened(pilot, app)
        await pilot.press("l")
        await until(pilot, lambda: len(lines.records) == 3 and "\\x1b[31m[bold]boo" in picture(app))
        assert title(app) == "Log: warnings and errors"
        await pilot.press("l")
        await until(pilot, lambda: len(lines.records) == 1 and "ZeroDivisionError: division by zero]" in picture(app))
        assert title(app) == "Log: errors"
        await pilot.press("l")
        await until(pilot, lambda: len(lines.records) > 40 and title(app) == "Log")


@pytest.mark.asyncio
async def test_a_search_goes_through_the_older_files_too(launcher: FakeLauncher) -> None:
    path = launcher.paths.log
    add(path, written(0, "the needle is here") + a_run(5))
    rotate(path)
    add(path, "".join(written(number, f"hay {number}") for number in range(2000)))
    app = SapoApp(launcher, TRUECOLOR)
    async with app.run_test(size=(80, 24)) as pilot:
        lines = await opened(pilot, app)
        await pilot.press("slash", *"NEEDLE", "enter")
        await until(pilot, lambda: lines.record is not None and "needle" in lines.record.text)
        assert not lines.following and lines.has_focus and "search: NEEDLE" in title(app)
        await pilot.press("f3")
        await until(pilot, lambda: "no match further up" in notices(app))
        await pilot.press("slash", *("backspace",) * 6, *"hay 7", "enter")
        await until(pilot, lambda: "no match further up" in notices(app))
        await pilot.press("shift+f3")
        await until(pilot, lambda: lines.record is not None and lines.record.text == "hay 7")
        await pilot.press("shift+f3")
        await until(pilot, lambda: lines.record is not None and lines.record.text == "hay 70")
        await pilot.press("f3")
        await until(pilot, lambda: lines.record is not None and lines.record.text == "hay 7")
        await pilot.press("escape")
        assert title(app) == "Log"


@pytest.mark.asyncio
async def test_escape_leaves_the_search_and_digits_are_text_there(launcher: FakeLauncher) -> None:
    add(launcher.paths.log, a_run())
    app = SapoApp(launcher, TRUECOLOR)
    async with app.run_test(size=(80, 24)) as pilot:
        lines = await opened(pilot, app)
        await pilot.press("slash", *"[red]1")
        assert app.screen.query_one("#find", Input).value == "[red]1" and "Esc leaves" in subtitle(app)
        await pilot.press("enter")
        await until(pilot, lambda: "search: [red]1" in picture(app))
        await pilot.press("slash", "escape", "escape")
        assert lines.has_focus and title(app) == "Log"
        await pilot.press("1")
        await until(pilot, lambda: not isinstance(app.screen, Logs))


@pytest.mark.asyncio
async def test_enter_shows_a_record_in_full_and_c_copies_it(launcher: FakeLauncher) -> None:
    add(launcher.paths.log, a_run(17))
    app = SapoApp(launcher, TRUECOLOR)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(pilot, app)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, LogDetail))
        shown = str(app.screen.query_one("#raw", Static).render())
        assert '"event": "notice"' in shown and "\\u001b[31m[bold]boo[/bold]" in shown and "\x1b" not in shown
        await pilot.press("c")
        assert app.clipboard.startswith("2027-01-15T08:17:00Z INFO") and "\x1b" not in app.clipboard
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, Logs))
        await pilot.press("up", "c")
        assert '"event":"round"' in app.clipboard
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, LogDetail))
        await pilot.press("end")
        await until(pilot, lambda: '"received": 5' in picture(app))


@pytest.mark.asyncio
async def test_what_the_mouse_selects_can_be_copied(launcher: FakeLauncher) -> None:
    add(launcher.paths.log, a_run(5))
    app = SapoApp(launcher, TRUECOLOR)
    async with app.run_test(size=(80, 24)) as pilot:
        lines = await opened(pilot, app)
        await until(pilot, lambda: "round 5" in picture(app))
        await pilot.mouse_down(lines, offset=(12, 1))
        await pilot.hover(lines, offset=(20, 2))
        await pilot.mouse_up(lines, offset=(20, 2))
        await until(pilot, lambda: bool(app.screen.get_selected_text()))
        await pilot.press("c")
        assert app.clipboard.startswith("round 1: reward") and "08:02:00" in app.clipboard
        add(launcher.paths.log, event_line(finished(6)))
        await until(pilot, lambda: "round 6" in picture(app))
        assert not app.screen.get_selected_text()


@pytest.mark.asyncio
async def test_long_lines_are_wrapped_or_scrolled(launcher: FakeLauncher) -> None:
    add(launcher.paths.log, written(0, " ".join(f"word{number}" for number in range(400))))
    app = SapoApp(launcher, TRUECOLOR)
    async with app.run_test(size=(80, 24)) as pilot:
        lines = await opened(pilot, app)
        await until(pilot, lambda: lines.virtual_size.height == 8)
        assert "…" in picture(app)
        await pilot.press("v")
        assert lines.virtual_size.height == 1 and "not wrapped" in title(app)
        await until(pilot, lambda: lines.max_scroll_x >= 24)
        await pilot.press("right", "right")
        await until(pilot, lambda: lines.scroll_x == 24)
        await pilot.press("left")
        await until(pilot, lambda: lines.scroll_x == 12)


@pytest.mark.asyncio
async def test_home_goes_to_the_oldest_record_and_paging_back_reaches_the_newest(launcher: FakeLauncher) -> None:
    path = launcher.paths.log
    add(path, "".join(written(number, f"record {number}") for number in range(700)))
    app = SapoApp(launcher, TRUECOLOR)
    async with app.run_test(size=(80, 24)) as pilot:
        lines = await opened(pilot, app)
        await pilot.press("home")
        await until(pilot, lambda: lines.record is not None and lines.record.text == "record 0")
        assert "record 0" in picture(app)
        seen = 0
        while seen < 699:
            await pilot.press("pagedown")
            assert lines.record is not None
            number = int(lines.record.text.split()[1])
            assert 0 < number - seen <= 40
            seen = number


@pytest.mark.asyncio
async def test_rotation_and_truncation_are_followed(launcher: FakeLauncher) -> None:
    path = launcher.paths.log
    add(path, a_run(3))
    app = SapoApp(launcher, TRUECOLOR)
    async with app.run_test(size=(80, 24)) as pilot:
        lines = await opened(pilot, app)
        rotate(path)
        add(path, event_line(finished(4)))
        await until(pilot, lambda: lines.record is not None and "round 4:" in lines.record.text)
        assert "round 1:" in picture(app)
        path.write_text(event_line(finished(5)))
        await until(pilot, lambda: lines.record is not None and "round 5:" in lines.record.text)
        for number in (path.with_name(path.name + ".1"), path):
            number.unlink()
        await until(pilot, lambda: "There is no log yet" in picture(app))
        add(path, event_line(finished(6)))
        await until(pilot, lambda: "round 6:" in picture(app))


@pytest.mark.asyncio
async def test_it_goes_on_when_the_node_ends(launcher: FakeLauncher) -> None:
    add(launcher.paths.log, a_run())
    app = SapoApp(launcher, TRUECOLOR)
    async with app.run_test(size=(80, 24)) as pilot:
        lines = await opened(pilot, app)
        launcher.close()
        launcher.ending = replace(FINISHED, done=False)
        await until(pilot, lambda: app.state.standing is Standing.ENDED)
        add(launcher.paths.log, written(9999, "Fatal: out of memory", "ERROR"))
        await until(pilot, lambda: any("Fatal: out of memory" in record.text for record in lines.records))


@pytest.mark.asyncio
async def test_nothing_to_show_is_said_with_what_to_do(tmp_path: Path) -> None:
    launcher = FakeLauncher(tmp_path)
    app = SapoApp(launcher, TRUECOLOR)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("6")
        await until(pilot, lambda: "There is no log yet" in picture(app))
        await pilot.press("up", "enter", "c", "f3", "escape", "pagedown", "home", "v", "v", "l")
        add(launcher.paths.log, event_line(finished(1)))
        await until(pilot, lambda: "The log has no warnings or errors." in picture(app))
        launcher.paths.log.unlink()
        launcher.paths.log.mkdir()
        await until(pilot, lambda: "can't read" in picture(app))
        launcher.paths.log.rmdir()
        add(launcher.paths.log, written(0, "well again", "ERROR"))
        await until(pilot, lambda: "well again" in picture(app))
    launcher.close()


@pytest.mark.asyncio
async def test_nothing_is_read_while_another_screen_is_in_front(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(launcher.paths.log, a_run())
    app = SapoApp(launcher, TRUECOLOR)
    async with app.run_test(size=(80, 24)) as pilot:
        lines = await opened(pilot, app)
        await pilot.press("1")
        await pilot.pause(0.2)
        threads: list[str] = []
        read = LogReader.read

        def watched(reader: LogReader) -> bool:
            threads.append(threading.current_thread().name)
            return read(reader)

        monkeypatch.setattr(LogReader, "read", watched)
        add(launcher.paths.log, event_line(finished(41)))
        await pilot.pause(1.5)
        assert not threads
        await pilot.press("6")
        await until(pilot, lambda: lines.record is not None and "round 41" in lines.record.text)
        assert "MainThread" not in threads


@pytest.mark.asyncio
async def test_it_survives_a_tiny_terminal(launcher: FakeLauncher) -> None:
    add(launcher.paths.log, a_run())
    app = SapoApp(launcher, TRUECOLOR)
    async with app.run_test(size=(120, 40)) as pilot:
        lines = await opened(pilot, app)
        await pilot.press(*("up",) * 20)
        chosen = lines.record
        await pilot.resize_terminal(40, 10)
        await pilot.pause(0.2)
        assert "round" in picture(app)
        await pilot.resize_terminal(120, 40)
        await pilot.pause(0.2)
        assert lines.record == chosen and not lines.following and chosen is not None and chosen.text in picture(app)


def test_pictures(launcher: FakeLauncher, snap_compare: Any) -> None:
    assert _snap(launcher, snap_compare, (80, 24))


def test_wide_pictures(launcher: FakeLauncher, snap_compare: Any) -> None:
    assert _snap(launcher, snap_compare, (120, 40))


def test_pictures_without_colours(launcher: FakeLauncher, snap_compare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert _snap(launcher, snap_compare, (80, 24))


def _snap(launcher: FakeLauncher, snap_compare: Any, size: tuple[int, int]) -> bool:
    add(launcher.paths.log, a_run())

    async def before(pilot: Pilot[Any]) -> None:
        app = pilot.app
        assert isinstance(app, SapoApp)
        lines = await opened(pilot, app)
        await until(pilot, lambda: "5 peers" in picture(app))
        await pilot.press("up", "up", "up", "slash", *"time", "enter")
        await until(pilot, lambda: lines.record is not None and "TimeoutError" in lines.record.text)

    return bool(snap_compare(SapoApp(launcher, TRUECOLOR), terminal_size=size, run_before=before))
