"""The rollouts screen: a list that is paged, filtered and searched, and one rollout with all its answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from sapo_edge.rollout import MAX_ANSWERS, Answer
from sapo_edge.swarm.joining.identity import readable_name
from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.rollouts.detail import SHOWN_CHARACTERS, AnswerList, bounded_text, parse_answers
from sapo_edge.tui.screens.rollouts.pages import PAGE
from sapo_edge.tui.screens.rollouts.screen import Rollouts
from sapo_edge.tui.widgets.small import Chip
from tests.tui.fake_launcher import FakeLauncher
from tests.tui.fake_node import FRIEND, HOSTILE_ANSWERS, HOSTILE_PLACE, STRANGER, finished, rollouts
from tests.tui.shell import Pictured, Ready, Size, connected, is_harmless, on, picture, press, text, until

EACH = 6
"""Rollouts of a round of the scripted node."""


def settled(screen: Rollouts) -> bool:
    browser = screen.browser
    return screen.sapo.state.standing is Standing.ATTACHED and browser.pages.begun and not browser._loading


@asynccontextmanager
async def opened(launcher: FakeLauncher, size: Size = (80, 24)) -> AsyncIterator[tuple[Pilot[Any], Rollouts]]:
    async with on(Rollouts, "2", launcher, size, connected) as (pilot, screen):
        await until(pilot, lambda: settled(screen))
        yield pilot, screen


async def read(pilot: Pilot[Any], screen: Rollouts, *keys: str) -> None:
    """Press keys, and wait until a rollout is shown."""
    await press(pilot, *keys, then=lambda: screen.page == "detail" and screen.detail.chosen is not None)
    await pilot.pause()


def places(screen: Rollouts) -> list[tuple[int, int]]:
    return [row.key for row in screen.browser.pages.rows]


def chip(screen: Rollouts, name: str) -> str:
    return str(screen.query_one(f"FilterBar .{name}", Chip).visual)


async def test_scrolling_loads_the_rest(tmp_path: Path) -> None:
    launcher = FakeLauncher(tmp_path, rounds=140)
    async with opened(launcher) as (pilot, screen):
        rows = screen.browser.list
        assert len(places(screen)) < 140
        while not (screen.browser.pages.complete and rows.cursor == len(rows.rows) - 1):
            await press(pilot, "end", then=lambda: settled(screen))
        assert screen.browser.list.chosen is not None and screen.browser.list.chosen.key == (31, 0)
        assert places(screen) == [(round, place) for round in range(140, 30, -1) for place in range(EACH - 1, -1, -1)]
        assert "…41 + 3…" in picture(pilot.app)
        await pilot.press("home")
        assert places(screen)[0] == (140, 5) and rows.cursor == 0
        # The wheel and the page keys scroll too.
        await pilot.press("pagedown")
        assert rows.cursor == rows.rows_in_sight
        before = rows.first_in_sight
        rows.scroll_relative(y=5, animate=False)
        await pilot.pause()
        assert rows.first_in_sight == before + 5
    launcher.close()


async def test_filters_narrow_the_list_by_keys_clicks_and_from_another_screen(launcher: FakeLauncher) -> None:
    async with opened(launcher) as (pilot, screen):

        async def filtered(key: str) -> set[tuple[bool, bool, str]]:
            await press(pilot, key, then=lambda: settled(screen))
            return {(row.own, row.informative, row.author) for row in screen.browser.pages.rows}

        assert all(own for own, _, _ in await filtered("b")) and "own only" in chip(screen, "origin")
        assert all(informative for _, informative, _ in await filtered("l"))
        assert "only what teaches" in chip(screen, "level")
        await filtered("l")
        await filtered("l")
        assert "any reward" in chip(screen, "level")
        assert not any(own for own, _, _ in await filtered("b")) and "others only" in chip(screen, "origin")
        await filtered("b")
        assert "own and others" in chip(screen, "origin")
        assert {author for _, _, author in await filtered("a")} == {FRIEND}
        assert readable_name(FRIEND) in chip(screen, "author")
        await filtered("t")
        assert "chain_sum" in chip(screen, "entry") and len(places(screen)) == 10
        await filtered("t")
        assert "any task" in chip(screen, "entry")
        await filtered("d")
        assert "anybody" in chip(screen, "author") and len({row.author for row in screen.browser.pages.rows}) > 2
        screen.browser.filter(replace(screen.browser.pages.filter, entry="another"))
        await until(pilot, lambda: settled(screen) and "No rollout matches" in picture(pilot.app))
        await pilot.press("enter", "a", "down", "c", "j")
        assert screen.page != "detail"
        await press(pilot, "d", then=lambda: len(places(screen)) > 20)
        await read(pilot, screen, "b", "enter")
        screen.show_author(STRANGER, readable_name(STRANGER))
        await until(pilot, lambda: settled(screen) and screen.page != "detail")
        assert {row.author for row in screen.browser.pages.rows} == {STRANGER}
        assert screen.browser.pages.filter.origin == "any"
        await press(pilot, "d", then=lambda: settled(screen) and "anybody" in chip(screen, "author"))
        for name, words in (
            ("origin", "own only"), ("level", "only what teaches"), ("entry", "chain_sum"), ("author", "-newt-")
        ):  # fmt: skip
            await pilot.click(f"FilterBar .{name}")
            await until(pilot, lambda name=name, words=words: settled(screen) and words in chip(screen, name))  # type: ignore[misc]
        await pilot.click("FilterBar .search")
        assert screen.browser.has_class("-searching")


async def test_a_search_looks_through_questions_and_answers(launcher: FakeLauncher) -> None:
    async with opened(launcher) as (pilot, screen):
        await pilot.press("slash")
        field = screen.query_one(Input)
        assert field.has_focus and "Esc leaves" in field.placeholder
        # Keys of screens are text here.
        await pilot.press(*"1x4", "backspace", "backspace", "backspace", *"MAKES 44.", "enter")
        await until(pilot, lambda: settled(screen) and screen.browser.pages.filter.search == "MAKES 44.")
        assert places(screen) == [(31, 0)] and chip(screen, "search") == '/ "MAKES 44."'
        assert screen.browser.list.has_focus
        await pilot.press("slash")
        assert field.value == "MAKES 44."
        await pilot.press(*"never", "escape")
        assert not screen.browser.has_class("-searching") and screen.browser.pages.filter.search == "MAKES 44."
        await press(pilot, "slash", *["backspace"] * 9, "enter", then=lambda: len(places(screen)) > 20)
        await pilot.press("slash", *"\x5bbold red\x5d", "enter")
        await until(pilot, lambda: settled(screen) and places(screen) == [HOSTILE_PLACE])
        assert '/ "[bold red]"' in picture(pilot.app)


async def test_a_rollout_is_shown_and_copied_and_its_neighbours_reached(launcher: FakeLauncher) -> None:
    async with opened(launcher) as (pilot, screen):
        await pilot.press("c")
        assert pilot.app.clipboard == ""
        await read(pilot, screen, "enter")
        await pilot.press("c")
        assert pilot.app.clipboard == "50 plus 8 makes 58.\n<answer>58</answer>"
        await press(pilot, "j", then=lambda: screen.detail.row is not None and screen.detail.row.key == HOSTILE_PLACE)
        await read(pilot, screen)
        await pilot.press("c")
        assert "\x1b" not in pilot.app.clipboard and pilot.app.clipboard.startswith("\\x1b[2J")
        await pilot.press("escape", "home")
        await read(pilot, screen, "enter")
        shown = picture(pilot.app)
        for words in (
            "round 40", "peer", readable_name(FRIEND), "● teaches", "mean 0.50", "chain_sum", "best first",
            "State the final answer to the following arithmetic problem: 50 + 8 =", "expected  58",
            "2027-01-15 08:39:35", "#1  reward 1.00  advantage +1.00  ended", "50 plus 8 makes 58.",
            "<answer>58</answer>", "cut off", "(empty)",
        ):  # fmt: skip
            assert words in shown, words
        await pilot.press("down", "down", "down")
        assert "#3  reward 0.00  advantage -1.00  cut off" in picture(pilot.app)
        await pilot.press("escape")
        assert screen.page != "detail" and screen.browser.list.has_focus
        await read(pilot, screen, "enter")
        for place in places(screen)[1 : EACH + 2]:
            await read(pilot, screen, "j")
            assert screen.detail.row is not None and screen.detail.row.key == place
        await read(pilot, screen, "k")
        assert screen.detail.row is not None and screen.detail.row.key == places(screen)[EACH]
        await pilot.press("escape")
        assert screen.browser.list.cursor == EACH
        await read(pilot, screen, "home", "enter")
        await pilot.press("k")
        assert screen.detail.row is not None and screen.detail.row.key == (40, 5)
        await pilot.press("escape")
        await read(pilot, screen, "enter")

        def numbers() -> list[int]:
            return [reply.number for reply in screen.detail.answers]

        assert numbers() == [1, 4, 2, 3]
        await pilot.press("down", "o")
        assert numbers() == [2, 3, 1, 4] and "worst first" in text(screen, "#title")
        assert screen.detail.chosen is not None and screen.detail.chosen.number == 4
        await pilot.press("o")
        assert numbers() == [1, 2, 3, 4] and "as sampled" in text(screen, "#title")
        await read(pilot, screen, "j")
        assert numbers() == [1, 2, 3, 4]


async def test_a_click_opens_a_rollout_and_a_dropped_one_is_an_error(launcher: FakeLauncher) -> None:
    async with opened(launcher) as (pilot, screen):
        await pilot.click("#list", offset=(10, 3))
        await read(pilot, screen)
        assert screen.detail.row is not None and screen.detail.row.key == (40, 3)
        await pilot.click("#answers", offset=(10, 2))
        await pilot.pause()
        assert screen.detail.chosen is screen.detail.answers[1] and screen.page == "detail"
        await pilot.press("down")
        assert screen.detail.chosen is screen.detail.answers[2]
        await pilot.click("#asked", offset=(10, 1))
        await pilot.press("escape")
        assert screen.page != "detail"
        launcher.node._reader.rollout = lambda round, position: None  # type: ignore[method-assign]
        await press(pilot, "enter", then=lambda: "not kept (any more)" in picture(pilot.app))
        await pilot.press("c", "o", "v", "down", "right", "pagedown", "escape")
        assert screen.page != "detail"


async def test_one_answer_can_be_read_alone(launcher: FakeLauncher) -> None:
    async with opened(launcher, (60, 20)) as (pilot, screen):
        await read(pilot, screen, "enter")
        assert "Question" in picture(pilot.app) and screen.query_one(AnswerList).display
        await pilot.press("right", "enter")
        await pilot.pause()
        assert "Question" not in picture(pilot.app) and not screen.query_one(AnswerList).display
        assert screen.detail.chosen is not None and screen.detail.chosen.number == 4
        await read(pilot, screen, "j")
        assert screen.detail.has_class("-alone")
        await pilot.press("escape")
        await pilot.pause()
        assert screen.page == "detail" and screen.query_one(AnswerList).display
        await pilot.click(AnswerList, offset=(10, 2), times=2)
        await until(pilot, lambda: screen.detail.has_class("-alone"))
        await pilot.press("v", "escape")
        assert screen.page != "detail"


async def test_the_newest_are_loaded_at_the_top_and_offered_elsewhere(launcher: FakeLauncher) -> None:
    async with opened(launcher) as (pilot, screen):
        rows, node = screen.browser.list, launcher.node
        node.emit(node.finished(41))
        await until(pilot, lambda: settled(screen) and places(screen)[0] == (41, 5))
        assert rows.cursor == 0 and "press g" not in picture(pilot.app)
        await pilot.press("down", "down", "down")
        await pilot.pause()

        def in_sight() -> list[str]:
            # Without the scroll bar.
            return [line[:-1] for line in picture(pilot.app).splitlines()[4:20]]

        chosen, seen = screen.browser.list.chosen, in_sight()
        node.emit(node.finished(42))
        await until(pilot, lambda: "new ones: press g" in picture(pilot.app))
        assert screen.browser.list.chosen == chosen and in_sight() == seen
        await pilot.click("FilterBar .note")
        await until(pilot, lambda: settled(screen) and places(screen)[0] == (42, 5))
        assert rows.cursor == 0 and "press g" not in picture(pilot.app)
        # They wait while one is read or another screen is in front.
        await read(pilot, screen, "enter")
        node.emit(node.finished(43))
        await until(pilot, lambda: screen.sapo.state.round == 43)
        assert places(screen)[0] == (42, 5) and screen.detail.row is not None and screen.detail.row.key == (42, 5)
        await pilot.press("1")
        node.emit(node.finished(44))
        await until(pilot, lambda: screen.sapo.state.round == 44)
        assert places(screen)[0] == (42, 5)
        await press(pilot, "2", "escape", then=lambda: settled(screen) and places(screen)[0] == (44, 5))
        await press(pilot, "end", then=lambda: settled(screen) and len(places(screen)) > PAGE)
        assert places(screen) == [(44 - place // EACH, EACH - 1 - place % EACH) for place in range(len(places(screen)))]


async def test_text_of_others_is_harmless(launcher: FakeLauncher) -> None:
    async with opened(launcher, (120, 40)) as (pilot, screen):
        await pilot.press("down", "enter")
        await until(pilot, lambda: screen.detail.row is not None and screen.detail.row.key == HOSTILE_PLACE)
        for _ in HOSTILE_ANSWERS:
            await read(pilot, screen)
            seen = picture(pilot.app)
            assert is_harmless(pilot.app) and seen.count("red]markup") == seen.count("[bold red]markup")
            await pilot.press("down")
        await press(pilot, "escape", "a", then=lambda: settled(screen) and places(screen) == [HOSTILE_PLACE])


async def test_a_fresh_node_says_when_there_will_be_something(fresh: FakeLauncher) -> None:
    async with opened(fresh) as (pilot, screen):
        await until(pilot, lambda: "No rollout yet." in picture(pilot.app))
        await pilot.press("enter", "b", "l", "d", "g", "down", "end")
        assert screen.page != "detail"
        await until(pilot, lambda: settled(screen) and "No rollout yet." in picture(pilot.app))
        fresh.node.emit(fresh.node.finished(1))
        await until(pilot, lambda: places(screen)[:1] == [(1, 5)])


async def test_the_list_stays_without_a_node_and_is_loaded_again_with_the_next(launcher: FakeLauncher) -> None:
    async with opened(launcher) as (pilot, screen):
        await read(pilot, screen, "down", "down", "down", "enter")
        launcher.die()
        app = screen.sapo
        await until(pilot, lambda: app.state.standing is Standing.ENDED and app.screen is not screen)
        await press(pilot, "escape", then=lambda: app.screen is screen)
        assert screen.page == "detail" and "50 + 5 =" in picture(pilot.app)
        await press(pilot, "j", then=lambda: "no node runs" in picture(pilot.app))
        await pilot.press("escape")
        assert len(places(screen)) > 20
        await until(pilot, lambda: "no node answers" in picture(pilot.app))
        await press(pilot, "b", then=lambda: "Press s to start one" in picture(pilot.app))
        await press(pilot, "b", "b", "s", then=lambda: settled(screen) and len(places(screen)) > 20)
        await until(pilot, lambda: "Press s" not in picture(pilot.app))


async def test_list_filters_and_detail_are_kept(launcher: FakeLauncher) -> None:
    async with opened(launcher) as (pilot, screen):
        await pilot.press(*["down"] * 9)
        kept = screen.browser.list.chosen
        screen.browser.attached()
        await until(pilot, lambda: settled(screen))
        assert screen.browser.list.chosen == kept and screen.browser.list.cursor == 9
        await pilot.press("home")
        await press(pilot, "b", "b", then=lambda: settled(screen) and screen.browser.pages.filter.origin == "external")
        await pilot.press("down", "down", "1", "2")
        assert pilot.app.screen is screen
        chosen = screen.browser.list.chosen
        assert screen.browser.list.cursor == 2 and chosen is not None and not chosen.own
        await read(pilot, screen, "enter")
        await pilot.press("down", "3", "2")
        await pilot.pause()
        assert screen.page == "detail" and screen.detail.row == chosen
        assert screen.detail.chosen is screen.detail.answers[1]
        await pilot.press("escape")
        listed = screen.browser.list
        whole = " ".join(screen.browser.pages.rows[0].question.split())
        await pilot.resize_terminal(200, 40)
        await until(pilot, lambda: listed.cells(listed.rows[0])["question"][0] == whole)
        await pilot.resize_terminal(60, 24)
        await until(pilot, lambda: listed.cells(listed.rows[0])["question"][0] != whole)


async def test_the_largest_rollout_is_bounded_and_can_be_read(launcher: FakeLauncher) -> None:
    original = rollouts(41)[0]
    answers = tuple(Answer(f"{number} " + "\x1b" * 8000, False) for number in range(MAX_ANSWERS))
    large = replace(original.rollout, question="q\n" * 8000, ground_truth="t" * 16_000, answers=answers, time=1e11)
    rewards = tuple(number / MAX_ANSWERS for number in range(MAX_ANSWERS))
    kept = replace(original, rollout=large, rewards=rewards, advantages=(0.0,) * MAX_ANSWERS)
    launcher.node.journal.record(finished(41), [kept])
    async with opened(launcher) as (pilot, screen):
        assert places(screen)[0] == (41, 0)
        await read(pilot, screen, "enter")
        assert len(screen.detail.answers) == MAX_ANSWERS and screen.detail.answers[0].number == MAX_ANSWERS
        await pilot.press("down", "down", "right", "pagedown", "pagedown", "c")
        assert len(screen.detail.answers[0].text) <= 4 * SHOWN_CHARACTERS
        await press(pilot, "escape", then=lambda: screen.page != "detail")


def test_texts_are_bounded_and_printable() -> None:
    text, left_out = bounded_text("\x1b[31m\tx\n" * 4000)
    assert "\x1b" not in text and "\t" not in text and left_out == 4000 * 8 - SHOWN_CHARACTERS
    (reply,) = parse_answers([{"text": "x", "ended": True, "reward": None, "advantage": None, "cut": True}])
    assert reply.reward == 0 and reply.left_out == -1


async def test_the_same_question_then_and_now_and_what_the_swarm_gave(launcher: FakeLauncher) -> None:
    async with opened(launcher, (60, 20)) as (pilot, screen):
        await press(pilot, "l", "l", then=lambda: "The swarm gave nothing here" in picture(pilot.app))
        assert "l what the swarm gave" in picture(pilot.app)
        await press(pilot, "l", "t", then=lambda: settled(screen) and screen.browser.pages.filter.entry == "chain_sum")
        await press(pilot, "v", then=lambda: "2 questions are kept: 2 became right" in picture(pilot.app))
        assert "gcd" not in picture(pilot.app) and "then ✗" in " ".join(picture(pilot.app).split())
        await read(pilot, screen, "escape", "enter")
        # What tells the question from others stays visible, whatever is scrolled.
        distinct = screen.browser.list.distinct(screen.detail.row)  # type: ignore[arg-type]
        assert f"Question: {distinct}" in picture(pilot.app) and "State" not in distinct
        await press(pilot, "v", then=lambda: distinct in picture(pilot.app) and "Question" not in picture(pilot.app))
        await press(pilot, "y", then=lambda: pilot.app.current_mode == "chat")
        await until(pilot, lambda: "State the final answer" in picture(pilot.app))
        assert not launcher.chats or not launcher.chats[-1].asked


def reading(*keys: str) -> Ready:
    """The second rollout of the list; the keys open it, and choose an answer."""

    async def ready(pilot: Pilot[Any], app: SapoApp) -> None:
        await connected(pilot, app)
        await pilot.press("2")
        screen = app.screen
        assert isinstance(screen, Rollouts)
        await until(pilot, lambda: settled(screen) and "5 peers" in picture(app))
        await pilot.press("down")
        for key in keys:
            await read(pilot, screen, key)

    return ready


def test_pictures(pictured: Pictured, look: Size) -> None:
    assert pictured(reading(), look)


@pytest.mark.parametrize(("key", "size"), [("down", (80, 24)), ("right", (120, 40))], ids=["80x24", "120x40"])
def test_pictures_of_one_rollout(pictured: Pictured, key: str, size: Size) -> None:
    assert pictured(reading("enter", key), size)
