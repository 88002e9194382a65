"""The tasks: what is trained, and own questions from the first file to what a model makes of them."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import ScreenResume
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from sapo_edge.care.signals import handling
from sapo_edge.errors import SapoError
from sapo_edge.plain import printable
from sapo_edge.tui.node.history import History
from sapo_edge.tui.node.processes import JobResult
from sapo_edge.tui.screens.tasks.dialogs import EditQuestions, NewQuestions
from sapo_edge.tui.screens.tasks.texts import START, check_text, is_offered, manifest_line, mistakes_text, preview_text
from sapo_edge.tui.screens.view import View
from sapo_edge.tui.widgets.dialog import Ask
from sapo_edge.tui.widgets.job_line import JobLine
from sapo_edge.tui.widgets.restart import stopped

HAS_RUN = (
    "The run that goes on trains on other tasks. A new run beside it begins with the untrained model; the old one "
    "stays, and Results (8, then R) returns to it. A running node finishes its round and stops first."
)
KEYS = [getattr(signal, name) for name in ("SIGINT", "SIGQUIT") if hasattr(signal, name)]
"""Signals of keys that many editors give a meaning; the terminal sends them to this process, too."""
BUSY = "What you chose before is still under way: wait for it."
ALONE = (
    "This machine is in the swarm {swarm}, which trains on other questions. The node works alone from then on. You "
    "stay a member: the setting network (7) lets it take part again."
)


class TasksView(View):
    """The manifests, and the file in hand."""

    MODE = "tasks"
    AUTO_FOCUS = "#manifests"
    SCROLLED = "#told"
    DEFAULT_CSS = """
    TasksView #manifests { max-height: 8; }
    TasksView.-short #manifests { max-height: 6; }
    TasksView.-tiny #manifests { max-height: 3; }
    """
    HELP_TEXT = """\
A *manifest* says what is trained: generators of questions, or your own. `*` marks the one that the next node trains on.

