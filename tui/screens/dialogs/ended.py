"""Explains why a node ended unexpectedly, and offers to start it again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import Click, Key
from textual.widgets import Button, Static

from sapo_edge.node.background import Ended
from sapo_edge.plain import counted, format_time, printable
from sapo_edge.tui.node.records import parse_record
from sapo_edge.tui.widgets.dialog import Dialog

MAX_LINES = 30
"""Most last lines shown."""
MAX_CHARACTERS = 400
"""Most characters shown of a line."""
MAX_TEXT = 10_000
"""Most characters read of an entry that holds several lines."""
MAX_REASON = 600
"""Most characters shown of the reason."""
COUNT_SECONDS = 0.2
"""Seconds between two looks at the countdown."""
SAFE = "The last checkpoint is safe: at most the round in progress was lost."
NEVER_STARTED = "Nothing is lost: the last checkpoint has all progress."
AGAIN_AND_AGAIN = (
    "It ended like this several times within minutes, so it does not restart by itself. The lines above may say why; "
    "`sapo doctor` checks this machine."
)
NO_USE = "It does not restart by itself: without a change, it would fail again."
_BUTTON_KEYS = ("enter", "r", "l", "escape", "ctrl+q", "ctrl+c")


class NodeEnded(Dialog[bool]):
    """Dismissed with whether to start a node again. It stays until the user closes it, even after a restart.

    `restart` is called after `patience` seconds; None if it doesn't restart by itself, because it crashed `often` or
    because that would be of no use.
    """

    HELP_TEXT = """\
