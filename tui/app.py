"""The terminal app."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from textual import work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.events import Event
from textual.filter import LineFilter
from textual.screen import Screen
from textual.timer import Timer

from sapo_edge import events
from sapo_edge.errors import ConfigError, ExitCode, NoNodeError, SapoError
from sapo_edge.plain import printable
from sapo_edge.tui.keys import FILE as KEYS_FILE
from sapo_edge.tui.keys import read_keys
from sapo_edge.tui.look import ascii, themes
from sapo_edge.tui.look.smallest import at_least_smallest
from sapo_edge.tui.node.keeper import Keeper
from sapo_edge.tui.node.launcher import Ending, Launcher
from sapo_edge.tui.node.state import NodeState, Standing
from sapo_edge.tui.screens.view import VIEWS, Change, View

REDRAW_SECONDS = 0.1
"""At least this long between two drawings of what the node tells."""
STATUS_SECONDS = 2.0
"""Between two requests for the node's status."""
SWITCH_SECONDS = 0.01
"""How long the old screen stays while the new one is arranged: a key is felt to be slow from 0.05 s on."""
WARM_SECONDS = 2.0
"""After the start, when the other screens are loaded: the first key that shows one is then as quick as the second."""


def _load_screens() -> None:
    from importlib import import_module

    for name in (*(f"{view}.screen" for view in VIEWS), "help", "dialogs.quit", "dialogs.ended"):
        import_module(f"sapo_edge.tui.screens.{name}")


def _screen(module: str, name: str) -> Callable[[], Screen[Any]]:
    """A maker of a screen whose module loads when it is first shown."""

    def make() -> Screen[Any]:
        from importlib import import_module

        made = getattr(import_module(f"sapo_edge.tui.screens.{module}.screen"), name)()
        assert isinstance(made, Screen)
        return made

    return make


