"""The base of the main screens: a line with the node's state, the row of screens, the footer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import Flag, auto
from typing import TYPE_CHECKING, ClassVar, TypeVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.events import ScreenResume

from sapo_edge.errors import SapoError
from sapo_edge.plain import counted, duration, format_time, printable, rough_duration
from sapo_edge.tui.node.state import NodeState, Standing
from sapo_edge.tui.widgets.footer import KeyFooter
from sapo_edge.tui.widgets.small import Chip, ScrollingScreen, Steady

if TYPE_CHECKING:
    from sapo_edge.tui.app import SapoApp


Told = TypeVar("Told")


class Change(Flag):
    """The parts of a node's state that have changed."""

    STANDING = auto()
    STATUS = auto()
    PROGRESS = auto()
    ROUND = auto()
    EVENT = auto()
    ALL = STANDING | STATUS | PROGRESS | ROUND | EVENT


VIEWS: dict[str, str] = {
    "dashboard": "Dashboard",
    "rollouts": "Rollouts",
    "peers": "Swarm",
    "chat": "Chat",
    "answer": "Answer",
    "logs": "Logs",
    "settings": "Settings",
    "results": "Results",
    "tasks": "Tasks",
}
"""Titles of the main screens by mode, in the order of their keys, 1 to 9."""
NAV_COLUMNS = sum(len(title) + 4 for title in VIEWS.values()) + 2
"""Columns that the titles of all screens need."""
NAV_TIGHT_COLUMNS = sum(len(title) + 2 for title in VIEWS.values()) + 1
"""Columns that they need at least in one line."""
NAV_TWO_COLUMNS = sum(max(len(title) + 2 for title in [*VIEWS.values()][start::5]) for start in range(5)) + 1
"""Columns that they need at least in two lines of five."""
DOING = {"head_start": "learning", "generate": "answering", "update": "learning", "evaluate": "evaluating"}
"""What a node does in a phase."""
START_SECONDS = 2.0
"""Seconds from which the head says how long the node has been starting."""


class NavItem(Chip):
    """The number and title of a screen; a click shows the screen."""

    def __init__(self, mode: str, number: int) -> None:
        super().__init__(f"app.switch_mode('{mode}')")
        self.mode = mode
        self._number = number

    def fit(self, width: int) -> None:
        """Leave out what does not fit into a terminal of so many columns: the space, then titles of other screens."""
        self.set_class(width < NAV_COLUMNS, "-tight", update=self.is_attached)
        titled = width >= NAV_TWO_COLUMNS or self.has_class("-here")
        space = " " if width >= NAV_COLUMNS else ""
        self.update(Text.assemble((f"{self._number}{space}", "dim"), VIEWS[self.mode] if titled else ""))


class Nav(Horizontal):
    """The row of screens, with the current mode marked; two rows where the titles do not fit into one."""

    def __init__(self, current: str) -> None:
        super().__init__(id="nav")
        self._current = current

    def compose(self) -> ComposeResult:
        for number, mode in enumerate(VIEWS, 1):
            item = NavItem(mode, number)
            item.set_class(mode == self._current, "-here", update=False)
            item.fit(self.app.size.width)
            yield item

    def on_resize(self) -> None:
        self.set_class(NAV_TWO_COLUMNS <= self.app.size.width < NAV_TIGHT_COLUMNS, "-two")
        for item in self.query(NavItem):
            item.fit(self.app.size.width)


