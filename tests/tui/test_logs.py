"""The log is read from its files, in pages, whether or not a node runs."""

from __future__ import annotations

import logging
import os
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, Static

from sapo_edge import events
from sapo_edge.state import logs
from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.logs.detail import LogDetail
from sapo_edge.tui.screens.logs.reader import Line, LogReader, LostPlaceError, Page
from sapo_edge.tui.screens.logs.screen import Logs
from sapo_edge.tui.screens.logs.view import LogView
from sapo_edge.tui.screens.logs.window import MAX_CHARACTERS, MAX_RECORDS, Level, LogWindow
from sapo_edge.tui.screens.logs.words import MAX_TEXT, Record, level_of, record_of
from tests.tui.fake_launcher import FINISHED, FakeLauncher
from tests.tui.fake_node import BEGAN, evaluated, finished
from tests.tui.shell import TRUECOLOR, picture, until

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


def told(event: events.Event) -> str:
    return written(event.time - BEGAN, events.to_json(event))


def a_run(rounds: int = 40) -> str:
    """The log of a run with two warnings and an error."""
    parts = [told(events.NodeStarted(model="SmolLM2", backend="llama_cpp", time=BEGAN))]
    for number in range(1, rounds + 1):
        parts.append(told(finished(number)))
        if number % 10 == 0:
            parts.append(told(evaluated(number)))
        if number == 17:
            parts.append(told(events.Notice(level="warning", text=HOSTILE, time=BEGAN + 60 * number)))
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


def everything(line: Line) -> bool:
    return True


def texts(page: Page | None) -> list[str]:
    assert page is not None
    return [record_of(line).text for line in page.lines]


# The reader.


def test_pages_meet_without_gap_or_overlap_over_three_files(tmp_path: Path) -> None:
    path = tmp_path / "sapo-edge.log"
    wanted = [f"record {number} {'x' * (number * 7919 % 900)}" for number in range(3000)]
    for number, text in enumerate(wanted):
        if number in (1000, 2000):
            rotate(path)
        add(path, written(number, text))
    reader = LogReader(path)
    page = reader.last(everything, 100)
    assert page is not None
    found = texts(page)
    while not page.edge:
        page = reader.older(page.start, everything, 170)
        found[:0] = texts(page)
    assert found == wanted
    page = reader.first(everything, 10)
    assert page is not None
    found = texts(page)
    while not page.edge:
        page = reader.newer(page.end, everything, 170)
        found[-1:] = texts(page)
    assert found == wanted


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
    page = LogReader(path).last(everything, 10)
    assert page is not None
    first, second = (record_of(line) for line in page.lines)
    assert (first.level, first.source, first.thread) == ("info", "", "MainThread") and "round 34" in first.text
    assert first.time is not None and abs(first.time - time.time()) < 60
    assert (second.level, second.source) == ("error", "swarm.tally") and "pull \\x1b[31m failed" in second.text
    assert second.text.endswith("lines: ZeroDivisionError: division by zero]")


def test_a_record_keeps_its_further_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    add(path, written(0, "before") + written(1, TRACEBACK, "ERROR", "sapo_edge.care") + written(2, "after"))
    page = LogReader(path).last(everything, 10)
    assert page is not None
    record = record_of(page.lines[1])
    assert record.text.endswith("[+3 lines: ZeroDivisionError: division by zero]")
    assert record.level == "error" and record.source == "care" and record.raw.count("\n") == 3
    assert record.matches("zerodivisionerror") and record.matches("care.py") and not record.matches("nothing")


def test_a_record_that_grows_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    first, _, rest = TRACEBACK.partition("\n")
    add(path, written(1, first, "ERROR").rstrip("\n"))
    reader = LogReader(path)
    page = reader.last(everything, 10)
    assert page is not None and texts(page) == [first]
    add(path, f"\n{rest}\n" + written(2, "after"))
    page = reader.newer(page.end, everything, 10)
    assert texts(page)[0].startswith(f"{first}  [+3 lines") and texts(page)[1] == "after"


def test_places_survive_rotation_and_are_lost_with_their_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    reader = LogReader(path)
    assert reader.last(everything, 10) is None and reader.stamp() == ()
    add(path, written(0, "one"))
    page = reader.last(everything, 10)
    assert page is not None
    rotate(path)
    add(path, written(1, "two"))
    assert texts(reader.newer(page.end, everything, 10)) == ["one", "two"]
    for text in ("three", "four", "five"):
        rotate(path)
        add(path, written(2, text))
    with pytest.raises(LostPlaceError):
        reader.newer(page.end, everything, 10)
    assert texts(reader.last(everything, 10)) == ["three", "four", "five"]


