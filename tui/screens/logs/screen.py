"""What the node wrote into its log, read from the file: it is there when the node is not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import ScreenResume
from textual.timer import Timer
from textual.widgets import ContentSwitcher, Input, Static

from sapo_edge.errors import SapoError
from sapo_edge.plain import printable
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.logs.detail import LogDetail
from sapo_edge.tui.screens.logs.reader import LogReader, Place
from sapo_edge.tui.screens.logs.view import LogView
from sapo_edge.tui.screens.logs.window import Level, LogWindow
from sapo_edge.tui.screens.logs.words import moment
from sapo_edge.tui.screens.view import Change, View
from sapo_edge.tui.widgets.find_line import FindLine

POLL_SECONDS = 1.0
"""Between two looks at the file."""
SIDEWAYS = 12
"""Columns by which an arrow scrolls lines that are not wrapped."""


class Logs(View):
    """The log, newest record last."""

    MODE = "logs"
    AUTO_FOCUS = "#lines"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "follow", "Follow", id="logs.follow", tooltip="Stay at the newest record, or stop staying there"),
        Binding("l", "level", "Level", id="logs.level", tooltip="Show all, then warnings and errors, then errors"),
        Binding("slash", "search", "Search", key_display="/", id="logs.search", tooltip="Find text in the whole log"),
        Binding("n", "match(True)", "Next match further up", show=False, id="logs.match_above"),
        Binding("N", "match(False)", "Next match further down", show=False, id="logs.match_below"),
        Binding("enter", "open", "The record in full, as it is in the file", show=False, id="logs.open"),
        Binding("w", "wrap", "Wrap long lines, or cut them off", show=False, id="logs.wrap"),
        Binding("c", "copy", "Copy the selected text, or the record under the cursor", show=False, id="logs.copy"),
        Binding("up,k", "move(-1)", "One record up", show=False, id="logs.up"),
        Binding("down,j", "move(1)", "One record down", show=False, id="logs.down"),
        Binding("pageup", "page(-1)", "One screen up", show=False, id="logs.page_up"),
        Binding("pagedown", "page(1)", "One screen down", show=False, id="logs.page_down"),
        Binding("home,g", "start", "The oldest record that is kept", show=False, id="logs.oldest"),
        Binding("end,G", "end", "The newest record, and follow", show=False, id="logs.newest"),
        Binding("left", "sideways(-1)", "Scroll unwrapped lines to the left", show=False, id="logs.left"),
        Binding("right", "sideways(1)", "Scroll unwrapped lines to the right", show=False, id="logs.right"),
        Binding("escape", "leave", "Leave the search", show=False, id="logs.leave"),
    ]
    DEFAULT_CSS = """
    Logs #log { height: 1fr; padding: 0; }
    Logs #parts { height: 1fr; }
    Logs #none { height: 1fr; padding: 1 2; color: $text-muted; }
    """
    HELP_TEXT = """\
What the node wrote into its log: what happened in words, and everything that its parts warned of. The file is read
itself, so this works when no node runs.

