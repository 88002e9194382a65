"""Keys can be changed in a file, and a file that is wrong is told and left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from textual.binding import Binding

from sapo_edge.errors import ConfigError
from sapo_edge.tui.app import KEYS_FILE, SapoApp
from sapo_edge.tui.commands import binding_ids, read_keys
from sapo_edge.tui.screens.help import HelpScreen, keys_of
from sapo_edge.tui.screens.logs.screen import Logs
from sapo_edge.tui.screens.settings.screen import SettingsView
from sapo_edge.tui.screens.view import VIEWS
from sapo_edge.tui.widgets.dialog import Ask
from tests.tui.fake_launcher import FakeLauncher
from tests.tui.shell import TRUECOLOR, connected, notices, press, running

KNOWN = {"node.pause", "logs.follow", "view.logs"}


def write(launcher: FakeLauncher, text: str) -> None:
    (launcher.paths.config / KEYS_FILE).write_text(text, encoding="utf-8")


def test_the_file_has_keys_by_name_and_an_unreadable_one_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / KEYS_FILE
    assert read_keys(file, KNOWN) == {}
    file.write_bytes(b'\xef\xbb\xbf"node.pause" = "space,p"\r\n"logs.follow" = " x "\r\n')
    assert read_keys(file, KNOWN) == {"node.pause": "space,p", "logs.follow": "x"}
    file.write_bytes(b"\xff\xfe")
    for unreadable in (file, tmp_path):
        with pytest.raises(ConfigError, match="can't read"):
            read_keys(unreadable, KNOWN)


@pytest.mark.parametrize(("text", "message", "remedy"), [
    ('"node.pauze" = "x"', "no key is called 'node.pauze'", "did you mean node.pause?"),
    ('"quite.different.altogether" = "x"', "no key is called", "F1 in the app lists the names"),
    ('node.pause = "x"', "no key is called 'node'", "write names in quotes"),
    ('"node.pause" = 5', "'node.pause' is not text", "write it as"),
    ('"node.pause" = ""', "'node.pause' is not text", "write it as"),
    ("node.pause = ", "is not valid TOML", "correct that place"),
    ("a = " + "[" * 5000, "is not valid TOML", "correct that place"),
])  # fmt: skip
def test_an_error_names_problem_and_remedy(tmp_path: Path, text: str, message: str, remedy: str) -> None:
    file = tmp_path / KEYS_FILE
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_keys(file, KNOWN)
    assert message in raised.value.message and remedy in raised.value.remedy and str(file) in raised.value.message


async def test_changed_keys_work_and_are_listed_and_replace_the_old_ones(launcher: FakeLauncher) -> None:
    changed = {"view.logs": "o", "logs.follow": "space,f8", "node.pause": "P", "settings.change": "e", "app.help": "h"}
    write(launcher, "".join(f'"{name}" = "{key}"\n' for name, key in changed.items()))
    async with running(launcher, ready=connected) as (pilot, app):
        assert not notices(app)
        # F1 opens the help whatever the file says.
        for key in ("h", "f1"):
            await press(pilot, key, then=lambda: isinstance(app.screen, HelpScreen))
            await press(pilot, "escape", then=lambda: not isinstance(app.screen, HelpScreen))
        await pilot.press("6")
        await pilot.pause(0.1)
        assert not isinstance(app.screen, Logs)
        await press(pilot, "o", then=lambda: isinstance(app.screen, Logs))
        lines = app.screen._lines  # type: ignore[attr-defined]
        for key, following in (("f", True), ("space", False), ("f8", True)):
            await press(pilot, key, then=lambda following=following: lines.following is following)  # type: ignore[misc]
        listed = {id: keys for rows in keys_of(app.screen).values() for keys, _, id in rows}
        assert listed["logs.follow"] == "space f8" and listed["view.logs"] == "o" and listed["node.pause"] == "P"
        await pilot.press("p")
        await pilot.pause(0.2)
        assert "pause" not in launcher.node.asked
        await press(pilot, "P", then=lambda: "pause" in launcher.node.asked)
        await press(pilot, "7", then=lambda: isinstance(app.screen, SettingsView) and app.screen._list.row is not None)
        await press(pilot, "e", then=lambda: isinstance(app.screen, Ask))


async def test_an_invalid_file_shows_its_error_and_is_ignored(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path) -> bool:
        """As in a directory that this user may not enter."""
        if self.name == KEYS_FILE:
            raise PermissionError
        return os.path.exists(self)

    monkeypatch.setattr(Path, "exists", refuse)
    write(launcher, '"logs.follow" = "x"\n"node.pause" = "y"\n"\\u001b[31m[bold]" = "x"\n')
    async with running(launcher, ready=connected) as (pilot, app):
        assert "no key is called '\\x1b[31m[bold]'" in notices(app)
        await press(pilot, "6", then=lambda: isinstance(app.screen, Logs))
        await pilot.press("f")
        assert not app.screen._lines.following  # type: ignore[attr-defined]
        await pilot.press("y")
        await pilot.pause(0.1)
        assert "pause" not in launcher.node.asked


def test_names_of_keys_are_unique(launcher: FakeLauncher) -> None:
    known = binding_ids(SapoApp(launcher, TRUECOLOR))
    for mode, screen in SapoApp.MODES.items():
        names = [str(binding.id) for binding in type(screen()).BINDINGS if isinstance(binding, Binding)]
        assert names and len({*names}) == len(names) and {*names} <= known, mode
        assert all(name.startswith(f"{mode}.") for name in names), mode


def meanings() -> dict[str, dict[str, str]]:
    """What letters do by screen, without the app's own keys and those of lists."""
    letters: dict[str, dict[str, str]] = {}
    for mode, title in sorted({**VIEWS, "runs": "Runs"}.items(), key=lambda item: item[1]):
        for binding in type(SapoApp.MODES[mode]()).BINDINGS:
            assert isinstance(binding, Binding)
            for key in binding.key.split(","):
                if len(key) == 1 and key.isalpha() and key not in "cjk":
                    screens = letters.setdefault(key, {})
                    screens[title] = " or ".join(filter(None, (screens.get(title), binding.description)))
    return letters


def test_a_letter_does_one_thing_on_a_screen_and_is_listed_with_its_one_meaning() -> None:
    """That what it does on two screens is the same, a reader of the table decides."""
    page = (Path(__file__).parents[2] / "docs" / "app.md").read_text(encoding="utf-8")
    listed = [line for line in page.splitlines() if line.startswith("| `") and line[4] == "`"]
    letters = meanings()
    assert [line[3] for line in listed] == sorted(letters, key=lambda key: (key.lower(), key.isupper()))
    for line in listed:
        _, key, meaning, screens, _ = (cell.strip() for cell in line.split("|"))
        assert meaning and screens == "; ".join(": ".join(row) for row in letters[key[1]].items()), line
        assert " or " not in meaning, line
    own = {key for binding in SapoApp.BINDINGS if isinstance(binding, Binding) for key in binding.key.split(",")}
    assert not own & set(letters)
