"""Invites others, and joins, creates and leaves swarms, with the functions of `sapo swarm`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import Paste
from textual.widgets import Input, Static

from sapo_edge.errors import SapoError
from sapo_edge.plain import printable
from sapo_edge.tui.node.launcher import Launcher
from sapo_edge.tui.node.processes import JobResult
from sapo_edge.tui.widgets.dialog import Dialog, WorkDialog
from sapo_edge.tui.widgets.inputs import MAX_INVITE, InviteInput, in_one_line
from sapo_edge.tui.widgets.job_line import JobLine

OTHERS = "Others paste this line in their app (3, then u), or after: sapo swarm join"
PRIVATE = "Anyone who has it can join and pass it on: send it only to people you trust."
TOLD = ("others paste it after", "anyone with this invite", "the running node is not in this swarm")
"""Beginnings of notes of the command that this dialog says itself."""
HERE = {
    "start `sapo run` first": "start the node first (Esc, then s) and press i again for an invite with its addresses",
    "somebody elsewhere can": "somebody elsewhere can invite you instead; or set bootstrap (7, then /) to a relay's "
    "address, restart the node and press i again",
}
"""What to do in the app, by the beginning of the note that says it for a shell."""
BORDER = 2
"""Light modules around the code; four is the norm, and cameras read a code on a light field with two."""


class Invite(Dialog[None]):
    """Shows the invite of this node's swarm, and a warning if it leads to nobody yet."""

    HELP_TEXT = """\
The **line** (`c` copies it) leads others into this swarm. **QR code** (`k`) shows it for a phone's camera, which hands
the line on. A **short code** (`w`), such as `7-guitar-revolver`, is said aloud: it works once, while this window waits.
"""
    DEFAULT_CSS = """
    Invite #words { height: auto; max-height: 100%; }
    Invite #line { margin: 1 0; text-style: bold; }
    Invite #warning { color: $text-warning; margin-bottom: 1; }
    Invite #notes { color: $text-muted; }
    Invite #qr { display: none; width: auto; }
    Invite.-qr #qr { display: block; }
    Invite.-qr #line, Invite.-qr #notes, Invite.-qr #how, Invite.-qr .buttons { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "copy", "Copy the line", id="invite.copy"),
        Binding("k", "qr", "QR code", id="invite.qr"),
        Binding("w", "code", "Short code", id="invite.code"),
        Binding("escape", "leave", "Close", id="invite.close"),
    ]
    BUTTONS: ClassVar = {
        "copy": ("Copy", "copy"),
        "picture": ("QR code", "qr"),
        "code": ("Short code", "code"),
        "close": ("Close", "leave"),
    }
    AUTO_FOCUS = "#copy"
    heading = "Invite others"

    def __init__(self, launcher: Launcher, warning: str) -> None:
        super().__init__()
        self._launcher = launcher
        self._warning = warning
        self._line = ""

    def body(self) -> ComposeResult:
        with VerticalScroll(id="words", can_focus=False):
            if self._warning:
                yield Static(self._warning, id="warning", markup=False)
            yield Static(OTHERS, id="how", markup=False)
            yield Static(id="line", markup=False)
            yield Static(id="qr", markup=False)
            yield Static(id="notes", markup=False)
        yield JobLine(id="asking")

    def on_mount(self) -> None:
        self.query_one(JobLine).begin(self._launcher.job("swarm", "invite"), "making the invite", self._show)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return True if action not in ("copy", "qr") or self._line else None

    def _show(self, result: JobResult) -> None:
        self._line = printable(result.record.get("invite", ""))
        self.query_one("#line", Static).update(Text(self._line, overflow="fold"))
        notes = [PRIVATE] if result.record.get("private") else []
        for note in result.notes:
            if not note.startswith(TOLD):
                notes.append(next((text for begin, text in HERE.items() if note.startswith(begin)), printable(note)))
        self.query_one("#notes", Static).update("\n".join(notes))
        self.refresh_bindings()

    def action_copy(self) -> None:
        self.app.copy_to_clipboard(self._line)
        self.notify("the invite is copied: paste it into a message", timeout=3)

    def action_qr(self) -> None:
        if self.has_class("-qr"):
            self.remove_class("-qr")
            return
        width, height = self.app.size
        # The last row is the footer's.
        picture, missing = qr_text(self._line, width, height - 1)
        if picture is None:
            self.query_one(JobLine).say(missing, "bad")
            return
        self.query_one("#qr", Static).update(picture)
        self.add_class("-qr")

    def action_code(self) -> None:
        job = self._launcher.job("swarm", "invite", "--code")
        self.query_one(JobLine).begin(job, "waiting for the other side", self._given, self._offered)

    def _offered(self, record: Mapping[str, Any]) -> None:
        if "code" not in record:
            return
        commands = [f"  {printable(way['command'])}  {printable(way['where'])}" for way in record["commands"]]
        code = f"Say this code: {printable(record['code'])}"
        lines = [code, "The other side types it in the app (3, then u), or runs:"]
        self.query_one("#notes", Static).update("\n".join([*lines, *commands]))

    def _given(self, result: JobResult) -> None:
        self.query_one(JobLine).say("✓ the other side has the invite; the code has ended", "good")

    def action_leave(self) -> None:
        if self.has_class("-qr"):
            self.remove_class("-qr")
        else:
            super().action_leave()


def qr_text(text: str, columns: int, rows: int) -> tuple[Text | None, str]:
    """A QR code in half blocks, dark on light whatever the theme; or None, and why there is none."""
    # Loaded at the first use only.
    import segno

    try:
        code = segno.make_qr(text, error="l")
    except segno.DataOverflowError:
        return None, "the invite is too long for a QR code: send the line"
    modules = [list(row) for row in code.matrix_iter(scale=1, border=BORDER)]
    width, height = len(modules[0]), -(-len(modules) // 2)
    if width > columns or height > rows:
        return None, f"the QR code needs {width} columns and {height} rows, and there are {columns} and {rows}"
    if len(modules) % 2:
        modules.append([0] * width)
    colors = ("#ffffff", "#000000")
    picture = Text(no_wrap=True)
    for upper, lower in zip(modules[::2], modules[1::2], strict=True):
        for above, below in zip(upper, lower, strict=True):
            picture.append("▀", f"{colors[bool(above)]} on {colors[bool(below)]}")
        picture.append("\n")
    picture.rstrip()
    return picture, ""


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

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "app.focus_previous", show=False),
        Binding("right", "app.focus_next", show=False),
        Binding("escape", "leave", "Cancel", id="swarm.cancel"),
    ]
    about = doing = ""

    def body(self) -> ComposeResult:
        yield Static(self.about, id="about", markup=False)
        yield JobLine(id="doing")

    def begin(self, *arguments: str, text: str = "") -> None:
        self.query_one(JobLine).begin(self._launcher.job("swarm", *arguments, text=text), self.doing, self._done)

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
    HELP_TEXT = "An **invite** joins at once. A **code** needs the other side, whose window waits for it meanwhile."
    BUTTONS: ClassVar = {"join": ("Join", "join"), "close": ("Cancel", "leave")}
    AUTO_FOCUS = "#pasted"
    heading, doing = "Join a swarm", "joining"

    def body(self) -> ComposeResult:
        yield Static(JOIN, id="about", markup=False)
        yield InviteInput(placeholder="sapo://join/... or a code", max_length=MAX_INVITE, id="pasted", compact=True)
        yield JobLine(id="doing")

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

    HELP_TEXT = about = CREATE
    BUTTONS: ClassVar = {
        "private": ("Private", "create(True)"),
        "open": ("Open", "create(False)"),
        "close": ("Cancel", "leave"),
    }
    AUTO_FOCUS = "#private"
    heading, doing = "New swarm", "creating the swarm"

    def action_create(self, private: bool) -> None:
        self.begin("create", "--private" if private else "--open")


class Leave(SwarmChange):
    HELP_TEXT = about = LEAVE
    BUTTONS: ClassVar = {"leave": ("Leave", "go"), "close": ("Stay", "leave")}
    AUTO_FOCUS = "#close"
    heading, doing = "Leave the swarm", "leaving"

    def action_go(self) -> None:
        self.begin("leave")