The newest record is **followed** until you scroll up; `f` or `End` follows again. `l` leaves out what is no warning,
then what is no error. `/` searches the whole log, the files before the newest too: `n` goes on further up, `N` further
down. `Enter` shows a record as it is in the file, with all its lines.
"""

    def __init__(self) -> None:
        super().__init__()
        self._window: LogWindow | None = None
        self._timer: Timer | None = None
        self._query = ""
        self._fault = ""
        self._reading_more = False

    @property
    def window(self) -> LogWindow:
        """What is in memory of the log."""
        if self._window is None:
            self._window = LogWindow(LogReader(self.sapo.launcher.paths.log))
        return self._window

    def content(self) -> ComposeResult:
        """The records, and a line to search with."""
        with Vertical(id="log", classes="panel"):
            with ContentSwitcher(initial="lines", id="parts"):
                yield LogView(id="lines")
                yield Static(id="none", markup=False)
            yield FindLine("text to find in the whole log")

    def on_mount(self) -> None:
        """Look for something new now and then."""
        self._timer = self.set_interval(POLL_SECONDS, self._poll, pause=True)

    def on_screen_resume(self, event: ScreenResume) -> None:
        """It is in front: look at the file again."""
        if self._timer is not None:
            self._timer.resume()
        self._poll()

    def on_screen_suspend(self) -> None:
        """Nobody looks: leave the file alone."""
        if self._timer is not None:
            self._timer.pause()

    def node_changed(self, change: Change) -> None:
        """What to do without a log depends on whether a node runs."""
        if change & Change.STANDING and not self.window.exists:
            self._tell()

    # Reading.

    @work(group="log-poll")
    async def _poll(self) -> None:
        lines = self._lines
        await self._read(lambda: self.window.poll(follow=lines.following))

    @work(group="log-read", exclusive=True)
    async def _load(self, reading: Callable[[], Awaitable[bool | None]], cursor: Place | None = None) -> None:
        await self._read(reading, cursor)

    async def _read(self, reading: Callable[[], Awaitable[bool | None]], cursor: Place | None = None) -> None:
        """Have something read and show it; an error stands where the records would."""
        try:
            changed = await reading()
            self._fault = ""
        except SapoError as error:
            changed = True
            self._fault = f"{printable(error.message)}\n\nTo see it here, {printable(error.remedy)}."
        if changed is not False and self.is_mounted:
            self._lines.show(self.window.records, cursor=cursor)
            self._tell()

    @on(LogView.Edge)
    def _go_on(self, event: LogView.Edge) -> None:
        window = self.window
        if event.up and not window.at_start:
            self._more(window.older)
        elif not event.up and not window.at_end:
            self._more(window.newer)

    @work(group="log-more", exclusive=False)
    async def _more(self, reading: Callable[[], Awaitable[None]]) -> None:
        if self._reading_more:
            return
        self._reading_more = True
        try:
            await self._read(reading)
        finally:
            self._reading_more = False

    # Telling.

    @on(LogView.Changed)
    def _tell(self) -> None:
        """Say in the frame what is shown."""
        window, lines = self.window, self._lines
        title = ["Log" if window.level is Level.ALL else f"Log: {window.level}"]
        if self._query:
            title.append(f"search: {self._query}")
        if not lines.wrapped:
            title.append("not wrapped")
        told = [moment(lines.record, "%Y-%m-%d")] if lines.record is not None else []
        told.append("following" if lines.following else "not following: f follows again")
        if not window.at_end:
            told.append("more below")
        if self._find_line.is_open:
            told = ["Enter searches upwards", "Esc leaves"]
        frame = self.query_one("#log")
        frame.border_title = Content(printable("  ·  ".join(title)))
        frame.border_subtitle = Content("  ·  ".join(part for part in told if part))
        startable = self.sapo.state.standing is Standing.ENDED
        nothing = self._fault or ("" if lines.record is not None else window.nothing(startable=startable))
        self.query_one("#none", Static).update(nothing)
        self.query_one("#parts", ContentSwitcher).current = "none" if nothing else "lines"

    # What the user asks for.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer no search while one is being typed."""
        return not (action == "search" and self._find_line.is_open)

    def action_follow(self) -> None:
        """Stay at the newest record, or stop staying there."""
        if self._lines.following:
            self._lines.follow(False)
        else:
            self.action_end()

    def action_end(self) -> None:
        """Go to the newest record and follow."""
        self._lines.follow(True)
        self._load(self.window.to_end)

    @work(group="log-read", exclusive=True)
    async def action_start(self) -> None:
        """Go to the oldest record."""
        self._lines.follow(False)
        await self._read(self.window.to_start)
        if self.window.records:
            self._lines.show(self.window.records, cursor=self.window.records[0].place)

    def action_level(self) -> None:
        """Leave out what is less bad, in turn."""
        lines, window = self._lines, self.window
        window.level = window.level.following
        record = lines.record
        if lines.following or record is None:
            self._load(window.to_end)
        else:
            self._load(partial(window.around, record.place), record.place)

    def action_wrap(self) -> None:
        """Wrap long lines, or not."""
        self._lines.toggle_wrap()
        self._tell()

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        self._lines.move(by)

    def action_page(self, direction: int) -> None:
        """Move the cursor by a screenful."""
        self._lines.page(direction)

    def action_sideways(self, direction: int) -> None:
        """Scroll long lines."""
        self._lines.sideways(direction * SIDEWAYS)

    def action_copy(self) -> None:
        """Copy what the mouse has selected, or the record under the cursor."""
        if selected := self.get_selected_text():
            self.app.copy_to_clipboard(selected)
            self.notify("the selected text is copied")
        elif self._lines.record is not None:
            self.app.copy_to_clipboard(self._lines.record.raw)
            self.notify("the record is copied")

    @on(LogView.Chosen)
    def action_open(self) -> None:
        """Show the record under the cursor in full."""
        if self._lines.record is not None:
            self.app.push_screen(LogDetail(self._lines.record))

    # Searching.

    def action_search(self) -> None:
        """Ask what to look for."""
        self._find_line.open()
        self._find_line.value = self._query
        self._tell()
        self.refresh_bindings()

    @on(FindLine.Changed)
    def _mark(self, event: Input.Changed) -> None:
        self._lines.mark(event.value)

    @on(FindLine.Submitted)
    def _begin(self, event: Input.Submitted) -> None:
        self._query = event.value
        self._close_search()
        if self._query:
            self._find(True, first=True)

    def action_leave(self) -> None:
        """Leave the line to search with; once more, forget the search."""
        self.workers.cancel_group(self, "log-find")
        if not self._find_line.is_open:
            self._query = ""
        self._close_search()

    def _close_search(self) -> None:
        self._find_line.shut()
        self._lines.mark(self._query)
        self._lines.focus()
        self._tell()
        self.refresh_bindings()

    def action_match(self, up: bool) -> None:
        """Go on to the next match."""
        if self._query:
            self._find(up)
        else:
            self.action_search()

    @work(group="log-find", exclusive=True)
    async def _find(self, up: bool, first: bool = False) -> None:
        query, start = self._query.casefold(), self._lines.record
        if start is None or (first and start.matches(query)):
            self._lines.follow(start is None)
            return
        try:
            found = await self.window.find(query, start.place, up=up)
            if found is None:
                self.notify(f"no match further {'up; N looks further down' if up else 'down; n looks further up'}")
                return
            self._lines.follow(False)
            if all(record.place != found.place for record in self.window.records):
                await self.window.around(found.place)
        except SapoError as error:
            self.sapo.show_error(error)
            return
        self._lines.show(self.window.records, cursor=found.place)
        self._tell()

    @property
    def _find_line(self) -> FindLine:
        return self.query_one(FindLine)

    @property
    def _lines(self) -> LogView:
        return self.query_one("#lines", LogView)
