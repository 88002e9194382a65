"""The answer screen: a person answers, and the node verifies and shares."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from textual import events
from textual.pilot import Pilot

from sapo_edge.errors import UnknownTaskError
from sapo_edge.node.person import Verdict
from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.screens.answer.fields import AnswerFields
from sapo_edge.tui.screens.answer.screen import AnswerView
from sapo_edge.tui.screens.answer.verdict import Tally, verdict_text
from tests.tui.fake_launcher import FakeLauncher
from tests.tui.fake_node import QUESTION
from tests.tui.shell import Pictured, Size, on, press, text, until

open_answer = partial(on, AnswerView, "5")


async def asked(pilot: Pilot[Any], screen: AnswerView) -> None:
    await until(pilot, lambda: screen.has_class("-typing"))


@asynccontextmanager
async def answering(launcher: FakeLauncher) -> AsyncIterator[tuple[Pilot[Any], AnswerView]]:
    """The screen when it shows a question."""
    async with open_answer(launcher) as (pilot, screen):
        await asked(pilot, screen)
        yield pilot, screen


async def submit(pilot: Pilot[Any], screen: AnswerView) -> None:
    """Answer with 42, and wait for the verdict."""
    await press(pilot, "e", *"42", "ctrl+s", then=lambda: screen.has_class("-judged"))


def note(screen: AnswerView) -> str:
    return text(screen, "#note") if screen.query_one("#note").display else ""


def fields(screen: AnswerView) -> list[str]:
    return screen.query_one(AnswerFields).text.split("\n")


def paste(screen: AnswerView, pasted: str) -> None:
    assert screen.focused is not None
    screen.focused.post_message(events.Paste(pasted))


async def test_answers_are_verified_and_shared_and_the_next_question_comes(launcher: FakeLauncher) -> None:
    async with answering(launcher) as (pilot, screen):
        assert text(screen, "#asked") == QUESTION.text
        field, question = screen.query_one(AnswerFields), screen.query_one("#question")
        assert screen.focused is question
        # The question moves it down as soon as it is laid out.
        await until(pilot, lambda: screen.get_widget_at(*field.content_region.offset)[0] is field)
        await pilot.click(field, offset=(5, 1))
        await until(pilot, lambda: screen.focused is field)
        await pilot.click(question)
        assert screen.focused is question
        await pilot.press("enter", *"42", "enter", *"43", "enter")
        assert fields(screen) == ["42", "43", ""]
        assert launcher.node.given == []
        await press(pilot, "enter", then=lambda: screen.has_class("-judged"))
        (given,) = launcher.node.given
        assert given.answers == ("<answer>42</answer>", "<answer>43</answer>")
        assert given.ref == QUESTION.ref and given.manifest == QUESTION.manifest
        outcome = text(screen, "#outcome")
        assert "✓ right    42" in outcome and "✗ wrong    43" in outcome and "expected 42" in outcome
        assert "shared with the swarm" in outcome and "difference" in outcome
        assert text(screen, "#tally") == "This session: 1 question answered, 1 with a right answer, 1 shared"
        await pilot.press("enter")
        await asked(pilot, screen)
        await until(pilot, lambda: screen.focused is field)
        assert fields(screen) == [""]
        sharing = text(screen, "#sharing")
        assert "before you submit" in sharing and "everybody in the swarm" in sharing and "taken back" in sharing
        launcher.node.pause_for("on battery")
        await until(pilot, lambda: "is paused" in text(screen, "#sharing"))
        await press(pilot, *"42", "enter", *"42", "ctrl+s", then=lambda: screen.has_class("-judged"))
        assert launcher.node.given[1].answers == ("<answer>42</answer>",)
        assert "count once" in note(screen)


async def test_a_node_alone_shares_with_nobody_and_says_so_before(alone: FakeLauncher) -> None:
    async with answering(alone) as (pilot, screen):
        assert "alone" in text(screen, "#sharing") and "nobody" in text(screen, "#sharing")
        await submit(pilot, screen)
        outcome = text(screen, "#outcome")
        assert "not shared" in outcome and "nobody else" in outcome
        assert screen.tally == Tally(answered=1, right=1, shared=0)


async def test_skipping_costs_nothing_and_asks_once_before_typed_answers_are_lost(launcher: FakeLauncher) -> None:
    asks = Mock(wraps=launcher.node.question)
    launcher.node.question = asks  # type: ignore[method-assign]
    async with answering(launcher) as (pilot, screen):
        await press(pilot, "j", then=lambda: asks.call_count == 2 and screen.has_class("-typing"))
        await pilot.press("e", *"7", "escape", "j")
        assert "press j again" in note(screen) and fields(screen) == ["7"] and asks.call_count == 2
        await press(pilot, "j", then=lambda: asks.call_count == 3 and screen.has_class("-typing"))
        assert fields(screen) == [""] and note(screen) == "" and screen.tally == Tally()
        assert launcher.node.given == []
        await pilot.press("e", *"15")
        assert fields(screen) == ["15"]
        await press(pilot, "escape", "1", then=lambda: pilot.app.current_mode == "dashboard")
        await pilot.press("5", "e", *"7")
        assert fields(screen) == ["157"]
        pilot.app.switch_mode("dashboard")
        await pilot.pause()
        await press(pilot, "5", "1", then=lambda: pilot.app.current_mode == "dashboard")


async def test_lines_grow_to_eight_and_are_reached_by_arrows_and_backspace(launcher: FakeLauncher) -> None:
    async with answering(launcher) as (pilot, screen):
        await pilot.press("e")
        for number in range(7):
            await pilot.press(str(number), "enter")
        form = screen.query_one(AnswerFields)
        assert fields(screen) == [*"0123456", ""] and form.cursor_location == (7, 0)
        await pilot.press("backspace")
        assert form.cursor_location == (6, 1) and len(fields(screen)) == 7
        await pilot.press("up", "up", "home", "enter", "enter")
        assert form.cursor_location == (6, 1), "Enter goes on from line to line, and splits none"
        await press(pilot, "enter", "9", "enter", then=lambda: screen.has_class("-judged"))
        assert len(launcher.node.given[0].answers) == 8


async def test_pasted_lines_become_answers_and_hostile_or_long_ones_are_refused(launcher: FakeLauncher) -> None:
    async with answering(launcher) as (pilot, screen):
        await pilot.press("e")
        paste(screen, "41\r\n\n 42 \n")
        await until(pilot, lambda: fields(screen) == ["41", "42"])
        form = screen.query_one(AnswerFields)
        for pasted in ([str(number) for number in range(8)], [str(number) for number in range(8, 16)], ["41", "42"]):
            form.select_all()
            paste(screen, "\n".join(pasted))
            await until(pilot, lambda pasted=pasted: fields(screen) == pasted)  # type: ignore[misc]
        assert "left out" not in note(screen), "what they replace makes room"
        paste(screen, "\x1b[2J\x1b]0;owned\x07")
        await until(pilot, lambda: "control characters" in note(screen))
        assert fields(screen) == ["41", "42"]
        paste(screen, "9" * 5000)
        await until(pilot, lambda: "longer than verifiers" in note(screen))
        paste(screen, "\n".join(str(number) for number in range(20)))
        await until(pilot, lambda: "left out" in note(screen))
        assert len(fields(screen)) == 8 and fields(screen)[-1] == "6"
        screen.query_one(AnswerFields).text = ""
        await press(pilot, "enter", then=lambda: "type an answer first" in note(screen))
        thrice = "\n".join(letter * 4000 for letter in "abc")
        refused = {"9" * 4097: "shorten", thrice: "12000 characters", "a\x1bb": "control characters"}
        for typed, problem in refused.items():
            screen.query_one(AnswerFields).text = typed
            await press(pilot, "ctrl+s", then=lambda problem=problem: problem in note(screen))  # type: ignore[misc]
            assert screen.query_one(AnswerFields).text == typed
        assert launcher.node.given == []


async def test_a_rejected_question_is_asked_for_again_and_rejected_answers_stay(launcher: FakeLauncher) -> None:
    good = launcher.node.question
    no_questions = UnknownTaskError("this role answers nothing", "run a trainer or a generator")
    rejected = UnknownTaskError("the question is of another manifest", "answer a \x1b[31m[bold]new[/bold] question")
    launcher.node.question = Mock(side_effect=no_questions)  # type: ignore[method-assign]
    async with open_answer(launcher) as (pilot, screen):
        await until(pilot, lambda: "this role answers nothing" in text(screen, "#asked"))
        assert "run a trainer" in text(screen, "#asked") and "Press j" in text(screen, "#asked")
        launcher.node.question = good  # type: ignore[method-assign]
        await pilot.press("j")
        await asked(pilot, screen)
        launcher.node.share_answers = Mock(side_effect=rejected)  # type: ignore[method-assign]
        await press(pilot, "e", *"42", "ctrl+s", then=lambda: "another manifest" in note(screen))
        assert "\\x1b[31m[bold]new" in note(screen) and fields(screen) == ["42"]
        assert screen.has_class("-typing") and screen.tally == Tally()
        launcher.node.share_answers = lambda given: {"rewards": "many"}  # type: ignore[method-assign]
        await press(pilot, "ctrl+s", then=lambda: "can't be read" in note(screen))


async def test_it_waits_for_a_node_and_typed_answers_stay_when_it_ends(
    starting: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The dialog about the end is not of this screen.
    monkeypatch.setattr(SapoApp, "show_ending", lambda *args: None)
    async with open_answer(starting) as (pilot, screen):
        await until(pilot, lambda: "as soon as the node runs" in text(screen, "#asked"))
        starting.hold = False
        starting.arrive()
        await asked(pilot, screen)
        await pilot.press("e", *"42")
        starting.die()
        await until(pilot, lambda: "node has ended" in note(screen))
        assert fields(screen) == ["42"]
        await press(pilot, "ctrl+s", then=lambda: "no verdict: no node" in note(screen))
        assert fields(screen) == ["42"] and screen.tally == Tally()
        await press(pilot, "s", then=lambda: pilot.app.check_action("pause", ()) and "ended" not in note(screen))
        await press(pilot, "ctrl+s", then=lambda: screen.has_class("-judged"))
        assert len(starting.node.given) == 1


async def test_hostile_questions_and_verdicts_are_shown_as_text(launcher: FakeLauncher) -> None:
    hostile = "\x1b[2J[bold red]boo[/] [@click=app.quit]x[/]\u202e\nsecond line"
    launcher.node.question = lambda: replace(QUESTION, text=hostile).as_dict()  # type: ignore[method-assign]
    launcher.node.share_answers = lambda given: Verdict((0.0,), hostile, True).as_dict()  # type: ignore[method-assign]
    async with answering(launcher) as (pilot, screen):
        assert text(screen, "#asked") == "\\x1b[2J[bold red]boo[/] [@click=app.quit]x[/]\\u202e\nsecond line"
        await press(pilot, "e", *"[red]", "ctrl+s", then=lambda: screen.has_class("-judged"))
        outcome = text(screen, "#outcome")
        assert "\x1b" not in outcome and "[@click=app.quit]x" in outcome and "[red]" in outcome
        await pilot.press("c")
        assert "\x1b" not in pilot.app.clipboard and "second line" in pilot.app.clipboard


def test_a_verdict_says_what_teaches() -> None:
    alike = str(verdict_text(["1", "2"], Verdict((0.0, 0.0), "", True)))
    assert "None is right" in alike and "expected" not in alike
    assert "All are right" in str(verdict_text(["1", "1.0"], Verdict((1.0, 1.0), "1", True)))
    differing = str(verdict_text(["1", "2"], Verdict((1.0, 0.25), "1", True)))
    assert "difference" in differing and "0.25" in differing


async def _typed(pilot: Pilot[Any], app: SapoApp) -> None:
    await press(pilot, "5", then=lambda: app.screen.has_class("-typing"))
    await pilot.press("e", *"42", "enter", *"43", "enter")


async def _judged(pilot: Pilot[Any], app: SapoApp) -> None:
    await _typed(pilot, app)
    await press(pilot, "ctrl+s", then=lambda: app.screen.has_class("-judged"))


def test_picture_while_typing(pictured: Pictured, look: Size) -> None:
    assert pictured(_typed, look)


def test_picture_of_a_verdict(pictured: Pictured, look: Size) -> None:
    assert pictured(_judged, look)
