"""The terminal app."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from platformdirs import user_downloads_path
from rich.theme import Theme
from textual import work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.events import DeliveryFailed, Event
from textual.filter import LineFilter, Monochrome, NoColor
from textual.screen import Screen
from textual.timer import Timer
from textual.widget import AwaitMount

from sapo_edge import events
from sapo_edge.errors import ConfigError, ExitCode, NoNodeError, SapoError
from sapo_edge.node.background import Ended
from sapo_edge.plain import counted, printable
from sapo_edge.tui.look import terminal, themes
from sapo_edge.tui.node.history import MAX_POINTS, History
from sapo_edge.tui.node.keeper import Keeper
from sapo_edge.tui.node.launcher import Launcher
from sapo_edge.tui.node.state import NodeState, Standing
from sapo_edge.tui.screens.view import VIEWS, Change, View

CLICK_SECONDS = 0.1
"""Seconds after a mouse button's release in which a double click has selected its text."""
COPY_OR_QUIT = "Copy the selected text; quit if none is selected"
CURVE_EVENTS = (events.RoundFinished, events.HeldOut, events.HeadStart, events.NodeStarted, events.RolledBack)
KEYS_FILE = "keys.toml"
"""Keys that the user has changed, beside `config.toml`."""
MOST_BEFORE = 16
"""Most main screens that Esc goes back."""
MAIN = (*VIEWS, "runs")
SCREENS = (*(f"{mode}.screen" for mode in MAIN), "help", "dialogs.quit", "dialogs.ended")
"""Modules of the screens that are loaded before somebody asks for them."""
REDRAW_SECONDS = 0.1
"""Shortest time in seconds between two updates of the screen from the node."""
STATUS_SECONDS = 2.0
"""Seconds between two requests for the node's status."""
SLOW_POLLS = 5
"""Requests for the status for each look at the machine and at the node's settings, which change seldom."""
SWITCH_SECONDS = 0.01
"""How long the old screen stays while the new one is laid out: a response after 0.05 s feels slow."""
STOP = "It finishes its round and saves it: nothing is lost. Later, s starts it again."
STOP_AHEAD = "In a head start, what it learned since its last check is learned again when s starts it."
STOPPING = "The node finishes its round, saves, and stops."
WARM_SECONDS = 2.0
"""Seconds after the start when the other screens are loaded, so that they appear quickly the first time, too."""


def _view(mode: str) -> View:
    module = import_module(f"sapo_edge.tui.screens.{mode}.screen")
    views = (item for item in vars(module).values() if isinstance(item, type) and issubclass(item, View))
    return next(view for view in views if mode == view.MODE)()


