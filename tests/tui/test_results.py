"""The results: what was learned, and what can be done with it. The screen opens when a run ends."""

from __future__ import annotations

import math
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from textual.pilot import Pilot
from textual.widgets import Button, Input, OptionList

from sapo_edge.backends.adapter.export import ExportFormat, Quantisation
from sapo_edge.control.report import Report, TaskCourse
from sapo_edge.control.report_words import spoken, verdict
from sapo_edge.control.run_report import RunReport
from sapo_edge.control.runs import RunView
from sapo_edge.errors import ConfigError
from sapo_edge.evaluate import Gain
from sapo_edge.state.detail import Example
from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.look.terminal import MAX_NOTICE, desktop_notice
from sapo_edge.tui.node import keeper
from sapo_edge.tui.node.history import Evaluation, History
from sapo_edge.tui.node.launcher import Outcome
from sapo_edge.tui.node.processes import JobResult
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.results.export import Export, choices
from sapo_edge.tui.screens.results.picture import HEIGHT, LEFT, TOP, WIDTH, draw, to_png, to_svg
from sapo_edge.tui.screens.results.picture import Text as PictureText
from sapo_edge.tui.screens.results.screen import PICTURE, Results
from sapo_edge.tui.screens.results.screen import tested as report_of_test
from sapo_edge.tui.screens.results.texts import report_text
from sapo_edge.tui.widgets.dialog import Ask
from tests.tui.fake_launcher import ADAPTER, FakeLauncher
from tests.tui.shell import (
    TRUECOLOR,
    Pictured,
    Size,
    attached,
    begin,
    following,
    notices,
    press,
    running,
    screen,
    text,
    until,
)

EVAL = {
    "base": {"correct": 5, "formed": 2, "questions": 50, "entries": {"chain_sum": {"marks": f"{'1' * 5:0<50}"}}},
    "adapter": {"correct": 41, "formed": 41, "questions": 50, "entries": {"chain_sum": {"marks": f"{'1' * 41:0<50}"}}},
    "gain": {"value": 0.72, "low": 0.6, "high": 0.8, "gained": 37, "lost": 1}, "base_examples": 6,
    "adapter_path": ADAPTER,
}  # fmt: skip
"""What `sapo eval --json` prints."""


async def opened(pilot: Pilot[Any], app: SapoApp) -> None:
    await attached(pilot, app)
    await press(pilot, "8", then=lambda: isinstance(app.screen, Results) and "reading" not in text(app, "#report"))


async def end(pilot: Pilot[Any], app: SapoApp, launcher: FakeLauncher, rounds: int) -> None:
    """Let the node end in order, in a run of so many rounds."""
    launcher.node.tell(rounds=rounds)
    app.state.set_status(launcher.node.status())
    launcher.finish(done=rounds == 40)
    await until(pilot, lambda: app.state.standing is Standing.ENDED)


async def test_it_shows_before_and_now_until_the_test_questions_replace_them(launcher: FakeLauncher) -> None:
    launcher.replies["eval"] = JobResult(EVAL)
    async with running(launcher, (120, 40), ready=opened) as (pilot, app):
        seen = screen(app)
        assert "What was learned in 30 rounds; 40 rounds are done" in seen
        assert "4 of 100" in seen and "68 of 100" in seen and "It got better: +64 points of 100" in seen
        assert "4 % →  90 %" in seen and "(+71 to +92)" in seen
        assert "3 + 4 =" in seen and "✓ 7" in seen and "✗ I think" in seen
        assert "2 became right, 0 wrong" in seen and "/home/somebody/checkpoints/round-000030" in seen
        assert "\x1b" not in seen and "\\x1b[31m[bold]greatest[/bold]" in seen
        launcher.hold_jobs = True
        await press(pilot, "y", then=lambda: "test questions (" in text(app, "#job"))
        await press(pilot, "y", "escape", then=lambda: "it was stopped" in text(app, "#job"))
        assert len(launcher.jobs) == 1 and launcher.jobs[0].closed and app.current_mode == "results"
        await press(pilot, "escape", then=lambda: app.current_mode == "dashboard")
        launcher.hold_jobs = False
        await press(pilot, "8", then=lambda: isinstance(app.screen, Results))
        await press(pilot, "y", then=lambda: "41 of 50" in screen(app))
        assert launcher.commands == 2 * [(("eval",), "")] and "+72 points of 100 (95 %: +60 to +80)" in screen(app)
        assert "chose nothing" in screen(app) and "3 + 4 =" in screen(app)
        await pilot.resize_terminal(43, 39)
        buttons = ("x Export", "4 Chat", "y Test", "u More", "P Picture")
        await until(pilot, lambda: all(words in screen(app) for words in buttons))
        regions = [button.region for button in app.screen.query(Button)]
        assert len(regions) == 5 and all(region.width > 5 and region.right <= 43 for region in regions)