def test_a_file_that_was_cut_off_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    add(path, written(0, "one") + written(1, "two"))
    reader = LogReader(path)
    page = reader.last(everything, 10)
    assert page is not None
    path.write_text(written(9, "something else entirely, and longer than all that stood there before"))
    with pytest.raises(LostPlaceError):
        reader.newer(page.end, everything, 10)


def test_whatever_stands_in_the_file_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(
        b"no header at all\n" + b"\xff\xfe\x00 bytes\n" + written(0, "x" * 700_000).encode()
        + b'2027-13-99T99:99:99Z INFO a b: no such day\n'
        + b'2027-01-15T08:00:00Z INFO a sapo_edge.node: {"v":1,"event":[]}\n'
        + b'2027-01-15T08:00:00Z INFO a sapo_edge.node: {"v":1,"time":1,"event":"of_tomorrow"}\r\n'
    )  # fmt: skip
    page = LogReader(path).last(everything, 1000)
    assert page is not None and page.edge
    records = [record_of(line) for line in page.lines]
    assert records[0].level == "" and "\\xff\\xfe" in records[0].raw and records[0].time is None
    assert records[-1].text == '{"v":1,"time":1,"event":"of_tomorrow"}' and records[-3].time is None
    assert all(len(record.text) <= MAX_TEXT + 300 and record.text.isprintable() for record in records)


def test_events_are_described_in_words() -> None:
    def words(event: events.Event) -> Record:
        return record_of(Line((0, 0), 0, told(event).encode()))  # type: ignore[arg-type]

    assert words(finished(34)).text.startswith("round 34: reward 0.70, others 0.54, informative 5/8, ")
    hostile = words(events.Notice(level="warning", text=HOSTILE))
    assert hostile.level == "warning" and "\x1b" not in hostile.text and "\\x1b[31m[bold]boo" in hostile.text
    line = Line((0, 0), 0, told(events.Notice(level="error", text="x")).encode())  # type: ignore[arg-type]
    assert level_of(line) == "error" and Level.ERRORS.wants(line)


@pytest.mark.asyncio
async def test_a_large_log_is_never_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "log"
    block = "".join(told(finished(number)) for number in range(1, 501))
    path.write_text(block * 100)
    assert path.stat().st_size > 25_000_000
    tracemalloc.start()
    try:
        window = LogWindow(LogReader(path))
        for read in (
            window.to_end,
            window.older,
            window.older,
            window.older,
            window.older,
            window.to_start,
            window.newer,
        ):
            await read()
            held = sum(len(record.raw) + len(record.text) for record in window.records)
            assert 0 < len(window.records) <= MAX_RECORDS and held <= MAX_CHARACTERS
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000


@pytest.mark.asyncio
async def test_the_window_slides_without_gap_or_overlap(tmp_path: Path) -> None:
    path = tmp_path / "log"
    add(
        path,
        "".join(written(number, f"record {number}", "WARNING" if number % 3 else "INFO") for number in range(3000)),
    )
    window = LogWindow(LogReader(path))
    window.level = Level.WARNINGS
    await window.to_end()
    for read in [*[window.older] * 25, *[window.newer] * 25]:
        await read()
        numbers = [int(record.text.split()[1]) for record in window.records]
        whole = [number for number in range(numbers[0], numbers[-1] + 1) if number % 3]
        assert numbers == whole
    assert window.at_end and numbers[-1] == 2999


# The screen.


async def opened(pilot: Pilot[Any], app: SapoApp) -> LogView:
    await pilot.press("6")
    await until(pilot, lambda: isinstance(app.screen, Logs) and app.screen.window.exists)
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
        assert "2027-01-15" in subtitle(app) and "held-out after round 40" in picture(app)
        add(path, told(finished(41)))
        await until(pilot, lambda: lines.record is not None and "round 41" in lines.record.text)
        await pilot.press("up")
        assert not lines.following and "not following: f follows again" in subtitle(app)
        before = lines.scroll_y
        add(path, told(finished(42)))
        await until(pilot, lambda: "round 42" in app.screen.window.records[-1].text)  # type: ignore[attr-defined]
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
        lines._on_mouse_scroll_up(_wheel(lines))
        await until(pilot, lambda: not lines.following)
        await pilot.click(lines, offset=(5, 2))
        await pilot.pause()
        chosen = lines.record
        assert chosen is not None and chosen.text[:20] in picture(app)
        await pilot.click(lines, offset=(5, 2), times=2)
        await until(pilot, lambda: isinstance(app.screen, LogDetail))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, Logs))


def _wheel(widget: LogView) -> Any:
    from textual.events import MouseScrollUp

    return MouseScrollUp(widget, 1, 1, 0, -1, 0, False, False, False)


