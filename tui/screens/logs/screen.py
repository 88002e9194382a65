"""The log screen: what the node wrote into its log, whether or not it runs."""

from __future__ import annotations

import asyncio
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
from sapo_edge.tui.node.records import Level, Place
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.logs.detail import LogDetail, copy_record
from sapo_edge.tui.screens.logs.reader import LogReader
from sapo_edge.tui.screens.logs.view import LogView
from sapo_edge.tui.screens.view import Change, View
from sapo_edge.tui.widgets.find_line import FindLine

POLL_SECONDS = 1.0
"""Seconds between two looks at the files."""
SIDEWAYS = 12
"""Columns by which an arrow key scrolls lines that are not wrapped."""


class Logs(View):
    """The records of the log, the newest last."""

    MODE = "logs"
    AUTO_FOCUS = "#lines"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "follow", "Follow", id="logs.follow", tooltip="Follow the newest record, or stop following"),
        Binding("l", "level", "Level", id="logs.level", tooltip="Show all, warnings and errors, or errors only"),
        Binding("slash", "search", "Search", key_display="/", id="logs.search", tooltip="Find text in the whole log"),
        Binding("f3", "match(True)", "Next match further up", show=False, id="logs.match_above"),
        Binding("shift+f3,f15", "match(False)", "Next match further down", show=False, id="logs.match_below"),
        Binding("enter", "open", "The whole record, as it is in the file", show=False, id="logs.open"),
        Binding("v", "wrap", "Wrap long lines, or cut them off", show=False, id="logs.wrap"),
        Binding("c", "copy", "Copy the selected text, or the record under the cursor", show=False, id="logs.copy"),
        Binding("up,k", "move(-1)", "One record up", show=False, id="logs.up"),
        Binding("down,j", "move(1)", "One record down", show=False, id="logs.down"),
        Binding("pageup", "page(-1)", "One screen up", show=False, id="logs.page_up"),
        Binding("pagedown", "page(1)", "One screen down", show=False, id="logs.page_down"),
        Binding("home,g", "start", "The oldest record", show=False, id="logs.oldest"),
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
What the node wrote into its log: events in words, and all warnings and errors. It works when no node runs, too: it
reads the files.