async def test_test_figures_of_another_run_with_the_same_round_are_not_shown(launcher: FakeLauncher) -> None:
    launcher.replies["eval"] = JobResult(EVAL)
    outcome = launcher.outcome
    async with running(launcher, (120, 40), ready=opened) as (pilot, app):
        await press(pilot, "y", then=lambda: "41 of 50" in screen(app))

        def of_another_run() -> Outcome:
            found = outcome()
            return replace(found, report=replace(found.report, adapter="/second/round-000030"))

        launcher.outcome = of_another_run  # type: ignore[method-assign]
        await press(pilot, "1", "8", then=lambda: "68 of 100" in screen(app))
        assert "41 of 50" not in screen(app)
        await press(pilot, "y", then=lambda: "no longer the one above" in text(app, "#job"))
        assert "41 of 50" not in screen(app)


async def test_before_there_are_two_evaluations_it_says_what_is_missing(fresh: FakeLauncher) -> None:
    async with running(fresh, ready=opened) as (pilot, app):
        assert "Nothing can be compared yet" in screen(app) and "none yet" in screen(app)
        await pilot.press("x", "y", "P")
        assert fresh.commands == [] and isinstance(app.screen, Results)
        fresh.node.emit(fresh.node.finished(1))
        # With a curve, and no result to copy.
        await press(pilot, "1", "8", then=lambda: app.screen.check_action("picture", ()))
        assert app.screen.check_action("copy", ()) is None


async def test_it_opens_when_a_run_of_so_many_rounds_ends_and_gives_it_forty_more(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SapoApp, "is_headless", False)
    written: list[str] = []
    async with following(launcher) as (pilot, app):
        assert app._driver is not None
        monkeypatch.setattr(app._driver, "write", written.append)
        await end(pilot, app, launcher, 400)
        await pilot.pause(0.3)
        assert app.current_mode == "dashboard", "it was stopped"
        await begin(pilot, app, "s")
        app.push_screen(Ask("Go on?", ""))
        await end(pilot, app, launcher, 40)
        await until(pilot, lambda: "key 8" in notices(app))
        assert isinstance(app.screen, Ask)
        await begin(pilot, app, "escape", "s")
        assert not any(text.startswith("\x1b]9;") for text in written), "nobody asked to be told on the desktop"
        launcher.set("desktop_notice", "on")
        await end(pilot, app, launcher, 40)
        await until(pilot, lambda: isinstance(app.screen, Results) and "It got better" in screen(app))
        await press(pilot, "escape", then=lambda: app.current_mode == "dashboard")
        await press(pilot, "8", then=lambda: isinstance(app.screen, Results))
        await press(pilot, "u", then=lambda: launcher.starts == 3 and app.state.standing is Standing.ATTACHED)
        assert launcher.changes == [("desktop_notice", "on"), ("rounds", "80")]
    assert "\x1b]9;sapo: all 40 rounds are done\x07" in written


async def test_what_a_starting_node_says_makes_no_screen_read_its_files_again(
    starting: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "LOOK_SECONDS", 0.02)
    read, outcome, looks, said = [0], starting.outcome, [0], starting.starting

    def counted() -> Outcome:
        read[0] += 1
        return outcome()

    def asked() -> Sequence[str]:
        looks[0] += 1
        return said()

    monkeypatch.setattr(starting, "outcome", counted)
    monkeypatch.setattr(starting, "starting", asked)
    async with running(starting) as (pilot, app):
        await until(pilot, lambda: app.state.standing is Standing.STARTING)
        await press(pilot, "8", then=lambda: isinstance(app.screen, Results) and read[0] > 0)
        before, looked = read[0], looks[0]
        await until(pilot, lambda: looks[0] > looked + 20)
        assert read[0] == before


async def test_while_a_node_starts_it_is_promised_no_rounds_because_it_has_read_its_settings(
    launcher: FakeLauncher,
) -> None:
    async with running(launcher, ready=opened) as (pilot, app):
        app.state.standing = Standing.STARTING
        await press(pilot, "u", then=lambda: "starting: try again when it runs" in text(app, "#job"))
        assert launcher.changes == []
        # Another run may have been chosen since the one before.
        app.state.status = {**app.state.status, "round": 400}
        app.state.standing = Standing.ENDED
        await press(pilot, "u", then=lambda: launcher.changes == [("rounds", "80")])


