"""What the command palette offers beside Textual's own, and the ids of all keys."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

from textual.app import SystemCommand
from textual.binding import Binding

from sapo_edge.tui.node.state import Standing
from sapo_edge.tui.screens.view import VIEWS

if TYPE_CHECKING:
    from sapo_edge.tui.app import SapoApp


def node_commands(app: SapoApp) -> Iterator[SystemCommand]:
    """What can be done to the node now, and every screen."""
    standing = app.state.standing
    if standing is Standing.ATTACHED:
        title, told = (
            ("Go on", "The node works again, whatever made it rest")
            if app.state.paused
            else ("Pause the node", "It rests within a second, and goes on receiving")
        )
        yield SystemCommand(title, told, app.action_pause)
        yield SystemCommand("Stop the node", "Finish the round, save, and end", app.action_start_or_stop)
    elif standing is Standing.ENDED:
        yield SystemCommand("Start the node", "Go on from the last checkpoint", app.action_start_or_stop)
    for number, (mode, title) in enumerate(VIEWS.items(), 1):

        def show(mode: str = mode) -> None:
            app.switch_mode(mode)

        yield SystemCommand(f"Show {title}", f"The screen of key {number}", show)
    yield SystemCommand("Quit sapo", "Leave the app; asks once what becomes of the node", app.action_ask_quit)


def binding_ids(app: SapoApp) -> set[str]:
    """The ids of all keys of the app, its screens, dialogs and widgets. Loads all of them, which takes a while."""
    from sapo_edge.tui import screens, widgets

    owners: set[type] = {type(app)}
    for package in (screens, widgets):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            owners.update(item for item in vars(import_module(module.name)).values() if isinstance(item, type))
    bindings = (binding for owner in owners for binding in vars(owner).get("BINDINGS", ()))
    return {binding.id for binding in bindings if isinstance(binding, Binding) and binding.id}
