"""Runs are listed and compared, a new one begins beside the old one, and an experiment is watched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from sapo_edge.control.runs import RunView
from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.node.processes import JobResult
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.runs.screen import Runs
from sapo_edge.tui.screens.runs.texts import comparison_text
from sapo_edge.tui.screens.runs.widgets import RunsPlot
from sapo_edge.tui.widgets.dialog import Ask
from tests.tui.fake_launcher import EXPERIMENT, EXPERIMENT_STATE, FakeLauncher
from tests.tui.fake_node import BEGAN
from tests.tui.shell import Pictured, attached, press, running, screen, text, until
from tests.unit.control.evaluations import evaluation

OLD = RunView(
    "slow \x1b[31m", False, 40, BEGAN, BEGAN + 2400, "", "old \x1b[5mmodel", "torch", {"learning_rate": 1e-5},
    evaluation(40, "1" * 55 + "0" * 45),
)  # fmt: skip


async def opened(pilot: Pilot[Any], app: SapoApp) -> None:
    await attached(pilot, app)
    await press(pilot, "8", then=lambda: "What was learned in" in screen(app))
    await press(pilot, "R", then=lambda: isinstance(app.screen, Runs) and len(app.screen.list.rows) == 2)
    await until(pilot, lambda: len(app.screen.query_one(RunsPlot)._runs) == 2)


async def test_two_runs_are_compared_and_a_new_one_begins(launcher: FakeLauncher) -> None:
    launcher.other_runs = [OLD]
    launcher.replies["runs"] = JobResult({"done": "new", "run": "run-2"})
    node = launcher.node
    async with running(launcher, (120, 40), ready=opened) as (pilot, app):
        compared = text(app, "#comparison")
        assert "first against slow \\x1b[31m" in screen(app) and "\x1b" not in compared
        assert "asked different questions" in " ".join(compared.split()) and "chain_sum" in compared
        assert "learning_rate: " in compared and "| 1e-05" in compared
        assert "● first" in screen(app) and "○ slow" in screen(app)
        await press(pilot, "down", then=lambda: "slow \\x1b[31m against first" in screen(app))
        await press(pilot, "n", then=lambda: isinstance(app.focused, Input))
        name = app.screen.query_one(Input)
        assert name.value == "run-2"
        for typed, said in {"My run": "small letters", "-x": "small letters", "first": "first already"}.items():
            name.value = typed
            await press(pilot, "enter", then=lambda: said in text(app, "#wrong"))  # noqa: B023
        assert node.asked == [] and launcher.commands == [], "no node is stopped for a run that can't begin"
        name.value = "run-2"
        await press(pilot, "enter", then=lambda: (("runs", "new", "run-2"), "") in launcher.commands)
        assert node.asked == ["after_round"]
        await until(pilot, lambda: launcher.starts == 1)
        await press(pilot, "escape", then=lambda: app.current_mode == "results")


async def test_a_run_goes_on_as_its_command_sets_it_and_shares_nothing_again_unasked(launcher: FakeLauncher) -> None:
    # The file that its journal names may have changed since: the command knows what it was made with.
    settings = {"manifest": "arithmetic", "model": "", "seed": None, "network": "swarm", "learning_rate": 1e-5}
    launcher.other_runs = [replace(OLD, name="shared", settings=settings)]
    launcher.replies["runs"] = JobResult({"done": "use", "run": "shared"})
    launcher.set("network", "solo")
    async with running(launcher, ready=opened) as (pilot, app):
        await pilot.press("down", "u")
        await until(pilot, lambda: isinstance(app.screen, Ask) and "and that stays so" in " ".join(screen(app).split()))
        await press(pilot, "enter", then=lambda: launcher.starts == 1)
        assert (("runs", "use", "shared"), "") in launcher.commands
        assert launcher.changes == [("network", "solo")]


async def test_the_cursor_stays_on_its_run_while_others_come(launcher: FakeLauncher) -> None:
    launcher.other_runs = [OLD]
    async with running(launcher, ready=opened) as (pilot, app):
        assert isinstance(app.screen, Runs)
        runs = app.screen.list
        await press(pilot, "down", then=lambda: runs.chosen == OLD)
        runs.show([replace(OLD, name="another"), *runs.rows], "")
        assert runs.chosen == OLD
        runs.show([run for run in runs.rows if run is not OLD], "")
        assert runs.cursor == 1, "gone, it is the one in its place"


async def test_the_current_run_goes_on_where_no_node_runs(launcher: FakeLauncher) -> None:
    launcher.other_runs = [OLD]
    async with running(launcher, ready=opened) as (pilot, app):
        assert not app.screen.active_bindings["u"].enabled, "its node runs"
        await press(pilot, "down", then=lambda: app.screen.active_bindings["u"].enabled)
        await press(pilot, "up", "s", then=lambda: app.screen.is_modal)
        await pilot.press("enter")
        await until(pilot, lambda: app.state.standing is Standing.ENDED and app.screen.active_bindings["u"].enabled)
        await press(pilot, "u", then=lambda: launcher.starts == 1 and "starts the run first" in text(app, "#job"))


async def test_an_experiment_is_watched_also_from_a_directory_that_is_gone(
    launcher: FakeLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher.other_runs = [OLD]
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    async with running(launcher, (60, 20), ready=opened) as (pilot, app):
        await press(pilot, "w", then=lambda: isinstance(app.focused, Input))
        app.screen.query_one(Input).value = "x"
        await press(pilot, "enter", then=lambda: "there is no experiment in x" in text(app, "#arms"))
        monkeypatch.chdir(tmp_path)
        await press(pilot, "escape", "w", then=lambda: isinstance(app.focused, Input))
        app.screen.query_one(Input).value = f"~nobody-here/[/data]/{EXPERIMENT}"
        await press(pilot, "enter", then=lambda: "3 of 8 swarms finished" in screen(app) and "baseline" in screen(app))
        shown = text(app, "#arms")
        assert any(line.strip() in ("round 12 of 50, round 5 of 50",) for line in shown.splitlines())
        assert "esc Back" in screen(app)
        assert "0.655" in shown and "+0.040 (1 pair)" in shown and "4/4 \\x1b[3" in shown
        (setting,) = EXPERIMENT_STATE.settings
        arms = tuple(replace(arm, accuracies=dict.fromkeys(range(4), 0.6), running={}) for arm in setting.arms)
        launcher.experiments = [replace(EXPERIMENT_STATE, settings=(replace(setting, arms=arms),))]
        assert isinstance(app.screen, Runs)
        monkeypatch.setattr(app, "busy", lambda group: group == "runs-look")
        app.screen._look_again()
        await pilot.pause(0.1)
        assert "3 of 8 swarms finished" in screen(app), "the look before has not ended"
        monkeypatch.undo()
        app.screen._look_again()
        await until(pilot, lambda: "8 of 8 swarms finished" in screen(app))
        await press(pilot, "escape", then=lambda: "first against" in screen(app))
        assert app.state.standing is Standing.ATTACHED


@pytest.mark.parametrize(
    ("right", "sentence"), [(90, "▲ It is better: +35"), (20, "▼ It is worse: -35"), (57, "• Too close to tell: +2")]
)
def test_which_run_is_better_is_told_with_its_interval(right: int, sentence: str) -> None:
    assert OLD.best is not None
    other = replace(OLD, name="other", best=replace(OLD.best, question_set="some"))
    run = replace(other, best=evaluation(30, "1" * right + "0" * (100 - right), "some"))
    text = comparison_text(run, other).plain
    assert sentence in text and "points of 100 (95 %:" in text and "no setting" in text


def test_picture(launcher: FakeLauncher, pictured: Pictured) -> None:
    launcher.other_runs = [OLD]
    assert pictured(opened)