@pytest.mark.parametrize("runs", [True, False], ids=["running", "ended"])
async def test_more_rounds_come_after_the_limit_that_is_set(launcher: FakeLauncher, runs: bool) -> None:
    async with running(launcher, ready=opened) as (pilot, app):
        if runs:
            launcher.node.tell(rounds=200)
            app.state.set_status(launcher.node.status())
        else:
            launcher.set("rounds", "200")
            launcher.finish(done=False)
            await until(pilot, lambda: app.state.standing is Standing.ENDED)
        await press(pilot, "u", then=lambda: launcher.changes[-1:] == [("rounds", "240")])


def test_a_test_keeps_what_was_shown_of_the_questions_that_were_trained_on() -> None:
    one = Example("chain_sum", "2 + 3?", "5", "5", right=True)
    pair = one, one
    before = Report("validation", 1, 1, 0, 1, Gain(1.0, 0.0, 1.0, 1, 0), examples=(pair,), own=(pair, pair))
    side = {"questions": 1, "correct": 1, "formed": 1, "entries": {"chain_sum": {"marks": "1"}}}
    record = {"base": side, "adapter": side, "gain": asdict(before.gain), "base_examples": 0}
    found = report_of_test(record, 1, before)
    assert (found.split, found.examples, found.own) == ("test", before.examples, before.own)


