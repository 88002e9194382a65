"""Says why a node ended that nobody asked to end, and starts it again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import Click, Key
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from sapo_edge.plain import counted, printable
from sapo_edge.tui.node.launcher import Ending
from sapo_edge.tui.widgets.footer import KeyFooter

MAX_LINES = 30
"""Last lines that are shown."""
MAX_CHARACTERS = 400
"""Of each of them."""
MAX_TEXT = 10_000
"""Characters that are looked at where several lines come as one."""
MAX_REASON = 600
"""Characters of the reason."""
SAFE = "The last checkpoint is safe: at most the round in progress was lost."
NEVER_CAME = "Nothing is lost: what was learned is in the last checkpoint."
AGAIN_AND_AGAIN = (
    "It ended like this several times within minutes, so it is not started again by itself. The lines above may say "
    "why; `sapo doctor` looks for what is wrong on this machine."
)
NO_USE = "It is not started by itself: without a change, it would be the same again."
_BUTTON_KEYS = ("enter", "r", "l", "escape", "ctrl+q", "ctrl+c")


class NodeEnded(ModalScreen[bool]):
    """Dismissed with whether a node is to be started again.

    Args:
        ending: how it ended.
        patience: seconds after which it starts by itself; None if it doesn't.
        often: whether that is because it died again and again.

    Attributes:
        clock: seconds, from any beginning.
    """

    HELP_TEXT = """\
A node is a process of its own: when it dies, this window stays. **Restart** goes on from the last checkpoint.
**Leave it** keeps the window, without a node; `s` starts one later. The screen Logs has more of what it said.
"""

    DEFAULT_CSS = """
    NodeEnded #why { height: auto; max-height: 3; text-style: bold; }
    NodeEnded #log { height: auto; max-height: 5; margin-top: 1; background: $panel; padding: 0 1; }
    NodeEnded #log { scrollbar-size: 1 1; }
    NodeEnded #log.-none { display: none; }
    NodeEnded #lines { height: auto; color: $text-muted; }
    NodeEnded #safe { height: auto; margin-top: 1; }
    NodeEnded #then { height: auto; color: $text-muted; }
    NodeEnded #then.-counting { color: $text-warning; }
    NodeEnded.-tall #why { max-height: 6; }
    NodeEnded.-tall #log { max-height: 18; }
    NodeEnded.-tiny #why, NodeEnded.-tiny #log { max-height: 2; }
    NodeEnded.-tiny #log, NodeEnded.-tiny #safe { margin: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "again(True)", "Restart", id="ended.restart"),
        Binding("l,escape", "again(False)", "Leave it", id="ended.leave"),
        Binding("up,pageup", "scroll(-1)", "Scroll", show=False, id="ended.up"),
        Binding("down,pagedown", "scroll(1)", "Scroll", key_display="↑↓", id="ended.down"),
        Binding("left", "app.focus_previous", "Other", show=False, id="ended.back"),
        Binding("right", "app.focus_next", "Other", show=False, id="ended.on"),
        Binding("c", "copy", "Copy", id="ended.copy"),
        Binding("q", "app.ask_quit", "Quit", id="ended.quit"),
    ]
    # Textual declares them as attributes of the instance.
    HORIZONTAL_BREAKPOINTS: list[tuple[int, str]] | None = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS: list[tuple[int, str]] | None = [(0, "-tiny"), (20, "-short"), (32, "-tall")]  # noqa: RUF012
    AUTO_FOCUS = "#restart"

    clock: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(self, ending: Ending, patience: float | None, often: bool = False) -> None:
        super().__init__()
        self._ending = ending
        self._patience = patience
        self._often = often
        self._until: float | None = None

    def compose(self) -> ComposeResult:
        """Why, the last lines, what is lost, and the buttons."""
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "The node ended" if self._came else "There is no node"
            yield Static(Text(self._reason), id="why")
            with VerticalScroll(id="log", can_focus=False, classes="" if self._ending.lines else "-none"):
                yield Static(Text(self._lines), id="lines")
            yield Static(SAFE if self._came else NEVER_CAME, id="safe", markup=False)
            yield Static(id="then", markup=False)
            with Horizontal(classes="buttons"):
                yield Button("Restart", id="restart")
                yield Button("Leave it", id="leave")
        yield KeyFooter(compact=True)

    def on_mount(self) -> None:
        """Begin to count, and show the newest line."""
        self.call_after_refresh(self.query_one("#log").scroll_end, animate=False)
        if self._patience is not None:
            self._until = self.clock() + self._patience
            self.set_interval(0.2, self._count)
        self._tell()

    def on_resize(self) -> None:
        """Buttons of one line where there are few."""
        for button in self.query(Button):
            button.compact = self.app.size.height < 20

    @property
    def _came(self) -> bool:
        """Whether there was a node that could be used."""
        return self._patience is not None or self._often

    @property
    def _reason(self) -> str:
        reason = printable(self._ending.reason[:MAX_REASON])
        return reason[:1].upper() + reason[1:]

    @property
    def _lines(self) -> str:
        lines = [line for told in self._ending.lines[-MAX_LINES:] for line in told[-MAX_TEXT:].split("\n")]
        return "\n".join(printable(line[:MAX_CHARACTERS]) for line in lines[-MAX_LINES:])

    def _count(self) -> None:
        if self.app.screen is not self:
            # The help is in front: somebody reads.
            self._stop_counting()
        elif self._until is not None and self.clock() >= self._until:
            self._until = None
            self.dismiss(True)
        else:
            self._tell()

    def _tell(self) -> None:
        then = self.query_one("#then", Static)
        then.set_class(self._until is not None, "-counting")
        if self._until is not None:
            left = max(1, math.ceil(self._until - self.clock()))
            then.update(f"It starts again by itself in {counted(left, 'second')}; any key stops the countdown.")
        elif self._patience is not None:
            then.update("The countdown is stopped: it waits for you.")
        else:
            then.update(AGAIN_AND_AGAIN if self._often else NO_USE)

    def on_key(self, event: Key) -> None:
        """Any key but those of the buttons stops the countdown."""
        if event.key not in _BUTTON_KEYS:
            self._stop_counting()

    def on_click(self, event: Click) -> None:
        """So does a click."""
        self._stop_counting()

    def _stop_counting(self) -> None:
        if self._until is not None:
            self._until = None
            self._tell()

    def action_again(self, again: bool) -> None:
        """Start it, or not."""
        self._until = None
        self.dismiss(again)

    def action_scroll(self, lines: int) -> None:
        """Show other lines."""
        log = self.query_one("#log")
        log.scroll_relative(y=lines * max(1, log.size.height - 1), animate=False)

    def action_copy(self) -> None:
        """Copy why and the last lines."""
        self.app.copy_to_clipboard(f"{self._reason}\n{self._lines}")
        self.notify("copied")

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        self.action_again(event.button.id == "restart")
