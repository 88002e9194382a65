"""Joins, creates and leaves swarms, with the functions of `sapo swarm`."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Paste
from textual.widgets import Input, Static

from sapo_edge.errors import SapoError
from sapo_edge.tui.node.launcher import JobResult, Launcher
from sapo_edge.tui.widgets.dialog import WorkDialog
from sapo_edge.tui.widgets.inputs import MAX_INVITE, InviteInput, in_one_line
from sapo_edge.tui.widgets.job_line import JobLine

JOIN = "Paste the invite that somebody sent you, which begins with sapo://, or type a code such as 7-guitar-revolver."
CREATE = """\
A private swarm: only those with its invite take part and see the answers. The node shares questions and answers as
text, never the model.

The open swarm of the same questions needs no invite: anyone who trains on them can take part.\
"""
LEAVE = """\
Leave the swarm? The node then works alone. What it has learned stays here. The key of a private swarm is removed: to
join again, ask a member for an invite.\
"""


class SwarmChange(WorkDialog):
    """The base of the dialogs that change the swarm. Dismissed with whether it has changed."""

    DEFAULT_CSS = """
    SwarmChange #about { height: auto; }
    SwarmChange #pasted { border: none; height: 1; padding: 0 1; margin-top: 1; background: $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "app.focus_previous", show=False),
        Binding("right", "app.focus_next", show=False),
        Binding("escape", "leave", "Cancel", id="swarm.cancel"),
    ]
    doing = ""

    def __init__(self, launcher: Launcher) -> None:
        super().__init__()
        self._launcher = launcher

    def begin(self, *arguments: str, text: str = "") -> None:
        """Run a command of `sapo swarm`, and close when it has succeeded."""
        line = self.query_one(JobLine)
        if not line.busy:
            line.begin(self._launcher.job("swarm", *arguments, text=text), self.doing, self._done)

    def _done(self, result: JobResult) -> None:
        self._take_part("left" not in result.record)

    @work(exclusive=True)
    async def _take_part(self, joined: bool) -> None:
        if joined and self._launcher.setting("network") == "solo":
            try:
                await asyncio.to_thread(self._launcher.set, "network", "swarm")
            except SapoError as error:
                self.query_one(JobLine).fail(error)
                return
        self.finish()


class Join(SwarmChange):
    """Joins the swarm of an invite or a code."""

    HELP_TEXT = "An **invite** joins at once. A **code** needs the other side, whose window waits for it meanwhile."
    BUTTONS: ClassVar = {"join": ("Join", "join"), "close": ("Cancel", "leave")}
    AUTO_FOCUS = "#pasted"
    heading = "Join a swarm"
    doing = "joining"

    def body(self) -> ComposeResult:
        yield Static(JOIN, id="about", markup=False)
        yield InviteInput(placeholder="sapo://join/... or a code", max_length=MAX_INVITE, id="pasted", compact=True)
        yield JobLine(id="joining")

    def on_paste(self, event: Paste) -> None:
        """Take a text that is pasted anywhere, broken into lines or not."""
        event.stop()
        self.query_one(Input).value = in_one_line(event.text)

    @on(Input.Submitted)
    def action_join(self) -> None:
        text = self.query_one(Input).value.strip()
        if text:
            # Not as an argument: every user of this machine can read those, and an invite may hold a key.
            self.begin("join", text=f"{text}\n\n")


class Create(SwarmChange):
    """Creates the private or the open swarm of the manifest in use."""

    HELP_TEXT = CREATE
    BUTTONS: ClassVar = {
        "private": ("Private", "create(True)"),
        "open": ("Open", "create(False)"),
        "close": ("Cancel", "leave"),
    }
    AUTO_FOCUS = "#private"
    heading = "New swarm"
    doing = "creating the swarm"

    def body(self) -> ComposeResult:
        yield Static(CREATE, id="about", markup=False)
        yield JobLine(id="creating")

    def action_create(self, private: bool) -> None:
        self.begin("create", "--private" if private else "--open")


class Leave(SwarmChange):
    HELP_TEXT = LEAVE
    BUTTONS: ClassVar = {"leave": ("Leave", "go"), "close": ("Stay", "leave")}
    AUTO_FOCUS = "#close"
    heading = "Leave the swarm"
    doing = "leaving"

    def body(self) -> ComposeResult:
        yield Static(LEAVE, id="about", markup=False)
        yield JobLine(id="leaving")

    def action_go(self) -> None:
        self.begin("leave")
