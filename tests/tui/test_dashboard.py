"""The dashboard shows a run in words, curves and figures, at any size."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.pilot import Pilot
from textual.widgets import Static

from sapo_edge.care.power import Power
from sapo_edge.events import HeadStart, Notice, RolledBack
from sapo_edge.swarm.status import LastSeen, Search
from sapo_edge.tui.app import SLOW_POLLS, SapoApp
from sapo_edge.tui.look.themes import LIGHT, curve_colors
from sapo_edge.tui.node.history import Evaluation
from sapo_edge.tui.node.machine import Load, LoadMeter
from sapo_edge.tui.node.state import NodeState, Standing
from sapo_edge.tui.screens.dashboard.curves import LEAST, CurvesPlot, Window
from sapo_edge.tui.screens.dashboard.screen import Dashboard
from sapo_edge.tui.screens.dashboard.texts import batch_text, machine_text
from sapo_edge.tui.screens.view import (
    NAV_COLUMNS,
    NAV_TIGHT_COLUMNS,
    NAV_TWO_COLUMNS,
    VIEWS,
    Change,
    Nav,
    NavItem,
)
from sapo_edge.tui.widgets.plot import ticks
from tests.tui.fake_launcher import LOAD, FakeLauncher
from tests.tui.shell import Pictured, Size, attached, following, lines, press, running, screen, still, text, until
from tests.waiting import burn

SIZES = [(80, 24), (120, 40)]


@pytest.fixture
def polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """The app asks for the status of its node often."""
    monkeypatch.setattr("sapo_edge.tui.app.STATUS_SECONDS", 0.2)


@pytest.mark.usefixtures("polling")
async def test_what_the_node_does_is_shown_and_a_click_shows_another_screen(launcher: FakeLauncher) -> None:
    async with following(launcher) as (pilot, app):
        assert "in 10 rounds" in text(app, "#batch")
        launcher.node.tell(reduced={"external": 2, "setting": 4})
        await until(pilot, lambda: "2 of 4 external" in text(app, "#batch"))
        launcher.node.tell(reduced=None)
        await until(pilot, lambda: "in 10 rounds" in text(app, "#batch"))
        launcher.node.progress("update", 3, 8, "groups")
        await until(pilot, lambda: "3/8" in text(app, "#progress"))
        launcher.node.pause_for("on battery (71 %)")
        await until(pilot, lambda: "paused: on battery (71 %)" in text(app, "#head"))
        await press(pilot, "p", then=lambda: "paused" not in text(app, "#head"))
        launcher.node.emit(launcher.node.finished(41))
        await until(pilot, lambda: app.state.history.last_round == 41 and "round 41" in text(app, "#head"))
        assert "round 42" in text(app, "#progress")
        launcher.node.emit(RolledBack(from_round=41, to_round=30))
        await until(pilot, lambda: app.state.history.last_round == 30)
        assert [item.round for item in app.state.history.held_out] == [0, 10, 20, 30]
        await pilot.click(list(app.screen.query(NavItem))[2])
        await until(pilot, lambda: app.current_mode == "peers")


@pytest.mark.parametrize("size", [(60, 20), (50, 12), (80, 18)])
async def test_a_small_terminal_reaches_everything_by_scrolling(launcher: FakeLauncher, size: Size) -> None:
    async with following(launcher) as (pilot, app):
        await still(pilot, 3)
        # Of the round, a narrow line shows the phase in progress only; more lines replace "and 4 more". The time left,
        # the only number that stands alone, has changed meanwhile.
        panels = (text(app, query) for query in ("#progress", "#verdict", "#batch", "#company", "#machine"))
        wanted = {word for word in " ".join(panels).split() if "─" not in word and not word.isdigit()}
        wanted -= {"update", "and", "more:", "reasons:", "key"}
        await pilot.resize_terminal(*size)
        seen: set[str] = set()
        for _ in range(30):
            await still(pilot, 3)
            seen.update(screen(app).replace("│", " ").split())
            if wanted <= seen:
                break
            await pilot.press("down")
        assert sorted(wanted - seen) == []
        if size[1] >= 20:  # below, panels have no titles
            await press(pilot, "v", "v", then=lambda: "Questions that teach" in screen(app))
            assert [title for title in VIEWS.values() if title not in " ".join(seen)] == []


async def test_the_titles_of_all_screens_are_whole_where_they_fit(launcher: FakeLauncher) -> None:
    widths = {NAV_TWO_COLUMNS: 2, NAV_COLUMNS: 1, NAV_COLUMNS - 1: 1, NAV_TIGHT_COLUMNS: 1, NAV_TIGHT_COLUMNS - 1: 2}
    async with following(launcher) as (pilot, app):
        for width, rows in widths.items():
            await pilot.resize_terminal(width, 24)
            await until(pilot, lambda rows=rows: app.screen.query_one(Nav).size.height == rows)  # type: ignore[misc]
            await still(pilot, 3)
            assert re.sub(r"[0-9]", " ", "\n".join(lines(app)[1 : 1 + rows])).split() == [*VIEWS.values()], width


@pytest.mark.usefixtures("polling")
async def test_the_next_evaluation_is_known_at_once(launcher: FakeLauncher) -> None:
    launcher.node.emit(launcher.node.finished(41))
    launcher.node.progress("generate", 0, 32)
    last = {**launcher.node.status_now["last_round"], "seconds_generate": 3000.0, "seconds_update": 2039.0}
    launcher.node.tell(last_round=last)
    async with following(launcher) as (pilot, app):
        for size in ((60, 20), *SIZES):
            await pilot.resize_terminal(*size)
            await until(pilot, lambda: "1 h 23 min left, held-out in 9" in screen(app))
        launcher.node.live["evaluate_every"] = 6
        await until(pilot, lambda: "held-out in 1" in screen(app) or "then held-out" in screen(app))
        launcher.node.tell(rounds=44)
        launcher.node.live["evaluate_every"] = 0
        await until(pilot, lambda: "held-out in 3" in screen(app))
        launcher.node.tell(rounds=0)
        await until(pilot, lambda: "held-out in" not in screen(app))


@pytest.mark.parametrize(("settings", "status"), [({"held_out": 0}, {}), ({}, {"role": "generator"})])
def test_no_evaluation_is_announced_where_none_comes(settings: dict[str, int], status: dict[str, str]) -> None:
    state = NodeState()
    state.settings = {"evaluate_every": 10, "held_out": 100} | settings
    state.status = {"round": 3, "role": "trainer"} | status
    assert state.rounds_to_evaluation is None


async def _in_a_head_start(pilot: Pilot[Any], app: SapoApp) -> None:
    await until(pilot, lambda: app.state.standing is Standing.ATTACHED)
    app.state.history.add_evaluation(Evaluation(0, 0.3, 0.25, 0.37, 200))
    for updates, accuracy in ((20, 0.4), (45, 0.48), (85, 0.61)):
        last = HeadStart(updates=updates, learned=8 * updates, accuracy=accuracy, correct=1, questions=200)
        app.node_event(last)
    app.node_event(replace(last, done=True, updates=150, best_updates=85))
    await until(pilot, lambda: "updates, not rounds" in screen(app))


async def test_a_head_start_is_a_curve_over_updates_until_the_first_round(fresh: FakeLauncher) -> None:
    async with running(fresh) as (pilot, app):
        await until(pilot, lambda: "The curves begin" in str(app.screen.query_one(CurvesPlot).render()))
        await until(pilot, lambda: "no round is finished yet" in text(app, "#batch"))
        await _in_a_head_start(pilot, app)
        assert app.state.history.ahead == [(20, 0.4), (45, 0.48), (85, 0.61)]
        assert "Head start by update" in screen(app) and "by round" not in screen(app)
        await press(pilot, "v", "v", then=lambda: "Questions that teach by round" in screen(app))
        assert "updates, not rounds" not in screen(app)
        await press(pilot, "v", "v", then=lambda: "Head start by update" in screen(app))
        fresh.node.progress("evaluate", 10, 200)
        await until(pilot, lambda: re.search("head start  held-out .* 10/200", screen(app)))
        fresh.node.emit(fresh.node.finished(1))
        await until(pilot, lambda: "Reward by round" in screen(app) and "updates, not rounds" not in screen(app))


def test_picture_of_a_head_start(fresh: FakeLauncher, pictured: Pictured) -> None:
    assert pictured(_in_a_head_start, launcher=fresh)


@pytest.mark.usefixtures("polling")
async def test_the_search_for_members_fits_the_panel(launcher: FakeLauncher) -> None:
    swarm = {**launcher.node.status_now["swarm"], "peers": [], "time": 100.0}
    last = LastSeen(3, 1_800_014_400)
    searches = (
        (Search(90.0, 3, last=last), "looking for the swarm ... 3 addresses found, dialling"),
        (Search(30.0, 3), "nobody else learns this now; this node goes on alone, and joins when somebody comes"),
        (Search(90.0, trouble="udp", last=last), "can't look for others elsewhere: key 3 says why and what to do"),
        (None, "nobody yet: learning from own answers"),
    )
    async with following(launcher) as (pilot, app):
        for size, (search, words) in itertools.product(SIZES, searches):
            await pilot.resize_terminal(*size)
            launcher.node.tell(swarm={**swarm, "search": search and asdict(search)})
            # Where there is room, it says how many there were, too.
            wanted = {*words.split(), *(["members)"] if "looking" in words and size == (120, 40) else [])}
            await until(pilot, lambda wanted=wanted: wanted <= set(screen(app).replace("│", " ").split()))  # type: ignore[misc]


async def test_a_slow_start_is_shown_with_its_output_and_the_load_of_other_programs(starting: FakeLauncher) -> None:
    starting.machine = Load(0.3, 2, others=1.7)
    async with running(starting) as (pilot, app):
        await until(pilot, lambda: "loading the model into torch" in text(app, "#waiting"))
        await until(pilot, lambda: "Other programs use 1.7 of 2 cores, so it takes longer." in screen(app))
        assert app.check_action("pause", ()) is None, "its key is dim"
        await pilot.press("p", "s", "6")
        # The log is empty until the model is loaded.
        await until(pilot, lambda: "loading the model into torch" in screen(app))
        starting.arrive()
        await pilot.press("1")
        await attached(pilot, app)


async def test_many_events_are_drawn_at_most_ten_times_a_second(launcher: FakeLauncher) -> None:
    async with following(launcher) as (pilot, app):
        # A timer that was set before keeps the method that it was given.
        await until(pilot, lambda: app._redraw is None)
        draw = Mock(wraps=app._draw)
        app._draw = draw  # type: ignore[method-assign]
        for number in range(500):
            app.node_event(Notice(level="info", text=f"{number}"))
        await until(pilot, lambda: draw.called)
        await asyncio.sleep(0.5)
        # The poll for the status may come in between.
        assert 1 <= draw.call_count <= 5


@pytest.mark.usefixtures("polling")
async def test_keys_choose_curves_and_rounds_and_the_machine_and_the_end_are_told(launcher: FakeLauncher) -> None:
    launcher.machine = LOAD
    launcher.node.tell(rounds=60)
    async with following(launcher) as (pilot, app):
        # 20 rounds of a minute are left.
        await until(pilot, lambda: "round 40/60  · about 20 min to the end" in screen(app))
        plot = app.screen.query_one(CurvesPlot)
        await until(pilot, lambda: "●" in screen(app) and screen(app).count("│") > 20)
        await until(pilot, lambda: "3.2 of 4 cores, 71 °C\n16 W, an estimate" in text(app, "#machine"))
        await press(pilot, "v", then=lambda: "chain_sum" in screen(app) and "(+71 to +92)" in screen(app))
        for title in ("Questions that teach by round", "Speed, tokens a second by round", "Reward by round"):
            await press(pilot, "v", then=lambda title=title: title in screen(app))  # type: ignore[misc]
        # The means of two rounds are not enough: the journal has both.
        app.state.history.curves.bucket = 2
        await press(pilot, "+", then=lambda: "Reward, rounds 20 to 40" in screen(app) and launcher.read == [(20, 40)])
        await until(pilot, lambda: plot._part is not None and plot._part.round == [*range(20, 41)])
        # A shorter run has all of its rounds.
        app.state.history.curves.bucket = 1
        assert isinstance(app.screen, Dashboard)
        app.screen.refresh_node(Change.ROUND)
        assert plot._part is None
        await press(pilot, "left", then=lambda: "Reward, rounds 10 to 30" in screen(app))
        await press(pilot, "0", then=lambda: "Reward by round" in screen(app))
        await pilot.resize_terminal(160, 40)
        await until(pilot, lambda: "Right answers by task" in screen(app) and "Reward by round" in screen(app))


@given(st.lists(st.sampled_from(["nearer", "farther", "earlier", "later"]), max_size=30), st.integers(0, 100_000))
def test_a_window_stays_within_the_run(keys: list[str], last: int) -> None:
    window = Window()
    for key in keys:
        if key in ("nearer", "farther"):
            window = window.zoomed(key == "nearer", last)
        else:
            window = window.moved(-1 if key == "earlier" else 1, last)
        first, end = window.limits(last)
        assert first >= 0 and end <= max(last, LEAST) and end - first >= min(LEAST, max(last, 1))


def test_zooming_out_again_shows_the_same_rounds_and_a_window_at_the_end_follows_it() -> None:
    window = Window().zoomed(True, 400).moved(-1, 400)
    assert window.limits(400) == (100, 300)
    assert window.zoomed(True, 400).zoomed(False, 400) == window and window.limits(500) == (100, 300)
    assert window.moved(5, 400).limits(401) == (201, 401)


@pytest.mark.parametrize(("load", "rows"), [
    (Load(), []),
    (Load(of=8, temperature=66.6), ["67 °C"]),
    (Load(1.0, 4, others=0.9, kilowatt_hours=0.00004), ["1.0 of 4 cores"]),
    (Load(2.0, 4, others=1.9), ["2.0 of 4 cores", "others use 1.9 cores"]),
    (Load(1.0, 1, None, Power(3.4, "battery"), 2.25), ["1.0 of 1 core", "3 W, whole machine", "about 2.2 kWh so far"]),
])  # fmt: skip
def test_what_the_machine_does_not_tell_is_left_out(load: Load, rows: list[str]) -> None:
    text = machine_text(NodeState(standing=Standing.ATTACHED, load=load), 9).plain.splitlines()
    assert [row for row in text if any(unit in row for unit in ("core", "°C", " W,", "Wh"))] == rows


def test_a_head_start_has_no_speed_yet_and_its_best_checkpoint_no_round() -> None:
    state = NodeState(standing=Standing.ATTACHED, status={"best": {"round": 0, "accuracy": 0.55}})
    text = machine_text(state, 9).plain
    assert "best 0.55, before the rounds" in text and "tokens/s" not in text


def test_the_load_of_other_programs_is_told_apart_from_that_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    others = SimpleNamespace(percent=lambda: 50.0)
    monkeypatch.setattr("sapo_edge.care.sensors.OthersLoad", lambda pid: others)
    meter = LoadMeter()
    assert meter.look(os.getpid()).cores is None
    burn(0.1)
    load = meter.look(os.getpid())
    assert load.cores and load.others == load.of / 2 and load.kilowatt_hours
    assert meter.look(2**22 + 1) == Load(), "it has ended"


@pytest.mark.parametrize(("round", "words"), [(1, "25 % in 1 round\n"), (16, "25 % in 10 rounds\n")])
def test_the_share_that_teaches_names_the_rounds_it_is_of(round: int, words: str) -> None:
    status = {"own": 8, "informative": 2, "informative_share": 0.25, "round": round}
    assert words in batch_text(status, curve_colors(LIGHT), 9).plain


@pytest.mark.parametrize(("last", "most"), [(10, 5), (41, 5), (999, 9), (123_456, 4)])
def test_ticks_are_few_and_round(last: int, most: int) -> None:
    numbers = ticks(last, most)
    assert numbers[0] == 0 and numbers[-1] <= last and len(numbers) <= most
    assert str(numbers[1]).rstrip("0") in ("1", "2", "5") and all(number % numbers[1] == 0 for number in numbers)


@pytest.mark.parametrize("look", ["80x24", "120x40", "colourless", "60x20", "50x12"], indirect=True)
def test_picture(pictured: Pictured, look: Size) -> None:
    assert pictured(attached, look, {"COLORTERM": "truecolor", "TERM": "xterm-256color"})


def test_picture_on_a_light_background(launcher: FakeLauncher, pictured: Pictured) -> None:
    launcher.set("theme", LIGHT.name)
    assert pictured(attached)


def test_picture_of_a_node_that_has_ended(launcher: FakeLauncher, pictured: Pictured, look: Size) -> None:
    async def ended(pilot: Pilot[Any], app: SapoApp) -> None:
        await attached(pilot, app)
        launcher.finish(done=False)
        await until(pilot, lambda: app.state.standing is Standing.ENDED and "No node runs" in text(app, "#progress"))

    assert pictured(ended, look)


async def test_an_idle_node_is_not_drawn_or_measured(launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Mock(return_value=LOAD)
    drawn: list[str | None] = []
    update = Static.update

    def count(self: Static, *values: Any, **more: Any) -> None:
        drawn.append(self.id)
        update(self, *values, **more)

    monkeypatch.setattr(launcher, "load", load)
    async with following(launcher, (60, 20)) as (pilot, app):
        for _ in range(2):
            await app._ask_status()
        await until(pilot, lambda: app._redraw is None and "16 W" in text(app, "#machine"))
        monkeypatch.setattr(Static, "update", count)
        before = load.call_count
        for _ in range(2 * SLOW_POLLS):
            await app._ask_status()
        await until(pilot, lambda: app._redraw is None)
        # The app polls by itself, too.
        assert before < load.call_count <= before + 3
        assert not {"head", "batch", "company", "machine", "verdict"} & set(drawn)
        await press(pilot, "6", then=lambda: app.current_mode == "logs")
        before = load.call_count
        for _ in range(2 * SLOW_POLLS):
            await app._ask_status()
        assert load.call_count == before
