"""The app's own commands in the palette, a node at every login, and the ids of all keys."""

from __future__ import annotations

import asyncio
import pkgutil
import tomllib
from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.app import SystemCommand
from textual.binding import Binding
from textual.screen import Screen

from sapo_edge.errors import ConfigError, SapoError
from sapo_edge.plain import did_you_mean, printable
from sapo_edge.tui.look.terminal import screen_text
from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.view import VIEWS
from sapo_edge.tui.widgets.dialog import Ask

if TYPE_CHECKING:
    from sapo_edge.tui.app import SapoApp

MOVING = frozenset(("up", "down", "left", "right", "pageup", "pagedown", "home", "end", "escape"))
"""Keys that move about: what they do is no command."""
STARTS = (
    "A service of yours starts the node with each session, and again after a failure. The node of now is left alone."
)
ENDS = (
    "Its service is removed. If that runs the node, the node finishes its round and stops. What was learned stays, and "
    "sapo starts a node when you open it."
)


def node_commands(app: SapoApp) -> Iterator[SystemCommand]:
    """Commands for the node in its current state, one for each screen, and one to quit."""
    standing = app.state.standing
    if standing is Standing.ATTACHED:
        if app.state.paused:
            yield SystemCommand("Resume the node", "Continue, whatever the reason for the pause", app.action_pause)
        else:
            yield SystemCommand("Pause the node", "Within a second; it still receives rollouts", app.action_pause)
        yield SystemCommand("Stop the node", "Asks once; the round is finished and saved", app.action_start_or_stop)
    elif standing is Standing.ENDED:
        yield SystemCommand("Start the node", "Continue from the last checkpoint", app.action_start_or_stop)
    for number, (mode, title) in enumerate(VIEWS.items(), 1):
        yield SystemCommand(f"Show {title}", f"The screen of key {number}", partial(app.switch_mode, mode))
    runs = partial(app.switch_mode, "runs")
    yield SystemCommand("Show Runs", "All runs, two compared, a new one, an experiment", runs)

    def login() -> None:
        app.run_worker(change_start_at_login(app), group="login-ask", exclusive=True)

    yield SystemCommand("Start at login", "A node whenever you log in, or none any more; asks once", login)
    yield SystemCommand("Quit sapo", "Leave the app; asks once whether the node keeps running", app.action_ask_quit)


def screen_commands(app: SapoApp, screen: Screen[Any]) -> Iterator[SystemCommand]:
    """What the keys of a screen do now, apart from those that move about."""
    active = screen.active_bindings
    moves = {active[key].binding.action for key in MOVING & active.keys()}
    for node, binding, enabled, tooltip in {entry.binding.action: entry for entry in active.values()}.values():
        if node is not app and enabled and binding.id and binding.description and binding.action not in moves:
            key = f"The key {app.get_key_display(binding)} of this screen"
            run = partial(app.run_action, binding.action, node)
            yield SystemCommand(tooltip or binding.description, key, run)


def start_at_login(app: SapoApp) -> None:
    """Let a node start at every login, and say how that ended."""
    app.run_worker(_service(app, "install", "--no-start"), group="login")


async def change_start_at_login(app: SapoApp) -> None:
    """Ask whether a node is to start at every login, or none any more, and do it. Call it from a worker."""
    try:
        starts = await asyncio.to_thread(app.launcher.starts_at_login)
    except SapoError as error:
        app.show_error(error)
        return
    heading = "No longer start a node when you log in?" if starts else "Start a node whenever you log in?"
    if await app.push_screen_wait(Ask(heading, ENDS if starts else STARTS)) is None:
        return
    if starts:
        await _service(app, "remove")
    else:
        start_at_login(app)


async def _service(app: SapoApp, *arguments: str) -> None:
    try:
        result = await asyncio.to_thread(app.launcher.job("service", *arguments).run)
    except SapoError as error:
        app.show_error(error)
        return
    unit = result.record.get("unit")
    done = f"A node starts whenever you log in: {unit} is written." if unit else "No node starts at login any more."
    undo = "The command Start at login (: opens the list) takes it back." if unit else ""
    # It may depend on the machine what is missing for a start before anybody logs in.
    lines = [done, undo, *(line for line in result.notes if line.startswith(("it runs while", "  sudo loginctl")))]
    app.notify("\n".join(printable(line) for line in lines if line), timeout=20, markup=False)


def saving_commands(app: SapoApp, screen: Screen[Any]) -> Iterator[SystemCommand]:
    def save(suffix: str, content: Callable[[], str]) -> None:
        app.save(content().encode(), f"sapo-{datetime.now():%Y-%m-%d-%H%M%S}{suffix}")

    text, picture = partial(save, ".txt", partial(screen_text, screen)), partial(save, ".svg", app.export_screenshot)
    yield SystemCommand("Save this screen as text", "A .txt file in the folder for downloads", text)
    yield SystemCommand("Save this screen as a picture", "An .svg file in the folder for downloads", picture)


def binding_ids(app: SapoApp) -> set[str]:
    """The ids of all keys of the app, its screens, dialogs and widgets. Slow: it imports all of them."""
    from sapo_edge.tui import screens, widgets

    owners: set[type] = {type(app)}
    for package in (screens, widgets):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            owners.update(item for item in vars(import_module(module.name)).values() if isinstance(item, type))
    bindings = (binding for owner in owners for binding in vars(owner).get("BINDINGS", ()))
    return {binding.id for binding in bindings if isinstance(binding, Binding) and binding.id}


def read_keys(file: Path, ids: Collection[str]) -> dict[str, str]:
    """Keys by the id of their binding, as in `"node.pause" = "space,p"`; ConfigError if any can't be used."""
    try:
        table = tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read {file}: {error}", "correct it or move it away") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}", "correct that place, or move the file away") from error
    keys: dict[str, str] = {}
    for name, value in table.items():
        if name not in ids:
            remedy = did_you_mean(name, ids, "F1 in the app lists the names")
            raise ConfigError(f"{file}: no key is called {name!r}", f"write names in quotes; {remedy}")
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(f"{file}: {name!r} is not text", 'write it as "node.pause" = "space"')
        keys[name] = value.strip()
    return keys
