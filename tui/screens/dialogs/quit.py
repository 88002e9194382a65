"""Quits the app. The node keeps running or stops, as the user chooses once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from sapo_edge.errors import ConfigError, ExitCode, SapoError
from sapo_edge.plain import printable
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.widgets.dialog import Dialog
from sapo_edge.tui.widgets.small import Tick

if TYPE_CHECKING:
    from sapo_edge.tui.app import SapoApp

Fate = Literal["keep", "stop"]

KEPT = """\
The node keeps running in the background.
`sapo` reopens this app, `sapo status` shows its state, `sapo stop` stops it."""
STOPPED = "The node finishes its round, saves, and stops. `sapo` starts it again."
ENDS = "The node was still starting, and ends. `sapo` starts it again."
STOP_SECONDS = 5.0
"""Time limit in seconds for the node to accept the request to stop."""
START_SECONDS = 0.25
"""Seconds between two checks whether a starting node answers."""
GROUP = "quit"


class Quit(Dialog[tuple[Fate, bool] | None]):
    """Asks whether the node keeps running. Dismissed with that, and whether to remember it; with None if the app stays.

    After an attempt to stop the node, `failed` says why it did not.
    """

    HELP_TEXT = """\
**Keep learning**: the node runs in the background until `sapo stop` or until the computer is shut down; `sapo` opens
this app again. **Stop after this round**: it finishes the round, saves a checkpoint, and stops.
"""

    DEFAULT_CSS = """
    Quit #failed { color: $text-error; margin-bottom: 1; }
    Quit Tick { margin-top: 1; }
    Quit #later { color: $text-muted; padding-left: 4; }
    Quit Button { min-width: 10; }
    Quit.-tiny Tick { margin-top: 0; }
    Quit.-slim #later { padding-left: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k", "decide('keep')", "Keep", id="quit.keep"),
        Binding("s", "decide('stop')", "Stop", id="quit.stop"),
        Binding("left,up", "app.focus_previous", "Other", show=False, id="quit.back"),
        Binding("right,down", "app.focus_next", "Other", key_display="←→", id="quit.on"),
        Binding("r", "remember", "Remember", id="quit.remember"),
        Binding("escape", "dismiss(None)", "Cancel", id="quit.cancel"),
    ]
    BUTTONS: ClassVar = {
        "keep": ("Keep learning", "decide('keep')"),
        "stop": ("Stop after this round", "decide('stop')"),
        "cancel": ("Cancel", "dismiss(None)"),
    }
    AUTO_FOCUS = "#keep"
    heading = "Quit"

    def __init__(self, failed: str = "") -> None:
        super().__init__()
        self._failed = failed

    def body(self) -> ComposeResult:
        if self._failed:
            yield Static(f"✗ {self._failed}", id="failed", markup=False)
        asked = "The node runs in a process of its own. Should it keep learning without this window?"
        yield Static(asked, id="asked", markup=False)
        yield Tick("remember: don't ask again", False, id="remember")
        yield Static("The setting on_quit (key 7) changes it.", id="later", markup=False)

    def action_decide(self, choice: Fate) -> None:
        self.dismiss((choice, self.query_one(Tick).value))

    def action_remember(self) -> None:
        self.query_one(Tick).toggle()


def leave(app: SapoApp) -> None:
    """Quit; ask first whether the node keeps running, unless none does or the setting `on_quit` answers.

    If the user quits again while this asks or waits for the node, the app ends immediately and the node keeps running.
    """
    if app.return_value is not None:
        return
    if not _runs(app):
        app.exit(ExitCode.DONE)
    elif app.busy(GROUP) or app.state.stopping:
        _keep(app)
    else:
        app.run_worker(_leave(app), name="quit", exclusive=True, group=GROUP)


async def _leave(app: SapoApp) -> None:
    fixed = await asyncio.to_thread(app.launcher.setting, "on_quit")
    answer = (fixed, False) if fixed in ("keep", "stop") else await app.push_screen_wait(Quit())
    while answer is not None:
        choice, remember = answer
        warning = await _remember(app, choice) if remember else ""
        if not _runs(app):
            app.exit(ExitCode.DONE, message=warning or None)
            return
        if choice == "keep":
            _keep(app, warning)
            return
        try:
            said = await _stop(app)
        except SapoError as error:
            answer = await app.push_screen_wait(Quit(printable(error)))
        else:
            app.exit(ExitCode.DONE, message=f"{said}\n{warning}".strip())
            return


async def _stop(app: SapoApp) -> str:
    """Ask the node to stop, once it has started if another program starts it; what to say then."""
    if app.state.standing is Standing.STARTING and await asyncio.to_thread(app.launcher.end_start):
        return ENDS
    if app.state.standing in (Standing.STARTING, Standing.LOOKING):
        app.notify("The node stops once it has started. Quit again to leave it running.", markup=False)
        while app.state.standing in (Standing.STARTING, Standing.LOOKING):
            await asyncio.sleep(START_SECONDS)
    if app.state.standing is not Standing.ATTACHED:
        return f"No node runs: {app.state.ended_text}."
    await app.request("stop", {"when": "after_round"}, STOP_SECONDS)
    return STOPPED


async def _remember(app: SapoApp, choice: Fate) -> str:
    """Write the answer into the settings; return a warning if it fails."""
    try:
        await asyncio.to_thread(app.launcher.set, "on_quit", choice)
    except ConfigError as error:
        return printable(f"The answer could not be saved: {error}.")
    return ""


def _keep(app: SapoApp, warning: str = "") -> None:
    said = STOPPED if app.state.stopping else KEPT
    app.exit(ExitCode.DONE, message=f"{said}\n{warning}".strip())


def _runs(app: SapoApp) -> bool:
    # The app looks for a node again whose connection it has lost.
    lost = app.state.standing is Standing.LOOKING and bool(app.state.status)
    return lost or app.state.standing in (Standing.STARTING, Standing.ATTACHED)
