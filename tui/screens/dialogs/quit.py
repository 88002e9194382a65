"""Quitting the app: the node goes on or ends, as its owner says once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from sapo_edge.errors import ConfigError, ExitCode, SapoError
from sapo_edge.plain import printable
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.widgets.choices import Tick
from sapo_edge.tui.widgets.footer import KeyFooter

if TYPE_CHECKING:
    from sapo_edge.tui.app import SapoApp

Fate = Literal["keep", "stop"]

KEPT = """\
The node goes on in the background.
`sapo` comes back to it, `sapo status` tells how it is, `sapo stop` ends it."""
STOPPED = "The node finishes its round, saves, and ends. `sapo` starts it again."
STOP_SECONDS = 5.0
"""How long a node may take to hear that it is to stop."""
START_SECONDS = 0.25
"""Between two looks whether a node that starts can be asked yet."""
GROUP = "quit"
"""Of the worker that leaves."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the owner said: what becomes of the node, and whether that holds from now on."""

    choice: Fate
    remember: bool


class Quit(ModalScreen[Answer | None]):
    """Asks what becomes of the node. Dismissed with None if the app stays.

    Args:
        failed: why the node could not be asked to stop, if that was tried.
    """

    HELP_TEXT = """\
**Let it go on learning**: the node stays in the background until `sapo stop` or until the machine is shut down; `sapo`
comes back to it. **Stop it after this round**: it finishes the round, saves a checkpoint, and ends.
"""

    DEFAULT_CSS = """
    Quit #asked, Quit #failed, Quit #later { height: auto; }
    Quit #failed { color: $text-error; margin-bottom: 1; }
    Quit Tick { margin-top: 1; }
    Quit #later { color: $text-muted; padding-left: 4; }
    Quit Button { min-width: 10; }
    Quit.-slim .buttons { layout: vertical; align-horizontal: left; }
    Quit.-slim Button { margin-left: 0; width: 100%; }
    Quit.-tiny Tick { margin-top: 0; }
    Quit.-slim #later { padding-left: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k", "leave('keep')", "Let it go on", id="quit.keep"),
        Binding("s", "leave('stop')", "Stop it", id="quit.stop"),
        Binding("left,up", "app.focus_previous", "Other", show=False, id="quit.back"),
        Binding("right,down", "app.focus_next", "Other", key_display="←→", id="quit.on"),
        Binding("r", "remember", "Remember", id="quit.remember"),
        Binding("escape", "stay", "Cancel", id="quit.cancel"),
    ]
    # Textual declares them as attributes of the instance.
    HORIZONTAL_BREAKPOINTS: list[tuple[int, str]] | None = [(0, "-slim"), (72, "-narrow"), (100, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS: list[tuple[int, str]] | None = [(0, "-tiny"), (20, "-short"), (32, "-tall")]  # noqa: RUF012
    AUTO_FOCUS = "#keep"

    def __init__(self, failed: str = "") -> None:
        super().__init__()
        self._failed = failed

    def compose(self) -> ComposeResult:
        """The question, the tick, and the buttons."""
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "Quit"
            if self._failed:
                yield Static(f"✗ {self._failed}", id="failed", markup=False)
            yield Static(
                "The node is a process of its own and can go on learning without this window. Shall it?",
                id="asked",
                markup=False,
            )
            yield Tick("remember: don't ask again", not self._failed, id="remember")
            yield Static("The setting on_quit (key 7) changes it.", id="later", markup=False)
            with Horizontal(classes="buttons"):
                yield Button("Let it go on learning", id="keep")
                yield Button("Stop it after this round", id="stop")
                yield Button("Cancel", id="cancel")
        yield KeyFooter(compact=True)

    def on_resize(self) -> None:
        """Buttons of one line where there are few."""
        for button in self.query(Button):
            button.compact = self.app.size.height < 20

    def action_leave(self, choice: Fate) -> None:
        """Answer."""
        self.dismiss(Answer(choice, self.query_one(Tick).value))

    def action_stay(self) -> None:
        """Don't quit."""
        self.dismiss(None)

    def action_remember(self) -> None:
        """Change the tick."""
        self.query_one(Tick).action_change()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "keep":
            self.action_leave("keep")
        elif event.button.id == "stop":
            self.action_leave("stop")
        else:
            self.action_stay()


def leave(app: SapoApp) -> None:
    """Quit; ask first what becomes of the node, unless there is none or its owner has said so for good.

    Asked for again while it asks or waits for the node, the app ends at once and the node goes on.
    """
    if app.return_value is not None:
        return
    if not _runs(app):
        app.exit(ExitCode.DONE)
    elif any(worker.group == GROUP and not worker.is_finished for worker in app.workers):
        _keep(app)
    else:
        app.run_worker(_leave(app), name="quit", exclusive=True, group=GROUP)


async def _leave(app: SapoApp) -> None:
    wanted = await asyncio.to_thread(app.launcher.setting, "on_quit")
    answer = Answer(wanted, False) if wanted in ("keep", "stop") else await app.push_screen_wait(Quit())
    while True:
        if answer is None:
            return
        remembered = await _remember(app, answer)
        if not _runs(app):
            app.exit(ExitCode.DONE, message=remembered or None)
            return
        if answer.choice == "keep":
            _keep(app, remembered)
            return
        try:
            await _stop(app)
        except SapoError as error:
            answer = await app.push_screen_wait(Quit(printable(f"{error.message}: {error.remedy}")))
        else:
            app.exit(ExitCode.DONE, message=_lines(STOPPED, remembered))
            return


async def _stop(app: SapoApp) -> None:
    """Ask the node to stop after its round.

    Raises:
        SapoError: if it can't be asked.
    """
    if app.state.standing is Standing.STARTING:
        app.notify("It is asked to stop as soon as it answers. Quit again to leave it running.", markup=False)
        while app.state.standing is Standing.STARTING:
            await asyncio.sleep(START_SECONDS)
    if app.state.standing is Standing.ATTACHED:
        await app.request("stop", {"when": "after_round"}, STOP_SECONDS)


async def _remember(app: SapoApp, answer: Answer) -> str:
    """Write an answer down if it is to be remembered; what went wrong, in words."""
    if not answer.remember:
        return ""
    try:
        await asyncio.to_thread(app.launcher.set, "on_quit", answer.choice)
    except ConfigError as error:
        return printable(f"The answer could not be remembered: {error}.")
    return ""


def _keep(app: SapoApp, told: str = "") -> None:
    app.exit(ExitCode.DONE, message=_lines(KEPT, told))


def _lines(*texts: str) -> str:
    return "\n".join(text for text in texts if text)


def _runs(app: SapoApp) -> bool:
    return app.state.standing in (Standing.STARTING, Standing.ATTACHED)