class View(ScrollingScreen[None]):
    """A main screen: `MODE` of the app's `MODES`; one without a number belongs to the screen `NAV` of `VIEWS`."""

    MODE: ClassVar[str] = ""
    NAV: ClassVar[str] = ""
    HELP_TEXT: ClassVar[str] = ""
    _theme_shown = ""

    @property
    def sapo(self) -> SapoApp:
        return cast("SapoApp", self.app)

    def compose(self) -> ComposeResult:
        self._theme_shown = self.app.theme
        self._set_breakpoints()
        yield Steady(id="head")
        yield Nav(self.NAV or self.MODE)
        yield from self.content()
        yield KeyFooter(compact=True)

    def _set_breakpoints(self) -> None:
        """Set the classes of this size before there are widgets; Textual would set them later, and style all again."""
        for breakpoints, size in (
            (self.HORIZONTAL_BREAKPOINTS, self.app.size.width),
            (self.VERTICAL_BREAKPOINTS, self.app.size.height),
        ):
            self.add_class(max((least, name) for least, name in breakpoints or () if least <= size)[1], update=False)

    def content(self) -> ComposeResult:
        raise NotImplementedError

    def node_changed(self, change: Change) -> None:
        """Show changes of `self.sapo.state`; called at most ten times a second, while the screen is shown."""

    def on_mount(self) -> None:
        """Update the footer: a node may have been found before the footer listens."""
        self.call_after_refresh(self.refresh_bindings)

    def on_screen_resume(self, event: ScreenResume) -> None:
        # By default Textual applies all styles again, which takes half the time of a switch of screens.
        event.refresh_styles = self.app.theme != self._theme_shown
        self._theme_shown = self.app.theme
        self.refresh_node(Change.ALL)

    @property
    def has_widgets(self) -> bool:
        """Whether there is something to draw on."""
        # While the app ends, a mounted screen may have lost its widgets already; `display` is then false.
        return self.is_mounted and self.display

    async def read(
        self, tell: Callable[[], Told], fail: Callable[[SapoError], None] = lambda error: None
    ) -> Told | None:
        """What the launcher tells, which is asked in a thread; None if it can't, or nothing is left to draw on."""
        try:
            told = await asyncio.to_thread(tell)
        except SapoError as error:
            if self.has_widgets:
                fail(error)
            return None
        return told if self.has_widgets else None

    def refresh_node(self, change: Change) -> None:
        if not self.has_widgets:
            return
        if change & (Change.STANDING | Change.STATUS | Change.ROUND | Change.PROGRESS):
            self.query_one("#head", Steady).put(head_text(self.sapo.state, self.app.size.width), layout=False)
        self.node_changed(change)


def head_text(state: NodeState, width: int) -> Text:
    """The text of the head for a number of columns; the least important parts are left out first."""
    status = state.status
    mark, style, word = _doing(state)
    text = Text.assemble((" sapo ", "bold reverse"), " ", (f"{mark} {word}", style), no_wrap=True, overflow="ellipsis")
    if state.standing in (Standing.ATTACHED, Standing.ENDED) and status:
        rounds = status.get("rounds")
        number = f"{state.round}/{rounds}" if rounds else f"{state.round}"
        seconds = state.seconds_to_end
        # Paused, it ends later.
        to_end = "" if seconds is None or state.paused else f"about {rough_duration(seconds)} to the end"
        parts = [f"round {number}", to_end, printable(status.get("manifest", ""))]
        if state.standing is Standing.ATTACHED:
            swarm = status.get("swarm")
            parts.append("alone" if swarm is None else counted(len(swarm.get("peers") or ()), "peer"))
        if status.get("role") == "generator":
            parts.append("generator")
        parts.append(printable(status.get("model", "")))
        for part in parts:
            if part and text.cell_len + len(part) + 4 <= width:
                text.append(f"  · {part}")
    return text


def _doing(state: NodeState) -> tuple[str, str, str]:
    match state.standing:
        case Standing.LOOKING:
            return "○", "dim", "looking for a node"
        case Standing.STARTING:
            seconds = time.monotonic() - state.starting_since
            waited = f" ({duration(seconds)})" if seconds >= START_SECONDS else ""
            return "◌", "yellow", f"starting the node{waited}"
        case Standing.ENDED:
            at = format_time(state.ended_at)[11:16]
            if state.ending.done:
                return "○", "green", f"the run is done since {at}: 8 shows the results"
            return "○", "" if state.ending.expected else "red", f"no node runs since {at}: s starts it"
    if state.stopping:
        return "●", "yellow", "finishing the round"
    if state.paused:
        return "■", "yellow", "paused: " + printable(", ".join(state.paused))
    return "●", "green", DOING.get(state.clock.phase or "", "running")
