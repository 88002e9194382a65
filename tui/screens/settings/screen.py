"""Every setting: what it is, where it comes from, and a way to change it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from textual import on, work
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
from sapo_edge.tui.screens.settings.list import SettingList
from sapo_edge.tui.screens.settings.panel import SettingPanel
from sapo_edge.tui.screens.settings.restart import restart
from sapo_edge.tui.screens.settings.words import APP, shown, stronger, waiting
from sapo_edge.tui.screens.view import Change, View
from sapo_edge.tui.widgets.find_line import FindLine


class SettingsView(View):
    """The settings, as the next node has them."""

    MODE = "settings"
    AUTO_FOCUS = "#list"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "edit", "Change", id="settings.change", tooltip="Change the highlighted setting"),
        Binding(
            "slash", "search", "Search", key_display="/", id="settings.search", tooltip="Find settings by any word"
        ),
        Binding("r", "restart", "Restart node", id="settings.restart", tooltip="Stop after the round, then start"),
        Binding("d", "default", "Back to the default", show=False, id="settings.default"),
        Binding("c", "copy", "Copy name and value", show=False, id="settings.copy"),
        Binding("f5", "reload", "Read the file again", show=False, id="settings.reload"),
        Binding("up,k", "go('cursor_up')", "One setting up", show=False, id="settings.up"),
        Binding("down,j", "go('cursor_down')", "One setting down", show=False, id="settings.down"),
        Binding("pageup", "go('page_up')", "One screen up", show=False, id="settings.page_up"),
        Binding("pagedown", "go('page_down')", "One screen down", show=False, id="settings.page_down"),
        Binding("home,g", "go('first')", "The first setting", show=False, id="settings.first"),
        Binding("end,G", "go('last')", "The last setting", show=False, id="settings.last"),
        Binding("escape", "leave", "Leave without saving; leave the search", show=False, id="settings.leave"),
    ]
    DEFAULT_CSS = """
    SettingsView #parts { height: 1fr; }
    SettingsView #both { height: 1fr; layout: vertical; }
    SettingsView #choose { height: 1fr; padding: 0; }
    SettingsView #panel { height: 9; }
    SettingsView #panel.-typing { height: 11; }
    SettingsView #panel.-choosing { height: 13; }
    SettingsView.-wide #both { layout: horizontal; }
    SettingsView.-wide #choose { width: 3fr; height: 1fr; }
    SettingsView.-wide #panel, SettingsView.-wide #panel.-typing, SettingsView.-wide #panel.-choosing {
        width: 2fr; height: 1fr;
    }
    SettingsView.-wide #panel Static { margin-bottom: 1; }
    SettingsView.-tiny #panel { height: 3; border-top: solid $border; }
    SettingsView.-tiny #panel.-typing, SettingsView.-tiny #panel.-choosing { height: 1fr; }
    SettingsView.-tiny.-editing #choose { display: none; }
    SettingsView #wrong { height: 1fr; padding: 1 2; }
    """
    HELP_TEXT = """\
Every setting as the **next** node has it, and where its value comes from: the default, the manifest, `config.toml`,
an environment variable, or a flag. Changing one writes `config.toml`. Some are sent to a running node as well, which
takes them from its next round on; for others it has to be started again. `▲` marks those that wait for that, and `r`
restarts the node: it finishes its round, saves, stops, and goes on from there.