async def test_the_picture_is_saved_and_a_node_gets_more_rounds(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sapo_edge.tui.app.user_downloads_path", lambda: tmp_path)
    svg, png = (tmp_path / f"{PICTURE}.{end}" for end in ("svg", "png"))
    async with running(launcher, ready=opened) as (pilot, app):
        await press(pilot, "P", then=lambda: all(f"saved as {path}" in notices(app) for path in (svg, png)))
        assert "68 % now, of 100" in svg.read_text("utf-8") and "<polyline" in svg.read_text("utf-8")
        with Image.open(png) as image:
            assert image.size == (WIDTH, HEIGHT) and len(image.getcolors(1 << 20) or ()) > 100
        png.unlink()
        png.mkdir()
        await press(pilot, "P", then=lambda: "Is a directory" in notices(app))
        await press(pilot, "u", then=lambda: "stops after round 80" in text(app, "#job"))
        assert launcher.changes == [("rounds", "80")]
        assert "set rounds=80" in launcher.node.asked and launcher.starts == 0
        launcher.refusal = ConfigError("the disk is full", "free some space")
        await press(pilot, "u", then=lambda: "the disk is full; free some space" in text(app, "#job"))


def test_a_long_name_leaves_the_figures_in_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["right answers: 3.5 % before training, 21 % now, of 200 · " + "m" * 64, "• Too close to tell"]
    shapes = draw(History(held_out=[Evaluation(5, 0.5, 0.4, 0.6)]), "title", lines)
    drawn = [shape for shape in shapes if isinstance(shape, PictureText) and shape.size == 22]
    assert drawn[0].text.startswith(lines[0][:80]) and drawn[1].text == lines[1]
    assert all(LEFT + len(line.text) * line.size * 0.54 < WIDTH and line.y + 8 < TOP for line in drawn)
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert to_png([]) is None


@given(st.text())
def test_a_notice_on_the_desktop_holds_no_control_character(text: str) -> None:
    notice = desktop_notice(text, TRUECOLOR)
    body = notice.removeprefix("\x1b]9;").removesuffix("\x07")
    assert len(notice) == len(body) + 5 and len(body) <= MAX_NOTICE
    assert not any(unicodedata.category(character) in ("Cc", "Cf") for character in body)
    assert desktop_notice(text, {"TERM": "linux"}) == ""


async def exporting(pilot: Pilot[Any], app: SapoApp, folder: Path) -> None:
    await opened(pilot, app)
    await press(pilot, "x", then=lambda: isinstance(app.screen, Export))
    app.screen.query_one("#folder", Input).value = str(folder)


def test_every_format_of_the_command_can_be_chosen() -> None:
    flags = [flags for flags, _ in choices().values()]
    assert {flag[1] for flag in flags} == {str(form) for form in ExportFormat}
    merged = {flag[3] if len(flag) > 2 else "q8_0" for flag in flags if flag[1] == "merged"}
    assert merged == {str(form) for form in Quantisation}


async def test_an_export_fails_stops_by_escape_or_says_how_to_load_it(launcher: FakeLauncher, tmp_path: Path) -> None:
    launcher.replies["export"] = ConfigError("the disk is full", "free some space")
    async with running(launcher) as (pilot, app):
        await exporting(pilot, app, tmp_path)
        await press(pilot, "ctrl+s", then=lambda: "the disk is full; free some space" in screen(app))
        launcher.hold_jobs = True
        await press(pilot, "ctrl+s", then=lambda: "writing q8_0" in screen(app))
        await press(pilot, "escape", then=lambda: launcher.jobs[-1].closed)
        assert isinstance(app.screen, Export)
        await until(pilot, lambda: "it was stopped" in screen(app))
        launcher.hold_jobs = False
        usage = {"llama.cpp": "llama-cli --lora [b]x[/b]"}
        launcher.replies["export"] = JobResult({"path": "/x/\x1b[31madapter.gguf", "usage": usage})
        formats = app.screen.query_one("#formats", OptionList)
        formats.highlighted = formats.get_option_index("gguf")
        await press(pilot, "enter", then=lambda: "llama-cli --lora [b]x[/b]" in screen(app))
        assert launcher.commands[-1] == (("export", str(tmp_path), "--to", "gguf"), "")
        assert "written: /x/\\x1b[31madapter.gguf" in screen(app)
        await pilot.press("c")
        assert app.clipboard == "llama-cli --lora [b]x[/b]"
        await press(pilot, "escape", then=lambda: isinstance(app.screen, Results))


@pytest.mark.parametrize(
    ("low", "high", "word"), [(0.1, 0.3, "better"), (-0.3, -0.1, "worse"), (-0.1, 0.3, "Too close to tell")]
)
def test_the_verdict_is_the_intervals(low: float, high: float, word: str) -> None:
    assert word in verdict(Report("test", 3, 100, 10, 20, Gain((low + high) / 2, low, high, 0, 0)))[1]


def test_the_rise_is_the_difference_of_both_shares_and_one_sum_no_hundred_points() -> None:
    report = Report("validation", 10, 200, 7, 42, Gain(0.175, 0.11, 0.24, 35, 0))
    shown = report_text(RunReport(RunView("first", True, 16)), report, 80).plain
    assert "3.5 %  7 of 200" in shown and "21 %  42 of 200" in shown and "+17.5 points of 100" in shown
    assert next(spoken(report)) == "right answers: 3.5 % before training, 21 % now, of 200"
    style, sentence = verdict(Report("test", 3, 1, 0, 1, Gain(1.0, -0.12, 1.0, 1, 0)))
    assert style == "yellow" and "0 → 1 of 1: too few questions" in sentence and "points" not in sentence


@given(st.integers(1, 500), st.data(), st.text(max_size=30), st.integers(36, 200))
def test_no_report_breaks_the_text(questions: int, data: Any, name: str, width: int) -> None:
    before, now = (data.draw(st.integers(0, questions)) for _ in range(2))
    report = Report("validation", 3, questions, before, now, Gain(0.0, -1.0, 1.0, 0, 0))
    shown = report_text(RunReport(RunView("first", True, 3), adapter=name, adapter_round=3), report, width).plain
    assert f"{before} of {questions}" in shown and f"{now} of {questions}" in shown


@given(st.text(), st.lists(st.floats(-1, 2) | st.just(math.nan), max_size=20))
def test_the_picture_is_valid_and_inside_its_frame(title: str, values: list[float]) -> None:
    history = History(held_out=[Evaluation(5, 0.5, 0.4, 0.6)])
    for number, value in enumerate(values, 1):
        history.curves.add(number, value, None, 0.5, 1.0, 0.0)
    tasks = [TaskCourse(title, 1, 2, 30, Gain(0.03, -0.1, 0.2, 1, 0))] * (len(values) % 9)
    root = ElementTree.fromstring(to_svg(draw(history, title, [title], tasks)))
    for line in root.iter("{http://www.w3.org/2000/svg}polyline"):
        for point in line.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 1200 and 0 <= y <= 630


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (120, 40)])
def test_pictures(pictured: Pictured, size: Size) -> None:
    assert pictured(opened, size)


def test_picture_of_the_export(pictured: Pictured) -> None:
    assert pictured(lambda pilot, app: exporting(pilot, app, Path("/home/somebody/sapo-adapter")), dialog=True)
