"""The screen on which base model and adapter answer side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from textual import events
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from textual.widgets import OptionList, Static

from sapo_edge.errors import BackendError
from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.node.processes import ChatAnswer, ChatMemory
from sapo_edge.tui.screens.chat import screen as chat
from sapo_edge.tui.screens.chat import transcript
from sapo_edge.tui.screens.chat.question import MAX_EARLIER, AskBox
from sapo_edge.tui.screens.chat.screen import ChatView
from sapo_edge.tui.screens.chat.transcript import MAX_SHOWN, Turn
from tests.tui.fake_launcher import ADAPTER, FakeChat, FakeLauncher
from tests.tui.fake_node import QUESTION
from tests.tui.shell import Pictured, Size, following, notices, on, press, still, text, until

NOT_LOADED = "○ models not loaded: your first question loads them"
open_chat = partial(on, ChatView, "4")


async def ask(pilot: Pilot[Any], screen: ChatView, question: str) -> Turn:
    """Type a question, and wait until both have answered or it failed."""
    box = screen.query_one(AskBox)
    box.focus()
    box.put(question)
    before = list(screen.query(Turn))
    await press(pilot, "enter", then=lambda: screen.query(Turn) and screen.query(Turn).last() not in before)
    turn = screen.query(Turn).last()
    await until(pilot, lambda: all(answer.done for answer in turn.boxes))
    await pilot.pause()
    return turn


def stepwise(launcher: FakeLauncher, *steps: ChatAnswer) -> threading.Semaphore:
    """Let chats show these states of their answers, each after a release of the semaphore."""
    go = threading.Semaphore(0)

    def answer(text: str, *, show: Callable[[ChatAnswer], None], **how: Any) -> ChatMemory:
        for step in steps:
            assert go.acquire(timeout=60)
            show(step)
        return ChatMemory(1)

    launcher.prepare = lambda fake: setattr(fake, "ask", answer)
    return go


async def test_answers_grow_also_while_another_screen_is_in_front(launcher: FakeLauncher) -> None:
    both = (ChatAnswer(adapter, "42", True) for adapter in (False, True))
    go = stepwise(launcher, ChatAnswer(False, "17 plus", False), *both)
    async with open_chat(launcher) as (pilot, screen):
        await press(pilot, *"17 + 25", "enter", then=lambda: screen.query(Turn))
        base, adapter = screen.query_one(Turn).boxes
        go.release()
        await until(pilot, lambda: base.answer)
        assert not base.done and not adapter.answer and "after the base model" in str(adapter.visual)
        assert "Esc stops" in str(screen.query_one(AskBox).border_subtitle)
        await pilot.press(*"two", "enter")
        assert len(screen.query(Turn)) == 1 and screen.query_one(AskBox).text == "two", "one question at a time"
        pilot.app.switch_mode("dashboard")
        go.release(2)
        await until(pilot, lambda: base.done and adapter.done)
        await pilot.press("4")
        assert screen.query_one(Turn).boxes[1].answer == "42" and screen.query_one(AskBox).has_focus


async def test_typing_begins_a_question_and_nothing_is_loaded_before_it_is_asked_as_chosen(
    launcher: FakeLauncher,
) -> None:
    async with open_chat(launcher) as (pilot, screen):
        for _ in range(2):
            # Each letter but one is a key of this screen or of the app elsewhere.
            await pilot.press(*"try 17")
            assert screen.query_one(AskBox).text == "try 17" and text(screen, "#task") == "as a task"
            await pilot.press("escape", "t")
            assert screen.query_one(AskBox).text == "try 17" and text(screen, "#task") == "plain chat"
            await pilot.press("t", "1")
            assert pilot.app.current_mode == "dashboard"
            await pilot.press("4")
            screen.query_one(AskBox).text = ""
        assert text(screen, "#standing") == NOT_LOADED
        assert all(not fake.opened for fake in launcher.chats)
        turn = await ask(pilot, screen, "What is 17 + 25?")
        (fake,) = launcher.chats
        assert fake.asked == [("What is 17 + 25?", True, 0.0)]
        assert [answer.answer for answer in turn.boxes] == [
            "The base model rambles about \\x1b[31m[bold]17 + 25[/bold]\\x1b[0m and never says.",
            "17 plus 25 makes 42. <answer>42</answer>",
        ]
        assert all(answer.border_subtitle == "31.5 tokens/s" for answer in turn.boxes)
        assert "adapter of round 30" in text(screen, "#standing")
        assert (text(screen, "#task"), text(screen, "#temperature")) == ("as a task", "greedy")
        assert "training" in text(screen, "#why")
        await pilot.press("escape", "t", "h")
        assert (text(screen, "#task"), text(screen, "#temperature")) == ("plain chat", "temperature 0.7")
        await ask(pilot, screen, "hello")
        await pilot.press("escape", "h")
        await pilot.click("#task")
        await ask(pilot, screen, "hello")
        assert len(launcher.chats) == 1 and fake.asked[1:] == [("hello", False, 0.7), ("hello", True, 1.0)]
        await pilot.press("escape")
        await pilot.click("#temperature")
        await until(pilot, lambda: text(screen, "#temperature") == "greedy")


async def test_escape_stops_the_answer_and_only_a_process_that_does_not_stop_is_ended(launcher: FakeLauncher) -> None:
    launcher.prepare = lambda fake: setattr(fake, "pace", 0.5)
    async with open_chat(launcher) as (pilot, screen):
        await press(pilot, *"one", "enter", then=lambda: screen.query(Turn) and screen.query_one(Turn).boxes[0].answer)
        await pilot.press("escape")
        turn = screen.query_one(Turn)
        await until(pilot, lambda: all(answer.done for answer in turn.boxes))
        assert turn.boxes[0].answer and turn.boxes[0].border_subtitle == "stopped" and not turn.has_class("-failed")
        assert str(turn.boxes[1].visual) == "stopped" and "round 30" in text(screen, "#standing")
        assert screen.query_one(AskBox).has_focus
        await pilot.press("escape")
        assert screen.focused is screen.query_one("#transcript")
        launcher.chats[0].pace = 0.0
        await press(pilot, "r", then=lambda: len(screen.query(Turn)) == 2 and screen.query(Turn).last().boxes[1].done)
        assert launcher.chats[0].asked == 2 * [("one", True, 0.0)] and screen.query(Turn).last().boxes[1].answer
        fake = launcher.chats[0]
        fake.pace = 60.0
        fake.cancel = lambda: None  # type: ignore[method-assign]
        screen.query_one(AskBox).focus()
        await press(pilot, *"one", "enter", then=lambda: len(fake.asked) == 3)
        await press(pilot, "escape", "escape", then=lambda: screen.query(Turn).last().boxes[0].done)
        assert fake.closed.is_set() and str(screen.query(Turn).last().boxes[0].visual) == "stopped"
        await until(pilot, lambda: text(screen, "#standing") == NOT_LOADED)


async def test_loading_can_be_stopped_and_the_app_left_meanwhile(launcher: FakeLauncher) -> None:
    def prepare(fake: FakeChat) -> None:
        def load(say: Callable[[str], None]) -> str:
            say("loading \x1b[31m[bold]the model[/bold]")
            fake.closed.wait(10)
            raise fake.fails

        fake.open = load  # type: ignore[method-assign]

    launcher.prepare = prepare
    async with open_chat(launcher) as (pilot, screen):
        await press(pilot, *"one", "enter", then=lambda: "[bold]the model" in text(screen, "#standing"))
        await until(pilot, lambda: "\\x1b[31m[bold]" in str(screen.query_one(Turn).boxes[0].visual))
        turn = screen.query_one(Turn)
        await press(pilot, "escape", then=lambda: turn.boxes[0].done)
        assert str(turn.boxes[0].visual) == "stopped" and not turn.has_class("-failed")
        assert text(screen, "#standing") == NOT_LOADED
        await pilot.press(*"two", "enter")
        await until(pilot, lambda: len(launcher.chats) == 2 and "[bold]the model" in text(screen, "#standing"))
    assert launcher.chats[1].closed.is_set()


async def test_plain_chat_goes_on_with_the_conversation_until_a_key_begins_a_new_one(launcher: FakeLauncher) -> None:
    async with open_chat(launcher) as (pilot, screen):
        await ask(pilot, screen, "a task")
        fake = launcher.chats[0]
        await pilot.press("escape", "t")
        await ask(pilot, screen, "my name is Ada")
        await ask(pilot, screen, "what is my name?")
        assert fake.remembered == ["my name is Ada", "what is my name?"]
        assert text(screen, "#why") == "remembers 2 questions (n: new conversation)"
        await pilot.press("escape", "r")
        await until(pilot, lambda: len(screen.query(Turn)) == 4 and screen.query(Turn).last().boxes[1].done)
        await until(pilot, lambda: "Enter asks" in str(screen.query_one(AskBox).border_subtitle))
        assert fake.remembered == ["my name is Ada", "what is my name?"], "an answer was replaced"
        fake.room = 2
        await ask(pilot, screen, "a third")
        await until(pilot, lambda: "the oldest 1 question" in notices(screen.sapo))
        await pilot.press("escape", "n")
        await pilot.pause()
        assert "training shows less" in text(screen, "#why") and "is forgotten" in notices(screen.sapo)
        await ask(pilot, screen, "anew")
        assert fake.remembered == ["anew"] and "remembers 1 question (" in text(screen, "#why")
        await press(pilot, "escape", "m", then=lambda: text(screen, "#standing") == NOT_LOADED)
        assert "training shows less" in text(screen, "#why"), "another process remembers nothing"
        await ask(pilot, screen, "hello")
        assert launcher.chats[1].remembered == ["hello"]


async def test_examples_are_chosen_with_keys_and_mouse_and_shown_as_text(launcher: FakeLauncher) -> None:
    hostile = "\x1b[2J[bold]x[/bold]\u202e\nsecond"
    async with open_chat(launcher) as (pilot, screen):
        box, examples = screen.query_one(AskBox), screen.query_one("#examples", OptionList)
        await pilot.press("escape")
        assert screen.focused is examples
        await pilot.press("down", "enter")
        assert box.text == chat.EXAMPLES[0] and box.has_focus
        await pilot.click("#examples", offset=(3, 2))
        await pilot.pause()
        assert box.text == chat.EXAMPLES[1]
        await press(pilot, "escape", "home", "enter", then=lambda: box.text == QUESTION.text)
        assert box.has_focus
        good = launcher.node.question
        launcher.node.question = lambda: replace(QUESTION, text=hostile).as_dict()  # type: ignore[method-assign]
        await press(pilot, "escape", "y", then=lambda: box.text == "\\x1b[2J[bold]x[/bold]\\u202e\nsecond")
        box.text = ""
        box.post_message(events.Paste("a\r\nb\x1b]0;owned\x07" + "y" * 9000))
        await until(pilot, lambda: box.text.startswith("a\nb\\x1b]0;owned\\x07"))
        assert len(box.text) == 4000
        await pilot.press("enter")
        await pilot.pause()
        assert not screen.query(Turn) and "2000" in notices(screen.sapo)
        box.select_all()
        box.post_message(events.Paste("z" * 9000))
        await until(pilot, lambda: box.text == "z" * 4000)
        box.select_all()
        await press(pilot, "ctrl+j", then=lambda: box.text == "\n")
        box.text = ""
        launcher.node.question = good  # type: ignore[method-assign]
        await press(pilot, "escape", "y", then=lambda: box.text == QUESTION.text)
        await press(pilot, "enter", then=lambda: launcher.chats and launcher.chats[0].asked)
        assert launcher.chats[0].asked[0][0] == QUESTION.text.strip()


async def test_without_a_node_an_example_is_refused_and_the_chat_works(starting: FakeLauncher) -> None:
    async with open_chat(starting) as (pilot, screen):
        await press(pilot, "escape", "y", then=lambda: "no node answers yet" in notices(screen.sapo))
        assert "start one" not in notices(screen.sapo), "one is starting"
        assert (await ask(pilot, screen, "hello")).boxes[1].answer


async def test_earlier_questions_come_back(launcher: FakeLauncher) -> None:
    async with open_chat(launcher) as (pilot, screen):
        for question in ("one", "two", "two"):
            await ask(pilot, screen, question)
        box = screen.query_one(AskBox)
        await pilot.press(*"draft", "up")
        assert box.text == "two"
        await pilot.press("up")
        assert box.text == "one"
        await pilot.press("up", "down", "down")
        assert box.text == "draft"
        await pilot.press("ctrl+j", *"more")
        assert box.text == "draft\nmore"
        await pilot.press("up", "up", "down")
        assert box.text == "draft\nmore"
        for number in range(2 * MAX_EARLIER):
            box.remember(str(number))
        await pilot.press(*["up"] * (MAX_EARLIER + 5))
        assert box.text == str(MAX_EARLIER)


async def test_keys_load_and_unload_and_a_missing_model_or_process_is_an_error(launcher: FakeLauncher) -> None:
    async with open_chat(launcher) as (pilot, screen):
        await press(pilot, "escape", "m", then=lambda: "round 30" in text(screen, "#standing"))
        assert launcher.chats[0].opened and not launcher.chats[0].asked
        await press(pilot, "m", then=lambda: text(screen, "#standing") == NOT_LOADED)
        assert launcher.chats[0].closed.is_set()
        launcher.prepare = lambda fake: setattr(fake, "broken", "open")
        await press(pilot, "m", then=lambda: text(screen, "#standing") == "✗ no model is installed; install one")
        turn = await ask(pilot, screen, "hello")
        trouble = str(turn.query_one(".trouble", Static).visual)
        assert turn.has_class("-failed") and trouble == "✗ no model is installed; install one (r tries again)"
        launcher.prepare = lambda fake: None
        await pilot.press("escape", "r")
        await until(pilot, lambda: len(screen.query(Turn)) == 2 and screen.query(Turn).last().boxes[1].done)
        assert screen.query(Turn).last().boxes[1].answer and launcher.chats[-2].closed.is_set()
        fake = launcher.chats[-1]
        fake.pace = 0.3
        fake.fails = BackendError("the chat process ended \x1b[31m[bold]here[/bold]", "ask again")
        screen.query_one(AskBox).focus()
        await pilot.press(*"hello", "enter")
        await until(pilot, lambda: len(screen.query(Turn)) == 3 and screen.query(Turn).last().boxes[0].answer)
        fake.broken = "ask"
        turn = screen.query(Turn).last()
        await until(pilot, lambda: turn.has_class("-failed"))
        assert turn.boxes[0].answer and "\\x1b[31m[bold]here" in str(turn.query_one(".trouble", Static).visual)
        assert not (await ask(pilot, screen, "hello")).has_class("-failed") and launcher.chats[-1] is not fake


async def test_a_question_goes_to_the_best_adapter_of_now_unless_a_conversation_of_the_run_goes_on(
    launcher: FakeLauncher,
) -> None:
    launcher.prepare = lambda fake: setattr(fake, "adapter", "")
    async with open_chat(launcher) as (pilot, screen):
        await ask(pilot, screen, "one")
        launcher.prepare = lambda fake: None
        await ask(pilot, screen, "two")
        first, second = launcher.chats
        assert first.closed.is_set() and first.asked == [("one", True, 0.0)] and second.asked == [("two", True, 0.0)]
        await pilot.press("escape", "t")
        await ask(pilot, screen, "three")
        second.adapter = ADAPTER.replace("30", "20")
        await ask(pilot, screen, "four")
        assert second.remembered == ["three", "four"] and len(launcher.chats) == 2
        second.adapter = "/of/another/run/round-000030"
        await ask(pilot, screen, "five")
        assert second.closed.is_set() and launcher.chats[2].remembered == ["five"]
        launcher.chats[2].adapter = ADAPTER.replace("30", "20")
        await press(pilot, "escape", "n", then=lambda: "remembers" not in text(screen, "#why"))
        await ask(pilot, screen, "six")
        assert launcher.chats[3].remembered == ["six"]


async def test_a_question_that_is_too_long_for_the_chat_is_not_cut(launcher: FakeLauncher) -> None:
    async with following(launcher) as (pilot, app):
        await app.ask_both("word " * 600 + "What is the last word?")
        await until(pilot, lambda: "too long for the chat" in notices(app))
        assert app.screen.query_one(AskBox).text == ""
        await app.ask_both("word " * 300 + "What is the last word?")
        assert app.screen.query_one(AskBox).text.endswith("last word?")


async def test_it_is_closed_when_it_is_not_used_and_when_the_app_ends(launcher: FakeLauncher) -> None:
    async with open_chat(launcher) as (pilot, screen):
        screen.idle_seconds = 0.2
        await ask(pilot, screen, "hello")
        await until(pilot, launcher.chats[0].closed.is_set)
        await until(pilot, lambda: text(screen, "#standing") == NOT_LOADED)
        screen.idle_seconds = 600.0
        await ask(pilot, screen, "hello")
        launcher.chats[1].pace = 5.0
        await press(pilot, *"one more", "enter", then=lambda: len(launcher.chats[1].asked) == 2)
        assert not launcher.chats[1].closed.is_set()
    assert launcher.chats[1].closed.is_set()


async def test_answers_are_copied_as_text_and_stacked_in_a_small_terminal(launcher: FakeLauncher) -> None:
    async with open_chat(launcher) as (pilot, screen):
        await pilot.press("escape", "c")
        assert pilot.app.clipboard == ""
        turn = await ask(pilot, screen, "hello")
        await pilot.press("escape", "c")
        assert pilot.app.clipboard == "17 plus 25 makes 42. <answer>42</answer>"
        await pilot.press("tab", "c")
        assert screen.focused is turn.boxes[0]
        assert "\x1b" not in pilot.app.clipboard and "\\x1b[31m" in pilot.app.clipboard
        await pilot.click(turn.boxes[1])
        assert screen.focused is turn.boxes[1]
        await pilot.press("escape")
        assert screen.focused is screen.query_one("#transcript")
        screen.query_one(AskBox).focus()
        base, adapter = turn.boxes
        assert base.region.y == adapter.region.y and base.region.right <= adapter.region.x
        await pilot.resize_terminal(60, 24)
        await until(pilot, lambda: base.region.x == adapter.region.x and base.region.bottom <= adapter.region.y)
        await pilot.press(*"draft")
        await pilot.resize_terminal(40, 10)
        await pilot.pause()
        box = screen.query_one(AskBox)
        assert box.text == "draft" and box.region.height == 1 and box.region.bottom <= 9
        assert screen.query_one("#transcript").region.height >= 5
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert turn.boxes[1].answer and box.region.height == 3 and not screen.has_class("-stacked")


async def test_the_transcript_and_its_answers_are_bounded(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcript, "MAX_TURNS", 4)
    launcher.prepare = lambda fake: setattr(fake, "answers", ("long " * 5000, "\n \n"))
    async with open_chat(launcher) as (pilot, screen):
        turn = await ask(pilot, screen, "hello")
        assert len(turn.boxes[0].answer) == MAX_SHOWN and "not shown" in str(turn.boxes[0].visual)
        assert str(turn.boxes[1].visual) == "an empty answer"
        launcher.chats[0].answers = ("only the base model",)  # type: ignore[assignment]
        turn = await ask(pilot, screen, "hello")
        assert turn.boxes[0].answer and str(turn.boxes[1].visual) == "no adapter: nothing is trained yet"
        launcher.chats[0].answers = ("a", "b")
        for number in range(3):
            await ask(pilot, screen, str(number))
        assert len(screen.query(Turn)) == 4
        shown = screen.query_one("#transcript", VerticalScroll)
        await until(pilot, lambda: shown.scroll_y == shown.max_scroll_y)


async def test_a_growing_answer_stays_in_view_unless_somebody_reads_above(launcher: FakeLauncher) -> None:
    growing = (ChatAnswer(True, "short", done) for done in (False, True))
    go = stepwise(launcher, ChatAnswer(False, "word\n " * 60, True), *growing)
    async with open_chat(launcher) as (pilot, screen):
        shown = screen.query_one("#transcript", VerticalScroll)
        await pilot.press(*"one", "enter")
        go.release()
        await until(pilot, lambda: shown.scroll_y == shown.max_scroll_y > 10)
        go.release()
        await until(pilot, lambda: screen.query_one(Turn).boxes[1].answer and shown.scroll_y == 0)
        go.release()
        await until(pilot, lambda: screen.query_one(Turn).boxes[1].done)
        await still(pilot)
        assert shown.scroll_y == 0


async def _asked(pilot: Pilot[Any], app: SapoApp) -> None:
    await pilot.press("4")
    screen = app.screen
    assert isinstance(screen, ChatView)
    screen.query_one(AskBox).cursor_blink = False
    await ask(pilot, screen, "What is 17 + 25?")
    await pilot.press("escape", "t", "h")
    await ask(pilot, screen, "Why?")


async def _empty(pilot: Pilot[Any], app: SapoApp) -> None:
    await until(pilot, lambda: app.check_action("pause", ()))
    await pilot.press("4")


def test_picture_of_a_conversation(pictured: Pictured, look: Size) -> None:
    assert pictured(_asked, look)


def test_picture_before_the_first_question(pictured: Pictured) -> None:
    assert pictured(_empty)