**Your own questions**: `n` writes a folder to begin with, or takes a file that you have, `e` edits it here, or in
your editor if `$EDITOR` names one, `r` checks, `y` lets the model try eight of them, `u` trains on them. `Enter` trains
on the highlighted manifest. These are the functions of `sapo tasks`.
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "new", "New", id="tasks.new", tooltip="Questions to begin with, or a file that you have"),
        Binding("e", "edit", "Edit", id="tasks.edit", tooltip="Edit the questions, here or in $EDITOR"),
        Binding("r", "check", "Check", id="tasks.check", tooltip="Find mistakes, and what may be wrong"),
        Binding("y", "preview", "Try", id="tasks.preview", tooltip="Let the model try the questions"),
        Binding("u", "use", "Train", id="tasks.use", tooltip="Train on the file or the marked manifest"),
        Binding("pageup", "scroll(0, -1)", "Scroll up", show=False, id="tasks.up"),
        Binding("pagedown", "scroll(0, 1)", "Scroll down", show=False, id="tasks.down"),
        Binding("escape", "stop", "Stop the command", show=False, id="tasks.stop"),
    ]

    _rows: Sequence[Mapping[str, Any]] = ()
    _file = _questions = ""

    def content(self) -> ComposeResult:
        manifests = OptionList(id="manifests", classes="panel", markup=False)
        manifests.border_title = "What can be trained"
        manifests.add_option(Option("reading ...", disabled=True))
        yield manifests
        with VerticalScroll(id="told", classes="panel", can_focus=False) as panel:
            panel.border_title = "Your own questions"
            yield Static(START, id="words", markup=False)
        yield JobLine(id="job")

    def on_screen_resume(self, event: ScreenResume) -> None:
        self.action_reload()

    @work(group="tasks-list", exclusive=True)
    async def action_reload(self) -> None:
        job = self.sapo.launcher.job("tasks", "list")
        result = await self.read(job.run, lambda error: self._say(Text(printable(error))))
        if result is None:
            return
        self._rows = [row for row in result.record.get("manifests") or () if is_offered(row)]
        options = self.query_one("#manifests", OptionList)
        options.set_options(Option(Content(manifest_line(row))) for row in self._rows)
        used = [index for index, row in enumerate(self._rows) if row.get("used")]
        options.highlighted = used[0] if used else 0
        files = [str(row["use"]) for row in self._rows if row.get("from") == "file"]
        if files and not self._file:
            self._take(files[0], files[0])

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        busy = self.is_mounted and self.query_one(JobLine).busy
        if action == "stop":
            return busy
        if action in ("check", "preview", "edit", "use"):
            return True if self._file and not busy else None
        if action == "new":
            return None if busy else True
        return True

    def _take(self, file: str, questions: str) -> None:
        if self._file not in ("", file):
            # What was found in the file before is not of this one.
            self._say(Text(START))
            self.query_one(JobLine).say("")
        self._file, self._questions = file, questions
        self.query_one("#told").border_title = Content(f"Your own questions: {printable(file)}")
        self.refresh_bindings()

    def _say(self, text: Text) -> None:
        self.query_one("#words", Static).update(text)
        self.query_one("#told").scroll_home(animate=False)

    @work(group="tasks-ask", exclusive=True)
    async def action_new(self) -> None:
        dialog = NewQuestions(self.sapo.launcher)
        if not await self.app.push_screen_wait(dialog):
            return
        self._take(dialog.file, dialog.questions)
        if dialog.written:
            written = f"✓ written: {printable(dialog.questions)}; e edits them, r checks them"
            self.query_one(JobLine).say(written, "good")
        else:
            self.action_check()

    def action_edit(self) -> None:
        """Open the questions in the user's editor, or in the app's own if none is set or a browser shows the app."""
        named = (os.environ.get(name, "").strip() for name in ("VISUAL", "EDITOR"))
        editor = next(filter(None, named), "")
        if not editor or self.app.is_web:
            self._edit_here()
            return
        try:
            # A handler, not SIG_IGN: the editor would inherit that.
            with self.app.suspend(), handling(KEYS, lambda _number, _frame: None):
                subprocess.run([*shlex.split(editor), self._questions], check=False)
        except SuspendNotSupported:
            self.query_one(JobLine).say(f"edit this file in another window: {printable(self._questions)}")
        except (OSError, ValueError):
            self.query_one(JobLine).say(
                f"{printable(editor)} can't be started: set EDITOR, or edit {printable(self._questions)}", "bad"
            )
        else:
            self.action_check()

    def _edit_here(self) -> None:
        try:
            editor = EditQuestions(Path(self._questions))
        except (OSError, ValueError) as error:
            self.query_one(JobLine).say(f"{printable(self._questions)} can't be edited here: {printable(error)}", "bad")
        else:
            self.app.push_screen(editor, lambda saved: self.action_check() if saved else None)

    def action_check(self) -> None:
        def show(record: Mapping[str, Any]) -> None:
            if "mistakes" in record:
                self._say(mistakes_text(record))

        def done(result: JobResult) -> None:
            self._say(check_text(result.record, result.notes))

        job = self.sapo.launcher.job("tasks", "check", self._file)
        self.query_one(JobLine).begin(job, "checking", done, show)

    def action_preview(self) -> None:
        job = self.sapo.launcher.job("tasks", "preview", self._file)
        line = self.query_one(JobLine)
        line.begin(job, "the model tries eight questions", lambda result: self._say(preview_text(result.record)))

    @on(OptionList.OptionSelected, "#manifests")
    def _use_listed(self, event: OptionList.OptionSelected) -> None:
        self._use(str(self._rows[event.option_index]["use"]))

    def action_use(self) -> None:
        self._use(self._file)

    def _use(self, name: str) -> None:
        if self.sapo.busy("tasks-use"):
            self.notify(BUSY, severity="warning")
        else:
            self._train_on(name)

    @work(group="tasks-use")
    async def _train_on(self, name: str) -> None:
        """Train on a manifest; in a new run, if the one that goes on has begun with another."""
        line = self.query_one(JobLine)
        try:
            outcome = await asyncio.to_thread(self.sapo.launcher.outcome)
            digest, swarm = await asyncio.to_thread(self.sapo.launcher.swarm_against, name)
        except SapoError as error:
            line.fail(error)
            return
        run = outcome.report.run
        # A head start has no round yet, and belongs to its tasks, too.
        in_new_run = (run.rounds > 0 or bool(run.manifest)) and run.manifest != digest
        about = [*([HAS_RUN] if in_new_run else []), *([ALONE.format(swarm=printable(swarm))] if swarm else [])]
        heading = "Train on these in a new run?" if in_new_run else "Train on these, alone?"
        if about and not await self.app.push_screen_wait(Ask(heading, "\n\n".join(about))):
            return
        if not in_new_run:
            if self._choose(name, alone=bool(swarm)):
                line.say(
                    f"✓ the next node trains on {printable(name)}; s stops a running one and starts the next", "good"
                )
        elif await stopped(self.sapo, line):
            job = self.sapo.launcher.job("runs", "new")
            line.begin(job, "beginning a run", lambda result: self._begun(name, result, alone=bool(swarm)))

    def _choose(self, name: str, *, alone: bool) -> bool:
        """Let the next node train on a manifest; returns whether the settings could be written."""
        try:
            if alone:
                self.sapo.launcher.set("network", "solo")
            self.sapo.launcher.set("manifest", name)
        except SapoError as error:
            self.query_one(JobLine).fail(error)
            return False
        self.action_reload()
        return True

    def _begun(self, name: str, result: JobResult, *, alone: bool) -> None:
        if self._choose(name, alone=alone):
            self.sapo.state.history = History()
            self.sapo.keeper.start()
            run = printable(result.record.get("run", ""))
            self.query_one(JobLine).say(f"✓ the node starts the run {run} on {printable(name)}", "good")

    def action_stop(self) -> None:
        self.query_one(JobLine).stop()
