"""The log screen: what the node wrote into its log, whether or not it runs."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import ClassVar

from textual import getters, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import ScreenResume
from textual.widgets import Input, Static

from sapo_edge.errors import SapoError
from sapo_edge.plain import printable
from sapo_edge.state.log_reader import LogReader
from sapo_edge.state.logs import is_shown
from sapo_edge.tui.node.records import Record, parse_record
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.logs.list import LogList, whole_text
from sapo_edge.tui.screens.view import Change, View
from sapo_edge.tui.widgets.inputs import FindLine

SHOWN = {"debug": "", "warning": "warnings and errors", "error": "errors"}
"""What is shown, by its lowest level; "" is all."""
POLL_SECONDS = 1.0
"""Seconds between two looks at the files."""


class Logs(View):
    """The records of the log, the newest last, and the whole record under the cursor."""

    MODE = "logs"
    AUTO_FOCUS = "#lines"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "follow", "Follow", id="logs.follow", tooltip="Follow the newest record, or stop following"),
        Binding("l", "level", "Level", id="logs.level", tooltip="Show all, warnings and errors, or errors only"),
        Binding("slash", "search", "Search", key_display="/", id="logs.search", tooltip="Find text in the whole log"),
        Binding("f3", "match(True)", "Next match further up", show=False, id="logs.match_above"),
        Binding("shift+f3,f15", "match(False)", "Next match further down", show=False, id="logs.match_below"),
        Binding("enter", "open", "The record alone, or the list", show=False, id="logs.open"),
        Binding("c", "copy", "Copy the selected text, or the record under the cursor", show=False, id="logs.copy"),
        Binding("g", "end(-1)", "The oldest record", show=False, id="logs.oldest"),
        Binding("G,shift+g", "end(1)", "The newest record, and follow", show=False, id="logs.newest"),
        Binding("escape", "leave", "Leave the record or the search", show=False, id="logs.leave"),
    ]
    DEFAULT_CSS = """
    Logs #record { height: 8; border-subtitle-color: $text-muted; }
    Logs.-tall #record { height: 16; }
    Logs.-tiny #record { display: none; }
    Logs.-open #record { display: block; height: 1fr; }
    Logs.-open #log { display: none; }
    """
    HELP_TEXT = """\
What the node wrote into its log: events in words, and all warnings and errors. Below the list is the record under the
cursor as it is in the file, with all its lines; `Enter` shows it alone. It works when no node runs, too: it reads the
files.