`Enter` or a second click changes a setting, `d` takes it out of `config.toml`, so that the default counts again.
"""

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[SettingRow] = []
        self._node_has: dict[str, Any] = {}
        self._search = ""

    def content(self) -> ComposeResult:
        """The list, and what is known of the highlighted one."""
        with ContentSwitcher(initial="both", id="parts"):
            with Container(id="both"):
                with Vertical(id="choose", classes="panel"):
                    yield SettingList(id="list")
                    yield FindLine("a word of name, value or meaning · Esc leaves")
                yield SettingPanel(id="panel", classes="panel")
            yield Static(id="wrong", markup=False)

    def on_screen_resume(self, event: ScreenResume) -> None:
        """Read again: file and node may have changed while another screen was in front."""
        self.action_reload()

    def node_changed(self, change: Change) -> None:
        """Another node has other values."""
        if change & Change.STANDING:
            self.action_reload()

    # What is known.

    @work(group="settings-read", exclusive=True)
    async def action_reload(self) -> None:
        """Read the file again, and ask the node."""
        await self._read()

    async def _read(self) -> None:
        wrong = ""
        try:
            self._rows = await asyncio.to_thread(self.sapo.launcher.settings)
        except SapoError as error:
            wrong = (
                f"{printable(error.message)}\n\nTo see the settings, {printable(error.remedy)}. F5 reads them again."
            )
        self._node_has = await self._of_node()
        if not self.is_mounted:
            return
        self.query_one("#wrong", Static).update(wrong)
        self.query_one("#parts", ContentSwitcher).current = "wrong" if wrong else "both"
        self._show()

    async def _of_node(self) -> dict[str, Any]:
        """What the running node has; nothing of one that is just ending, as its standing will say."""
        if self.sapo.state.standing is not Standing.ATTACHED:
            return {}
        try:
            told = await self.sapo.request("settings")
            # An older node tells only those that can change while it runs.
            return dict(told.get("all", told["settings"]))
        except SapoError:
            return {}

    def _show(self) -> None:
        settings = self.query_one("#list", SettingList)
        settings.show(self._rows, self._node_has, self._search)
        frame, waits = self.query_one("#choose"), len(self._waiting())
        frame.border_title = Content("Settings" + (f"  ·  search: {printable(self._search)}" if self._search else ""))
        told = f"▲ {counted(waits, 'setting waits', 'settings wait')} for a restart: r" if waits else ""
        if self._search and settings.row is None:
            told = "nothing is found · Esc shows all"
        frame.border_subtitle = Content(told)
        self._tell()
        self.refresh_bindings()

    @on(OptionList.OptionHighlighted, "#list")
    def _tell(self) -> None:
        panel = self.query_one(SettingPanel)
        if panel.editing is None:
            panel.show(self._list.row, self._node_has)

    def _waiting(self) -> list[tuple[str, str, str]]:
        found = ((row.name, waiting(row, self._node_has)) for row in self._rows)
        return [(name, *waits) for name, waits in found if waits is not None]

    # What the user asks for.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer what can be done now."""
        if action in ("edit", "default", "search", "restart") and self._busy:
            return False
        if action == "restart":
            return bool(self._waiting()) and self.sapo.state.standing is Standing.ATTACHED
        return True

    def action_go(self, where: Literal["cursor_up", "cursor_down", "page_up", "page_down", "first", "last"]) -> None:
        """Highlight another setting."""
        if self.query_one(SettingPanel).editing is None:
            getattr(self._list, f"action_{where}")()

    @on(OptionList.OptionSelected, "#list")
    def action_edit(self) -> None:
        """Change the highlighted setting."""
        row = self._list.row
        if row is None:
            return
        panel = self.query_one(SettingPanel)
        panel.show(row, self._node_has)
        self.add_class("-editing")
        panel.edit(self._choices(row))
        self.call_after_refresh(self._list.scroll_to_highlight)
        self.refresh_bindings()

    def _choices(self, row: SettingRow) -> Sequence[str]:
        if row.name == "theme" and not row.choices:
            return ("", *sorted(self.app.available_themes))
        return row.choices

    def action_default(self) -> None:
        """Take the highlighted setting out of the file."""
        row = self._list.row
        if row is None:
            return
        if row.source == "default":
            self.query_one(SettingPanel).say(f"{row.name} has its default already")
            return
        self._save(row, None)

    @on(SettingPanel.Given)
    def _given(self, event: SettingPanel.Given) -> None:
        self._save(event.row, event.text)

    @work(group="settings-save", exclusive=True)
    async def _save(self, row: SettingRow, text: str | None) -> None:
        """Write a value, have the running node take it, and say which of both happened."""
        panel = self.query_one(SettingPanel)
        try:
            await asyncio.to_thread(self.sapo.launcher.set, row.name, text)
        except SapoError as error:
            panel.say(f"{printable(error.message)}; {printable(error.remedy)}", "bad")
            return
        self._close()
        try:
            rows = await asyncio.to_thread(self.sapo.launcher.settings)
            row = next((found for found in rows if found.name == row.name), row)
        except SapoError:
            # What is wrong stands in place of the list.
            pass
        mood, told = await self._hand_on(row, text)
        if row.name == "theme":
            self.sapo.choose_theme()
        await self._read()
        written = "taken out of config.toml" if text is None else "written to config.toml"
        over = f", but {stronger(row)} goes first" if stronger(row) else ""
        panel.say(f"{row.name} = {shown(row.value, row.unit)}: {written}{over}; {told}", mood)

    async def _hand_on(self, row: SettingRow, text: str | None) -> tuple[Any, str]:
        """Send a new value to the node if it can take it.

        Returns:
            Mood and words.
        """
        if row.name in APP:
            return "good", "this app has it already"
        if self.sapo.state.standing is not Standing.ATTACHED:
            return "good", "the next node has it"
        if not row.live:
            return "good", "the running node has it after a restart"
        value = row.value if text is None else text
        try:
            await self.sapo.request("settings", {row.name: "" if value is None else value})
        except SapoError as error:
            return "bad", f"the running node did not take it ({printable(error.message)}), and has it after a restart"
        return "good", "the running node takes it from its next round on"

    def action_copy(self) -> None:
        """Copy name and value as they stand in the file."""
        if (row := self._list.row) is not None:
            # TOML and JSON write numbers and texts alike.
            self.app.copy_to_clipboard(f"{row.name} = {json.dumps(row.value)}")
            self.notify(f"{row.name} and its value are copied")

    def action_leave(self) -> None:
        """Leave what has the focus."""
        if self.query_one(SettingPanel).editing is not None:
            self._close()
            self._tell()
            return
        self._search = ""
        self.query_one(FindLine).value = ""
        self._close()
        self._show()

    def _close(self) -> None:
        """Back to the list."""
        self.query_one(SettingPanel).leave()
        self.remove_class("-editing")
        self.query_one(FindLine).shut()
        self._list.focus()
        self.refresh_bindings()

    # Searching.

    def action_search(self) -> None:
        """Ask what to look for."""
        self.query_one(FindLine).open()
        self.refresh_bindings()

    @on(FindLine.Changed, "#find")
    def _find(self, event: Input.Changed) -> None:
        self._search = event.value.strip()
        self._show()

    @on(FindLine.Submitted, "#find")
    def _found(self) -> None:
        self._close()
        self._show()

    # Restarting.

    @work(group="settings-restart", exclusive=True)
    async def action_restart(self) -> None:
        """Have the node stop after its round and start it again, if its owner says so."""
        await restart(self.sapo, self._waiting())

    @property
    def _busy(self) -> bool:
        return self.has_class("-editing") or self.query_one(FindLine).is_open

    @property
    def _list(self) -> SettingList:
        return self.query_one("#list", SettingList)
