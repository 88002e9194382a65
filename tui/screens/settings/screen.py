"""Shows, explains and changes all settings."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from textual import getters, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.content import Content
from textual.events import ScreenResume
from textual.widgets import ContentSwitcher, Input, OptionList, Static

from sapo_edge.errors import SapoError
from sapo_edge.plain import counted, printable
from sapo_edge.tui.node.launcher import SettingRow
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.settings import words
from sapo_edge.tui.screens.settings.widgets import Mood, SettingList, SettingPanel
from sapo_edge.tui.screens.view import Change, View
from sapo_edge.tui.widgets.dialog import Ask
from sapo_edge.tui.widgets.inputs import FindLine
from sapo_edge.tui.widgets.restart import restart


class SettingsView(View):
    """The settings of the next node."""

    MODE = "settings"
    AUTO_FOCUS = "#list"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "edit", "Change", id="settings.change", tooltip="Change the highlighted setting"),
        Binding("slash", "search", "Search", key_display="/", id="settings.search", tooltip="Find settings by a word"),
        Binding("r", "restart", "Restart node", id="settings.restart", tooltip="Stop after the round, then start"),
        Binding("v", "advanced", "Advanced", id="settings.advanced", tooltip="List research settings, too, or not"),
        Binding("d", "default", "Reset", id="settings.default", tooltip="Back to the default"),
        Binding("c", "copy", "Copy name and value", show=False, id="settings.copy"),
        Binding("f5", "reload", "Read the file again", show=False, id="settings.reload"),
        Binding("up,k", "go('cursor_up')", "One setting up", show=False, id="settings.up"),
        Binding("down,j", "go('cursor_down')", "One setting down", show=False, id="settings.down"),
        Binding("pageup", "go('page_up')", "One screen up", show=False, id="settings.page_up"),
        Binding("pagedown", "go('page_down')", "One screen down", show=False, id="settings.page_down"),
        Binding("home,g", "go('first')", "The first setting", show=False, id="settings.first"),
        Binding("end,G", "go('last')", "The last setting", show=False, id="settings.last"),
        Binding("escape", "leave", "Leave the search", show=False, id="settings.leave"),
    ]
    DEFAULT_CSS = """
    SettingsView #panel { height: 9; }
    SettingsView.-wide #both { layout: horizontal; }
    SettingsView.-wide #choose { width: 3fr; }
    SettingsView.-wide #panel { width: 2fr; height: 1fr; }
    SettingsView.-wide #panel Static { margin-bottom: 1; }
    SettingsView.-tiny #panel { height: 3; }
    SettingsView #wrong { height: 1fr; padding: 1 2; }
    """
    HELP_TEXT = """\
Every setting of the **next** node, and where its value comes from: the default, the manifest, `config.toml`, an
environment variable, or a flag. A change is written to `config.toml`. A running node uses some changes from its next
round; others need a restart. `▲` marks those, and `r` restarts the node: it finishes its round, saves, stops, and
continues from there.