@pytest.mark.asyncio
async def test_levels_are_left_out_in_turn(launcher: FakeLauncher) -> None:
    add(launcher.paths.log, a_run())
    app = SapoApp(launcher, TRUECOLOR)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(pilot, app)
        window = app.screen.window  # type: ignore[attr-defined]
        await pilot.press("l")
        await until(pilot, lambda: len(window.records) == 3 and "\\x1b[31m[bold]boo" in picture(app))
        assert title(app) == "Log: warnings and errors"
        await pilot.press("l")
        await until(pilot, lambda: len(window.records) == 1 and "ZeroDivisionError: division by zero]" in picture(app))
        assert title(app) == "Log: errors"
        await pilot.press("l")
        await until(pilot, lambda: len(window.records) > 40 and title(app) == "Log")


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
        assert (
            not lines.following and lines.has_focus and "search: NEEDLE" in title(app) and "more below" in subtitle(app)
        )
        await pilot.press("n")
        await until(pilot, lambda: any("no match further up" in item.message for item in app._notifications))
        await pilot.press("slash", *("backspace",) * 6, *"hay 7", "enter")
        await until(pilot, lambda: any("no match further up" in item.message for item in app._notifications))
        await pilot.press("N")
        await until(pilot, lambda: lines.record is not None and lines.record.text == "hay 7")
        await pilot.press("N")
        await until(pilot, lambda: lines.record is not None and lines.record.text == "hay 70")
        await pilot.press("n")
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
        add(launcher.paths.log, told(finished(6)))
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
        await pilot.press("w")
        assert lines.virtual_size.height == 1 and "not wrapped" in title(app)
        await pilot.press("right", "right")
        assert lines.scroll_x == 24
        await pilot.press("left")
        assert lines.scroll_x == 12


@pytest.mark.asyncio
async def test_home_goes_to_the_oldest_record_and_paging_back_reaches_the_newest(launcher: FakeLauncher) -> None:
    path = launcher.paths.log
    add(path, "".join(written(number, f"record {number}") for number in range(700)))
    app = SapoApp(launcher, TRUECOLOR)
    async with app.run_test(size=(80, 24)) as pilot:
        lines = await opened(pilot, app)
        await pilot.press("home")
        await until(pilot, lambda: lines.record is not None and lines.record.text == "record 0")
        assert "record 0" in picture(app) and "more below" in subtitle(app)
        window = app.screen.window  # type: ignore[attr-defined]
        seen = 0
        while seen < 699:
            await pilot.press("pagedown")
            await until(pilot, lambda: window.at_end or len(window.records) - lines._cursor > 2)
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
        add(path, told(finished(4)))
        await until(pilot, lambda: lines.record is not None and "round 4:" in lines.record.text)
        assert "round 1:" in picture(app)
        path.write_text(told(finished(5)))
        await until(pilot, lambda: lines.record is not None and "round 5:" in lines.record.text)
        for number in (path.with_name(path.name + ".1"), path):
            number.unlink()
        await until(pilot, lambda: "There is no log yet" in picture(app))
        add(path, told(finished(6)))
        await until(pilot, lambda: "round 6:" in picture(app))


@pytest.mark.asyncio
async def test_it_goes_on_when_the_node_ends(launcher: FakeLauncher) -> None:
    add(launcher.paths.log, a_run())
    app = SapoApp(launcher, TRUECOLOR)
    async with app.run_test(size=(80, 24)) as pilot:
        lines = await opened(pilot, app)
        launcher.close()
        launcher.ending = FINISHED
        await until(pilot, lambda: app.state.standing is Standing.ENDED)
        add(launcher.paths.log, written(9999, "Fatal: out of memory", "ERROR"))
        await until(pilot, lambda: any("Fatal: out of memory" in record.text for record in lines._records))


@pytest.mark.asyncio
async def test_nothing_to_show_is_said_with_what_to_do(tmp_path: Path) -> None:
    launcher = FakeLauncher(tmp_path)
    app = SapoApp(launcher, TRUECOLOR)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("6")
        await until(pilot, lambda: "There is no log yet" in picture(app))
        await pilot.press("up", "enter", "c", "n", "escape", "pagedown", "home", "w", "w", "l")
        add(launcher.paths.log, told(finished(1)))
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
        looks: list[int] = []
        threads: list[str] = []
        look = LogReader.stamp

        def stamp(reader: LogReader) -> Any:
            looks.append(1)
            threads.append(threading.current_thread().name)
            return look(reader)

        monkeypatch.setattr(LogReader, "stamp", stamp)
        add(launcher.paths.log, told(finished(41)))
        await pilot.pause(1.5)
        assert not looks
        await pilot.press("6")
        await until(pilot, lambda: lines.record is not None and "round 41" in lines.record.text)
        assert looks and "MainThread" not in threads


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
