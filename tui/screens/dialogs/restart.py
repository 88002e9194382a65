"""Restarts the node, after one question."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from sapo_edge.errors import SapoError
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.settings.words import RUN

if TYPE_CHECKING:
    from sapo_edge.tui.app import SapoApp

Waiting = Sequence[tuple[str, str, str]]
"""Settings that wait for a restart: name, value of the running node, value after it."""
LOOK_SECONDS = 0.2
"""Between two looks whether the node has ended."""
TOLD = "The node finishes its round, saves, stops, and starts again from there. It then has:"
REFUSED = "This belongs to the run: the node will say so and not go on with another value."


class AskRestart(ModalScreen[bool]):
    """Whether to restart the node.

    Args:
        changes: what it is for.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "dismiss(False)", "Not now", id="restart.no"),
        Binding("y", "dismiss(True)", "Restart", id="restart.yes"),
        Binding("left,up", "app.focus_previous", show=False),
        Binding("right,down", "app.focus_next", show=False),
    ]
    DEFAULT_CSS = """
    AskRestart .dialog { overflow-y: auto; }
    AskRestart VerticalScroll { height: auto; max-height: 12; margin-top: 1; scrollbar-size: 1 1; }
    AskRestart VerticalScroll Static { height: auto; }
    AskRestart .refused { color: $text-warning; margin-left: 2; }
    """
    AUTO_FOCUS = "#yes"

    def __init__(self, changes: Waiting) -> None:
        super().__init__()
        self._changes = changes

    def compose(self) -> ComposeResult:
        """What happens, what changes, and two buttons."""
        with Vertical(classes="dialog", id="ask"):
            yield Static(TOLD, markup=False)
            with VerticalScroll(can_focus=False):
                for name, now, then in self._changes:
                    yield Static(f"{name}: {now} → {then}", markup=False)
                    if name in RUN:
                        yield Static(REFUSED, markup=False, classes="refused")
            with Horizontal(classes="buttons"):
                yield Button("Restart", id="yes", compact=True)
                yield Button("Not now", id="no", compact=True)

    def on_mount(self) -> None:
        """Name it."""
        self.query_one("#ask").border_title = "Restart the node?"

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")


async def restart(app: SapoApp, changes: Waiting) -> None:
    """Have the node stop after its round and start it again, if its owner says so; to be called from a worker."""
    if not await app.push_screen_wait(AskRestart(changes)):
        return
    try:
        await app.request("stop", {"when": "after_round"})
    except SapoError as error:
        app.tell(error)
        return
    app.notify("the node finishes its round, saves, and starts again")
    while app.state.standing is Standing.ATTACHED:
        await asyncio.sleep(LOOK_SECONDS)
    ending = app.keeper.ending
    # One that died instead is asked about by the keeper.
    if app.state.standing is Standing.ENDED and ending is not None and ending.expected:
        app.keeper.start()