The node is a separate process: this window stays open when it crashes. **Restart** continues from the last checkpoint.
**Leave it** keeps this window open without a node; `s` starts one later. The screen Logs shows more of its output.
After a restart by itself, the message stays until you close it.
"""

    DEFAULT_CSS = """
    NodeEnded #why { max-height: 3; text-style: bold; }
    NodeEnded #log { height: auto; max-height: 5; margin-top: 1; background: $panel; padding: 0 1; }
    NodeEnded #log.-none { display: none; }
    NodeEnded #lines { color: $text-muted; }
    NodeEnded #safe { margin-top: 1; }
    NodeEnded #then { color: $text-muted; }
    NodeEnded #then.-counting { color: $text-warning; }
    NodeEnded.-tall #why { max-height: 6; }
    NodeEnded.-tall #log { max-height: 18; }
    NodeEnded.-tiny #why, NodeEnded.-tiny #log { max-height: 2; }
    NodeEnded.-tiny #log, NodeEnded.-tiny #safe { margin: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "again(True)", "Restart", id="ended.restart"),
        Binding("l,escape", "again(False)", "Leave it", id="ended.leave"),
        Binding("up,pageup", "scroll(0, -1)", "Scroll", show=False, id="ended.up"),
        Binding("down,pagedown", "scroll(0, 1)", "Scroll", key_display="↑↓", id="ended.down"),
        Binding("left", "app.focus_previous", "Other", show=False, id="ended.back"),
        Binding("right", "app.focus_next", "Other", show=False, id="ended.on"),
        Binding("c", "copy", "Copy", id="ended.copy"),
        Binding("q", "app.ask_quit", "Quit", id="ended.quit"),
    ]
    BUTTONS: ClassVar = {"restart": ("Restart", "again(True)"), "leave": ("Leave it", "again(False)")}
    AUTO_FOCUS = "#restart"
    SCROLLED = "#log"

    clock: Callable[[], float] = staticmethod(time.monotonic)
    _until: float | None = None
    _restarted_at: float | None = None

    def __init__(self, ending: Ended, patience: float | None, often: bool, restart: Callable[[], None]) -> None:
        super().__init__()
        self._restart = restart
        self.show(ending, patience, often)

    def body(self) -> ComposeResult:
        yield Static(id="why", markup=False)
        with VerticalScroll(id="log", can_focus=False):
            yield Static(id="lines", markup=False)
        yield Static(id="safe", markup=False)
        yield Static(id="then", markup=False)

    def on_mount(self) -> None:
        self.set_interval(COUNT_SECONDS, self._count)
        self._fill()

    def show(self, ending: Ended, patience: float | None, often: bool) -> None:
        """Show an ending, with its newest line, and count down if the node restarts by itself."""
        self._ending, self._patience, self._often, self._restarted_at = ending, patience, often, None
        if self.is_mounted:
            self._fill()

    def _fill(self) -> None:
        had_started = self._patience is not None or self._often
        self.query_one(".dialog").border_title = "The node ended" if had_started else "No node runs"
        self.query_one("#why", Static).update(Text(self._reason))
        self.query_one("#lines", Static).update(Text(self._lines))
        log = self.query_one("#log")
        log.set_class(not self._ending.lines, "-none")
        self.call_after_refresh(log.scroll_end, animate=False)
        self.query_one("#safe", Static).update(SAFE if had_started else NEVER_STARTED)
        self._until = None if self._patience is None else self.clock() + self._patience
        self._show_buttons()
        self._show_countdown()

    def _show_buttons(self) -> None:
        restart, leave = self.query_one("#restart", Button), self.query_one("#leave", Button)
        restart.display = self._restarted_at is None
        leave.label = "Leave it" if self._restarted_at is None else "Close"
        (restart if restart.display else leave).focus()
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not (action == "again" and parameters == (True,) and self._restarted_at is not None)

    @property
    def _reason(self) -> str:
        reason = printable(self._ending.reason[:MAX_REASON])
        return reason[:1].upper() + reason[1:]

    @property
    def _lines(self) -> str:
        lines = [line for entry in self._ending.lines[-MAX_LINES:] for line in entry[-MAX_TEXT:].split("\n")]
        return "\n".join(_in_words(line[:MAX_TEXT])[:MAX_CHARACTERS] for line in lines[-MAX_LINES:])

    def _count(self) -> None:
        if self.app.screen is not self:
            # The user reads the help.
            self._stop_counting()
        elif self._until is not None and self.clock() >= self._until:
            self._until, self._restarted_at = None, time.time()
            self._show_buttons()
            self._show_countdown()
            self._restart()
        else:
            self._show_countdown()

    def _show_countdown(self) -> None:
        then = self.query_one("#then", Static)
        then.set_class(self._until is not None, "-counting")
        if self._until is not None:
            left = max(1, math.ceil(self._until - self.clock()))
            then.update(f"It restarts by itself in {counted(left, 'second')}; any key stops the countdown.")
        elif self._restarted_at is not None:
            then.update(f"It was started again by itself at {format_time(self._restarted_at)[11:]}.")
        elif self._patience is not None:
            then.update("The countdown is stopped.")
        else:
            then.update(AGAIN_AND_AGAIN if self._often else NO_USE)

    def on_key(self, event: Key) -> None:
        """Stop the countdown, unless the key is one of the buttons'."""
        if event.key not in _BUTTON_KEYS:
            self._stop_counting()

    @on(Click)
    def _stop_counting(self) -> None:
        if self._until is not None:
            self._until = None
            self._show_countdown()

    def action_again(self, again: bool) -> None:
        self._until = None
        self.dismiss(again)

    def action_copy(self) -> None:
        self.app.copy_to_clipboard(f"{self._reason}\n{self._lines}")
        self.notify("Reason and last lines are copied.")


def _in_words(line: str) -> str:
    """A line of the log or of the output: time of day, level if it is a warning or an error, and words."""
    # A path in the log may have bytes that are not UTF-8.
    record = parse_record((0, 0), line.encode("utf-8", "backslashreplace"))
    level = f"{record.level}: " if record.level in ("warning", "error") else ""
    return f"{record.local_time('%H:%M:%S')}  {level}{record.line}".strip()