The newest record is **followed** until you go up; `f` or `End` follows again. `l` shows only warnings and errors, then
only errors. `/` searches the whole log, older files included, and marks matches: `F3` finds the next one further up,
`Shift+F3` further down.
"""

    _level = "debug"
    _query = _fault = ""
    _reading = False
    _find_line = getters.query_one(FindLine)
    _lines = getters.query_one(LogList)

    @cached_property
    def reader(self) -> LogReader[Record]:
        return LogReader(self.sapo.launcher.paths.log, parse_record)

    def content(self) -> ComposeResult:
        with Vertical(id="log", classes="panel"):
            yield LogList(id="lines")
            yield FindLine("text to find in the whole log")
        with VerticalScroll(id="record", classes="panel") as record:
            record.border_title = "Record"
            record.border_subtitle = "c copies it"
            yield Static(id="whole", markup=False)

    def on_mount(self) -> None:
        self._timer = self.set_interval(POLL_SECONDS, self._poll, pause=True)

    def on_screen_resume(self, event: ScreenResume) -> None:
        self._timer.resume()
        self._poll()

    def on_screen_suspend(self) -> None:
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
        if changed:
            self._show_records()

    def _show_records(self, *, keep_view: bool = True) -> None:
        records = [record for record in self.reader.records if is_shown(record.level, self._level)]
        self._lines.show(records, keep_view=keep_view)
        self._update_frame()

    @on(LogList.Moved)
    def _update_frame(self) -> None:
        """Show the record under the cursor; say in the frame what is listed, or in the list why nothing is."""
        lines, record, shown = self._lines, self._lines.chosen, SHOWN[self._level]
        title = [f"Log: {shown}" if shown else "Log"]
        if self._query:
            title.append(f"search: {self._query}")
        if self._find_line.is_open:
            subtitle = ["Enter searches upwards", "Esc leaves"]
        else:
            subtitle = [] if record is None else [record.local_time("%Y-%m-%d")]
            subtitle.append("following" if lines.following else "not following: f follows again")
        frame = self.query_one("#log")
        frame.border_title = Content(printable("  ·  ".join(title)))
        frame.border_subtitle = Content("  ·  ".join(filter(None, subtitle)))
        lines.say("" if record is not None else self._fault or self._why_empty())
        self.query_one("#whole", Static).update("" if record is None else whole_text(record, lines.search))
        self.query_one("#record").scroll_home(animate=False)

    def _why_empty(self) -> str:
        if self.reader.exists and (shown := SHOWN[self._level]):
            return f"The log has no {shown.replace(' and ', ' or ')}.\n\nl shows other levels."
        if self.sapo.state.standing is Standing.STARTING and not self.reader.exists:
            lines = "\n".join(f"  {printable(line)}" for line in self.sapo.keeper.lines[-12:])
            return f"A node is starting; it writes the log once the model is loaded.\n\n{lines}"
        reason = "The log is empty." if self.reader.exists else "There is no log yet: a node writes it while it runs."
        remedy = "\n\nPress s to start one." if self.sapo.state.standing is Standing.ENDED else ""
        return f"{reason}{remedy}\n\n{printable(self.reader.path)}"

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "leave":
            return self.is_mounted and (self.has_class("-open") or self._find_line.is_open or bool(self._query))
        return not (action == "search" and self._find_line.is_open)

    def action_follow(self) -> None:
        if self._lines.following:
            self._lines.following = False
        else:
            self._lines.action_end(1)
        self._update_frame()

    def action_end(self, by: int) -> None:
        self._lines.action_end(by)

    def action_level(self) -> None:
        levels = list(SHOWN)
        self._level = levels[(levels.index(self._level) + 1) % len(levels)]
        self._show_records(keep_view=False)

    def action_copy(self) -> None:
        record, selected = self._lines.chosen, self.get_selected_text()
        if text := selected or ("" if record is None else record.raw):
            self.app.copy_to_clipboard(text)
            self.notify("the selected text is copied" if selected else "the record is copied")

    @on(LogList.Opened)
    def action_open(self) -> None:
        if self._lines.chosen is not None or self.has_class("-open"):
            self.toggle_class("-open")
            self.query_one("#record" if self.has_class("-open") else "#lines").focus()
            self.refresh_bindings()

    # Searching.

    def action_search(self) -> None:
        self.remove_class("-open")
        self._find_line.open()
        self._find_line.value = self._query
        self._update_frame()
        self.refresh_bindings()

    @on(FindLine.Changed)
    def _mark(self, event: Input.Changed) -> None:
        self._lines.search = event.value.casefold()
        self._lines.refresh()

    @on(FindLine.Submitted)
    def _start_search(self, event: Input.Submitted) -> None:
        self._query = event.value
        self._close_search()
        if self._query:
            self._find(up=True, with_current=True)

    def action_leave(self) -> None:
        if self.has_class("-open"):
            self.action_open()
            return
        if not self._find_line.is_open:
            self._query = ""
        self._close_search()

    def _close_search(self) -> None:
        self._find_line.shut()
        self._lines.search = self._query.casefold()
        self._lines.refresh()
        self._lines.focus()
        self._update_frame()
        self.refresh_bindings()

    def action_match(self, up: bool) -> None:
        if self._query:
            self._find(up=up)
        else:
            self.action_search()

    def _find(self, *, up: bool, with_current: bool = False) -> None:
        lines = self._lines
        indices = range(len(lines.rows))
        candidates = indices[: lines.cursor + with_current][::-1] if up else indices[lines.cursor + 1 :]
        index = next((index for index in candidates if lines.rows[index].matches(lines.search)), None)
        if index is None:
            self.notify(f"no match further {'up; Shift+F3 looks further down' if up else 'down; F3 looks further up'}")
        else:
            lines.go(index)
