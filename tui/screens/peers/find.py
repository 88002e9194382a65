"""Finds the open swarms that are alive, and joins one of them, with the functions of `sapo swarm`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from sapo_edge.plain import counted, printable
from sapo_edge.tui.node.launcher import Launcher
from sapo_edge.tui.node.processes import JobResult
from sapo_edge.tui.screens.peers.dialogs import SwarmChange
from sapo_edge.tui.widgets.dialog import WorkDialog
from sapo_edge.tui.widgets.job_line import JobLine

Found = Mapping[str, Any]
"""A swarm as `sapo swarm find --json` describes it; all of it may be a stranger's claim."""

ABOUT = (
    "Open swarms, and how many members were seen. BitTorrent's public table, and who is asked, see this machine's "
    "address meanwhile."
)
NOBODY = "nobody was seen; who starts a node on some tasks is the first of their swarm, and others find it here"
COLUMNS = 20
"""Width of the names."""


def found_line(swarm: Found) -> str:
    name, tasks = printable(swarm["name"])[: COLUMNS - 1], printable(swarm["tasks"])[:100]
    mark = "*" if swarm["joined"] else " "
    return f"{mark} {name:{COLUMNS}}{counted(int(swarm['members']), 'member'):11}  {tasks}"


def found_text(swarm: Found, shared: str) -> Content:
    """What a swarm teaches and asks, and what anybody can read of a member (`shared`)."""
    origin = "It comes with sapo." if swarm["shipped"] else "Strangers named it; its questions are theirs."
    rows = [("Tasks", swarm["tasks"]), ("Asked", swarm["asks"]), ("Shared", shared)]
    rows += (("Question", question) for question in swarm["questions"])
    head = f"{counted(int(swarm['members']), 'member')} seen. {origin}"
    lines = [Content.assemble((f"{name}: ", "bold"), printable(text)) for name, text in rows]
    return Content("\n").join([Content(head), *lines])


class FindSwarms(WorkDialog):
    """Lists swarms, and lets one of them be joined. Dismissed with whether it was."""

    HELP_TEXT = """\
The swarms of the tasks that come with sapo, and those that strangers named. **Enter** shows what a swarm asks, before
anything is joined. `*` marks the one that this machine is in. Members that can't be reached from outside are not seen.
"""
    DEFAULT_CSS = """
    FindSwarms #about { margin-bottom: 1; }
    FindSwarms #swarms { max-height: 10; border: none; padding: 0; background: $panel; }
    FindSwarms.-short #swarms { max-height: 6; }
    FindSwarms.-tiny #swarms { max-height: 3; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "search", "Search again", id="find.again"),
        Binding("escape", "leave", "Close", id="find.close"),
    ]
    BUTTONS: ClassVar = {
        "look": ("Look at it", "look"),
        "again": ("Search again", "search"),
        "close": ("Close", "leave"),
    }
    AUTO_FOCUS = "#swarms"
    heading = "Open swarms"

    _swarms: Sequence[Found] = ()
    _shared = ""

    def body(self) -> ComposeResult:
        yield Static(ABOUT, id="about", markup=False)
        yield OptionList(id="swarms", markup=False)
        yield JobLine(id="searching")

    def on_mount(self) -> None:
        self.action_search()

    def action_search(self) -> None:
        job = self._launcher.job("swarm", "find")
        self.query_one(JobLine).begin(job, "looking for swarms", self._searched, self._show)

    def _show(self, record: Mapping[str, Any]) -> None:
        options = self.query_one(OptionList)
        chosen = self._chosen
        self._swarms, self._shared = record.get("swarms") or (), str(record.get("shared", ""))
        options.set_options(Option(Content(found_line(swarm))) for swarm in self._swarms)
        digests = [swarm["swarm"] for swarm in self._swarms]
        options.highlighted = digests.index(chosen["swarm"]) if chosen and chosen["swarm"] in digests else 0

    def _searched(self, result: JobResult) -> None:
        if not self._swarms:
            self.query_one(JobLine).say(NOBODY)

    @property
    def _chosen(self) -> Found | None:
        index = self.query_one(OptionList).highlighted
        return self._swarms[index] if index is not None and index < len(self._swarms) else None

    @on(OptionList.OptionSelected)
    @work(exclusive=True)
    async def action_look(self) -> None:
        swarm = self._chosen
        if swarm is not None and await self.app.push_screen_wait(JoinFound(self._launcher, swarm, self._shared)):
            self.finish()


class JoinFound(SwarmChange):
    """Joins a swarm that was found, once its questions were shown."""

    HELP_TEXT = "What the swarm trains on, and what it asks of this machine. Nothing of it runs before you join."
    DEFAULT_CSS = """
    JoinFound #scroll { height: auto; max-height: 24; }
    JoinFound.-short #scroll { max-height: 10; }
    JoinFound.-tiny #scroll { max-height: 6; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll(-1)", "Scroll up", show=False, id="found.up"),
        Binding("down", "scroll(1)", "Scroll down", show=False, id="found.down"),
    ]
    BUTTONS: ClassVar = {"join": ("Join", "join"), "close": ("Cancel", "leave")}
    AUTO_FOCUS = "#join"
    SCROLLED = "#scroll"
    doing = "joining"

    def __init__(self, launcher: Launcher, swarm: Found, shared: str) -> None:
        super().__init__(launcher)
        self.heading = f"Join {printable(swarm['name'])[:40]}"
        self._swarm, self._shared = swarm, shared

    def body(self) -> ComposeResult:
        with VerticalScroll(id="scroll", can_focus=False):
            yield Static(found_text(self._swarm, self._shared), id="about", markup=False)
        yield JobLine(id="joining")

    def action_join(self) -> None:
        self.begin("join", text=f"{self._swarm['invite']}\n\n")
