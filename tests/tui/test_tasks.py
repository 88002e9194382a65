"""The tasks: manifests, and own questions from the first file to what a model makes of them."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text
from textual.binding import Binding
from textual.events import Paste
from textual.pilot import Pilot
from textual.widgets import Input, OptionList

from sapo_edge.errors import ConfigError, ManifestError
from sapo_edge.tui.app import SapoApp
from sapo_edge.tui.node.processes import JobResult
from sapo_edge.tui.screens.tasks.dialogs import EditQuestions, NewQuestions, to_questions, to_text
from sapo_edge.tui.screens.tasks.screen import TasksView
from sapo_edge.tui.screens.tasks.texts import MAX_REMARKS, START, check_text, mistakes_text
from sapo_edge.tui.widgets.dialog import Ask
from tests.tui.fake_launcher import MANIFESTS, FakeLauncher
from tests.tui.fake_node import MANIFEST_DIGEST
from tests.tui.shell import Pictured, Size, attached, notices, press, running, screen, text, until

WRITTEN = JobResult({"manifest": "/q/manifest.toml", "questions": "/q/tasks.jsonl"})
CHECKED = JobResult(
    {
        "examples": 2, "tasks": [{"name": "mine", "train": 3, "validation": 1, "test": 0}],
        "warnings": [{"where": "tasks.jsonl, line 3", "text": "the answer stands in the \x1b[31mquestion"}],
    },
    ("lengths are not checked: no model is here",),
)  # fmt: skip
TRIED = JobResult(
    {
        "prompt": "<|user|>What is 3 + 4?", "advice": "there is something to learn: train on it", "success": 0.25,
        "informative": 1, "corrected": 0,
        "questions": [{
            "question": "What is [b]3[/b] + 4?", "expected": "7",
            "answers": [{"text": "<answer>7</answer>", "reward": 1.0}, *[{"text": "8", "reward": 0.0}] * 3],
        }],
    }
)  # fmt: skip
CONSOLE = Console()


async def opened(pilot: Pilot[Any], app: SapoApp) -> None:
    await attached(pilot, app)
    await pilot.press("9")
    await until(pilot, lambda: isinstance(app.screen, TasksView) and "starter" in screen(app).split("What can be")[-1])


async def give(pilot: Pilot[Any], app: SapoApp, path: str) -> None:
    await press(pilot, "n", then=lambda: isinstance(app.screen, NewQuestions))
    app.screen.query_one(Input).value = path
    await pilot.press("enter")


async def with_file(pilot: Pilot[Any], app: SapoApp, path: str = "/q") -> None:
    """Write new questions, or open a file."""
    await opened(pilot, app)
    await give(pilot, app, path)
    await until(pilot, lambda: isinstance(app.screen, TasksView))


async def with_new(pilot: Pilot[Any], app: SapoApp) -> None:
    """Write new questions, and wait until the app says so."""
    await with_file(pilot, app)
    await until(pilot, lambda: "written: " in text(app, "#job"))


async def test_what_can_not_be_taken_is_said_where_the_path_is_typed(launcher: FakeLauncher, tmp_path: Path) -> None:
    launcher.replies |= {"tasks new": ConfigError("/q can't be written", "give another directory")}
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(b"\xff\xd8")
    async with running(launcher, ready=opened) as (pilot, app):
        await press(pilot, "n", then=lambda: isinstance(app.screen, NewQuestions))
        for path, said in {str(photo): "neither a manifest", "/q/x.csv": "there is no file", "/q": "can't be"}.items():
            app.screen.query_one(Input).value = path
            await press(pilot, "enter", then=lambda: said in text(app, "#writing"))  # noqa: B023
        await pilot.press("p", "q")
        assert app.screen.query_one(Input).value.endswith("pq"), "letters are text, not keys"
        assert launcher.node.asked == []
        assert [words for words, _ in launcher.commands] == [("tasks", "list"), ("tasks", "new", "/q")]
        # A path below the home of an unknown user is taken as it is.
        app.screen.query_one(Input).value = "~nobody-here/mine"
        await pilot.press("enter")
        mine = ("tasks", "new", str(Path("~nobody-here/mine").absolute()))
        await until(pilot, lambda: (mine, "") in launcher.commands)


async def test_manifests_are_listed_and_mistakes_until_the_next_file(launcher: FakeLauncher, tmp_path: Path) -> None:
    file, questions = tmp_path / "x.toml", tmp_path / "TASKS.CSV"
    file.touch()
    questions.touch()
    launcher.replies |= {"tasks check": ManifestError("x.toml has 2 mistakes", "mend them"), "tasks new": WRITTEN}
    async with running(launcher, (100, 30), ready=opened) as (pilot, app):
        seen = screen(app)
        assert seen.count("starter") == 2, "in the top line and the list: not what only continues earlier states"
        assert "* starter" in seen and "easy arithmetic, comes with sapo" in seen and "12 questions of your own" in seen
        assert "\x1b" not in seen and "\\x1b[31m[bold]x" in seen
        await pilot.press("r", "y", "u", "e")
        assert [words for words, _ in launcher.commands] == [("tasks", "list")], "there is no file yet"
        mistakes = [{"text": f"tasks.jsonl, line {number}: no answer", "remedy": "give one"} for number in (2, 9)]
        launcher.printed = {"mistakes": mistakes}
        await give(pilot, app, str(file))
        await until(pilot, lambda: "x.toml has 2 mistakes; mend them" in screen(app))
        await until(pilot, lambda: "line 9: no answer" in screen(app) and "give one" in screen(app))
        launcher.printed = {}
        await give(pilot, app, "/q")
        await until(pilot, lambda: "Your own questions: /q/manifest.toml" in screen(app))
        assert "line 9" not in screen(app) and "2 mistakes" not in screen(app)
        # A file may have a name in capitals.
        launcher.replies["tasks check"] = CHECKED
        await give(pilot, app, str(questions))
        await until(pilot, lambda: "no mistakes" in screen(app))
        assert (("tasks", "check", str(questions)), "") in launcher.commands
        # As `sapo run --manifest` does, a node trains on questions without a manifest of their own.
        launcher.replies["runs new"] = JobResult({"done": "new", "run": "run-2"})
        await press(pilot, "u", then=lambda: isinstance(app.screen, Ask))
        await press(pilot, "enter", then=lambda: launcher.changes == [("manifest", str(questions))])


async def test_new_questions_are_written_checked_and_tried(launcher: FakeLauncher) -> None:
    launcher.replies.update({"tasks new": WRITTEN, "tasks check": CHECKED, "tasks preview": TRIED})
    async with running(launcher, (100, 40), ready=with_new) as (pilot, app):
        await press(pilot, "r", then=lambda: "no mistakes" in screen(app))
        for words in ("mine: 3 questions to train on", "no gain can be reported", "line 3: the answer", "not checked",
                      "sees 2 more questions with the answer"):  # fmt: skip
            assert words in screen(app), words
        await press(pilot, "y", then=lambda: "something to learn" in screen(app))
        for words in ("right answers: 25% of 4", "[b]3[/b]", "✓ 1 x  <answer>7</answer>", "✗ 3 x  8", "<|user|>"):
            assert words in screen(app), words
        commands = [words for words, _ in launcher.commands if words[1] != "list"]
        file = "/q/manifest.toml"
        assert commands == [("tasks", "new", "/q"), ("tasks", "check", file), ("tasks", "preview", file)]


@pytest.mark.parametrize(
    "text", [mistakes_text({"mistakes": [{"text": "no", "remedy": "yes"}]}), check_text(CHECKED.record, ())]
)
def test_only_the_first_line_has_the_colour_of_the_verdict(text: Text) -> None:
    assert not text.style and text.get_style_at_offset(CONSOLE, 0).color is not None
    assert text.get_style_at_offset(CONSOLE, text.plain.index("\n") + 2).color is None


def test_mistakes_are_bounded() -> None:
    assert str(mistakes_text({"mistakes": [{"text": "no", "remedy": "yes"}] * 1000})).count("yes") == MAX_REMARKS


async def test_own_questions_get_a_run_beside_that_on_other_tasks_once_no_command_runs(launcher: FakeLauncher) -> None:
    new = JobResult({"done": "new", "run": "run-2"})
    launcher.replies |= {"tasks new": WRITTEN, "tasks preview": TRIED, "runs new": new}
    node = launcher.node
    async with running(launcher, (100, 30), ready=with_new) as (pilot, app):
        launcher.hold_jobs = True
        await press(pilot, "y", then=lambda: "the model tries" in text(app, "#job"))
        launcher.hold_jobs = False
        preview = launcher.jobs[-1]
        app.screen.query_one("#manifests", OptionList).focus()
        await press(pilot, "enter", then=lambda: isinstance(app.screen, Ask))
        await press(pilot, "enter", then=lambda: "One command at a time" in notices(app))
        assert node.asked == [] and launcher.changes == []
        preview.go.set()
        await until(pilot, lambda: "right answers: 25%" in screen(app))
        await press(pilot, "u", then=lambda: isinstance(app.screen, Ask))
        await press(pilot, "escape", then=lambda: isinstance(app.screen, TasksView))
        assert node.asked == [] and launcher.changes == []
        await press(pilot, "u", then=lambda: isinstance(app.screen, Ask))
        await press(pilot, "enter", then=lambda: "starts the run run-2 on /q/manifest.toml" in text(app, "#job"))
        await until(pilot, lambda: launcher.starts == 1)
        assert node.asked == ["after_round"] and (("runs", "new"), "") in launcher.commands
        assert launcher.changes == [("manifest", "/q/manifest.toml")]


async def test_the_file_that_the_run_trains_on_needs_no_new_run_though_no_setting_names_it(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # As after `sapo run --manifest FILE`: the list has what was kept of it, under its digest.
    file = tmp_path / "manifest.toml"
    file.touch()
    outcome, launcher.digests[str(file)] = launcher.outcome(), "kept"
    run = replace(outcome.report.run, manifest="kept")
    monkeypatch.setattr(launcher, "outcome", lambda: replace(outcome, report=replace(outcome.report, run=run)))
    launcher.replies["tasks check"] = CHECKED
    async with running(launcher, (100, 30), ready=opened) as (pilot, app):
        await give(pilot, app, str(file))
        await until(pilot, lambda: "no mistakes" in screen(app))
        await press(pilot, "u", then=lambda: launcher.changes == [("manifest", str(file))])
        assert "the next node trains on" in text(app, "#job") and launcher.node.asked == []


async def test_a_file_that_was_edited_meanwhile_gets_a_new_run_which_no_second_key_calls_off(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = {"from": "file", "use": "/q/manifest.toml", "name": "mine", "tasks": 1, "used": True}
    launcher.digests["/q/manifest.toml"] = "before"
    outcome = launcher.outcome()
    run = replace(outcome.report.run, manifest="before")
    monkeypatch.setattr(launcher, "outcome", lambda: replace(outcome, report=replace(outcome.report, run=run)))
    launcher.replies |= {"tasks list": JobResult({"manifests": [mine]}), "runs new": JobResult({"run": "run-2"})}
    end = launcher.node._end
    # The round takes longer than the keys.
    monkeypatch.setattr(launcher.node, "_end", lambda: None)
    async with running(launcher, (100, 30), ready=attached) as (pilot, app):
        await press(pilot, "9", then=lambda: "/q/manifest.toml" in screen(app))
        launcher.digests["/q/manifest.toml"] = "after"
        await press(pilot, "u", then=lambda: isinstance(app.screen, Ask) and "in a new run?" in screen(app))
        await press(pilot, "enter", then=lambda: "finishes its round and saves" in text(app, "#job"))
        await press(pilot, "u", then=lambda: "still under way" in notices(app))
        assert isinstance(app.screen, TasksView)
        end()
        await until(pilot, lambda: launcher.starts == 1 and "starts the run run-2" in text(app, "#job"))
    assert launcher.changes == [("manifest", "/q/manifest.toml")]


async def test_a_fresh_home_trains_on_a_file_or_a_listed_manifest_and_in_another_swarm_alone(
    fresh: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = fresh.outcome()
    run = replace(outcome.report.run, manifest=MANIFEST_DIGEST)
    fresh.replies["tasks new"] = WRITTEN
    async with running(fresh, (100, 30), ready=with_new) as (pilot, app):
        await press(pilot, "u", then=lambda: fresh.changes == [("manifest", "/q/manifest.toml")])
        manifests = app.screen.query_one("#manifests", OptionList)
        await until(pilot, lambda: manifests.option_count == len(MANIFESTS) - 1)
        manifests.highlighted = 0
        manifests.focus()
        await press(pilot, "enter", then=lambda: fresh.changes[-1] == ("manifest", "arithmetic"))
        fresh.joined = "a friend's \x1b[31m"
        await pilot.press("u")
        await until(pilot, lambda: isinstance(app.screen, Ask) and "swarm a friend's \\x1b[31m" in screen(app))
        await press(pilot, "escape", "u", then=lambda: isinstance(app.screen, Ask))
        assert len(fresh.changes) == 2
        await pilot.press("enter")
        await until(pilot, lambda: fresh.changes[2:] == [("network", "solo"), ("manifest", "/q/manifest.toml")])
        # A head start belongs to its tasks, as rounds do.
        monkeypatch.setattr(fresh, "outcome", lambda: replace(outcome, report=replace(outcome.report, run=run)))
        await press(pilot, "u", then=lambda: "Train on these in a new run?" in screen(app))
        await press(pilot, "escape", then=lambda: isinstance(app.screen, TasksView))
        assert len(fresh.changes) == 4
        manifests.focus()
        await press(pilot, "enter", then=lambda: fresh.changes[4:] == [("manifest", "starter")])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
RECORDS = st.fixed_dictionaries(
    {"question": st.text(max_size=8) | st.sampled_from(["a | b", "{", " x "]), "answer": JSON},
    optional={"fold": JSON, "check": st.just("number") | JSON, "tolerance": JSON},
)


@given(st.lists(RECORDS, max_size=4))
def test_questions_survive_the_editor(records: list[dict[str, Any]]) -> None:
    file = "".join(f"{json.dumps(record)}\n" for record in records)
    again = [json.loads(line) for line in to_questions(to_text(file)).splitlines()]
    assert json.dumps(again, sort_keys=True) == json.dumps(records, sort_keys=True)


@given(st.text(max_size=40))
def test_no_text_breaks_the_editor(text: str) -> None:
    to_text(text)
    for line in to_questions(text).split("\n"):
        assert not line or line.startswith("{")


def test_the_editor_shows_plain_lines() -> None:
    file = '{"question": "2 + 3?", "answer": 5, "check": "number"}\n'
    file += '{"question": "Capital?", "answer": "Rome", "fold": true}\n'
    assert to_text(file) == "2 + 3? | 5\nCapital? | Rome"
    shown_whole = file + '{"question": "a | b"}\n'
    assert to_text(shown_whole.replace("\n", "\r\n")) == to_text(shown_whole), "an editor drops carriage returns"
    strict = '{"question": "Capital?", "answer": "Rome"}'
    assert to_text(strict) == strict and to_questions("no answer") == '{"question": "no answer"}\n'
    assert to_text(to_questions("no answer\na | b")) == "no answer\na | b"
    assert to_text('{"question": "a | b"}') == '{"question": "a | b"}', "the answer would be b"
    hidden = '{"question": "a\\u001b[2J\\u009b?", "answer": "b", "fold": true}'
    assert to_text(hidden) == to_text(hidden.replace("\\u009b", "\x9b")) == hidden, "what is wrong stays visible"


async def test_a_terminal_obeys_no_file_and_no_pasted_text(launcher: FakeLauncher, tmp_path: Path) -> None:
    file = tmp_path / "tasks.csv"
    file.write_text("question,answer\na\x1b]0;title\x07b\x9b2Jc,d\n")
    async with running(launcher) as (pilot, app):
        app.push_screen(EditQuestions(file))
        await until(pilot, lambda: "a]0;titleb2Jc,d" in screen(app))
        app.post_message(Paste("e\x1b[31mf"))
        await until(pilot, lambda: "e[31mf" in screen(app))
        assert screen(app).replace("\n", "").isprintable()
        await press(pilot, "ctrl+s", then=lambda: not isinstance(app.screen, EditQuestions))
    assert "a\x1b]0;title\x07b\x9b2Jc,d" in file.read_text(), "it is only not shown"


async def test_the_app_has_an_editor(launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    questions = tmp_path / "tasks.jsonl"
    first = '{"question": "2 + 3?", "answer": 5, "check": "number"}\n'
    # As Windows' editors write it.
    questions.write_text(first, "utf-8-sig")
    written = JobResult({"manifest": str(tmp_path / "manifest.toml"), "questions": str(questions)})
    launcher.replies.update({"tasks new": written, "tasks check": CHECKED})
    for name in ("VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    async with running(launcher, ready=with_new) as (pilot, app):
        await press(pilot, "e", then=lambda: isinstance(app.screen, EditQuestions) and "2 + 3? | 5" in screen(app))
        assert app.screen.query_one(".dialog").region.size == app.size, "it has all of the terminal"
        await press(pilot, "end", "enter", *"How many?", "escape", then=lambda: "not saved yet" in screen(app))
        await press(pilot, "ctrl+s", then=lambda: "no mistakes" in screen(app))
        assert questions.read_text() == first + '{"question": "How many?"}\n'
        questions.write_bytes(b"\xff")
        await press(pilot, "e", then=lambda: "can't be edited here" in text(app, "#job"))


@pytest.mark.parametrize("content", ["question,answer\r\n2 + 3?,5\n", "question,answer\na\u2028b,5\n"])
def test_a_file_whose_line_ends_would_change_is_not_edited(tmp_path: Path, content: str) -> None:
    file = tmp_path / "q.csv"
    file.write_bytes(content.encode())
    with pytest.raises(ValueError, match="line ends"):
        EditQuestions(file)


async def test_what_is_no_list_of_json_lines_is_edited_as_it_is(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, content = tmp_path / "q.csv", b"question;answer\r\n2 + 3?;5\r\n"
    file.write_bytes(content)
    launcher.replies["tasks check"] = CHECKED
    for variable in ("VISUAL", "EDITOR"):
        monkeypatch.setenv(variable, " ")
    async with running(launcher) as (pilot, app):
        await with_file(pilot, app, path=str(file))
        await until(pilot, lambda: "no mistakes" in screen(app))
        await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, EditQuestions) and "question;answer" in screen(app))
        await press(pilot, "ctrl+s", then=lambda: isinstance(app.screen, TasksView))
        assert file.read_bytes() == content


async def test_the_users_editor_is_split_into_words(launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher.replies.update({"tasks new": WRITTEN, "tasks check": CHECKED})
    started: list[list[str]] = []
    handler = signal.getsignal(signal.SIGINT)

    def run(command: list[str], check: bool) -> None:
        # Ctrl-C goes to all programs in the foreground.
        signal.raise_signal(signal.SIGINT)
        started.append(command)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "code --wait")
    async with running(launcher, (100, 30), ready=with_new) as (pilot, app):
        # Without a terminal of its own, as in a browser, it names the file.
        await press(pilot, "e", then=lambda: "edit this file in another window: /q/tasks.jsonl" in text(app, "#job"))
        monkeypatch.setattr(app, "suspend", contextlib.nullcontext)
        await press(pilot, "e", then=lambda: "no mistakes" in screen(app))
        assert started == [["code", "--wait", "/q/tasks.jsonl"]]
        assert signal.getsignal(signal.SIGINT) is handler


def test_the_first_words_name_the_keys_of_the_screen() -> None:
    keys = {binding.key: binding.action for binding in TasksView.BINDINGS if isinstance(binding, Binding)}
    named = [line[0] for line in START.splitlines() if line[1:3] == "  "]
    assert [keys.get(key) for key in named] == ["new", "edit", "check", "preview", "use"]


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (120, 40)])
def test_pictures(pictured: Pictured, size: Size) -> None:
    assert pictured(opened, size)