class SapoApp(App[ExitCode]):
    """The terminal app: shows one node, which lives in a process of its own.

    Args:
        launcher: what the command line offers.
    """

    TITLE = "sapo-edge"
    CSS_PATH = "look/app.tcss"
    ENABLE_COMMAND_PALETTE = True
    MODES: ClassVar[dict[str, Any]] = {
        "dashboard": _screen("dashboard", "Dashboard"),
        "rollouts": _screen("rollouts", "Rollouts"),
        "peers": _screen("peers", "Peers"),
        "chat": _screen("chat", "ChatView"),
        "answer": _screen("answer", "AnswerView"),
        "logs": _screen("logs", "Logs"),
        "settings": _screen("settings", "SettingsView"),
    }
    DEFAULT_MODE = "dashboard"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(number), f"switch_mode('{mode}')", title, show=False, id=f"view.{mode}")
            for number, (mode, title) in enumerate(VIEWS.items(), 1)
        ),
        Binding("p", "pause", "Pause", id="node.pause", tooltip="Have the node rest, or go on"),
        Binding("s", "start_or_stop", "Stop", show=False, id="node.stop", tooltip="Finish the round and stop the node"),
        Binding("f1", "help", "Help", priority=True, id="app.help_anywhere", tooltip="Explain what is in front"),
        Binding("question_mark", "help", "Help", show=False, id="app.help", tooltip="Explain what is in front"),
        Binding("q", "ask_quit", "Quit", id="app.quit"),
        Binding("ctrl+q,ctrl+c", "ask_quit", "Quit", show=False, priority=True, id="app.quit_anywhere"),
        Binding("ctrl+p", "command_palette", "Commands", show=False, priority=True, id="app.palette"),
    ]

    def __init__(self, launcher: Launcher, environ: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.launcher = launcher
        self.state = NodeState()
        self.keeper = Keeper(self)
        self._environ = environ
        self._plain = [ascii.AsciiFilter()] if ascii.needed(environ) else []
        self._changed = Change(0)
        self._redraw: Timer | None = None
        self.register_theme(themes.DARK)
        self.register_theme(themes.LIGHT)
        self.choose_theme()

    async def on_event(self, event: Event) -> None:
        """Draw nothing too small."""
        await super().on_event(at_least_smallest(event))

    def delay_update(self, delay: float = SWITCH_SECONDS) -> None:
        """Wait for a moment before anything is drawn, and not for the twentieth of a second that Textual would."""
        super().delay_update(min(delay, SWITCH_SECONDS))

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Textual's own, and plain ASCII where the terminal has nothing else."""
        return [*super().get_line_filters(), *self._plain]

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """What the command palette offers."""
        from sapo_edge.tui.commands import node_commands

        yield from node_commands(self)
        for command in super().get_system_commands(screen):
            if command.title != "Quit":
                yield command

    def on_mount(self) -> None:
        """Ask for consent if nobody has given it, then look for a node."""
        self._load_keys()
        self.theme_changed_signal.subscribe(self, lambda theme: self._keep_theme(theme.name))
        self.set_interval(STATUS_SECONDS, self._poll)
        self.set_timer(WARM_SECONDS, lambda: self.run_worker(_load_screens, thread=True, group="load"))
        if self.launcher.consented():
            self.begin()
        else:
            from sapo_edge.tui.screens.first_run.screen import FirstRun

            first_run = FirstRun(self.launcher)
            self.push_screen(first_run, lambda agreed: self.begin() if agreed else self.exit(ExitCode.DONE))

    def on_unmount(self) -> None:
        """Let go of the node, which goes on."""
        self.keeper.close()

    def begin(self) -> None:
        """Look for a node, and start one if there is none."""
        self.run_worker(self.keeper.run(), name="keeper", exclusive=True, group="keeper")

    # What the keeper and the node tell.

    def node_event(self, event: events.Event) -> None:
        """Take in an event of the node."""
        self.state.happened(event)
        change = Change.EVENT
        match event:
            case events.Progress():
                change = Change.PROGRESS
            case events.RoundFinished() | events.HeldOut() | events.NodeStarted():
                change |= Change.ROUND
            case events.Paused():
                change |= Change.STATUS
            case _:
                pass
        self._mark(change)

    def node_standing(self) -> None:
        """The node was found, lost, or is being started."""
        self._mark(Change.ALL)

    async def ask_ended(self, ending: Ending | None, patience: float | None) -> None:
        """Say that the node ended without being asked, and offer to start it again.

        Args:
            ending: how it ended.
            patience: seconds after which it starts by itself; None if it doesn't.
        """
        from sapo_edge.tui.screens.dialogs.ended import NodeEnded

        assert ending is not None
        if await self.push_screen_wait(NodeEnded(ending, patience, self.keeper.often)):
            self.keeper.start()

    async def request(self, method: str, params: Mapping[str, Any] | None = None, timeout: float = 10.0) -> Any:
        """Ask the node.

        Raises:
            SapoError: if there is none, or it refuses.
        """
        if self.keeper.link is None:
            raise NoNodeError("no node runs", "start one with s")
        return await self.keeper.link.request(method, params, timeout)

    def _mark(self, change: Change) -> None:
        """Remember what is new, and draw it soon: a node may tell more than a terminal can show."""
        self._changed |= change
        if self._redraw is None:
            self._redraw = self.set_timer(REDRAW_SECONDS, self._draw)

    def _draw(self) -> None:
        self._redraw = None
        change, self._changed = self._changed, Change(0)
        for screen in reversed(self.screen_stack):
            if isinstance(screen, View):
                screen.refresh_node(change)
        if change & Change.STANDING and self.screen_stack:
            # Only then can other things be done, and each time the footer is made anew. While the app ends there is
            # no screen.
            self.refresh_bindings()

    def _poll(self) -> None:
        """Ask for the node's status now and then: memory, peers and refusals come in no event."""
        if self.state.standing is Standing.ATTACHED and not self._busy("poll"):
            self.run_worker(self._ask_status(), group="poll")

    async def _ask_status(self) -> None:
        with contextlib.suppress(SapoError):
            # A node that is gone tells so on the other connection.
            self.state.told(await self.request("status"))
            self._mark(Change.STATUS)

    def _busy(self, group: str) -> bool:
        """Whether a worker of a group still waits for the node: one that is stuck holds up nothing else."""
        return any(worker.group == group and not worker.is_finished for worker in self.workers)

    # What the user asks for.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide or dim what can't be done now."""
        if action == "command_palette":
            # A dialog wants its answer first; a screen that was switched to would hide it.
            return not (self.screen_stack and self.screen.is_modal)
        if action == "pause":
            return True if self.state.standing is Standing.ATTACHED else None
        return True

    def action_pause(self) -> None:
        """Have the node rest, or go on if it rests."""
        if not self._busy("ask"):
            self._ask("resume" if self.state.paused else "pause")

    def action_start_or_stop(self) -> None:
        """Start a node if none runs; else have it finish its round and end."""
        if self.state.standing is Standing.ENDED:
            self.keeper.start()
        elif self.state.standing is Standing.ATTACHED and not self._busy("ask"):
            self._ask("stop", {"when": "after_round"}, "the node finishes its round, saves, and stops")

    @work(group="ask")
    async def _ask(self, method: str, params: Mapping[str, Any] | None = None, done: str = "") -> None:
        try:
            await self.request(method, params)
            if done:
                self.notify(done)
            self.state.told(await self.request("status"))
        except SapoError as error:
            self.show_error(error)
        self._mark(Change.STATUS)

    def action_help(self) -> None:
        """Explain what is in front and list its keys; once more, close that again."""
        from sapo_edge.tui.screens.help import HelpScreen

        if isinstance(self.screen, HelpScreen):
            self.screen.dismiss()
        else:
            self.push_screen(HelpScreen.of(self.screen))

    def action_ask_quit(self) -> None:
        """Quit; ask what becomes of the node if nobody has said it for good."""
        from sapo_edge.tui.screens.dialogs.quit import leave

        leave(self)

    def show_error(self, error: SapoError) -> None:
        """Show an error with its remedy."""
        told = printable(f"{error.message}\n{error.remedy}", lines=True)
        self.notify(told, title="Not done", severity="error", markup=False)

    # What the owner chose.

    def choose_theme(self) -> None:
        """Show the theme of the settings, or what fits the terminal."""
        wanted = str(self.launcher.setting("theme") or "")
        self.theme = wanted if wanted in self.available_themes else themes.fitting(self._environ)

    def _keep_theme(self, name: str) -> None:
        """Remember a theme that was chosen in the palette."""
        if name == str(self.launcher.setting("theme") or themes.fitting(self._environ)):
            return
        try:
            self.launcher.set("theme", name)
        except ConfigError as error:
            self.show_error(error)

    def _load_keys(self) -> None:
        file = self.launcher.paths.config / KEYS_FILE
        if not file.exists():
            return
        # It loads every screen.
        from sapo_edge.tui.commands import binding_ids

        try:
            self.set_keymap(read_keys(file, binding_ids(self)))
        except ConfigError as error:
            self.show_error(error)