class SapoApp(App[ExitCode]):
    """The terminal app: shows a node, which runs in a process of its own.

    A thread calls `loaded` once all screens are loaded. `news` is what was learned while nobody looked, until the
    dashboard has shown it.
    """

    TITLE = "sapo-edge"
    CSS_PATH = "look/app.tcss"
    MODES: ClassVar[dict[str, Any]] = {mode: partial(_view, mode) for mode in MAIN}
    DEFAULT_MODE = "dashboard"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(number), f"switch_mode('{mode}')", title, show=False, id=f"view.{mode}")
            for number, (mode, title) in enumerate(VIEWS.items(), 1)
        ),
        Binding("p", "pause", "Pause", id="node.pause", tooltip="Pause or resume the node"),
        Binding(
            "s",
            "start_or_stop",
            "Stop",
            show=False,
            id="node.stop",
            tooltip="Stop the node after its round, once you confirm it, or start one",
        ),
        Binding("f1", "help", "Help", priority=True, id="app.help_anywhere", tooltip="Explain this screen"),
        Binding("f2", "words", "Words", show=False, priority=True, id="app.words", tooltip="What the words here mean"),
        Binding("question_mark", "help", "Help", show=False, id="app.help", tooltip="Explain this screen"),
        Binding("q", "ask_quit", "Quit", id="app.quit"),
        Binding("ctrl+q", "ask_quit", "Quit", show=False, priority=True, id="app.quit_anywhere"),
        Binding("ctrl+c", "copy_or_quit", "Copy", show=False, priority=True, id="app.copy", tooltip=COPY_OR_QUIT),
        Binding("escape", "go_back", "Back", show=False, id="view.back", tooltip="Show the screen before"),
        Binding("ctrl+p", "command_palette", "Commands", show=False, priority=True, id="app.palette"),
        Binding("colon", "command_palette", "Commands", show=False, key_display=":", id="app.commands"),
        Binding("ctrl+o", "jump", "Jump", show=False, priority=True, id="app.jump", tooltip="To a part of this screen"),
    ]

    def __init__(
        self, launcher: Launcher, environ: Mapping[str, str] | None = None, loaded: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__()
        self.launcher = launcher
        self._loaded = loaded
        self.state = NodeState()
        self.keeper = Keeper(launcher, self.state, self.node_event, self.connection_changed, self.show_ending)
        self._environ = os.environ if environ is None else environ
        self._own_filters: list[LineFilter] = [terminal.ControlFilter()]
        if terminal.lacks_unicode(self._environ):
            self._own_filters.append(terminal.AsciiFilter())
        self._pending = Change(0)
        self._redraw: Timer | None = None
        self._standing = self.state.standing
        self._followed = False
        self._before: deque[str] = deque(maxlen=MOST_BEFORE)
        self._selected = ""
        self._polls = 0
        self.news = ""
        self._is_away = False
        self.register_theme(themes.DARK)
        self.register_theme(themes.LIGHT)
        self.choose_theme()
        self.stylesheet.set_variables(self.get_css_variables())
        self._styled = self.theme
        # Rich shows code cyan on black.
        self.console.push_theme(Theme({"markdown.code": "bold"}))

    async def on_event(self, event: Event) -> None:
        """Handle a terminal that is too small like the smallest usable one."""
        await super().on_event(terminal.at_least_smallest(event))

    def delay_update(self, delay: float = SWITCH_SECONDS) -> None:
        """Wait less than Textual's default of 0.05 s before drawing a new screen."""
        super().delay_update(min(delay, SWITCH_SECONDS))

    def refresh_css(self, animate: bool = True) -> None:
        """Apply another theme. Textual calls this twice for each new screen, too, which has its styles already."""
        if self.theme != self._styled:
            self._styled = self.theme
            super().refresh_css(animate)

    def get_line_filters(self) -> Sequence[LineFilter]:
        filters = super().get_line_filters()
        if self.no_color:
            # Textual chooses once, before it knows the theme; greys of a terminal's own colours are all black.
            gray = NoColor() if self.native_ansi_color else Monochrome()
            filters = [gray if isinstance(item, NoColor | Monochrome) else item for item in filters]
        return [*filters, *self._own_filters]

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        from sapo_edge.tui.commands import node_commands, saving_commands, screen_commands

        yield from node_commands(self)
        yield from screen_commands(self, screen)
        yield from saving_commands(self, screen)
        for command in super().get_system_commands(screen):
            if command.title not in ("Quit", "Screenshot"):
                yield command

    def on_mount(self) -> None:
        self._load_keys()
        self.theme_changed_signal.subscribe(self, lambda theme: self._keep_theme(theme.name))
        self.set_interval(STATUS_SECONDS, self._poll)
        self.set_timer(WARM_SECONDS, lambda: self.run_worker(self._load_screens, thread=True, group="load"))
        if self.launcher.consented():
            self.begin()
        else:
            from sapo_edge.tui.screens.first_run.screen import FirstRun

            first_run = FirstRun(self.launcher)

            def decided(agreed: bool | None) -> None:
                if not agreed:
                    self.exit(ExitCode.DONE)
                    return
                self.begin()
                if first_run.at_login:
                    from sapo_edge.tui.commands import start_at_login

                    start_at_login(self)

            self.push_screen(first_run, decided)

    def _load_screens(self) -> None:
        for name in SCREENS:
            import_module(f"sapo_edge.tui.screens.{name}")
        self._loaded()

    def _handle_exception(self, error: Exception) -> None:
        # While the app ends, a screen that was just opened may have some of its widgets, or none any more.
        if not (self._exit and isinstance(getattr(error, "error", error), NoMatches)):
            super()._handle_exception(error)

    async def _shutdown(self) -> None:
        # Textual removes the widgets first; what a worker then finds in their place is nothing.
        self.workers.cancel_all()
        await super()._shutdown()

    def on_unmount(self) -> None:
        if self._standing is Standing.ATTACHED:
            self._keep_looked()
        self.keeper.close()

    def begin(self) -> None:
        # After the first picture, which needs no journal.
        self.call_after_refresh(self._read_news)
        self.run_worker(self.keeper.run(), name="keeper", exclusive=True, group="keeper")

    def node_event(self, event: events.Event) -> None:
        self.state.apply(event)
        if isinstance(event, events.Progress):
            self._mark(Change.PROGRESS)
        elif isinstance(event, CURVE_EVENTS):
            self._mark(Change.EVENT | Change.ROUND)
        else:
            self._mark(Change.EVENT | Change.STATUS if isinstance(event, events.Paused) else Change.EVENT)
        if self.state.history.is_long and not self.busy("history"):
            self._read_history()

    @work(group="history")
    async def _read_history(self) -> None:
        """Read the history of a long run again, in fewer points. Without an answer, the next round tries again."""
        with contextlib.suppress(SapoError):
            history = History.from_reply(await self.request("history", {"points": MAX_POINTS}))
            history.add_newer(self.state.history)
            self.state.history = history

    def connection_changed(self) -> None:
        """Redraw after the node was found, lost, or is starting; show the results of a run that has ended."""
        before, self._standing = self._standing, self.state.standing
        # What a starting node says comes four times a second, too often to read files again.
        self._mark(Change.PROGRESS if before is self._standing is Standing.STARTING else Change.ALL)
        if before is not Standing.ATTACHED:
            self._polls = 0
        if before is Standing.ATTACHED is not self._standing:
            self._keep_looked()
            self._is_away = True
        elif self._is_away and self._standing is Standing.ATTACHED:
            self._is_away = False
            self._read_news()
        if before is not self._standing is Standing.ENDED and self.state.ending.done:
            if self._followed:
                self._notify_desktop(f"sapo: {self.state.ending.reason}")
            self._show_results()
        # A busy node leaves the app before it ends, and the app then looks for it first.
        if self._standing in (Standing.ATTACHED, Standing.ENDED):
            self._followed = self._standing is Standing.ATTACHED

    @work(group="news", exclusive=True)
    async def _read_news(self) -> None:
        try:
            self.news = await asyncio.to_thread(self.launcher.news)
        except SapoError as error:
            self.show_error(error)
            return
        self._mark(Change.EVENT)

    def _keep_looked(self) -> None:
        # Otherwise the next sentence begins earlier, and the next look says why this could not be written.
        with contextlib.suppress(SapoError):
            self.launcher.looked(self.state.round)

    def _notify_desktop(self, text: str) -> None:
        """Show a notice outside of the terminal, which may be behind other windows, if the user wants one."""
        if self.launcher.setting("desktop_notice") != "on" or self._driver is None:
            return
        if not (self.is_headless or self.is_web):
            self._driver.write(terminal.desktop_notice(text, self._environ))

    def _show_results(self) -> None:
        """Show what a finished run has learned, unless the user is in a dialog or types."""
        # TextArea's module is large, and the dashboard needs none.
        from textual.widgets import Input, TextArea

        if self.screen.is_modal or isinstance(self.focused, Input | TextArea):
            self.notify("The run has ended: key 8 shows what was learned.", timeout=10)
        else:
            self.switch_mode("results")

    def show_ending(self, ending: Ended, patience: float | None, often: bool) -> None:
        """Report an unexpected end, and offer another start, which comes by itself after `patience` seconds, if any."""
        from sapo_edge.tui.screens.dialogs.ended import NodeEnded

        self._notify_desktop(f"sapo: {ending.reason}")
        for screen in self.screen_stack:
            if isinstance(screen, NodeEnded):
                # The user has not read yet why the node before ended.
                screen.show(ending, patience, often)
                return
        dialog = NodeEnded(ending, patience, often, self.keeper.start)
        self.push_screen(dialog, lambda again: self.keeper.start() if again else None)

    async def request(self, method: str, params: Mapping[str, Any] | None = None, timeout: float = 10.0) -> Any:
        """Send a request to the node; SapoError if none runs, or it refuses the request."""
        if self.keeper.link is None:
            if self.state.standing is Standing.ENDED:
                raise NoNodeError("no node runs", "start one with s")
            raise NoNodeError("no node answers yet", "try again when it runs: the first line says so")
        reply = await self.keeper.link.request(method, params, timeout)
        if method == "stop":
            # The next status comes seconds later.
            self.state.status = {**self.state.status, "state": "stopping"}
            self._mark(Change.STATUS)
        return reply

    def _mark(self, change: Change) -> None:
        """Schedule an update of the screen: a node may send more events than a terminal can show."""
        self._pending |= change
        if self._redraw is None:
            self._redraw = self.set_timer(REDRAW_SECONDS, self._draw)

    def _draw(self) -> None:
        self._redraw = None
        change, self._pending = self._pending, Change(0)
        for screen in reversed(self.screen_stack):
            if isinstance(screen, View):
                screen.refresh_node(change)
        if change & Change.STANDING and self.screen_stack:
            # Only then do the keys of the footer change. There is no screen while the app ends.
            self.refresh_bindings()

    def _poll(self) -> None:
        """Request the node's status: no event has memory, peers and rejections. Look after one that is starting."""
        ask = {Standing.ATTACHED: self._ask_status, Standing.STARTING: self._look_at_machine}.get(self.state.standing)
        if ask is not None and not self.busy("poll"):
            self.run_worker(ask(), group="poll")

    async def _ask_status(self) -> None:
        with contextlib.suppress(SapoError):
            # The other connection reports a node that has ended.
            self.state.set_status(await self.request("status"))
            # A share of the processor needs two looks.
            if self._polls < 2 or self._polls % SLOW_POLLS == 0:
                await self._look_at_machine()
                # Any client of the node may change them.
                self.state.settings = (await self.request("settings"))["all"]
            self._polls += 1
            self._mark(Change.STATUS)

    async def _look_at_machine(self) -> None:
        if self.current_mode == self.DEFAULT_MODE:
            pid = int(self.state.status.get("pid") or 0) if self.state.standing is Standing.ATTACHED else 0
            self.state.load = await asyncio.to_thread(self.launcher.load, pid)

    def busy(self, group: str) -> bool:
        """Whether a worker of a group still waits for the node, which may be stuck, or for the user."""
        return any(worker.group == group and not worker.is_finished for worker in self.workers)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "command_palette":
            # Another screen would hide an open dialog.
            return not (self.screen_stack and self.screen.is_modal)
        if action == "pause":
            return True if self.state.standing is Standing.ATTACHED else None
        return True

    def action_pause(self) -> None:
        if not self.busy("pause"):
            self.run_worker(self._ask("resume" if self.state.paused else "pause"), group="pause")

    def action_start_or_stop(self) -> None:
        if self.state.standing is Standing.ENDED:
            self.keeper.start()
        elif self.state.stopping:
            self.notify(STOPPING)
        elif self.state.standing is Standing.ATTACHED:
            from sapo_edge.tui.widgets.dialog import Ask

            ahead = self.state.clock.phase == "head_start"
            text, label = (STOP_AHEAD, "Stop") if ahead else (STOP, "Stop after this round")
            ask = Ask("Stop the node?", text, labels=(label, "Keep running"), key="s")
            self.push_screen(ask, lambda agreed: None if agreed is None else self._stop())

    def _stop(self) -> None:
        if self.state.standing is Standing.ATTACHED and not self.busy("stop"):
            self.run_worker(self._ask("stop", {"when": "after_round"}, STOPPING), group="stop")

    async def _ask(self, method: str, params: Mapping[str, Any] | None = None, done: str = "") -> None:
        try:
            await self.request(method, params)
        except SapoError as error:
            self.show_error(error)
            return
        if done:
            self.notify(done)
        # Not awaited: the node may answer it slowly, and the next key must not wait for that.
        self._poll()

    def action_copy_or_quit(self) -> None:
        text = getattr(self.focused, "selected_text", "") or self.screen.get_selected_text()
        if not text:
            self.action_ask_quit()
            return
        self._copy(text)
        self.screen.clear_selection()

    def on_text_selected(self) -> None:
        """Copy what the mouse has selected, also by a double click, which selects after this."""
        self.set_timer(CLICK_SECONDS, self._copy_selection)

    def _copy_selection(self) -> None:
        if not self.is_running or not self.screen_stack:
            return
        before, self._selected = self._selected, self.screen.get_selected_text() or ""
        if self._selected not in ("", before):
            self._copy(self._selected)

    def save(self, content: bytes, name: str) -> None:
        """Write a file into the folder for downloads, or the home directory without one; a browser downloads it."""
        if self.is_web:
            # The browser says where.
            self.deliver_binary(io.BytesIO(content), save_filename=name, name="saved")
            return
        # Textual 8.2 opens every file as text here, and says that it is saved before all is written.
        folder = user_downloads_path()
        path = (folder if folder.is_dir() else Path.home()) / name
        try:
            path.write_bytes(content)
        except OSError as error:
            self.on_delivery_failed(DeliveryFailed("", error, "saved"))
        else:
            self.notify(f"saved as {printable(path)}", markup=False)

    def on_delivery_failed(self, event: DeliveryFailed) -> None:
        if event.name == "saved":
            self.notify(printable(event.exception), title="Not saved", severity="error", markup=False)

    def _copy(self, text: str) -> None:
        self.copy_to_clipboard(text)
        self.notify(f"copied {counted(len(text), 'character')}", timeout=3)

    def switch_mode(self, mode: str) -> AwaitMount:
        if mode != self.current_mode and self.current_mode in VIEWS:
            self._before.append(self.current_mode)
        return super().switch_mode(mode)

    async def ask_both(self, question: str) -> None:
        """Show the chat with a question that is not sent yet, for the model before training and the one of now."""
        from sapo_edge.tui.screens.chat.screen import ChatView

        await self.switch_mode("chat")
        if isinstance(self.screen, ChatView):
            self.screen.propose(question)

    async def action_go_back(self) -> None:
        if self._before and not self.screen.is_modal:
            mode = self._before.pop()
            await super().switch_mode(mode)

    def action_help(self) -> None:
        from sapo_edge.tui.screens.help import HelpScreen

        self._show_or_close(HelpScreen, self.screen, self.launcher.paths.config / KEYS_FILE)

    def action_words(self) -> None:
        from sapo_edge.tui.screens.help import WordsScreen

        self._show_or_close(WordsScreen, self.screen)

    def _show_or_close(self, kind: type[Screen[None]], *arguments: Any) -> None:
        if isinstance(self.screen, kind):
            self.screen.dismiss(None)
        else:
            self.push_screen(kind(*arguments))

    def action_jump(self) -> None:
        from sapo_edge.tui.screens.jump import Jump

        if isinstance(self.screen, Jump):
            self.screen.dismiss(None)
        elif parts := self.screen.focus_chain:
            self.push_screen(Jump(parts), lambda part: part.focus() if part is not None else None)

    def action_ask_quit(self) -> None:
        from sapo_edge.tui.screens.dialogs.quit import leave

        leave(self)

    def show_error(self, error: SapoError) -> None:
        text = printable(f"{error.message}\n{error.remedy}", lines=True)
        self.notify(text, title="Not done", severity="error", markup=False)

    def choose_theme(self) -> None:
        """Apply the theme of the settings, or one that suits the terminal."""
        name = str(self.launcher.setting("theme") or "")
        self.theme = name if name in self.available_themes else themes.default_theme(self._environ)

    def _keep_theme(self, name: str) -> None:
        if name == str(self.launcher.setting("theme") or themes.default_theme(self._environ)):
            return
        try:
            self.launcher.set("theme", name)
        except ConfigError as error:
            self.show_error(error)

    def _load_keys(self) -> None:
        file = self.launcher.paths.config / KEYS_FILE
        # Unlike `Path.exists`, false also for a file in a directory that this user may not enter.
        if not os.path.exists(file):
            return
        # Loads every screen.
        from sapo_edge.tui.commands import binding_ids, read_keys

        try:
            self.set_keymap(read_keys(file, binding_ids(self)))
        except ConfigError as error:
            self.show_error(error)