`Enter` or a second click changes a setting, `d` removes it from `config.toml` to restore the default. `*` marks changed
ones. `v` lists the settings for research, too; the search (`/`) always finds them.
"""

    _rows: Sequence[SettingRow] = ()
    _node_has: Mapping[str, Any] = {}
    _search = ""
    _advanced = False
    _list = getters.query_one(SettingList)

    def content(self) -> ComposeResult:
        with ContentSwitcher(initial="both", id="parts"):
            with Container(id="both"):
                with Vertical(id="choose", classes="panel"):
                    yield SettingList(id="list")
                    yield FindLine("name, value or meaning · Esc leaves")
                yield SettingPanel(id="panel", classes="panel")
            yield Static(id="wrong", markup=False)

    def on_screen_resume(self, event: ScreenResume) -> None:
        self.action_reload()

    def node_changed(self, change: Change) -> None:
        if change & Change.STANDING:
            self.action_reload()

    @work(group="settings-read", exclusive=True)
    async def action_reload(self) -> None:
        await self._read()

    async def _read(self) -> None:
        problem = ""
        try:
            self._rows = await asyncio.to_thread(self.sapo.launcher.settings)
        except SapoError as error:
            problem = f"{printable(error.message)}\n\nTo see the settings, {printable(error.remedy)}. Then press F5."
        node_has: dict[str, Any] = {}
        if self.sapo.state.standing is Standing.ATTACHED:
            with contextlib.suppress(SapoError):
                node_has = dict((await self.sapo.request("settings"))["all"])
        self._node_has = node_has
        self.query_one("#wrong", Static).update(problem)
        self.query_one("#parts", ContentSwitcher).current = "wrong" if problem else "both"
        self._show()

    def _show(self) -> None:
        self._list.show(self._rows, self._node_has, self._search, advanced=self._advanced)
        frame, count = self.query_one("#choose"), len(self._pending())
        title = "All settings" if self._advanced else "Settings"
        frame.border_title = Content(title + (f"  ·  search: {printable(self._search)}" if self._search else ""))
        subtitle = f"▲ {counted(count, 'setting needs', 'settings need')} a restart: r" if count else ""
        if self._search and self._list.row is None:
            subtitle = "no match · Esc shows all"
        frame.border_subtitle = Content(subtitle)
        self._explain()
        self.refresh_bindings()

    @on(OptionList.OptionHighlighted)
    def _explain(self) -> None:
        self.query_one(SettingPanel).show(self._list.row, self._node_has)

    def _pending(self) -> list[tuple[str, str, str]]:
        rows = ((row.name, words.pending(row, self._node_has)) for row in self._rows)
        return [(name, *values) for name, values in rows if values is not None]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        is_searching = bool(self.query("FindLine.-open"))
        if action == "leave":
            return self.is_mounted and (is_searching or bool(self._search))
        if action in ("edit", "default", "search", "restart", "advanced") and is_searching:
            return False
        if action == "restart":
            return bool(self._pending()) and self.sapo.state.standing is Standing.ATTACHED
        return True

    def action_go(self, where: Literal["cursor_up", "cursor_down", "page_up", "page_down", "first", "last"]) -> None:
        getattr(self._list, f"action_{where}")()

    @on(OptionList.OptionSelected)
    @work(group="settings-edit", exclusive=True)
    async def action_edit(self) -> None:
        row = self._list.row
        if row is None:
            return
        setting, empty = row.setting, next(iter(words.specials(row).values()), "")
        values = ("", *sorted(self.app.available_themes)) if row.name == "theme" else setting.choices
        marks = {setting.default: " (default)"}
        ask = Ask(
            row.name,
            f"{setting.explanation}\n\nallowed: {words.allowed(row)}",
            "" if row.value is None else str(row.value),
            values={value: words.format_value(value) + marks.get(value, "") for value in values},
            problem=partial(words.problem, row),
            hint=empty if words.is_text(row) else f"{empty}; empty: the default".removeprefix("; "),
            labels=("Save", "Cancel"),
        )
        text = await self.app.push_screen_wait(ask)
        if text is not None:
            text = words.typed_value(row, text)
            self._save(row, text if text or words.is_text(row) else None)

    def action_advanced(self) -> None:
        self._advanced = not self._advanced
        self._show()

    def action_default(self) -> None:
        row = self._list.row
        if row is None:
            return
        if row.source == "default":
            self.query_one(SettingPanel).say(f"{row.name} already has its default")
        elif (source := words.origin(row)) in ("manifest", "state"):
            self.query_one(SettingPanel).say(f"{row.name} is not in config.toml: it comes from the {source}")
        else:
            self._save(row, None)

    @work(group="settings-save", exclusive=True)
    async def _save(self, row: SettingRow, text: str | None) -> None:
        panel = self.query_one(SettingPanel)
        try:
            await asyncio.to_thread(self.sapo.launcher.set, row.name, text)
        except SapoError as error:
            panel.say(printable(error), "bad")
            return
        # `_read` shows the error.
        with contextlib.suppress(SapoError):
            rows = await asyncio.to_thread(self.sapo.launcher.settings)
            row = next((item for item in rows if item.name == row.name), row)
        mood, effect = await self._send(row, text)
        if row.name == "theme":
            self.sapo.choose_theme()
        await self._read()
        written = "removed from config.toml" if text is None else "written to config.toml"
        overridden = f", but {words.override(row)} overrides it" if words.override(row) else ""
        panel.say(f"{row.name} = {words.value_text(row, row.value)}: {written}{overridden}; {effect}", mood)

    async def _send(self, row: SettingRow, text: str | None) -> tuple[Mood, str]:
        """Send a new value to the running node, if that accepts it; a mood, and when the value takes effect."""
        if row.name in words.APP:
            return "good", "in effect now"
        if self.sapo.state.standing is not Standing.ATTACHED:
            return "good", "in effect at the next start"
        if not row.setting.live:
            return "good", "in effect after a restart of the node"
        value = row.value if text is None else text
        try:
            await self.sapo.request("settings", {row.name: "" if value is None else value})
        except SapoError as error:
            return "bad", f"the running node refused it ({printable(error.message)}); in effect after a restart"
        return "good", "in effect from the next round"

    def action_copy(self) -> None:
        if (row := self._list.row) is not None:
            # TOML and JSON write numbers and texts alike.
            self.app.copy_to_clipboard(f"{row.name} = {json.dumps(row.value)}")
            self.notify(f"{row.name} is copied with its value")

    def action_leave(self) -> None:
        self._search = ""
        self.query_one(FindLine).value = ""
        self._close_search()

    def action_search(self) -> None:
        self.query_one(FindLine).open()
        self.refresh_bindings()

    @on(FindLine.Changed)
    def _find(self, event: Input.Changed) -> None:
        self._search = event.value.strip()
        self._show()

    @on(FindLine.Submitted)
    def _close_search(self) -> None:
        self.query_one(FindLine).shut()
        self._list.focus()
        self._show()

    @work(group="settings-restart")
    async def action_restart(self) -> None:
        await restart(self.sapo, self._pending(), words.RUN)