The newest record is **followed** until you scroll up; `f` or `End` follows again. `l` shows only warnings and errors,
then only errors. `/` searches the whole log, older files included: `F3` finds the next match further up, `Shift+F3`
further down. `Enter` shows a record as it is in the file, with all its lines.
"""

    def __init__(self) -> None:
        super().__init__()
        self._reader: LogReader | None = None
        self._timer: Timer | None = None
        self._level = Level.ALL
        self._query = ""
        self._fault = ""
        self._reading = False

    @property
    def reader(self) -> LogReader:
        if self._reader is None:
            self._reader = LogReader(self.sapo.launcher.paths.log)
        return self._reader

    def content(self) -> ComposeResult:
        with Vertical(id="log", classes="panel"):
            with ContentSwitcher(initial="lines", id="parts"):
                yield LogView(id="lines")
                yield Static(id="none", markup=False)
            yield FindLine("text to find in the whole log")

    def on_mount(self) -> None:
        self._timer = self.set_interval(POLL_SECONDS, self._poll, pause=True)

    def on_screen_resume(self, event: ScreenResume) -> None:
        if self._timer is not None:
            self._timer.resume()
        self._poll()

    def on_screen_suspend(self) -> None:
        if self._timer is not None:
            self._timer.pause()

    def node_changed(self, change: Change) -> None:
        """Without a log, say what to do: it depends on whether a node runs."""
        if change & Change.STANDING and not self.reader.exists:
            self._update_frame()

    @work(group="log-read")
    async def _poll(self) -> None:
        if self._reading:
            return
        self._reading = True
        try:
            changed, self._fault = await asyncio.to_thread(self.reader.read), ""
        except SapoError as error:
            changed = True
            self._fault = f"{printable(error.message)}\n\nTo see it here, {printable(error.remedy)}."
        finally:
            self._reading = False
        if changed and self.is_mounted:
            self._show_records()

    def _show_records(self, select: Place | None = None) -> None:
        records = [record for record in self.reader.records if self._level.admits(record)]
        self._lines.show(records, select=select)
        self._update_frame()

    @on(LogView.Changed)
    def _update_frame(self) -> None:
        """Say in the frame what is shown, or why nothing is."""
        lines = self._lines
        title = ["Log" if self._level is Level.ALL else f"Log: {self._level}"]
        if self._query:
            title.append(f"search: {self._query}")
        if not lines.wrapped:
            title.append("not wrapped")
        if self._find_line.is_open:
            subtitle = ["Enter searches upwards", "Esc leaves"]
        else:
            subtitle = [lines.record.local_time("%Y-%m-%d")] if lines.record is not None else []
            subtitle.append("following" if lines.following else "not following: f follows again")
        frame = self.query_one("#log")
        frame.border_title = Content(printable("  ·  ".join(title)))
        frame.border_subtitle = Content("  ·  ".join(filter(None, subtitle)))
        reason = self._fault or ("" if lines.record is not None else self._why_empty())
        self.query_one("#none", Static).update(reason)
        self.query_one("#parts", ContentSwitcher).current = "none" if reason else "lines"

    def _why_empty(self) -> str:
        """Why there is no record, and what to do."""
        if self.reader.exists and self._level is not Level.ALL:
            return f"The log has no {self._level.replace(' and ', ' or ')}.\n\nl shows other levels."
        if self.sapo.state.standing is Standing.STARTING and not self.reader.exists:
            lines = "\n".join(f"  {printable(line)}" for line in self.sapo.keeper.lines[-12:])
            return f"A node is starting; it writes the log once the model is loaded.\n\n{lines}"
        reason = "The log is empty." if self.reader.exists else "There is no log yet: a node writes it while it runs."
        remedy = "\n\nPress s to start one." if self.sapo.state.standing is Standing.ENDED else ""
        return f"{reason}{remedy}\n\n{printable(self.reader.path)}"

    # Keys.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer no search while one is being typed, and leave it only if there is one."""
        if action == "leave":
            return self.is_mounted and (self._find_line.is_open or bool(self._query))
        return not (action == "search" and self._find_line.is_open)

    def action_follow(self) -> None:
        self._lines.follow(not self._lines.following)

    def action_end(self) -> None:
        self._lines.follow(True)

    def action_start(self) -> None:
        self._lines.follow(False)
        if self._lines.records:
            self._lines.select(0)

    def action_level(self) -> None:
        """Show the next level, from the chosen record on."""
        self._level = self._level.next
        record = self._lines.record
        self._show_records(select=None if record is None else record.place)

    def action_wrap(self) -> None:
        self._lines.toggle_wrap()
        self._update_frame()

    def action_move(self, by: int) -> None:
        self._lines.move(by)

    def action_page(self, direction: int) -> None:
        if self._lines.records:
            self._lines.page(direction)

    def action_sideways(self, direction: int) -> None:
        self._lines.sideways(direction * SIDEWAYS)

    def action_copy(self) -> None:
        copy_record(self, self._lines.record)

    @on(LogView.Chosen)
    def action_open(self) -> None:
        if self._lines.record is not None:
            self.app.push_screen(LogDetail(self._lines.record))

    # Searching.

    def action_search(self) -> None:
        self._find_line.open()
        self._find_line.value = self._query
        self._update_frame()
        self.refresh_bindings()

    @on(FindLine.Changed)
    def _mark(self, event: Input.Changed) -> None:
        self._lines.mark(event.value)

    @on(FindLine.Submitted)
    def _start_search(self, event: Input.Submitted) -> None:
        self._query = event.value
        self._close_search()
        if self._query:
            self._find(up=True, with_current=True)

    def action_leave(self) -> None:
        """Close the search line; pressed again, forget the search."""
        if not self._find_line.is_open:
            self._query = ""
        self._close_search()

    def _close_search(self) -> None:
        self._find_line.shut()
        self._lines.mark(self._query)
        self._lines.focus()
        self._update_frame()
        self.refresh_bindings()

    def action_match(self, up: bool) -> None:
        if self._query:
            self._find(up=up)
        else:
            self.action_search()

    def _find(self, *, up: bool, with_current: bool = False) -> None:
        lines, query = self._lines, self._query.casefold()
        indices = range(len(lines.records))
        candidates = indices[: lines.cursor + with_current][::-1] if up else indices[lines.cursor + 1 :]
        index = next((index for index in candidates if lines.records[index].matches(query)), None)
        if index is None:
            self.notify(f"no match further {'up; Shift+F3 looks further down' if up else 'down; F3 looks further up'}")
            return
        lines.follow(False)
        lines.select(index)

    @property
    def _find_line(self) -> FindLine:
        return self.query_one(FindLine)

    @property
    def _lines(self) -> LogView:
        return self.query_one("#lines", LogView)
